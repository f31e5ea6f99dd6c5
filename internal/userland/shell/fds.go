package shell

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// maxFd bounds the descriptor numbers a script may use.
const maxFd = 1024

// fdTable maps the descriptor numbers of a script to real ones (-1: closed).
// Each table counts as one reference to each of its real descriptors, which
// are closed with the last.
type fdTable struct {
	p *process
	m []int
}

// inheritedFds is the table of descriptors this process was started with.
// Those above 2 are marked close-on-exec: children get them by the table.
func inheritedFds(p *process) *fdTable {
	t := &fdTable{p: p}
	for fd := range 20 {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || fd > 2 && flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		if fd > 2 {
			unix.CloseOnExec(fd)
		}
		t.adopt(fd, fd)
	}
	return t
}

func (t *fdTable) get(fd int) int {
	if fd < 0 || fd >= len(t.m) {
		return -1
	}
	return t.m[fd]
}

// adopt makes fd refer to real, taking one new reference.
func (t *fdTable) adopt(fd, real int) {
	for len(t.m) <= fd {
		t.m = append(t.m, -1)
	}
	if real >= 0 {
		t.p.refs[real]++
	}
	t.p.unref(t.m[fd])
	t.m[fd] = real
}

func (t *fdTable) dup() *fdTable {
	c := &fdTable{p: t.p, m: append([]int(nil), t.m...)}
	for _, r := range c.m {
		if r >= 0 {
			t.p.refs[r]++
		}
	}
	return c
}

func (t *fdTable) release() {
	for _, r := range t.m {
		t.p.unref(r)
	}
	t.m = nil
}

// files is the table in the form of syscall.ProcAttr.Files.
func (t *fdTable) files() []uintptr {
	n := max(len(t.m), 3)
	f := make([]uintptr, n)
	for i := range f {
		f[i] = ^uintptr(0)
		if r := t.get(i); r >= 0 {
			f[i] = uintptr(r)
		}
	}
	return f
}

func (p *process) unref(real int) {
	if real < 0 {
		return
	}
	p.refs[real]--
	if p.refs[real] > 0 {
		return
	}
	delete(p.refs, real)
	if real <= 2 {
		// Keep the slot filled, so that no later file lands on it.
		if null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
			_ = unix.Dup3(null, real, unix.O_CLOEXEC)
			unix.Close(null)
			return
		}
	}
	unix.Close(real)
}

// redirect applies the redirections of a command to t.
func (s *Shell) redirect(t *fdTable, redirs []*syntax.Redirect) error {
	for _, r := range redirs {
		if err := s.redirectOne(t, r); err != nil {
			return err
		}
		if s.flow != flowNone {
			return errQuiet
		}
	}
	return nil
}

// errQuiet is a failure that has been reported already.
var errQuiet = errors.New("already reported")

func (s *Shell) redirectOne(t *fdTable, r *syntax.Redirect) error {
	fd := 1
	switch r.Op {
	case syntax.RdrIn, syntax.RdrInOut, syntax.DplIn, syntax.Hdoc, syntax.DashHdoc, syntax.WordHdoc:
		fd = 0
	}
	if r.N != nil {
		n, err := strconv.Atoi(r.N.Value)
		if err != nil || n < 0 || n >= maxFd {
			return fmt.Errorf("%s: bad file descriptor", r.N.Value)
		}
		fd = n
	}
	var data string
	var err error
	switch r.Op {
	case syntax.Hdoc, syntax.DashHdoc:
		if body := r.Hdoc; body != nil {
			if r.Op == syntax.DashHdoc {
				body = stripTabs(body)
			}
			if quotedWord(r.Word) {
				data = literalDoc(body)
			} else if data, err = expand.Document(&s.cfg, body); err != nil {
				return s.expandError(err)
			}
		}
		return s.provide(t, fd, data)
	case syntax.WordHdoc:
		if data, err = expand.Literal(&s.cfg, r.Word); err != nil {
			return s.expandError(err)
		}
		return s.provide(t, fd, data+"\n")
	}
	name, err := expand.Literal(&s.cfg, r.Word)
	if err != nil {
		return s.expandError(err)
	}
	if s.flow != flowNone {
		return errQuiet
	}
	var flags int
	both := false
	switch r.Op {
	case syntax.DplIn, syntax.DplOut:
		if name == "-" {
			t.adopt(fd, -1)
			return nil
		}
		n, err := strconv.Atoi(name)
		if err != nil {
			if r.Op == syntax.DplOut && r.N == nil { // >&file
				flags, both = unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, true
				break
			}
			return fmt.Errorf("%s: bad file descriptor", name)
		}
		real := t.get(n)
		if real < 0 {
			return fmt.Errorf("%d: Bad file descriptor", n)
		}
		t.adopt(fd, real)
		return nil
	case syntax.RdrIn:
		flags = unix.O_RDONLY
	case syntax.RdrInOut:
		flags = unix.O_RDWR | unix.O_CREAT
	case syntax.RdrOut, syntax.RdrClob:
		flags = unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC
		if s.opt.noclobber && r.Op == syntax.RdrOut {
			var st unix.Stat_t
			if unix.Stat(name, &st) == nil {
				if st.Mode&unix.S_IFMT == unix.S_IFREG {
					return fmt.Errorf("cannot create %s: File exists", name)
				}
			} else {
				flags |= unix.O_EXCL
			}
		}
	case syntax.AppOut:
		flags = unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND
	case syntax.RdrAll, syntax.RdrAllClob:
		flags, both = unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, true
	case syntax.AppAll, syntax.AppAllClob:
		flags, both = unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND, true
	default:
		return fmt.Errorf("redirection %s is not supported", r.Op)
	}
	if n, ok := fdPath(name); ok {
		// The script's own descriptor, which may be another in this process.
		own := t.get(n)
		if own < 0 {
			own = s.fds.get(n) // of a process substitution in this word
		}
		if own >= 0 {
			t.adopt(fd, own)
			if both {
				t.adopt(2, own)
			}
			return nil
		}
	}
	real, err := openRetry(name, flags)
	if err != nil {
		verb := "open"
		if flags&unix.O_CREAT != 0 {
			verb = "create"
		}
		return fmt.Errorf("cannot %s %s: %s", verb, name, tool.Reason(err))
	}
	t.adopt(fd, real)
	if both {
		t.adopt(2, real)
	}
	return nil
}

