package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/hutch-sandbox/hutch/box"
)

// forward takes over what no listener of the stack is for: all that the box
// sends elsewhere.
func (g *Gateway) forward() {
	g.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(g.stack, 0, maxHandshakes, g.handleTCP).HandlePacket)
	g.stack.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(g.stack, g.handleUDP).HandlePacket)
}

// handleTCP is called in a goroutine of its own for each connection that the
// box begins.
func (g *Gateway) handleTCP(r *tcp.ForwarderRequest) {
	if !g.enter() {
		r.Complete(true)
		return
	}
	defer g.work.Done()
	id := r.ID()
	dst := addrPort(id.LocalAddress, id.LocalPort)
	if !g.newFlows.take() {
		g.counters.denied.Add(1)
		g.cfg.Record(box.NetRecord{Time: time.Now(), Kind: box.NetFlow, Proto: "tcp", Addr: dst.Addr().String(), Port: int(dst.Port()), Reason: tooFast})
		r.Complete(true)
		return
	}
	st := g.state.Load()
	d := g.decide(st, dst, "tcp")
	if d.Allowed && g.open.Add(1) > g.limit {
		g.open.Add(-1)
		d = decision{Verdict: box.Verdict{Reason: tooMany}}
	}
	if !d.Allowed {
		g.refuse("tcp", dst, d)
		r.Complete(true)
		return
	}
	defer g.open.Add(-1)
	f := g.newFlow("tcp", dst, d)
	if !g.begin(st, f) {
		f.cancel()
		r.Complete(true)
		return
	}
	g.counters.allowed.Add(1)
	g.cfg.Record(f.record(box.NetFlow, true))
	f.leave(g.runTCP(f, r, d))
}

const (
	tooFast = "too many new connections a second"
	tooMany = "too many connections are open"
)

// runTCP carries one connection to its end.
func (g *Gateway) runTCP(f *flow, r *tcp.ForwarderRequest, d decision) error {
	var up net.Conn
	if !g.wantsSecret(d, f.dst) {
		// First the server: if it refuses, so do we.
		var err error
		if up, err = g.dialUp(f, d); err != nil {
			r.Complete(true)
			return err
		}
		f.onEnd(func() { abort(up) })
		defer up.Close()
	}
	c, err := g.accept(r)
	if err != nil {
		if up != nil {
			abort(up) // the box went away before it began
		}
		return err
	}
	f.onEnd(c.abort)
	defer c.finish()
	if up != nil {
		defer up.Close() // the server need not wait for the box
	}
	policy := g.state.Load().policy
	if d.kind == named || d.kind == direct && policy.DeniesNames() || up == nil {
		return g.inspect(f, c, up)
	}
	return f.copyBoth(c, up, up)
}

// accept completes the handshake with the box.
func (g *Gateway) accept(r *tcp.ForwarderRequest) (*boxConn, error) {
	wq := &waiter.Queue{}
	ep, terr := r.CreateEndpoint(wq)
	r.Complete(terr != nil)
	if terr != nil {
		return nil, fmt.Errorf("accept: %s", terr)
	}
	g.bound(ep, g.open.Load())
	ep.SocketOptions().SetKeepAlive(true)
	idle := tcpip.KeepaliveIdleOption(time.Minute)
	_ = ep.SetSockOpt(&idle)
	return newBoxConn(wq, ep), nil
}

// bound sets how much may wait in a connection, one of so many.
func (g *Gateway) bound(ep tcpip.Endpoint, flows int64) {
	size := bufferSize(flows)
	ep.SocketOptions().SetReceiveBufferSize(min(size, int64(g.link.window())), true)
	ep.SocketOptions().SetSendBufferSize(size, true)
}

