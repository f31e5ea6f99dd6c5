package console_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/internal/x/console"
)

// mark is the line that ends a full log.
const mark = "\n[hutch: the console said more than is kept]\n"

func newLog(t testing.TB, limit int) (*console.Log, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "console.log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return console.New(f, limit), path
}

// TestFlood: two speakers that never stop fill neither the file nor memory, and
// the end of what they said is known.
func TestFlood(t *testing.T) {
	l, path := newLog(t, 64<<10)
	for range 2 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		l.Follow(r)
		defer l.Wait()
		go func() {
			defer w.Close()
			for range 1000 {
				if _, err := w.Write(bytes.Repeat([]byte("\x00\xffflood"), 2000)); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	l.Wait()
	l.Note("the last word")
	if fi, err := os.Stat(path); err != nil || fi.Size() != int64(64<<10+len(mark)) {
		t.Errorf("the file: %v, %v", fi.Size(), err)
	}
	if end := string(l.End()); len(end) > 8<<10 || !strings.HasSuffix(end, "[hutch: the last word]\n") {
		t.Errorf("the end has %d bytes and is %q", len(end), end[max(0, len(end)-40):])
	}
}

// TestNoDisk: who speaks does not hear of a file that takes nothing.
func TestNoDisk(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "console.log"))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	l := console.New(f, 1000)
	if n, err := l.Write(bytes.Repeat([]byte{1}, 5000)); n != 5000 || err != nil {
		t.Errorf("write: %d, %v", n, err)
	}
}

// FuzzLog: in whatever pieces it comes, the file has the beginning of what was
// said up to the limit, then the mark, and End its last 8 KiB.
func FuzzLog(f *testing.F) {
	f.Add([]byte("hello\nworld\n"), uint16(3), uint16(8))
	f.Add([]byte{}, uint16(0), uint16(0))
	f.Add(bytes.Repeat([]byte("0123456789"), 2000), uint16(4096), uint16(10000))
	f.Add(bytes.Repeat([]byte{0xff}, 9000), uint16(9000), uint16(9000))
	f.Add(bytes.Repeat([]byte{'\n'}, 8193), uint16(1), uint16(1))
	f.Fuzz(func(t *testing.T, data []byte, piece, limit uint16) {
		l, path := newLog(t, int(limit))
		for rest := data; len(rest) > 0; {
			n := min(len(rest), int(piece)+1)
			if m, err := l.Write(rest[:n]); m != n || err != nil {
				t.Fatalf("write: %d, %v", m, err)
			}
			rest = rest[n:]
		}
		l.Follow(io.NopCloser(strings.NewReader("")))
		l.Wait()
		want := string(data[:min(len(data), int(limit))])
		if limit > 0 && len(data) >= int(limit) {
			want += mark
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("the file has %d bytes, want %d, or they differ: %v", len(got), len(want), err)
		}
		if end := data[max(0, len(data)-8<<10):]; !bytes.Equal(l.End(), end) {
			t.Errorf("the end has %d bytes, want %d, or they differ", len(l.End()), len(end))
		}
	})
}
