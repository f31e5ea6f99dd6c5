package enginetest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/internal/engine"
)

// Forked is what a copy of a machine cost.
type Forked struct {
	// Stall is how long the original did not answer: the longest call of its
	// agent while it was captured.
	Stall time.Duration
	// Answer is the time from the start of the copy to its agent's first answer.
	Answer time.Duration
	// Idle is the host's memory of the copy once it has answered, in bytes.
	Idle int64
}

// forkMemory is the size of the machine: files in memory may have half of it.
const forkMemory = 2 << 30

// Fork boots a machine that uses inUse bytes of memory for a file, and copies
// it as often as n says. It is for benchmarks: the figures are returned, and
// nothing is expected of them. It fails on engines that have no captures.
func Fork(t testing.TB, e engine.Engine, o Options, inUse int64, n int) []Forked {
	cache := o.Cache
	if cache == "" {
		cache = t.TempDir()
	}
	b := &bench{t: t, e: e, dir: t.TempDir(), cache: cache}
	b.prepare()
	cfg := b.config()
	cfg.Limits.Memory = forkMemory
	m := b.start(cfg)
	defer m.close()
	if inUse > 0 {
		if out, code := b.sh(m, fmt.Sprintf("head -c %d /dev/urandom > /dev/shm/used", inUse)); code != 0 {
			t.Fatalf("use memory: %s", out)
		}
	}
	var all []Forked
	for range n {
		all = append(all, b.fork(m))
	}
	return all
}

// fork copies m once.
func (b *bench) fork(m *machine) (f Forked) {
	dir, err := os.MkdirTemp(b.dir, "capture-")
	b.must(err, "prepare")
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(b.t.Context())
	defer cancel()
	var caller sync.WaitGroup
	answered := make(chan struct{}, 1)
	caller.Go(func() {
		for ctx.Err() == nil {
			start := time.Now()
			if _, err := m.agent.Hello(ctx); err != nil {
				continue
			}
			f.Stall = max(f.Stall, time.Since(start))
			select {
			case answered <- struct{}{}:
			default:
			}
		}
	})
	<-answered
	b.must(m.Capture(b.t.Context(), dir), "capture")
	select { // a call that waited out the capture
	case <-answered:
	default:
	}
	<-answered
	cancel()
	caller.Wait()

	cfg := b.config()
	cfg.Limits.Memory, cfg.DiskDir = forkMemory, dir+"-disk"
	b.must(os.Mkdir(cfg.DiskDir, 0o755), "prepare")
	defer os.RemoveAll(cfg.DiskDir)
	start := time.Now()
	c, err := b.tryFrom(cfg, dir)
	b.must(err, "restore")
	f.Answer = time.Since(start)
	st, err := c.Stats(b.t.Context())
	b.must(err, "statistics")
	f.Idle = st.Memory
	c.close()
	return f
}
