package fantasy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	llm "charm.land/fantasy"

	"github.com/hutch-sandbox/hutch/agent/model"
)

// Stream sends the request and yields the response as it arrives.
func (m *Model) Stream(ctx context.Context, req *model.Request) iter.Seq2[model.Delta, error] {
	return func(yield func(model.Delta, error) bool) {
		call, err := m.call(req)
		if err != nil {
			yield(model.Delta{}, err)
			return
		}
		delay := m.delay
		for attempt := 1; ; attempt++ {
			res, stopped, err := m.once(ctx, call, yield)
			if stopped {
				return
			}
			if err == nil {
				yield(model.Delta{Response: res}, nil)
				return
			}
			if ctx.Err() != nil || attempt >= m.attempts || !retryable(err) {
				yield(model.Delta{}, m.problem(ctx, err, attempt))
				return
			}
			wait := delay
			if asked, ok := askedFor(err); ok {
				wait = asked
			} else {
				wait += rand.N(wait/4 + 1) // so that many clients do not come back at once
			}
			delay *= 2
			why := m.problem(ctx, err, attempt).Error()
			if !yield(model.Delta{Restart: true, Reason: why}, nil) {
				return
			}
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				yield(model.Delta{}, ctx.Err())
				return
			}
		}
	}
}

// retryable reports whether the same request may succeed later.
func retryable(err error) bool {
	var perr *llm.ProviderError
	if errors.As(err, &perr) {
		return perr.IsRetryable()
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	// Errors in the middle of a stream of OpenAI's Responses come as text.
	if _, rest, ok := strings.Cut(err.Error(), "(code: "); ok {
		code, _, _ := strings.Cut(rest, ")")
		if llm.TransientStreamErrorTypes[code] {
			return true
		}
	}
	var nerr net.Error
	return errors.As(err, &nerr) || llm.IsTransportError(err)
}

// longestWait bounds what a provider may ask for.
const longestWait = time.Minute

// askedFor returns how long the provider asks to wait.
func askedFor(err error) (time.Duration, bool) {
	var perr *llm.ProviderError
	if !errors.As(err, &perr) {
		return 0, false
	}
	header := func(name string) string {
		for k, v := range perr.ResponseHeaders {
			if strings.EqualFold(k, name) {
				return v
			}
		}
		return ""
	}
	if ms, err := strconv.ParseFloat(header("retry-after-ms"), 64); err == nil && ms >= 0 {
		return min(time.Duration(ms*float64(time.Millisecond)), longestWait), true
	}
	after := header("retry-after")
	if s, err := strconv.ParseFloat(after, 64); err == nil && s >= 0 {
		return min(time.Duration(s*float64(time.Second)), longestWait), true
	}
	for _, layout := range []string{time.RFC1123, time.RFC850, time.ANSIC} {
		if at, err := time.Parse(layout, after); err == nil {
			return min(max(time.Until(at), 0), longestWait), true
		}
	}
	return 0, false
}

// piece is a part of a response that is being assembled.
type piece struct {
	kind byte // 't'ext, thin'k'ing, 'c'all
	id   string
	name string
	text strings.Builder
	args strings.Builder // a call's arguments as they arrived
	meta llm.ProviderMetadata
	done bool // the whole call has arrived
}

// once sends the request one time. stopped says that nobody listens any more.
func (m *Model) once(ctx context.Context, call llm.Call, yield func(model.Delta, error) bool) (res *model.Response, stopped bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also when the range below is left early
	stream, err := m.lm.Stream(ctx, call)
	if err != nil {
		return nil, false, err
	}
	var pieces []*piece
	// A later part with an id that was used before starts anew: some providers
	// count from 0 for texts and for thoughts.
	find := func(kind byte, id string) *piece {
		for i := len(pieces) - 1; i >= 0; i-- {
			if p := pieces[i]; p.kind == kind && p.id == id {
				return p
			}
		}
		p := &piece{kind: kind, id: id}
		pieces = append(pieces, p)
		return p
	}
	start := func(kind byte, id string) *piece {
		p := &piece{kind: kind, id: id}
		pieces = append(pieces, p)
		return p
	}
	for part := range stream {
		var d model.Delta
		switch part.Type {
		case llm.StreamPartTypeTextStart:
			start('t', part.ID).add(part)
		case llm.StreamPartTypeTextDelta, llm.StreamPartTypeTextEnd:
			find('t', part.ID).add(part)
			d.Text = part.Delta
		case llm.StreamPartTypeReasoningStart:
			start('k', part.ID).add(part)
			d.Thinking = part.Delta
		case llm.StreamPartTypeReasoningDelta, llm.StreamPartTypeReasoningEnd:
			p := find('k', part.ID)
			if p.text.Len() == 0 {
				part.Delta = strings.TrimPrefix(part.Delta, "\n") // what separates parts of a summary
			}
			p.add(part)
			d.Thinking = part.Delta
		case llm.StreamPartTypeToolInputStart:
			p := start('c', part.ID)
			p.name = part.ToolCallName
			d.CallID, d.CallName = part.ID, part.ToolCallName
		case llm.StreamPartTypeToolInputDelta:
			d.CallID, d.CallArgs = part.ID, part.Delta+part.ToolCallInput
			find('c', part.ID).args.WriteString(d.CallArgs)
		case llm.StreamPartTypeToolCall:
			p := find('c', part.ID)
			if p.done { // one id for two calls
				p = start('c', part.ID)
			}
			p.name, p.done = part.ToolCallName, true
			p.text.Reset()
			// Some make {} of arguments that are malformed; the model should see
			// what it wrote.
			if raw := p.args.String(); raw != "" && !json.Valid([]byte(raw)) {
				p.text.WriteString(raw)
			} else {
				p.text.WriteString(part.ToolCallInput)
			}
			if part.ProviderMetadata != nil {
				p.meta = part.ProviderMetadata
			}
		case llm.StreamPartTypeError:
			if part.Error == nil {
				part.Error = errors.New("the stream ended with an error that was not said")
			}
			return nil, false, part.Error
		case llm.StreamPartTypeFinish:
			return m.response(pieces, part), false, nil
		default:
			continue
		}
		if d != (model.Delta{}) && !yield(d, nil) {
			return nil, true, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	return nil, false, llm.NewIncompleteStreamError()
}

func (p *piece) add(part llm.StreamPart) {
	p.text.WriteString(part.Delta)
	if part.ProviderMetadata != nil {
		p.meta = part.ProviderMetadata // the last one is the complete one
	}
}

func (m *Model) response(pieces []*piece, finish llm.StreamPart) *model.Response {
	u := finish.Usage
	res := &model.Response{
		ID: finish.ID, Finish: finishReason(finish.FinishReason),
		Usage: model.Usage{
			Input:  u.InputTokens + u.CacheReadTokens + u.CacheCreationTokens,
			Output: u.OutputTokens, CacheRead: u.CacheReadTokens, CacheWrite: u.CacheCreationTokens, Reasoning: u.ReasoningTokens,
		},
	}
	if m.proto == protoGoogle { // it counts cached tokens as sent, and thoughts apart from the rest
		res.Usage.Input, res.Usage.CacheRead = u.InputTokens, min(u.CacheReadTokens, u.InputTokens)
		res.Usage.Output = u.OutputTokens + u.ReasoningTokens
	}
	calls := false
	for _, p := range pieces {
		text, data := p.text.String(), providerData(p.meta)
		switch p.kind {
		case 't':
			if text != "" {
				res.Parts = append(res.Parts, model.Text{Text: text, Provider: data})
			}
		case 'k':
			if text != "" || data != nil {
				res.Parts = append(res.Parts, model.Thinking{Text: text, Provider: data})
			}
		case 'c':
			if p.done {
				calls = true
				res.Parts = append(res.Parts, model.ToolCall{ID: p.id, Name: p.name, Args: text, Provider: data})
			}
		}
	}
	if calls && res.Finish == model.Stop {
		res.Finish = model.ToolCalls
	}
	return res
}

func finishReason(r llm.FinishReason) model.FinishReason {
	switch r {
	case llm.FinishReasonStop:
		return model.Stop
	case llm.FinishReasonToolCalls:
		return model.ToolCalls
	case llm.FinishReasonLength:
		return model.Length
	case llm.FinishReasonContentFilter:
		return model.ContentFilter
	case llm.FinishReasonError:
		return model.Failed
	}
	return model.Unknown
}

// providerData keeps what a provider wants back, as JSON that says its type.
func providerData(meta llm.ProviderMetadata) model.ProviderData {
	var out model.ProviderData
	for name, v := range meta {
		data, err := json.Marshal(v)
		if err != nil || bytes.Equal(data, []byte("null")) {
			continue // it is for the provider's convenience; without it, it asks again
		}
		if out == nil {
			out = model.ProviderData{}
		}
		out[name] = data
	}
	return out
}

// bodyMessage finds what an error response says. Bodies may come with the
// headers before them.
func bodyMessage(body []byte) string {
	at := bytes.IndexByte(body, '{')
	if at < 0 {
		return ""
	}
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(bytes.TrimSpace(body[at:]), &e) != nil {
		return ""
	}
	var inner struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(e.Error, &inner) == nil && inner.Message != "" {
		return inner.Message
	}
	var text string
	if json.Unmarshal(e.Error, &text) == nil && text != "" {
		return text
	}
	return e.Message
}
