package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"

	"github.com/hutch-sandbox/hutch/box"
)

// Upstream answers questions. It may be called concurrently.
type Upstream interface {
	// Exchange asks one question and returns the answer of a recursive
	// resolver, whatever its status.
	Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error)
}

const (
	maxAsking    = 64  // questions of one box that wait for an answer
	queryRate    = 200 // a second, in the long run
	queryBurst   = 2000
	maxCached    = 4096 // questions
	maxRecords   = 64   // of an answer
	maxChain     = 12   // aliases that are followed
	maxDNSConns  = 64   // TCP connections to the resolver
	answerTime   = 10 * time.Second
	minTTL       = 5 * time.Second
	maxTTL       = time.Hour
	negativeTTL  = 15 * time.Second
	dnsConnIdle  = 10 * time.Second
	localTTL     = 60 // seconds; of names that only mean something here
	serviceLabel = 16 // bytes of "_service", RFC 6335 and the underscore
)

// resolver is the box's only one.
type resolver struct {
	g        *Gateway
	upstream Upstream
	rate     bucket
	asking   chan struct{}
	locals   map[string]netip.Addr // links, by name

	mu    sync.Mutex // guards the fields below
	pins  pins
	cache map[question]*answer
}

type question struct {
	name  string
	qtype uint16
}

// answer is what upstream said, after it was checked.
type answer struct {
	ready   chan struct{} // closed when the fields below are set
	rcode   int
	records []dns.RR
	addrs   []netip.Addr // of an A or AAAA question
	until   time.Time
	refused string // why the answer may not be used; empty: it may
	err     error
	stale   bool // asked under other rules; guarded by the resolver's mutex
}

func newResolver(g *Gateway, up Upstream) *resolver {
	if up == nil {
		up = &hostResolver{}
	}
	return &resolver{
		g: g, upstream: up, rate: newBucket(queryBurst, queryRate), asking: make(chan struct{}, maxAsking),
		locals: map[string]netip.Addr{}, pins: newPins(), cache: map[question]*answer{},
	}
}

// setLinks gives every link an address. It is called once.
func (g *Gateway) setLinks(links []box.Link) {
	g.links = map[netip.Addr]box.Link{}
	addr := linkBase
	for _, l := range links {
		if name, err := box.NormalName(l.Name); err == nil {
			g.links[addr] = l
			g.res.locals[name] = addr
			addr = addr.Next()
		}
	}
}

// namesOf returns the names that an address stands for.
func (r *resolver) namesOf(a netip.Addr) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pins.names(a, time.Now())
}

// current reports whether a is a current answer for one of the names.
func (r *resolver) current(a netip.Addr, names ...string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pins.current(a, names, time.Now())
}

// lookup returns the addresses of an allowed name, IPv4 first.
func (r *resolver) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	if v := r.g.state.Load().policy.Name(name); !v.Allowed {
		return nil, fmt.Errorf("%s: %s", name, v.Reason)
	}
	types := []uint16{dns.TypeA}
	if r.g.dialer.IPv6() {
		types = append(types, dns.TypeAAAA)
	}
	var addrs []netip.Addr
	var failed error
	for _, t := range types {
		a := r.ask(ctx, question{name, t})
		switch {
		case a.err != nil:
			failed = a.err
		case a.refused != "":
			failed = fmt.Errorf("%s: %s", name, a.refused)
		}
		addrs = append(addrs, a.addrs...)
	}
	if len(addrs) == 0 {
		if failed == nil {
			failed = fmt.Errorf("%s has no address", name)
		}
		return nil, failed
	}
	return addrs, nil
}

// ask answers from the cache or asks upstream; several who ask the same at once
// share one question.
func (r *resolver) ask(ctx context.Context, q question) *answer {
	r.mu.Lock()
	a := r.cache[q]
	now := time.Now()
	if a != nil {
		select {
		case <-a.ready:
			if now.After(a.until) {
				a = nil
			}
		default:
		}
		if a != nil && a.stale {
			a = nil
		}
	}
	if a != nil {
		r.mu.Unlock()
		select {
		case <-a.ready:
			return a
		case <-ctx.Done():
			return &answer{err: ctx.Err()}
		}
	}
	if len(r.cache) >= maxCached {
		r.evictLocked(now)
	}
	a = &answer{ready: make(chan struct{})}
	r.cache[q] = a
	r.mu.Unlock()
	// The asker may give up; the others who wait have their own patience.
	actx, cancel := context.WithTimeout(r.g.ctx, answerTime)
	defer cancel()
	r.resolve(actx, q, a)
	close(a.ready)
	return a
}

