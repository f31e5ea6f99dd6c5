package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
)

func TestHookOrder(t *testing.T) {
	var mu sync.Mutex
	var log []string
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		log = append(log, fmt.Sprintf(format, args...))
	}
	hooks := func(name string) agent.Hooks {
		return agent.Hooks{
			BeforeRun: func(context.Context, *agent.Run) error { say("before run %s", name); return nil },
			WrapRun: func(ctx context.Context, _ *agent.Run, next func(context.Context) (*agent.Result, error)) (*agent.Result, error) {
				say("wrap run %s", name)
				defer say("unwrap run %s", name)
				return next(ctx)
			},
			AfterRun:           func(context.Context, *agent.Run, *agent.Result) error { say("after run %s", name); return nil },
			BeforeModelRequest: func(context.Context, *agent.Run, *model.Request) error { say("before model %s", name); return nil },
			AfterModelRequest:  func(context.Context, *agent.Run, *model.Response) error { say("after model %s", name); return nil },
			WrapModelRequest: func(ctx context.Context, _ *agent.Run, req *model.Request, next func(context.Context, *model.Request) (*model.Response, error)) (*model.Response, error) {
				say("wrap model %s", name)
				defer say("unwrap model %s", name)
				return next(ctx, req)
			},
			BeforeTool: func(context.Context, *agent.Call) error { say("before tool %s", name); return nil },
			AfterTool:  func(context.Context, *agent.Call, *agent.ToolOutput) error { say("after tool %s", name); return nil },
			WrapTool: func(ctx context.Context, _ *agent.Call, next func(context.Context) (agent.ToolOutput, error)) (agent.ToolOutput, error) {
				say("wrap tool %s", name)
				defer say("unwrap tool %s", name)
				return next(ctx)
			},
		}
	}
	tool := agent.NewTool("t", "", func(context.Context, *agent.Call, struct{}) (string, error) { say("tool"); return "", nil })
	a := agent.New(scripted.Sequence(scripted.Call("1", "t", "{}"), scripted.Say("ok")), hooks("1"), tool, hooks("2"))
	if _, err := a.Run(t.Context(), "go"); err != nil {
		t.Fatal(err)
	}
	around := func(what, inner string) string {
		lines := fmt.Sprintf("before %[1]s 1|before %[1]s 2|wrap %[1]s 1|wrap %[1]s 2|%[2]sunwrap %[1]s 2|unwrap %[1]s 1|after %[1]s 2|after %[1]s 1|", what, inner)
		return lines
	}
	want := around("run", around("model", "")+around("tool", "tool|")+around("model", ""))
	if got := strings.Join(log, "|") + "|"; got != want {
		t.Errorf("order:\n%s\nwant\n%s", strings.ReplaceAll(got, "|", "\n"), strings.ReplaceAll(want, "|", "\n"))
	}
}

func TestErrorHooks(t *testing.T) {
	var log []string
	onRun := func(name string, res bool) agent.Hooks {
		return agent.Hooks{OnRunError: func(ctx context.Context, r *agent.Run, err error) (*agent.Result, error) {
			log = append(log, name)
			if ctx.Err() != nil {
				t.Error("the hook's context is over: it cannot clean up")
			}
			if res {
				return r.Result("recovered by " + name), nil
			}
			return nil, nil
		}}
	}
	fail := scripted.Func(func(context.Context, *model.Request) (*model.Response, error) { return nil, errBoom })
	after := false
	mark := agent.Hooks{AfterRun: func(context.Context, *agent.Run, *agent.Result) error { after = true; return nil }}

	res, err := agent.New(fail, onRun("1", true), mark, onRun("2", true), onRun("3", false)).Run(t.Context(), "go")
	if err != nil || res.Output != "recovered by 2" {
		t.Errorf("%+v, %v", res, err)
	}
	if d := cmp.Diff([]string{"3", "2"}, log); d != "" {
		t.Errorf("on-error hooks in reverse, until one recovers:\n%s", d)
	}
	if after {
		t.Error("the after hook ran for a run that failed")
	}
	valid(t, res)

	log = nil
	ctx, cancel := context.WithCancel(t.Context())
	stop := scripted.Func(func(context.Context, *model.Request) (*model.Response, error) { cancel(); return nil, ctx.Err() })
	res, err = agent.New(stop, onRun("1", true), onRun("2", true)).Run(ctx, "go")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled run was recovered: %v", err)
	}
	if len(log) != 2 {
		t.Errorf("hooks that saw the cancellation: %v", log)
	}
	valid(t, res)

	tool := agent.NewTool("t", "", func(context.Context, *agent.Call, struct{}) (string, error) { return "", errBoom })
	mend := agent.Hooks{OnToolError: func(_ context.Context, _ *agent.Call, err error) (*agent.ToolOutput, error) {
		return nil, agent.Failedf("softened: %w", err)
	}}
	res, err = agent.New(scripted.Sequence(scripted.Call("1", "t", "{}"), scripted.Say("ok")), tool, mend).Run(t.Context(), "go")
	if err != nil || !strings.Contains(told(res.Messages()[2]), "[t failed] softened: boom") {
		t.Errorf("%v, %q", err, told(res.Messages()[2]))
	}

	backup := agent.Hooks{OnModelError: func(context.Context, *agent.Run, error) (*model.Response, error) {
		return scripted.Say("from the backup"), nil
	}}
	if res, err = agent.New(fail, backup).Run(t.Context(), "go"); err != nil || res.Output != "from the backup" {
		t.Errorf("%v, %v", res, err)
	}
}

func TestBeforeToolMayChangeArguments(t *testing.T) {
	p := newPlaces("a")
	hook := agent.Hooks{BeforeTool: func(_ context.Context, c *agent.Call) error {
		c.Args = []byte(strings.ReplaceAll(string(c.Args), "secret", "***"))
		return nil
	}}
	a := agent.New(scripted.Sequence(scripted.Call("1", "note", `{"text":"a secret"}`), scripted.Call("2", "recall", "{}"), scripted.Say("ok")), p, note(), recall(), hook)
	res, err := a.Run(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	if got := told(res.Messages()[4]); !strings.Contains(got, "a ***") {
		t.Errorf("told %q", got)
	}
}
