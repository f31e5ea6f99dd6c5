package model_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/workspace"
)

func everything() []model.Message {
	at := time.Date(2026, 11, 29, 12, 0, 0, 123_000_000, time.FixedZone("x", 3600))
	ref := &workspace.Ref{Provider: "hutch", ID: "hutch-0123456789abcdef0123456789abcdef"}
	sig := model.ProviderData{"anthropic": json.RawMessage(`{"type":"anthropic.x","data":{"signature":"<&>"}}`)}
	return []model.Message{
		{Kind: model.KindRequest, Time: at, Run: "r1", Parts: []model.Part{
			model.System{Text: "be brief"},
			model.User{Content: []model.Content{
				{Text: "what is <this> & that?\u2028"},
				{File: &model.File{Name: "a.png", MediaType: "image/png", Data: []byte{0x89, 'P', 0, 0xff}}},
				{File: &model.File{MediaType: "application/pdf"}},
			}},
		}},
		{Kind: model.KindResponse, Time: at, Run: "r1", Model: "test:m", ID: "resp_1", Finish: model.ToolCalls, Workspace: ref,
			Usage: model.Usage{Requests: 1, Input: 10, Output: 3, CacheRead: 4, Reasoning: 1},
			Parts: []model.Part{
				model.Thinking{Text: "hm", Provider: sig},
				model.Text{Text: "let me see"},
				model.ToolCall{ID: "c1", Name: "shell", Args: `{"command":"ls`},
				model.ToolCall{ID: "c2", Name: "shell", Args: `{"command": "ls"}`, Provider: sig},
				model.ToolCall{ID: "c3", Name: "shell"},
			}},
		{Kind: model.KindRequest, Time: at, Run: "r1", Parts: []model.Part{
			model.Retry{ID: "c1", Name: "shell", Text: "bad JSON"},
			model.ToolReturn{ID: "c2", Name: "shell", Text: "", Files: []model.File{{MediaType: "image/png", Data: []byte("x")}}},
			model.ToolReturn{ID: "c3", Name: "shell", Text: "cut", Outcome: model.Interrupted},
			model.Notice{Reason: "cancelled", Text: "cut short"},
			model.Retry{Text: "not valid"},
		}},
		{Kind: model.KindResponse, Finish: model.Cancelled, Parts: []model.Part{model.File{MediaType: "image/png", Data: []byte("y")}}},
	}
}

func TestHistoryRoundTripsByteForByte(t *testing.T) {
	in := everything()
	if err := model.Validate(in); err != nil {
		t.Fatal(err)
	}
	first, err := model.Encode(in)
	if err != nil {
		t.Fatal(err)
	}
	out, err := model.Decode(first)
	if err != nil {
		t.Fatal(err)
	}
	second, err := model.Encode(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Errorf("bytes differ:\n%s\n%s", first, second)
	}
	if len(out) != len(in) {
		t.Fatalf("%d messages of %d", len(out), len(in))
	}
	if d := cmp.Diff(in[1].Parts, out[1].Parts); d != "" {
		t.Errorf("the parts of a response changed:\n%s", d)
	}
	if !out[0].Time.Equal(in[0].Time) {
		t.Errorf("time %v became %v", in[0].Time, out[0].Time)
	}
	if strings.Contains(string(first), `\u003c`) {
		t.Error("code in histories should be readable: < is escaped")
	}
}

func TestTextThatIsNotUTF8(t *testing.T) {
	in := []model.Message{{Kind: model.KindRequest, Parts: []model.Part{model.UserText("a\xff\xfeb")}}}
	first, err := model.Encode(in)
	if err != nil {
		t.Fatal(err)
	}
	out, err := model.Decode(first)
	if err != nil {
		t.Fatal(err)
	}
	second, err := model.Encode(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Errorf("bytes differ:\n%q\n%q", first, second)
	}
	if got := out[0].Parts[0].(model.User).Text(); got != "a\uFFFDb" {
		t.Errorf("text is %q", got)
	}
}

