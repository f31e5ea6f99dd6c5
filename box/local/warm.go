package local

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
)

// spareIdle is how close to each other two Creates have to be for a runtime
// that boots ahead by itself to begin with that, and how long it keeps a box
// that no Create asks for. Long enough for an agent that thinks between two
// boxes; short enough that a program which is done with them does not hold the
// memory of one.
const spareIdle = time.Minute

// pool decides which boxes are kept booted ahead (Config.Warm), and keeps them
// so. A nil pool has none.
//
// One goroutine, the worker, boots and ends them. It runs from the first box
// that is wanted until close, which waits for it; nobody else waits for a spare.
type pool struct {
	maker maker
	size  int // of Config.Warm: how many are kept, or 0 for one while boxes of its kind are asked for

	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // holds one wish to look again
	worker sync.WaitGroup

	mu      sync.Mutex // guards those below
	closed  bool
	working bool // the worker was started
	boots   int  // boots under way that somebody waits for
	due     bool // a spare may boot: whoever waited for a box has it, and the last one ahead did not fail
	want    demand
	stop    context.CancelFunc // ends the boot that the worker is at; nil: it is at none
	ready   []spare
	waste   []spare         // to be ended
	gone    []chan struct{} // closed when none is left to be ended
}

// demand is what Creates ask for.
type demand struct {
	last   string    // kind of the last Create
	lastAt time.Time // and when that was
	kind   string    // of the spares that are wanted; "" for none
	like   boxdir.Record
	until  time.Time // when they are wanted no longer; not if there is a size
}

// spare is one booted box. It is an ephemeral box without a name that this
// process holds the only lease on: should the process die, its keeper ends and
// removes it.
type spare struct {
	id, kind string
	s        *session
}

// maker makes spares and ends them: the driver.
type maker interface {
	bootSpare(ctx context.Context, like boxdir.Record) (id string, s *session, err error)
	endSpare(ctx context.Context, id string, s *session)
}

// newPool makes the pool of Config.Warm.
func newPool(ctx context.Context, m maker, size int) *pool {
	if size < 0 {
		return nil
	}
	p := &pool{maker: m, size: size, wake: make(chan struct{}, 1)}
	p.ctx, p.cancel = context.WithCancel(ctx)
	return p
}

// count is how many spares are ready.
func (p *pool) count() int {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready)
}

// close ends the pool and its spares.
func (p *pool) close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.worker.Wait()
	p.mu.Lock()
	left := append(p.ready, p.waste...)
	p.ready, p.waste, p.want = nil, nil, demand{}
	p.mu.Unlock()
	p.end(left)
}

// end ends spares that nobody wants.
func (p *pool) end(spares []spare) {
	var wg sync.WaitGroup
	for _, sp := range spares {
		wg.Go(func() { p.maker.endSpare(context.WithoutCancel(p.ctx), sp.id, sp.s) })
	}
	wg.Wait()
}

// spareKind tells apart what cannot be changed once a box has booted. A record
// that no spare can stand for has none.
func spareKind(rec boxdir.Record) (boxdir.Record, string) {
	if len(rec.Main) > 0 {
		return rec, ""
	}
	s := rec.Spec
	like := box.Spec{
		Image: s.Image, Platform: s.Platform, RootFS: s.RootFS, Pull: s.Pull,
		CPUs: s.CPUs, Memory: s.Memory, Disk: s.Disk, Pids: s.Pids,
		Env: s.Env, Dir: s.Dir, User: s.User,
		Engine: s.Engine, Isolation: s.Isolation, Network: s.Network,
	}
	// These do not matter before the box is somebody's. Whatever else a spec
	// may say, now or in times to come, does.
	s.Name, s.Hostname, s.Labels = "", "", nil
	s.Detach, s.Ephemeral, s.StopTimeout = false, false, 0
	if !reflect.DeepEqual(s, like) {
		return rec, ""
	}
	like.Ephemeral = true
	rec = boxdir.Record{
		Spare: true, State: box.Created, Spec: like,
		Image: rec.Image, Digest: rec.Digest, Tree: rec.Tree, Config: rec.Config,
		Engine: rec.Engine, Isolation: rec.Isolation, Accelerator: rec.Accelerator, Limits: rec.Limits,
	}
	kind, err := json.Marshal(rec)
	if err != nil {
		return rec, ""
	}
	return rec, string(kind)
}

// worthIt is whether a box like rec may be booted ahead without having been
// asked for: an emulated machine costs CPU time while it idles, and a folder of
// the host may have changed when the Create comes.
func worthIt(rec boxdir.Record) bool {
	return rec.Isolation != box.IsolationEmulation && rec.Spec.RootFS == ""
}

