package agent_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/workspace"
)

func TestRunCallsToolsAndAnswers(t *testing.T) {
	p := newPlaces("a")
	a := agent.New(scripted.Sequence(
		scripted.Call("1", "note", `{"text":"hi"}`),
		scripted.Call("2", "recall", ``),
		scripted.Say("it says hi"),
		scripted.Call("3", "recall", `{}`),
		scripted.Say("still hi"),
	), p, note(), recall(), agent.Instructions("be brief"), agent.Config{Name: "scribe"})
	if p.count() != 0 {
		t.Error("making an agent made a workspace")
	}
	res, err := a.Run(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	history := valid(t, res)
	if res.Output != "it says hi" || res.Usage.Requests != 3 || res.Usage.ToolCalls != 2 {
		t.Errorf("%+v", res)
	}
	var refs []string
	for _, m := range history {
		if m.Kind == model.KindResponse {
			refs = append(refs, fmt.Sprint(m.Workspace))
		}
	}
	want := fmt.Sprint(&workspace.Ref{Provider: "a", ID: "id-a-1"})
	if d := cmp.Diff([]string{want, want, want}, refs); d != "" {
		t.Errorf("refs on responses:\n%s", d)
	}
	more, err := a.Run(t.Context(), "again", agent.WithHistory(history))
	if err != nil {
		t.Fatal(err)
	}
	if more.Output != "still hi" || p.count() != 1 {
		t.Errorf("%q, %d workspaces", more.Output, p.count())
	}
	if n := len(more.NewMessages()); n != 4 {
		t.Errorf("%d new messages", n)
	}
	if last := told(more.Messages()[8]); !strings.Contains(last, "[recall ] hi") {
		t.Errorf("the follow-up did not find the note: %s", last)
	}
	if p.closed != 2 {
		t.Errorf("let go of %d of 2 workspaces", p.closed)
	}
}

func TestWorkspaceSelection(t *testing.T) {
	ref := func(provider, id string) workspace.Ref { return workspace.Ref{Provider: provider, ID: id} }
	history := func(provider, id string) []model.Message {
		r := ref(provider, id)
		return []model.Message{
			{Kind: model.KindRequest, Parts: []model.Part{model.UserText("x")}},
			{Kind: model.KindResponse, Parts: []model.Part{model.Text{Text: "y"}}, Workspace: &r},
		}
	}
	for _, c := range []struct {
		name  string
		agent []string // providers of the agent
		run   []string // providers of the run
		opts  []agent.Option
		want  string // ref after use, or a part of the error
		fails bool
		keeps string // the ref that the history goes on to name
	}{
		{name: "a new one from the first provider", agent: []string{"a", "b"}, want: "a:id-a-1"},
		{name: "the run's providers come first", agent: []string{"a"}, run: []string{"b"}, want: "b:id-b-1"},
		{name: "by ref", agent: []string{"a", "b"}, opts: []agent.Option{agent.WithRef(ref("b", "id-x"))}, want: "b:id-x"},
		{name: "by a ref nobody knows", agent: []string{"a"}, opts: []agent.Option{agent.WithRef(ref("c", "id-x"))}, want: "no capability of this agent knows", fails: true},
		{name: "by ref, without providers", opts: []agent.Option{agent.WithRef(ref("a", "id-x"))}, want: "no capability of this agent knows", fails: true},
		{name: "by a ref of a foreign shape", agent: []string{"a"}, opts: []agent.Option{agent.WithRef(ref("a", "strange"))}, want: "was not made here", fails: true},
		{name: "by an empty ref", agent: []string{"a"}, opts: []agent.Option{agent.WithRef(workspace.Ref{})}, want: "names no place", fails: true},
		{name: "from the history", agent: []string{"a", "b"}, opts: []agent.Option{agent.WithHistory(history("b", "id-h"))}, want: "b:id-h"},
		{name: "from a history nobody knows", agent: []string{"a"}, opts: []agent.Option{agent.WithHistory(history("c", "id-h"))}, want: "the history names the workspace", fails: true},
		{name: "a history is ignored without providers", opts: []agent.Option{agent.WithHistory(history("c", "id-h"))}, want: "nobody", keeps: "c:id-h"},
		{name: "ref before history", agent: []string{"a"}, opts: []agent.Option{agent.WithHistory(history("a", "id-h")), agent.WithRef(ref("a", "id-x"))}, want: "a:id-x"},
		{name: "new before history", agent: []string{"a"}, opts: []agent.Option{agent.WithHistory(history("a", "id-h")), agent.WithNewWorkspace()}, want: "a:id-a-1"},
		{name: "new, without providers", opts: []agent.Option{agent.WithNewWorkspace()}, want: "no capability supplies", fails: true},
		{name: "itself", agent: []string{"a"}, opts: []agent.Option{agent.WithHistory(history("a", "id-h")), agent.WithWorkspace(newPlaces("own").New())}, want: "own:id-own-1"},
		{name: "two choices", agent: []string{"a"}, opts: []agent.Option{agent.WithNewWorkspace(), agent.WithRef(ref("a", "id-x"))}, want: "contradict", fails: true},
		{name: "none", want: "nobody"},
	} {
		t.Run(c.name, func(t *testing.T) {
			caps := []agent.Capability{note()}
			all := map[string]*places{}
			provider := func(name string) *places {
				p := newPlaces(name)
				p.live["id-x"], p.live["id-h"] = map[string]string{}, map[string]string{}
				all[name] = p
				return p
			}
			for _, name := range c.agent {
				caps = append(caps, provider(name))
			}
			var extra []agent.Capability
			for _, name := range c.run {
				extra = append(extra, provider(name))
			}
			asked := 0
			m := scripted.Func(func(context.Context, *model.Request) (*model.Response, error) {
				if asked++; asked == 1 {
					return scripted.Call("1", "note", `{"text":"hi"}`), nil
				}
				return scripted.Say("ok"), nil
			})
			res, err := agent.New(m, caps...).Run(t.Context(), "go", append(c.opts, agent.WithCapabilities(extra...))...)
			switch {
			case c.fails:
				if !errors.Is(err, agent.ErrUsage) || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("error %v, want one of use with %q", err, c.want)
				}
				if asked != 0 {
					t.Error("the model was asked")
				}
				for _, p := range all {
					if p.count() != 0 {
						t.Error("a workspace was made")
					}
				}
			case c.want == "nobody":
				if !errors.Is(err, workspace.ErrUnavailable) {
					t.Fatalf("error %v: there is no workspace to use", err)
				}
				if got := model.LatestWorkspace(res.Messages()); c.keeps != "" && (got == nil || got.String() != c.keeps) {
					t.Errorf("the history's ref was lost: %v", got)
				}
			case err != nil:
				t.Fatal(err)
			default:
				got, _ := res.Workspace.Ref()
				if got.String() != c.want {
					t.Errorf("worked in %s, want %s", got, c.want)
				}
				if latest := model.LatestWorkspace(valid(t, res)); latest == nil || latest.String() != c.want {
					t.Errorf("the history says %v, want %s", latest, c.want)
				}
			}
		})
	}
}

