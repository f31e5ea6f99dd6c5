package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/hutch-sandbox/hutch/box"
)

// ports are the box's ports on the host.
type ports struct {
	mu   sync.Mutex
	list []*publishedPort
}

// publishedPort is one of them.
type publishedPort struct {
	port   box.Port // with its host port
	cancel context.CancelFunc
	closed chan struct{} // when nothing of it is left
}

const (
	maxInbound    = 2048 // connections of one port
	maxUDPClients = 1024 // of one port
)

// Publish listens on the host for connections to a port of the box. It returns
// the port with the host port that was chosen, if it was to be any.
func (g *Gateway) Publish(p box.Port) (box.Port, error) {
	if err := p.Validate(); err != nil {
		return p, err
	}
	if !g.enter() {
		return p, &box.Error{Kind: box.Unavailable, Op: "publish port", Object: p.String(), Err: errors.New("the box's network is down")}
	}
	ctx, cancel := context.WithCancel(g.ctx)
	pub := &publishedPort{cancel: cancel, closed: make(chan struct{})}
	serve, bound, err := g.listen(ctx, p)
	if err != nil {
		cancel()
		g.work.Done()
		return p, listenError(p, err)
	}
	p.Host = bound
	pub.port = p
	g.ports.mu.Lock()
	g.ports.list = append(g.ports.list, pub)
	g.ports.mu.Unlock()
	go func() {
		defer g.work.Done()
		defer close(pub.closed)
		serve()
	}()
	return p, nil
}

// Unpublish stops listening and ends the port's connections.
func (g *Gateway) Unpublish(p box.Port) error {
	g.ports.mu.Lock()
	i := slices.IndexFunc(g.ports.list, func(q *publishedPort) bool {
		return q.port.HostAddr() == p.HostAddr() && q.port.Protocol() == p.Protocol() && (p.Box == 0 || p.Box == q.port.Box)
	})
	if i < 0 {
		g.ports.mu.Unlock()
		return &box.Error{Kind: box.NotFound, Op: "unpublish port", Object: p.String(), Err: errors.New("it is not published"), Hint: "hutch inspect shows what is"}
	}
	pub := g.ports.list[i]
	g.ports.list = slices.Delete(g.ports.list, i, i+1)
	g.ports.mu.Unlock()
	pub.cancel()
	<-pub.closed
	return nil
}

// Ports returns what is published, with host ports.
func (g *Gateway) Ports() []box.Port {
	g.ports.mu.Lock()
	defer g.ports.mu.Unlock()
	var out []box.Port
	for _, p := range g.ports.list {
		out = append(out, p.port)
	}
	return out
}

// close stops listening everywhere.
func (p *ports) close() {
	p.mu.Lock()
	list := p.list
	p.list = nil
	p.mu.Unlock()
	for _, pub := range list {
		pub.cancel()
		<-pub.closed
	}
}

// listenError says what is the matter with a host port.
func listenError(p box.Port, err error) error {
	e := &box.Error{Kind: box.Internal, Op: "publish port", Object: p.HostAddr() + "/" + p.Protocol(), Err: err}
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		e.Kind, e.Err, e.Hint = box.Exists, errors.New("something else on this host listens there"), "choose another host port, or 0 for any free one"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		e.Kind, e.Err = box.Permission, fmt.Errorf("port %d is privileged", p.Host)
		e.Hint = "choose one from 1024 on, run Hutch as root, or lower the sysctl net.ipv4.ip_unprivileged_port_start"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		e.Kind, e.Err, e.Hint = box.Invalid, errors.New("this host has no such address"), "use one of its own, or leave it out for 127.0.0.1"
	}
	return e
}

// listen opens the host's socket and returns what serves it until ctx ends.
func (g *Gateway) listen(ctx context.Context, p box.Port) (serve func(), bound int, err error) {
	var lc net.ListenConfig
	if p.Protocol() == "udp" {
		conn, err := lc.ListenPacket(ctx, "udp", p.HostAddr())
		if err != nil {
			return nil, 0, err
		}
		return func() { g.servePortUDP(ctx, conn, p) }, conn.LocalAddr().(*net.UDPAddr).Port, nil
	}
	l, err := lc.Listen(ctx, "tcp", p.HostAddr())
	if err != nil {
		return nil, 0, err
	}
	return func() { g.servePort(ctx, l, p) }, l.Addr().(*net.TCPAddr).Port, nil
}

