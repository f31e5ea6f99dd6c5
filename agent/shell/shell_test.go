package shell_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/filesystem"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/agent/shell"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/hostdir"
)

type args = map[string]any

type bench struct {
	t   *testing.T
	dir string
	ws  workspace.Backend
	cap *shell.Shell
	n   int
}

func setup(t *testing.T, opt shell.Options) *bench {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d, err := hostdir.New(dir, hostdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, dir: dir, ws: d, cap: shell.New(opt)}
}

func call(tool string, a args) *model.Response {
	data, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	return scripted.Call("c", tool, string(data))
}

// run has the model make one call after the other, in one run.
func (b *bench) run(calls ...*model.Response) []model.Part {
	b.t.Helper()
	b.n++
	a := agent.New(scripted.Sequence(append(calls, scripted.Say("ok"))...), b.cap, agent.Config{Retries: 9})
	res, err := a.Run(b.t.Context(), "go", agent.WithWorkspace(b.ws), agent.WithRunID(fmt.Sprintf("%s-%d", b.t.Name(), b.n)))
	if err != nil {
		b.t.Fatal(err)
	}
	var out []model.Part
	for _, m := range res.Messages()[1:] {
		if m.Kind == model.KindRequest {
			out = append(out, m.Parts...)
		}
	}
	return out
}

func (b *bench) ok(tool string, a args) string {
	b.t.Helper()
	p := b.run(call(tool, a))[0]
	r, is := p.(model.ToolReturn)
	if !is || r.Outcome != model.OK {
		b.t.Fatalf("%s %v: %+v", tool, a, p)
	}
	return r.Text
}

func (b *bench) refused(tool string, a args, want string) {
	b.t.Helper()
	p := b.run(call(tool, a))[0]
	r, is := p.(model.Retry)
	if !is || !strings.Contains(r.Text, want) {
		b.t.Errorf("%s %v: %+v, want a retry with %q", tool, a, p, want)
	}
}

func TestRunCommand(t *testing.T) {
	b := setup(t, shell.Options{Env: map[string]string{"HELLO": "there"}})
	for _, c := range []struct{ command, want string }{
		{"echo hi", "[stdout]\nhi"},
		{"true", "(no output)"},
		{"printf hi; printf oops >&2; exit 3", "[stdout]\nhi\n[stderr]\noops\n[exit code: 3]"},
		{"no-such-program-here", "127]"},
		{"cat", "(no output)"},
		{"printf '\\377'", "[stdout]\n\uFFFD"},
		{"kill -9 $$", "[exit code: 137]"},
		{"echo $HELLO", "[stdout]\nthere"},
	} {
		got := b.ok("run_command", args{"command": c.command})
		if got != c.want && !(strings.HasSuffix(c.want, "]") && strings.HasSuffix(got, c.want)) {
			t.Errorf("%s: %q, want %q", c.command, got, c.want)
		}
	}
	if _, err := os.Stat(filepath.Join(b.dir, ".hutch")); err == nil {
		t.Error("short commands left files behind")
	}
	b.refused("run_command", args{"command": " "}, "empty")
	b.refused("run_command", args{"command": "echo a\x00b"}, "NUL")
	b.refused("run_command", args{"command": "true", "timeout_seconds": -1}, "timeout_seconds")
	b.refused("run_command", args{"command": "true", "timeout_seconds": 99999}, "timeout_seconds")
}

