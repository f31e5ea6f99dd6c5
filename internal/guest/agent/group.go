//go:build linux

package agent

import (
	"context"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tracker makes groups: the means to find every process that a command
// started, wherever it went.
type tracker interface {
	// newGroup makes a group without processes.
	newGroup() (group, error)
	// name says how processes are tracked, for the agent's log.
	name() string
	// tidy leaves nothing behind in the kernel once all groups are removed.
	tidy()
	// close gives up what the tracker holds; its groups must have been removed.
	close()
}

// group is the processes of one command. Its methods may be called
// concurrently.
type group interface {
	// start calls fork so that the child is in the group before it runs its
	// program. Fork passes the attributes on.
	start(attr *syscall.SysProcAttr, fork func() (int, error)) (int, error)
	// pids lists live processes, never the agent.
	pids() []int
	// kill sends SIGKILL to all.
	kill()
	// remove gives the group up, and reports false when it still has processes.
	remove() bool
}

// signalGroup sends sig to every process of g, and to first before the others:
// a command that saw its children die of the signal would end by itself, and
// its status would not tell.
func signalGroup(g group, first int, sig syscall.Signal) {
	pids := g.pids()
	if i := slices.Index(pids, first); i > 0 {
		pids[0], pids[i] = pids[i], pids[0]
	}
	for _, pid := range pids {
		_ = unix.Kill(pid, sig)
	}
}

// killGroup kills g until it is empty. A process that cannot die (it waits in
// the kernel) must not hold the caller for ever, so it gives up after limit
// and reports false.
func killGroup(ctx context.Context, g group, limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for wait := time.Millisecond; ; wait = min(wait*2, 50*time.Millisecond) {
		g.kill()
		if len(g.pids()) == 0 {
			return true
		}
		if time.Now().After(deadline) || !sleep(ctx, wait) {
			return false
		}
		if len(g.pids()) == 0 {
			return true
		}
	}
}

// waitEmpty waits until g has no processes, at most for limit or until stop.
func waitEmpty(ctx context.Context, g group, limit time.Duration, stop <-chan struct{}) bool {
	deadline := time.Now().Add(limit)
	for wait := time.Millisecond; ; wait = min(wait*2, 20*time.Millisecond) {
		if len(g.pids()) == 0 {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		select {
		case <-stop:
			return false
		default:
		}
		if !sleep(ctx, wait) {
			return false
		}
	}
}

// sleep waits for d and reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// newTracker chooses the best way that works here. Pids limits all groups
// together, where control groups can.
func newTracker(cgroups bool, pids int, logf func(string, ...any)) tracker {
	if cgroups {
		t, err := newCgroupTracker(pids)
		if err == nil {
			return t
		}
		logf("no control groups, commands are tracked through /proc: %v", err)
	}
	// Orphans must come to the agent, not to some other init.
	if os.Getpid() != 1 {
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	}
	return newProcTracker()
}
