// Package limits keeps a conversation within what a model can take.
//
// [Outputs] bounds what a tool's result costs, and keeps the rest where the
// model can page through it. [ClearResults] empties old results when the
// conversation fills the model's window, [Compact] puts a summary in the place
// of its older part, and [Warn] tells the model when a limit is near. Each is a
// capability of its own.
//
// How full the window is, is known from what the provider counted for the
// latest response; what came after it is estimated at four characters a token.
package limits

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
)

// DefaultWindow is the size of a model's window, in tokens, where Options do
// not say.
const DefaultWindow = 200_000

// charsPerToken is the estimate for what no provider has counted.
const charsPerToken = 4

// tokens estimates the size of a request. Once something was taken out of the
// conversation, what the provider counted before is not so any more, and all
// of it is estimated.
func tokens(req *model.Request) int64 {
	var counted, after, all int64
	shortened := false
	for _, m := range req.Messages {
		if m.Kind == model.KindResponse && m.Usage.Input > 0 {
			counted, after = m.Usage.Input+m.Usage.Output, 0
		}
		for _, p := range m.Parts {
			n := length(p)
			all += n
			if m.Kind == model.KindRequest || m.Usage.Input == 0 {
				after += n
			}
			switch p := p.(type) {
			case model.ToolReturn:
				shortened = shortened || p.Text == cleared
			case model.Notice:
				shortened = shortened || p.Reason == summary
			}
		}
	}
	if counted > 0 && !shortened {
		return counted + after/charsPerToken
	}
	all += int64(len(req.Instructions))
	for _, t := range req.Tools {
		all += int64(len(t.Description) + len(t.Schema))
	}
	return all / charsPerToken
}

// fileTokens is about what an image costs.
const fileTokens = 1500

func length(p model.Part) int64 {
	files := func(n int) int64 { return int64(n) * fileTokens * charsPerToken }
	switch p := p.(type) {
	case model.System:
		return int64(len(p.Text))
	case model.User:
		n := int64(0)
		for _, c := range p.Content {
			n += int64(len(c.Text))
			if c.File != nil {
				n += files(1)
			}
		}
		return n
	case model.ToolReturn:
		return int64(len(p.Text)) + files(len(p.Files))
	case model.Retry:
		return int64(len(p.Text))
	case model.Notice:
		return int64(len(p.Text))
	case model.Text:
		return int64(len(p.Text))
	case model.Thinking:
		return int64(len(p.Text))
	case model.ToolCall:
		return int64(len(p.Args))
	case model.File:
		return files(1)
	}
	return 0
}

// ClearResults is a capability that empties the results of old tool calls when
// the conversation fills a share of the model's window. The calls stay, so
// that the model knows what it did and can do it again.
type ClearResults struct {
	Window int64   // the model's window, in tokens; 0 means DefaultWindow
	Share  float64 // of the window; 0 means 0.7
	Keep   int     // latest results that are kept; 0 means 5
}

// cleared is what is left of a result.
const cleared = "[this result was removed to save space; call the tool again if you need it]"

// BeforeModelRequest clears, for this request and those after it.
func (c ClearResults) BeforeModelRequest(_ context.Context, run *agent.Run, req *model.Request) error {
	window, share, keep := c.Window, c.Share, c.Keep
	if window <= 0 {
		window = DefaultWindow
	}
	if share <= 0 {
		share = 0.7
	}
	if keep <= 0 {
		keep = 5
	}
	if float64(tokens(req)) < share*float64(window) {
		return nil
	}
	messages := run.Messages()
	changed := false
	for i := len(messages) - 1; i >= 0; i-- {
		parts := append([]model.Part(nil), messages[i].Parts...)
		for j := len(parts) - 1; j >= 0; j-- {
			r, ok := parts[j].(model.ToolReturn)
			if !ok {
				continue
			}
			if keep > 0 {
				keep--
				continue
			}
			if len(r.Text) > len(cleared) || len(r.Files) > 0 {
				r.Text, r.Files = cleared, nil
				parts[j], changed = r, true
			}
		}
		messages[i].Parts = parts
	}
	if !changed {
		return nil
	}
	req.Messages = messages
	return run.ReplaceMessages(messages)
}

// Compact is a capability that puts a summary in the place of the older part
// of a conversation when that fills a share of the model's window. The model
// itself writes the summary, which counts as a request of the run.
type Compact struct {
	Window int64   // the model's window, in tokens; 0 means DefaultWindow
	Share  float64 // of the window; 0 means 0.85
	Keep   int     // latest messages that are kept as they are; 0 means 8
}

