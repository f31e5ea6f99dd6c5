package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/workspace"
)

// HistoryVersion is the version of the JSON form that Encode writes. A reader
// never drops what it does not know: another version, an unknown kind or an
// unknown field is an error, so that a conversation is not damaged by a
// program that is too old for it.
const HistoryVersion = 1

// ErrHistory is what every error of Decode and Validate matches.
var ErrHistory = errors.New("bad history")

func historyErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrHistory}, args...)...)
}

type envelope struct {
	Version  int       `json:"version"`
	Messages []Message `json:"messages"`
}

// Encode returns a conversation as JSON. Encoding what Decode returned gives
// the same bytes again. Text that is not UTF-8 is made so, with U+FFFD where
// it was not.
func Encode(messages []Message) ([]byte, error) {
	if messages == nil {
		messages = []Message{}
	}
	return marshal(envelope{HistoryVersion, messages})
}

// Decode reads what Encode wrote. It does not call Validate.
func Decode(data []byte) ([]Message, error) {
	var version struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return nil, historyErrorf("%w", err)
	}
	switch {
	case version.Version == nil:
		return nil, historyErrorf("it has no version: not a conversation of this module")
	case *version.Version != HistoryVersion:
		return nil, historyErrorf("version %d is not known (this program reads version %d); use a newer program", *version.Version, HistoryVersion)
	}
	var e envelope
	if err := strict(data, &e); err != nil {
		return nil, historyErrorf("%w", err)
	}
	return e.Messages, nil
}

// marshal is json.Marshal without the escapes for HTML, which make code hard
// to read and are of no use here.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func strict(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("data after the end")
	}
	return nil
}

// message is the JSON form of Message.
type message struct {
	Kind      Kind              `json:"kind"`
	Time      time.Time         `json:"time,omitzero"`
	Run       string            `json:"run,omitempty"`
	Model     string            `json:"model,omitempty"`
	ID        string            `json:"id,omitempty"`
	Usage     Usage             `json:"usage,omitzero"`
	Finish    FinishReason      `json:"finish,omitempty"`
	Workspace *workspace.Ref    `json:"workspace,omitempty"`
	Parts     []json.RawMessage `json:"parts"`
}

