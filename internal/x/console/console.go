// Package console keeps what a box says where it may say anything, for ever: on
// its kernel's console, and in the messages of the programs around it. It takes
// all of it and keeps a bounded part.
package console

import (
	"bytes"
	"io"
	"os"
	"sync"
)

const (
	// Limit is how much is kept of one boot's console.
	Limit = 1 << 20
	// tailSize is how much of the end is kept in memory beside it.
	tailSize = 8 << 10
)

// full is the last line of a log that had to leave something out.
const full = "\n[hutch: the console said more than is kept]\n"

// Log takes what is said. It never makes who speaks wait: what is beyond the
// limit is read and dropped. Its methods may be called concurrently.
type Log struct {
	wg sync.WaitGroup

	mu   sync.Mutex // guards the fields below
	out  *os.File
	left int
	tail []byte
}

// New returns a log that writes the first limit bytes to out, and a line that
// says so if there are more. Nil: it writes nothing, and only knows the end.
func New(out *os.File, limit int) *Log { return &Log{out: out, left: limit} }

// Follow reads r to its end in a goroutine, which Wait waits for, and closes it.
func (l *Log) Follow(r io.ReadCloser) {
	l.wg.Go(func() {
		defer r.Close()
		_, _ = io.Copy(l, r)
	})
}

// Write never fails: a disk that is full must not stop who speaks.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := min(l.left, len(b)); n > 0 && l.out != nil {
		_, _ = l.out.Write(b[:n])
		l.left -= n
		if l.left == 0 {
			_, _ = io.WriteString(l.out, full)
		}
	}
	end := b[max(0, len(b)-tailSize):]
	if over := len(l.tail) + len(end) - tailSize; over > 0 {
		l.tail = append(l.tail[:0], l.tail[over:]...)
	}
	l.tail = append(l.tail, end...)
	return len(b), nil
}

// Note writes a line of the engine's own.
func (l *Log) Note(line string) { _, _ = l.Write([]byte("[hutch: " + line + "]\n")) }

// End returns the last of what was said.
func (l *Log) End() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.tail)
}

// Wait waits until all that is followed has come to its end.
func (l *Log) Wait() { l.wg.Wait() }
