package fantasy_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/fantasy"
)

func ask(text string) *model.Request {
	return &model.Request{
		Instructions: "be brief",
		Messages:     []model.Message{{Kind: model.KindRequest, Parts: []model.Part{model.UserText(text)}}},
		Tools: []model.Tool{{Name: "look", Description: "look at it", Schema: json.RawMessage(
			`{"type":"object","properties":{"path":{"type":"string","description":"where"}},"required":["path"],"additionalProperties":false}`)}},
	}
}

func TestStreaming(t *testing.T) {
	for _, w := range wires() {
		t.Run(w.name, func(t *testing.T) {
			s := serve(t, w, reply{thinking: "hm, let me see", text: "hello there", calls: [][2]string{{"look", `{"path":"a.go"}`}, {"look", `{"path":"b.go"}`}}})
			var text, thinking strings.Builder
			var res *model.Response
			for d, err := range s.open(t).Stream(t.Context(), ask("hi")) {
				if err != nil {
					t.Fatal(err)
				}
				text.WriteString(d.Text)
				thinking.WriteString(d.Thinking)
				res = d.Response
			}
			if text.String() != "hello there" || res == nil || res.Text() != "hello there" {
				t.Fatalf("text %q, response %+v", text.String(), res)
			}
			var calls []model.ToolCall
			var thought *model.Thinking
			for _, p := range res.Parts {
				switch p := p.(type) {
				case model.ToolCall:
					calls = append(calls, p)
				case model.Thinking:
					thought = &p
				}
			}
			if len(calls) != 2 || calls[0].Name != "look" || calls[0].Args != `{"path":"a.go"}` || calls[1].Args != `{"path":"b.go"}` || calls[0].ID == "" || calls[0].ID == calls[1].ID {
				t.Errorf("calls %+v", calls)
			}
			if res.Finish != model.ToolCalls {
				t.Errorf("finish %q", res.Finish)
			}
			if res.Usage.Input != 130 || res.Usage.Output != 7 || res.Usage.CacheRead != 100 {
				t.Errorf("usage %+v", res.Usage)
			}
			thinks := w.name == "anthropic" || w.name == "openai" || w.name == "google"
			if thinks && (thought == nil || thought.Text != "hm, let me see" || len(thought.Provider) == 0 || thinking.String() != "hm, let me see") {
				t.Errorf("thinking %+v, streamed %q", thought, thinking.String())
			}
			if got := w.key(s.headers[0]); got != testKey {
				t.Errorf("the key sent is %q", got)
			}

			// The conversation goes on: with what came, and its results.
			req := ask("hi")
			req.Messages = append(req.Messages,
				model.Message{Kind: model.KindResponse, Parts: res.Parts},
				model.Message{Kind: model.KindRequest, Parts: []model.Part{
					model.ToolReturn{ID: calls[0].ID, Name: "look", Text: "RESULT-A"},
					model.Retry{ID: calls[1].ID, Name: "look", Text: "RETRY-B"},
					model.Notice{Reason: "x", Text: "NOTICE-C"}}})
			s.replies = append(s.replies, reply{text: "done"})
			res, err := s.open(t).Generate(t.Context(), req)
			if err != nil || res.Text() != "done" || res.Finish != model.Stop {
				t.Fatalf("%+v, %v", res, err)
			}
			sent, err := json.Marshal(s.requests[1])
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"be brief", "RESULT-A", "RETRY-B", "NOTICE-C", "a.go", "look at it", "hello there"} {
				if !strings.Contains(string(sent), want) {
					t.Errorf("the second request lacks %q: %s", want, sent)
				}
			}
			if !strings.Contains(string(sent), `"required":["path"]`) {
				t.Errorf("the schema's required properties were lost: %s", sent)
			}
			switch w.name {
			case "anthropic", "google":
				if !strings.Contains(string(sent), "c2ln") {
					t.Errorf("the signature of the thinking was not sent back: %s", sent)
				}
			}
		})
	}
}

