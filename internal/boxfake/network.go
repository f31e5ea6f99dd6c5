package boxfake

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

var _ box.NetworkMachine = (*machine)(nil)

// The fake has no network to open or close. It keeps what it is told, chooses
// host ports without listening on them, and writes changes into the network
// log.

// SetNetwork implements box.NetworkMachine.
func (m *machine) SetNetwork(ctx context.Context, n box.Network) error {
	return m.changeSpec(ctx, "setnetwork", func(st *machineState) error {
		st.spec.Network = n
		st.netlog = append(st.netlog, box.NetRecord{Time: time.Now(), Kind: box.NetChanged, Allowed: true, Reason: n.String()})
		return nil
	})
}

// Publish implements box.NetworkMachine.
func (m *machine) Publish(ctx context.Context, p box.Port) (box.Port, error) {
	got := p
	err := m.changeSpec(ctx, "publish", func(st *machineState) error {
		st.spec.Ports = append(slices.Clone(st.spec.Ports), p)
		if st.state == box.Running {
			got = st.portsLocked()[len(st.spec.Ports)-1]
		}
		return nil
	})
	return got, err
}

// Unpublish implements box.NetworkMachine.
func (m *machine) Unpublish(ctx context.Context, p box.Port) error {
	return m.changeSpec(ctx, "unpublish", func(st *machineState) error {
		for i, q := range st.portsLocked() {
			if q.HostAddr() == p.HostAddr() && q.Protocol() == p.Protocol() {
				st.spec.Ports = slices.Delete(slices.Clone(st.spec.Ports), i, i+1)
				return nil
			}
		}
		return &box.Error{Kind: box.NotFound, Op: "unpublish port", Object: p.String(), Err: errors.New("it is not published")}
	})
}

// SetSecrets implements box.NetworkMachine.
func (m *machine) SetSecrets(ctx context.Context, values map[string]string) error {
	return m.changeSpec(ctx, "setsecrets", func(st *machineState) error {
		for name := range values {
			if !slices.ContainsFunc(st.spec.Secrets, func(s box.Secret) bool { return s.Name == name }) {
				return &box.Error{Kind: box.NotFound, Op: "set secrets", Object: name, Err: errors.New("the box has no such secret")}
			}
		}
		return nil
	})
}

// changeSpec changes a spec that must be valid afterwards.
func (m *machine) changeSpec(ctx context.Context, op string, change func(*machineState) error) error {
	st, err := m.state(ctx, op)
	if err != nil {
		return err
	}
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	before := st.spec
	if err := change(st); err != nil {
		return err
	}
	if err := st.spec.Validate(); err != nil {
		st.spec = before
		return err
	}
	return nil
}

// portsLocked gives ports that may be any host port a number of their own.
func (m *machineState) portsLocked() []box.Port {
	ports := slices.Clone(m.spec.Ports)
	for i := range ports {
		if ports[i].Host == 0 {
			ports[i].Host = 40000 + 100*m.seq + i
		}
	}
	return ports
}

// NetLog implements box.NetworkMachine.
func (m *machine) NetLog(ctx context.Context, opts box.LogOptions) iter.Seq2[box.NetRecord, error] {
	return func(yield func(box.NetRecord, error) bool) {
		st, err := m.state(ctx, "netlog")
		if err != nil {
			yield(box.NetRecord{}, err)
			return
		}
		st.h.mu.Lock()
		records := slices.Clone(st.netlog)
		st.h.mu.Unlock()
		records = slices.DeleteFunc(records, func(r box.NetRecord) bool { return r.Time.Before(opts.Since) })
		if opts.Tail > 0 {
			records = records[max(0, len(records)-opts.Tail):]
		}
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func (m *machineState) runningPortsLocked() []box.Port {
	if m.state != box.Running {
		return nil
	}
	return m.portsLocked()
}
