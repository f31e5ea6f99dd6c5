//go:build linux

package agent

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// procTracker finds the processes of a command by reading /proc: the
// descendants of its first process, all of the sessions that those ever had,
// and orphans that still hold one of the command's output pipes or its
// terminal. A process that goes through two forks and a new session between
// two readings, and closes what it inherited, is lost. It stands in where
// control groups are missing.
type procTracker struct {
	mu     sync.Mutex
	groups map[*procGroup]struct{}
}

func newProcTracker() *procTracker {
	return &procTracker{groups: make(map[*procGroup]struct{})}
}

func (t *procTracker) name() string { return "proc" }
func (t *procTracker) tidy()        {}
func (t *procTracker) close()       {}

func (t *procTracker) newGroup() (group, error) {
	g := &procGroup{
		t:        t,
		members:  make(map[int]uint64),
		sessions: make(map[int]struct{}),
		files:    make(map[string]struct{}),
	}
	t.mu.Lock()
	t.groups[g] = struct{}{}
	t.mu.Unlock()
	return g, nil
}

// procGroup is guarded by its tracker's mutex.
type procGroup struct {
	t        *procTracker
	root     int            // the command's first process
	members  map[int]uint64 // process id to start time
	sessions map[int]struct{}
	files    map[string]struct{} // what /proc/PID/fd/1 and 2 link to
}

func (g *procGroup) start(_ *syscall.SysProcAttr, fork func() (int, error)) (int, error) {
	// Held across the fork, so that no other group takes the new process for an
	// orphan of its own, which it would kill or reap.
	g.t.mu.Lock()
	defer g.t.mu.Unlock()
	pid, err := fork()
	if err != nil {
		return 0, err
	}
	if p, ok := readProc(pid); ok {
		g.members[pid] = p.start
	}
	g.root = pid
	g.sessions[pid] = struct{}{} // every command leads a session
	for _, fd := range []string{"1", "2"} {
		if link := procLink(pid, fd); strings.HasPrefix(link, "pipe:") || strings.HasPrefix(link, "/dev/pts/") {
			g.files[link] = struct{}{}
		}
	}
	// What has these names now is new: the numbers of a session, a terminal and
	// a pipe are given out again when what had them before is gone.
	for other := range g.t.groups {
		if other == g {
			continue
		}
		delete(other.sessions, pid)
		for link := range g.files {
			delete(other.files, link)
		}
	}
	return pid, nil
}

func procLink(pid int, fd string) string {
	link, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/fd/" + fd)
	if err != nil {
		return ""
	}
	return link
}

func (g *procGroup) pids() []int {
	g.t.mu.Lock()
	defer g.t.mu.Unlock()
	return g.scanLocked()
}

func (g *procGroup) scanLocked() []int {
	self := os.Getpid()
	procs := readProcs()
	in := make(map[int]procStat)
	for _, p := range procs {
		if start, ok := g.members[p.pid]; ok && start == p.start {
			in[p.pid] = p
		}
	}
	for grown := true; grown; {
		grown = false
		for _, p := range procs {
			if _, ok := in[p.pid]; ok || p.pid == self || !g.ownsLocked(p, in, self) {
				continue
			}
			in[p.pid] = p
			// The session of a process that the group made is the group's too.
			if _, known := g.sessions[p.session]; !known && p.session != 0 {
				if leader, ok := in[p.session]; ok && leader.pid == p.session {
					g.sessions[p.session] = struct{}{}
				}
			}
			grown = true
		}
	}
	// A session's number is free again when the session is empty.
	for s := range g.sessions {
		if !slices.ContainsFunc(procs, func(p procStat) bool { return p.session == s }) {
			delete(g.sessions, s)
		}
	}
	clear(g.members)
	var pids []int
	for pid, p := range in {
		if p.state == 'Z' || p.state == 'X' {
			if p.ppid == self {
				g.reapLocked(p)
				continue
			}
			// A zombie whose parent lives still ties its children to the group.
			g.members[pid] = p.start
			continue
		}
		g.members[pid] = p.start
		pids = append(pids, pid)
	}
	return pids
}

func (g *procGroup) ownsLocked(p procStat, in map[int]procStat, self int) bool {
	if _, ok := in[p.ppid]; ok {
		return true
	}
	if _, ok := g.sessions[p.session]; ok {
		return true
	}
	if p.ppid != self || len(g.files) == 0 || g.othersLocked(p) {
		return false
	}
	for _, fd := range []string{"0", "1", "2"} {
		if _, ok := g.files[procLink(p.pid, fd)]; ok {
			return true
		}
	}
	return false
}

// othersLocked reports whether p is known to be another group's.
func (g *procGroup) othersLocked(p procStat) bool {
	for other := range g.t.groups {
		if start, ok := other.members[p.pid]; ok && start == p.start && other != g {
			return true
		}
	}
	return false
}

// reapLocked takes the status of an orphan that came to the agent. The first
// process of a command is its starter's to reap.
func (g *procGroup) reapLocked(p procStat) {
	if os.Getpid() == 1 {
		return // the reaper does it
	}
	for other := range g.t.groups {
		if other.root == p.pid {
			return
		}
	}
	var ws syscall.WaitStatus
	_, _ = syscall.Wait4(p.pid, &ws, syscall.WNOHANG, nil)
}

func (g *procGroup) kill() {
	g.t.mu.Lock()
	defer g.t.mu.Unlock()
	// Stop them first: what does not run does not fork.
	pids := g.scanLocked()
	if len(pids) > 1 {
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		pids = g.scanLocked()
	}
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

func (g *procGroup) remove() bool {
	g.t.mu.Lock()
	defer g.t.mu.Unlock()
	if len(g.scanLocked()) > 0 {
		return false
	}
	delete(g.t.groups, g)
	return true
}