// summary marks the notice that stands for the older part.
const summary = "summary"

const summarize = `Summarize the conversation so far for yourself: you will go on with the task from your summary and the latest messages alone.
Say what the user wants, in their words where it matters; what was done and found out, with the names of files, commands and values that are still needed; what is left to do; and what was tried and does not work. Do not call tools.`

// BeforeModelRequest compacts, for this request and those after it.
func (c Compact) BeforeModelRequest(ctx context.Context, run *agent.Run, req *model.Request) error {
	window, share, keep := c.Window, c.Share, c.Keep
	if window <= 0 {
		window = DefaultWindow
	}
	if share <= 0 {
		share = 0.85
	}
	if keep <= 0 {
		keep = 8
	}
	if float64(tokens(req)) < share*float64(window) {
		return nil
	}
	messages := run.Messages()
	cut := boundary(messages, keep)
	if cut <= 0 {
		return nil
	}
	ask := &model.Request{
		Messages: append(messages[:cut:cut], model.Message{Kind: model.KindRequest, Parts: []model.Part{model.UserText(summarize)}}),
		Tools:    req.Tools, Choice: model.Choice{Mode: model.ChooseNone},
	}
	if len(req.Tools) == 0 {
		ask.Choice = model.Choice{}
	}
	res, err := run.Ask(ctx, ask)
	if err != nil {
		return fmt.Errorf("summarizing the conversation: %w", err)
	}
	text := strings.TrimSpace(res.Text())
	if text == "" {
		return nil // better the whole conversation than none
	}
	short := append([]model.Message{{
		Kind: model.KindRequest, Time: messages[cut].Time, Run: messages[cut].Run,
		Parts: []model.Part{model.Notice{Reason: summary, Text: "The conversation until here was summarized:\n\n" + text}},
	}}, messages[cut:]...)
	req.Messages = short
	return run.ReplaceMessages(short)
}

// boundary returns where the kept part begins: at a request that answers no
// calls, or at a response, and with a response after it, since the latest one
// names the workspace.
func boundary(messages []model.Message, keep int) int {
	for cut := len(messages) - keep; cut > 1; cut-- {
		if messages[cut].Kind == model.KindResponse {
			return cut
		}
	}
	return 0
}

// Warn is a capability that tells the model when the run has used a share of
// its limits, or of the model's window, so that it can come to an end. What it
// says is not part of the history.
type Warn struct {
	Window int64   // the model's window, in tokens; 0 means DefaultWindow
	Share  float64 // 0 means 0.9
}

// BeforeModelRequest adds the warning.
func (w Warn) BeforeModelRequest(_ context.Context, run *agent.Run, req *model.Request) error {
	window, share := w.Window, w.Share
	if window <= 0 {
		window = DefaultWindow
	}
	if share <= 0 {
		share = 0.9
	}
	l, u := run.Limits(), run.Usage()
	if l.Requests == 0 {
		l.Requests = agent.DefaultRequests
	}
	var near []string
	for _, x := range []struct {
		name      string
		used, max int64
	}{
		{"requests", u.Requests, l.Requests}, {"tool calls", u.ToolCalls, l.ToolCalls},
		{"input tokens", u.Input, l.InputTokens}, {"output tokens", u.Output, l.OutputTokens}, {"tokens", u.Total(), l.TotalTokens},
		{"tokens of your context", tokens(req), window},
	} {
		if x.max > 0 && float64(x.used) >= share*float64(x.max) {
			near = append(near, fmt.Sprintf("%d of %d %s", x.used, x.max, x.name))
		}
	}
	n := len(req.Messages) - 1
	if len(near) == 0 || n < 0 {
		return nil
	}
	last := req.Messages[n]
	last.Parts = append(last.Parts[:len(last.Parts):len(last.Parts)], model.Notice{
		Reason: "near_limit",
		Text:   "You have used " + strings.Join(near, ", ") + ". Finish what you are doing, or say what is left to do.",
	})
	req.Messages[n] = last
	return nil
}

// clip returns at most a number of characters of the beginning, at a whole
// line where there is one near.
func clip(text string, chars int) string {
	if utf8.RuneCountInString(text) <= chars {
		return text
	}
	n := 0
	for i := range text {
		if n == chars {
			text = text[:i]
			break
		}
		n++
	}
	if at := strings.LastIndexByte(text, '\n'); at > len(text)/2 {
		text = text[:at+1]
	}
	return text
}