func TestDecodeRefusesWhatItDoesNotKnow(t *testing.T) {
	for name, data := range map[string]string{
		"no JSON":         `{`,
		"no version":      `{"messages":[]}`,
		"newer version":   `{"version":2,"messages":[]}`,
		"more fields":     `{"version":1,"messages":[],"x":1}`,
		"message field":   `{"version":1,"messages":[{"kind":"request","parts":[],"x":1}]}`,
		"kind":            `{"version":1,"messages":[{"kind":"other","parts":[]}]}`,
		"part type":       `{"version":1,"messages":[{"kind":"request","parts":[{"type":"video"}]}]}`,
		"part field":      `{"version":1,"messages":[{"kind":"request","parts":[{"type":"notice","text":"x","reason":"y","z":1}]}]}`,
		"wrong data":      `{"version":1,"messages":[{"kind":"request","parts":[{"type":"notice","text":5}]}]}`,
		"after the end":   `{"version":1,"messages":[]} {}`,
		"a list":          `[]`,
		"null part":       `{"version":1,"messages":[{"kind":"request","parts":[null]}]}`,
		"message is null": `{"version":1,"messages":[null]}`,
	} {
		if got, err := model.Decode([]byte(data)); err == nil {
			if name == "message is null" && model.Validate(got) != nil {
				continue // JSON's null is the zero message, which Validate refuses
			}
			t.Errorf("%s: decoded to %v", name, got)
		} else if !errors.Is(err, model.ErrHistory) {
			t.Errorf("%s: error %q does not match ErrHistory", name, err)
		}
	}
}

func TestValidate(t *testing.T) {
	call := func(id string) model.Message {
		return model.Message{Kind: model.KindResponse, Parts: []model.Part{model.ToolCall{ID: id, Name: "t"}}}
	}
	request := func(parts ...model.Part) model.Message {
		return model.Message{Kind: model.KindRequest, Parts: parts}
	}
	ret := func(id string) model.Part { return model.ToolReturn{ID: id, Name: "t"} }
	for _, c := range []struct {
		name     string
		messages []model.Message
		want     string // "" means valid
	}{
		{"empty", nil, ""},
		{"two requests", []model.Message{request(model.UserText("a")), request(model.UserText("b"))}, ""},
		{"answered", []model.Message{call("1"), request(ret("1"))}, ""},
		{"answered by retry", []model.Message{call("1"), request(model.Retry{ID: "1", Name: "t"})}, ""},
		{"the same id in a later response", []model.Message{call("1"), request(ret("1")), call("1"), request(ret("1"))}, ""},
		{"open at the end", []model.Message{call("1")}, "has no result"},
		{"open before a response", []model.Message{call("1"), call("2"), request(ret("2"))}, "has no result"},
		{"open after a request", []model.Message{call("1"), request(model.UserText("x")), request(ret("1"))}, "has no result"},
		{"answered twice", []model.Message{call("1"), request(ret("1"), ret("1"))}, "answers no call"},
		{"answers nothing", []model.Message{request(ret("1"))}, "answers no call"},
		{"no id", []model.Message{call(""), request(ret(""))}, "has no id"},
		{"one id twice", []model.Message{{Kind: model.KindResponse, Parts: []model.Part{model.ToolCall{ID: "1"}, model.ToolCall{ID: "1"}}}}, "two tool calls"},
		{"part of the other kind", []model.Message{request(model.Text{Text: "x"})}, "does not belong"},
		{"no kind", []model.Message{{}}, "is not a kind"},
		{"nil part", []model.Message{{Kind: model.KindRequest, Parts: []model.Part{nil}}}, "is nil"},
	} {
		err := model.Validate(c.messages)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, model.ErrHistory)):
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
	}
}

func TestFromClientTakesAwayWhatAClientMustNotDecide(t *testing.T) {
	got := model.FromClient(everything())
	data, err := model.Encode(got)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"workspace", "be brief", "notice", "signature", "thinking"} {
		if strings.Contains(string(data), bad) {
			t.Errorf("%q is left: %s", bad, data)
		}
	}
	if model.LatestWorkspace(got) != nil {
		t.Error("a workspace is left")
	}
	if err := model.Validate(got); err != nil {
		t.Error(err)
	}
	if everything()[1].Workspace == nil || len(everything()[0].Parts) != 2 {
		t.Error("the original was changed")
	}
}

func FuzzDecode(f *testing.F) {
	seed, err := model.Encode(everything())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"version":1,"messages":[{"kind":"request","parts":[{"type":"user","content":null}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		messages, err := model.Decode(data)
		if err != nil {
			return
		}
		first, err := model.Encode(messages)
		if err != nil {
			return // raw provider data need not be valid once taken apart
		}
		again, err := model.Decode(first)
		if err != nil {
			t.Fatalf("what was encoded cannot be decoded: %v\n%s", err, first)
		}
		second, err := model.Encode(again)
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%v\n%s\n%s", err, first, second)
		}
	})
}