// evictLocked makes room, best by dropping what has run out.
func (r *resolver) evictLocked(now time.Time) {
	for q, a := range r.cache {
		select {
		case <-a.ready:
			if now.After(a.until) || len(r.cache) >= maxCached {
				delete(r.cache, q)
			}
		default:
		}
	}
}

// resolve fills a in. It pins what addresses it finds.
func (r *resolver) resolve(ctx context.Context, q question, a *answer) {
	now := time.Now()
	a.until = now.Add(minTTL)
	name := q.name
	ttl := maxTTL
	for range maxChain {
		m := new(dns.Msg)
		m.SetQuestion(dns.Fqdn(name), q.qtype)
		m.SetEdns0(1232, false)
		resp, err := r.upstream.Exchange(ctx, m)
		if err != nil {
			a.err = err
			return
		}
		a.rcode = resp.Rcode
		next, found := r.follow(q, name, resp, a, &ttl)
		if a.refused != "" {
			a.records, a.addrs = nil, nil
			return
		}
		if found || next == "" || next == name {
			if !found {
				ttl = negativeTTL
			}
			break
		}
		name = next // the upstream left the rest of the chain to us
	}
	a.until = now.Add(min(maxTTL, max(minTTL, ttl)))
	if len(a.addrs) > 0 {
		r.mu.Lock()
		for _, addr := range a.addrs {
			r.pins.add(addr, q.name, a.until)
		}
		r.mu.Unlock()
	}
}

// follow takes the records of the chain that begins at name. It returns where
// the chain leads, and whether records of the type were found there.
func (r *resolver) follow(q question, name string, resp *dns.Msg, a *answer, ttl *time.Duration) (next string, found bool) {
	policy := r.g.state.Load().policy
	for range maxChain {
		alias := ""
		for _, rr := range resp.Answer {
			h := rr.Header()
			if h.Class != dns.ClassINET || normal(h.Name) != name || len(a.records) >= maxRecords {
				continue
			}
			if c, ok := rr.(*dns.CNAME); ok && q.qtype != dns.TypeCNAME {
				alias = normal(c.Target)
				// What the box asked for is what rules are about; an alias
				// needs none. But a rule against it counts.
				if v := policy.DeniedName(alias, 0, ""); v != nil {
					a.refused = fmt.Sprintf("it is an alias of %s: %s", alias, v.Reason)
					return "", false
				}
			} else if h.Rrtype != q.qtype {
				continue
			} else {
				if addr, ok := recordAddr(rr); ok {
					if v := policy.Resolved(addr, r.g.dialer.Own(addr.Unmap())); !v.Allowed {
						if a.refused = fmt.Sprintf("it resolves to %s: %s", addr, v.Reason); len(a.addrs) > 0 {
							a.refused = "" // some addresses are in order
						}
						continue
					}
					a.refused = ""
					a.addrs = append(a.addrs, addr)
				}
				found = true
			}
			a.records = append(a.records, dns.Copy(rr))
			*ttl = min(*ttl, time.Duration(h.Ttl)*time.Second)
		}
		if alias == "" || found {
			return next, found
		}
		next, name = alias, alias
	}
	return "", false
}

func recordAddr(rr dns.RR) (netip.Addr, bool) {
	switch rr := rr.(type) {
	case *dns.A:
		return netip.AddrFromSlice(rr.A.To4())
	case *dns.AAAA:
		// An IPv4 address in this form stays in this form, and is refused.
		return netip.AddrFromSlice(rr.AAAA.To16())
	}
	return netip.Addr{}, false
}