// dialUp makes the connection that a decision allows.
func (g *Gateway) dialUp(f *flow, d decision) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(f.ctx, dialTimeout)
	defer cancel()
	select {
	case g.dialing <- struct{}{}:
		defer func() { <-g.dialing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	switch d.kind {
	case toHost:
		return g.dialHost(ctx, f.proto, f.dst.Port())
	case toBox:
		if g.cfg.DialBox == nil {
			return nil, errors.New("other boxes cannot be reached from here")
		}
		return g.cfg.DialBox(ctx, d.link.Box, d.link.Port)
	case direct:
		return g.dialer.Dial(ctx, f.proto, netip.AddrPortFrom(f.dst.Addr().Unmap(), f.dst.Port()))
	}
	return g.dialName(ctx, f.proto, d.names[0], f.dst, d.names...)
}

// dialHost connects to the host's loopback, in whichever form its service
// listens there.
func (g *Gateway) dialHost(ctx context.Context, proto string, port uint16) (net.Conn, error) {
	conn, err := g.dialer.Dial(ctx, proto, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port))
	if errors.Is(err, unix.ECONNREFUSED) {
		if six, serr := g.dialer.Dial(ctx, proto, netip.AddrPortFrom(netip.IPv6Loopback(), port)); serr == nil {
			return six, nil
		}
	}
	return conn, err
}

// maxTries bounds how many of a name's addresses are tried.
const maxTries = 4

