package egress

import (
	"net"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/hutch-sandbox/hutch/box"
)

// udpIdle is how long a UDP flow is kept without a datagram in either
// direction.
const udpIdle = 90 * time.Second

// handleUDP is called by the stack for the first datagram of a flow, and must
// not wait. False answers "port unreachable".
func (g *Gateway) handleUDP(r *udp.ForwarderRequest) bool {
	id := r.ID()
	dst := addrPort(id.LocalAddress, id.LocalPort)
	if addr := dst.Addr(); addr.IsMulticast() || addr == broadcast {
		return true // dropped: nobody expects an answer
	}
	if !g.enter() {
		return false
	}
	if !g.newFlows.take() {
		g.counters.denied.Add(1)
		g.work.Done()
		return false
	}
	st := g.state.Load()
	d := g.decide(st, dst, "udp")
	if d.Allowed && g.openUDP.Add(1) > maxUDPFlows {
		g.openUDP.Add(-1)
		d.Verdict = box.Verdict{Reason: tooMany}
	}
	if !d.Allowed {
		g.refuse("udp", dst, d)
		g.work.Done()
		return false
	}
	f := g.newFlow("udp", dst, d)
	var wq waiter.Queue
	ep, terr := r.CreateEndpoint(&wq)
	if terr != nil || !g.begin(st, f) {
		if ep != nil {
			ep.Close()
		}
		f.cancel()
		g.openUDP.Add(-1)
		g.work.Done()
		return false
	}
	ep.SocketOptions().SetReceiveBufferSize(128<<10, true)
	conn := gonet.NewUDPConn(&wq, ep)
	g.counters.allowed.Add(1)
	go func() {
		defer g.work.Done()
		defer g.openUDP.Add(-1)
		g.cfg.Record(f.record(box.NetFlow, true))
		f.leave(g.runUDP(f, conn, d))
	}()
	return true
}

// runUDP carries datagrams until the flow is idle or cut.
func (g *Gateway) runUDP(f *flow, conn net.Conn, d decision) error {
	defer conn.Close()
	f.onEnd(func() { _ = conn.Close() })
	up, err := g.dialUp(f, d)
	if err != nil {
		return err
	}
	defer up.Close()
	f.onEnd(func() { _ = up.Close() })
	quic := d.kind == named
	return relayUDP(conn, up, func(p []byte) bool {
		if quic && isQUIC(p) {
			f.end("QUIC hides the name that the rule is about")
			return false
		}
		f.sent.Add(int64(len(p)))
		g.counters.sent.Add(int64(len(p)))
		return true
	}, func(p []byte) bool {
		f.received.Add(int64(len(p)))
		g.counters.received.Add(int64(len(p)))
		return true
	})
}

// relayUDP copies datagrams between two connected sockets until neither had
// one for a while, or one fails. Each function may stop it.
func relayUDP(inner, outer net.Conn, sent, received func([]byte) bool) error {
	done := make(chan struct{})
	idle := time.AfterFunc(udpIdle, func() { inner.Close(); outer.Close() })
	defer idle.Stop()
	copyTo := func(dst, src net.Conn, seen func([]byte) bool) error {
		buf := make([]byte, 64<<10)
		for {
			n, err := src.Read(buf)
			if err != nil {
				return err
			}
			if !seen(buf[:n]) {
				return nil
			}
			idle.Reset(udpIdle)
			// One that is too large, or that the host has no room for, is
			// lost, as datagrams may be.
			if _, err := dst.Write(buf[:n]); err != nil && isClosed(err) {
				return err
			}
		}
	}
	go func() {
		defer close(done)
		_ = copyTo(inner, outer, received)
		inner.Close()
	}()
	err := copyTo(outer, inner, sent)
	outer.Close()
	inner.Close()
	<-done
	if isClosed(err) {
		err = nil
	}
	return err
}

// isQUIC reports whether a datagram begins a QUIC connection: only packets of
// the handshake have the long form.
func isQUIC(p []byte) bool {
	if len(p) < 7 || p[0]&0x80 == 0 {
		return false
	}
	version := uint32(p[1])<<24 | uint32(p[2])<<16 | uint32(p[3])<<8 | uint32(p[4])
	switch {
	case version == 0, version == 1, version == 0x6b3343cf, version>>8 == 0xff0000, version>>8 == 0x514630, version>>8 == 0x513034, version>>8 == 0x513035, version>>8 == 0x543035:
		// Versions 1 and 2, drafts, Google's; 0 is negotiation. Lengths of
		// connection ids tell it from other protocols.
		return int(p[5]) <= 20
	}
	return version&0x0f0f0f0f == 0x0a0a0a0a // reserved to force negotiation
}
