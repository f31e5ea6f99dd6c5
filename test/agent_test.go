package test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

// anthropic is a server that speaks Anthropic's wire format and plays a model's
// side of one conversation.
type anthropic struct {
	*httptest.Server
	turns []turn

	mu   sync.Mutex
	said []string // what was wrong with requests
	n    int
}

// turn is one response of the model.
type turn struct {
	expect string // is in the last message of the request
	text   string
	tool   string
	args   any
}

const anthropicKey = "sk-ant-test-0123456789"

func newAnthropic(t *testing.T, turns ...turn) *anthropic {
	a := &anthropic{turns: turns}
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(a.Close)
	return a
}

func (a *anthropic) serve(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Model    string
		Stream   bool
		System   json.RawMessage
		Messages []json.RawMessage
		Tools    []struct{ Name string }
	}
	data, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(data, &req)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.n
	a.n++
	wrong := func(format string, args ...any) {
		a.said = append(a.said, fmt.Sprintf("request %d: ", n)+fmt.Sprintf(format, args...))
	}
	switch {
	case err != nil || len(req.Messages) == 0:
		wrong("%v: %.200s", err, data)
		http.Error(w, `{"type":"error","error":{"type":"invalid_request_error","message":"bad"}}`, http.StatusBadRequest)
		return
	case n >= len(a.turns):
		wrong("there are only %d turns", len(a.turns))
		http.Error(w, `{"type":"error","error":{"type":"invalid_request_error","message":"no more"}}`, http.StatusBadRequest)
		return
	case r.URL.Path != "/v1/messages" || r.Header.Get("X-Api-Key") != anthropicKey || !req.Stream || req.Model != "claude-opus-5-5" || len(req.Tools) < 6:
		wrong("%s, model %s, stream %v, %d tools", r.URL.Path, req.Model, req.Stream, len(req.Tools))
	}
	turn := a.turns[n]
	if last := string(req.Messages[len(req.Messages)-1]); !strings.Contains(last, turn.expect) {
		wrong("the last message lacks %q: %s", turn.expect, ends(last))
	}
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(name, format string, args ...any) {
		fmt.Fprintf(w, "event: %s\ndata: "+format+"\n\n", append([]any{name}, args...)...)
		w.(http.Flusher).Flush()
	}
	event("message_start", `{"type":"message_start","message":{"id":"msg_%d","type":"message","role":"assistant","model":"claude-opus-5-5","content":[],"stop_reason":null,"usage":{"input_tokens":10,"output_tokens":1}}}`, n)
	block, stop := 0, "end_turn"
	if turn.text != "" {
		event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`)
		for _, part := range []string{turn.text[:len(turn.text)/2], turn.text[len(turn.text)/2:]} {
			event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%s}}`, quoted(part))
		}
		event("content_block_stop", `{"type":"content_block_stop","index":0}`)
		block++
	}
	if turn.tool != "" {
		stop = "tool_use"
		args, _ := json.Marshal(turn.args)
		event("content_block_start", `{"type":"content_block_start","index":%d,"content_block":{"type":"tool_use","id":"toolu_%d","name":%q,"input":{}}}`, block, n, turn.tool)
		for _, part := range []string{string(args[:len(args)/2]), string(args[len(args)/2:])} {
			event("content_block_delta", `{"type":"content_block_delta","index":%d,"delta":{"type":"input_json_delta","partial_json":%s}}`, block, quoted(part))
		}
		event("content_block_stop", `{"type":"content_block_stop","index":%d}`, block)
	}
	event("message_delta", `{"type":"message_delta","delta":{"stop_reason":%q},"usage":{"output_tokens":20}}`, stop)
	event("message_stop", `{"type":"message_stop"}`)
}

func quoted(s string) string {
	data, _ := json.Marshal(s)
	return string(data)
}

