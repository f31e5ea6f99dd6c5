// Package planning gives an agent a list of tasks, by which it keeps in mind
// what it is about, and shows it to whoever watches.
//
// The list needs no store of its own: it is what the tool calls of the
// conversation make of it, so a run that continues a history continues the
// list too, in another process as well. Each change is an event.
package planning

import (
	"context"
	_ "embed" // the tools' descriptions
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
)

// Limits of a list.
const (
	MaxTasks = 100 // tasks
	MaxText  = 500 // characters of one
)

// Status says how far a task is.
type Status string

// The statuses.
const (
	Pending    Status = "pending"
	InProgress Status = "in_progress"
	Done       Status = "done"
	Cancelled  Status = "cancelled"
)

// Task is an entry of the list.
type Task struct {
	ID     int    `json:"id"` // from 1, never used again in a list
	Text   string `json:"text"`
	Status Status `json:"status"`
}

// Changed is the event of a list that has changed.
type Changed struct{ Tasks []Task }

// EventName returns "plan_changed".
func (Changed) EventName() string { return "plan_changed" }

// Planning is the capability; its zero value is ready.
type Planning struct{}

// New makes the capability.
func New() Planning { return Planning{} }

// ForRun returns the capability for one run, with the list that the history
// leads to.
func (Planning) ForRun(_ context.Context, run *agent.Run) (agent.Capability, error) {
	p := &plan{}
	p.replay(run.Messages())
	return p, nil
}

// plan is the list in one run.
type plan struct {
	mu    sync.Mutex
	tasks []Task
	last  int // the latest id
}

// replay makes the changes again that the conversation's calls made.
func (p *plan) replay(messages []model.Message) {
	calls := map[string]model.ToolCall{}
	for _, m := range messages {
		for _, part := range m.Parts {
			switch part := part.(type) {
			case model.ToolCall:
				calls[part.ID] = part
			case model.ToolReturn:
				if c, ok := calls[part.ID]; ok && part.Outcome == model.OK {
					p.again(c)
				}
				delete(calls, part.ID)
			}
		}
	}
}

// again makes one change. Calls that succeeded once succeed again; those of
// other tools, or that do not fit any more, change nothing.
func (p *plan) again(c model.ToolCall) {
	arg := func(v any) bool { return json.Unmarshal([]byte(c.Args), v) == nil }
	switch c.Name {
	case "write_plan":
		var a writeArgs
		if arg(&a) {
			_ = p.write(a)
		}
	case "add_task":
		var a addArgs
		if arg(&a) {
			_ = p.add(a)
		}
	case "update_task":
		var a updateArgs
		if arg(&a) {
			_ = p.update(a)
		}
	case "remove_task":
		var a removeArgs
		if arg(&a) {
			_ = p.remove(a)
		}
	}
}

//go:embed write_plan.md
var writePlanDoc string

//go:embed read_plan.md
var readPlanDoc string

//go:embed add_task.md
var addTaskDoc string

//go:embed update_task.md
var updateTaskDoc string

//go:embed remove_task.md
var removeTaskDoc string

type writeArgs struct {
	Tasks []string `json:"tasks" jsonschema:"what there is to do, in order"`
}

type addArgs struct {
	Text string `json:"text" jsonschema:"what there is to do"`
}

type updateArgs struct {
	ID     int    `json:"id" jsonschema:"the task's number"`
	Status Status `json:"status" jsonschema:"pending, in_progress, done or cancelled"`
}

type removeArgs struct {
	ID int `json:"id" jsonschema:"the task's number"`
}

// Tools returns the tools.
func (p *plan) Tools(context.Context, *agent.Run) ([]agent.Tool, error) {
	one := agent.Sequential() // changes are made in the order of the calls
	return []agent.Tool{
		agent.NewTool("write_plan", writePlanDoc, change(p, p.write), one),
		agent.NewTool("read_plan", readPlanDoc, func(context.Context, *agent.Call, struct{}) (string, error) { return p.String(), nil }, one),
		agent.NewTool("add_task", addTaskDoc, change(p, p.add), one),
		agent.NewTool("update_task", updateTaskDoc, change(p, p.update), one),
		agent.NewTool("remove_task", removeTaskDoc, change(p, p.remove), one),
	}, nil
}

func change[A any](p *plan, f func(A) error) func(context.Context, *agent.Call, A) (string, error) {
	return func(_ context.Context, call *agent.Call, a A) (string, error) {
		if err := f(a); err != nil {
			return "", err
		}
		p.mu.Lock()
		tasks := slices.Clone(p.tasks)
		p.mu.Unlock()
		call.Emit(Changed{tasks})
		return p.String(), nil
	}
}

func good(text string) (string, error) {
	text = strings.Join(strings.Fields(text), " ")
	switch {
	case text == "":
		return "", agent.Retryf("a task is empty")
	case len([]rune(text)) > MaxText:
		return "", agent.Retryf("a task has more than %d characters", MaxText)
	}
	return text, nil
}

func (p *plan) write(a writeArgs) error {
	if len(a.Tasks) > MaxTasks {
		return agent.Retryf("a plan has at most %d tasks", MaxTasks)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var tasks []Task
	for i, text := range a.Tasks {
		text, err := good(text)
		if err != nil {
			return err
		}
		tasks = append(tasks, Task{ID: i + 1, Text: text, Status: Pending})
	}
	p.tasks, p.last = tasks, len(tasks)
	return nil
}

func (p *plan) add(a addArgs) error {
	text, err := good(a.Text)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.tasks) >= MaxTasks {
		return agent.Retryf("a plan has at most %d tasks", MaxTasks)
	}
	p.last++
	p.tasks = append(p.tasks, Task{ID: p.last, Text: text, Status: Pending})
	return nil
}

// find is called with the lock held.
func (p *plan) find(id int) (int, error) {
	i := slices.IndexFunc(p.tasks, func(t Task) bool { return t.ID == id })
	if i < 0 {
		return 0, agent.Retryf("there is no task %d", id)
	}
	return i, nil
}

func (p *plan) update(a updateArgs) error {
	if !slices.Contains([]Status{Pending, InProgress, Done, Cancelled}, a.Status) {
		return agent.Retryf("the status %q is none of pending, in_progress, done and cancelled", a.Status)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i, err := p.find(a.ID)
	if err != nil {
		return err
	}
	p.tasks[i].Status = a.Status
	return nil
}

func (p *plan) remove(a removeArgs) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, err := p.find(a.ID)
	if err != nil {
		return err
	}
	p.tasks = slices.Delete(p.tasks, i, i+1)
	return nil
}

// String returns the list as the model sees it.
func (p *plan) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.tasks) == 0 {
		return "(no tasks)"
	}
	marks := map[Status]string{Pending: " ", InProgress: ">", Done: "x", Cancelled: "-"}
	var b strings.Builder
	for _, t := range p.tasks {
		fmt.Fprintf(&b, "%d. [%s] %s\n", t.ID, marks[t.Status], t.Text)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
