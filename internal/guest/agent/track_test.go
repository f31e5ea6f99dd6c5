//go:build linux

package agent

import (
	"os"
	osexec "os/exec"
	"slices"
	"syscall"
	"testing"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
)

// startIn starts a program in g, with out as its standard output.
func startIn(t *testing.T, g group, out *os.File, args ...string) int {
	t.Helper()
	path, err := osexec.LookPath(args[0])
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	sys := &syscall.SysProcAttr{Setsid: true}
	pid, err := g.start(sys, func() (int, error) {
		return syscall.ForkExec(path, args, &syscall.ProcAttr{Files: []uintptr{null.Fd(), out.Fd(), out.Fd()}, Sys: sys})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	})
	return pid
}

// A terminal's number is given out again when the terminal is gone, while an
// old command may still be remembered by it. What is started on the new one is
// not the old command's. A pipe with two commands stands in for it here.
func TestProcTrackerReusedName(t *testing.T) {
	tr := newProcTracker()
	_, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var groups []group
	var pids []int
	for range 3 {
		g, err := tr.newGroup()
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
		pids = append(pids, startIn(t, g, out, "sleep", "60"))
	}
	for i, g := range groups {
		if got := g.pids(); !slices.Equal(got, pids[i:i+1]) {
			t.Errorf("command %d: its processes are %v, want %d alone", i, got, pids[i])
		}
	}
	groups[0].kill()
	for _, pid := range pids[1:] {
		if p, ok := readProc(pid); !ok || p.state == 'Z' {
			t.Errorf("process %d of another command was killed", pid)
		}
	}
}

// A status that somebody else took is not taken for success.
func TestReaperLostStatus(t *testing.T) {
	r := newReaper(false)
	c, err := r.start(func() (int, error) {
		cmd := osexec.Command("true")
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, cmd.Wait()
	})
	if err != nil {
		t.Fatal(err)
	}
	if w := <-c.exit; w.err == nil {
		t.Errorf("status %v without an error", w.status)
	}
	c.kill() // of a number that is free: nothing happens
	r.wait()
}

// A command's end by the kill of its tree shows as such, also when its children
// die before it does.
func TestKillShowsAsSignal(t *testing.T) {
	for _, cgroups := range []bool{false, os.Geteuid() == 0} {
		r := newRig(t, Config{Cgroups: cgroups})
		for range 10 {
			s := r.start(testContext(t), &hutchv1.StartRequest{Args: argv("sh", "-c", "echo up; sleep 60; sleep 60; exit 3")})
			until(t, s, "up")
			x := r.agent.execs.list()
			x[len(x)-1].kill(hutchv1.ExitReason_EXIT_REASON_CANCELED)
			if e, err := collectRest(s); err != nil || e.GetSignal() != 9 {
				t.Errorf("killed (%s): %v, %v", r.agent.tracker.name(), e, err)
			}
		}
	}
}
