package model

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/workspace"
)

// Kind says whose message it is.
type Kind string

// The kinds of message.
const (
	KindRequest  Kind = "request"  // to the model
	KindResponse Kind = "response" // from the model
)

// Message is one entry of a conversation. It is data: copy it freely, and do
// not change the parts of one that somebody else holds.
type Message struct {
	Kind  Kind
	Parts []Part
	Time  time.Time // when it was made; zero means unknown
	Run   string    // the run that made it; may be empty

	// The rest is of responses only.

	Model  string       // which model answered, as Model.Name says
	ID     string       // the provider's id of the response; may be empty
	Usage  Usage        // what it cost
	Finish FinishReason // why it ended

	// Workspace is the environment that the run worked in when the message was
	// recorded, nil while there was none. A later run with the same history
	// works in the one that the latest response names.
	Workspace *workspace.Ref
}

// Text returns the message's text parts, joined.
func (m Message) Text() string { return joinText(m.Parts) }

// Calls returns the tool calls of a response.
func (m Message) Calls() []ToolCall {
	var calls []ToolCall
	for _, p := range m.Parts {
		if c, ok := p.(ToolCall); ok {
			calls = append(calls, c)
		}
	}
	return calls
}

func joinText(parts []Part) string {
	var b strings.Builder
	for _, p := range parts {
		if t, ok := p.(Text); ok {
			b.WriteString(t.Text)
		}
	}
	return b.String()
}

// Part is one piece of a message. Of requests: System, User, ToolReturn, Retry
// and Notice. Of responses: Text, Thinking, ToolCall and File. There are no
// others.
type Part interface {
	part() string // the tag in JSON
	kind() Kind   // of which messages
}

// System is a system prompt that belongs to the conversation, as opposed to
// [Request.Instructions], which are made anew for each request.
type System struct {
	Text string `json:"text"`
}

// User is what the user says: text, images and other files, in order.
type User struct {
	Content []Content `json:"content"`
}

// UserText returns a User part of plain text.
func UserText(text string) User { return User{Content: []Content{{Text: text}}} }

// Text returns the texts of the part, joined by newlines; files are left out.
func (u User) Text() string { return contentText(u.Content) }

// Content is text or, when File is set, a file.
type Content struct {
	Text string `json:"text,omitempty"`
	File *File  `json:"file,omitempty"`
}

func contentText(content []Content) string {
	var texts []string
	for _, c := range content {
		if c.File == nil {
			texts = append(texts, c.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// File is an image, a document or any other blob. In a response it is
// something that the model made.
type File struct {
	Name      string `json:"name,omitempty"`
	MediaType string `json:"media_type"` // for example "image/png"
	Data      []byte `json:"data"`

	Provider ProviderData `json:"provider,omitempty"`
}

// Outcome says how a tool call went.
type Outcome string

// The outcomes. Only the first is a success; the model is told of the others.
const (
	OK          Outcome = ""            // it returned
	Failure     Outcome = "failed"      // it failed for good
	Denied      Outcome = "denied"      // somebody said no
	Interrupted Outcome = "interrupted" // the run ended first; what it did is not known
	Deferred    Outcome = "deferred"    // it has not run yet: it waits for an answer from outside
)

// ToolReturn is the result of a tool call.
type ToolReturn struct {
	ID      string  `json:"id"`   // of the call
	Name    string  `json:"name"` // of the tool
	Text    string  `json:"text"`
	Files   []File  `json:"files,omitempty"` // images and documents for the model to look at
	Outcome Outcome `json:"outcome,omitempty"`
}

// Retry asks the model to try again: a tool call whose arguments or effect
// were wrong in a way that it can mend, or, with no ID, an answer that did not
// pass validation.
type Retry struct {
	ID   string `json:"id,omitempty"`
	Name string `json:"name,omitempty"`
	Text string `json:"text"`
}

// Notice tells the model something that neither the user nor a tool said: that
// the previous run was cut short, or that the workspace is a new one.
type Notice struct {
	Reason string `json:"reason"` // one word for programs, for example "cancelled"
	Text   string `json:"text"`   // for the model
}

// Text is what the model says.
type Text struct {
	Text     string       `json:"text"`
	Provider ProviderData `json:"provider,omitempty"`
}

// Thinking is what the model thought, as far as the provider shows it.
// Providers want it back unchanged, with its Provider data.
type Thinking struct {
	Text     string       `json:"text"`
	Provider ProviderData `json:"provider,omitempty"`
}

// ToolCall is the model's wish to have a tool run.
type ToolCall struct {
	ID       string       `json:"id"`
	Name     string       `json:"name"`
	Args     string       `json:"args"` // JSON as the model wrote it, well-formed or not
	Provider ProviderData `json:"provider,omitempty"`
}

// ProviderData is what a provider wants to see again with a part in a later
// request, for example a signature, by provider. Others ignore it.
type ProviderData map[string]json.RawMessage

func (System) part() string     { return "system" }
func (User) part() string       { return "user" }
func (ToolReturn) part() string { return "tool_return" }
func (Retry) part() string      { return "retry" }
func (Notice) part() string     { return "notice" }
func (Text) part() string       { return "text" }
func (Thinking) part() string   { return "thinking" }
func (ToolCall) part() string   { return "tool_call" }
func (File) part() string       { return "file" }

func (System) kind() Kind     { return KindRequest }
func (User) kind() Kind       { return KindRequest }
func (ToolReturn) kind() Kind { return KindRequest }
func (Retry) kind() Kind      { return KindRequest }
func (Notice) kind() Kind     { return KindRequest }
func (Text) kind() Kind       { return KindResponse }
func (Thinking) kind() Kind   { return KindResponse }
func (ToolCall) kind() Kind   { return KindResponse }
func (File) kind() Kind       { return KindResponse }
