package local

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
)

const (
	// adoptTime is how long a spare may take to answer, which it does in
	// milliseconds: a Create does not wait for one that hangs.
	adoptTime = 5 * time.Second
	// endTime bounds the end of one.
	endTime = 30 * time.Second
)

// adopt makes a spare of rec's kind the box that rec describes; ok says whether
// there was one. A name that is taken is an error.
func (d *driver) adopt(ctx context.Context, rec boxdir.Record) (_ boxdir.Record, ok bool, err error) {
	kind := d.warm.asked(rec)
	for {
		sp, found := d.warm.take(kind)
		if !found {
			return rec, false, nil
		}
		// Before the box is anybody's: later nothing may fail.
		if err := d.hand(sp); err != nil {
			d.warm.put(sp, false)
			return rec, false, err
		}
		adopted, err := d.home.Adopt(sp.id, rec, func(r boxdir.Record) error {
			ctx, cancel := context.WithTimeout(ctx, adoptTime)
			defer cancel()
			return sp.s.client.Identify(ctx, r.Hostname)
		})
		if err == nil {
			d.warm.taken()
			d.home.Emit(box.Event{Action: "create", ID: adopted.ID, Name: adopted.Name, Attrs: map[string]string{"image": adopted.Image}})
			d.home.Emit(box.Event{Action: "start", ID: adopted.ID, Name: adopted.Name})
			return adopted, true, nil
		}
		if d.unhand(sp) {
			// It died, or does not answer: not this caller's trouble.
			d.warm.put(sp, errors.Is(err, box.ErrExists))
		}
		if errors.Is(err, box.ErrExists) {
			return rec, false, err
		}
		if ctx.Err() != nil {
			return rec, false, ctx.Err()
		}
	}
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

// unhand takes that back, unless Close has ended the lease.
func (d *driver) unhand(sp spare) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.handed[sp.id]
	delete(d.handed, sp.id)
	return ok
}

// bootSpare makes one spare.
func (d *driver) bootSpare(ctx context.Context, like boxdir.Record) (id string, s *session, err error) {
	if like.Digest != "" {
		// Until the box is written down, and so a user of the image.
		lease, err := d.store.Lease(ctx, like.Digest)
		if err != nil {
			return "", nil, err
		}
		defer func() { _ = lease.Close() }()
	}
	like.CreatedAt = time.Now().Round(0)
	b, _, err := d.home.Create(like)
	if err != nil {
		return "", nil, err
	}
	if s, err = d.machine(b.ID()).boot(ctx, wake); err != nil {
		d.endSpare(context.WithoutCancel(ctx), b.ID(), nil)
		return "", nil, fmt.Errorf("boot ahead: %w", err)
	}
	return b.ID(), s, nil
}

// endSpare ends a spare; s is nil when it did not boot. Without its last lease
// the keeper would end too, but only the removal waits for that.
func (d *driver) endSpare(ctx context.Context, id string, s *session) {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	_ = d.Remove(ctx, id, true)
	if s != nil {
		_ = s.close()
	}
}