// dialName connects to a name by the gateway's own answer for it: the address
// that the box chose, while that is an answer for one of the names, else
// whatever the name resolves to now.
func (g *Gateway) dialName(ctx context.Context, proto, name string, dst netip.AddrPort, names ...string) (net.Conn, error) {
	addrs := []netip.Addr{dst.Addr()}
	if !g.res.current(dst.Addr(), append(names, name)...) {
		var err error
		if addrs, err = g.res.lookup(ctx, name); err != nil {
			return nil, err
		}
		// The family that the box asked for first.
		slices.SortStableFunc(addrs, func(a, b netip.Addr) int {
			return boolInt(a.Is4() != dst.Addr().Is4()) - boolInt(b.Is4() != dst.Addr().Is4())
		})
	}
	err := fmt.Errorf("%s has no address that may be reached", name)
	for n, a := range addrs {
		if n == maxTries {
			break
		}
		if !g.mayDial(a, dst.Port(), proto) {
			continue
		}
		var conn net.Conn
		if conn, err = g.dialer.Dial(ctx, proto, netip.AddrPortFrom(a, dst.Port())); err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// mayDial is the last look at an address that a name led to.
func (g *Gateway) mayDial(a netip.Addr, port uint16, proto string) bool {
	own := g.dialer.Own(a)
	v := g.state.Load().policy.Address(a, port, proto, own)
	return v.Allowed || v.Rule == "" && !own && box.PublicAddress(a)
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// boxConn is a connection with a program in the box.
type boxConn struct {
	*gonet.TCPConn
	ep tcpip.Endpoint
	wq *waiter.Queue
}

func newBoxConn(wq *waiter.Queue, ep tcpip.Endpoint) *boxConn {
	return &boxConn{TCPConn: gonet.NewTCPConn(wq, ep), ep: ep, wq: wq}
}

// listener takes the box's connections to a port of the gateway's own.
type listener struct {
	ep tcpip.Endpoint
	wq waiter.Queue
}

func (g *Gateway) listenInside(at tcpip.FullAddress, proto tcpip.NetworkProtocolNumber, backlog int) (*listener, error) {
	l := &listener{}
	ep, terr := g.stack.NewEndpoint(tcp.ProtocolNumber, proto, &l.wq)
	if terr != nil {
		return nil, fmt.Errorf("listen: %s", terr)
	}
	if terr = ep.Bind(at); terr == nil {
		terr = ep.Listen(backlog)
	}
	if terr != nil {
		ep.Close()
		return nil, fmt.Errorf("listen: %s", terr)
	}
	l.ep = ep
	return l, nil
}

// accept returns the next connection.
func (l *listener) accept(ctx context.Context) (*boxConn, error) {
	entry, notify := waiter.NewChannelEntry(waiter.ReadableEvents)
	l.wq.EventRegister(&entry)
	defer l.wq.EventUnregister(&entry)
	for {
		ep, wq, terr := l.ep.Accept(nil)
		if terr == nil {
			return newBoxConn(wq, ep), nil
		}
		if _, wait := terr.(*tcpip.ErrWouldBlock); !wait {
			return nil, fmt.Errorf("accept: %s", terr)
		}
		select {
		case <-notify:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *listener) close() { l.ep.Close() }

// Read is the stack's, which forgets that a connection was reset once it has
// said so: an end that is none must not look like one.
func (c *boxConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if err == io.EOF && tcp.EndpointState(c.ep.State()) == tcp.StateError {
		err = &net.OpError{Op: "read", Net: "tcp", Err: unix.ECONNRESET}
	}
	return n, err
}

// finish closes the connection and waits until the box has taken all that was
// written, or the stack gives it up. Until then it is a flow as any other: what a
// box does not take would else pile up behind connections that nobody counts.
func (c *boxConn) finish() {
	entry, notify := waiter.NewChannelEntry(waiter.EventHUp | waiter.EventErr)
	c.wq.EventRegister(&entry)
	defer c.wq.EventUnregister(&entry)
	_ = c.Close()
	for {
		switch tcp.EndpointState(c.ep.State()) {
		case tcp.StateClose, tcp.StateError, tcp.StateTimeWait:
			return
		}
		<-notify
	}
}

// readTo is Read for a writer that does not wait, which gets what there is
// straight from the stack's memory. It writes nothing, and returns nil, if there
// is nothing.
func (c *boxConn) readTo(w *socketWriter) error {
	_, err := c.ep.Read(w, tcpip.ReadOptions{})
	switch err.(type) {
	case nil, *tcpip.ErrWouldBlock, *tcpip.ErrBadBuffer: // the last one: the writer has the reason
		return nil
	case *tcpip.ErrClosedForReceive:
		if tcp.EndpointState(c.ep.State()) == tcp.StateError {
			return &net.OpError{Op: "read", Net: "tcp", Err: unix.ECONNRESET}
		}
		return io.EOF
	}
	return &net.OpError{Op: "read", Net: "tcp", Err: errors.New(err.String())}
}

// abort resets the connection.
func (c *boxConn) abort() { c.ep.Abort() }

const readable = waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr

// waitReadable waits until Read will not wait. A connection that says nothing
// so holds no buffer.
func (c *boxConn) waitReadable() {
	if c.ep.Readiness(readable) != 0 {
		return
	}
	entry, notify := waiter.NewChannelEntry(readable)
	c.wq.EventRegister(&entry)
	defer c.wq.EventUnregister(&entry)
	for c.ep.Readiness(readable) == 0 {
		<-notify
	}
}

// abort closes a connection of the host with a reset.
func abort(conn net.Conn) {
	if l, ok := conn.(interface{ SetLinger(int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = conn.Close()
}

// copyBoth copies in both directions until both have ended. A reset on one
// side becomes one on the other. from is where the server's bytes are read,
// which may have been read ahead of up.
func (f *flow) copyBoth(c *boxConn, from io.Reader, up net.Conn) error {
	var down error
	var wg sync.WaitGroup
	wg.Go(func() { down = f.copyDown(c, from, up) })
	err := f.copyUp(c, nil, up)
	wg.Wait()
	if err == nil {
		err = down
	}
	return err
}

// copyUp copies from the box, first what was read already.
func (f *flow) copyUp(c *boxConn, first []byte, up net.Conn) error {
	count := func(n int) {
		f.sent.Add(int64(n))
		f.g.counters.sent.Add(int64(n))
	}
	err := error(nil)
	if len(first) > 0 {
		count(len(first))
		_, err = up.Write(first)
	}
	pass := f.sender(c, up, count)
	for err == nil {
		c.waitReadable()
		err = pass()
	}
	if errors.Is(err, io.EOF) {
		if cw, ok := up.(interface{ CloseWrite() error }); ok {
			err = cw.CloseWrite()
		} else {
			err = nil
		}
		// A server that reset meanwhile says so to the other direction.
		if err == nil || errors.Is(err, unix.ENOTCONN) {
			return nil
		}
	}
	abort(up)
	c.abort()
	return err
}

// sender returns a function that sends on what the box has sent so far. It
// returns io.EOF when the box will send no more.
func (f *flow) sender(c *boxConn, up net.Conn, count func(int)) func() error {
	var raw syscall.RawConn
	if sc, ok := up.(syscall.Conn); ok {
		raw, _ = sc.SyscallConn()
	}
	if raw == nil {
		return func() error {
			buf := f.g.buffer()
			defer buffers.Put(buf)
			n, err := c.Read(*buf)
			if n > 0 {
				count(n)
				if _, werr := up.Write((*buf)[:n]); werr != nil {
					err = werr
				}
			}
			return err
		}
	}
	return func() (err error) {
		rerr := raw.Write(func(fd uintptr) bool {
			out := socketWriter{fd: int(fd), room: maxPass}
			err = c.readTo(&out)
			count(maxPass - out.room)
			switch out.errno {
			case 0:
			case unix.EAGAIN:
				return false
			default:
				err = fmt.Errorf("write: %w", out.errno)
			}
			return true
		})
		if rerr != nil {
			return rerr
		}
		return err
	}
}

// copyDown copies to the box.
func (f *flow) copyDown(c *boxConn, from io.Reader, up net.Conn) error {
	read := f.reader(from, up)
	for {
		buf, n, err := read()
		if n > 0 {
			f.received.Add(int64(n))
			f.g.counters.received.Add(int64(n))
			if _, werr := c.Write((*buf)[:n]); werr != nil {
				err = werr
			}
		}
		if buf != nil {
			buffers.Put(buf)
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF):
			return ignoreClosed(c.CloseWrite())
		}
		c.abort()
		abort(up)
		return err
	}
}

// ignoreClosed drops the error of ending a direction that has ended.
func ignoreClosed(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return nil
	}
	return err
}

// buffers are what data on its way is in. They are only held while there is
// some.
var buffers sync.Pool

// maxPass is what one turn sends on: while it lasts, the stack takes nothing else
// of the connection.
const maxPass = 512 << 10

// bufferBytes is what a few full segments carry: a rest would go in a small one
// of its own.
const bufferBytes = 2 * (MTU - 100)

func (g *Gateway) buffer() *[]byte {
	if b, ok := buffers.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, bufferBytes)
	return &b
}

// reader returns a function that reads the next bytes. Where it can, it takes a
// buffer only when there is something to read.
func (f *flow) reader(from io.Reader, up net.Conn) func() (*[]byte, int, error) {
	var raw syscall.RawConn
	if sc, ok := up.(syscall.Conn); ok && from == io.Reader(up) {
		raw, _ = sc.SyscallConn()
	}
	if raw == nil {
		return func() (*[]byte, int, error) {
			buf := f.g.buffer()
			n, err := from.Read(*buf)
			return buf, n, err
		}
	}
	return func() (buf *[]byte, n int, err error) {
		rerr := raw.Read(func(fd uintptr) bool {
			buf = f.g.buffer()
			errno := syscall.Errno(unix.EINTR)
			for errno == unix.EINTR {
				n, errno = rawRead(int(fd), *buf)
			}
			switch errno {
			case 0:
				return true
			case unix.EAGAIN:
				buffers.Put(buf)
				buf = nil
				return false
			}
			err = errno
			return true
		})
		switch {
		case rerr != nil:
			return buf, 0, rerr
		case err != nil:
			return buf, 0, err
		case n == 0:
			return buf, 0, io.EOF
		}
		return buf, n, nil
	}
}
