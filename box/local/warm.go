package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
)

// pool keeps boxes booted ahead (Config.Warm). A spare is an ephemeral box
// without a name that this process holds the only lease on: should the process
// die, its keeper ends and removes it. A nil pool has none.
type pool struct {
	d    *driver
	size int

	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // holds one wish to look again
	worker sync.WaitGroup

	mu    sync.Mutex // guards those below
	kind  string     // of the spares that are wanted; "" before the first Create
	like  boxdir.Record
	ready []spare
}

// spare is one booted box.
type spare struct {
	id, kind string
	s        *session
}

func newPool(ctx context.Context, d *driver, size int) *pool {
	p := &pool{d: d, size: size, wake: make(chan struct{}, 1)}
	p.ctx, p.cancel = context.WithCancel(ctx)
	p.worker.Go(p.work)
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

// refill has the pool look whether spares are missing.
func (p *pool) refill() {
	if p == nil {
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// close ends the pool and its spares.
func (p *pool) close() {
	if p == nil {
		return
	}
	p.cancel()
	p.worker.Wait()
	p.mu.Lock()
	ready := p.ready
	p.ready, p.kind = nil, ""
	p.mu.Unlock()
	p.drop(ready)
}

// drop ends spares that nobody wants.
func (p *pool) drop(spares []spare) {
	var wg sync.WaitGroup
	for _, sp := range spares {
		wg.Go(func() {
			// Without its last lease the keeper would end too, but only the
			// removal waits for that.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), 30*time.Second)
			defer cancel()
			_ = p.d.Remove(ctx, sp.id, true)
			_ = sp.s.close()
		})
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
		Engine: rec.Engine, Isolation: rec.Isolation, Limits: rec.Limits,
	}
	kind, err := json.Marshal(rec)
	if err != nil {
		return rec, ""
	}
	return rec, string(kind)
}

// adopt makes a spare of rec's kind the box that rec describes; ok says whether
// there was one. Either way the pool will have more of that kind. A name that
// is taken is an error.
func (p *pool) adopt(ctx context.Context, rec boxdir.Record) (_ boxdir.Record, ok bool, err error) {
	if p == nil {
		return rec, false, nil
	}
	like, kind := spareKind(rec)
	if kind == "" {
		return rec, false, nil
	}
	p.mu.Lock()
	p.like, p.kind = like, kind
	p.mu.Unlock()
	for {
		sp, found := p.take(kind)
		if !found {
			return rec, false, nil // the box's own boot refills
		}
		adopted, err := p.d.home.Adopt(sp.id, rec, func(r boxdir.Record) error {
			return sp.s.client.Identify(ctx, r.Hostname)
		})
		if err == nil {
			err = p.d.hand(sp)
		}
		switch {
		case err == nil:
			p.refill()
			p.d.home.Emit(box.Event{Action: "create", ID: adopted.ID, Name: adopted.Name, Attrs: map[string]string{"image": adopted.Image}})
			p.d.home.Emit(box.Event{Action: "start", ID: adopted.ID, Name: adopted.Name})
			return adopted, true, nil
		case errors.Is(err, box.ErrExists):
			p.put(sp)
			return rec, false, err
		}
		// It died, or does not answer: not this caller's trouble.
		p.drop([]spare{sp})
		if ctx.Err() != nil {
			return rec, false, ctx.Err()
		}
	}
}

// take returns a living spare.
func (p *pool) take(kind string) (spare, bool) {
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

func (p *pool) put(sp spare) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = append(p.ready, sp)
}

// hand keeps the lease on an adopted box until its handle is made.
func (d *driver) hand(sp spare) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return &box.Error{Kind: box.Unavailable, Op: "runtime", Err: errors.New("it was closed"), Hint: "open it again"}
	}
	d.handed[sp.id] = sp.s
	return nil
}

// work boots what is missing whenever it is asked to. It gives up at the first
// failure until it is asked again: Create will meet the same trouble, and say
// so.
func (p *pool) work() {
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-p.wake:
		}
		for p.ctx.Err() == nil {
			like, kind, more := p.sort()
			if !more {
				break
			}
			sp, err := p.boot(like, kind)
			if err != nil {
				break
			}
			p.put(sp)
		}
	}
}

// sort drops the spares of other kinds and the dead, and tells whether one is
// missing.
func (p *pool) sort() (like boxdir.Record, kind string, more bool) {
	p.mu.Lock()
	var good, bad []spare
	for _, sp := range p.ready {
		if sp.kind == p.kind && !sp.s.over() {
			good = append(good, sp)
		} else {
			bad = append(bad, sp)
		}
	}
	p.ready = good
	like, kind, more = p.like, p.kind, p.kind != "" && len(good) < p.size
	p.mu.Unlock()
	p.drop(bad)
	return like, kind, more
}

// boot makes one spare.
func (p *pool) boot(like boxdir.Record, kind string) (sp spare, err error) {
	if like.Digest != "" {
		// Until the box is written down, and so a user of the image.
		lease, err := p.d.store.Lease(p.ctx, like.Digest)
		if err != nil {
			return sp, err
		}
		defer func() { _ = lease.Close() }()
	}
	like.CreatedAt = time.Now().Round(0)
	b, _, err := p.d.home.Create(like)
	if err != nil {
		return sp, err
	}
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), 30*time.Second)
			defer cancel()
			_ = p.d.Remove(ctx, b.ID(), true)
		}
	}()
	s, err := p.d.machine(b.ID()).boot(p.ctx, wake)
	if err != nil {
		return sp, fmt.Errorf("boot ahead: %w", err)
	}
	return spare{id: b.ID(), kind: kind, s: s}, nil
}