func TestANewWorkspaceIsSaid(t *testing.T) {
	p := newPlaces("a")
	a := agent.New(scripted.Sequence(scripted.Call("1", "note", `{"text":"x"}`), scripted.Say("a"), scripted.Say("b")), p, note())
	first, err := a.Run(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	second, err := a.Run(t.Context(), "go on", agent.WithHistory(first.Messages()), agent.WithNewWorkspace())
	if err != nil {
		t.Fatal(err)
	}
	if got := told(second.NewMessages()[0]); !strings.Contains(got, "notice new_workspace") {
		t.Errorf("the model is not told: %s", got)
	}
}

func TestToolErrors(t *testing.T) {
	boom := errors.New("boom")
	tool := func(err error) agent.Tool {
		return agent.NewTool("t", "", func(context.Context, *agent.Call, struct{}) (string, error) { return "", err })
	}
	for _, c := range []struct {
		name string
		err  error
		want string // what the model is told
		ends error
	}{
		{"retry", agent.Retryf("try %d", 2), "[t retry] try 2", nil},
		{"failed", agent.Failedf("no: %w", boom), "[t failed] no: boom", nil},
		{"workspace gone, among others", agent.Failedf("%w, and %w", boom, workspace.ErrUnavailable), "[t interrupted]", workspace.ErrUnavailable},
		{"denied", agent.Deniedf("not that"), "[t denied] not that", nil},
		{"abort", boom, "[t interrupted]", boom},
		{"time limit of a command", &workspace.CommandError{Kind: workspace.ErrTimeout, Timeout: time.Second}, "[t failed] run: the command did not end within 1s", nil},
		{"workspace gone", fmt.Errorf("x: %w", workspace.ErrUnavailable), "[t interrupted] This call did not finish, because the workspace", workspace.ErrUnavailable},
		{"workspace gone, called a retry", agent.Retryf("x: %w", workspace.ErrUnavailable), "[t interrupted]", workspace.ErrUnavailable},
		{"read-only", workspace.ErrReadOnly, "[t failed]", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := agent.New(scripted.Sequence(scripted.Call("1", "t", "{}"), scripted.Say("ok")), tool(c.err))
			res, err := a.Run(t.Context(), "go")
			history := valid(t, res)
			if c.ends == nil && err != nil || c.ends != nil && !errors.Is(err, c.ends) {
				t.Fatalf("error %v, want %v", err, c.ends)
			}
			if got := told(history[2]); !strings.Contains(got, c.want) {
				t.Errorf("the model is told %q, want %q", got, c.want)
			}
		})
	}
}