func TestErrors(t *testing.T) {
	for _, w := range wires() {
		for _, c := range []struct {
			name     string
			replies  []reply
			want     []string // in the error; nil means success
			requests int
			status   int
		}{
			{"wrong key", []reply{{status: 401, body: w.error("invalid x-api-key " + testKey)}}, []string{"invalid x-api-key [key]", "HTTP 401"}, 1, 401},
			{"bad request", []reply{{status: 400, body: w.error("no such thing")}}, []string{"no such thing"}, 1, 400},
			{"no such model", []reply{{status: 404, body: w.error("not found")}}, []string{"check the model's name"}, 1, 404},
			{"rate limit, then fine", []reply{{status: 429, header: map[string]string{"retry-after-ms": "1"}, body: w.error("slow down")}, {text: "ok"}}, nil, 2, 0},
			{"rate limit for ever", []reply{{status: 429, body: w.error("slow down")}, {status: 429, body: w.error("slow down")}, {status: 429, body: w.error("slow down")}}, []string{"slow down", "after 3 attempts", "limits the rate"}, 3, 429},
			{"server fails, then fine", []reply{{status: 500, body: w.error("oops")}, {status: 503, body: w.error("oops")}, {text: "ok"}}, nil, 3, 0},
			{"cut in the middle, then fine", []reply{{text: "half of it", cut: true}, {text: "ok"}}, nil, 2, 0},
			{"cut for ever", []reply{{text: "half", cut: true}, {text: "half", cut: true}, {text: "half", cut: true}}, []string{"after 3 attempts"}, 3, 0},
			{"error in the middle, then fine", []reply{{text: "half of it", midError: true}, {text: "ok"}}, nil, 2, 0},
		} {
			t.Run(w.name+"/"+c.name, func(t *testing.T) {
				s := serve(t, w, c.replies...)
				var kept strings.Builder
				restarts := 0
				var res *model.Response
				var err error
				for d, serr := range s.open(t).Stream(t.Context(), ask("hi")) {
					if serr != nil {
						err = serr
						break
					}
					if d.Restart {
						restarts++
						kept.Reset()
					}
					kept.WriteString(d.Text)
					res = d.Response
				}
				if len(s.requests) != c.requests {
					t.Errorf("%d requests, want %d (%v)", len(s.requests), c.requests, err)
				}
				if c.want == nil {
					if err != nil || res == nil || res.Text() != "ok" || kept.String() != "ok" || restarts != c.requests-1 {
						t.Errorf("%+v, %v; kept %q, %d restarts", res, err, kept.String(), restarts)
					}
					return
				}
				if err == nil {
					t.Fatal("no error")
				}
				for _, want := range c.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %q lacks %q", err, want)
					}
				}
				if strings.Contains(err.Error(), testKey) {
					t.Errorf("the key is in the error: %v", err)
				}
				var merr *model.Error
				if !errors.As(err, &merr) || merr.Status != c.status {
					t.Errorf("error %#v, want status %d", err, c.status)
				}
			})
		}
	}
}

func TestFinishReasons(t *testing.T) {
	length := map[string]string{"anthropic": "max_tokens", "openai": "max_output_tokens", "google": "MAX_TOKENS"}
	for _, w := range wires() {
		finish := length[w.name]
		if finish == "" {
			finish = "length"
		}
		s := serve(t, w, reply{text: "and so", finish: finish})
		res, err := s.open(t).Generate(t.Context(), ask("hi"))
		if err != nil || res.Finish != model.Length || res.Text() != "and so" {
			t.Errorf("%s: %+v, %v", w.name, res, err)
		}
	}
}

func TestCancel(t *testing.T) {
	for _, w := range wires() {
		ctx, cancel := context.WithCancel(t.Context())
		s := serve(t, w, reply{status: 503, header: map[string]string{"retry-after": "60"}, body: w.error("wait")})
		m := s.open(t)
		var err error
		for d, serr := range m.Stream(ctx, ask("hi")) {
			err = serr
			if d.Restart {
				cancel() // while it would wait for a minute
			}
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v", w.name, err)
		}
		cancel()
	}
}

// TestMalformedArguments: the agent tells the model, and what is sent back is
// something that the provider takes.
func TestMalformedArguments(t *testing.T) {
	for _, w := range wires() {
		if w.name == "google" {
			continue // its arguments are an object on the wire
		}
		t.Run(w.name, func(t *testing.T) {
			s := serve(t, w,
				reply{calls: [][2]string{{"look", `{"path": "a.go`}}},
				reply{calls: [][2]string{{"look", `{"path":"a.go"}`}}},
				reply{text: "done"})
			type args struct {
				Path string `json:"path"`
			}
			looked := 0
			look := agent.NewTool("look", "look at it", func(_ context.Context, _ *agent.Call, a args) (string, error) {
				looked++
				return "seen " + a.Path, nil
			})
			res, err := agent.New(s.open(t), look).Run(t.Context(), "go")
			if err != nil || res.Output != "done" || looked != 1 {
				t.Fatalf("%+v, %v, looked %d times", res, err, looked)
			}
			sent, err := json.Marshal(s.requests[1])
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(sent), "not valid JSON") || !strings.Contains(string(sent), "malformed_arguments") {
				t.Errorf("the model does not see what was wrong: %s", sent)
			}
		})
	}
}

