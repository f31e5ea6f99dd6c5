package box

import (
	"context"
	"iter"
)

// NetworkMachine is the part of a Machine that is about the network. None of it
// boots a box.
type NetworkMachine interface {
	// SetNetwork replaces what the box may reach, for good. On a running box it
	// returns when connections that are not allowed any more have ended.
	SetNetwork(ctx context.Context, n Network) error
	// Publish adds a port, for good, and returns it, with its host port if the
	// box runs.
	Publish(ctx context.Context, p Port) (Port, error)
	// Unpublish takes a port away, for good.
	Unpublish(ctx context.Context, p Port) error
	// SetSecrets hands values to the box, by name.
	SetSecrets(ctx context.Context, values map[string]string) error
	// NetLog yields the network log; it does not wake the box.
	NetLog(ctx context.Context, opts LogOptions) iter.Seq2[NetRecord, error]
}

// SetNetwork replaces what the box may reach, now and when it is started again.
// On a running box the next packet is judged by n, and connections that n does
// not allow have ended when SetNetwork returns.
func (b *Box) SetNetwork(ctx context.Context, n Network) error {
	if err := n.Validate(); err != nil {
		return err
	}
	return b.wrap("set network", b.machine.SetNetwork(ctx, n.clone()))
}

// Network returns what the box may reach.
func (b *Box) Network(ctx context.Context) (Network, error) {
	info, err := b.Info(ctx)
	return info.Spec.Network, err
}

// Publish publishes a port, now and when the box is started again. It returns
// the port with the host port that was chosen. A host port that something else
// has is an error of kind Exists.
func (b *Box) Publish(ctx context.Context, p Port) (Port, error) {
	if err := p.Validate(); err != nil {
		return p, err
	}
	got, err := b.machine.Publish(ctx, p)
	return got, b.wrap("publish port", err)
}

// Unpublish takes a port away and ends its connections. The port is found by
// its host address, host port and protocol.
func (b *Box) Unpublish(ctx context.Context, p Port) error {
	return b.wrap("unpublish port", b.machine.Unpublish(ctx, p))
}

// Ports returns the ports that are published now, with their host ports. A box
// that does not run has none.
func (b *Box) Ports(ctx context.Context) ([]Port, error) {
	info, err := b.Info(ctx)
	return info.Ports, err
}

// SetSecrets hands over the values of secrets that the box was created with, by
// name: after it was stopped and started by a program that does not have them,
// or to replace them. They are kept in memory only, by this Runtime for the
// next start and by the running box.
func (b *Box) SetSecrets(ctx context.Context, values map[string]string) error {
	for name, value := range values {
		if err := (Secret{Name: name, Value: value}).ValidateValue(); err != nil {
			return err
		}
	}
	return b.wrap("set secrets", b.machine.SetSecrets(ctx, values))
}

// NetLog yields the box's network log: every name that it asked for and every
// connection that it made or tried to make. It does not boot the box. An error
// ends it.
func (b *Box) NetLog(ctx context.Context, opts LogOptions) iter.Seq2[NetRecord, error] {
	return b.machine.NetLog(ctx, opts)
}