func TestAPanicEndsTheRunOnly(t *testing.T) {
	tool := agent.NewTool("t", "", func(context.Context, *agent.Call, struct{}) (string, error) { panic("oh") })
	res, err := agent.New(scripted.Sequence(scripted.Call("1", "t", "{}")), tool).Run(t.Context(), "go")
	if err == nil || !strings.Contains(err.Error(), "oh") {
		t.Errorf("error %v", err)
	}
	valid(t, res)
}

func TestRetryBudget(t *testing.T) {
	var attempts []int
	tool := func(opts ...agent.ToolOption) agent.Tool {
		return agent.NewTool("t", "", func(_ context.Context, c *agent.Call, _ struct{}) (string, error) {
			attempts = append(attempts, c.Attempt)
			return "", agent.Retryf("again")
		}, opts...)
	}
	always := scripted.Func(func(context.Context, *model.Request) (*model.Response, error) {
		return scripted.Call("1", "t", "{}"), nil
	})
	for _, c := range []struct {
		caps []agent.Capability
		want []int
	}{
		{[]agent.Capability{tool()}, []int{0, 1}},
		{[]agent.Capability{tool(agent.Retries(3))}, []int{0, 1, 2, 3}},
		{[]agent.Capability{tool(agent.Retries(-1))}, []int{0}},
		{[]agent.Capability{tool(), agent.Config{Retries: 2}}, []int{0, 1, 2}},
	} {
		attempts = nil
		res, err := agent.New(always, c.caps...).Run(t.Context(), "go")
		if !errors.Is(err, agent.ErrModel) {
			t.Fatalf("error %v", err)
		}
		if d := cmp.Diff(c.want, attempts); d != "" {
			t.Errorf("attempts:\n%s", d)
		}
		valid(t, res)
	}

	// A success in between starts the count anew.
	n := 0
	flaky := agent.NewTool("t", "", func(context.Context, *agent.Call, struct{}) (string, error) {
		if n++; n%2 == 1 {
			return "", agent.Retryf("again")
		}
		return "ok", nil
	})
	calls := 0
	m := scripted.Func(func(context.Context, *model.Request) (*model.Response, error) {
		if calls++; calls > 8 {
			return scripted.Say("done"), nil
		}
		return scripted.Call("1", "t", "{}"), nil
	})
	if _, err := agent.New(m, flaky).Run(t.Context(), "go"); err != nil {
		t.Errorf("alternating failures: %v", err)
	}
}