// TestAgentMendsARepository is the whole way from a provider's wire to a file of
// the user's: a failing test is found, mended and run again in a box of a real
// distribution, the change is taken over, and the conversation goes on.
func TestAgentMendsARepository(t *testing.T) {
	realengine.Need(t, "gvisor")
	if testing.Short() {
		t.Skip("a real image takes its time")
	}
	h := newHome(t)
	h.ok(t, "image", "load", "-i", debianImage(t))
	repo := t.TempDir()
	for name, text := range map[string]string{
		"calc.py":      "def add(a, b):\n    return a - b\n",
		"test_calc.py": "import unittest\nfrom calc import add\n\nclass Test(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n",
		"AGENTS.md":    "Tests are run with python3 -m unittest.\n",
		".git/config":  "[core]\n",
	} {
		p := filepath.Join(repo, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	unittest := map[string]any{"command": "PYTHONDONTWRITEBYTECODE=1 python3 -m unittest"}
	a := newAnthropic(t,
		turn{expect: "Fix the failing test.", text: "I run the tests first.", tool: "shell", args: unittest},
		turn{expect: "-1 != 5", tool: "read_file", args: map[string]any{"path": "calc.py"}},
		turn{expect: "return a - b", text: "It subtracts.", tool: "edit_file", args: map[string]any{"path": "calc.py", "old_text": "a - b", "new_text": "a + b"}},
		turn{expect: "calc.py", tool: "shell", args: unittest},
		turn{expect: "OK", text: "The test passes: add subtracted."},
		turn{expect: "And what did you change?", tool: "shell", args: map[string]any{"command": "grep return calc.py; git --version; rg --files"}},
		turn{expect: "return a + b", text: "One line of calc.py."},
	)
	talk := filepath.Join(t.TempDir(), "talk.json")
	agent := func(args ...string) result {
		t.Helper()
		cmd := h.command(t, append([]string{"agent"}, args...)...)
		cmd.Env = append(cmd.Env, "ANTHROPIC_API_KEY="+anthropicKey, "ANTHROPIC_BASE_URL="+a.URL)
		return finish(t, cmd)
	}
	r := agent("--image", "dev", "--dir", repo, "--resume", talk, "-p", "Fix the failing test.")
	if r.code != 0 || r.stdout != "I run the tests first.\nIt subtracts.\nThe test passes: add subtracted.\n" {
		t.Errorf("the first run: %v", r)
	}
	for _, part := range []string{"* shell PYTHONDONTWRITEBYTECODE=1 python3 -m unittest", "| AssertionError: -1 != 5", "* edit_file calc.py", "+    return a + b", "| OK"} {
		if !strings.Contains(r.stderr, part) {
			t.Errorf("it does not show %q", part)
		}
	}
	if strings.Contains(r.stderr, anthropicKey) {
		t.Error("the key is shown")
	}
	if data, _ := os.ReadFile(filepath.Join(repo, "calc.py")); !strings.Contains(string(data), "a - b") {
		t.Error("the user's file was changed before he took the change over")
	}
	cmd := h.command(t, "agent", "apply")
	cmd.Dir = repo
	if r := finish(t, cmd); r.code != 0 || !strings.Contains(r.stdout, "-    return a - b\n+    return a + b\n") || strings.Count(r.stdout, "diff --git") != 1 {
		t.Errorf("apply: %v", r)
	}
	if data, _ := os.ReadFile(filepath.Join(repo, "calc.py")); string(data) != "def add(a, b):\n    return a + b\n" {
		t.Errorf("after apply the file holds %q", data)
	}
	r = agent("--resume", talk, "-p", "And what did you change?")
	if r.code != 0 || r.stdout != "One line of calc.py.\n" || strings.Contains(r.stderr, "creating box") {
		t.Errorf("the follow-up: %v", r)
	}
	if data, err := os.ReadFile(talk); err != nil || strings.Contains(string(data), anthropicKey) {
		t.Errorf("the conversation: %v, or the key is in it", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.said {
		t.Error(s)
	}
	if a.n != len(a.turns) {
		t.Errorf("%d requests, want %d", a.n, len(a.turns))
	}

	// Without a key it says what to set, before anything is made.
	if r := h.hutch(t, "agent", "-p", "x"); r.code != 2 || !strings.Contains(r.stderr, "set ANTHROPIC_API_KEY") {
		t.Errorf("without a key: %v", r)
	}
}
