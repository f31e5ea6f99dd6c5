// Package egress is a box's network as its keeper sees it: the keeper's end of
// the one link that the box has, and a TCP/IP stack in user space behind it.
//
// It is closed by default. A packet from the box ends in this stack, which
// decides, for every connection, whether the box's box.Network opens it. If so,
// the gateway makes a connection of its own, with the host's ordinary sockets,
// and copies; if not, the box gets a reset. No host interface, packet filter or
// privilege is involved, and engines carry frames and know no policy.
//
// # How names work
//
// The gateway is the box's only resolver (resolver.go). It asks the host's
// resolvers for allowed names only, and remembers which addresses it answered
// with for which names (pins.go). A connection to such an address is taken for
// one to the name: it is allowed if a rule opens the name and the port, and what
// the gateway dials is its own answer for the name, not what the box says. The
// first bytes must agree (inspect.go): TLS must name the server, and every HTTP
// request its host (proxy.go). Connections to secrets' hosts are answered with a
// certificate of the box's own authority, so that the gateway can put the values
// in (secret.go).
//
// # Structure
//
// Frames come and go by link.go, into the stack of stack.go. Every connection is a flow in one table (flow.go), with what made it allowed.
// SetNetwork replaces the state, looks at every flow again, and ends those that
// are no longer allowed. Everything has a bound: flows, connections being made,
// names, buffers, log lines a second.
//
// # Locks
//
// Gateway.mu guards the table and the replacement of the state, flow.mu one flow,
// resolver.mu the names. They are taken in this order, and not held across I/O,
// but for a look at the host's own interfaces every few seconds.
package egress

import (
	"context"
	"crypto/x509"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/hutch-sandbox/hutch/box"
)

// Config is what a gateway needs. The zero value opens nothing.
type Config struct {
	// Network is what the box may reach; it is valid.
	Network box.Network
	// Links are ports of other boxes. DialBox connects to one; nil: none can
	// be reached.
	Links   []box.Link
	DialBox func(ctx context.Context, ref string, port int) (net.Conn, error)
	// Secrets with their values. One without a value closes its hosts.
	Secrets []box.Secret
	// ID is the box's id, from which placeholders are made.
	ID string
	// Checksums makes the gateway compute the checksums of what it sends, for
	// a machine that checks them.
	Checksums bool

	// Dialer makes the connections. Nil: the host's network.
	Dialer Dialer
	// Upstream answers DNS questions. Nil: the host's resolvers.
	Upstream Upstream
	// Roots verify servers that get secrets. Nil: the host's.
	Roots *x509.CertPool
	// Record is told of every decision. It must be quick. Nil: nobody is.
	Record func(box.NetRecord)
	// DialInside connects to a TCP port on the box's own loopback, for published
	// ports whose server listens only there. Nil: such servers are not reached.
	DialInside func(ctx context.Context, port int) (net.Conn, error)
}

// Dialer makes connections out of this machine. Its methods may be called
// concurrently.
type Dialer interface {
	// Dial connects; network is "tcp" or "udp". A TCP connection should have
	// CloseWrite and SetLinger, as net.TCPConn.
	Dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// Own reports whether an address is one of the host's own.
	Own(addr netip.Addr) bool
	// IPv6 reports whether the host can reach public IPv6 addresses.
	IPv6() bool
}

// Gateway is the keeper's end of a link. Its methods may be called
// concurrently.
type Gateway struct {
	cfg    Config
	stack  *stack.Stack
	link   *link
	dialer Dialer
	res    *resolver
	secret *secrets // nil without secrets
	ports  ports

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // goroutines of flows and servers

	state atomic.Pointer[state]

	mu     sync.Mutex // guards the fields below, and writes to state
	closed bool
	flows  map[*flow]struct{}

	links    map[netip.Addr]box.Link // by the address that stands for each; never changes
	limit    int64                   // of TCP flows
	open     atomic.Int64            // TCP flows; the table has UDP ones too
	openUDP  atomic.Int64
	inside   atomic.Int64 // connections to published ports
	dialing  chan struct{}
	proxies  chan struct{}
	newFlows bucket
	counters counters
}