// processes lists the commands of living processes that have a text in them.
func processes(t *testing.T, text string) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range dirs {
		data, err := os.ReadFile(d)
		if err == nil && strings.Contains(string(data), text) {
			out = append(out, strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	return out
}

// gone waits until no process has the text in its command.
func gone(t *testing.T, text string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		left := processes(t, text)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: %q", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestATimeoutIsAResult: the model is told, nothing is left, and the next
// command works.
func TestATimeoutIsAResult(t *testing.T) {
	b := setup(t, shell.Options{})
	parts := b.run(
		call("run_command", args{"command": "trap '' TERM; echo begun; sleep 7001 & sleep 7001", "timeout_seconds": 0.5}),
		call("run_command", args{"command": "echo fine"}),
	)
	first, second := parts[0].(model.ToolReturn), parts[1].(model.ToolReturn)
	if first.Outcome != model.OK || !strings.Contains(first.Text, "begun") || !strings.HasSuffix(first.Text, "[Command timed out after 0.5s]") {
		t.Errorf("%+v", first)
	}
	if second.Text != "[stdout]\nfine" {
		t.Errorf("%+v", second)
	}
	gone(t, "sleep\x007001")
}

func TestCancellingTheRunStopsTheCommand(t *testing.T) {
	b := setup(t, shell.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	a := agent.New(scripted.Sequence(call("run_command", args{"command": "echo begun; sleep 7002"})), b.cap)
	var err error
	for e, rerr := range a.Stream(ctx, "go", agent.WithWorkspace(b.ws)) {
		if o, ok := e.(shell.Output); ok && strings.Contains(o.Data, "begun") {
			cancel()
		}
		err = rerr
	}
	cancel()
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	gone(t, "sleep\x007002")
}

// TestLongOutput: a result of 20 MB costs the model the bound at most, and
// every byte of it can be had.
func TestLongOutput(t *testing.T) {
	b := setup(t, shell.Options{})
	got := b.ok("run_command", args{"command": `i=0; while [ $i -lt 20 ]; do head -c 1048575 /dev/zero | tr '\0' a; echo; i=$((i+1)); done; echo the end; echo E >&2; exit 4`})
	if n := len([]rune(got)); n > shell.DefaultMaxOutput {
		t.Errorf("%d characters", n)
	}
	if !strings.Contains(got, "\nthe end\n[stderr]\nE\n") || !strings.HasSuffix(got, "[exit code: 4]") {
		t.Errorf("the end of the result: %q", got[len(got)-600:])
	}
	m := regexp.MustCompile(`in the file (\S+\.stdout): read_file`).FindStringSubmatch(got)
	if m == nil {
		t.Fatalf("no handle to the rest: %q", got[len(got)-600:])
	}
	const whole = 20*1048576 + len("the end\n")
	data, err := os.ReadFile(filepath.Join(b.dir, m[1]))
	if err != nil || len(data) != whole || !strings.HasSuffix(string(data), "aaa\nthe end\n") {
		t.Errorf("the file has %d bytes of %d (%v)", len(data), whole, err)
	}
	// With the model's own tools, to the last byte.
	for _, at := range []int{0, 40_000, whole / 2, whole - 40_000, whole - 1} {
		page := b.ok("run_command", args{"command": fmt.Sprintf("tail -c +%d %s | head -c 40000 | wc -c", at+1, m[1])})
		n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(page, "[stdout]\n")))
		if err != nil || n != min(40_000, whole-at) {
			t.Fatalf("page at %d: %q", at, page)
		}
	}
	if data, err := os.ReadFile(filepath.Join(b.dir, ".hutch/.gitignore")); err != nil || string(data) != "*\n" {
		t.Errorf("git would see the file: %q, %v", data, err)
	}
}

func TestEndlessOutputIsStopped(t *testing.T) {
	b := setup(t, shell.Options{})
	got := b.ok("run_command", args{"command": "yes", "timeout_seconds": 600})
	if !strings.Contains(got, "wrote more than") || len(got) > 60_000 {
		t.Errorf("%d bytes, the end %q", len(got), got[max(0, len(got)-300):])
	}
	gone(t, "yes\x00only-if-it-had-arguments")
}

func TestStderrAloneDoesNotBlock(t *testing.T) {
	b := setup(t, shell.Options{})
	got := b.ok("run_command", args{"command": "head -c 1000000 /dev/zero | tr '\\0' e >&2; echo ok"})
	if !strings.HasPrefix(got, "[stdout]\nok\n[stderr]\n") {
		t.Errorf("%.100q", got)
	}
}

func TestDenials(t *testing.T) {
	b := setup(t, shell.Options{DenyOperators: []string{"|"}})
	for command, want := range map[string]string{
		"rm -rf x":     "rm is denied",
		"/bin/rm x":    "rm is denied",
		"A=1 rm x":     "rm is denied",
		"vim x":        "waits for a person",
		"echo a | cat": `"|" is denied`,
		"shutdown now": "denied",
		"(rm x)":       "rm is denied",
	} {
		b.refused("run_command", args{"command": command}, want)
		b.refused("start_command", args{"command": command}, want)
	}
	only := setup(t, shell.Options{Allow: []string{"echo"}, Interactive: true})
	only.ok("run_command", args{"command": "echo rm"})
	only.refused("run_command", args{"command": "ls"}, "these programs are: echo")
	free := setup(t, shell.Options{Deny: []string{}})
	free.ok("run_command", args{"command": "rm -f x"})
	both := setup(t, shell.Options{Allow: []string{"a"}, Deny: []string{"b"}})
	if _, err := agent.New(scripted.Sequence(scripted.Say("x")), both.cap).Run(t.Context(), "go", agent.WithWorkspace(both.ws)); !errors.Is(err, agent.ErrUsage) {
		t.Errorf("error %v", err)
	}
}

func TestEnvironmentAndLimits(t *testing.T) {
	t.Setenv("HUTCH_TEST_CANARY", "from the host")
	b := setup(t, shell.Options{Env: map[string]string{"MY_TOKEN": "x", "MY_NAME": "y"}, DenyEnv: []string{"*TOKEN*"}, MaxFileBytes: 1024})
	got := b.ok("run_command", args{"command": "env"})
	if strings.Contains(got, "CANARY") || strings.Contains(got, "MY_TOKEN") || !strings.Contains(got, "MY_NAME=y") {
		t.Errorf("%q", got)
	}
	b.ok("run_command", args{"command": "head -c 10000 /dev/zero >big || true"})
	info, err := os.Stat(filepath.Join(b.dir, "big"))
	if err != nil || info.Size() > 1024 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestPersistDir(t *testing.T) {
	b := setup(t, shell.Options{PersistDir: true})
	if err := os.MkdirAll(filepath.Join(b.dir, "it's/deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	parts := b.run(
		call("run_command", args{"command": `cd "it's/deep"`}),
		call("run_command", args{"command": "pwd; cd /; exit 1"}),
		call("run_command", args{"command": "pwd; echo /etc"}),
		call("run_command", args{"command": `cd ..; rmdir deep`}),
		call("run_command", args{"command": `pwd; exit 0`}),
		call("run_command", args{"command": `r\m -rf "$PWD"`}),
		call("run_command", args{"command": `pwd`}),
		call("run_command", args{"command": `pwd`}),
	)
	for i, want := range map[int]string{
		1: "[stdout]\n" + b.dir + "/it's/deep\n[exit code: 1]",
		2: "[stdout]\n" + b.dir + "/it's/deep\n/etc",
		4: "[stdout]\n" + b.dir + "/it's",
	} {
		if got := parts[i].(model.ToolReturn).Text; got != want {
			t.Errorf("command %d: %q, want %q", i, got, want)
		}
	}
	if r, ok := parts[6].(model.Retry); !ok || !strings.Contains(r.Text, "is gone") {
		t.Errorf("a directory that has vanished: %+v", parts[6])
	}
	if got := parts[7].(model.ToolReturn).Text; got != "[stdout]\n"+b.dir {
		t.Errorf("afterwards: %q", got)
	}
}

var started = regexp.MustCompile(`ID: ([0-9a-f]{32})$`)

func TestBackgroundCommands(t *testing.T) {
	b := setup(t, shell.Options{})
	text := b.ok("start_command", args{"command": "echo one; echo two >&2; while [ ! -e go ]; do sleep 0.02; done; echo three; exit 5"})
	m := started.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("%q", text)
	}
	id := m[1]
	// Another run sees it: it belongs to the workspace.
	wait := func(want string) string {
		deadline := time.Now().Add(20 * time.Second)
		for {
			got := b.ok("check_command", args{"command_id": id})
			if strings.Contains(got, want) || time.Now().After(deadline) {
				return got
			}
		}
	}
	if got := wait("two"); got != "[stdout]\none\n[stderr]\ntwo\n[status: running]" {
		t.Errorf("%q", got)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := wait("finished"); got != "[stdout]\none\nthree\n[stderr]\ntwo\n[status: finished]\n[exit code: 5]" {
		t.Errorf("%q", got)
	}
	if got := b.ok("stop_command", args{"command_id": id}); !strings.HasSuffix(got, "[exit code: 5]\n[stopped]") {
		t.Errorf("%q", got)
	}
	for _, bad := range []string{id, "nope", "../../etc", strings.Repeat("0", 32)} {
		if got := b.ok("check_command", args{"command_id": bad}); !strings.Contains(got, "There is no background command") {
			t.Errorf("%q", got)
		}
	}
}

func TestStopCommand(t *testing.T) {
	for name, c := range map[string]struct{ command, want string }{
		"that goes when it is told":    {"echo begun; sleep 7003 & sleep 7003", "begun\n[exit code: 143]\n[stopped]"},
		"that does not go":             {"trap '' TERM; echo begun; sleep 7003 & while :; do sleep 7003; done", "begun\n[stopped]"},
		"that has its own cleaning up": {"trap 'echo cleaned; exit 0' TERM; echo begun; while :; do sleep 0.02; done", "[exit code: 0]\n[stopped]"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, shell.Options{})
			m := started.FindStringSubmatch(b.ok("start_command", args{"command": c.command}))
			if m == nil {
				t.Fatal("not started")
			}
			deadline := time.Now().Add(20 * time.Second)
			for !strings.Contains(b.ok("check_command", args{"command_id": m[1]}), "begun") && time.Now().Before(deadline) {
			}
			if got := b.ok("stop_command", args{"command_id": m[1]}); !strings.HasSuffix(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
			gone(t, "sleep\x007003")
			if _, err := os.Stat(filepath.Join(b.dir, ".hutch/shell", m[1])); err == nil {
				t.Error("its files are left")
			}
		})
	}
}

// TestARepeatedStartStartsOnce: the id is the same for the same run and call.
func TestARepeatedStartStartsOnce(t *testing.T) {
	b := setup(t, shell.Options{})
	a := agent.New(scripted.Sequence(call("start_command", args{"command": "echo x >>count; sleep 7004"}), scripted.Say("ok")), b.cap)
	var ids []string
	for range 2 {
		res, err := a.Run(t.Context(), "go", agent.WithWorkspace(b.ws), agent.WithRunID("same"))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, res.Messages()[2].Parts[0].(model.ToolReturn).Text)
	}
	if ids[0] != ids[1] {
		t.Errorf("%v", ids)
	}
	id := started.FindStringSubmatch(ids[0])[1]
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		if data, err := os.ReadFile(filepath.Join(b.dir, "count")); err == nil && len(data) > 0 {
			break
		}
	}
	b.ok("stop_command", args{"command_id": id})
	if data, err := os.ReadFile(filepath.Join(b.dir, "count")); err != nil || string(data) != "x\n" {
		t.Errorf("it ran %q times (%v)", data, err)
	}
	gone(t, "sleep\x007004")
}

func TestShellTool(t *testing.T) {
	b := setup(t, shell.Options{Tools: []string{"shell"}, Deny: []string{}})
	if got := b.ok("shell", args{"command": "echo hi; exit 2"}); got != "[stdout]\nhi\n[exit code: 2]" {
		t.Errorf("%q", got)
	}
	if got := b.ok("shell", args{"command": "head -c 100000 /dev/zero | tr '\\0' x"}); len(got) > shell.ShellOutput || !strings.Contains(got, "in the file") {
		t.Errorf("%d bytes", len(got))
	}
	got := b.ok("shell", args{"command": "echo hello; sleep 7005", "mode": "background"})
	var pid int
	var log, status string
	if _, err := fmt.Sscanf(got, "[started in the background]\npid: %d\noutput: %s\nstatus: %s", &pid, &log, &status); err != nil {
		t.Fatalf("%q: %v", got, err)
	}
	begun := time.Now().Add(20 * time.Second)
	for time.Now().Before(begun) {
		if data, err := os.ReadFile(filepath.Join(b.dir, log)); err != nil || len(data) > 0 {
			break
		}
	}
	data, err := os.ReadFile(filepath.Join(b.dir, status))
	if err != nil || string(data) != fmt.Sprintf("{\"pid\":%d,\"exit_code\":null}\n", pid) {
		t.Errorf("status %q, %v", data, err)
	}
	if err := syscall.Kill(-pid, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	gone(t, "sleep\x007005")
	deadline := time.Now().Add(20 * time.Second)
	for {
		data, err = os.ReadFile(filepath.Join(b.dir, status))
		if err != nil || strings.Contains(string(data), "143") || time.Now().After(deadline) {
			break
		}
	}
	if want := fmt.Sprintf("{\"pid\":%d,\"exit_code\":143}\n", pid); string(data) != want {
		t.Errorf("status %q, want %q (%v)", data, want, err)
	}
	if data, err := os.ReadFile(filepath.Join(b.dir, log)); err != nil || string(data) != "hello\n" {
		t.Errorf("log %q, %v", data, err)
	}
	b.refused("shell", args{"command": "true", "timeout": 271}, "at most 270")
	b.refused("shell", args{"command": "true", "mode": "sideways"}, "foreground or background")
}

func TestEvents(t *testing.T) {
	b := setup(t, shell.Options{})
	var text strings.Builder
	var names []string
	a := agent.New(scripted.Sequence(call("run_command", args{"command": "head -c 50000 /dev/zero | tr '\\0' x; exit 3"}), scripted.Say("ok")), b.cap)
	for e, err := range a.Stream(t.Context(), "go", agent.WithWorkspace(b.ws)) {
		if err != nil {
			t.Fatal(err)
		}
		switch e := e.(type) {
		case shell.Output:
			if len(e.Data) > shell.EventChunk {
				t.Errorf("a piece of %d bytes", len(e.Data))
			}
			text.WriteString(e.Data)
		case shell.Started:
			names = append(names, e.EventName())
		case shell.Finished:
			names = append(names, fmt.Sprint(e.EventName(), e.ExitCode))
		}
	}
	if text.Len() != shell.MaxEventBytes || strings.Join(names, " ") != "command_started command_finished3" {
		t.Errorf("%d bytes; %v", text.Len(), names)
	}
}

func TestWhereThereAreNoCommands(t *testing.T) {
	b := setup(t, shell.Options{})
	m := scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		return scripted.Say(fmt.Sprint(len(req.Tools))), nil
	})
	res, err := agent.New(m, b.cap).Run(t.Context(), "go", agent.WithWorkspace(workspace.ReadOnly(b.ws)))
	if err != nil || res.Output != "0" {
		t.Errorf("read-only: %v, %v", res, err)
	}
	w := workspace.New(b.ws)
	if _, err := agent.New(m, b.cap).Run(t.Context(), "go", agent.WithWorkspace(filesOnly{w, w, w})); !errors.Is(err, agent.ErrUsage) {
		t.Errorf("files only: %v", err)
	}
	if _, err := agent.New(m, b.cap).Run(t.Context(), "go"); !errors.Is(err, agent.ErrUsage) {
		t.Errorf("no workspace: %v", err)
	}
}

