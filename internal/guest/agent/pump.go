//go:build linux

package agent

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
)

// pump carries one output pipe, or the terminal, into the log. Its goroutine
// (run) is the only reader.
//
// A file that the Go runtime polls wakes this process with every write to it,
// also while nobody waits to read. For a program that writes byte by byte that
// costs more than all else, so while a pump lets such output pile up it takes
// the pipe away from the poller. A terminal stays there: it is written to, too.
type pump struct {
	stream hutchv1.Stream
	pipe   bool
	done   chan struct{} // closed when the log has all it will get
	must   chan int      // how many bytes were in the pipe when the command ended

	mu       sync.Mutex
	file     *os.File // nil while away from the poller
	fd       int      // the pipe while away, else -1
	deadline time.Time
	closed   bool
}

func newPump(f *os.File, stream hutchv1.Stream, pipe bool) *pump {
	return &pump{file: f, fd: -1, stream: stream, pipe: pipe, done: make(chan struct{}), must: make(chan int, 1)}
}

// close closes the file, and so ends a Read.
func (p *pump) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.file != nil {
		p.file.Close()
	}
	if p.fd >= 0 {
		unix.Close(p.fd)
		p.fd = -1
	}
}

// leave takes the pipe away from the poller. Reads do not wait then.
func (p *pump) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.pipe || p.file == nil {
		return
	}
	raw, err := p.file.SyscallConn()
	if err != nil {
		return
	}
	fd := -1
	cerr := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if cerr != nil || err != nil {
		return // it stays, and works all the same
	}
	p.file.Close()
	p.file, p.fd = nil, fd
}

// join gives the pipe back to the poller.
func (p *pump) join() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd < 0 {
		return
	}
	p.file, p.fd = os.NewFile(uintptr(p.fd), "pipe"), -1
	if !p.deadline.IsZero() {
		_ = p.file.SetReadDeadline(p.deadline)
	}
}

// read reads what is there. It waits for something to be there unless the pump
// is away from the poller.
func (p *pump) read(buf []byte) (int, error) {
	p.mu.Lock()
	if f := p.file; f != nil {
		p.mu.Unlock()
		return f.Read(buf)
	}
	defer p.mu.Unlock()
	if p.closed {
		return 0, os.ErrClosed
	}
	for {
		switch n, err := unix.Read(p.fd, buf); {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, nil
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// setDeadline bounds how long a read waits; zero: for ever.
func (p *pump) setDeadline(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = t
	if p.file != nil {
		_ = p.file.SetReadDeadline(t)
	}
}

// queued is how many bytes can be read at once.
func (p *pump) queued() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	count := func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }
	if p.fd >= 0 {
		count(uintptr(p.fd))
	} else if p.file != nil {
		if raw, err := p.file.SyscallConn(); err == nil {
			_ = raw.Control(count)
		}
	}
	return max(n, 0)
}

// run reads until the other ends of the pipe are all closed, which may be long
// after done.
func (p *pump) run(log *outputLog, stop <-chan struct{}) {
	buf := pumpBuffers.get()
	defer pumpBuffers.put(buf)
	must, ended := 0, false
	pace := newPace()
	for {
		if d := pace.delay; d > 0 && !ended {
			p.leave()
			select {
			case must = <-p.must:
				ended = true
			case <-time.After(d):
			}
		}
		if ended || pace.delay == 0 {
			p.join()
		}
		n, err := p.read(*buf)
		pace.read(n, time.Now())
		if ended {
			must -= n
		} else {
			// Whether these n bytes were counted is not known. If so, flush takes a
			// few more than it had to.
			select {
			case must = <-p.must:
				ended = true
			default:
			}
		}
		log.append(p.stream, (*buf)[:n], stop)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.setDeadline(time.Time{})
			p.flush(log, must, *buf, stop)
			close(p.done)
			p.discard(*buf)
			return
		}
		if err != nil { // the end; a terminal says EIO
			p.close()
			close(p.done)
			return
		}
	}
}

// flush takes what is left of the bytes that the command had written when it
// ended, without waiting for others.
func (p *pump) flush(log *outputLog, must int, buf []byte, stop <-chan struct{}) {
	p.leave()
	for must > 0 && p.queued() > 0 {
		n, err := p.read(buf[:min(len(buf), must)])
		if err != nil || n == 0 {
			break
		}
		log.append(p.stream, buf[:n], stop)
		must -= n
	}
	p.join()
}

// discard keeps a background job's output flowing to nowhere.
func (p *pump) discard(buf []byte) {
	for {
		if _, err := p.read(buf); err != nil {
			p.close()
			return
		}
	}
}

// pace lets output that comes in crumbs pile up for a moment. A program that
// writes byte by byte would otherwise have every byte travel alone, which
// costs a thousand times what the byte does. Output that comes now and then is
// never held back. Nor, after a few trials, is the output of a program that
// writes each piece only after the last was answered: holding that back gathers
// nothing.
type pace struct {
	delay time.Duration // before the next read; zero: none

	need int // so many crumbs in a row begin a gathering
	row  int // crumbs in a row
	sum  int // their bytes
	last time.Time

	mean int // bytes of a crumb before the gathering
	poor int // delays in a row that gathered nothing
}

const (
	crumb      = 512                  // a read of fewer bytes is a crumb
	crumbGap   = 5 * time.Millisecond // crumbs that are further apart are in no row
	crumbRow   = 16
	crumbRows  = 1 << 16 // what need grows to
	minDelay   = 2 * time.Millisecond
	maxDelay   = 32 * time.Millisecond
	plenty     = 8 << 10 // a delay that gathers as much is too long
	poorDelays = 2
)

func newPace() *pace { return &pace{need: crumbRow} }

// read takes note of a read of n bytes, made at that time after the delay.
func (p *pace) read(n int, now time.Time) {
	if p.delay > 0 {
		p.gathered(n)
		p.last = now
		return
	}
	if n < crumb && now.Sub(p.last) < crumbGap {
		p.row++
		p.sum += n
	} else {
		p.row, p.sum = 0, 0
	}
	p.last = now
	if p.row >= p.need {
		p.delay, p.mean, p.poor = minDelay, p.sum/p.row, 0
	}
}

func (p *pace) gathered(n int) {
	switch {
	case n == 0: // it writes no more
		p.stop()
	case n < 2*p.mean:
		if p.poor++; p.poor == poorDelays {
			p.stop()
			p.need = min(4*p.need, crumbRows)
		}
	case n < crumb:
		p.poor, p.need = 0, crumbRow
		p.delay = min(2*p.delay, maxDelay)
	case n > plenty:
		p.poor = 0
		if p.delay /= 2; p.delay < minDelay {
			p.stop()
		}
	default:
		p.poor = 0
	}
}

func (p *pace) stop() { p.delay, p.row, p.sum = 0, 0, 0 }

// pumpSet is the pumps that read; closing them ends those.
type pumpSet struct {
	mu     sync.Mutex
	pumps  map[*pump]struct{}
	closed bool
}

func (s *pumpSet) add(p *pump) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		p.close()
		return
	}
	if s.pumps == nil {
		s.pumps = make(map[*pump]struct{})
	}
	s.pumps[p] = struct{}{}
}

func (s *pumpSet) remove(p *pump) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pumps, p)
}

func (s *pumpSet) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for p := range s.pumps {
		p.close()
	}
}
