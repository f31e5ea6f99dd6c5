package egress

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

// Bounds of one box's gateway.
const (
	maxFlows      = 4096 // TCP connections, fewer where the process may have few descriptors
	maxUDPFlows   = 1024
	maxDialing    = 256  // connections being made
	maxProxies    = 512  // connections whose requests are looked at one by one
	maxHandshakes = 1024 // connections of the box that wait for a decision
	newFlowsRate  = 2000 // connections a second, in the long run
	newFlowsBurst = 6000
)

// kind says what a flow leads to.
type kind int

const (
	direct    kind = iota // an address that the policy opens
	named                 // an address that stands for names that the policy opens
	toHost                // the host's loopback
	toBox                 // a port of another box
	published             // from the host to a published port; no rule is about it
)

// decision is the answer for a connection to dst.
type decision struct {
	box.Verdict
	kind  kind
	names []string // those that dst stands for; the allowed ones if kind is named
	link  box.Link
}

// decide judges a connection by what is known already; it does not wait.
func (g *Gateway) decide(st *state, dst netip.AddrPort, proto string) decision {
	addr := dst.Addr()
	deny := func(reason string) decision { return decision{Verdict: box.Verdict{Reason: reason}} }
	switch {
	case addr == hostAddr:
		v := st.policy.NameFlow(box.HostName, dst.Port(), proto)
		return decision{Verdict: v, kind: toHost, names: []string{box.HostName}}
	case addr == GatewayAddr, addr == GatewayAddr6:
		return deny("the gateway itself has only DNS")
	case addr == GuestAddr.Addr(), addr == GuestAddr6.Addr(), addr.IsMulticast(), addr == broadcast:
		return deny("not an address to forward to")
	}
	if link, ok := g.links[addr]; ok {
		d := decision{kind: toBox, link: link, names: []string{link.Name}}
		if d.Allowed = proto == "tcp" && int(dst.Port()) == link.Port; d.Allowed {
			d.Rule, d.Reason = "link "+link.String(), "a link opens it"
		} else {
			d.Reason = "the link opens only its port"
		}
		return d
	}
	own := g.dialer.Own(addr.Unmap())
	v := st.policy.Address(addr, dst.Port(), proto, own)
	names := g.res.namesOf(addr)
	if v.Allowed || v.Rule != "" {
		return decision{Verdict: v, kind: direct, names: names}
	}
	d := decision{Verdict: v, kind: named}
	for _, name := range names {
		nv := st.policy.NameFlow(name, dst.Port(), proto)
		switch {
		case !nv.Allowed:
			if len(d.names) == 0 {
				d.Verdict = nv
			}
		case own || !box.PublicAddress(addr):
			// What opened the answer was an address rule, which is not about
			// this port.
			if len(d.names) == 0 {
				d.Verdict = v
			}
		default:
			d.names = append(d.names, name)
			d.Verdict = nv
		}
	}
	if len(d.names) == 0 {
		d.names = names
	}
	return d
}

// flow is one connection through the gateway.
type flow struct {
	g     *Gateway
	proto string
	dst   netip.AddrPort
	began time.Time

	ctx    context.Context // ends with the flow
	cancel context.CancelFunc

	sent, received atomic.Int64

	kind kind
	rule string

	mu      sync.Mutex // guards the fields below
	name    string     // that it goes by, once known
	names   []string   // that it may go by
	aborted string     // why it was ended from here
	closers []func()   // what cuts it
}

// begin puts a flow that st allows into the table. It reports false when the
// gateway is closed, is full, or does not allow the flow any more.
func (g *Gateway) begin(st *state, f *flow) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	if now := g.state.Load(); now != st && !g.still(now, f) {
		return false
	}
	g.flows[f] = struct{}{}
	return true
}

func (g *Gateway) newFlow(proto string, dst netip.AddrPort, d decision) *flow {
	f := &flow{g: g, proto: proto, dst: dst, began: time.Now(), kind: d.kind, rule: d.Rule, names: d.names}
	if len(d.names) > 0 {
		f.name = d.names[0]
	}
	f.ctx, f.cancel = context.WithCancel(g.ctx)
	return f
}

