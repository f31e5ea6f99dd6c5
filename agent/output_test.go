package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
)

type city struct {
	Name   string `json:"name"`
	People int    `json:"people" jsonschema:"inhabitants"`
}

func TestRunAs(t *testing.T) {
	a := agent.New(scripted.Sequence(
		scripted.Call("1", "final_result", `{"name":"Lima","people":"many"}`), // does not fit
		scripted.Call("2", "final_result", `{"name":"Lima","people":10000000}`),
	))
	res, err := agent.RunAs[city](t.Context(), a, "largest city of Peru")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(city{"Lima", 10_000_000}, res.Value); d != "" {
		t.Error(d)
	}
	if res.Output != `{"name":"Lima","people":10000000}` {
		t.Errorf("output %s", res.Output)
	}
	if got := told(valid(t, res.Result)[2]); !strings.Contains(got, "[final_result retry]") {
		t.Errorf("a wrong answer: told %q", got)
	}
}

func TestRunAsForWhatIsNoStruct(t *testing.T) {
	numbers, err := agent.RunAs[[]int](t.Context(), agent.New(scripted.Sequence(scripted.Call("1", "final_result", `{"value":[2,3]}`))), "primes")
	if err != nil || !cmp.Equal(numbers.Value, []int{2, 3}) {
		t.Errorf("%v, %v", numbers.Value, err)
	}
	text, err := agent.RunAs[string](t.Context(), agent.New(scripted.Sequence(scripted.Call("1", "final_result", `{"value":"x"}`))), "say")
	if err != nil || text.Value != "x" {
		t.Errorf("%v, %v", text.Value, err)
	}
}

func TestOutputValidators(t *testing.T) {
	small := agent.OutputOf(func(_ context.Context, _ *agent.Run, c city) error {
		if c.People > 1000 {
			return fmt.Errorf("%d is too many", c.People)
		}
		return nil
	})
	big, tiny := scripted.Call("1", "final_result", `{"name":"a","people":5000}`), scripted.Call("1", "final_result", `{"name":"b","people":5}`)
	res, err := agent.RunAs[city](t.Context(), agent.New(scripted.Sequence(big, tiny)), "go", agent.WithOutput(small))
	if err != nil || res.Value.Name != "b" {
		t.Fatalf("%v, %v", res, err)
	}
	if got := told(res.Messages()[2]); !strings.Contains(got, "5000 is too many") {
		t.Errorf("told %q", got)
	}
	bad, err := agent.RunAs[city](t.Context(), agent.New(scripted.Sequence(big, big, big)), "go", agent.WithOutput(small))
	if !errors.Is(err, agent.ErrModel) {
		t.Errorf("error %v", err)
	}
	valid(t, bad.Result)
}

func TestOutputIsAskedForAgainWhenTheModelJustTalks(t *testing.T) {
	a := agent.New(scripted.Sequence(scripted.Say("Lima, I think"), scripted.Call("1", "final_result", `{"name":"Lima","people":1}`)))
	res, err := agent.RunAs[city](t.Context(), a, "go")
	if err != nil || res.Value.Name != "Lima" {
		t.Errorf("%v, %v", res, err)
	}
}

func TestOtherToolsOfTheLastResponseRun(t *testing.T) {
	ran := false
	tool := agent.NewTool("t", "", func(context.Context, *agent.Call, struct{}) (string, error) { ran = true; return "", nil })
	a := agent.New(scripted.Sequence(scripted.Calls(
		model.ToolCall{ID: "1", Name: "final_result", Args: `{"value":1}`},
		model.ToolCall{ID: "2", Name: "t", Args: `{}`},
		model.ToolCall{ID: "3", Name: "final_result", Args: `{"value":2}`},
	)), tool)
	res, err := agent.RunAs[int](t.Context(), a, "go")
	if err != nil || res.Value != 1 || !ran {
		t.Errorf("%v, %v, ran %v", res.Value, err, ran)
	}
	valid(t, res.Result)
}

// asking defers each call of a tool until it is approved.
func asking() agent.Hooks {
	return agent.Hooks{WrapTool: func(ctx context.Context, c *agent.Call, next func(context.Context) (agent.ToolOutput, error)) (agent.ToolOutput, error) {
		if c.Tool == "note" && !c.Approved {
			return agent.ToolOutput{}, agent.Deferf("may it?")
		}
		return next(ctx)
	}}
}