// asked tells that a box like rec is created, which decides what is wanted from
// now on, and returns the kind of the spares that could become it, if any.
func (p *pool) asked(rec boxdir.Record) (kind string) {
	if p == nil {
		return ""
	}
	like, kind := spareKind(rec)
	if kind == "" || p.size == 0 && !worthIt(rec) {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	again := kind == p.want.kind || kind == p.want.last && now.Sub(p.want.lastAt) <= spareIdle
	p.want.last, p.want.lastAt = kind, now
	if p.closed || p.size == 0 && !again {
		return kind
	}
	p.want.kind, p.want.like, p.want.until = kind, like, now.Add(spareIdle)
	if p.size == 0 {
		p.due = false // this box comes first
	}
	if !p.working {
		p.working = true
		p.worker.Go(p.work)
	}
	return kind
}

// booting tells that a box is about to boot that somebody waits for; the
// function that it returns, how that went.
func (p *pool) booting() (booted func(ok bool)) {
	if p == nil {
		return func(bool) {}
	}
	p.mu.Lock()
	p.boots++
	p.mu.Unlock()
	return func(ok bool) {
		p.mu.Lock()
		p.boots--
		p.due = p.due || ok
		p.mu.Unlock()
		p.look()
	}
}

// look has the worker look for what is to be done.
func (p *pool) look() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// take returns a living spare.
func (p *pool) take(kind string) (spare, bool) {
	if p == nil || kind == "" {
		return spare{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, sp := range p.ready {
		if sp.kind == kind && !sp.s.over() {
			p.ready = slices.Delete(p.ready, n, n+1)
			return sp, true
		}
	}
	return spare{}, false
}

// taken tells that a spare has become somebody's box, and is to be replaced.
func (p *pool) taken() {
	p.mu.Lock()
	p.due = true
	p.mu.Unlock()
	p.look()
}

// put gives a spare back. One that is no good is ended.
func (p *pool) put(sp spare, good bool) {
	p.mu.Lock()
	closed := p.closed
	switch {
	case closed:
	case good:
		p.ready = append(p.ready, sp)
	default:
		p.waste = append(p.waste, sp)
	}
	p.mu.Unlock()
	if closed { // too late for the worker
		p.end([]spare{sp})
		return
	}
	p.look()
}

// giveUp ends the spares and waits until they are gone: somebody removes what
// they stand on. Later Creates decide anew. had is whether there may have been
// one.
func (p *pool) giveUp(ctx context.Context) (had bool, err error) {
	if p == nil {
		return false, nil
	}
	p.mu.Lock()
	had = p.working && !p.closed
	p.want = demand{}
	if p.stop != nil {
		p.stop()
	}
	gone := make(chan struct{})
	if had {
		p.gone = append(p.gone, gone)
	}
	p.mu.Unlock()
	if !had {
		return false, nil
	}
	p.look()
	select {
	case <-gone:
	case <-p.ctx.Done():
	case <-ctx.Done():
		return true, ctx.Err()
	}
	return true, nil
}

// work boots what is missing and ends what is unwanted. It gives up at the
// first failure until a box that somebody waited for has booted: its Create
// will have met the same trouble, and said so.
func (p *pool) work() {
	expiry := time.NewTimer(spareIdle)
	defer expiry.Stop()
	for p.ctx.Err() == nil {
		end, more, rest := p.next()
		switch {
		case len(end) > 0:
			p.end(end)
			continue
		case more:
			p.bootOne()
			continue
		}
		var expired <-chan time.Time
		if rest > 0 {
			expiry.Reset(rest)
			expired = expiry.C
		}
		select {
		case <-p.ctx.Done():
		case <-p.wake:
		case <-expired:
		}
	}
}

// next tells the worker what to do: to end these, else to boot one more, else
// to rest until it is woken or that time has passed (0: without end).
func (p *pool) next() (end []spare, more bool, rest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := time.Until(p.want.until)
	if p.size == 0 && left <= 0 {
		p.want.kind = ""
	}
	end, p.waste = p.waste, nil
	p.ready = slices.DeleteFunc(p.ready, func(sp spare) bool {
		bad := sp.kind != p.want.kind || sp.s.over()
		if bad {
			end = append(end, sp)
		}
		return bad
	})
	if len(end) > 0 {
		return end, false, 0
	}
	if p.size == 0 {
		// Not beside boots that somebody waits for.
		more = p.boots == 0 && len(p.ready) == 0
	} else {
		more = len(p.ready) < p.size
	}
	if more && p.due && p.want.kind != "" {
		return nil, true, 0
	}
	for _, gone := range p.gone {
		close(gone)
	}
	p.gone = nil
	if p.size == 0 && p.want.kind != "" {
		rest = left
	}
	return nil, false, rest
}

// bootOne boots a spare of the wanted kind, if that is still one.
func (p *pool) bootOne() {
	ctx, stop := context.WithCancel(p.ctx)
	defer stop()
	p.mu.Lock()
	like, kind := p.want.like, p.want.kind
	if kind != "" {
		p.stop = stop
	}
	p.mu.Unlock()
	if kind == "" {
		return
	}
	id, s, err := p.maker.bootSpare(ctx, like)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop = nil
	if err != nil {
		p.due = false
		return
	}
	p.ready = append(p.ready, spare{id: id, kind: kind, s: s})
}
