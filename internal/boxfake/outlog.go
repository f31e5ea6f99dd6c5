package boxfake

import (
	"io"
	"sync"

	"github.com/hutch-sandbox/hutch/box"
)

const (
	// replayBytes is how much output is kept for those who attach later.
	replayBytes = 1 << 20
	// lagBytes is how far the stream that owns a command may be behind before
	// the command waits.
	lagBytes = 2 << 20
	pieceMax = 64 << 10
)

type piece struct {
	stderr bool
	data   []byte
	offset int64
}

// outputLog is a command's output: a window of the last bytes, and the streams
// that read it.
type outputLog struct {
	mu      sync.Mutex
	change  sync.Cond
	pieces  []piece
	total   int64
	exit    *box.ExitStatus
	broken  error // the box is gone
	streams map[*stream]bool
	stopped bool // nobody may wait for readers any more
}

func newLog() *outputLog {
	l := &outputLog{streams: make(map[*stream]bool)}
	l.change.L = &l.mu
	return l
}

// write appends a copy of p. It waits for streams that follow from the start.
func (l *outputLog) write(stderr bool, p []byte) {
	for len(p) > 0 {
		n := min(len(p), pieceMax)
		l.mu.Lock()
		for !l.stopped && l.slowest() < l.total-lagBytes {
			l.change.Wait()
		}
		if i := len(l.pieces) - 1; i >= 0 && l.pieces[i].stderr == stderr && len(l.pieces[i].data)+n <= pieceMax {
			l.pieces[i].data = append(l.pieces[i].data, p[:n]...)
		} else {
			l.pieces = append(l.pieces, piece{stderr, append([]byte(nil), p[:n]...), l.total})
		}
		l.total += int64(n)
		keep := min(l.slowest(), l.total-replayBytes)
		for len(l.pieces) > 0 && l.pieces[0].offset+int64(len(l.pieces[0].data)) <= keep {
			l.pieces[0].data = nil
			l.pieces = l.pieces[1:]
		}
		l.change.Broadcast()
		l.mu.Unlock()
		p = p[n:]
	}
}

// slowest is the position of the last stream that must not miss anything.
func (l *outputLog) slowest() int64 {
	at := l.total
	for s := range l.streams {
		if s.complete && !s.closed {
			at = min(at, s.pos)
		}
	}
	return at
}

// stop lets no writer wait any more, for a command that is being killed.
func (l *outputLog) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.change.Broadcast()
}

func (l *outputLog) end(exit *box.ExitStatus, broken error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.exit == nil && l.broken == nil {
		l.exit, l.broken = exit, broken
	}
	l.stopped = true
	l.change.Broadcast()
}

// stream is a box.ProcessStream.
type stream struct {
	log      *outputLog
	id       string
	pos      int64
	complete bool // follows from the start: never skips
	noFollow bool
	closed   bool
	ended    bool
	onClose  func()
}

func (l *outputLog) follow(id string, opts box.AttachOptions, complete bool, onClose func()) *stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &stream{log: l, id: id, pos: opts.Offset, complete: complete, noFollow: opts.NoFollow, onClose: onClose}
	l.streams[s] = true
	return s
}

func (s *stream) ID() string { return s.id }

func (s *stream) Recv() (box.ProcessEvent, error) {
	l := s.log
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if s.closed {
			return box.ProcessEvent{}, &box.Error{Kind: box.Canceled, Op: "exec", Object: s.id, Err: io.ErrClosedPipe}
		}
		if s.ended {
			return box.ProcessEvent{}, io.EOF
		}
		for _, p := range l.pieces {
			if p.offset > s.pos {
				skipped := p.offset - s.pos
				s.pos = p.offset
				return box.ProcessEvent{Skipped: skipped}, nil
			}
			if skip := s.pos - p.offset; skip < int64(len(p.data)) {
				data := p.data[skip:]
				s.pos += int64(len(data))
				l.change.Broadcast()
				return box.ProcessEvent{Stderr: p.stderr, Data: append([]byte(nil), data...)}, nil
			}
		}
		switch {
		case l.exit != nil:
			s.ended = true
			exit := *l.exit
			return box.ProcessEvent{Exit: &exit}, nil
		case l.broken != nil:
			return box.ProcessEvent{}, l.broken
		case s.noFollow:
			s.ended = true
			continue
		}
		l.change.Wait()
	}
}

func (s *stream) Close() error {
	s.log.mu.Lock()
	was := s.closed
	s.closed = true
	delete(s.log.streams, s)
	s.log.change.Broadcast()
	s.log.mu.Unlock()
	if !was && s.onClose != nil {
		s.onClose()
	}
	return nil
}