// state is what SetNetwork replaces.
type state struct {
	policy *box.Policy
}

type counters struct {
	sent, received, allowed, denied, queries, refused atomic.Int64
}

// NewLink makes a link. It returns the gateway, which owns its end, and the
// box's end, which the caller passes to the engine and then closes.
func NewLink(cfg Config) (*Gateway, *os.File, error) {
	policy, err := cfg.Network.Compile()
	if err != nil {
		return nil, nil, err
	}
	fd, guest, err := socketPair()
	if err != nil {
		return nil, nil, err
	}
	g, err := newGateway(cfg, policy, fd)
	if err != nil {
		guest.Close()
		return nil, nil, err
	}
	return g, guest, nil
}

// newGateway owns fd from the start.
func newGateway(cfg Config, policy *box.Policy, fd int) (_ *Gateway, err error) {
	g := &Gateway{cfg: cfg, dialer: cfg.Dialer, flows: map[*flow]struct{}{}, dialing: make(chan struct{}, maxDialing), proxies: make(chan struct{}, maxProxies)}
	g.newFlows, g.limit = newBucket(newFlowsBurst, newFlowsRate), flowLimit()
	g.ctx, g.cancel = context.WithCancel(context.Background())
	if g.dialer == nil {
		g.dialer = &hostDialer{}
	}
	if g.cfg.Record == nil {
		g.cfg.Record = func(box.NetRecord) {}
	}
	g.state.Store(&state{policy})
	g.res = newResolver(g, cfg.Upstream)
	g.setLinks(cfg.Links)
	if len(cfg.Secrets) > 0 {
		if g.secret, err = newSecrets(cfg); err != nil {
			closeFD(fd)
			return nil, err
		}
		g.secret.g = g
	}
	if g.stack, g.link, err = newStack(fd, cfg.Checksums); err != nil {
		g.cancel()
		return nil, err
	}
	g.forward()
	if err := g.serveDNS(); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// SetNetwork replaces what the box may reach. When it returns, connections
// that are no longer allowed have been ended, and the next packet is judged by
// the new rules.
func (g *Gateway) SetNetwork(n box.Network) error {
	policy, err := n.Compile()
	if err != nil {
		return err
	}
	st := &state{policy}
	var losers []*flow
	g.mu.Lock()
	g.state.Store(st)
	for f := range g.flows {
		if !g.still(st, f) {
			losers = append(losers, f)
		}
	}
	g.mu.Unlock()
	g.res.forget()
	for _, f := range losers {
		f.end("the network was changed")
	}
	g.cfg.Record(box.NetRecord{Time: time.Now(), Kind: box.NetChanged, Allowed: true, Reason: n.String()})
	return nil
}

// Stats counts since the link was made.
func (g *Gateway) Stats() box.NetStats {
	c := &g.counters
	return box.NetStats{
		Sent: c.sent.Load(), Received: c.received.Load(), Flows: int(g.open.Load() + g.openUDP.Load()),
		Allowed: c.allowed.Load(), Denied: c.denied.Load(), Queries: c.queries.Load(), Refused: c.refused.Load(),
	}
}

// enter counts a goroutine in, unless the gateway is closed.
func (g *Gateway) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.work.Add(1)
	return true
}

// Close resets every connection, stops listening on published ports and ends
// the stack. It waits for every goroutine. It may be called twice.
func (g *Gateway) Close() {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return
	}
	g.closed = true
	flows := make([]*flow, 0, len(g.flows))
	for f := range g.flows {
		flows = append(flows, f)
	}
	g.mu.Unlock()
	g.cancel()
	g.ports.close()
	for _, f := range flows {
		f.end("the box's network was taken down")
	}
	g.closeStack()
	g.work.Wait()
	g.secret.close()
}
