package agent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/workspace"
)

func TestToolbox(t *testing.T) {
	ctx := t.Context()
	p := newPlaces("a")
	type args struct {
		N int `json:"n"`
	}
	errBroken := errors.New("broken")
	var mu sync.Mutex
	events := map[string]int{}
	caps := []agent.Capability{
		p,
		agent.NewTool("count", "Counts.", func(ctx context.Context, call *agent.Call, a args) (string, error) {
			switch a.N {
			case 1:
				return "", agent.Retryf("not one")
			case 2:
				return "", agent.Failedf("two is final")
			case 3:
				return "", errBroken
			case 4:
				return "", agent.Deferf("ask")
			case 5:
				<-ctx.Done()
				return "", ctx.Err()
			case 6:
				_, err := call.Ask(ctx, &model.Request{})
				return "", err
			case 7:
				_, err := call.Workspace().ReadText(ctx, "missing")
				return "", err
			}
			return fmt.Sprint(a.N), nil
		}),
		agent.Hooks{AfterTool: func(_ context.Context, call *agent.Call, out *agent.ToolOutput) error {
			out.Text += " by " + call.CallID
			return nil
		}},
	}
	box, err := agent.OpenToolbox(ctx, func(e agent.Event) {
		mu.Lock()
		defer mu.Unlock()
		events[e.EventName()]++
	}, caps, agent.WithLimits(agent.Limits{ToolCalls: 50}))
	if err != nil {
		t.Fatal(err)
	}
	tools, err := box.Tools(ctx)
	if err != nil || len(tools) != 1 || tools[0].Name != "count" || len(tools[0].Schema) == 0 {
		t.Fatalf("tools %+v, %v", tools, err)
	}
	if p.count() != 0 {
		t.Error("opening it made a place")
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	ret := func(outcome model.Outcome, text string) model.Part {
		return model.ToolReturn{ID: "c", Name: "count", Outcome: outcome, Text: text}
	}
	unknown := "What it did so far is not known."
	for _, tt := range []struct {
		ctx  context.Context
		args string
		part model.Part
		err  error
	}{
		{ctx, `{"n": 9}`, ret("", "9 by c"), nil},
		{ctx, `{"n": 1}`, model.Retry{ID: "c", Name: "count", Text: "not one"}, nil},
		{ctx, `{"n": 2}`, ret(model.Failure, "two is final"), nil},
		{ctx, `{"n": 3}`, ret(model.Interrupted, "This call did not finish, because of an error that ended the run. "+unknown), errBroken},
		{ctx, `{"n": 4}`, ret(model.Deferred, "This call has not run yet: it waits for an answer."), nil},
		{ended, `{"n": 5}`, ret(model.Interrupted, "This call did not finish, because the run was cancelled. "+unknown), context.Canceled},
	} {
		part, err := box.Call(tt.ctx, model.ToolCall{ID: "c", Name: "count", Args: tt.args})
		if d := cmp.Diff(tt.part, part); d != "" {
			t.Errorf("%s:\n%s", tt.args, d)
		}
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: error %v, want %v", tt.args, err, tt.err)
		}
	}
	if part, err := box.Call(ctx, model.ToolCall{ID: "c", Name: "count", Args: `{"n": "x"}`}); err != nil {
		t.Errorf("bad arguments: %v", err)
	} else if _, ok := part.(model.Retry); !ok {
		t.Errorf("bad arguments: %+v", part)
	}
	if _, err := box.Call(ctx, model.ToolCall{ID: "c", Name: "count", Args: `{"n": 6}`}); err == nil {
		t.Error("a model answered")
	}
	if part, err := box.Call(ctx, model.ToolCall{ID: "c", Name: "nothing"}); err != nil {
		t.Errorf("unknown tool: %v", err)
	} else if _, ok := part.(model.Retry); !ok {
		t.Errorf("unknown tool: %+v", part)
	}
	if part, err := box.Call(ctx, model.ToolCall{ID: "c", Name: "count", Args: `{"n": 7}`}); err != nil || part.(model.ToolReturn).Outcome != model.Failure {
		t.Errorf("a missing file: %+v, %v", part, err)
	}
	if ref, ok := box.Workspace().Ref(); !ok || ref.Provider != "a" || p.count() != 1 {
		t.Errorf("workspace %v %v, %d places", ref, ok, p.count())
	}

	// Many at once, up to the limit.
	var wg sync.WaitGroup
	var limited int
	for i := range 60 {
		wg.Go(func() {
			_, err := box.Call(ctx, model.ToolCall{ID: fmt.Sprint(i), Name: "count", Args: `{"n": 9}`})
			if errors.Is(err, agent.ErrLimit) {
				mu.Lock()
				defer mu.Unlock()
				limited++
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if limited != 20 {
		t.Errorf("%d calls are over the limit, want 20", limited)
	}
	if events["tool_started"] != 50 || events["tool_finished"] != 50 {
		t.Errorf("events %v", events)
	}
	if err := box.Close(ctx); err != nil || p.closed != 1 {
		t.Errorf("closed %d times, %v", p.closed, err)
	}
}

func TestToolboxMisuse(t *testing.T) {
	for name, caps := range map[string][]agent.Capability{
		"no capability": {3},
		"two tools":     {addTool(), addTool()},
	} {
		if _, err := agent.OpenToolbox(t.Context(), nil, caps); !errors.Is(err, agent.ErrUsage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	box, err := agent.OpenToolbox(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := box.Workspace().ReadFile(t.Context(), "x"); !errors.Is(err, workspace.ErrUnavailable) {
		t.Errorf("there is a workspace: %v", err)
	}
}

func addTool() agent.Tool {
	return agent.NewTool("add", "", func(context.Context, *agent.Call, struct{}) (string, error) { return "", nil })
}
