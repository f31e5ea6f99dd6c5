// Package subagent lets an agent give tasks to others: the tool delegate_task
// runs another agent, or the same one with a fresh conversation, and returns
// what it says in the end.
//
// The other works in exactly the same workspace, its policies included. What
// it uses counts for the run that delegated, whose limits hold for it too, and
// its events appear there as agent.Nested. That it fails, runs into a limit or
// takes too long is an answer to the model and not the end of the run; that the
// run is cancelled or the workspace lost ends both.
package subagent

import (
	"context"
	_ "embed" // the tool's description
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/workspace"
)

// DefaultDepth is how deep agents may delegate where Options do not say: an
// agent's delegate's delegate may delegate once more.
const DefaultDepth = 3

// self is the name by which an agent delegates to itself.
const self = "self"

// Delegate is an agent that tasks can be given to.
type Delegate struct {
	Name        string // for the model to choose by
	Description string // for the model: what it is good for
	Agent       *agent.Agent
}

// Options say whom to delegate to. Without delegates it is the agent itself.
type Options struct {
	// Delegates are the agents to choose from.
	Delegates []Delegate
	// Self lets an agent delegate to itself, under the name "self", also when
	// there are delegates.
	Self bool
	// Depth is how deep delegation may go; 0 means DefaultDepth.
	Depth int
	// Timeout bounds each task; 0 means the run's own limit only.
	Timeout time.Duration
	// MaxTasks is how many tasks one run may delegate; 0 means any number.
	MaxTasks int
	// Limits bound each task, besides the limits of the run. Their Requests
	// are at most DefaultRequests when 0.
	Limits agent.Limits
}

// SubAgents is the capability. It is safe for concurrent use.
type SubAgents struct{ opt Options }

// New makes the capability.
func New(opt Options) *SubAgents {
	if len(opt.Delegates) == 0 {
		opt.Self = true
	}
	if opt.Depth <= 0 {
		opt.Depth = DefaultDepth
	}
	return &SubAgents{opt}
}

//go:embed delegate_task.md
var delegateTaskDoc string

type taskArgs struct {
	Task  string `json:"task" jsonschema:"what to do, with everything there is to know about it"`
	Agent string `json:"agent,omitempty" jsonschema:"the name of the agent to give it to; may be left out when there is one"`
}

// Tools returns delegate_task, unless delegation has gone as deep as it may.
func (s *SubAgents) Tools(_ context.Context, run *agent.Run) ([]agent.Tool, error) {
	if run.Depth() >= s.opt.Depth {
		return nil, nil
	}
	byName := map[string]*agent.Agent{}
	var names, about []string
	for _, d := range s.opt.Delegates {
		if d.Name == "" || d.Agent == nil || d.Name == self || byName[d.Name] != nil {
			return nil, fmt.Errorf("%w: subagent: the delegate %q needs an agent and a name of its own other than %q", agent.ErrUsage, d.Name, self)
		}
		byName[d.Name] = d.Agent
		names = append(names, d.Name)
		about = append(about, fmt.Sprintf("- %s: %s", d.Name, d.Description))
	}
	if s.opt.Self {
		byName[self] = run.Agent()
		names = append(names, self)
		about = append(about, "- self: an agent like you, with the same tools")
	}
	left := make(chan struct{}, max(s.opt.MaxTasks, 0))
	for range cap(left) {
		left <- struct{}{}
	}
	doc := strings.TrimSpace(delegateTaskDoc) + "\nAgents:\n" + strings.Join(about, "\n")
	return []agent.Tool{agent.NewTool("delegate_task", doc, func(ctx context.Context, call *agent.Call, a taskArgs) (string, error) {
		if a.Agent == "" && len(names) == 1 {
			a.Agent = names[0]
		}
		other := byName[a.Agent]
		switch {
		case other == nil:
			return "", agent.Retryf("there is no agent named %q; there are: %s", a.Agent, strings.Join(names, ", "))
		case strings.TrimSpace(a.Task) == "":
			return "", agent.Retryf("the task is empty")
		}
		if s.opt.MaxTasks > 0 {
			select {
			case <-left:
			default:
				return "", agent.Failedf("this run has delegated its %d tasks; do the rest yourself", s.opt.MaxTasks)
			}
		}
		return s.delegate(ctx, call, other, a)
	})}, nil
}

func (s *SubAgents) delegate(ctx context.Context, call *agent.Call, other *agent.Agent, a taskArgs) (string, error) {
	limits := s.opt.Limits
	if s.opt.Timeout > 0 && (limits.Time == 0 || s.opt.Timeout < limits.Time) {
		limits.Time = s.opt.Timeout
	}
	opts := []agent.Option{
		agent.WithParent(call), agent.WithDeps(call.Deps()), agent.WithLimits(limits),
		agent.WithRunID(call.ID() + "." + call.CallID), // the same when the run is repeated
	}
	if call.Workspace().Attached() {
		opts = append(opts, agent.WithWorkspace(call.Workspace()))
	}
	if a.Agent == self {
		opts = append(opts, agent.WithModel(call.Model()))
	}
	res, err := other.Run(ctx, a.Task, opts...)
	switch {
	case err == nil && len(res.Deferred) > 0:
		return "", agent.Failedf("the agent stopped to wait for approval of %s, which a delegated task cannot get", res.Deferred[0].Call.Name)
	case err == nil:
		return res.Output, nil
	case ctx.Err() != nil, errors.Is(err, workspace.ErrUnavailable), errors.Is(err, agent.ErrUsage):
		return "", err
	case errors.Is(err, agent.ErrLimit):
		return "", agent.Failedf("the task was stopped: %w.%s", err, last(res))
	}
	return "", agent.Failedf("the agent failed: %v.%s", err, last(res))
}

// last is what an agent had to say before it was stopped.
func last(res *agent.Result) string {
	if res == nil {
		return ""
	}
	messages := res.Messages()
	for i := len(messages) - 1; i >= 0; i-- {
		if m := messages[i]; m.Kind == model.KindResponse && strings.TrimSpace(m.Text()) != "" {
			return " The last it said: " + m.Text()
		}
	}
	return ""
}
