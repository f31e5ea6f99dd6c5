package boxdir

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

// eventLogSize is where the event log is rotated, in bytes.
const eventLogSize = 4 << 20

// pollInterval is how often files that other processes append to are looked at.
const pollInterval = 50 * time.Millisecond

// Emit appends an event to the home's log. Events inform; a full disk must not
// stop a box, so that errors are dropped.
func (h *Home) Emit(ev box.Event) {
	if ev.Time.IsZero() {
		ev.Time = time.Now()
	}
	data, err := json.Marshal(ev)
	if err != nil {
		return
	}
	f, err := os.OpenFile(h.Path("events.log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	// One write with O_APPEND is one line, whoever else writes.
	_, _ = f.Write(append(data, '\n'))
	if fi, err := f.Stat(); err == nil && fi.Size() > eventLogSize {
		h.rotateEvents(f)
	}
}

// rotateEvents moves the log aside if it still is the one that f has open.
func (h *Home) rotateEvents(f *os.File) {
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	}
	var open, named unix.Stat_t
	if unix.Fstat(int(f.Fd()), &open) == nil && unix.Stat(h.Path("events.log"), &named) == nil && open.Ino == named.Ino {
		_ = os.Rename(h.Path("events.log"), h.Path("events.log.1"))
	}
}

// Events yields the events from the call on, until ctx ends.
func (h *Home) Events(ctx context.Context) iter.Seq2[box.Event, error] {
	// Where "now" is, is settled by the call and not by the first use of the
	// iterator, so that nothing between the two is missed.
	t := &tail{path: h.Path("events.log")}
	err := t.seekEnd()
	return func(yield func(box.Event, error) bool) {
		defer t.close()
		if err != nil {
			yield(box.Event{}, err)
			return
		}
		for {
			line, err := t.next(ctx, nil)
			if err != nil {
				if !errors.Is(err, io.EOF) && ctx.Err() == nil {
					yield(box.Event{}, err)
				}
				return
			}
			var ev box.Event
			if json.Unmarshal(line, &ev) != nil {
				continue // cut short by a crash
			}
			if !yield(ev, nil) {
				return
			}
		}
	}
}

// tail reads lines that other processes append, across one rotation.
type tail struct {
	path string
	f    *os.File
	r    *bufio.Reader
	part []byte
}

func (t *tail) seekEnd() error {
	f, err := os.Open(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		f.Close()
		return err
	}
	t.use(f)
	return nil
}

func (t *tail) use(f *os.File) {
	t.close()
	t.f, t.r, t.part = f, bufio.NewReaderSize(f, 64<<10), nil
}

func (t *tail) close() {
	if t.f != nil {
		t.f.Close()
		t.f = nil
	}
}

// next returns the next whole line. ended, where given, says that nobody will
// append any more: then the end of the file is io.EOF.
func (t *tail) next(ctx context.Context, ended func() bool) ([]byte, error) {
	for {
		over := ended != nil && ended() // asked before the read: what was written before it is still seen
		if t.f != nil {
			line, err := t.r.ReadBytes('\n')
			t.part = append(t.part, line...)
			if err == nil {
				whole := t.part
				t.part = nil
				return bytes.TrimSuffix(whole, []byte("\n")), nil
			}
			if !errors.Is(err, io.EOF) {
				return nil, err
			}
		}
		if t.reopened() {
			continue
		}
		if over {
			return nil, io.EOF
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

// reopened switches to a file that took the path over.
func (t *tail) reopened() bool {
	var open, named unix.Stat_t
	if unix.Stat(t.path, &named) != nil {
		return false
	}
	if t.f != nil && (unix.Fstat(int(t.f.Fd()), &open) != nil || open.Ino == named.Ino) {
		return false
	}
	f, err := os.Open(t.path)
	if err != nil {
		return false
	}
	t.use(f)
	return true
}