// fdPath recognises the names of the process's own descriptors.
func fdPath(name string) (int, bool) {
	switch name {
	case "/dev/stdin":
		return 0, true
	case "/dev/stdout":
		return 1, true
	case "/dev/stderr":
		return 2, true
	}
	for _, dir := range []string{"/dev/fd/", "/proc/self/fd/"} {
		if d, ok := strings.CutPrefix(name, dir); ok {
			n, err := strconv.Atoi(d)
			return n, err == nil
		}
	}
	return 0, false
}

func openRetry(name string, flags int) (int, error) {
	for {
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0o666)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// provide makes fd read data: through a pipe when it fits without a reader,
// otherwise through an anonymous file, so that nothing has to feed it.
func (s *Shell) provide(t *fdTable, fd int, data string) error {
	if len(data) <= 4096 {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		err := writeAll(p[1], []byte(data))
		unix.Close(p[1])
		t.adopt(fd, p[0])
		return err
	}
	f, err := unix.MemfdCreate("here-document", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	t.adopt(fd, f)
	if err := writeAll(f, []byte(data)); err != nil {
		return err
	}
	_, err = unix.Seek(f, 0, io.SeekStart)
	return err
}

func quotedWord(w *syntax.Word) bool {
	for _, p := range w.Parts {
		switch p := p.(type) {
		case *syntax.SglQuoted, *syntax.DblQuoted:
			return true
		case *syntax.Lit:
			for i := range len(p.Value) {
				if p.Value[i] == '\\' {
					return true
				}
			}
		}
	}
	return false
}

// stripTabs removes the tabs that start the lines of a <<- document.
func stripTabs(w *syntax.Word) *syntax.Word {
	out := &syntax.Word{}
	fresh := true
	for _, p := range w.Parts {
		l, ok := p.(*syntax.Lit)
		if !ok {
			out.Parts = append(out.Parts, p)
			fresh = false
			continue
		}
		var b strings.Builder
		for i := range len(l.Value) {
			c := l.Value[i]
			if c == '\t' && fresh {
				continue
			}
			fresh = c == '\n'
			b.WriteByte(c)
		}
		plain := *l
		plain.Value = b.String()
		out.Parts = append(out.Parts, &plain)
	}
	return out
}

// literalDoc is the body of a here-document with a quoted delimiter.
func literalDoc(w *syntax.Word) string {
	var b []byte
	for _, p := range w.Parts {
		if l, ok := p.(*syntax.Lit); ok {
			b = append(b, l.Value...)
		}
	}
	return string(b)
}

func isTerminal(fd int) bool { return term.IsTerminal(fd) }

// writeAll writes p to a real descriptor, waiting when it does not block.
func writeAll(fd int, p []byte) error {
	if fd < 0 {
		return syscall.EBADF
	}
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
			continue
		case err != nil:
			return err
		}
		p = p[n:]
	}
	return nil
}

type fdWriter struct{ fd int }

func (w *fdWriter) Write(p []byte) (int, error) {
	if err := writeAll(w.fd, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// fdReader reads a real descriptor without buffering.
type fdReader int

func (r fdReader) Read(p []byte) (int, error) {
	if r < 0 {
		return 0, syscall.EBADF
	}
	for {
		n, err := unix.Read(int(r), p)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}, -1)
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}
