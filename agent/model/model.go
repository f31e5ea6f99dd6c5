// Package model is what an agent and a language model say to each other.
//
// A [Model] gets a [Request]: the conversation so far, the tools it may call
// and a few settings. It returns a [Response]: parts of text, thinking and
// tool calls, with the usage and the reason it stopped. A model that can
// deliver the response in pieces implements [Streamer] as well; [Stream] works
// with either. That is all, so that a test can write a model in ten lines:
//
//	type parrot struct{}
//
//	func (parrot) Name() string { return "test:parrot" }
//
//	func (parrot) Generate(ctx context.Context, req *model.Request) (*model.Response, error) {
//		return &model.Response{Parts: []model.Part{model.Text{Text: "hello"}}, Finish: model.Stop}, nil
//	}
//
// Package scripted has ready-made models for tests, package recorded replays a
// real one, and package fantasy speaks to providers.
//
// A conversation is a list of [Message] values. Requests hold what the model
// is told: the user's words, results of tools, notices. Responses hold what
// the model said, with the name of the workspace it worked in at that time.
// [Encode] and [Decode] turn a conversation to JSON and back, byte for byte,
// and [Validate] says whether a provider would accept it: every tool call has
// its one result.
package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
)

// Model is a language model. Implementations are safe for concurrent use.
type Model interface {
	// Name returns "provider:model", as in "anthropic:claude-opus-5-5". It is
	// recorded in each response.
	Name() string

	// Generate sends one request and returns the whole response. It neither
	// changes nor keeps the request. When ctx ends it returns promptly with an
	// error that matches ctx.Err().
	Generate(ctx context.Context, req *Request) (*Response, error)
}

// Streamer is a Model that can deliver a response in pieces.
type Streamer interface {
	Model

	// Stream sends one request. The sequence ends with a Delta that has
	// Response set, or with an error. A Delta with Restart set says that what
	// came so far is void, because the request is being sent again. Whoever
	// stops ranging early cancels the request.
	Stream(ctx context.Context, req *Request) iter.Seq2[Delta, error]
}

// Delta is one piece of a response on its way. At most one of its groups is
// set.
type Delta struct {
	Text     string // more of the answer's text
	Thinking string // more of the thinking

	CallID   string // the tool call that Tool and Args are about
	CallName string // its tool, set on the first piece of the call
	CallArgs string // more of its arguments

	Restart bool   // forget the pieces so far; Reason says why
	Reason  string // why the request is sent again

	Response *Response // the whole response; the last piece
}

// Stream asks a model, in pieces where it can and else in one.
func Stream(ctx context.Context, m Model, req *Request) iter.Seq2[Delta, error] {
	if s, ok := m.(Streamer); ok {
		return s.Stream(ctx, req)
	}
	return func(yield func(Delta, error) bool) {
		res, err := m.Generate(ctx, req)
		if err != nil {
			yield(Delta{}, err)
			return
		}
		for d := range res.Deltas() {
			if !yield(d, nil) {
				return
			}
		}
	}
}

// Collect ranges over a stream to its end and returns the response.
func Collect(stream iter.Seq2[Delta, error]) (*Response, error) {
	for d, err := range stream {
		if err != nil {
			return nil, err
		}
		if d.Response != nil {
			return d.Response, nil
		}
	}
	return nil, errors.New("model stream: ended without a response")
}

// Request is one question to a model.
type Request struct {
	// Messages is the conversation, oldest first; it passes Validate and ends
	// with a request message.
	Messages []Message `json:"messages"`

	// Instructions is the system prompt for this request. It is not part of
	// the conversation, since it may differ from request to request.
	Instructions string `json:"instructions,omitempty"`

	// Tools are what the model may call; none means it can only answer.
	Tools []Tool `json:"tools,omitempty"`

	// Choice says whether it must; the zero value leaves it to the model.
	Choice Choice `json:"choice,omitzero"`

	// Settings tune how it answers.
	Settings Settings `json:"settings,omitzero"`
}

// Tool describes one tool to a model.
type Tool struct {
	Name        string          `json:"name"`        // letters, digits, _ and -
	Description string          `json:"description"` // for the model to read
	Schema      json.RawMessage `json:"schema"`      // JSON Schema of the arguments: an object

	// Output marks a tool through which the model gives its final answer
	// instead of text.
	Output bool `json:"output,omitempty"`
}

// Choice says whether the model has to call a tool.
type Choice struct {
	Mode ChoiceMode `json:"mode,omitempty"`
	Name string     `json:"name,omitempty"` // the tool, with ChooseTool
}

// ChoiceMode is the kind of a Choice.
type ChoiceMode string

// The kinds of choice.
const (
	ChooseAuto     ChoiceMode = ""         // as the model likes
	ChooseRequired ChoiceMode = "required" // some tool
	ChooseNone     ChoiceMode = "none"     // no tool
	ChooseTool     ChoiceMode = "tool"     // the named one
)

