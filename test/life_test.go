package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// inspect returns what hutch inspect says of a box.
func (h *home) inspect(t testing.TB, name string) box.Info {
	t.Helper()
	var infos []box.Info
	if err := json.Unmarshal([]byte(h.ok(t, "inspect", name)), &infos); err != nil || len(infos) != 1 {
		t.Fatalf("inspect: %d boxes, %v", len(infos), err)
	}
	return infos[0]
}

// A main command lives and ends as with docker.
func TestMainCommand(t *testing.T) {
	everyone(t, func(t *testing.T) {
		h := newHome(t)
		id := h.ok(t, "run", "-d", "--name", "main", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
		if out := h.ok(t, "wait", "main"); out != "3" {
			t.Errorf("wait says %q", out)
		}
		if r := h.hutch(t, "logs", "main"); r != (result{"out\n", "err\n", 0}) {
			t.Errorf("logs: %v", r)
		}
		info := h.inspect(t, "main")
		if info.ID != id || info.State != box.Stopped || info.Exit == nil || info.Exit.Code != 3 {
			t.Errorf("inspect: %s, %s, %+v", info.ID, info.State, info.Exit)
		}
		// Started again, it runs again, on the same disk.
		h.ok(t, "create", "--name", "again", "--", "sh", "-c", "echo run >> /root/runs; echo run >> /tmp/runs; cat /root/runs /tmp/runs | wc -l")
		for n := range 3 {
			if out := strings.TrimSpace(h.ok(t, "start", "-a", "again")); out != fmt.Sprint(2*n+2) {
				info := h.inspect(t, "again")
				t.Errorf("start %d: %q lines; /root and /tmp are to be kept (now it is %s: %s)", n+1, out, info.State, info.Reason)
			}
			// Killed, it might have lost what it had not written back.
			if info := h.inspect(t, "again"); info.State != box.Stopped {
				t.Errorf("after start %d it is %s: %s", n+1, info.State, info.Reason)
			}
		}
		// To look into a stopped box does not run it again.
		if out := strings.TrimSpace(h.ok(t, "exec", "again", "sh", "-c", "cat /root/runs | wc -l")); out != "3" {
			t.Errorf("exec in a stopped box: %q runs, want 3", out)
		}

		// Who wakes a box by a call does not die with its main command, which
		// ends meanwhile.
		h.ok(t, "create", "--name", "woken", "--", "true")
		if r := h.hutch(t, "exec", "woken", "sh", "-c", "sleep 1; echo alive"); r != (result{"alive\n", "", 0}) {
			t.Errorf("exec beside a main command that ends: %v", r)
		}
		if out := h.ok(t, "wait", "woken"); out != "0" {
			t.Errorf("wait says %q", out)
		}
		if info := h.inspect(t, "woken"); info.State != box.Stopped || !strings.Contains(info.Reason, "main command ended") {
			t.Errorf("the box that was woken is %s: %q", info.State, info.Reason)
		}

		// on-failure counts its restarts and ends with the last status.
		h.ok(t, "run", "-d", "--name", "restart", "--restart", "on-failure:2", "--", "sh", "-c", "echo x >> /root/n; exit 5")
		if out := h.ok(t, "wait", "restart"); out != "5" {
			t.Errorf("--restart on-failure:2: wait says %q", out)
		}
		if info := h.inspect(t, "restart"); info.Restarts != 2 || info.Exit == nil || info.Exit.Code != 5 {
			t.Errorf("after two restarts: %d restarts, %+v", info.Restarts, info.Exit)
		}
		if out := strings.TrimSpace(h.ok(t, "exec", "restart", "sh", "-c", "cat /root/n | wc -l")); out != "3" {
			t.Errorf("it ran %s times, want 3", out)
		}

		// always runs on until it is stopped.
		h.ok(t, "run", "-d", "--name", "always", "--restart", "always", "--", "sh", "-c", "echo x >> /root/n; sleep 0.01")
		if !eventually(30*time.Second, func() bool { return h.inspect(t, "always").Restarts >= 3 }) {
			t.Error("--restart always does not restart")
		}
		h.ok(t, "stop", "-t", "2s", "always")
		if info := h.inspect(t, "always"); info.State != box.Stopped {
			t.Errorf("after stop it is %s", info.State)
		}

		// stop asks, and its command may end well.
		h.ok(t, "run", "-d", "--name", "asked", "--", "sh", "-c", `trap 'echo bye; exit 9' TERM; echo up; while true; do sleep 0.05; done`)
		if !eventually(20*time.Second, func() bool { return h.ok(t, "logs", "asked") == "up" }) {
			t.Error("the command does not come up")
		}
		h.ok(t, "stop", "asked")
		if out := h.ok(t, "logs", "asked"); out != "up\nbye" {
			t.Errorf("logs say %q", out)
		}
		if info := h.inspect(t, "asked"); info.Exit == nil || info.Exit.Code != 9 {
			t.Errorf("after stop its status is %+v", info.Exit)
		}
	})
}

// --rm and ephemeral boxes leave nothing, however they end.
func TestRunRemove(t *testing.T) {
	everyone(t, func(t *testing.T) {
		h := newHome(t)
		h.ok(t, "image", "ls") // the home is there
		nothing := func(when string) {
			t.Helper()
			if !eventually(20*time.Second, func() bool { return h.ok(t, "ps", "-aq") == "" }) {
				t.Errorf("%s: there is still %s", when, h.ok(t, "ps", "-a"))
			}
			for _, dir := range []string{"boxes", "names", "tmp"} {
				if !eventually(20*time.Second, func() bool {
					entries, _ := os.ReadDir(filepath.Join(h.dir, dir))
					return len(entries) == 0
				}) {
					t.Errorf("%s: there is something in %s", when, dir)
				}
			}
			h.checkNoTraces(t)
		}
		if r := h.hutch(t, "run", "--rm", "--", "sh", "-c", "mkdir -p /d/e; chmod 0 /d; exit 4"); r.code != 4 {
			t.Error(r)
		}
		nothing("after its command")
		h.hutch(t, "run", "--rm", "--", "nosuch")
		nothing("after a missing command")
		h.hutch(t, "run", "--rm", "--timeout", "1s", "--", "sleep", "100")
		nothing("after a timeout")
		h.ok(t, "run", "-d", "--rm", "--name", "gone", "--", "sleep", "300")
		h.ok(t, "kill", "gone")
		nothing("after kill")
		h.ok(t, "run", "-d", "--rm", "--name", "gone", "--", "sleep", "300")
		h.ok(t, "rm", "-f", "gone")
		nothing("after rm -f")
		client := h.command(t, "run", "--rm", "--name", "gone", "--", "sh", "-c", "echo up; sleep 300")
		out, err := client.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		if err := client.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_ = client.Wait()
		nothing("after the client was killed")
		// TERM reaches the command and its status comes back.
		client = h.command(t, "run", "--rm", "--", "sh", "-c", `trap 'exit 33' TERM; echo up; while true; do sleep 0.05; done`)
		if out, err = client.StdoutPipe(); err != nil {
			t.Fatal(err)
		}
		if err := client.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		if err := client.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = client.Wait()
		if code := client.ProcessState.ExitCode(); code != 33 {
			t.Errorf("after TERM run ended with %d, want 33", code)
		}
		nothing("after TERM")
	})
}

// A detached box goes on without anybody; others stop when their client dies.
func TestDetach(t *testing.T) {
	everyone(t, func(t *testing.T) {
		h := newHome(t)
		h.ok(t, "run", "-d", "--name", "on", "--", "sh", "-c", "while true; do echo tick; sleep 0.05; done")
		// No client is left. It writes on.
		lines := func() int { return strings.Count(h.ok(t, "logs", "on"), "tick") }
		n := lines()
		if !eventually(20*time.Second, func() bool { return lines() > n }) {
			t.Error("a detached box stands still")
		}
		id := h.ok(t, "exec", "-d", "on", "sh", "-c", "sleep 0.2; echo later > /root/later; echo said")
		if out := h.ok(t, "attach", "on", id); out != "said" {
			t.Errorf("attach to a detached command: %q", out)
		}
		if out := h.ok(t, "exec", "on", "cat", "/root/later"); out != "later" {
			t.Errorf("what a detached command wrote: %q", out)
		}
		if got := h.inspect(t, "on").State; got != box.Running {
			t.Errorf("a detached box is %s", got)
		}
		h.ok(t, "stop", "-t", "1s", "on")

		client := h.command(t, "run", "--name", "off", "--", "sh", "-c", "echo up; sleep 300")
		out, err := client.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		if err := client.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = client.Wait()
		if !eventually(20*time.Second, func() bool { return h.inspect(t, "off").State == box.Stopped }) {
			t.Errorf("a box whose client died is %s", h.inspect(t, "off").State)
		}
	})
}
