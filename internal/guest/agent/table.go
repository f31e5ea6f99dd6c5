//go:build linux

package agent

import (
	"slices"
	"sync"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// Ended execs are kept so that a late Attach still gets output and status,
// within these bounds.
const (
	keepEnded    = 256
	keepFor      = 10 * time.Minute // for those that were not detached
	keepForLong  = 24 * time.Hour   // for those that were
	keepBytes    = 64 << 20         // of replay, all ended execs together
	sweepAtLeast = time.Second
	// maxExecs bounds the execs that have not ended.
	maxExecs = 8192
)

// table knows the execs. Its goroutines are the supervisors.
type table struct {
	mu      sync.Mutex
	byID    map[string]*exec
	order   []*exec // oldest first
	orphans []group // of forgotten execs, with processes still in them
	swept   time.Time
	closed  bool
	wg      sync.WaitGroup
}

func (t *table) init() { t.byID = make(map[string]*exec) }

// add registers x and starts its supervisor.
func (t *table) add(x *exec) error {
	t.sweep(time.Now())
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return &box.Error{Kind: box.Unavailable, Op: "exec", Err: errShutdown}
	}
	if _, ok := t.byID[x.id]; ok {
		return &box.Error{Kind: box.Exists, Op: "exec", Object: x.id, Err: errKnownID}
	}
	if len(t.order) >= maxExecs+keepEnded {
		return &box.Error{Kind: box.Exhausted, Op: "exec", Err: errTooMany, Hint: "end some of them"}
	}
	t.byID[x.id] = x
	t.order = append(t.order, x)
	t.wg.Go(func() { x.run(x.agent.ctx) })
	return nil
}

// get finds an exec.
func (t *table) get(id string) (*exec, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x, ok := t.byID[id]; ok {
		return x, nil
	}
	return nil, &box.Error{Kind: box.NotFound, Op: "exec", Object: id, Err: errNoExec}
}

// forget drops an exec that never was a process.
func (t *table) forget(x *exec) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked(x)
}

func (t *table) forgetLocked(x *exec) {
	if t.byID[x.id] != x {
		return
	}
	delete(t.byID, x.id)
	t.order = slices.DeleteFunc(t.order, func(o *exec) bool { return o == x })
}

// list returns the execs, oldest first.
func (t *table) list() []*exec {
	t.sweep(time.Now())
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.order)
}

// sweep forgets what is past its time, and gives up groups that have become
// empty.
func (t *table) sweep(now time.Time) {
	t.mu.Lock()
	if now.Sub(t.swept) < sweepAtLeast && len(t.order) < keepEnded {
		t.mu.Unlock()
		return
	}
	t.swept = now
	ended, kept := 0, 0
	var groups []group
	for _, x := range slices.Backward(t.order) {
		select {
		case <-x.done:
		default:
			continue
		}
		x.mu.Lock()
		age, g := now.Sub(x.ended), x.group
		x.mu.Unlock()
		_, size := x.log.size()
		ended++
		kept += size
		limit := keepFor
		if x.detach {
			limit = keepForLong
		}
		if ended > keepEnded || kept > keepBytes || age > limit {
			kept -= size
			t.forgetLocked(x)
			if g != nil {
				groups = append(groups, g)
			}
		}
	}
	groups = append(groups, t.orphans...)
	t.orphans = nil
	t.mu.Unlock()

	// Reading what is in a group can take a while, so without the lock.
	groups = slices.DeleteFunc(groups, group.remove)
	t.mu.Lock()
	t.orphans = append(t.orphans, groups...)
	t.mu.Unlock()
}

// groups returns the group of every exec and every forgotten one.
func (t *table) groups() []group {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Clone(t.orphans)
	for _, x := range t.order {
		if g, _, _ := x.live(); g != nil {
			all = append(all, g)
		}
	}
	return all
}

// shut refuses new execs from now on.
func (t *table) shut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// killAll refuses new execs and kills what runs, background jobs too. The
// agent's context has ended, so supervisors end by themselves.
func (t *table) killAll() {
	t.shut()
	for _, g := range t.groups() {
		g.kill()
	}
}

// wait waits for the supervisors.
func (t *table) wait() { t.wg.Wait() }

// removeGroups gives up all groups.
func (t *table) removeGroups() {
	for _, g := range t.groups() {
		g.kill()
		deadline := time.Now().Add(time.Second)
		for !g.remove() && time.Now().Before(deadline) {
			g.kill()
			time.Sleep(time.Millisecond)
		}
	}
}
