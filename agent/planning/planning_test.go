package planning_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/agent/planning"
)

func TestPlan(t *testing.T) {
	m := scripted.Sequence(
		scripted.Call("1", "write_plan", `{"tasks":["look","change","check"]}`),
		scripted.Calls(
			model.ToolCall{ID: "2", Name: "update_task", Args: `{"id":1,"status":"done"}`},
			model.ToolCall{ID: "3", Name: "update_task", Args: `{"id":2,"status":"in_progress"}`},
			model.ToolCall{ID: "4", Name: "remove_task", Args: `{"id":3}`},
			model.ToolCall{ID: "5", Name: "add_task", Args: `{"text":"test  it"}`},
			model.ToolCall{ID: "6", Name: "update_task", Args: `{"id":9,"status":"done"}`},
			model.ToolCall{ID: "7", Name: "update_task", Args: `{"id":1,"status":"maybe"}`},
			model.ToolCall{ID: "8", Name: "add_task", Args: `{"text":" "}`},
		),
		scripted.Say("so far"),
		scripted.Call("9", "read_plan", `{}`),
		scripted.Say("ok"),
	)
	a := agent.New(m, planning.New())
	var last planning.Changed
	var res *agent.Result
	for e, err := range a.Stream(t.Context(), "go") {
		if err != nil {
			t.Fatal(err)
		}
		switch e := e.(type) {
		case planning.Changed:
			last = e
		case agent.Finished:
			res = e.Result
		}
	}
	want := []planning.Task{{1, "look", planning.Done}, {2, "change", planning.InProgress}, {4, "test it", planning.Pending}}
	if d := cmp.Diff(want, last.Tasks); d != "" {
		t.Error(d)
	}
	for i, bad := range []string{"no task 9", "maybe", "empty"} {
		if r, ok := res.Messages()[4].Parts[4+i].(model.Retry); !ok || !strings.Contains(r.Text, bad) {
			t.Errorf("%+v", res.Messages()[4].Parts[4+i])
		}
	}
	// A later run, with the history only, has the same list.
	more, err := a.Run(t.Context(), "and now?", agent.WithHistory(res.Messages()))
	if err != nil {
		t.Fatal(err)
	}
	got := more.NewMessages()[2].Parts[0].(model.ToolReturn).Text
	if want := "1. [x] look\n2. [>] change\n4. [ ] test it"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
