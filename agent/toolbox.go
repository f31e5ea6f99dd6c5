package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/workspace"
)

// Toolbox is the tools of capabilities without the loop: for a program where
// something else decides what is called, such as a client that speaks MCP. Its
// methods may be called by any number of goroutines.
//
//	box, err := agent.OpenToolbox(ctx, nil, []agent.Capability{provider, shell.New(shell.Options{})})
//	part, err := box.Call(ctx, model.ToolCall{ID: "1", Name: "run_command", Args: `{"command": "ls"}`})
//
// To tools and to the hooks around tool calls it is one long run. Hooks around
// runs and model requests are not called, and there is no model to ask: a tool
// that does, such as delegate_task, fails.
type Toolbox struct{ run *Run }

// OpenToolbox makes a Toolbox. events, which may be nil, gets what tools emit;
// it is called by several goroutines at the same time, and a call waits for it.
// The options are those of a run; WithHistory chooses the workspace as for a
// run, WithLimits bounds the number of calls and nothing else. Using the
// workspace begins with the first call that does.
func OpenToolbox(ctx context.Context, events func(Event), caps []Capability, opts ...Option) (*Toolbox, error) {
	a := &Agent{model: noModel{}, caps: flatten(caps)}
	for _, c := range a.caps {
		if err := check(c); err != nil {
			return nil, usageErrorf("OpenToolbox: %w", err)
		}
	}
	a.config.collect(a.caps)
	if events == nil {
		events = func(Event) {}
	}
	r, err := a.prepare("", opts, events)
	if err != nil {
		return nil, err
	}
	return &Toolbox{r}, r.compose(ctx)
}

// Workspace returns what the tools work in; never nil.
func (t *Toolbox) Workspace() *workspace.Workspace { return t.run.Workspace() }

// Tools lists the tools as a model would be offered them.
func (t *Toolbox) Tools(ctx context.Context) ([]model.Tool, error) {
	offered, err := t.run.offered(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]model.Tool, len(offered))
	for i, o := range offered {
		out[i] = model.Tool{Name: o.Name, Description: o.Description, Schema: o.Schema}
	}
	return out, nil
}

// Call runs one tool. The part is what a model would be told: a
// model.ToolReturn, or a model.Retry when it may try again with other
// arguments; nobody counts how often. An error is one that would end a run;
// then too the part says what is known of the call. The call's id is to be
// unique in the Toolbox: what tools keep is named after it.
func (t *Toolbox) Call(ctx context.Context, call model.ToolCall) (model.Part, error) {
	r := t.run
	offered, err := r.offered(ctx)
	if err == nil {
		err = r.meter.calls(1)
	}
	if err != nil {
		return unanswered([]model.ToolCall{call}, err)[0], err
	}
	var tool *boundTool
	for _, o := range offered {
		if o.Name == call.Name {
			tool = o
		}
	}
	f := r.call(ctx, call, tool, false)
	return f.part, f.err
}

// Close lets go of a workspace that came from a provider; nothing is
// destroyed. Calls have to be over.
func (t *Toolbox) Close(ctx context.Context) error {
	if !t.run.closeWS {
		return nil
	}
	if err := t.run.ws.Close(ctx); err != nil {
		return fmt.Errorf("toolbox: letting go of the workspace: %w", err)
	}
	return nil
}

// noModel is the model of what has none.
type noModel struct{}

func (noModel) Name() string { return "none" }

func (noModel) Generate(context.Context, *model.Request) (*model.Response, error) {
	return nil, errors.New("there is no model here: these tools are called from outside of a run")
}
