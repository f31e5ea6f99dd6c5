package shell

import (
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// IgnoredVar names the environment variable by which one program of the
// userland tells the next which signals it ignores. The kernel hands this
// down by itself, but the Go runtime of the new program takes over every
// signal except SIGHUP and SIGINT at its start, and forgets.
//
// It lists their numbers, and after a semicolon, where the parent waits for
// it, a descriptor to close once they are ignored.
const IgnoredVar = "_HUTCH_SIGIGN"

// InheritIgnored applies and removes the variable at program start.
func InheritIgnored() {
	v, ok := os.LookupEnv(IgnoredVar)
	if !ok {
		return
	}
	_ = os.Unsetenv(IgnoredVar) // it fails for bad names alone
	list, told, _ := strings.Cut(v, ";")
	for _, f := range strings.Split(list, ",") {
		if n, err := strconv.Atoi(f); err == nil && n > 0 && n <= 64 {
			signal.Ignore(syscall.Signal(n))
		}
	}
	if fd, err := strconv.Atoi(told); err == nil {
		_ = unix.Close(fd) // the parent waits for it, if it is there
	}
}

// forkExec starts a program. One of the userland is waited for until it ignores
// what it is to ignore: a signal that the shell sends next must not find the
// runtime, which has taken the signal over and not given it back yet.
func (p *process) forkExec(path string, args []string, attr *syscall.ProcAttr) (int, error) {
	at := slices.IndexFunc(attr.Env, func(e string) bool { return strings.HasPrefix(e, IgnoredVar+"=") })
	if at < 0 || !sameFile(path, p.self) {
		return syscall.ForkExec(path, args, attr)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return 0, err
	}
	defer unix.Close(pipe[0])
	slot := max(len(attr.Files), 10)
	told := *attr
	told.Env = slices.Clone(attr.Env)
	told.Env[at] += ";" + strconv.Itoa(slot)
	told.Files = slices.Clone(attr.Files)
	for len(told.Files) < slot {
		told.Files = append(told.Files, ^uintptr(0))
	}
	told.Files = append(told.Files, uintptr(pipe[1]))
	pid, err := syscall.ForkExec(path, args, &told)
	_ = unix.Close(pipe[1])
	if err != nil {
		return 0, err
	}
	for {
		if _, err := unix.Read(pipe[0], make([]byte, 1)); err != unix.EINTR {
			return pid, nil
		}
	}
}

func sameFile(a, b string) bool {
	fa, err := os.Stat(a)
	if err != nil {
		return false
	}
	fb, err := os.Stat(b)
	return err == nil && os.SameFile(fa, fb)
}

// IgnoredEnv appends the variable to env for a child of this process, naming
// the signals it ignores.
func IgnoredEnv(env []string) []string {
	var list []string
	for _, sig := range carried() {
		if signal.Ignored(sig) {
			list = append(list, strconv.Itoa(int(sig)))
		}
	}
	if len(list) == 0 {
		return env
	}
	return append(env, IgnoredVar+"="+strings.Join(list, ","))
}

// carried lists the signals worth carrying over.
func carried() []syscall.Signal {
	return []syscall.Signal{syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGPIPE, syscall.SIGALRM, syscall.SIGABRT}
}

func (p *process) markIgnored(env []string) []string { return IgnoredEnv(env) }

// applySignal makes the process treat sig as the traps of s say.
func (s *Shell) applySignal(sig syscall.Signal) {
	p := s.proc
	action, set := s.traps[sig]
	switch {
	case set && action == "":
		signal.Ignore(sig)
		p.ignored[sig] = true
		return
	case set:
		signal.Notify(p.sig, sig)
	case p.tty != nil && slices.Contains(terminalSignals(), sig) || s.opt.interactive && (sig == syscall.SIGINT || sig == syscall.SIGTERM || sig == syscall.SIGQUIT):
		signal.Notify(p.sig, sig)
	default:
		signal.Reset(sig)
	}
	delete(p.ignored, sig)
}

// restoreSignals applies the traps of s after a subshell had its own.
func (s *Shell) restoreSignals() {
	for n := 1; n <= 64; n++ {
		sig := syscall.Signal(n)
		if _, ok := s.traps[sig]; ok || s.proc.ignored[sig] || slices.Contains(trappable(), sig) {
			s.applySignal(sig)
		}
	}
}

func trappable() []syscall.Signal {
	return []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE, syscall.SIGALRM}
}

// drain moves signals that have arrived to the pending set.
func (p *process) drain() {
	for {
		select {
		case sig := <-p.sig:
			p.note(sig)
		default:
			return
		}
	}
}

func (p *process) note(sig os.Signal) {
	if n, ok := sig.(syscall.Signal); ok && n != syscall.SIGCHLD && n != marker {
		p.pending[n]++
	}
}

// marker is a signal nobody uses, sent to ourselves to learn that those
// before it have come through the Go runtime's queue.
const marker = syscall.Signal(63)

// syncSignals waits until signals that reached this process while a command
// ran have been queued, so that their traps run at once.
func (s *Shell) syncSignals() {
	any := false
	for sig, action := range s.traps {
		any = any || sig != 0 && action != ""
	}
	if !any {
		return
	}
	signal.Notify(s.proc.sig, marker)
	defer signal.Reset(marker)
	if unix.Tgkill(os.Getpid(), unix.Gettid(), marker) != nil {
		return
	}
	limit := time.After(100 * time.Millisecond)
	for {
		select {
		case sig := <-s.proc.sig:
			if sig == marker {
				return
			}
			s.proc.note(sig)
		case <-limit:
			return
		}
	}
}

// poll runs the traps of signals that have arrived.
func (s *Shell) poll() {
	p := s.proc
	p.drain()
	if len(p.pending) == 0 || s.flow == flowExit {
		return
	}
	for sig := range p.pending {
		action, ok := s.traps[sig]
		switch {
		case ok && action != "":
			if s.inTrap {
				continue
			}
			delete(p.pending, sig)
			s.runTrap(action)
		case s.ancestorTraps(sig):
			// The shell we are a copy of runs it after us.
		case sig == syscall.SIGINT && s.opt.interactive:
			delete(p.pending, sig)
			s.flow = flowAbort
			s.status = 130
		default:
			delete(p.pending, sig)
		}
	}
}

func (s *Shell) ancestorTraps(sig syscall.Signal) bool {
	for a := s.parent; a != nil; a = a.parent {
		if action, ok := a.traps[sig]; ok && action != "" {
			return true
		}
		if sig == syscall.SIGINT && a.opt.interactive && a.parent == nil {
			return false
		}
	}
	return false
}

// runTrap runs an action and leaves $? as it was.
func (s *Shell) runTrap(action string) {
	status, fl, n := s.status, s.flow, s.flowN
	s.inTrap = true
	s.flow = flowNone
	tail := s.tail
	s.runString(action, false)
	s.tail = tail
	s.inTrap = false
	if s.flow == flowNone {
		s.status, s.flow, s.flowN = status, fl, n
	}
}

// runExitTrap runs the EXIT trap once.
func (s *Shell) runExitTrap() {
	action, ok := s.traps[0]
	if !ok || action == "" {
		return
	}
	delete(s.traps, 0)
	status := s.status
	s.flow = flowNone
	s.runString(action, false)
	if s.flow != flowExit {
		s.status = status
	}
	s.flow = flowExit
}