func TestDeferredCalls(t *testing.T) {
	p := newPlaces("a")
	two := scripted.Calls(
		model.ToolCall{ID: "n1", Name: "note", Args: `{"text":"one"}`},
		model.ToolCall{ID: "r", Name: "recall", Args: `{}`},
		model.ToolCall{ID: "n2", Name: "note", Args: `{"text":"two"}`})
	newAgent := func() *agent.Agent {
		return agent.New(scripted.Sequence(two, scripted.Say("ok")), p, note(), recall(), asking())
	}
	res, err := newAgent().Run(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Deferred) != 2 || res.Deferred[0].Call.ID != "n1" || res.Deferred[0].Reason != "may it?" || res.Output != "" {
		t.Fatalf("%+v", res.Deferred)
	}
	history := valid(t, res) // from here on as if in another process

	// One answer only: the other call goes on waiting, and the model is not asked.
	part, err := newAgent().Run(t.Context(), "", agent.WithHistory(history), agent.WithAnswers(map[string]agent.Answer{"n2": {Approve: true}}))
	if err != nil {
		t.Fatal(err)
	}
	if len(part.Deferred) != 1 || part.Deferred[0].Call.ID != "n1" {
		t.Errorf("waiting: %+v", part.Deferred)
	}
	// The other is denied, and the run goes on.
	done, err := newAgent().Run(t.Context(), "", agent.WithHistory(valid(t, part)), agent.WithAnswers(map[string]agent.Answer{"n1": {Message: "rather not"}}))
	if err != nil || done.Output != "ok" {
		t.Fatalf("%v, %v", done, err)
	}
	got := told(valid(t, done)[2])
	for _, want := range []string{"[note denied] rather not", "[recall failed]", "[note ] noted"} {
		if !strings.Contains(got, want) {
			t.Errorf("told %q, want %q in it", got, want)
		}
	}
	// An answer for a call that does not wait is a mistake.
	if _, err := newAgent().Run(t.Context(), "", agent.WithHistory(valid(t, done)), agent.WithAnswers(map[string]agent.Answer{"n1": {}})); !errors.Is(err, agent.ErrUsage) {
		t.Errorf("error %v", err)
	}
	// Going on without an answer is possible; the model sees that the calls wait.
	on, err := newAgent().Run(t.Context(), "never mind", agent.WithHistory(history))
	if err != nil || on.Output != "ok" {
		t.Errorf("%v, %v", on, err)
	}
	// A result from elsewhere.
	given, err := newAgent().Run(t.Context(), "", agent.WithHistory(history), agent.WithAnswers(map[string]agent.Answer{
		"n1": {Result: &agent.ToolOutput{Text: "done by hand"}}, "n2": {Approve: true}}))
	if err != nil || !strings.Contains(told(given.Messages()[2]), "[note ] done by hand") {
		t.Errorf("%v, %v", given, err)
	}
}

func TestASubRunCountsForItsParent(t *testing.T) {
	inner := agent.New(scripted.Func(func(context.Context, *model.Request) (*model.Response, error) {
		res := scripted.Say("inner")
		res.Usage = model.Usage{Input: 100, Output: 10}
		return res, nil
	}), agent.Config{Name: "inner"})
	delegate := agent.NewTool("delegate", "", func(ctx context.Context, c *agent.Call, _ struct{}) (string, error) {
		res, err := inner.Run(ctx, "go", agent.WithParent(c))
		if err != nil {
			return "", err
		}
		return res.Output, nil
	})
	outer := func() *agent.Agent {
		return agent.New(scripted.Sequence(scripted.Call("1", "delegate", "{}"), scripted.Call("2", "delegate", "{}"), scripted.Say("ok")), delegate)
	}
	res, err := outer().Run(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	if u := res.Usage; u.Requests != 5 || u.Input != 200 || u.Output != 20 {
		t.Errorf("usage %+v", u)
	}
	nested := 0
	for e, err := range outer().Stream(t.Context(), "go", agent.WithLimits(agent.Limits{InputTokens: 150})) {
		if n, ok := e.(agent.Nested); ok {
			nested++
			if n.Agent != "inner" || n.Call == "" {
				t.Errorf("%+v", n)
			}
		}
		if _, last := e.(agent.Finished); last && !errors.Is(err, agent.ErrLimit) {
			t.Errorf("the parent's limit did not hold: %v", err)
		}
	}
	if nested == 0 {
		t.Error("no events of the inner run")
	}
}
