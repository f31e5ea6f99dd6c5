//go:build linux

package agent

import (
	"bytes"
	"io"
	"math/rand"
	"os"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
)

// paced reads the output of a program for a while. Avail says how many bytes
// are there at a time, of those that were not read by then; the program has
// read answers up to then. It returns how many reads brought something and how
// many of them were delayed.
func paced(until time.Duration, avail func(now time.Duration, read int) int) (reads, delayed int) {
	const cost = 50 * time.Microsecond // of a read
	p := newPace()
	begin := time.Unix(1000, 0)
	read := 0
	for now := time.Duration(0); now < until; {
		held := p.delay > 0
		now += p.delay + cost
		n := avail(now, read)
		for n == 0 && !held {
			now += cost
			n = avail(now, read)
		}
		if n > 0 {
			reads++
			if held {
				delayed++
			}
		}
		read += n
		p.read(n, begin.Add(now))
	}
	return reads, delayed
}

func TestPace(t *testing.T) {
	for _, tc := range []struct {
		name                 string
		avail                func(now time.Duration, read int) int
		maxReads, maxDelayed int // in ten seconds
	}{
		{"a byte every 100 µs", func(now time.Duration, read int) int { return int(now/(100*time.Microsecond)) - read }, 400, 400},
		{"a byte every 5 µs", func(now time.Duration, read int) int { return int(now/(5*time.Microsecond)) - read }, 3000, 3000},
		{"a line now and then", func(now time.Duration, read int) int { return 20*int(now/(20*time.Millisecond)) - read }, 500, 0},
		{"in bulk", func(time.Duration, int) int { return 64 << 10 }, 1 << 30, 0},
		{"one piece for each that was taken", func(time.Duration, int) int { return 30 }, 1 << 30, 20},
	} {
		reads, delayed := paced(10*time.Second, tc.avail)
		if reads > tc.maxReads || delayed > tc.maxDelayed {
			t.Errorf("%s: %d reads, %d delayed; want %d and %d at most", tc.name, reads, delayed, tc.maxReads, tc.maxDelayed)
		}
	}
}

// What a program writes byte by byte, in lines and in bulk arrives exactly,
// with the pipe away from the poller and back.
func TestPumpChangesPace(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := newPump(r, hutchv1.Stream_STREAM_STDOUT, true)
	log := newOutputLog()
	reader, _, err := log.attach(0, false)
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	collected := make(chan error, 1)
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, _, _, err := reader.next(testContext(t), buf)
			if n == 0 {
				collected <- err
				return
			}
			got = append(got, buf[:n]...)
		}
	}()
	go func() {
		p.run(log, nil)
		log.close()
	}()
	want := make([]byte, 1<<20)
	rnd := rand.New(rand.NewSource(7))
	rnd.Read(want)
	for rest := want; len(rest) > 0; {
		size := []int{1, 1, 1, 80, 64 << 10}[rnd.Intn(5)]
		for range 200 {
			n := min(size, len(rest))
			if _, err := w.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
	}
	// Its command ends, with bytes in the pipe that another process keeps open.
	if _, err := io.WriteString(w, "last"); err != nil {
		t.Fatal(err)
	}
	p.must <- p.queued()
	p.setDeadline(time.Unix(1, 0))
	<-p.done
	w.Close()
	if err := <-collected; err != nil {
		t.Fatal(err)
	}
	if want = append(want, "last"...); !bytes.Equal(got, want) {
		t.Errorf("%d bytes arrived, want %d, and the same", len(got), len(want))
	}
}

// An agent that ends closes pumps wherever their pipe is.
func TestPumpClosed(t *testing.T) {
	for _, away := range []bool{false, true} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		p := newPump(r, hutchv1.Stream_STREAM_STDOUT, true)
		var set pumpSet
		set.add(p)
		if away {
			p.leave()
			if n, err := p.read(make([]byte, 1)); n != 0 || err != nil {
				t.Errorf("away, nothing there: %d, %v", n, err)
			}
		}
		set.closeAll()
		log := newOutputLog()
		p.run(log, nil)
		p.join()
		if n := p.queued(); n != 0 {
			t.Errorf("%d bytes in a closed pipe", n)
		}
		if _, err := w.Write([]byte("x")); err == nil {
			t.Errorf("away %t: the pipe is still open", away)
		}
		w.Close()
	}
}