// Settings tune a request. The zero value of each means the provider's default.
type Settings struct {
	MaxTokens   int64    `json:"max_tokens,omitempty"`  // longest response, in tokens
	Temperature *float64 `json:"temperature,omitempty"` // 0 to 2
	TopP        *float64 `json:"top_p,omitempty"`       // 0 to 1
	TopK        *int64   `json:"top_k,omitempty"`       // where the provider has it

	// Effort asks for more or less thinking: "low", "medium", "high" or what
	// else the provider knows. A model that cannot think ignores it.
	Effort string `json:"effort,omitempty"`

	// NoCache turns off prompt caching, which is on where a provider has to
	// be asked for it.
	NoCache bool `json:"no_cache,omitempty"`
}

// Response is what a model answered.
type Response struct {
	Parts  []Part       // Text, Thinking, ToolCall and File, in the model's order
	Usage  Usage        // tokens
	Finish FinishReason // why it stopped
	ID     string       // the provider's id of the response; may be empty
	Model  string       // the model as the provider names it; empty means as asked
}

// Text returns the response's text parts, joined.
func (r *Response) Text() string { return joinText(r.Parts) }

// Deltas returns the pieces of a response that came in one, so that code for
// streams has one form to handle. The last piece is the response.
func (r *Response) Deltas() iter.Seq[Delta] {
	return func(yield func(Delta) bool) {
		for _, p := range r.Parts {
			d := Delta{}
			switch p := p.(type) {
			case Text:
				d.Text = p.Text
			case Thinking:
				d.Thinking = p.Text
			case ToolCall:
				d.CallID, d.CallName, d.CallArgs = p.ID, p.Name, p.Args
			default:
				continue
			}
			if !yield(d) {
				return
			}
		}
		yield(Delta{Response: r})
	}
}

// FinishReason says why a response ended.
type FinishReason string

// The reasons.
const (
	Stop          FinishReason = "stop"           // it was done
	ToolCalls     FinishReason = "tool_calls"     // it waits for tools
	Length        FinishReason = "length"         // Settings.MaxTokens, or the model's own limit
	ContentFilter FinishReason = "content_filter" // the provider refused
	Failed        FinishReason = "error"          // the request failed; the parts are what came before
	Cancelled     FinishReason = "cancelled"      // the caller gave up; likewise
	Unknown       FinishReason = "unknown"        // the provider did not say
)

// Interrupted reports whether the response is the beginning of one that did
// not come to its end.
func (f FinishReason) Interrupted() bool { return f == Failed || f == Cancelled }

// Usage counts tokens. Providers differ in what they report; zero means zero
// or unknown.
type Usage struct {
	Requests   int64 `json:"requests,omitempty"`    // requests to the model
	ToolCalls  int64 `json:"tool_calls,omitempty"`  // tools that ran
	Input      int64 `json:"input,omitempty"`       // tokens sent, those from a cache included
	Output     int64 `json:"output,omitempty"`      // tokens received, thinking included
	CacheRead  int64 `json:"cache_read,omitempty"`  // of Input, those read from the provider's cache
	CacheWrite int64 `json:"cache_write,omitempty"` // of Input, those written to it
	Reasoning  int64 `json:"reasoning,omitempty"`   // of Output, those spent on thinking
}

// Add returns the sum.
func (u Usage) Add(v Usage) Usage {
	return Usage{
		Requests:   u.Requests + v.Requests,
		ToolCalls:  u.ToolCalls + v.ToolCalls,
		Input:      u.Input + v.Input,
		Output:     u.Output + v.Output,
		CacheRead:  u.CacheRead + v.CacheRead,
		CacheWrite: u.CacheWrite + v.CacheWrite,
		Reasoning:  u.Reasoning + v.Reasoning,
	}
}

// Total returns the tokens sent and received.
func (u Usage) Total() int64 { return u.Input + u.Output }

// Error is a failure that a provider reported, or that a connection to it had.
// A Model retries what is worth retrying before it returns one.
type Error struct {
	Model    string // the model that was asked
	Status   int    // HTTP status; 0 when there was none
	Message  string // in the provider's words, without secrets
	TooLong  bool   // the conversation does not fit the model's window
	Attempts int    // how often it was tried; 0 and 1 mean once
	Hint     string // what to do about it; may be empty
	Err      error  // the cause; may be nil
}

// Error returns the failure on one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Model)
	b.WriteString(": ")
	switch {
	case e.Message != "":
		b.WriteString(e.Message)
	case e.Err != nil:
		b.WriteString(e.Err.Error())
	default:
		b.WriteString("the request failed")
	}
	if e.Status != 0 {
		fmt.Fprintf(&b, " (HTTP %d)", e.Status)
	}
	if e.Attempts > 1 {
		fmt.Fprintf(&b, ", after %d attempts", e.Attempts)
	}
	if e.Hint != "" {
		b.WriteString("; ")
		b.WriteString(e.Hint)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
