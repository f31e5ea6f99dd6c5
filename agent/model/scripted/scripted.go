// Package scripted has models for tests and demonstrations, which need no
// provider, key or network.
//
// [Func] answers by calling a function, [Tester] calls every tool once with
// arguments that fit its schema and then answers, and [Load] plays a script
// from a file: what a command line means by "scripted:FILE".
package scripted

import (
	"context"
	"iter"

	"github.com/hutch-sandbox/hutch/agent/model"
)

// Func is a model that is a function. It may look at all that the request has
// and return any response; a returned response without a finish reason gets
// the one that its parts suggest.
type Func func(ctx context.Context, req *model.Request) (*model.Response, error)

// Name returns "scripted:func".
func (f Func) Name() string { return "scripted:func" }

// Generate calls the function.
func (f Func) Generate(ctx context.Context, req *model.Request) (*model.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	res, err := f(ctx, req)
	if err != nil {
		return nil, err
	}
	return finished(res), nil
}

// StreamFunc is a model that is a function which answers in pieces. The last
// piece has Response set, as in [model.Streamer].
type StreamFunc func(ctx context.Context, req *model.Request) iter.Seq2[model.Delta, error]

// Name returns "scripted:stream".
func (f StreamFunc) Name() string { return "scripted:stream" }

// Generate collects the pieces.
func (f StreamFunc) Generate(ctx context.Context, req *model.Request) (*model.Response, error) {
	return model.Collect(f.Stream(ctx, req))
}

// Stream calls the function.
func (f StreamFunc) Stream(ctx context.Context, req *model.Request) iter.Seq2[model.Delta, error] {
	return f(ctx, req)
}

// Say returns a response of text.
func Say(text string) *model.Response {
	return finished(&model.Response{Parts: []model.Part{model.Text{Text: text}}})
}

// Call returns a response that calls one tool. args is JSON.
func Call(id, tool, args string) *model.Response {
	return Calls(model.ToolCall{ID: id, Name: tool, Args: args})
}

// Calls returns a response that calls several tools at once.
func Calls(calls ...model.ToolCall) *model.Response {
	res := &model.Response{}
	for _, c := range calls {
		res.Parts = append(res.Parts, c)
	}
	return finished(res)
}

// finished fills in what a response of a test usually leaves out.
func finished(res *model.Response) *model.Response {
	out := *res
	if out.Finish == "" {
		out.Finish = model.Stop
		for _, p := range out.Parts {
			if _, ok := p.(model.ToolCall); ok {
				out.Finish = model.ToolCalls
			}
		}
	}
	return &out
}

// Sequence returns a model that gives the responses one after the other: the
// one whose number is the count of whole responses that the conversation
// already has. It keeps no count of its own, so one value serves any number of
// runs, and a run that continues a history goes on where that ended.
func Sequence(responses ...*model.Response) Func {
	return func(_ context.Context, req *model.Request) (*model.Response, error) {
		n := position(req.Messages)
		if n >= len(responses) {
			return nil, &model.Error{Model: "scripted:sequence", Message: "the script has no more responses"}
		}
		return responses[n], nil
	}
}

// position counts the responses that a conversation has, without those that
// were cut short: they are asked for again.
func position(messages []model.Message) int {
	n := 0
	for _, m := range messages {
		if m.Kind == model.KindResponse && !m.Finish.Interrupted() {
			n++
		}
	}
	return n
}

// Returns lists the results of tools in the last message of a request: what
// the model is to react to.
func Returns(req *model.Request) []model.ToolReturn {
	var out []model.ToolReturn
	if len(req.Messages) == 0 {
		return nil
	}
	for _, p := range req.Messages[len(req.Messages)-1].Parts {
		if r, ok := p.(model.ToolReturn); ok {
			out = append(out, r)
		}
	}
	return out
}
