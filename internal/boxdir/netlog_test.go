package boxdir

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

func newNetBox(t *testing.T) *Box {
	t.Helper()
	h, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := h.Create(Record{State: box.Created})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func readAll(t *testing.T, b *Box, opts box.LogOptions) []box.NetRecord {
	t.Helper()
	var out []box.NetRecord
	for r, err := range b.NetLog(t.Context(), opts) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func TestNetLog(t *testing.T) {
	b := newNetBox(t)
	if got := readAll(t, b, box.LogOptions{}); len(got) != 0 {
		t.Errorf("a new box has %v", got)
	}
	at := time.Now().Round(0)
	for boot := range 2 {
		l, err := b.OpenNetLog()
		if err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			l.Record(box.NetRecord{Time: at.Add(time.Duration(boot*3+n) * time.Second), Kind: box.NetDNS, Name: fmt.Sprint(boot*3 + n)})
		}
		l.Close()
		l.Close()
		l.Record(box.NetRecord{}) // after the end: dropped
	}
	names := func(opts box.LogOptions) (s string) {
		for _, r := range readAll(t, b, opts) {
			s += r.Name
		}
		return s
	}
	for want, opts := range map[string]box.LogOptions{
		"012345": {}, "45": {Tail: 2}, "345": {Since: at.Add(3 * time.Second)}, "5": {Since: at.Add(3 * time.Second), Tail: 1},
	} {
		if got := names(opts); got != want {
			t.Errorf("%+v: %q, want %q", opts, got, want)
		}
	}
}

// TestNetLogIsBounded: however much a box makes its gateway say, the files stay
// small, and the log tells how much is missing.
func TestNetLogIsBounded(t *testing.T) {
	b := newNetBox(t)
	long := fmt.Sprintf("%02000d", 1)
	for range 4 {
		l, err := b.OpenNetLog()
		if err != nil {
			t.Fatal(err)
		}
		for range 4 * netLogBurst / 3 {
			l.Record(box.NetRecord{Kind: box.NetFlow, Name: long})
		}
		l.Close()
	}
	for _, name := range []string{"net.log", "net.log.1"} {
		fi, err := os.Stat(b.Path(name))
		if err != nil {
			t.Fatal(err)
		}
		if fi.Size() > netLogSize+10000 {
			t.Errorf("%s has %d bytes", name, fi.Size())
		}
	}
	if total := len(readAll(t, b, box.LogOptions{})); total == 0 {
		t.Error("nothing is left")
	}
	l, err := b.OpenNetLog()
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	l.have = 0
	l.mu.Unlock()
	for range 100 {
		l.Record(box.NetRecord{Kind: box.NetFlow})
	}
	l.mu.Lock()
	l.have = 10
	l.mu.Unlock()
	l.Record(box.NetRecord{Kind: box.NetDNS, Name: "after"})
	l.Close()
	found := false
	for _, r := range readAll(t, b, box.LogOptions{Tail: 2}) {
		found = found || r.Kind == box.NetLost && r.Count > 50
	}
	if !found {
		t.Error("the log does not tell what is missing")
	}
}
