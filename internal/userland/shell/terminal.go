package shell

import (
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal of an interactive shell.
type terminal struct {
	fd     int
	pgid   int // our own group
	before int // the group that had the terminal when we started
	modes  *unix.Termios
}

// terminalSignals are the signals job control must not stop or end the shell
// with. They are caught, not ignored, so that children start with defaults.
func terminalSignals() []syscall.Signal {
	return []syscall.Signal{syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU}
}

// startInteractive sets up prompts, signals and job control.
func (s *Shell) startInteractive() {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		s.applySignal(sig)
	}
	if !s.vars["PS1"].Set {
		s.set("PS1", `\w \$ `)
	}
	s.startJobControl()
}

// startJobControl makes the shell the leader of the terminal's foreground
// group. Without a terminal of our own there is no job control.
func (s *Shell) startJobControl() {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		if fd, err = unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 10); err != nil {
			return
		}
	}
	if fd < 10 {
		if hi, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 10); err == nil {
			unix.Close(fd)
			fd = hi
		}
	}
	t := &terminal{fd: fd, pgid: os.Getpid()}
	t.before = t.owner()
	if t.before <= 0 {
		unix.Close(fd)
		return
	}
	// Wait to be put in the foreground by whoever started us.
	for i := 0; i < 100 && t.owner() != unix.Getpgrp(); i++ {
		if syscall.Kill(0, syscall.SIGTTIN) != nil {
			break
		}
	}
	s.proc.tty = t
	for _, sig := range terminalSignals() {
		s.applySignal(sig)
	}
	if unix.Getpgrp() != t.pgid {
		if err := unix.Setpgid(0, 0); err != nil && unix.Getpgrp() != t.pgid {
			s.proc.tty = nil
			unix.Close(fd)
			return
		}
	}
	t.give(t.pgid)
	t.modes, _ = unix.IoctlGetTermios(fd, unix.TCGETS)
	s.opt.monitor = true
}

// owner is the foreground process group.
func (t *terminal) owner() int {
	n, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	return n
}

// quietly runs f with SIGTTOU blocked: a background shell may then take the
// terminal back or set its modes.
func quietly(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var set, old unix.Sigset_t
	set.Val[0] = 1 << (unix.SIGTTOU - 1)
	if unix.PthreadSigmask(unix.SIG_BLOCK, &set, &old) == nil {
		defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }()
	}
	f()
}

// give makes pgid the foreground group.
func (t *terminal) give(pgid int) {
	quietly(func() { _ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, pgid) })
}

// restore puts the modes back that the shell started with, for a program
// that was stopped or killed in the middle of its own.
func (t *terminal) restore() {
	if t.modes != nil {
		quietly(func() { _ = unix.IoctlSetTermios(t.fd, unix.TCSETSW, t.modes) })
	}
}

// leaveTerminal gives the terminal back before another program replaces an
// interactive shell.
func (s *Shell) leaveTerminal() {
	if s.proc.tty == nil {
		return
	}
	for _, sig := range terminalSignals() {
		signal.Reset(sig)
	}
}

// hangupStopped ends jobs that are stopped when an interactive shell exits.
func (s *Shell) hangupStopped() {
	s.reap()
	for _, j := range s.jobs {
		if j.stopped() && j.pgid > 0 {
			_ = syscall.Kill(-j.pgid, syscall.SIGHUP)
			_ = syscall.Kill(-j.pgid, syscall.SIGCONT)
		}
	}
	if t := s.proc.tty; t.before > 0 {
		t.give(t.before)
	}
}

// warnStopped tells about stopped jobs at the end of an interactive shell.
func (s *Shell) warnStopped() bool {
	s.reap()
	for _, j := range s.jobs {
		if j.stopped() {
			s.writeFd(2, "You have stopped jobs.\n")
			return true
		}
	}
	return false
}

// announce reports background jobs that have ended since the last prompt.
func (s *Shell) announce() {
	s.reap()
	for _, j := range append([]*job(nil), s.jobs...) {
		if j.done() {
			s.writeFd(2, s.jobLine(j)+"\n")
			s.dropJob(j)
		}
	}
}

// prompt expands PS1 or PS2: parameters, and the escapes \w \W \u \h \$ \n.
func (s *Shell) prompt(name string) string {
	p := s.get(name)
	if strings.Contains(p, `\`) {
		var b strings.Builder
		for i := 0; i < len(p); i++ {
			if p[i] != '\\' || i+1 == len(p) {
				b.WriteByte(p[i])
				continue
			}
			i++
			switch p[i] {
			case 'w', 'W':
				dir := s.get("PWD")
				home := s.get("HOME")
				if home != "" && home != "/" && (dir == home || strings.HasPrefix(dir, home+"/")) {
					dir = "~" + dir[len(home):]
				}
				if p[i] == 'W' && dir != "/" && dir != "~" {
					dir = filepath.Base(dir)
				}
				b.WriteString(dir)
			case 'u':
				u := s.get("USER")
				if u == "" {
					u = userName(os.Geteuid())
				}
				b.WriteString(u)
			case 'h', 'H':
				h, _ := os.Hostname()
				if p[i] == 'h' {
					h, _, _ = strings.Cut(h, ".")
				}
				b.WriteString(h)
			case '$':
				if os.Geteuid() == 0 {
					b.WriteByte('#')
				} else {
					// Not a parameter for the expansion below.
					b.WriteString(`\$`)
				}
			case 'n':
				b.WriteByte('\n')
			case 'e':
				b.WriteByte(0x1b)
			case '[', ']':
			default:
				b.WriteByte('\\')
				b.WriteByte(p[i])
			}
		}
		p = b.String()
	}
	if strings.ContainsAny(p, "$`") {
		status := s.status
		p = s.expandString(p)
		s.status = status
	}
	return p
}

// userName looks a user id up in /etc/passwd.
func userName(uid int) string {
	b, err := os.ReadFile("/etc/passwd")
	if err == nil {
		for _, l := range strings.Split(string(b), "\n") {
			f := strings.Split(l, ":")
			if len(f) > 2 && f[2] == itoa(uid) {
				return f[0]
			}
		}
	}
	return itoa(uid)
}

// prompter reads commands for an interactive shell: with line editing on a
// terminal that can, plainly otherwise.
func (s *Shell) prompter() lineSource {
	p := &prompted{s: s, plain: &plainLines{s: s, r: fdReader(0)}}
	if isTerminal(0) && isTerminal(2) && s.get("TERM") != "dumb" {
		p.ed = &editor{s: s, in: 0, out: 2}
		p.ed.load(s.historyFile())
	}
	return p
}

func (s *Shell) historyFile() string {
	if f := s.get("HISTFILE"); f != "" {
		return f
	}
	if home := s.get("HOME"); home != "" && home != "/" {
		return home + "/.sh_history"
	}
	return ""
}

type prompted struct {
	s     *Shell
	plain *plainLines
	ed    *editor
}

func (p *prompted) line(more bool) (string, error) {
	s := p.s
	s.syncSignals()
	s.poll()
	s.proc.drain()
	for sig := range s.proc.pending {
		if _, ok := s.traps[sig]; !ok {
			delete(s.proc.pending, sig)
		}
	}
	s.flow = flowNone
	name := "PS2"
	if !more {
		name = "PS1"
		s.announce()
	}
	text := s.prompt(name)
	if p.ed != nil {
		l, err := p.ed.read(text)
		if err == io.EOF {
			s.writeFd(2, "\n")
		}
		return l, err
	}
	s.writeFd(2, text)
	return p.plain.line(more)
}
