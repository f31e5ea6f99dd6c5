package boxdir

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"sync"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// The network log is net.log and, when that has grown to netLogSize, net.log.1:
// one JSON line a record. A box can make its gateway say something as often as
// it likes, so that records are dropped, and counted, when there are too many.
const (
	netLogSize  = 4 << 20
	netLogQueue = 1024
	netLogRate  = 500 // lines a second, in the long run
	netLogBurst = 5000
)

// NetLog writes a box's network log, in a goroutine of its own so that nobody
// waits for the disk. Its methods may be called concurrently.
type NetLog struct {
	b     *Box
	queue chan box.NetRecord
	done  chan struct{}

	mu      sync.Mutex // guards the fields below
	closed  bool
	dropped int64
	have    float64
	last    time.Time
}

// OpenNetLog opens the network log for appending; only the keeper does. Close
// it.
func (b *Box) OpenNetLog() (*NetLog, error) {
	f, err := b.openNetLog()
	if err != nil {
		return nil, err
	}
	l := &NetLog{b: b, queue: make(chan box.NetRecord, netLogQueue), done: make(chan struct{}), have: netLogBurst, last: time.Now()}
	go l.write(f)
	return l, nil
}

func (b *Box) openNetLog() (*os.File, error) {
	return os.OpenFile(b.Path("net.log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

// Record takes a record, or counts it as lost when there are too many. It does
// not wait.
func (l *NetLog) Record(r box.NetRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	now := time.Now()
	l.have = min(netLogBurst, l.have+now.Sub(l.last).Seconds()*netLogRate)
	l.last = now
	if l.have < 1 {
		l.dropped++
		return
	}
	if l.dropped > 0 {
		select {
		case l.queue <- box.NetRecord{Time: now, Kind: box.NetLost, Reason: "too many records a second", Count: l.dropped}:
			l.dropped = 0
		default:
		}
	}
	select {
	case l.queue <- r:
		l.have--
	default:
		l.dropped++
	}
}

// Close writes what was recorded and closes the file. It may be called twice.
func (l *NetLog) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.queue)
	}
	l.mu.Unlock()
	<-l.done
}

func (l *NetLog) write(f *os.File) {
	defer close(l.done)
	size := int64(0)
	if fi, err := f.Stat(); err == nil {
		size = fi.Size()
	}
	for r := range l.queue {
		line, err := json.Marshal(r)
		if err != nil {
			continue
		}
		if size > 0 && size+int64(len(line)) > netLogSize && f != nil {
			f.Close()
			// Without the old file or room for a new one, the box goes on and
			// what it does is not written down.
			_ = os.Rename(l.b.Path("net.log"), l.b.Path("net.log.1"))
			if f, err = l.b.openNetLog(); err != nil {
				f = nil
			}
			size = 0
		}
		if f != nil {
			n, _ := f.Write(append(line, '\n'))
			size += int64(n)
		}
	}
	if f != nil {
		f.Close()
	}
}

// NetLog yields the box's network log, oldest first. With Follow it goes on
// until the box has stopped.
func (b *Box) NetLog(ctx context.Context, opts box.LogOptions) iter.Seq2[box.NetRecord, error] {
	return func(yield func(box.NetRecord, error) bool) {
		if _, err := b.Load(); err != nil {
			yield(box.NetRecord{}, err)
			return
		}
		skip := 0
		if opts.Tail > 0 {
			total := 0
			for r, err := range b.readNetLog(ctx, false) {
				if err != nil {
					yield(r, err)
					return
				}
				if !r.Time.Before(opts.Since) {
					total++
				}
			}
			skip = max(0, total-opts.Tail)
		}
		for r, err := range b.readNetLog(ctx, opts.Follow) {
			if err == nil && r.Time.Before(opts.Since) {
				continue
			}
			if err == nil && skip > 0 {
				skip--
				continue
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

func (b *Box) readNetLog(ctx context.Context, follow bool) iter.Seq2[box.NetRecord, error] {
	return func(yield func(box.NetRecord, error) bool) {
		for _, file := range []struct {
			name  string
			ended func() bool
		}{
			{"net.log.1", func() bool { return true }},
			{"net.log", func() bool { return !follow || !b.Alive() }},
		} {
			t := &tail{path: b.Path(file.name)}
			for {
				line, err := t.next(ctx, file.ended)
				if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
					break
				}
				if err != nil {
					t.close()
					yield(box.NetRecord{}, err)
					return
				}
				var r box.NetRecord
				if json.Unmarshal(line, &r) != nil {
					continue // cut short by a crash
				}
				if !yield(r, nil) {
					t.close()
					return
				}
			}
			t.close()
		}
	}
}
