package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/agent/subagent"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/hostdir"
)

// byPrompt answers by the first thing that the user said.
func byPrompt(answers map[string]scripted.Func) model.Model {
	return scripted.Func(func(ctx context.Context, req *model.Request) (*model.Response, error) {
		prompt := req.Messages[0].Parts[0].(model.User).Text()
		f, ok := answers[prompt]
		if !ok {
			return nil, fmt.Errorf("nobody asked for %q", prompt)
		}
		return f(ctx, req)
	})
}

func dir(t *testing.T) *hostdir.Dir {
	t.Helper()
	d, err := hostdir.New(t.TempDir(), hostdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func write() agent.Tool {
	return agent.NewTool("write", "", func(ctx context.Context, c *agent.Call, _ struct{}) (string, error) {
		return "written", c.Workspace().WriteText(ctx, "f", "x")
	})
}

func TestSelfInTheSameWorkspace(t *testing.T) {
	m := byPrompt(map[string]scripted.Func{
		"main":  scripted.Sequence(scripted.Call("1", "delegate_task", `{"task":"inner"}`), scripted.Say("ok")),
		"inner": scripted.Sequence(scripted.Call("1", "write", `{}`), scripted.Say("inner is done")),
	})
	d := dir(t)
	res, err := agent.New(m, subagent.New(subagent.Options{}), write()).Run(t.Context(), "main", agent.WithWorkspace(d))
	if err != nil {
		t.Fatal(err)
	}
	if got := res.Messages()[2].Parts[0].(model.ToolReturn).Text; got != "inner is done" {
		t.Errorf("%q", got)
	}
	if text, err := workspace.New(d).ReadText(t.Context(), "f"); err != nil || text != "x" {
		t.Errorf("%q, %v", text, err)
	}
	if res.Usage.Requests != 4 || res.Usage.ToolCalls != 2 {
		t.Errorf("usage %+v", res.Usage)
	}
	// Policies hold for the other too.
	res, err = agent.New(m, subagent.New(subagent.Options{}), write()).Run(t.Context(), "main", agent.WithWorkspace(workspace.ReadOnly(dir(t))))
	if err != nil {
		t.Fatal(err)
	}
	if res.Output != "ok" {
		t.Errorf("%q", res.Output)
	}
}

func TestDepth(t *testing.T) {
	deepest := 0
	m := scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		prompt := req.Messages[0].Parts[0].(model.User).Text()
		deepest = max(deepest, len(prompt))
		if len(scripted.Returns(req)) > 0 || len(req.Tools) == 0 {
			return scripted.Say("back"), nil
		}
		return scripted.Call("1", "delegate_task", fmt.Sprintf(`{"task":%q}`, prompt+"x")), nil
	})
	if _, err := agent.New(m, subagent.New(subagent.Options{})).Run(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if deepest != 1+subagent.DefaultDepth {
		t.Errorf("%d deep", deepest-1)
	}
}

func TestOutcomes(t *testing.T) {
	boom := errors.New("boom")
	hang := scripted.Func(func(ctx context.Context, _ *model.Request) (*model.Response, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	loop := scripted.Func(func(context.Context, *model.Request) (*model.Response, error) {
		res := scripted.Call("1", "write", "{}")
		res.Parts = append([]model.Part{model.Text{Text: "still at it"}}, res.Parts...)
		return res, nil
	})
	fail := scripted.Func(func(context.Context, *model.Request) (*model.Response, error) { return nil, boom })
	for name, c := range map[string]struct {
		inner scripted.Func
		opt   subagent.Options
		want  string
	}{
		"too long":          {hang, subagent.Options{Timeout: 20 * time.Millisecond}, "longer than"},
		"too many requests": {loop, subagent.Options{Limits: agent.Limits{Requests: 3}}, "The last it said: still at it"},
		"failed":            {fail, subagent.Options{}, "the agent failed: boom"},
	} {
		m := byPrompt(map[string]scripted.Func{
			"main":  scripted.Sequence(scripted.Call("1", "delegate_task", `{"task":"inner"}`), scripted.Say("ok")),
			"inner": c.inner,
		})
		res, err := agent.New(m, subagent.New(c.opt), write()).Run(t.Context(), "main", agent.WithWorkspace(dir(t)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if r := res.Messages()[2].Parts[0].(model.ToolReturn); r.Outcome != model.Failure || !strings.Contains(r.Text, c.want) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestCancellingTheParent: what a delegate runs ends too.
func TestCancellingTheParent(t *testing.T) {
	ended := make(chan struct{})
	wait := agent.NewTool("wait", "", func(ctx context.Context, c *agent.Call, _ struct{}) (string, error) {
		cancel, _ := agent.Deps[context.CancelFunc](c.Run)
		cancel()
		<-ctx.Done()
		close(ended)
		return "", ctx.Err()
	})
	m := byPrompt(map[string]scripted.Func{
		"main":  scripted.Sequence(scripted.Call("1", "delegate_task", `{"task":"inner"}`)),
		"inner": scripted.Sequence(scripted.Call("1", "wait", `{}`)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	res, err := agent.New(m, subagent.New(subagent.Options{}), wait).Run(ctx, "main", agent.WithDeps(context.CancelFunc(cancel)))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	<-ended
	if err := model.Validate(res.Messages()); err != nil {
		t.Error(err)
	}
}

func TestNamedDelegates(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	named := func(name string) subagent.Delegate {
		return subagent.Delegate{Name: name, Description: "knows " + name, Agent: agent.New(scripted.Func(func(context.Context, *model.Request) (*model.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, name)
			return scripted.Say("says " + name), nil
		}))}
	}
	opt := subagent.Options{Delegates: []subagent.Delegate{named("go"), named("sql")}, MaxTasks: 2}
	var doc string
	seq := scripted.Sequence(
		scripted.Calls(
			model.ToolCall{ID: "1", Name: "delegate_task", Args: `{"task":"a","agent":"sql"}`},
			model.ToolCall{ID: "2", Name: "delegate_task", Args: `{"task":"a"}`},
			model.ToolCall{ID: "3", Name: "delegate_task", Args: `{"task":"a","agent":"self"}`},
			model.ToolCall{ID: "4", Name: "delegate_task", Args: `{"task":" ","agent":"go"}`}),
		scripted.Call("5", "delegate_task", `{"task":"a","agent":"go"}`),
		scripted.Call("6", "delegate_task", `{"task":"a","agent":"go"}`),
		scripted.Say("ok"))
	m := scripted.Func(func(ctx context.Context, req *model.Request) (*model.Response, error) {
		doc = req.Tools[0].Description
		return seq(ctx, req)
	})
	res, err := agent.New(m, subagent.New(opt), agent.Config{Retries: 5}).Run(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(asked, " ") != "sql go" || !strings.Contains(doc, "- go: knows go\n- sql: knows sql") {
		t.Errorf("asked %v; %q", asked, doc)
	}
	parts := res.Messages()[2].Parts
	for i := 1; i < 4; i++ {
		if _, ok := parts[i].(model.Retry); !ok {
			t.Errorf("call %d: %+v", i+1, parts[i])
		}
	}
	if r := res.Messages()[6].Parts[0].(model.ToolReturn); r.Outcome != model.Failure || !strings.Contains(r.Text, "2 tasks") {
		t.Errorf("%+v", r)
	}
	bad := subagent.New(subagent.Options{Delegates: []subagent.Delegate{{Name: "self"}}})
	if _, err := agent.New(scripted.Sequence(scripted.Say("x")), bad).Run(t.Context(), "go"); !errors.Is(err, agent.ErrUsage) {
		t.Errorf("error %v", err)
	}
}
