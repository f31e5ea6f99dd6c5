package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/workspace"
)

// Capability is something that an agent is composed of: any value that
// implements at least one of the interfaces of this file, or
// workspace.Provider, or is a Hooks, a Config, a Defaults or a Tool. New panics for a
// value that is none of these. A capability is shared by all runs of its
// agents and safe for concurrent use; see PerRun.
type Capability any

// PerRun is a capability with state of its own for each run. ForRun is called
// once, when the run's workspace is chosen and nothing has happened yet, and
// what it returns takes the capability's place for that run. It does no I/O.
type PerRun interface {
	ForRun(ctx context.Context, run *Run) (Capability, error)
}

// ToolProvider is a capability with tools. Tools is called once a run, before
// the first model request; it may look at the run's workspace to decide, for
// example to leave out what changes files when it is read-only.
type ToolProvider interface {
	Tools(ctx context.Context, run *Run) ([]Tool, error)
}

// ToolPreparer is a capability that changes which tools a model request
// offers. It gets all tools in their order, in a slice of its own, and returns
// those to offer. A tool that is not offered cannot be called.
type ToolPreparer interface {
	PrepareTools(ctx context.Context, run *Run, tools []Tool) ([]Tool, error)
}

// Instructor is a capability that adds to the system prompt. Instructions is
// called before each model request; an empty string adds nothing. Instructions
// that are always the same cost least, since providers cache them.
type Instructor interface {
	Instructions(ctx context.Context, run *Run) (string, error)
}

// WorkspaceNeeder is a capability that cannot do without a workspace. A run
// that has none fails at its start, naming what to attach.
type WorkspaceNeeder interface {
	// NeedsWorkspace returns the name of what needs it, or "".
	NeedsWorkspace() string
}

// ArgsRepairer is a capability that may mend the arguments of a tool call
// which are no JSON. It returns false when it cannot.
type ArgsRepairer interface {
	RepairArgs(call model.ToolCall) (string, bool)
}

// The hooks around a run.
type (
	// BeforeRunner sees a run before its first model request.
	BeforeRunner interface {
		BeforeRun(ctx context.Context, run *Run) error
	}
	// RunWrapper surrounds a run: it calls next once, or not at all.
	RunWrapper interface {
		WrapRun(ctx context.Context, run *Run, next func(context.Context) (*Result, error)) (*Result, error)
	}
	// AfterRunner sees, and may change, the result of a run that succeeded.
	AfterRunner interface {
		AfterRun(ctx context.Context, run *Run, res *Result) error
	}
	// RunErrorHandler sees the error of a run that failed. A result that it
	// returns, see Run.Result, makes a success of the run, unless the run was
	// cancelled; an error takes the place of the first. The context it gets
	// outlives a cancelled run by a minute, so that it can clean up.
	RunErrorHandler interface {
		OnRunError(ctx context.Context, run *Run, err error) (*Result, error)
	}
)

// The hooks around each model request.
type (
	// BeforeModelRequester may change a request: it has a Request and a slice
	// of messages of its own. What it changes is not in the history.
	BeforeModelRequester interface {
		BeforeModelRequest(ctx context.Context, run *Run, req *model.Request) error
	}
	// ModelRequestWrapper surrounds a request. It may call next again.
	ModelRequestWrapper interface {
		WrapModelRequest(ctx context.Context, run *Run, req *model.Request, next func(context.Context, *model.Request) (*model.Response, error)) (*model.Response, error)
	}
	// AfterModelRequester sees, and may change, a response.
	AfterModelRequester interface {
		AfterModelRequest(ctx context.Context, run *Run, res *model.Response) error
	}
	// ModelErrorHandler sees the error of a request that failed. A response
	// that it returns is taken for the model's.
	ModelErrorHandler interface {
		OnModelError(ctx context.Context, run *Run, err error) (*model.Response, error)
	}
)