// still reports whether a flow would be allowed now.
func (g *Gateway) still(st *state, f *flow) bool {
	if f.kind == published {
		return true
	}
	d := g.decide(st, f.dst, f.proto)
	if !d.Allowed {
		return false
	}
	f.mu.Lock()
	name, checked := f.name, st.policy.DeniesNames()
	f.mu.Unlock()
	if d.kind == direct && name != "" && checked {
		return st.policy.DeniedName(name, f.dst.Port(), f.proto) == nil
	}
	if d.kind == named && name != "" {
		return st.policy.NameFlow(name, f.dst.Port(), f.proto).Allowed
	}
	return true
}

// onEnd adds what cuts the flow. If it was cut already, it is done at once.
func (f *flow) onEnd(cut func()) {
	f.mu.Lock()
	aborted := f.aborted != ""
	f.closers = append(f.closers, cut)
	f.mu.Unlock()
	if aborted {
		cut()
	}
}

// end cuts the flow from this side, for a reason. Only the first call counts.
func (f *flow) end(reason string) {
	f.mu.Lock()
	if f.aborted != "" {
		f.mu.Unlock()
		return
	}
	f.aborted = reason
	closers := f.closers
	f.mu.Unlock()
	f.cancel()
	for _, cut := range closers {
		cut()
	}
}

// ended returns why the flow was cut; empty: it was not.
func (f *flow) ended() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.aborted
}

func (f *flow) setName(name string) {
	f.mu.Lock()
	f.name = name
	f.mu.Unlock()
}

// drop takes the flow out of the table.
func (f *flow) drop() {
	f.cancel()
	f.g.mu.Lock()
	delete(f.g.flows, f)
	f.g.mu.Unlock()
}

// leave takes the flow out of the table and records its end.
func (f *flow) leave(err error) {
	f.drop()
	r := f.record(box.NetEnd, true)
	r.Sent, r.Received, r.Duration = f.sent.Load(), f.received.Load(), time.Since(f.began)
	if r.Reason = f.ended(); r.Reason == "" && err != nil {
		r.Reason = err.Error()
	}
	f.g.cfg.Record(r)
}

// record is the beginning of a log line about the flow.
func (f *flow) record(k box.NetKind, allowed bool) box.NetRecord {
	f.mu.Lock()
	defer f.mu.Unlock()
	return box.NetRecord{
		Time: time.Now(), Kind: k, Proto: f.proto, Name: f.name, Addr: f.dst.Addr().String(), Port: int(f.dst.Port()),
		Allowed: allowed, Rule: f.rule,
	}
}

// refuse counts and records a connection that was not allowed.
func (g *Gateway) refuse(proto string, dst netip.AddrPort, d decision) {
	g.counters.denied.Add(1)
	r := box.NetRecord{
		Time: time.Now(), Kind: box.NetFlow, Proto: proto, Addr: dst.Addr().String(), Port: int(dst.Port()), Rule: d.Rule, Reason: d.Reason,
	}
	if len(d.names) > 0 {
		r.Name = d.names[0]
	}
	g.cfg.Record(r)
}

// flowLimit is how many TCP connections this process can carry.
func flowLimit() int64 {
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) == nil && lim.Cur < maxFlows+1024 {
		return max(64, int64(lim.Cur)/2)
	}
	return maxFlows
}

// bufferSize is what one side of a connection may buffer, less the more there
// are, so that all of them together stay bounded.
func bufferSize(flows int64) int64 {
	const (
		all   = 16 << 20
		most  = 2 << 20
		least = 16 << 10
	)
	return max(least, min(most, all/max(1, flows)))
}

// bucket is a rate limit.
type bucket struct {
	mu    *sync.Mutex
	have  float64
	burst float64
	rate  float64 // a second
	last  time.Time
}

func newBucket(burst, rate float64) bucket {
	return bucket{mu: &sync.Mutex{}, have: burst, burst: burst, rate: rate, last: time.Now()}
}

// take reports whether one more is within the rate.
func (b *bucket) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.have = min(b.burst, b.have+now.Sub(b.last).Seconds()*b.rate)
	b.last = now
	if b.have < 1 {
		return false
	}
	b.have--
	return true
}
