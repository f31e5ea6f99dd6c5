// Package approval has somebody asked before named tools run.
//
// With a function to ask, the run waits for its answer. Without one, or when
// it says that the answer will come later, the call is deferred: the run ends
// with the call in Result.Deferred, and its history can be stored. When the
// answer is there, in this process or another, a run with the history and
// agent.WithAnswers goes on from there.
//
//	a := agent.New(m, coder.New(coder.Options{}), approval.New(approval.Options{Tools: []string{"shell", "write_*"}}))
//	res, err := a.Run(ctx, "…")
//	for _, d := range res.Deferred { … }
//	res, err = a.Run(ctx, "", agent.WithHistory(res.Messages()), agent.WithAnswers(map[string]agent.Answer{
//		res.Deferred[0].Call.ID: {Approve: true},
//	}))
package approval

import (
	"context"
	"fmt"
	"path"

	"github.com/hutch-sandbox/hutch/agent"
)

// Decision is what somebody said about a call.
type Decision struct {
	// Approve runs the call.
	Approve bool
	// Later defers it instead. Approve is then not looked at.
	Later bool
	// Message is for the model when the call is denied, and for whoever
	// answers when it is deferred.
	Message string
}

// Options say what to ask about, and whom.
type Options struct {
	// Tools are the names of the tools to ask about, as patterns of
	// path.Match; nil means all.
	Tools []string
	// Needs narrows it down further, when set: only calls for which it is true.
	// It is called with arguments that fit the tool's schema.
	Needs func(call *agent.Call) bool
	// Ask asks. It may take its time, and is called at the same time for
	// parallel calls. Its error ends the run. Nil defers every call.
	Ask func(ctx context.Context, call *agent.Call) (Decision, error)
}

// Approval is the capability. It is safe for concurrent use.
type Approval struct {
	opt Options
	err error
}

// New makes the capability.
func New(opt Options) *Approval {
	a := &Approval{opt: opt}
	for _, p := range opt.Tools {
		if _, err := path.Match(p, ""); err != nil {
			a.err = fmt.Errorf("%w: approval: the pattern %q: %w", agent.ErrUsage, p, err)
		}
	}
	return a
}

// BeforeRun reports patterns that are none, before anything can slip through.
func (a *Approval) BeforeRun(context.Context, *agent.Run) error { return a.err }

// WrapTool asks before a call.
func (a *Approval) WrapTool(ctx context.Context, call *agent.Call, next func(context.Context) (agent.ToolOutput, error)) (agent.ToolOutput, error) {
	if call.Approved || !a.matches(call.Tool) || a.opt.Needs != nil && !a.opt.Needs(call) {
		return next(ctx)
	}
	if a.opt.Ask == nil {
		return agent.ToolOutput{}, agent.Deferf("%s needs approval", call.Tool)
	}
	d, err := a.opt.Ask(ctx, call)
	switch {
	case err != nil:
		return agent.ToolOutput{}, fmt.Errorf("asking for approval: %w", err)
	case d.Later:
		if d.Message == "" {
			d.Message = call.Tool + " needs approval"
		}
		return agent.ToolOutput{}, agent.Deferf("%s", d.Message)
	case !d.Approve:
		if d.Message == "" {
			d.Message = "The user denied this call."
		}
		return agent.ToolOutput{}, agent.Deniedf("%s", d.Message)
	}
	return next(ctx)
}

func (a *Approval) matches(tool string) bool {
	if a.opt.Tools == nil {
		return true
	}
	for _, p := range a.opt.Tools {
		if ok, _ := path.Match(p, tool); ok { // New checked the patterns
			return true
		}
	}
	return false
}