type filesOnly struct {
	workspace.Backend
	workspace.Files
	workspace.Realpather
}

// TestALostPlaceEndsTheRun: it is no exit code and no failure to try again.
func TestALostPlaceEndsTheRun(t *testing.T) {
	b := setup(t, shell.Options{})
	if err := os.RemoveAll(b.dir); err != nil {
		t.Fatal(err)
	}
	_, err := agent.New(scripted.Sequence(call("run_command", args{"command": "true"})), b.cap).Run(t.Context(), "go", agent.WithWorkspace(b.ws))
	if !errors.Is(err, workspace.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
}

// TestTheFileToolsSeeTheSameFiles: the two sets of tools work in one place.
func TestTheFileToolsSeeTheSameFiles(t *testing.T) {
	b := setup(t, shell.Options{})
	a := agent.New(scripted.Sequence(
		scripted.Call("1", "write_file", `{"path":"a.txt","content":"from the file tool\n"}`),
		call("run_command", args{"command": "cat a.txt; echo from the shell >b.txt"}),
		scripted.Call("3", "read_file", `{"path":"b.txt"}`),
		scripted.Say("ok")), b.cap, filesystem.New(filesystem.Options{}))
	res, err := a.Run(t.Context(), "go", agent.WithWorkspace(b.ws))
	if err != nil {
		t.Fatal(err)
	}
	if got := res.Messages()[4].Parts[0].(model.ToolReturn).Text; got != "[stdout]\nfrom the file tool" {
		t.Errorf("%q", got)
	}
	if got := res.Messages()[6].Parts[0].(model.ToolReturn).Text; !strings.Contains(got, "from the shell") {
		t.Errorf("%q", got)
	}
}