func TestArgumentsAreChecked(t *testing.T) {
	type args struct {
		N    int      `json:"n" jsonschema:"how many"`
		Tags []string `json:"tags,omitempty"`
		Opt  *bool    `json:"opt"`
	}
	tool := agent.NewTool("t", "does", func(_ context.Context, _ *agent.Call, a args) (args, error) { return a, nil })
	if strings.Contains(string(tool.Schema), "null") || strings.Contains(string(tool.Schema), `"opt"]`) || !strings.Contains(string(tool.Schema), "how many") {
		t.Errorf("schema %s", tool.Schema)
	}
	for _, c := range []struct{ args, want string }{
		{`{"n":1}`, `{"n":1,"opt":null}`},
		{`{"n":1,"tags":null,"opt":null}`, `{"n":1,"opt":null}`},
		{`{"n":1,"tags":["a"],"opt":true}`, `{"n":1,"tags":["a"],"opt":true}`},
		{`{"n":9007199254740993,"opt":null}`, `{"n":9007199254740993,"opt":null}`},
		{`{"n":9007199254740993}`, `{"n":9007199254740993,"opt":null}`},
		{`{"n":"one"}`, "do not fit"},
		{`{}`, "do not fit"},
		{``, "do not fit"},
		{`{"n":1,"x":2}`, "do not fit"},
		{`{"n":1`, "not valid JSON"},
		{`{"n":1} {}`, "not valid JSON"},
		{`[1]`, "not valid JSON"},
		{`null`, "not valid JSON"},
	} {
		a := agent.New(scripted.Sequence(scripted.Call("1", "t", c.args), scripted.Say("ok")), tool)
		res, err := a.Run(t.Context(), "go")
		if err != nil {
			t.Fatalf("%s: %v", c.args, err)
		}
		if got := told(res.Messages()[2]); !strings.Contains(got, c.want) {
			t.Errorf("%s: told %q, want %q", c.args, got, c.want)
		}
	}
}

func TestUnknownTool(t *testing.T) {
	a := agent.New(scripted.Sequence(scripted.Call("1", "nope", "{}"), scripted.Say("ok")), note())
	res, err := a.Run(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	if got := told(res.Messages()[2]); !strings.Contains(got, `no tool named "nope"`) || !strings.Contains(got, "note") {
		t.Errorf("told %q", got)
	}
}

func TestParallelCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		enter := func() {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
		}
		type args struct {
			N int `json:"n"`
		}
		slow := agent.NewTool("slow", "", func(_ context.Context, _ *agent.Call, a args) (int, error) {
			enter()
			defer now.Add(-1)
			time.Sleep(time.Duration(10-a.N) * time.Second)
			return a.N, nil
		})
		var alone atomic.Bool
		single := agent.NewTool("single", "", func(context.Context, *agent.Call, struct{}) (string, error) {
			alone.Store(now.Load() == 0)
			enter()
			defer now.Add(-1)
			time.Sleep(time.Second)
			return "s", nil
		}, agent.Sequential())
		var calls []model.ToolCall
		for i := range 6 {
			if i == 3 {
				calls = append(calls, model.ToolCall{Name: "single", Args: "{}"})
			}
			calls = append(calls, model.ToolCall{Name: "slow", Args: fmt.Sprintf(`{"n":%d}`, i)})
		}
		a := agent.New(scripted.Sequence(scripted.Calls(calls...), scripted.Say("ok")), slow, single, agent.Config{Parallel: 2})
		res, err := a.Run(t.Context(), "go")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := told(valid(t, res)[2]), "[slow ] 0\n[slow ] 1\n[slow ] 2\n[single ] s\n[slow ] 3\n[slow ] 4\n[slow ] 5\n"; got != want {
			t.Errorf("results in the order of the calls: got\n%s", got)
		}
		if most.Load() != 2 || !alone.Load() {
			t.Errorf("at most 2 at once: %d; the sequential one alone: %v", most.Load(), alone.Load())
		}
	})
}

func TestOneFailureStopsTheOthers(t *testing.T) {
	boom := errors.New("boom")
	began := make(chan struct{})
	wait := agent.NewTool("wait", "", func(ctx context.Context, _ *agent.Call, _ struct{}) (string, error) {
		close(began)
		<-ctx.Done()
		return "", ctx.Err()
	})
	fail := agent.NewTool("fail", "", func(context.Context, *agent.Call, struct{}) (string, error) {
		<-began
		return "", boom
	})
	a := agent.New(scripted.Sequence(scripted.Calls(model.ToolCall{ID: "1", Name: "wait"}, model.ToolCall{ID: "2", Name: "fail"})), wait, fail)
	res, err := a.Run(t.Context(), "go")
	if !errors.Is(err, boom) {
		t.Errorf("error %v", err)
	}
	valid(t, res)
}

