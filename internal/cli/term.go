package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is the terminal that hutch runs on, if it runs on one.
type terminal struct {
	in, out *os.File // nil where it is not a terminal

	mu    sync.Mutex
	saved *term.State
}

func newTerminal(in io.Reader, out io.Writer) *terminal {
	t := &terminal{}
	if f, ok := in.(*os.File); ok && f != nil && term.IsTerminal(int(f.Fd())) {
		t.in = f
	}
	if f, ok := out.(*os.File); ok && f != nil && term.IsTerminal(int(f.Fd())) {
		t.out = f
	}
	return t
}

// raw switches the input to raw mode until restore.
func (t *terminal) raw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.in == nil || t.saved != nil {
		return nil
	}
	var saved *term.State
	err := withFD(t.in, func(fd int) (err error) {
		saved, err = term.MakeRaw(fd)
		return err
	})
	if err != nil {
		return fmt.Errorf("set the terminal to raw mode: %w; leave out -t", err)
	}
	t.saved = saved
	return nil
}

// restore undoes raw. It may be called at any time and more than once.
func (t *terminal) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved == nil {
		return
	}
	// Nothing can be done about a failure: the terminal is gone then.
	_ = withFD(t.in, func(fd int) error { return term.Restore(fd, t.saved) })
	t.saved = nil
}

// size returns the size of the terminal that output goes to.
func (t *terminal) size() (rows, cols int, ok bool) {
	f := t.out
	if f == nil {
		f = t.in
	}
	if f == nil {
		return 0, 0, false
	}
	err := withFD(f, func(fd int) (err error) {
		cols, rows, err = term.GetSize(fd)
		return err
	})
	if err != nil || rows <= 0 || cols <= 0 {
		return 0, 0, false
	}
	return rows, cols, true
}

// withFD calls do with the descriptor of f, which stays that of f meanwhile:
// after a third signal a command goes on while its caller closes its files.
func withFD(f *os.File, do func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var derr error
	if err := c.Control(func(fd uintptr) { derr = do(int(fd)) }); err != nil {
		return err
	}
	return derr
}

// readerWithContext returns a reader of r whose reads end with ctx. A file can
// be interrupted in the middle of a wait; of any other reader only the caller
// is released, and the read itself goes on until r answers.
func readerWithContext(ctx context.Context, r io.Reader) (read io.Reader, release func(), err error) {
	f, ok := r.(*os.File)
	if !ok {
		return &abandoningReader{ctx: ctx, r: r}, func() {}, nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, nil, fmt.Errorf("make a pipe to interrupt reads: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = unix.Close(fds[1]) })
	p := &pollingReader{ctx: ctx, f: f, wake: fds[0]}
	return p, func() {
		if stop() {
			_ = unix.Close(fds[1])
		}
		_ = unix.Close(fds[0])
	}, nil
}

// pollingReader waits for its file or the wake pipe, whichever speaks first.
type pollingReader struct {
	ctx  context.Context
	f    *os.File
	wake int
}

func (p *pollingReader) Read(b []byte) (int, error) {
	for {
		var fds [2]unix.PollFd
		err := withFD(p.f, func(fd int) error {
			fds = [2]unix.PollFd{
				{Fd: int32(fd), Events: unix.POLLIN},
				{Fd: int32(p.wake), Events: unix.POLLIN},
			}
			_, err := unix.Poll(fds[:], -1)
			return err
		})
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("wait for standard input: %w", err)
		}
		if fds[1].Revents != 0 {
			return 0, context.Cause(p.ctx)
		}
		if fds[0].Revents&unix.POLLNVAL != 0 {
			return 0, os.ErrClosed
		}
		n, err := p.f.Read(b)
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		// A terminal whose other end is gone says EIO, not end of file.
		if errors.Is(err, unix.EIO) && n == 0 {
			err = io.EOF
		}
		return n, err
	}
}

// abandoningReader reads in a goroutine that it leaves behind when ctx ends.
type abandoningReader struct {
	ctx context.Context
	r   io.Reader
}

func (a *abandoningReader) Read(b []byte) (int, error) {
	type result struct {
		data []byte
		err  error
	}
	c := make(chan result, 1)
	go func() {
		buf := make([]byte, len(b))
		n, err := a.r.Read(buf)
		c <- result{buf[:n], err}
	}()
	select {
	case <-a.ctx.Done():
		return 0, context.Cause(a.ctx)
	case r := <-c:
		return copy(b, r.data), r.err
	}
}

// defaultDetachKeys leave a terminal's command running, as in docker.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// parseDetachKeys reads docker's notation: keys separated by commas, each a
// character or "ctrl-" and one of a-z, @, [, \, ], ^, _. Empty: no keys.
func parseDetachKeys(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	var keys []byte
	for key := range strings.SplitSeq(s, ",") {
		c, ctrl := strings.CutPrefix(key, "ctrl-")
		switch {
		case ctrl && len(c) == 1 && c[0] >= 'a' && c[0] <= 'z':
			keys = append(keys, c[0]-'a'+1)
		case ctrl && len(c) == 1 && c[0] >= 'A' && c[0] <= '_':
			keys = append(keys, c[0]-'@')
		case ctrl && c == "@":
			keys = append(keys, 0)
		case !ctrl && len(key) == 1:
			keys = append(keys, key[0])
		default:
			return nil, fmt.Errorf("unknown key %q; write characters or ctrl-<letter>, separated by commas, for example %s", key, defaultDetachKeys)
		}
	}
	return keys, nil
}

// detachReader passes on what it reads until the keys come in a row; then it
// returns errDetached. A beginning of the keys is held back until it is clear
// what follows.
type detachReader struct {
	r    io.Reader
	keys []byte

	matched int
	pending []byte // read and not yet passed on
	err     error  // to return after pending
}

func (d *detachReader) Read(b []byte) (int, error) {
	for len(d.pending) == 0 {
		if d.err != nil {
			return 0, d.err
		}
		buf := make([]byte, len(b))
		n, err := d.r.Read(buf)
		for _, c := range buf[:n] {
			if d.match(c) {
				err = errDetached
				break
			}
		}
		if err != nil {
			if !errors.Is(err, errDetached) {
				d.pending = append(d.pending, d.keys[:d.matched]...)
			}
			d.err = err
		}
	}
	n := copy(b, d.pending)
	d.pending = d.pending[n:]
	return n, nil
}

// match takes one byte and reports whether the keys are complete.
func (d *detachReader) match(c byte) bool {
	if c == d.keys[d.matched] {
		if d.matched++; d.matched == len(d.keys) {
			return true
		}
		return false
	}
	d.pending = append(d.pending, d.keys[:d.matched]...)
	d.matched = 0
	if c == d.keys[0] {
		d.matched = 1
		return false
	}
	d.pending = append(d.pending, c)
	return false
}