func TestPromptCaching(t *testing.T) {
	marks := func(v any) int {
		n := 0
		var walk func(any)
		walk = func(v any) {
			switch v := v.(type) {
			case map[string]any:
				if v["cache_control"] != nil {
					n++
				}
				for _, x := range v {
					walk(x)
				}
			case []any:
				for _, x := range v {
					walk(x)
				}
			}
		}
		walk(v)
		return n
	}
	long := ask("one")
	for i := range 4 {
		id := string(rune('a' + i))
		long.Messages = append(long.Messages,
			model.Message{Kind: model.KindResponse, Parts: []model.Part{model.ToolCall{ID: id, Name: "look", Args: `{"path":"x"}`}}},
			model.Message{Kind: model.KindRequest, Parts: []model.Part{model.ToolReturn{ID: id, Name: "look", Text: "y"}}})
	}
	for _, w := range wires() {
		s := serve(t, w, reply{text: "a"}, reply{text: "b"})
		m := s.open(t)
		if _, err := m.Generate(t.Context(), long); err != nil {
			t.Fatalf("%s: %v", w.name, err)
		}
		off := *long
		off.Settings.NoCache = true
		if _, err := m.Generate(t.Context(), &off); err != nil {
			t.Fatalf("%s: %v", w.name, err)
		}
		got := marks(s.requests[0])
		if w.name == "anthropic" && got != 4 || w.name == "openrouter" && (got == 0 || got > 4) || w.name != "anthropic" && w.name != "openrouter" && got != 0 {
			t.Errorf("%s: %d marks for the cache", w.name, got)
		}
		if got := marks(s.requests[1]); got != 0 {
			t.Errorf("%s: %d marks although it is off", w.name, got)
		}
	}
}

func TestImages(t *testing.T) {
	for _, w := range wires() {
		s := serve(t, w, reply{text: "a cat"})
		req := ask("what is it?")
		req.Messages[0].Parts = []model.Part{model.User{Content: []model.Content{{Text: "what is it?"}, {File: &model.File{MediaType: "image/png", Data: []byte("PNGDATA")}}}}}
		if _, err := s.open(t).Generate(t.Context(), req); err != nil {
			t.Fatalf("%s: %v", w.name, err)
		}
		sent, err := json.Marshal(s.requests[0])
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(sent), "UE5HREFUQQ") {
			t.Errorf("%s: the picture was not sent: %s", w.name, sent)
		}
	}
}

func TestConfiguration(t *testing.T) {
	env := func(pairs ...string) func(string) string {
		return func(name string) string {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i] == name {
					return pairs[i+1]
				}
			}
			return ""
		}
	}
	for _, c := range []struct {
		name string
		env  func(string) string
		want string // in the error; empty means fine
	}{
		{"anthropic:claude-x", env(), "set ANTHROPIC_API_KEY"},
		{"anthropic:claude-x", env("ANTHROPIC_API_KEY", "k"), ""},
		{"openai:gpt-5", env(), "set OPENAI_API_KEY"},
		{"openai-chat:gpt-5", env("OPENAI_API_KEY", "k"), ""},
		{"google:gemini", env(), "set GEMINI_API_KEY or GOOGLE_API_KEY"},
		{"google:gemini", env("GOOGLE_API_KEY", "k"), ""},
		{"openrouter:x/y", env(), "set OPENROUTER_API_KEY"},
		{"groq:x", env("GROQ_API_KEY", "k"), ""},
		{"openai-compatible:x", env(), "set OPENAI_COMPATIBLE_BASE_URL"},
		{"openai-compatible:x", env("OPENAI_COMPATIBLE_BASE_URL", "http://h/v1"), ""},
		{"ollama:qwen", env(), ""},
		{"claude-opus-5-5", env(), "for example anthropic:claude-opus-5-5"},
		{"gpt-5", env(), "openai:gpt-5"},
		{"", env(), "no model's name"},
		{"anthropic:", env(), "no model's name"},
		{"acme:x", env(), `no provider "acme"; there are anthropic`},
	} {
		_, err := fantasy.New(c.name, fantasy.Options{Getenv: c.env})
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (!errors.Is(err, fantasy.ErrConfig) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
	}
	seen := map[string]bool{}
	for _, p := range fantasy.Providers() {
		if seen[p.Name] || p.Example == "" || len(p.Keys) == 0 && !p.Local {
			t.Errorf("provider %+v", p)
		}
		seen[p.Name] = true
		if m, err := fantasy.New(p.Name+":"+p.Example, fantasy.Options{APIKey: "k", BaseURL: "http://127.0.0.1:1", Getenv: env()}); err != nil || m.Name() != p.Name+":"+p.Example {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
}

func TestOllamaHost(t *testing.T) {
	s := serve(t, wires()[6], reply{text: "ok"})
	m, err := fantasy.New("ollama:qwen", fantasy.Options{Getenv: func(name string) string {
		if name == "OLLAMA_HOST" {
			return strings.TrimPrefix(s.URL, "http://")
		}
		return ""
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Generate(t.Context(), ask("hi")); err != nil {
		t.Fatal(err)
	}
	if s.paths[0] != "/v1/chat/completions" || bearer(s.headers[0]) == testKey {
		t.Errorf("path %s, key %q", s.paths[0], bearer(s.headers[0]))
	}
}

func TestNobodyThere(t *testing.T) {
	for _, w := range wires() {
		m, err := fantasy.New(w.name+":"+w.model, fantasy.Options{APIKey: testKey, BaseURL: "http://127.0.0.1:1", Attempts: 1, Client: &http.Client{}, Getenv: func(string) string { return "" }})
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Generate(t.Context(), ask("hi"))
		var merr *model.Error
		if !errors.As(err, &merr) || strings.Contains(err.Error(), testKey) {
			t.Errorf("%s: %v", w.name, err)
		}
	}
}