// MarshalJSON returns the JSON form that Encode uses.
func (m Message) MarshalJSON() ([]byte, error) {
	out := message{
		Kind: m.Kind, Run: utf8(m.Run), Model: utf8(m.Model), ID: utf8(m.ID),
		Usage: m.Usage, Finish: m.Finish, Workspace: m.Workspace,
		Parts: make([]json.RawMessage, len(m.Parts)),
	}
	if !m.Time.IsZero() {
		out.Time = m.Time.UTC().Round(0)
	}
	for i, p := range m.Parts {
		data, err := marshalPart(p)
		if err != nil {
			return nil, err
		}
		out.Parts[i] = data
	}
	return marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote and refuses anything else.
func (m *Message) UnmarshalJSON(data []byte) error {
	var in message
	if err := strict(data, &in); err != nil {
		return err
	}
	if in.Kind != KindRequest && in.Kind != KindResponse {
		return historyErrorf("%q is not a kind of message", in.Kind)
	}
	parts := make([]Part, len(in.Parts))
	for i, raw := range in.Parts {
		p, err := unmarshalPart(raw)
		if err != nil {
			return err
		}
		parts[i] = p
	}
	*m = Message{
		Kind: in.Kind, Time: in.Time, Run: in.Run, Model: in.Model, ID: in.ID,
		Usage: in.Usage, Finish: in.Finish, Workspace: in.Workspace, Parts: parts,
	}
	return nil
}

// response is the JSON form of Response.
type response struct {
	Model  string            `json:"model,omitempty"`
	ID     string            `json:"id,omitempty"`
	Usage  Usage             `json:"usage,omitzero"`
	Finish FinishReason      `json:"finish,omitempty"`
	Parts  []json.RawMessage `json:"parts"`
}

// MarshalJSON returns the response in the form that messages have.
func (r Response) MarshalJSON() ([]byte, error) {
	out := response{Model: utf8(r.Model), ID: utf8(r.ID), Usage: r.Usage, Finish: r.Finish, Parts: make([]json.RawMessage, len(r.Parts))}
	for i, p := range r.Parts {
		data, err := marshalPart(p)
		if err != nil {
			return nil, err
		}
		out.Parts[i] = data
	}
	return marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (r *Response) UnmarshalJSON(data []byte) error {
	var in response
	if err := strict(data, &in); err != nil {
		return err
	}
	*r = Response{Model: in.Model, ID: in.ID, Usage: in.Usage, Finish: in.Finish, Parts: make([]Part, len(in.Parts))}
	for i, raw := range in.Parts {
		p, err := unmarshalPart(raw)
		if err != nil {
			return err
		}
		r.Parts[i] = p
	}
	return nil
}

func marshalPart(p Part) (json.RawMessage, error) {
	if p == nil {
		return nil, historyErrorf("a part is nil")
	}
	data, err := marshal(clean(p))
	if err != nil {
		return nil, fmt.Errorf("%w: a %s part: %w", ErrHistory, p.part(), err)
	}
	head := `{"type":"` + p.part() + `"`
	if len(data) > len("{}") {
		head += ","
	}
	return append([]byte(head), data[1:]...), nil
}

func unmarshalPart(raw json.RawMessage) (Part, error) {
	var tag struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(raw, &tag); err != nil {
		return nil, err
	}
	switch tag.Type {
	case "system":
		return decodePart[System](raw)
	case "user":
		return decodePart[User](raw)
	case "tool_return":
		return decodePart[ToolReturn](raw)
	case "retry":
		return decodePart[Retry](raw)
	case "notice":
		return decodePart[Notice](raw)
	case "text":
		return decodePart[Text](raw)
	case "thinking":
		return decodePart[Thinking](raw)
	case "tool_call":
		return decodePart[ToolCall](raw)
	case "file":
		return decodePart[File](raw)
	}
	return nil, historyErrorf("%q is not a type of part", tag.Type)
}

// decodePart reads one part strictly. The tag is not a field of the part, so
// it is taken off first.
func decodePart[P Part](raw json.RawMessage) (Part, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	delete(fields, "type")
	rest, err := marshal(fields)
	if err != nil {
		return nil, err
	}
	var p P
	if err := strict(rest, &p); err != nil {
		return nil, fmt.Errorf("a %s part: %w", p.part(), err)
	}
	return clean(p), nil
}

// utf8 makes text that JSON can hold. The encoder would replace what is not
// UTF-8 with an escape, and the same text read back would be written without
// it: other bytes.
func utf8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// clean returns the part in its one normal form.
func clean(p Part) Part {
	switch p := p.(type) {
	case System:
		return System{utf8(p.Text)}
	case User:
		content := make([]Content, len(p.Content))
		for i, c := range p.Content {
			c.Text = utf8(c.Text)
			if c.File != nil {
				f := cleanFile(*c.File)
				c.File, c.Text = &f, ""
			}
			content[i] = c
		}
		return User{content}
	case ToolReturn:
		p.ID, p.Name, p.Text = utf8(p.ID), utf8(p.Name), utf8(p.Text)
		p.Files = slices.Clone(p.Files)
		for i := range p.Files {
			p.Files[i] = cleanFile(p.Files[i])
		}
		return p
	case Retry:
		return Retry{utf8(p.ID), utf8(p.Name), utf8(p.Text)}
	case Notice:
		return Notice{utf8(p.Reason), utf8(p.Text)}
	case Text:
		return Text{utf8(p.Text), p.Provider}
	case Thinking:
		return Thinking{utf8(p.Text), p.Provider}
	case ToolCall:
		return ToolCall{utf8(p.ID), utf8(p.Name), utf8(p.Args), p.Provider}
	case File:
		return cleanFile(p)
	}
	return p
}

func cleanFile(f File) File {
	f.Name, f.MediaType = utf8(f.Name), utf8(f.MediaType)
	if f.Data == nil {
		f.Data = []byte{}
	}
	return f
}

// Validate reports whether a provider would accept the conversation: parts are
// in messages of their kind, and each tool call of a response is answered
// exactly once, in the message that follows. Whatever way a run ends, its
// history passes.
func Validate(messages []Message) error {
	var open map[string]string // calls of the latest response, by id
	for i, m := range messages {
		if m.Kind != KindRequest && m.Kind != KindResponse {
			return historyErrorf("message %d: %q is not a kind of message", i, m.Kind)
		}
		if m.Kind == KindResponse && len(open) > 0 {
			return historyErrorf("message %d: tool call %s of %s has no result", i, firstKey(open), open[firstKey(open)])
		}
		calls := map[string]string{}
		for j, p := range m.Parts {
			if p == nil {
				return historyErrorf("message %d: part %d is nil", i, j)
			}
			if p.kind() != m.Kind {
				return historyErrorf("message %d: a %s part does not belong in a %s", i, p.part(), m.Kind)
			}
			switch p := p.(type) {
			case ToolCall:
				if p.ID == "" {
					return historyErrorf("message %d: a call of %s has no id", i, p.Name)
				}
				if _, twice := calls[p.ID]; twice {
					return historyErrorf("message %d: two tool calls have the id %s", i, p.ID)
				}
				calls[p.ID] = p.Name
			case ToolReturn:
				if _, ok := open[p.ID]; !ok {
					return historyErrorf("message %d: the result of %s answers no call (id %q)", i, p.Name, p.ID)
				}
				delete(open, p.ID)
			case Retry:
				if p.ID == "" {
					continue
				}
				if _, ok := open[p.ID]; !ok {
					return historyErrorf("message %d: the retry of %s answers no call (id %q)", i, p.Name, p.ID)
				}
				delete(open, p.ID)
			}
		}
		if m.Kind == KindRequest && len(open) > 0 {
			return historyErrorf("message %d: tool call %s of %s has no result", i, firstKey(open), open[firstKey(open)])
		}
		open = calls
	}
	if len(open) > 0 {
		return historyErrorf("at the end: tool call %s of %s has no result", firstKey(open), open[firstKey(open)])
	}
	return nil
}

func firstKey(m map[string]string) string { return slices.Min(slices.Collect(maps.Keys(m))) }

// LatestWorkspace returns the workspace that the latest response names, nil
// when it names none.
func LatestWorkspace(messages []Message) *workspace.Ref {
	for _, m := range slices.Backward(messages) {
		if m.Kind == KindResponse {
			return m.Workspace
		}
	}
	return nil
}

// FromClient returns a copy of a conversation that came from a client who is not
// trusted, without what such a client must not decide: the workspace (it would
// run commands in whatever environment it names), system prompts, notices and
// provider data. Tool calls and results stay; a program that cannot trust
// those either must keep histories on its own side.
func FromClient(messages []Message) []Message {
	out := make([]Message, 0, len(messages))
	for _, m := range messages {
		m.Workspace = nil
		parts := make([]Part, 0, len(m.Parts))
		for _, p := range m.Parts {
			switch p := p.(type) {
			case System, Notice:
				continue
			case Text:
				p.Provider = nil
				parts = append(parts, p)
			case Thinking:
				continue // of no use without its provider data
			case ToolCall:
				p.Provider = nil
				parts = append(parts, p)
			case File:
				p.Provider = nil
				parts = append(parts, p)
			default:
				parts = append(parts, p)
			}
		}
		m.Parts = parts
		out = append(out, m)
	}
	return out
}