// The hooks around each tool call. They run in parallel for parallel calls.
type (
	// BeforeTooler sees a call before its arguments are checked, and may
	// change Call.Args.
	BeforeTooler interface {
		BeforeTool(ctx context.Context, call *Call) error
	}
	// ToolWrapper surrounds the execution of a call with good arguments: it
	// calls next once, or not at all.
	ToolWrapper interface {
		WrapTool(ctx context.Context, call *Call, next func(context.Context) (ToolOutput, error)) (ToolOutput, error)
	}
	// AfterTooler sees, and may change, what a tool returned.
	AfterTooler interface {
		AfterTool(ctx context.Context, call *Call, out *ToolOutput) error
	}
	// ToolErrorHandler sees the error of a call that failed, of every kind
	// that the package comment lists. An output that it returns is taken for
	// the tool's; an error takes the place of the first.
	ToolErrorHandler interface {
		OnToolError(ctx context.Context, call *Call, err error) (*ToolOutput, error)
	}
)

// Hooks is a capability made of functions, for hooks that are not worth a
// type. Nil fields do nothing. Each is what the interface of the same purpose
// says.
type Hooks struct {
	Name string // for error messages; may be empty

	BeforeRun  func(ctx context.Context, run *Run) error
	WrapRun    func(ctx context.Context, run *Run, next func(context.Context) (*Result, error)) (*Result, error)
	AfterRun   func(ctx context.Context, run *Run, res *Result) error
	OnRunError func(ctx context.Context, run *Run, err error) (*Result, error)

	BeforeModelRequest func(ctx context.Context, run *Run, req *model.Request) error
	WrapModelRequest   func(ctx context.Context, run *Run, req *model.Request, next func(context.Context, *model.Request) (*model.Response, error)) (*model.Response, error)
	AfterModelRequest  func(ctx context.Context, run *Run, res *model.Response) error
	OnModelError       func(ctx context.Context, run *Run, err error) (*model.Response, error)

	BeforeTool  func(ctx context.Context, call *Call) error
	WrapTool    func(ctx context.Context, call *Call, next func(context.Context) (ToolOutput, error)) (ToolOutput, error)
	AfterTool   func(ctx context.Context, call *Call, out *ToolOutput) error
	OnToolError func(ctx context.Context, call *Call, err error) (*ToolOutput, error)
}

// Instructions is a capability of fixed instructions.
type Instructions string

// Instructions returns the text.
func (s Instructions) Instructions(context.Context, *Run) (string, error) { return string(s), nil }

// InstructionsFunc is a capability of instructions that are made for each
// model request.
type InstructionsFunc func(ctx context.Context, run *Run) (string, error)

// Instructions calls the function.
func (f InstructionsFunc) Instructions(ctx context.Context, run *Run) (string, error) {
	return f(ctx, run)
}

// Tools returns a capability of tools.
func Tools(tools ...Tool) Capability { return toolList(tools) }

type toolList []Tool

func (l toolList) Tools(context.Context, *Run) ([]Tool, error) { return l, nil }

// Join returns a capability that is several, in their order. It is for
// packages that compose capabilities.
func Join(caps ...Capability) Capability { return joined(caps) }

type joined []Capability

// flatten takes Joins apart.
func flatten(caps []Capability) []Capability {
	var out []Capability
	for _, c := range caps {
		if j, ok := c.(joined); ok {
			out = append(out, flatten(j)...)
			continue
		}
		if h, ok := c.(*Hooks); ok && h != nil {
			c = *h
		}
		out = append(out, c)
	}
	return out
}

// check reports whether a value is a capability at all.
func check(c Capability) error {
	switch c.(type) {
	case nil:
		return fmt.Errorf("a capability is nil")
	case Hooks, Config, Defaults, Tool,
		PerRun, ToolProvider, ToolPreparer, Instructor, WorkspaceNeeder, ArgsRepairer, workspace.Provider,
		BeforeRunner, RunWrapper, AfterRunner, RunErrorHandler,
		BeforeModelRequester, ModelRequestWrapper, AfterModelRequester, ModelErrorHandler,
		BeforeTooler, ToolWrapper, AfterTooler, ToolErrorHandler:
		return nil
	}
	return fmt.Errorf("%T is no capability: it implements none of the interfaces of package agent", c)
}

