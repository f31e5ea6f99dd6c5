package agent_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
)

func TestRepairJSON(t *testing.T) {
	for _, c := range []struct{ text, want string }{ // want "" means that it cannot be mended
		{"```json\n{\"a\":1}\n```", `{"a":1}`},
		{`{"a":1,}`, `{"a":1}`},
		{`{"a":[1,2,],}`, `{"a":[1,2]}`},
		{`{"a":[1,{"b":2`, `{"a":[1,{"b":2}]}`},
		{`{"a":1`, `{"a":1}`},
		{"{\"a\":\"x\ny\tz\"}", `{"a":"x\ny\tz"}`},
		{`{"a":1} and that is it`, `{"a":1}`},
		{`Sure: {"a":1}`, `{"a":1}`},
		{`{"a":"}, ]"}`, `{"a":"}, ]"}`},
		{`{"a":"cut in the mid`, ""},
		{`{"a":`, ""},
		{`{"a"`, ""},
		{`{"a":1]`, ""},
		{`[1,2]`, ""},
		{`nothing`, ""},
		{``, ""},
	} {
		got, ok := agent.RepairJSON{}.RepairArgs(model.ToolCall{Args: c.text})
		if ok != (c.want != "") {
			t.Errorf("%q: mended %v to %q", c.text, ok, got)
			continue
		}
		if !ok {
			continue
		}
		var a, b any
		if err := json.Unmarshal([]byte(got), &a); err != nil {
			t.Errorf("%q: %q: %v", c.text, got, err)
		}
		if err := json.Unmarshal([]byte(c.want), &b); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(b, a); d != "" {
			t.Errorf("%q:\n%s", c.text, d)
		}
	}
}

func TestRepairIsUsed(t *testing.T) {
	p := newPlaces("a")
	a := agent.New(scripted.Sequence(scripted.Call("1", "note", `{"text":"x",}`), scripted.Say("ok")), p, note(), agent.RepairJSON{})
	res, err := a.Run(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	if r, ok := res.Messages()[2].Parts[0].(model.ToolReturn); !ok || r.Text != "noted" {
		t.Errorf("%+v", res.Messages()[2].Parts[0])
	}
}

func FuzzRepair(f *testing.F) {
	f.Add("{\"a\":[1,{\"b\":\"c\\\"\"},")
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := agent.RepairJSON{}.RepairArgs(model.ToolCall{Args: text})
		if ok && !json.Valid([]byte(got)) {
			t.Errorf("%q became %q", text, got)
		}
	})
}
