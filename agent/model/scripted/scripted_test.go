package scripted_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
)

func request(messages ...model.Message) *model.Request { return &model.Request{Messages: messages} }

func user(text string) model.Message {
	return model.Message{Kind: model.KindRequest, Parts: []model.Part{model.UserText(text)}}
}

func answer(res *model.Response) model.Message {
	return model.Message{Kind: model.KindResponse, Parts: res.Parts, Finish: res.Finish}
}

func result(id, text string) model.Message {
	return model.Message{Kind: model.KindRequest, Parts: []model.Part{model.ToolReturn{ID: id, Name: "t", Text: text}}}
}

func load(t *testing.T, script string) (model.Model, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "s.json")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	return scripted.Load(file)
}

func TestScript(t *testing.T) {
	m, err := load(t, `{"steps":[
		{"text":"first","calls":[{"tool":"t","args":{"x":1}},{"tool":"t","raw":"{oops"}]},
		{"expect":"^fine","text":"second"},
		{"text":"third"}],
		"others":[{"when":"^review","steps":[{"text":"looks good"}]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	if m.Name() != "scripted:s.json" {
		t.Errorf("name %q", m.Name())
	}
	ctx := context.Background()
	res, err := m.Generate(ctx, request(user("go")))
	if err != nil {
		t.Fatal(err)
	}
	calls := answer(res).Calls()
	if len(calls) != 2 || calls[0].Args != `{"x":1}` || calls[1].Args != "{oops" || calls[0].ID == calls[1].ID || res.Finish != model.ToolCalls {
		t.Fatalf("%+v", res)
	}
	one := []model.Message{user("go"), answer(res), result(calls[0].ID, "fine")}
	if res, err = m.Generate(ctx, request(one...)); err != nil || res.Text() != "second" || res.Finish != model.Stop {
		t.Errorf("%v, %v", res, err)
	}
	wrong := []model.Message{user("go"), one[1], result(calls[0].ID, "broken")}
	if _, err = m.Generate(ctx, request(wrong...)); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a result that is not the expected one: %v", err)
	}
	cut := append(one[:3:3], model.Message{Kind: model.KindResponse, Finish: model.Cancelled}, user("again"))
	if res, err = m.Generate(ctx, request(cut...)); err == nil || res != nil {
		t.Errorf("a response that was cut short counts: step 2 expects a result, got %v, %v", res, err)
	}
	if res, err = m.Generate(ctx, request(user("review this"))); err != nil || res.Text() != "looks good" {
		t.Errorf("%v, %v", res, err)
	}
	over := request(user("review this"), answer(res), user("more"))
	if _, err = m.Generate(ctx, over); err == nil {
		t.Error("a script that is over went on")
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := m.Generate(gone, request(user("go"))); err == nil {
		t.Error("the context is not looked at")
	}
}

func TestScriptErrors(t *testing.T) {
	for name, script := range map[string]string{
		"empty":      `{}`,
		"not JSON":   `steps`,
		"more":       `{"step":[]}`,
		"bad expect": `{"steps":[{"expect":"(","text":"x"}]}`,
		"bad when":   `{"others":[{"when":"(","steps":[]}]}`,
		"nothing":    `{"steps":[{}]}`,
		"no tool":    `{"steps":[{"calls":[{}]}]}`,
	} {
		if _, err := load(t, script); err == nil {
			t.Errorf("%s: loaded", name)
		}
	}
	if _, err := scripted.Load(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there was loaded")
	}
}

func TestTesterCallsEachToolOnceWithArgumentsThatFit(t *testing.T) {
	type args struct {
		Path  string            `json:"path"`
		Limit int               `json:"limit"`
		Deep  struct{ On bool } `json:"deep"`
		Names []string          `json:"names"`
		Skip  string            `json:"skip,omitempty"`
	}
	schema, err := jsonschema.For[args](nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	var tester scripted.Tester
	req := request(user("go"))
	req.Tools = []model.Tool{{Name: "a", Schema: raw}, {Name: "b", Schema: json.RawMessage(`{"type":"object"}`)}}
	res, err := tester.Generate(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	calls := answer(res).Calls()
	if len(calls) != 2 {
		t.Fatalf("%d calls", len(calls))
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(calls[0].Args), &v); err != nil {
		t.Fatal(err)
	}
	if err := resolved.Validate(v); err != nil {
		t.Errorf("arguments %s do not fit: %v", calls[0].Args, err)
	}
	back := model.Message{Kind: model.KindRequest, Parts: []model.Part{
		model.ToolReturn{ID: calls[0].ID, Name: "a", Text: "one"}, model.ToolReturn{ID: calls[1].ID, Name: "b", Text: "two"}}}
	req.Messages = append(req.Messages, answer(res), back)
	res, err = tester.Generate(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if res.Text() != `{"a":"one","b":"two"}` {
		t.Errorf("answer %s", res.Text())
	}
	if got := tester.LastRequest(); got == nil || len(got.Messages) != 3 {
		t.Errorf("last request %v", got)
	}
}

func TestTesterUsesTheOutputTool(t *testing.T) {
	tester := scripted.Tester{Output: `{"n":3}`}
	req := request(user("go"))
	req.Tools = []model.Tool{{Name: "final", Output: true, Schema: json.RawMessage(`{"type":"object"}`)}}
	res, err := tester.Generate(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if calls := answer(res).Calls(); len(calls) != 1 || calls[0].Name != "final" || calls[0].Args != `{"n":3}` {
		t.Errorf("%+v", res)
	}
}