// asHooks gives a capability's hooks one form.
func asHooks(c Capability) Hooks {
	if h, ok := c.(Hooks); ok {
		return h
	}
	h := Hooks{Name: capabilityName(c)}
	if x, ok := c.(BeforeRunner); ok {
		h.BeforeRun = x.BeforeRun
	}
	if x, ok := c.(RunWrapper); ok {
		h.WrapRun = x.WrapRun
	}
	if x, ok := c.(AfterRunner); ok {
		h.AfterRun = x.AfterRun
	}
	if x, ok := c.(RunErrorHandler); ok {
		h.OnRunError = x.OnRunError
	}
	if x, ok := c.(BeforeModelRequester); ok {
		h.BeforeModelRequest = x.BeforeModelRequest
	}
	if x, ok := c.(ModelRequestWrapper); ok {
		h.WrapModelRequest = x.WrapModelRequest
	}
	if x, ok := c.(AfterModelRequester); ok {
		h.AfterModelRequest = x.AfterModelRequest
	}
	if x, ok := c.(ModelErrorHandler); ok {
		h.OnModelError = x.OnModelError
	}
	if x, ok := c.(BeforeTooler); ok {
		h.BeforeTool = x.BeforeTool
	}
	if x, ok := c.(ToolWrapper); ok {
		h.WrapTool = x.WrapTool
	}
	if x, ok := c.(AfterTooler); ok {
		h.AfterTool = x.AfterTool
	}
	if x, ok := c.(ToolErrorHandler); ok {
		h.OnToolError = x.OnToolError
	}
	return h
}

func capabilityName(c Capability) string {
	return strings.TrimPrefix(fmt.Sprintf("%T", c), "*")
}

// stage runs one thing with the hooks around it, in the order that the package
// comment promises. T is what the thing returns.
type stage[T any] struct {
	before []func(context.Context) error
	wrap   []func(context.Context, func(context.Context) (T, error)) (T, error)
	after  []func(context.Context, *T) error
	failed []func(context.Context, error) (*T, error)

	// onErr makes the context for the failed hooks.
	onErr func(context.Context) (context.Context, context.CancelFunc)
	// final reports whether an error cannot be recovered from.
	final func(error) bool
}

func (s stage[T]) do(ctx context.Context, core func(context.Context) (T, error)) (T, error) {
	out, err := s.try(ctx, core)
	if err == nil {
		return out, nil
	}
	if s.onErr != nil && len(s.failed) > 0 {
		var cancel context.CancelFunc
		ctx, cancel = s.onErr(ctx)
		defer cancel()
	}
	for i := len(s.failed) - 1; i >= 0; i-- {
		res, herr := s.failed[i](ctx, err)
		switch {
		case res != nil && (s.final == nil || !s.final(err)):
			return *res, nil
		case herr != nil:
			if s.final != nil && s.final(err) && !s.final(herr) {
				herr = fmt.Errorf("%w (%w)", err, herr) // what ended the run stays visible
			}
			err = herr
		}
	}
	return out, err
}

func (s stage[T]) try(ctx context.Context, core func(context.Context) (T, error)) (T, error) {
	var zero T
	for _, f := range s.before {
		if err := f(ctx); err != nil {
			return zero, err
		}
	}
	next := core
	for i := len(s.wrap) - 1; i >= 0; i-- {
		wrap, inner := s.wrap[i], next
		next = func(ctx context.Context) (T, error) { return wrap(ctx, inner) }
	}
	out, err := next(ctx)
	if err != nil {
		return out, err
	}
	for i := len(s.after) - 1; i >= 0; i-- {
		if err := s.after[i](ctx, &out); err != nil {
			return out, err
		}
	}
	return out, nil
}
