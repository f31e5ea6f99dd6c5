package box

import (
	"errors"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// inputChunk is the most that one WriteInput carries.
const inputChunk = 256 << 10

// sendInput sends the next piece of a command's input, and returns when the
// command has it. It is called by one goroutine at a time.
func (c *Cmd) sendInput(p []byte, eof bool) error {
	// Always to the input's end: a Cmd that is attached to the same command
	// writes to it too.
	err := c.box.machine.WriteInput(c.inputCtx, c.stream.ID(), -1, p, eof)
	if err == nil {
		return nil
	}
	select {
	case <-c.ended:
		return syscall.EPIPE
	default:
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, ErrConflict) || errors.Is(err, ErrNotFound) {
		return syscall.EPIPE
	}
	return c.box.wrap("exec input", err)
}

// copyInput passes Stdin on. A command that does not read its input to the end
// is no error, as in os/exec.
func (c *Cmd) copyInput() {
	buf := make([]byte, inputChunk)
	var failed error
	for failed == nil {
		n, err := c.Stdin.Read(buf)
		select {
		case <-c.ended:
			return
		default:
		}
		end := err != nil
		if n > 0 || end {
			failed = c.sendInput(buf[:n], end)
		}
		if end {
			if failed == nil && !errors.Is(err, io.EOF) {
				failed = err
			}
			break
		}
	}
	if failed != nil && !errors.Is(failed, syscall.EPIPE) {
		c.mu.Lock()
		c.inputErr = failed
		c.mu.Unlock()
	}
}

// earlyInput is how much may be written to a StdinPipe before Start without
// waiting for it: what the pipe of os/exec holds on Linux.
const earlyInput = 64 << 10

// inputPipe is what StdinPipe returns.
type inputPipe struct {
	cmd   *Cmd
	ready chan struct{} // closed by open

	mu     sync.Mutex
	fail   error // why Start failed
	early  []byte
	closed bool
}

// open lets writes through, or makes them fail with err.
func (p *inputPipe) open(err error) {
	p.mu.Lock()
	close(p.ready)
	p.fail = err
	if err != nil || len(p.early) == 0 && !p.closed {
		p.mu.Unlock()
		return
	}
	// Sent by a goroutine of its own, which ends with the command's stream:
	// Start does not wait for the command to read.
	go func() {
		defer p.mu.Unlock()
		err := p.cmd.sendInput(p.early, p.closed)
		p.early = nil
		if err != nil && !errors.Is(err, syscall.EPIPE) {
			p.fail = err
		}
	}()
}

// Write sends data and returns when the box has taken it.
func (p *inputPipe) Write(data []byte) (int, error) {
	p.mu.Lock()
	select {
	case <-p.ready:
	default:
		if !p.closed && len(p.early)+len(data) <= earlyInput {
			p.early = append(p.early, data...)
			p.mu.Unlock()
			return len(data), nil
		}
		if !p.closed {
			p.mu.Unlock()
			<-p.ready
			p.mu.Lock()
		}
	}
	defer p.mu.Unlock()
	if p.closed {
		return 0, os.ErrClosed
	}
	if p.fail != nil {
		return 0, p.fail
	}
	total := 0
	for len(data) > 0 {
		n := min(len(data), inputChunk)
		if err := p.cmd.sendInput(data[:n], false); err != nil {
			return total, err
		}
		total += n
		data = data[n:]
	}
	return total, nil
}

// Close ends the command's input. It may be called twice, and before Start.
func (p *inputPipe) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	select {
	case <-p.ready:
	default:
		return nil // open sends it
	}
	if p.fail != nil {
		return nil
	}
	if err := p.cmd.sendInput(nil, true); err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
}

// ends keeps the beginning and the end of what is written to it.
type ends struct {
	head, tail []byte
	dropped    int64
}

const endSize = 32 << 10

func (e *ends) Write(p []byte) (int, error) {
	n := len(p)
	if room := endSize - len(e.head); room > 0 {
		take := min(room, len(p))
		e.head = append(e.head, p[:take]...)
		p = p[take:]
	}
	if len(p) > endSize {
		e.dropped += int64(len(p) - endSize)
		p = p[len(p)-endSize:]
	}
	if over := len(e.tail) + len(p) - endSize; over > 0 {
		e.dropped += int64(over)
		e.tail = append(e.tail[:0], e.tail[over:]...)
	}
	e.tail = append(e.tail, p...)
	return n, nil
}

func (e *ends) bytes() []byte {
	out := append([]byte(nil), e.head...)
	if e.dropped > 0 {
		out = append(out, "\n... "...)
		out = strconv.AppendInt(out, e.dropped, 10)
		out = append(out, " bytes left out ...\n"...)
	}
	return append(out, e.tail...)
}
