package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/agent/model"
)

// script writes a scripted model and returns what --model takes.
func script(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "script.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "scripted:" + file
}

// TestAgentTalks is a conversation at a terminal: two prompts in one box,
// Ctrl-C that stops a run and not the conversation, a failure, and the end.
func TestAgentTalks(t *testing.T) {
	t.Parallel()
	m := script(t, `{"steps": [
		{"text": "I start.", "calls": [{"tool": "shell", "args": {"command": "echo kept >note; echo waiting; sleep 100"}}]},
		{"expect": "", "text": "Go on?"},
		{"calls": [{"tool": "shell", "args": {"command": "cat note"}}]},
		{"expect": "kept", "text": "It says \u001b[31mred."}
	]}`)
	talk := filepath.Join(t.TempDir(), "talk.json")
	s := onTerminal(t, newTestWorld(t), "agent", "--model", m, "--resume", talk)
	s.await("> ")
	s.typeIn("begin\n")
	s.await("| waiting")
	s.signals <- syscall.SIGINT
	s.await("stopped; the conversation is kept")
	s.typeIn("\n") // nothing said is no prompt
	s.typeIn("what now?\n")
	s.await("Go on?")
	s.typeIn("read it\n")
	s.await(`It says \x1b[31mred.`) // nothing that a model says steers the terminal
	s.typeIn("more\n")
	s.await("the script has 4 steps")
	s.typeIn("\x04")
	s.ends(ExitOK)
	if strings.Count(s.shown.String(), "creating box") != 1 {
		t.Errorf("not one box:\n%s", s.shown.String())
	}
	data, err := os.ReadFile(talk)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := model.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := model.Validate(messages); err != nil {
		t.Error(err)
	}
	var notices []string
	for _, msg := range messages {
		for _, p := range msg.Parts {
			if n, ok := p.(model.Notice); ok {
				notices = append(notices, n.Reason)
			}
		}
	}
	if d := cmp.Diff([]string{"cancelled", "error"}, notices); d != "" {
		t.Errorf("what the conversation says about the ends of runs:\n%s", d)
	}
}

// TestAgentEndsAtThePrompt is Ctrl-C when nothing runs, and SIGTERM when
// something does.
func TestAgentEndsAtThePrompt(t *testing.T) {
	t.Parallel()
	m := script(t, `{"steps": [{"calls": [{"tool": "shell", "args": {"command": "echo waiting; sleep 100"}}]}]}`)
	s := onTerminal(t, newTestWorld(t), "agent", "--model", m, "--resume", filepath.Join(t.TempDir(), "a.json"))
	s.await("> ")
	s.signals <- syscall.SIGINT
	s.ends(130)

	s = onTerminal(t, newTestWorld(t), "agent", "--model", m, "--resume", filepath.Join(t.TempDir(), "b.json"))
	s.await("> ")
	s.typeIn("go\n")
	s.await("| waiting")
	s.signals <- syscall.SIGTERM
	s.ends(143)
	s.await("go on: hutch agent --resume")
}

func TestHistoryOfAnotherProgramStays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "talk.json")
	mine := []model.Message{{Kind: model.KindRequest, Parts: []model.Part{model.User{Content: []model.Content{{Text: "mine"}}}}}}
	h, err := openHistory(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.save(mine); err != nil {
		t.Fatal(err)
	}
	if err := h.save(mine); err != nil || h.file != file {
		t.Fatalf("it moved to %s by itself, %v", h.file, err)
	}
	if err := os.WriteFile(file, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := h.save(mine); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(file); string(data) != "theirs" {
		t.Errorf("the other program's file holds %q", data)
	}
	if again, err := openHistory(h.file); err != nil || len(again.messages) != 1 || h.file == file {
		t.Errorf("mine is in %s: %v", h.file, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%d files, want 2: %v", len(entries), err)
	}
}

func TestParseFolder(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want folderFlag
		ok   bool
	}{
		{".", folderFlag{".", "copy"}, true},
		{".:ro", folderFlag{".", "ro"}, true},
		{"a:b:rw", folderFlag{"a:b", "rw"}, true},
		{"/x:copy", folderFlag{"/x", "copy"}, true},
		{"a:b", folderFlag{}, false},
		{":ro", folderFlag{}, false},
		{"", folderFlag{}, false},
	} {
		got, err := parseFolder(tt.in)
		if (err == nil) != tt.ok || tt.ok && got != tt.want {
			t.Errorf("%q is %+v, %v", tt.in, got, err)
		}
	}
}
