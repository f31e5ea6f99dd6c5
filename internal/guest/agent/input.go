//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
)

// input is a command's standard input: a pipe, or the terminal. A nil *input
// is /dev/null. Offsets count all bytes ever taken, so that a caller who lost
// an answer can repeat its call.
type input struct {
	turn chan struct{} // holds a token: one write at a time
	read *os.File      // the child's end, until open

	mu     sync.Mutex
	write  *os.File
	tty    bool
	offset uint64
	closed bool // by eof, or since the command has ended
}

// newInput makes the pipe at once, so that input may come before the start.
// For a terminal, connect brings the file.
func newInput(tty bool) (*input, error) {
	in := &input{turn: make(chan struct{}, 1), tty: tty}
	in.turn <- struct{}{}
	if tty {
		return in, nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, resourceError(err)
	}
	in.read, in.write = r, w
	return in, nil
}

// open hands out the child's end.
func (in *input) open() (*os.File, error) {
	if in == nil {
		return os.Open(os.DevNull)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	f := in.read
	in.read = nil
	if f == nil {
		return nil, errors.New("standard input is closed")
	}
	return f, nil
}

// connect makes a terminal the input.
func (in *input) connect(f *os.File, tty bool) {
	if in == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.write, in.tty = f, tty
}

// close ends the input. It may be called at any time, also twice.
func (in *input) close() {
	if in == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.read != nil {
		in.read.Close()
		in.read = nil
	}
	in.finishLocked()
}

// finish closes the writing end: the command reads what is there, then the
// end, also when it starts only later.
func (in *input) finish() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.finishLocked()
}

func (in *input) finishLocked() {
	in.closed = true
	switch {
	case in.write == nil:
	case in.tty: // the terminal is its pump's: only a put that waits is ended
		_ = in.write.SetWriteDeadline(time.Unix(1, 0))
	default:
		in.write.Close()
	}
	in.write = nil
}

var errInputClosed = errors.New("input closed")

// put writes the request's data where it says, and then closes the input if eof
// is set. It returns the offset after the last byte taken, also with an error.
// While the command does not read, it waits until the command or ctx ends.
func (in *input) put(ctx context.Context, id string, m *hutchv1.WriteInputRequest) (uint64, error) {
	offset, data, eof := m.GetOffset(), m.GetData(), m.GetEof()
	conflict := func(err error) error { return &box.Error{Kind: box.Conflict, Op: "input", Object: id, Err: err} }
	if in == nil {
		return 0, conflict(errors.New("the command was started without standard input"))
	}
	if m.GetAppend() && offset != 0 {
		return 0, invalid("input", id, "append and an offset exclude each other", "")
	}
	select {
	case <-in.turn:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { in.turn <- struct{}{} }()

	in.mu.Lock()
	at, f, tty, closed := in.offset, in.write, in.tty, in.closed
	in.mu.Unlock()
	if m.GetAppend() {
		offset = at
	}
	if offset > at {
		return at, invalid("input", id, fmt.Sprintf("offset %d leaves a gap: %d bytes were written", offset, at), "")
	}
	if skip := at - offset; skip >= uint64(len(data)) {
		data = nil
	} else {
		data = data[skip:]
	}
	if closed {
		if len(data) == 0 {
			return at, nil // a repeated call
		}
		return at, conflict(errInputClosed)
	}
	if f == nil {
		return at, conflict(errors.New("the command has not started"))
	}
	if tty && eof {
		data = append(data[:len(data):len(data)], 4) // the terminal's end-of-file key
	}
	if len(data) > 0 {
		interrupted := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			_ = f.SetWriteDeadline(time.Unix(1, 0))
			close(interrupted)
		})
		n, err := f.Write(data)
		if !stop() {
			<-interrupted
			_ = f.SetWriteDeadline(time.Time{})
		}
		in.mu.Lock()
		in.offset += uint64(n)
		at = in.offset
		in.mu.Unlock()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return at, ctx.Err()
		case errors.Is(err, syscall.EPIPE), errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EIO), errors.Is(err, os.ErrDeadlineExceeded):
			in.close()
			return at, conflict(errInputClosed)
		default:
			return at, fmt.Errorf("input %s: %w", id, err)
		}
	}
	if eof {
		if tty {
			in.mu.Lock()
			in.closed = true
			at--
			in.offset = at
			in.mu.Unlock()
		} else {
			in.finish()
		}
	}
	return at, nil
}