func normal(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// serveDNS answers on port 53 of the gateway's addresses.
func (g *Gateway) serveDNS() error {
	for _, a := range []netip.Addr{GatewayAddr, GatewayAddr6} {
		at := fullAddr(netip.AddrPortFrom(a, 53))
		proto := ipv4.ProtocolNumber
		if a.Is6() {
			proto = ipv6.ProtocolNumber
		}
		udp, err := gonet.DialUDP(g.stack, &at, nil, proto)
		if err != nil {
			return fmt.Errorf("resolver: %w", err)
		}
		tcp, err := g.listenInside(at, proto, 4*maxDNSConns)
		if err != nil {
			udp.Close()
			return fmt.Errorf("resolver: %w", err)
		}
		context.AfterFunc(g.ctx, func() {
			_ = udp.Close()
			tcp.close()
		})
		g.work.Go(func() { g.res.serveUDP(udp) })
		g.work.Go(func() { g.res.serveTCP(tcp) })
	}
	return nil
}

// forget drops what was answered under other rules. What the box's addresses
// stand for stays: that is history.
func (r *resolver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for q, a := range r.cache {
		select {
		case <-a.ready:
			delete(r.cache, q)
		default: // it is being asked, and will be judged by the new rules or is by the old
			a.stale = true
		}
	}
}

func (r *resolver) serveUDP(conn net.PacketConn) {
	var work sync.WaitGroup
	defer work.Wait()
	buf := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			if !r.pause() {
				return
			}
			continue
		}
		q := new(dns.Msg)
		if q.Unpack(buf[:n]) != nil || q.Response {
			continue
		}
		respond := func(m *dns.Msg) {
			size := dns.MinMsgSize
			if opt := q.IsEdns0(); opt != nil {
				size = max(size, min(4096, int(opt.UDPSize())))
			}
			m.Truncate(size)
			if data, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(data, from)
			}
		}
		// What needs no waiting is answered here, so that a flood of refused
		// questions makes no goroutines.
		if m := r.quick(q); m != nil {
			respond(m)
			continue
		}
		select {
		case r.asking <- struct{}{}:
		default:
			respond(failure(q, dns.RcodeServerFailure))
			continue
		}
		work.Go(func() {
			defer func() { <-r.asking }()
			respond(r.slow(q))
		})
	}
}

// pause waits a moment after a failure that may pass; false: the gateway closes.
func (r *resolver) pause() bool {
	select {
	case <-r.g.ctx.Done():
		return false
	case <-time.After(10 * time.Millisecond):
		return true
	}
}

func (r *resolver) serveTCP(l *listener) {
	var work sync.WaitGroup
	defer work.Wait()
	slots := make(chan struct{}, maxDNSConns)
	for {
		conn, err := l.accept(r.g.ctx)
		if err != nil {
			if !r.pause() {
				return
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			conn.abort() // nothing of it is to be left
			_ = conn.Close()
			continue
		}
		work.Go(func() {
			defer func() { <-slots }()
			r.serveConn(conn)
		})
	}
}

// serveConn answers on one connection. It ends when the box has taken the
// answers, or has not for some time.
func (r *resolver) serveConn(conn *boxConn) {
	stop := context.AfterFunc(r.g.ctx, conn.abort)
	defer stop()
	defer func() {
		late := time.AfterFunc(dnsConnIdle, conn.abort)
		defer late.Stop()
		conn.finish()
	}()
	dc := &dns.Conn{Conn: conn}
	for {
		_ = conn.SetDeadline(time.Now().Add(dnsConnIdle))
		q, err := dc.ReadMsg()
		if err != nil || q.Response {
			return
		}
		m := r.quick(q)
		if m == nil {
			_ = conn.SetDeadline(time.Now().Add(answerTime + dnsConnIdle))
			m = r.slow(q)
		}
		m.Truncate(dns.MaxMsgSize)
		if err := dc.WriteMsg(m); err != nil {
			return
		}
	}
}

func failure(q *dns.Msg, rcode int) *dns.Msg {
	m := new(dns.Msg)
	m.SetRcode(q, rcode)
	m.RecursionAvailable = true
	m.Answer, m.Ns, m.Extra = nil, nil, nil
	return m
}

// quick answers what needs no upstream: refusals, and names that only mean
// something here. Nil: ask.
func (r *resolver) quick(q *dns.Msg) *dns.Msg {
	if q.Opcode != dns.OpcodeQuery || len(q.Question) != 1 {
		return failure(q, dns.RcodeNotImplemented)
	}
	asked := q.Question[0]
	if !r.rate.take() {
		r.g.counters.refused.Add(1)
		return failure(q, dns.RcodeRefused)
	}
	refuse := func(name string, v box.Verdict) *dns.Msg {
		r.g.counters.refused.Add(1)
		r.g.cfg.Record(box.NetRecord{
			Time: time.Now(), Kind: box.NetDNS, Name: clip(name), Proto: typeName(asked.Qtype), Rule: v.Rule, Reason: v.Reason,
		})
		return failure(q, dns.RcodeRefused)
	}
	if asked.Qclass != dns.ClassINET {
		return refuse(asked.Name, box.Verdict{Reason: "only the class IN has names"})
	}
	name, v := r.allowed(asked)
	if addr, ok := r.locals[name]; ok {
		return r.local(q, name, addr)
	}
	if !v.Allowed {
		return refuse(asked.Name, v)
	}
	if name == box.HostName {
		return r.local(q, name, hostAddr)
	}
	switch asked.Qtype {
	case dns.TypeA, dns.TypeCNAME, dns.TypeSRV, dns.TypeTXT:
		return nil
	case dns.TypeAAAA:
		if r.g.dialer.IPv6() {
			return nil
		}
		// The host cannot reach any: no program should try.
		return failure(q, dns.RcodeSuccess)
	case dns.TypeHTTPS, dns.TypeSVCB:
		// These carry keys for encrypted ClientHellos, and advertise QUIC.
		return failure(q, dns.RcodeSuccess)
	}
	return refuse(asked.Name, box.Verdict{Reason: "questions of this type are not answered"})
}

// allowed judges a question. Services' names are allowed below an allowed name,
// as short as they are registered, so that nothing can be told through them.
func (r *resolver) allowed(asked dns.Question) (string, box.Verdict) {
	bare := strings.TrimSuffix(asked.Name, ".")
	if asked.Qtype == dns.TypeSRV {
		labels := strings.SplitN(strings.ToLower(bare), ".", 3)
		if len(labels) == 3 && strings.HasPrefix(labels[0], "_") && len(labels[0]) <= serviceLabel && (labels[1] == "_tcp" || labels[1] == "_udp") {
			name, err := box.NormalName(labels[2])
			if err == nil {
				if v := r.g.state.Load().policy.Name(name); v.Allowed {
					return strings.ToLower(bare), v
				}
			}
		}
	}
	name, err := box.NormalName(bare)
	if err != nil {
		return "", box.Verdict{Reason: err.Error()}
	}
	return name, r.g.state.Load().policy.Name(name)
}

// local answers with an address that stands for something on this host.
func (r *resolver) local(q *dns.Msg, name string, addr netip.Addr) *dns.Msg {
	r.g.counters.queries.Add(1)
	m := failure(q, dns.RcodeSuccess)
	if q.Question[0].Qtype == dns.TypeA {
		m.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: localTTL}, A: addr.AsSlice(),
		}}
	}
	r.g.cfg.Record(box.NetRecord{Time: time.Now(), Kind: box.NetDNS, Allowed: true, Name: name, Proto: typeName(q.Question[0].Qtype), Addr: addr.String()})
	return m
}

