package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// follower joins a command in a box to this process's streams and signals.
type follower struct {
	env *env
	// what names the command in messages, for example "run dev".
	what string

	stdin      bool   // pass standard input on
	tty        bool   // the command has a terminal
	sigProxy   bool   // pass signals on
	detachKeys []byte // leave the command running; only with stdin and tty
	// timeout ends the wait with errTimedOut; zero: never.
	timeout time.Duration
}

// errTimedOut is the cancellation cause when follower.timeout passed.
var errTimedOut = errors.New("timed out")

// checkTerminal refuses an interactive command on a terminal of its own where
// there is none here. Call it before anything is made.
func (e *env) checkTerminal(stdin, tty bool) error {
	if stdin && tty && e.term.in == nil {
		return usagef("-t: cannot attach stdin to a box's terminal because stdin is not a terminal; leave out -t, or run it from a terminal")
	}
	return nil
}

// follow makes a command with open, which must not start it, follows it to its
// end and returns how it ended. An error says why it stopped following
// instead: errDetached, errTimedOut, the end of ctx, a failure.
//
// Input, signals and the terminal are joined for exactly as long.
func (f *follower) follow(ctx context.Context, open func(context.Context) (*box.Cmd, error)) (box.ExitStatus, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)

	cmd, err := open(ctx)
	if err != nil {
		return box.ExitStatus{}, err
	}
	cmd.Stdout, cmd.Stderr = f.outputs(cancel)
	if f.stdin {
		in, err := f.input(ctx, cancel)
		if err != nil {
			return box.ExitStatus{}, err
		}
		defer in.release()
		cmd.Stdin = in
	}
	if err := cmd.Start(); err != nil {
		return box.ExitStatus{}, firstCause(ctx, err)
	}
	// Until here a signal, Ctrl-C included, ends hutch: booting may take long.
	// From here on it is the command's.
	if f.stdin && f.tty {
		if err := f.env.term.raw(); err != nil {
			cancel(err)
		}
		defer f.env.term.restore()
	}
	var caught <-chan os.Signal
	if f.sigProxy {
		c, release := f.env.signals.take()
		defer release()
		caught = c
	}
	if f.tty {
		f.resize(cmd)
	}
	if f.timeout > 0 {
		timer := time.AfterFunc(f.timeout, func() { cancel(errTimedOut) })
		defer timer.Stop()
	}
	wg.Go(func() {
		defer f.env.guard()
		f.react(ctx, cmd, caught)
	})
	err = cmd.Wait()
	if n := cmd.Skipped(); n > 0 {
		f.env.complain(fmt.Errorf("%s: the first %d bytes of output are no longer kept; see 'hutch logs'", f.what, n))
	}
	if cause := context.Cause(ctx); cause != nil {
		return box.ExitStatus{}, firstCause(ctx, err)
	}
	if status := cmd.Status(); status != nil {
		return *status, nil
	}
	return box.ExitStatus{}, err
}

// firstCause is why ctx ended, or else err.
func firstCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// outputs returns the writers for a command's two outputs. They are the same
// one where both end in the same file or terminal, so that what is written to
// them keeps its order there.
func (f *follower) outputs(cancel context.CancelCauseFunc) (stdout, stderr io.Writer) {
	out := &cancelingWriter{f.env.stdout, cancel}
	if f.tty || sameFile(f.env.Stdout, f.env.Stderr) {
		return out, out
	}
	return out, f.env.Stderr
}

// cancelingWriter gives up everything when standard output is gone.
type cancelingWriter struct {
	w      io.Writer
	cancel context.CancelCauseFunc
}

func (w *cancelingWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if err != nil {
		w.cancel(err)
	}
	return n, err
}

func sameFile(a, b io.Writer) bool {
	fa, ok := a.(*os.File)
	if !ok {
		return false
	}
	fb, ok := b.(*os.File)
	if !ok {
		return false
	}
	ia, err := fa.Stat()
	if err != nil {
		return false
	}
	ib, err := fb.Stat()
	return err == nil && os.SameFile(ia, ib)
}

// react passes signals and window sizes on until ctx ends. That the command is
// gone already is no error.
func (f *follower) react(ctx context.Context, cmd *box.Cmd, caught <-chan os.Signal) {
	var sizes <-chan os.Signal
	if f.tty && f.env.Notify != nil {
		c, stop := f.env.Notify(syscall.SIGWINCH)
		defer stop()
		sizes = c
		f.resize(cmd) // it may have changed before Notify
	}
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-caught:
			_ = cmd.Signal(sig)
		case <-sizes:
			f.resize(cmd)
		}
	}
}

// resize gives the command this terminal's size.
func (f *follower) resize(cmd *box.Cmd) {
	if rows, cols, ok := f.env.term.size(); ok {
		_ = cmd.Resize(rows, cols)
	}
}

// input returns standard input for a command. Its Read returns io.EOF only
// for the end of the input: where reading is given up, because the detach keys
// came or ctx ended, it holds its caller until release, so that the command's
// input is not closed by it.
func (f *follower) input(ctx context.Context, cancel context.CancelCauseFunc) (*heldInput, error) {
	r, closeReader, err := readerWithContext(ctx, f.env.Stdin)
	if err != nil {
		return nil, err
	}
	if f.tty && len(f.detachKeys) > 0 {
		r = &detachReader{r: r, keys: f.detachKeys}
	}
	return &heldInput{ctx: ctx, r: r, cancel: cancel, closeReader: closeReader, released: make(chan struct{})}, nil
}

type heldInput struct {
	ctx         context.Context
	r           io.Reader
	cancel      context.CancelCauseFunc
	closeReader func()
	released    chan struct{}

	reading sync.Mutex
	closed  bool
}

func (h *heldInput) Read(p []byte) (int, error) {
	h.reading.Lock()
	if h.closed {
		h.reading.Unlock()
		return 0, os.ErrClosed
	}
	n, err := h.r.Read(p)
	h.reading.Unlock()
	if err != nil && !errors.Is(err, io.EOF) {
		if h.ctx.Err() == nil && !errors.Is(err, errDetached) {
			err = fmt.Errorf("read standard input: %w; check where it comes from", err)
		}
		h.cancel(err)
		<-h.released
	}
	return n, err
}

// release ends reading.
func (h *heldInput) release() {
	h.cancel(nil)
	h.reading.Lock()
	defer h.reading.Unlock()
	h.closed = true
	h.closeReader()
	close(h.released)
}