// TestHistoryAfterEveryEnding: however a run ends, its history is valid, says
// so to the model, leads to the workspace, and can be continued.
func TestHistoryAfterEveryEnding(t *testing.T) {
	for _, c := range []struct {
		name   string
		first  func(t *testing.T, p *places, a *agent.Agent) (*agent.Result, error)
		is     error
		reason string
		notBox bool // no workspace was made
	}{
		{name: "cancelled while a tool runs", is: context.Canceled, reason: "cancelled",
			first: func(t *testing.T, p *places, a *agent.Agent) (*agent.Result, error) {
				ctx, cancel := context.WithCancel(t.Context())
				return a.Run(ctx, "hang", agent.WithDeps(cancel))
			}},
		{name: "cancelled while the model answers", is: context.Canceled, reason: "cancelled", notBox: true,
			first: func(t *testing.T, p *places, a *agent.Agent) (*agent.Result, error) {
				ctx, cancel := context.WithCancel(t.Context())
				m := scripted.StreamFunc(func(ctx context.Context, _ *model.Request) iter.Seq2[model.Delta, error] {
					return func(yield func(model.Delta, error) bool) {
						yield(model.Delta{Text: "I was say"}, nil)
						yield(model.Delta{CallID: "1", CallName: "note", CallArgs: `{"te`}, nil)
						cancel()
						yield(model.Delta{}, ctx.Err())
					}
				})
				return a.Run(ctx, "go", agent.WithModel(m))
			}},
		{name: "time limit", is: agent.ErrLimit, reason: "timeout",
			first: func(t *testing.T, p *places, a *agent.Agent) (*agent.Result, error) {
				return a.Run(t.Context(), "hang", agent.WithLimits(agent.Limits{Time: 50 * time.Millisecond}), agent.WithDeps(context.CancelFunc(func() {})))
			}},
		{name: "limit of requests", is: agent.ErrLimit, reason: "limit",
			first: func(t *testing.T, p *places, a *agent.Agent) (*agent.Result, error) {
				return a.Run(t.Context(), "note", agent.WithLimits(agent.Limits{Requests: 1}))
			}},
		{name: "limit of tool calls", is: agent.ErrLimit, reason: "limit",
			first: func(t *testing.T, p *places, a *agent.Agent) (*agent.Result, error) {
				return a.Run(t.Context(), "note", agent.WithLimits(agent.Limits{ToolCalls: 1, Requests: 9}))
			}},
		{name: "limit of tokens", is: agent.ErrLimit, reason: "limit", notBox: true,
			first: func(t *testing.T, p *places, a *agent.Agent) (*agent.Result, error) {
				return a.Run(t.Context(), "note", agent.WithLimits(agent.Limits{OutputTokens: 5}))
			}},
		{name: "lost workspace", is: workspace.ErrUnavailable, reason: "workspace_unavailable",
			first: func(t *testing.T, p *places, a *agent.Agent) (*agent.Result, error) {
				return a.Run(t.Context(), "lose", agent.WithDeps(p))
			}},
		{name: "the provider fails", is: errBoom, reason: "error", notBox: true,
			first: func(t *testing.T, p *places, a *agent.Agent) (*agent.Result, error) {
				return a.Run(t.Context(), "boom")
			}},
		{name: "a hook fails after the workspace was used", is: errBoom, reason: "error",
			first: func(t *testing.T, p *places, a *agent.Agent) (*agent.Result, error) {
				return a.Run(t.Context(), "go", agent.WithCapabilities(agent.Hooks{BeforeRun: func(ctx context.Context, r *agent.Run) error {
					if err := r.Workspace().WriteText(ctx, "f", "x"); err != nil {
						return err
					}
					return errBoom
				}}))
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlaces("a")
			a := agent.New(endings(), p, note(), hang(), lose())
			res, err := c.first(t, p, a)
			if !errors.Is(err, c.is) {
				t.Fatalf("error %v, want %v", err, c.is)
			}
			history := valid(t, res)
			last := told(history[len(history)-1])
			if !strings.Contains(last, "[notice "+c.reason+"]") {
				t.Errorf("the model is not told why: %q", last)
			}
			ref := model.LatestWorkspace(history)
			if (ref == nil) != c.notBox {
				t.Errorf("the history leads to %v; %d workspaces were made", ref, p.count())
			}
			made := p.count()
			opts := []agent.Option{agent.WithHistory(history)}
			if errors.Is(c.is, workspace.ErrUnavailable) {
				_, err := a.Run(t.Context(), "note", opts...)
				if !errors.Is(err, workspace.ErrUnavailable) || p.count() != made {
					t.Errorf("a lost workspace: %v, %d were made anew", err, p.count()-made)
				}
				opts = append(opts, agent.WithNewWorkspace())
			}
			more, err := a.Run(t.Context(), "finish", opts...)
			if err != nil {
				t.Fatalf("going on: %v", err)
			}
			valid(t, more)
			if more.Output != "finished" {
				t.Errorf("going on: %q", more.Output)
			}
			if ref != nil && !errors.Is(c.is, workspace.ErrUnavailable) && p.count() != made {
				t.Error("going on made another workspace")
			}
		})
	}
}

