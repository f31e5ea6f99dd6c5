package boxdir

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// The main command's output is kept in main.log, one JSON line a piece, and is
// rotated to main.log.1 and so on.
const (
	logSize  = 10 << 20
	logFiles = 3
	// logPiece is the longest entry.
	logPiece = 256 << 10
)

type logLine struct {
	Time   time.Time `json:"t"`
	Stderr bool      `json:"e,omitempty"`
	Data   []byte    `json:"d"`
}

// LogWriter appends to a box's main.log. It is not safe for concurrent use.
type LogWriter struct {
	b    *Box
	f    *os.File // nil when there is none to be had, and it is tried again
	size int64
}

// OpenLog opens the log for appending; only the keeper does.
func (b *Box) OpenLog() (*LogWriter, error) {
	w := &LogWriter{b: b}
	return w, w.open()
}

func (w *LogWriter) open() error {
	f, err := os.OpenFile(w.b.logPath(0), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	w.f, w.size = f, fi.Size()
	return nil
}

func (b *Box) logPath(n int) string {
	if n == 0 {
		return b.Path("main.log")
	}
	return b.Path("main.log." + string(rune('0'+n)))
}

// Write appends a piece of output, an entry a line. The end of a line may come
// in a later piece; it then has an entry of its own, as have the parts of a very
// long line.
func (w *LogWriter) Write(at time.Time, stderr bool, data []byte) error {
	for line := range bytes.Lines(data) {
		for part := range slices.Chunk(line, logPiece) {
			if err := w.writeEntry(at, stderr, part); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *LogWriter) writeEntry(at time.Time, stderr bool, data []byte) error {
	line, err := json.Marshal(logLine{Time: at, Stderr: stderr, Data: data})
	if err != nil {
		return err
	}
	if w.f == nil {
		if err := w.open(); err != nil {
			return err
		}
	}
	if w.size > 0 && w.size+int64(len(line)) > logSize {
		if err := w.rotate(); err != nil {
			return err
		}
	}
	n, err := w.f.Write(append(line, '\n'))
	w.size += int64(n)
	return err
}

func (w *LogWriter) rotate() error {
	w.f.Close()
	w.f = nil
	for n := logFiles - 1; n > 0; n-- {
		if err := os.Rename(w.b.logPath(n-1), w.b.logPath(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return w.open()
}

// Close closes the file.
func (w *LogWriter) Close() error {
	if w.f == nil {
		return nil
	}
	return w.f.Close()
}

// Logs yields the output of the main command, oldest first. With Follow it
// goes on until the box has stopped.
func (b *Box) Logs(ctx context.Context, opts box.LogOptions) iter.Seq2[box.LogEntry, error] {
	return func(yield func(box.LogEntry, error) bool) {
		if _, err := b.Load(); err != nil {
			yield(box.LogEntry{}, err)
			return
		}
		skip := 0
		if opts.Tail > 0 {
			total, open := 0, false
			for e, err := range b.readLogs(ctx, false) {
				if err != nil {
					yield(box.LogEntry{}, err)
					return
				}
				if !e.Time.Before(opts.Since) {
					if open = !endsLine(e); !open {
						total++
					}
				}
			}
			if open {
				total++ // a last line without its end
			}
			skip = max(0, total-opts.Tail)
		}
		for e, err := range b.readLogs(ctx, opts.Follow) {
			if err == nil && e.Time.Before(opts.Since) {
				continue
			}
			if err == nil && skip > 0 {
				if endsLine(e) {
					skip--
				}
				continue
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

func endsLine(e box.LogEntry) bool { return bytes.HasSuffix(e.Data, []byte("\n")) }

func (b *Box) readLogs(ctx context.Context, follow bool) iter.Seq2[box.LogEntry, error] {
	return func(yield func(box.LogEntry, error) bool) {
		for n := logFiles - 1; n > 0; n-- {
			t := &tail{path: b.logPath(n)}
			done := emitLines(ctx, t, func() bool { return true }, yield)
			t.close()
			if done {
				return
			}
		}
		t := &tail{path: b.logPath(0)}
		defer t.close()
		emitLines(ctx, t, func() bool { return !follow || !b.Alive() }, yield)
	}
}

// emitLines yields the entries of one file; true means that the caller is
// done.
func emitLines(ctx context.Context, t *tail, ended func() bool, yield func(box.LogEntry, error) bool) bool {
	for {
		line, err := t.next(ctx, ended)
		if errors.Is(err, io.EOF) {
			return false
		}
		if err != nil {
			yield(box.LogEntry{}, err)
			return true
		}
		var l logLine
		if json.Unmarshal(line, &l) != nil {
			continue // cut short by a crash
		}
		if !yield(box.LogEntry{Time: l.Time, Stderr: l.Stderr, Data: l.Data}, nil) {
			return true
		}
	}
}
