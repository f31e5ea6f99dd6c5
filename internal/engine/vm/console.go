//go:build linux || darwin

package vm

import (
	"bytes"
	"io"
	"os"
	"sync"
)

const (
	// consoleLimit is how much of what a machine says on its console is kept
	// in each boot. A box may say anything there, for ever.
	consoleLimit = 1 << 20
	// tailSize is how much of the end is kept in memory beside it.
	tailSize = 8 << 10
)

// console takes what a machine's kernel and QEMU say. It never makes them
// wait: what is beyond the limit is read and dropped.
type console struct {
	wg sync.WaitGroup

	mu   sync.Mutex
	out  *os.File
	left int
	tail []byte
}

func newConsole(out *os.File) *console { return &console{out: out, left: consoleLimit} }

// follow reads r to its end in a goroutine and closes it.
func (c *console) follow(r io.ReadCloser) {
	c.wg.Go(func() {
		defer r.Close()
		_, _ = io.Copy(c, r)
	})
}

// Write never fails.
func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := min(c.left, len(b)); n > 0 && c.out != nil {
		_, _ = c.out.Write(b[:n])
		c.left -= n
		if c.left == 0 {
			_, _ = io.WriteString(c.out, "\n[hutch: the console said more than is kept]\n")
		}
	}
	c.tail = append(c.tail, b...)
	if over := len(c.tail) - tailSize; over > 0 {
		c.tail = append(c.tail[:0], c.tail[over:]...)
	}
	return len(b), nil
}

// note writes a line of the engine's own.
func (c *console) note(line string) { _, _ = c.Write([]byte("[hutch: " + line + "]\n")) }

// end returns the last of what was said.
func (c *console) end() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.tail)
}

// wait waits until all readers have come to their end.
func (c *console) wait() { c.wg.Wait() }
