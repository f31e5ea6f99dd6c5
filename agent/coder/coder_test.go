package coder_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/coder"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/agent/shell"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/hostdir"
)

func folder(t *testing.T, files map[string]string) (*hostdir.Dir, string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d, err := hostdir.New(dir, hostdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return d, dir
}

// fix is the model's side of a whole piece of work: look, find the fault, fix
// it, and see that the test passes.
const fix = `{"steps": [
	{"text": "Let me look.", "calls": [{"tool": "list_files"}, {"tool": "shell", "args": {"command": "sh test.sh"}}]},
	{"expect": "add\\.sh\ntest\\.sh.*FAIL: 2 \\+ 3 is -1.*\\[exit code: 1\\]", "calls": [{"tool": "grep", "args": {"pattern": "- \\$2"}}, {"tool": "read_file", "args": {"path": "add.sh"}}]},
	{"expect": "add.sh:1:echo \\$\\(\\( \\$1 - \\$2 \\)\\)", "calls": [{"tool": "edit_file", "raw": "{\"path\": \"add.sh\", \"old_text\": \"- $2\", \"new_text\": \"+ $2\",}"}]},
	{"expect": "Edited add.sh: 1 replacement", "calls": [{"tool": "shell", "args": {"command": "sh test.sh"}}]},
	{"expect": "PASS", "text": "Fixed: add.sh subtracted."},
	{"calls": [{"tool": "write_file", "args": {"path": "NOTES", "content": "fixed\n"}}]},
	{"expect": "Created NOTES", "text": "Noted."}
]}`

func TestEditTestFix(t *testing.T) {
	d, _ := folder(t, map[string]string{
		"add.sh":  "echo $(( $1 - $2 ))\n",
		"test.sh": "got=$(sh add.sh 2 3)\nif [ \"$got\" = 5 ]; then echo PASS; else echo \"FAIL: 2 + 3 is $got\"; exit 1; fi\n",
	})
	m, err := scripted.Parse("fix", []byte(fix))
	if err != nil {
		t.Fatal(err)
	}
	a := agent.New(m, coder.New(coder.Options{NoRepoContext: true}))
	res, err := a.Run(t.Context(), "The test fails. Fix it.", agent.WithWorkspace(d))
	if err != nil {
		t.Fatal(err)
	}
	if res.Output != "Fixed: add.sh subtracted." {
		t.Errorf("%q", res.Output)
	}
	// In another process: the script, the history and the folder are all there is.
	data, err := model.Encode(res.Messages())
	if err != nil {
		t.Fatal(err)
	}
	history, err := model.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	more, err := a.Run(t.Context(), "Leave a note.", agent.WithHistory(history), agent.WithWorkspace(d))
	if err != nil || more.Output != "Noted." {
		t.Errorf("%+v, %v", more, err)
	}
}

func tools(t *testing.T, ws workspace.Backend, opt coder.Options) (names []string, instructions string) {
	t.Helper()
	m := scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		for _, tool := range req.Tools {
			names = append(names, tool.Name)
			if len(tool.Description) < 40 {
				t.Errorf("%s is hardly described: %q", tool.Name, tool.Description)
			}
		}
		instructions = req.Instructions
		return scripted.Say("ok"), nil
	})
	if _, err := agent.New(m, coder.New(opt)).Run(t.Context(), "go", agent.WithWorkspace(ws)); err != nil {
		t.Fatal(err)
	}
	return names, instructions
}

func TestComposition(t *testing.T) {
	d, _ := folder(t, map[string]string{"AGENTS.md": "Use tabs."})
	names, text := tools(t, d, coder.Options{Instructions: "Be kind."})
	if dd := cmp.Diff([]string{"read_file", "write_file", "edit_file", "list_files", "grep", "shell", "delegate_task"}, names); dd != "" {
		t.Error(dd)
	}
	for _, want := range []string{"You are a coding agent", "Be kind.", "Use tabs."} {
		if !strings.Contains(text, want) {
			t.Errorf("the instructions lack %q", want)
		}
	}
	names, text = tools(t, workspace.ReadOnly(d), coder.Options{NoSubAgents: true, NoRepoContext: true})
	if dd := cmp.Diff([]string{"read_file", "list_files", "grep"}, names); dd != "" {
		t.Error(dd)
	}
	if strings.Contains(text, "Use tabs.") {
		t.Error("the repository's instructions were not wanted")
	}
	_, err := agent.New(scripted.Sequence(scripted.Say("x")), coder.New(coder.Options{})).Run(t.Context(), "go")
	if !errors.Is(err, agent.ErrUsage) || !strings.Contains(err.Error(), "coder needs a workspace") {
		t.Errorf("error %v", err)
	}
}

func TestLimitsOfTheCallerCount(t *testing.T) {
	d, _ := folder(t, nil)
	for _, c := range []struct {
		caps []agent.Capability
		want int64
	}{
		{[]agent.Capability{coder.New(coder.Options{})}, coder.MaxRequests},
		{[]agent.Capability{agent.Config{Limits: agent.Limits{Requests: 7}}, coder.New(coder.Options{})}, 7},
		{[]agent.Capability{coder.New(coder.Options{}), agent.Config{Limits: agent.Limits{Requests: 7}}}, 7},
	} {
		var got int64
		hook := agent.Hooks{BeforeRun: func(_ context.Context, r *agent.Run) error { got = r.Limits().Requests; return nil }}
		if _, err := agent.New(scripted.Sequence(scripted.Say("x")), append(c.caps, hook)...).Run(t.Context(), "go", agent.WithWorkspace(d)); err != nil {
			t.Fatal(err)
		}
		if got != c.want {
			t.Errorf("%d requests, want %d", got, c.want)
		}
	}
}

// TestCancellingStopsADelegatesCommand: nothing outlives the run that it
// belongs to.
func TestCancellingStopsADelegatesCommand(t *testing.T) {
	d, dir := folder(t, nil)
	m, err := scripted.Parse("delegate", []byte(`{
		"steps": [{"calls": [{"tool": "delegate_task", "args": {"task": "inner"}}]}],
		"others": [{"when": "^inner", "steps": [{"calls": [{"tool": "shell", "args": {"command": "echo $$ >pid; echo begun; sleep 7010"}}]}]}]
	}`))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for e, rerr := range agent.New(m, coder.New(coder.Options{NoRepoContext: true})).Stream(ctx, "go", agent.WithWorkspace(d)) {
		if n, ok := e.(agent.Nested); ok {
			if o, ok := n.Event.(shell.Output); ok && strings.Contains(o.Data, "begun") {
				cancel()
			}
		}
		err = rerr
	}
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	pid, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); os.IsNotExist(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the command still runs")
		}
		time.Sleep(20 * time.Millisecond)
	}
}