var errBoom = errors.New("boom")

// endings answers by the last thing that the user said.
func endings() model.Model {
	return scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		var word string
		n := 0
		for _, m := range req.Messages {
			for _, p := range m.Parts {
				switch p := p.(type) {
				case model.User:
					word, n = p.Text(), 0
				case model.ToolCall:
					n++
				}
			}
		}
		switch word {
		case "hang", "lose":
			return scripted.Call("1", word, "{}"), nil
		case "note":
			res := scripted.Call(fmt.Sprint(n), "note", `{"text":"x"}`)
			res.Usage.Output = 10
			return res, nil
		case "boom":
			return nil, errBoom
		}
		return scripted.Say("finished"), nil
	})
}

func hang() agent.Tool {
	return agent.NewTool("hang", "", func(ctx context.Context, c *agent.Call, _ struct{}) (string, error) {
		if err := c.Workspace().WriteText(ctx, "f", "x"); err != nil {
			return "", err
		}
		cancel, _ := agent.Deps[context.CancelFunc](c.Run)
		cancel()
		<-ctx.Done()
		return "", ctx.Err()
	})
}

func lose() agent.Tool {
	return agent.NewTool("lose", "", func(ctx context.Context, c *agent.Call, _ struct{}) (string, error) {
		if err := c.Workspace().WriteText(ctx, "f", "x"); err != nil {
			return "", err
		}
		p, _ := agent.Deps[*places](c.Run)
		ref, _ := c.Workspace().Ref()
		p.destroy(ref.ID)
		return c.Workspace().ReadText(ctx, "f")
	})
}

func TestStream(t *testing.T) {
	p := newPlaces("a")
	m := scripted.Sequence(scripted.Call("1", "note", `{"text":"x"}`), scripted.Say("all done"))
	a := agent.New(m, p, note(), agent.Config{Name: "n"})
	var names []string
	var last agent.Event
	for e, err := range a.Stream(t.Context(), "go") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, e.EventName())
		last = e
	}
	want := []string{"started", "call", "responded", "tool_started", "tool_finished", "text", "responded", "finished"}
	if d := cmp.Diff(want, names); d != "" {
		t.Errorf("events:\n%s", d)
	}
	if f, ok := last.(agent.Finished); !ok || f.Result.Output != "all done" {
		t.Errorf("last event %+v", last)
	}

	// Leaving early cancels the run and waits for it.
	ended := false
	hook := agent.Hooks{OnRunError: func(context.Context, *agent.Run, error) (*agent.Result, error) { ended = true; return nil, nil }}
	for range agent.New(m, p, note(), hook).Stream(t.Context(), "go") {
		break
	}
	if !ended {
		t.Error("the run was not over when the loop was")
	}

	// An error comes last, with what there is.
	var final agent.Event
	var failed error
	for e, err := range agent.New(scripted.Sequence(), p).Stream(t.Context(), "go") {
		final, failed = e, err
	}
	f, ok := final.(agent.Finished)
	if !ok || failed == nil {
		t.Fatalf("%+v, %v", final, failed)
	}
	valid(t, f.Result)
}

