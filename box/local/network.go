package local

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
	"github.com/hutch-sandbox/hutch/internal/guest/client"
)

var _ box.NetworkMachine = (*machine)(nil)

// change changes a box for good: through its keeper while it runs, else in its
// record.
func (m *machine) change(ctx context.Context, live func(*client.Client) error, stopped func(*boxdir.Record) error) error {
	b, err := m.d.box(m.id)
	if err != nil {
		return err
	}
	if _, err := m.d.load(ctx, m.id); err != nil {
		return err
	}
	wait := time.Millisecond
	for try := 0; ; try++ {
		if b.Alive() {
			c, t := m.connect(b)
			err := live(c)
			_ = c.Close()
			t.CloseIdleConnections()
			// One that boots or ends does not answer. A boot holds the start
			// lock; an end, which may take the box's grace, holds nothing.
			if err == nil || box.KindOf(err) != box.Unavailable || ctx.Err() != nil || try > 1000 {
				return err
			}
		}
		done, err := m.changeStopped(ctx, b, stopped)
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(wait*2, 20*time.Millisecond)
	}
}

// changeStopped changes the record of a box that nobody can start meanwhile.
func (m *machine) changeStopped(ctx context.Context, b *boxdir.Box, change func(*boxdir.Record) error) (done bool, err error) {
	start, err := b.LockStart(ctx)
	if err != nil {
		return false, err
	}
	defer start.Close()
	life, ok, err := b.LockLife()
	if err != nil || !ok {
		return false, err
	}
	defer life.Close()
	_, err = b.Update(func(r *boxdir.Record) error {
		if err := change(r); err != nil {
			return err
		}
		return r.Spec.Validate()
	})
	return true, err
}

// SetNetwork replaces what the box may reach.
func (m *machine) SetNetwork(ctx context.Context, n box.Network) error {
	return m.change(ctx,
		func(c *client.Client) error { return c.SetNetwork(ctx, n) },
		func(r *boxdir.Record) error { r.Spec.Network = n; return nil })
}

// Publish adds a port.
func (m *machine) Publish(ctx context.Context, p box.Port) (box.Port, error) {
	got := p
	err := m.change(ctx,
		func(c *client.Client) (err error) { got, err = c.Publish(ctx, p); return err },
		func(r *boxdir.Record) error { r.Spec.Ports = append(slices.Clone(r.Spec.Ports), p); return nil })
	return got, err
}

// Unpublish takes a port away.
func (m *machine) Unpublish(ctx context.Context, p box.Port) error {
	return m.change(ctx,
		func(c *client.Client) error { return c.Unpublish(ctx, p) },
		func(r *boxdir.Record) error {
			left := box.WithoutPort(r.Spec.Ports, p)
			if len(left) == len(r.Spec.Ports) {
				return &box.Error{Kind: box.NotFound, Op: "unpublish port", Object: p.String(), Err: errors.New("it is not published")}
			}
			r.Spec.Ports = left
			return nil
		})
}

// SetSecrets remembers values for the next start, and hands them to a running
// box.
func (m *machine) SetSecrets(ctx context.Context, values map[string]string) error {
	rec, err := m.d.load(ctx, m.id)
	if err != nil {
		return err
	}
	for name := range values {
		if !slices.ContainsFunc(rec.Spec.Secrets, func(s box.Secret) bool { return s.Name == name }) {
			return &box.Error{Kind: box.NotFound, Op: "set secrets", Object: rec.Name, Err: fmt.Errorf("it has no secret %s", name),
				Hint: "secrets are named when a box is created"}
		}
	}
	m.d.remember(m.id, values)
	return m.change(ctx,
		func(c *client.Client) error { return c.SetSecrets(ctx, values) },
		func(*boxdir.Record) error { return nil })
}

// remember keeps values of a box's secrets in memory, for its keeper.
func (d *driver) remember(id string, values map[string]string) {
	if len(values) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.secrets == nil {
		d.secrets = map[string]map[string]string{}
	}
	all := maps.Clone(d.secrets[id])
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, values)
	d.secrets[id] = all
}

// secretsOf returns what is remembered. The map is not changed any more.
func (d *driver) secretsOf(id string) map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.secrets[id]
}

// takeValues takes the values of a spec's secrets out of it: what is written down
// has none.
func takeValues(spec *box.Spec) map[string]string {
	values := map[string]string{}
	spec.Secrets = slices.Clone(spec.Secrets)
	for i, s := range spec.Secrets {
		if s.Value != "" {
			values[s.Name] = s.Value
			spec.Secrets[i].Value = ""
		}
	}
	return values
}

// NetLog reads the box's folder; the box need not run.
func (m *machine) NetLog(ctx context.Context, opts box.LogOptions) iter.Seq2[box.NetRecord, error] {
	b, err := m.d.box(m.id)
	if err != nil {
		return func(yield func(box.NetRecord, error) bool) { yield(box.NetRecord{}, err) }
	}
	return b.NetLog(ctx, opts)
}