func (g *Gateway) servePort(ctx context.Context, l net.Listener, p box.Port) {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var conns sync.WaitGroup
	defer conns.Wait()
	slots := make(chan struct{}, maxInbound)
	for {
		select {
		case slots <- struct{}{}: // before accepting: the others wait in the queue
		case <-ctx.Done():
			return
		}
		conn, err := l.Accept()
		if err != nil {
			<-slots
			if ctx.Err() != nil {
				return
			}
			// Out of descriptors, or a client that went away again.
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		conns.Go(func() {
			defer func() { <-slots }()
			g.inbound(ctx, conn, p)
		})
	}
}

// inbound carries one connection from the host.
func (g *Gateway) inbound(ctx context.Context, conn net.Conn, p box.Port) {
	defer conn.Close()
	g.inside.Add(1)
	defer g.inside.Add(-1)
	f := &flow{g: g, proto: "tcp", dst: netip.AddrPortFrom(GuestAddr.Addr(), uint16(p.Box)), began: time.Now(), kind: published, rule: "port " + p.String()}
	f.ctx, f.cancel = context.WithCancel(ctx)
	if !g.begin(g.state.Load(), f) {
		f.cancel()
		return
	}
	rec := f.record(box.NetPort, true)
	rec.Addr = conn.RemoteAddr().String()
	stop := context.AfterFunc(f.ctx, func() { f.end("the port was closed") })
	defer stop()
	f.onEnd(func() { abort(conn) })
	dialCtx, cancel := context.WithTimeout(f.ctx, dialTimeout)
	c, err := g.dialBoxConn(dialCtx, uint16(p.Box))
	cancel()
	if err == nil {
		g.cfg.Record(rec)
		f.onEnd(c.abort)
		err := f.copyBoth(c, conn, conn)
		_ = conn.Close()
		c.finish()
		f.leave(err)
		return
	}
	if g.cfg.DialInside != nil {
		// The server may listen on the box's loopback only.
		var inside net.Conn
		dialCtx, cancel := context.WithTimeout(f.ctx, dialTimeout)
		inside, ierr := g.cfg.DialInside(dialCtx, p.Box)
		cancel()
		if err = ierr; err == nil {
			g.cfg.Record(rec)
			f.onEnd(func() { _ = inside.Close() })
			defer inside.Close()
			f.leave(f.copyPlain(inside, conn))
			return
		}
	}
	rec.Allowed, rec.Reason = false, "nothing in the box listens there"
	g.cfg.Record(rec)
	abort(conn)
	f.drop()
}

// copyPlain copies between a connection in the box that is not of this stack
// and one of the host.
func (f *flow) copyPlain(inside, conn net.Conn) error {
	one := func(dst, src net.Conn, count func(int64)) error {
		buf := f.g.buffer()
		defer buffers.Put(buf)
		for {
			n, err := src.Read(*buf)
			count(int64(n))
			if n > 0 {
				if _, werr := dst.Write((*buf)[:n]); werr != nil {
					err = werr
				}
			}
			if err == nil {
				continue
			}
			if isClosed(err) {
				if cw, ok := dst.(interface{ CloseWrite() error }); ok && cw.CloseWrite() == nil {
					return nil
				}
			}
			abort(dst)
			abort(src)
			return err
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = one(inside, conn, func(n int64) { f.received.Add(n); f.g.counters.received.Add(n) })
	})
	err := one(conn, inside, func(n int64) { f.sent.Add(n); f.g.counters.sent.Add(n) })
	wg.Wait()
	return err
}

// dialBoxConn connects to a port of the box.
func (g *Gateway) dialBoxConn(ctx context.Context, port uint16) (*boxConn, error) {
	wq := &waiter.Queue{}
	ep, terr := g.stack.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, wq)
	if terr != nil {
		return nil, fmt.Errorf("connect: %s", terr)
	}
	g.bound(ep, g.inside.Load())
	entry, notify := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	terr = ep.Connect(fullAddr(netip.AddrPortFrom(GuestAddr.Addr(), port)))
	if _, ok := terr.(*tcpip.ErrConnectStarted); ok {
		select {
		case <-notify:
		case <-ctx.Done():
			ep.Close()
			return nil, ctx.Err()
		}
		terr = ep.LastError()
	}
	if terr != nil {
		ep.Close()
		return nil, fmt.Errorf("connect: %s", terr)
	}
	return newBoxConn(wq, ep), nil
}

// servePortUDP carries datagrams: for each client a socket of its own in the
// box's network, so that answers find their way back.
func (g *Gateway) servePortUDP(ctx context.Context, outer net.PacketConn, p box.Port) {
	stop := context.AfterFunc(ctx, func() { _ = outer.Close() })
	defer stop()
	var (
		mu      sync.Mutex
		clients = map[netip.AddrPort]*udpClient{}
		work    sync.WaitGroup
	)
	defer work.Wait()
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range clients {
			_ = c.inner.Close()
		}
	}()
	udp := outer.(*net.UDPConn)
	buf := make([]byte, 64<<10)
	to := fullAddr(netip.AddrPortFrom(GuestAddr.Addr(), uint16(p.Box)))
	for {
		n, from, err := udp.ReadFromUDPAddrPort(buf)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			continue // a port that a client closed
		}
		g.counters.received.Add(int64(n))
		mu.Lock()
		c := clients[from]
		if c == nil && len(clients) < maxUDPClients {
			inner, derr := gonet.DialUDP(g.stack, nil, &to, ipv4.ProtocolNumber)
			if derr == nil {
				c = &udpClient{inner: inner}
				clients[from] = c
				g.cfg.Record(box.NetRecord{Time: time.Now(), Kind: box.NetPort, Allowed: true, Proto: "udp", Addr: from.String(), Port: p.Box, Rule: "port " + p.String()})
				work.Go(func() {
					c.answer(g, udp, from)
					mu.Lock()
					delete(clients, from)
					mu.Unlock()
				})
			}
		}
		mu.Unlock()
		if c != nil {
			_ = c.inner.SetReadDeadline(time.Now().Add(udpIdle))
			_, _ = c.inner.Write(buf[:n])
		}
	}
}

type udpClient struct{ inner net.Conn }

// answer passes on what the box says until it is silent for a while.
func (c *udpClient) answer(g *Gateway, outer *net.UDPConn, to netip.AddrPort) {
	defer c.inner.Close()
	buf := make([]byte, 64<<10)
	for {
		_ = c.inner.SetReadDeadline(time.Now().Add(udpIdle)) // the other direction extends it too
		n, err := c.inner.Read(buf)
		if err != nil {
			return
		}
		g.counters.sent.Add(int64(n))
		_, _ = outer.WriteToUDPAddrPort(buf[:n], to)
	}
}