// slow answers a question that is allowed.
func (r *resolver) slow(q *dns.Msg) *dns.Msg {
	asked := q.Question[0]
	name, v := r.allowed(asked)
	ctx, cancel := context.WithTimeout(r.g.ctx, answerTime)
	defer cancel()
	a := r.ask(ctx, question{name, asked.Qtype})
	rec := box.NetRecord{Time: time.Now(), Kind: box.NetDNS, Allowed: true, Name: name, Proto: typeName(asked.Qtype), Rule: v.Rule}
	switch {
	case a.err != nil:
		r.g.counters.refused.Add(1)
		rec.Reason = "no answer: " + a.err.Error()
		r.g.cfg.Record(rec)
		return failure(q, dns.RcodeServerFailure)
	case a.refused != "":
		r.g.counters.refused.Add(1)
		rec.Allowed, rec.Reason = false, a.refused
		r.g.cfg.Record(rec)
		return failure(q, dns.RcodeRefused)
	}
	r.g.counters.queries.Add(1)
	m := failure(q, a.rcode)
	left := uint32(max(1, time.Until(a.until)/time.Second))
	for _, rr := range a.records {
		rr = dns.Copy(rr)
		if h := rr.Header(); normal(h.Name) == name {
			h.Name = asked.Name // as it was spelt
		}
		rr.Header().Ttl = min(rr.Header().Ttl, left)
		m.Answer = append(m.Answer, rr)
	}
	var texts []string
	for _, addr := range a.addrs {
		texts = append(texts, addr.String())
	}
	rec.Addr = strings.Join(texts, " ")
	if len(a.records) == 0 {
		rec.Reason = "no records"
		if a.rcode != dns.RcodeSuccess {
			rec.Reason = strings.ToLower(dns.RcodeToString[a.rcode])
		}
	}
	r.g.cfg.Record(rec)
	return m
}

func typeName(t uint16) string {
	if s, ok := dns.TypeToString[t]; ok {
		return s
	}
	return fmt.Sprintf("TYPE%d", t)
}
