package boxdir

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// TestLogIsBounded: neither many lines nor one without an end fill more than
// the files' sizes, and what is left is what was said last.
func TestLogIsBounded(t *testing.T) {
	b := newNetBox(t)
	w, err := b.OpenLog()
	if err != nil {
		t.Fatal(err)
	}
	long := bytes.Repeat([]byte("x"), 15<<20)
	for range 4 {
		if err := w.Write(time.Now(), false, long); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Write(time.Now(), true, bytes.Repeat([]byte("\n"), 100_000)); err != nil {
		t.Fatal(err)
	}
	if err := w.Write(time.Now(), false, []byte("last")); err != nil {
		t.Fatal(err)
	}
	for n := range logFiles {
		fi, err := os.Stat(b.logPath(n))
		if err != nil {
			t.Fatal(err)
		}
		if fi.Size() > logSize+1 {
			t.Errorf("%s has %d bytes", b.logPath(n), fi.Size())
		}
	}
	var last box.LogEntry
	for e, err := range b.Logs(t.Context(), box.LogOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		last = e
	}
	if string(last.Data) != "last" {
		t.Errorf("the last entry is %.20q", last.Data)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestLogComesBack: a log that could not be turned over is written again when
// it can.
func TestLogComesBack(t *testing.T) {
	b := newNetBox(t)
	w, err := b.OpenLog()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(b.logPath(2)+"/x", 0o700); err != nil { // a file cannot replace it
		t.Fatal(err)
	}
	if err := os.WriteFile(b.logPath(1), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.size = logSize
	for range 2 {
		if err := w.Write(time.Now(), false, []byte("lost\n")); err == nil {
			t.Fatal("the log was turned over")
		}
		w.size = logSize
		if w.f != nil {
			t.Fatal("the old file is open")
		}
		if err := os.Truncate(b.logPath(0), logSize); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(b.logPath(2)); err != nil {
		t.Fatal(err)
	}
	if err := w.Write(time.Now(), false, []byte("kept\n")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
