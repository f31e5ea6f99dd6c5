//go:build linux

package agent

import (
	"errors"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// waitResult is how a child ended.
type waitResult struct {
	status syscall.WaitStatus
	usage  syscall.Rusage
	err    error // somebody else took the status: nothing else is known
}

// child is a process that the agent started. Its result arrives once on exit.
type child struct {
	pid  int
	exit chan waitResult // buffered

	mu     sync.Mutex
	reaped bool // pid may be another process's by now
}

// reaper waits for children, so that every status comes from a real wait and
// is handed to the one who started the process.
//
// As PID 1 (all is true) one goroutine waits for every child, among them the
// orphans that the kernel gives to PID 1. It first looks without taking
// (WNOWAIT), then takes the status while it holds mu, which a start holds for
// reading from before the fork until the child is known. So a child that ends
// at once is not mistaken for an orphan, and no process id is used again in
// between. This is the one lock that is held across a fork.
//
// Otherwise only the children that start made are waited for, each by a
// goroutine of its own, since the program may have other children.
type reaper struct {
	all bool

	mu sync.RWMutex // held for reading while a process starts

	tab      sync.Mutex
	children map[int]*child

	kick chan struct{} // a child was started; buffered
	wg   sync.WaitGroup
}

// newReaper returns a reaper. With all it is to be PID 1's only one: its
// goroutine lives as long as the process.
func newReaper(all bool) *reaper {
	r := &reaper{all: all, children: make(map[int]*child), kick: make(chan struct{}, 1)}
	if all {
		go r.loop()
	}
	return r
}

// start calls fork, which returns the new process's id.
func (r *reaper) start(fork func() (int, error)) (*child, error) {
	if !r.all {
		pid, err := fork()
		if err != nil {
			return nil, err
		}
		c := &child{pid: pid, exit: make(chan waitResult, 1)}
		r.wg.Go(func() {
			// A look first, which leaves the number in use: see kill.
			for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
			}
			w, ended := c.reap()
			if !ended {
				w.err = errors.New("it cannot be waited for")
			}
			c.exit <- w
		})
		return c, nil
	}

	r.mu.RLock()
	defer r.mu.RUnlock()
	pid, err := fork()
	if err != nil {
		return nil, err
	}
	c := &child{pid: pid, exit: make(chan waitResult, 1)}
	r.tab.Lock()
	r.children[pid] = c
	r.tab.Unlock()
	select {
	case r.kick <- struct{}{}:
	default:
	}
	return c, nil
}

// wait waits for the goroutines of single children; their processes must have
// been killed.
func (r *reaper) wait() { r.wg.Wait() }

func (r *reaper) loop() {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		switch err {
		case nil:
			r.take(siginfoPid(&info))
		case unix.ECHILD:
			// There are no children, and so no orphans either: an orphan's parent
			// was a descendant of ours.
			<-r.kick
		}
	}
}

// take reaps pid and delivers its status.
func (r *reaper) take(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tab.Lock()
	c := r.children[pid]
	r.tab.Unlock()
	if c == nil {
		// An orphan; or a failed start, which was reaped by who started it.
		_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		return
	}
	w, ended := c.reap()
	if !ended {
		return // it has the number of a failed start
	}
	r.tab.Lock()
	delete(r.children, pid)
	r.tab.Unlock()
	c.exit <- w
}

// reap takes the status of a child, if it has ended.
func (c *child) reap() (w waitResult, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	got, err := syscall.Wait4(c.pid, &w.status, syscall.WNOHANG, &w.usage)
	for err == syscall.EINTR {
		got, err = syscall.Wait4(c.pid, &w.status, syscall.WNOHANG, &w.usage)
	}
	w.err = err
	c.reaped = err != nil || got == c.pid
	return w, c.reaped
}

// kill sends SIGKILL to a child, if it is still there.
func (c *child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		_ = unix.Kill(c.pid, unix.SIGKILL)
	}
}

// siginfoPid reads si_pid, which package unix hides in padding: it is the
// first field of the union that follows si_signo, si_errno and si_code, and
// the union is aligned to 8 bytes on 64-bit systems.
func siginfoPid(info *unix.Siginfo) int {
	const offset = 16
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), offset)))
}
