//go:build linux

package agent

import (
	"context"
	"errors"
	"sort"
	"sync"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
)

const (
	// logMax is how many bytes of output an exec keeps, and how far the fastest
	// stream may run ahead of the slowest.
	logMax = 1 << 20
	// runsMax bounds the number of switches between the two streams that are
	// kept, so that bytes written one at a time cost no more than the log.
	runsMax = 8192
	// logMin is the first allocation; most commands never write more.
	logMin = 4 << 10
)

// outputLog keeps the last logMax bytes that a command wrote, both streams in
// the order of arrival, counted by one offset. While readers are attached no
// byte is dropped that one of them still needs: append waits. With no reader
// the oldest bytes fall out.
type outputLog struct {
	mu      sync.Mutex
	buf     []byte    // a ring: the byte at offset o is buf[o%len(buf)]
	start   uint64    // offset of the oldest byte kept
	end     uint64    // offset after the newest
	runs    []stretch // the streams of [start,end), in order
	readers map[*logReader]struct{}
	space   chan struct{} // closed and replaced when append may go on
	waiting bool          // an append waits for space
	closed  bool          // no more output comes
}

// stretch is a piece of output of one stream that ends before offset end.
type stretch struct {
	end    uint64
	stream hutchv1.Stream
}

func newOutputLog() *outputLog {
	return &outputLog{readers: make(map[*logReader]struct{}), space: make(chan struct{})}
}

// append adds p, waiting for the slowest reader where need be. It returns
// early only when stop is closed.
func (l *outputLog) append(stream hutchv1.Stream, p []byte, stop <-chan struct{}) {
	for len(p) > 0 {
		l.mu.Lock()
		n := l.addLocked(stream, p)
		l.waiting = l.waiting || n == 0
		space := l.space
		l.mu.Unlock()
		p = p[n:]
		if n == 0 {
			select {
			case <-space:
			case <-stop:
				return
			}
		}
	}
}

// addLocked adds as much of p as the readers let it.
func (l *outputLog) addLocked(stream hutchv1.Stream, p []byte) int {
	need := l.end // the oldest byte that a reader still needs
	for r := range l.readers {
		need = min(need, r.pos)
	}
	n := min(len(p), int(logMax-(l.end-need)))
	newRun := len(l.runs) == 0 || l.runs[len(l.runs)-1].stream != stream
	if newRun && len(l.runs) >= runsMax {
		if need < l.runs[0].end {
			return 0
		}
		l.start = l.runs[0].end
		l.trimRunsLocked()
	}
	if n == 0 {
		return 0
	}
	l.growLocked(n)
	if over := l.end + uint64(n) - l.start; over > uint64(len(l.buf)) {
		l.start += over - uint64(len(l.buf))
	}
	at := int(l.end % uint64(len(l.buf)))
	copied := copy(l.buf[at:], p[:n])
	copy(l.buf, p[copied:n])
	l.end += uint64(n)
	if newRun {
		l.runs = append(l.runs, stretch{stream: stream})
	}
	l.runs[len(l.runs)-1].end = l.end
	l.trimRunsLocked()
	for r := range l.readers {
		r.notify()
	}
	return n
}

// trimRunsLocked forgets runs that ended before start.
func (l *outputLog) trimRunsLocked() {
	i := 0
	for i < len(l.runs)-1 && l.runs[i].end <= l.start {
		i++
	}
	if i > 0 {
		l.runs = l.runs[i:]
	}
}

// growLocked makes room for n more bytes, up to logMax in all.
func (l *outputLog) growLocked(n int) {
	want := int(l.end-l.start) + n
	size := max(len(l.buf), logMin)
	for size < want && size < logMax {
		size *= 2
	}
	if size == len(l.buf) {
		return
	}
	buf := make([]byte, size)
	for o := l.start; o < l.end; {
		c := l.chunkLocked(o, l.end)
		at := int(o % uint64(size))
		k := copy(buf[at:], c)
		copy(buf, c[k:])
		o += uint64(len(c))
	}
	l.buf = buf
}

// chunkLocked returns the contiguous part of the ring that begins at from and
// ends at to or before.
func (l *outputLog) chunkLocked(from, to uint64) []byte {
	at := int(from % uint64(len(l.buf)))
	n := min(int(to-from), len(l.buf)-at)
	return l.buf[at : at+n]
}

// close says that no more output comes, and wakes every reader.
func (l *outputLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for r := range l.readers {
		r.notify()
	}
}

// size returns the number of bytes written so far and of those kept.
func (l *outputLog) size() (total uint64, kept int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end, len(l.buf)
}

// logReader reads a log from one offset on. One goroutine uses it.
type logReader struct {
	log  *outputLog
	pos  uint64 // guarded by log.mu
	last uint64 // with once: where to end
	once bool
	wake chan struct{}
}

// notify never blocks.
func (r *logReader) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

var errOffset = errors.New("offset is beyond the output so far")

// attach adds a reader at offset, or at the oldest byte kept when that is
// later; skipped is the difference. With once the reader ends at the present
// end.
func (l *outputLog) attach(offset uint64, once bool) (r *logReader, skipped uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset > l.end {
		return nil, 0, errOffset
	}
	r = &logReader{log: l, pos: offset, last: l.end, once: once, wake: make(chan struct{}, 1)}
	if offset < l.start {
		skipped = l.start - offset
		r.pos = l.start
	}
	l.readers[r] = struct{}{}
	return r, skipped, nil
}

// close detaches the reader, so that it no longer holds the command back.
func (r *logReader) close() {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	delete(r.log.readers, r)
	r.log.spaceLocked()
}

func (l *outputLog) spaceLocked() {
	if !l.waiting {
		return
	}
	l.waiting = false
	close(l.space)
	l.space = make(chan struct{})
}

// next copies output into p: bytes of one stream that begin at offset. It
// waits for output; n is zero when there is none any more.
func (r *logReader) next(ctx context.Context, p []byte) (n int, stream hutchv1.Stream, offset uint64, err error) {
	for {
		l := r.log
		l.mu.Lock()
		to := l.end
		if r.once {
			to = r.last
		}
		if r.pos < to {
			u := l.runs[sort.Search(len(l.runs), func(i int) bool { return r.pos < l.runs[i].end })]
			stream, to = u.stream, min(to, u.end)
			offset = r.pos
			for n < len(p) && r.pos < to {
				k := copy(p[n:], l.chunkLocked(r.pos, to))
				n += k
				r.pos += uint64(k)
			}
			l.spaceLocked()
			l.mu.Unlock()
			return n, stream, offset, nil
		}
		done := l.closed || r.once
		l.mu.Unlock()
		if done {
			return 0, 0, 0, nil
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return 0, 0, 0, ctx.Err()
		}
	}
}
