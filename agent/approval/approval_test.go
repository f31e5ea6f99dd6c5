package approval_test

import (
	"context"
	"errors"
	"testing"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/approval"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
)

func run(t *testing.T, opt approval.Options, opts ...agent.Option) (*agent.Result, *int, error) {
	t.Helper()
	ran := 0
	tool := func(name string) agent.Tool {
		return agent.NewTool(name, "", func(context.Context, *agent.Call, struct{}) (string, error) { ran++; return "ran", nil })
	}
	a := agent.New(scripted.Sequence(scripted.Calls(
		model.ToolCall{ID: "w", Name: "write_it", Args: "{}"}, model.ToolCall{ID: "r", Name: "read_it", Args: "{}"}), scripted.Say("ok")),
		tool("write_it"), tool("read_it"), approval.New(opt), agent.Config{Parallel: 1})
	res, err := a.Run(t.Context(), "go", opts...)
	return res, &ran, err
}

func outcome(res *agent.Result, i int) model.Outcome {
	return res.Messages()[2].Parts[i].(model.ToolReturn).Outcome
}

func TestApproval(t *testing.T) {
	writes := []string{"write_*"}
	says := func(d approval.Decision) func(context.Context, *agent.Call) (approval.Decision, error) {
		return func(context.Context, *agent.Call) (approval.Decision, error) { return d, nil }
	}
	_, ran, err := run(t, approval.Options{Tools: writes, Ask: says(approval.Decision{Approve: true})})
	if err != nil || *ran != 2 {
		t.Errorf("approved: %v, %d ran", err, *ran)
	}
	res, ran, err := run(t, approval.Options{Tools: writes, Ask: says(approval.Decision{Message: "no"})})
	if err != nil || *ran != 1 || outcome(res, 0) != model.Denied {
		t.Errorf("denied: %v, %d ran", err, *ran)
	}
	boom := errors.New("boom")
	_, _, err = run(t, approval.Options{Tools: writes, Ask: func(context.Context, *agent.Call) (approval.Decision, error) {
		return approval.Decision{}, boom
	}})
	if !errors.Is(err, boom) {
		t.Errorf("asking fails: %v", err)
	}
	for name, opt := range map[string]approval.Options{
		"nobody to ask": {Tools: writes},
		"later":         {Tools: writes, Ask: says(approval.Decision{Later: true, Message: "tomorrow"})},
	} {
		res, ran, err = run(t, opt)
		if err != nil || *ran != 1 || len(res.Deferred) != 1 || res.Deferred[0].Call.ID != "w" || outcome(res, 0) != model.Deferred {
			t.Fatalf("%s: %v, %d ran, %+v", name, err, *ran, res.Deferred)
		}
		// In another process: the history is all there is.
		data, err := model.Encode(res.Messages())
		if err != nil {
			t.Fatal(err)
		}
		history, err := model.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		ran2 := 0
		tool := agent.NewTool("write_it", "", func(context.Context, *agent.Call, struct{}) (string, error) { ran2++; return "ran", nil })
		a := agent.New(scripted.Sequence(nil, scripted.Say("ok")), tool, approval.New(opt))
		res, err = a.Run(t.Context(), "", agent.WithHistory(history), agent.WithAnswers(map[string]agent.Answer{"w": {Approve: true}}))
		if err != nil || res.Output != "ok" || ran2 != 1 {
			t.Errorf("%s: %v, %d ran", name, err, ran2)
		}
	}
	_, ran, err = run(t, approval.Options{Needs: func(c *agent.Call) bool { return c.Tool == "nothing" }})
	if err != nil || *ran != 2 {
		t.Errorf("nothing needs it: %v, %d ran", err, *ran)
	}
	_, ran, err = run(t, approval.Options{Tools: []string{"["}})
	if !errors.Is(err, agent.ErrUsage) || *ran != 0 {
		t.Errorf("a pattern that is none: %v, %d ran", err, *ran)
	}
}
