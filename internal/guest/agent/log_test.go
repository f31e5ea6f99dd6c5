//go:build linux

package agent

import (
	"bytes"
	"context"
	"errors"
	"math/rand"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
)

const (
	stdout = hutchv1.Stream_STREAM_STDOUT
	stderr = hutchv1.Stream_STREAM_STDERR
)

// readAll reads until the log has nothing more, and checks the offsets.
func readAll(t *testing.T, r *logReader, bufSize int) (out, err []byte) {
	t.Helper()
	buf := make([]byte, bufSize)
	next, first := uint64(0), true
	for {
		n, stream, offset, e := r.next(context.Background(), buf)
		if e != nil {
			t.Fatal(e)
		}
		if n == 0 {
			return out, err
		}
		if !first && offset != next {
			t.Fatalf("offset %d, want %d", offset, next)
		}
		first, next = false, offset+uint64(n)
		if stream == stderr {
			err = append(err, buf[:n]...)
		} else {
			out = append(out, buf[:n]...)
		}
	}
}

func TestLogKeepsTheNewest(t *testing.T) {
	l := newOutputLog()
	rng := rand.New(rand.NewSource(3))
	var all []byte
	for len(all) < 3*logMax {
		p := make([]byte, 1+rng.Intn(100_000))
		rng.Read(p)
		l.append(stdout, p, nil)
		all = append(all, p...)
	}
	l.close()
	for _, offset := range []int{0, len(all) - logMax, len(all) - 12345, len(all)} {
		r, skipped, err := l.attach(uint64(offset), false)
		if err != nil {
			t.Fatal(err)
		}
		from := max(offset, len(all)-logMax)
		if int(skipped) != from-offset {
			t.Errorf("from %d: %d skipped, want %d", offset, skipped, from-offset)
		}
		if got, _ := readAll(t, r, 1000); !bytes.Equal(got, all[from:]) {
			t.Errorf("from %d: wrong bytes", offset)
		}
		r.close()
	}
	if _, _, err := l.attach(uint64(len(all)+1), false); !errors.Is(err, errOffset) {
		t.Errorf("beyond the end: %v", err)
	}
}

// A small output must not cost the whole ring, and switching streams with
// every byte must not cost more than it.
func TestLogMemory(t *testing.T) {
	l := newOutputLog()
	l.append(stdout, []byte("hello"), nil)
	if len(l.buf) != logMin {
		t.Errorf("%d bytes allocated for 5", len(l.buf))
	}
	for i := range 4 * runsMax {
		l.append([]hutchv1.Stream{stdout, stderr}[i%2], []byte{byte(i)}, nil)
	}
	if len(l.runs) > runsMax {
		t.Errorf("%d runs, at most %d are allowed", len(l.runs), runsMax)
	}
	l.close()
	r, skipped, err := l.attach(0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	out, errOut := readAll(t, r, 100)
	if uint64(len(out)+len(errOut))+skipped != l.end || len(out)+len(errOut) < runsMax/2 {
		t.Errorf("%d + %d bytes and %d skipped of %d", len(out), len(errOut), skipped, l.end)
	}
}

func TestLogWaitsForTheSlowest(t *testing.T) {
	l := newOutputLog()
	r, _, err := l.attach(0, false)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, logMax+100)
	rand.New(rand.NewSource(4)).Read(data)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.append(stdout, data, nil)
		l.close()
	}()
	eventually(t, "the writer waits", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.waiting
	})
	select {
	case <-done:
		t.Fatal("the writer did not wait")
	default:
	}
	if got, _ := readAll(t, r, 777); !bytes.Equal(got, data) {
		t.Error("bytes were lost")
	}
	<-done
	r.close()
}

// A reader that leaves, and a stop, both free a writer that waits.
func TestLogWriterIsFreed(t *testing.T) {
	for _, byStop := range []bool{false, true} {
		l := newOutputLog()
		r, _, err := l.attach(0, false)
		if err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.append(stdout, make([]byte, 2*logMax), stop)
		}()
		eventually(t, "the writer waits", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.waiting
		})
		if byStop {
			close(stop)
		} else {
			r.close()
		}
		select {
		case <-done:
		case <-time.After(hang):
			t.Fatalf("still waiting (stop: %t)", byStop)
		}
	}
}

func TestLogReadIsCancelled(t *testing.T) {
	l := newOutputLog()
	r, _, err := l.attach(0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, _, err := r.next(ctx, make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestParseStat(t *testing.T) {
	tail := " S 1 2 3 4 5 6 7 8 9 10 100 50 0 0 20 0 1 0 777 4096 25 18446744073709551615"
	for _, comm := range []string{"sh", "a b", "x) R 9 9 (y", "new\nline", ""} {
		p, ok := parseStat([]byte("42 (" + comm + ")" + tail))
		if !ok || p.pid != 42 || p.comm != comm || p.ppid != 1 || p.pgrp != 2 || p.session != 3 || p.state != 'S' || p.start != 777 ||
			p.cpu() != 1500*time.Millisecond || p.rss == 0 {
			t.Errorf("%q: %+v, %t", comm, p, ok)
		}
	}
	for _, bad := range []string{"", "42", "42 (sh", "42 (sh) S 1", "x (sh)" + tail} {
		if _, ok := parseStat([]byte(bad)); ok {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestDefaultHosts(t *testing.T) {
	for _, tt := range []struct {
		content string
		want    bool
	}{
		{"", true},
		{"# comment\n127.0.0.1 localhost\n::1 localhost ip6-localhost\n", true},
		{string(hostsFile("oldname")), true},
		{string(hostsFile("oldname")) + "10.0.0.1 db\n", false},
		{"127.0.0.1 localhost\n10.0.0.1 db\n", false},
	} {
		if got := defaultHosts([]byte(tt.content)); got != tt.want {
			t.Errorf("%q: %t", tt.content, got)
		}
	}
}
