package workspace

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"unicode/utf8"
)

// Capture takes a command's output for a Runner: it passes on what the Command
// has writers for, collects the rest, and calls stop once when there is too much
// of it or a writer failed. Its methods may be called concurrently.
type Capture struct {
	cmd  Command
	stop func()

	mu     sync.Mutex // the collected output
	out    []byte
	err    []byte
	over   bool
	closed bool // the outcome is taken: what still comes is dropped
	live   error

	outMu, errMu *sync.Mutex // held while a live writer writes; one for one writer
}

// NewCapture returns a Capture for cmd. stop makes the command end soon; it may
// be called from within a Write and must not wait for that.
func NewCapture(cmd Command, stop func()) *Capture {
	c := &Capture{cmd: cmd, stop: stop, outMu: &sync.Mutex{}, errMu: &sync.Mutex{}}
	if sameWriter(cmd.Stdout, cmd.Stderr) {
		c.errMu = c.outMu
	}
	return c
}

// sameWriter is a == b, except for types that cannot be compared.
func sameWriter(a, b io.Writer) bool {
	defer func() { _ = recover() }()
	return a == b
}

// Stdout returns the writer for the command's standard output.
func (c *Capture) Stdout() io.Writer { return captureWriter{c: c} }

// Stderr returns the writer for the command's standard error.
func (c *Capture) Stderr() io.Writer { return captureWriter{c: c, stderr: true} }

type captureWriter struct {
	c      *Capture
	stderr bool
}

// errStopped ends the copying of output that nobody wants any more.
var errStopped = errors.New("the command is being stopped")

func (w captureWriter) Write(p []byte) (int, error) {
	live, mu := w.c.cmd.Stdout, w.c.outMu
	if w.stderr {
		live, mu = w.c.cmd.Stderr, w.c.errMu
	}
	if live == nil {
		return w.c.collect(p, w.stderr)
	}
	w.c.mu.Lock()
	failed := w.c.live != nil || w.c.closed
	w.c.mu.Unlock()
	if failed {
		return 0, errStopped
	}
	mu.Lock()
	n, err := live.Write(p)
	mu.Unlock()
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		w.c.mu.Lock()
		first := w.c.live == nil
		if first {
			w.c.live = err
		}
		w.c.mu.Unlock()
		if first {
			w.c.stop()
		}
	}
	return n, err
}

func (c *Capture) collect(p []byte, stderr bool) (int, error) {
	c.mu.Lock()
	if c.closed || c.over {
		c.mu.Unlock()
		return 0, errStopped
	}
	n := min(len(p), OutputLimit-len(c.out)-len(c.err))
	if stderr {
		c.err = append(c.err, p[:n]...)
	} else {
		c.out = append(c.out, p[:n]...)
	}
	over := n < len(p)
	c.over = over
	c.mu.Unlock()
	if over {
		c.stop()
		return n, errStopped
	}
	return n, nil
}

// Stopped reports whether stop was called.
func (c *Capture) Stopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over || c.live != nil
}

// Result returns the outcome of a command that ended with this status: a
// Result, or the error for output that was too much or a writer that failed.
// What is written later is dropped.
func (c *Capture) Result(exitCode int) (Result, error) {
	if err := c.finish(); err != nil {
		return Result{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return Result{ExitCode: exitCode, Stdout: Text(c.out), Stderr: Text(c.err)}, nil
}

// Fail returns the error for a command that has no status: kind is ErrTimeout,
// ErrUnavailable or the error of the context, cause may be nil. Output that was
// too much and a writer that failed come first. What is written later is
// dropped.
func (c *Capture) Fail(kind, cause error) error {
	if err := c.finish(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := &CommandError{Kind: kind, Err: cause, Stdout: Text(c.out), Stderr: Text(c.err)}
	if errors.Is(kind, ErrTimeout) {
		e.Timeout = c.cmd.Timeout
	}
	return e
}

func (c *Capture) finish() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	switch {
	case c.live != nil:
		return fmt.Errorf("run: write the output: %w", c.live)
	case c.over:
		return &CommandError{Kind: ErrOutputLimit, Limit: OutputLimit, Stdout: Text(preview(c.out)), Stderr: Text(preview(c.err))}
	}
	return nil
}

// preview cuts at the beginning of a character.
func preview(p []byte) []byte {
	if len(p) <= PreviewLimit {
		return p
	}
	end := PreviewLimit
	for i := 0; i < utf8.UTFMax && end > 0 && !utf8.RuneStart(p[end]); i++ {
		end--
	}
	return p[:end]
}

// Text returns p as text: each byte that is not part of valid UTF-8 becomes
// U+FFFD.
func Text(p []byte) string {
	if utf8.Valid(p) {
		return string(p)
	}
	text := make([]byte, 0, len(p)+len(p)/8)
	for len(p) > 0 {
		r, n := utf8.DecodeRune(p)
		text = utf8.AppendRune(text, r)
		p = p[n:]
	}
	return string(text)
}