func TestRestartVoidsWhatCame(t *testing.T) {
	m := scripted.StreamFunc(func(context.Context, *model.Request) iter.Seq2[model.Delta, error] {
		return func(yield func(model.Delta, error) bool) {
			_ = yield(model.Delta{Text: "first "}, nil) &&
				yield(model.Delta{Restart: true, Reason: "cut"}, nil) &&
				yield(model.Delta{Text: "second"}, nil) &&
				yield(model.Delta{}, errBoom)
		}
	})
	res, err := agent.New(m).Run(t.Context(), "go")
	if !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	if got := valid(t, res)[1].Text(); got != "second" {
		t.Errorf("the partial response is %q", got)
	}
}

func TestEmptyResponses(t *testing.T) {
	empty := &model.Response{Finish: model.Stop}
	res, err := agent.New(scripted.Sequence(empty, scripted.Say("ok"))).Run(t.Context(), "go")
	if err != nil || res.Output != "ok" {
		t.Errorf("%v, %v", res, err)
	}
	if res, err = agent.New(scripted.Sequence(empty, empty)).Run(t.Context(), "go"); !errors.Is(err, agent.ErrModel) {
		t.Errorf("error %v", err)
	}
	valid(t, res)
	for _, f := range []model.FinishReason{model.Length, model.ContentFilter} {
		if _, err = agent.New(scripted.Sequence(&model.Response{Finish: f})).Run(t.Context(), "go"); !errors.Is(err, agent.ErrModel) {
			t.Errorf("%s: error %v", f, err)
		}
	}
}

func TestNewPanicsForWhatIsNoCapability(t *testing.T) {
	for _, c := range []agent.Capability{nil, 5, "text", struct{}{}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%T was taken for a capability", c)
				}
			}()
			agent.New(scripted.Sequence(), c)
		}()
	}
}

func TestNeedsWorkspace(t *testing.T) {
	_, err := agent.New(scripted.Sequence(scripted.Say("x")), needer{}).Run(t.Context(), "go")
	if !errors.Is(err, agent.ErrUsage) || !strings.Contains(err.Error(), "WithWorkspace") {
		t.Errorf("error %v", err)
	}
	if _, err := agent.New(scripted.Sequence(scripted.Say("x")), needer{}, newPlaces("a")).Run(t.Context(), "go"); err != nil {
		t.Error(err)
	}
}

type needer struct{}

func (needer) NeedsWorkspace() string { return "the thing" }

func TestTwoToolsOfOneName(t *testing.T) {
	_, err := agent.New(scripted.Sequence(scripted.Say("x")), note(), note()).Run(t.Context(), "go")
	if !errors.Is(err, agent.ErrUsage) {
		t.Errorf("error %v", err)
	}
}

func TestPerRunStateIsTheRunsOwn(t *testing.T) {
	c := &counter{}
	m := scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		return scripted.Say(req.Instructions), nil
	})
	a := agent.New(m, c)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			res, err := a.Run(context.Background(), "go")
			if err != nil || res.Output != "request 1" {
				t.Errorf("%v, %v", res, err)
			}
		})
	}
	wg.Wait()
}

type counter struct{ n int }

func (c *counter) ForRun(context.Context, *agent.Run) (agent.Capability, error) {
	return &counter{}, nil
}
func (c *counter) Instructions(context.Context, *agent.Run) (string, error) {
	c.n++
	return fmt.Sprintf("request %d", c.n), nil
}

func TestPrepareTools(t *testing.T) {
	m := scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		var names []string
		for _, tool := range req.Tools {
			names = append(names, tool.Name)
		}
		return scripted.Say(strings.Join(names, " ")), nil
	})
	res, err := agent.New(m, note(), recall(), only("recall")).Run(t.Context(), "go")
	if err != nil || res.Output != "recall" {
		t.Errorf("%v, %v", res, err)
	}
}

type only string

func (o only) PrepareTools(_ context.Context, _ *agent.Run, tools []agent.Tool) ([]agent.Tool, error) {
	return slices.DeleteFunc(tools, func(t agent.Tool) bool { return t.Name != string(o) }), nil
}
