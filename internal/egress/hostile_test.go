package egress

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/hutch-sandbox/hutch/box"
)

// rawBox is a box that has a link and no stack: it sends any frame.
type rawBox struct {
	t     testing.TB
	g     *Gateway
	link  *os.File
	nonce uint64
}

func newRawBox(t testing.TB, cfg Config) *rawBox {
	t.Helper()
	g, guest, err := NewLink(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Close()
		guest.Close()
	})
	b := &rawBox{t: t, g: g, link: guest}
	if err := unix.SetsockoptTimeval(b.fd(), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *rawBox) fd() int { return int(b.link.Fd()) }

// send sends one frame, and waits for room.
func (b *rawBox) send(frame []byte) {
	for {
		err := unix.Send(b.fd(), frame, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			b.t.Fatalf("send a frame of %d bytes: %v", len(frame), err)
		}
		return
	}
}

// receive returns the next frame, nil when none comes.
func (b *rawBox) receive() []byte {
	buf := make([]byte, maxFrame)
	for {
		n, err := unix.Read(b.fd(), buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return nil
		}
		return buf[:n]
	}
}

// drain reads what is there.
func (b *rawBox) drain() {
	buf := make([]byte, maxFrame)
	for {
		if n, _, err := unix.Recvfrom(b.fd(), buf, unix.MSG_DONTWAIT); n <= 0 && err != unix.EINTR {
			return
		}
	}
}

// alive pings the gateway, which answers after all that was sent before.
func (b *rawBox) alive() {
	b.t.Helper()
	b.nonce++
	body := make([]byte, header.ICMPv4MinimumSize+8)
	icmp := header.ICMPv4(body)
	icmp.SetType(header.ICMPv4Echo)
	icmp.SetIdent(4711)
	binary.BigEndian.PutUint64(body[header.ICMPv4MinimumSize:], b.nonce)
	icmp.SetChecksum(^checksum.Checksum(icmp, 0))
	b.send(packet4(GatewayAddr, header.ICMPv4ProtocolNumber, body))
	for {
		f := b.receive()
		if f == nil {
			b.t.Fatal("the gateway does not answer any more")
		}
		ip := header.IPv4(f[min(len(f), header.EthernetMinimumSize):])
		if len(ip) < header.IPv4MinimumSize+len(body) || ip.TransportProtocol() != header.ICMPv4ProtocolNumber {
			continue
		}
		reply := ip[ip.HeaderLength():]
		if header.ICMPv4(reply).Type() == header.ICMPv4EchoReply && bytes.HasSuffix(reply, body[header.ICMPv4MinimumSize:]) {
			return
		}
	}
}

func ethernet(typ tcpip.NetworkProtocolNumber, body []byte) []byte {
	f := make([]byte, header.EthernetMinimumSize, header.EthernetMinimumSize+len(body))
	header.Ethernet(f).Encode(&header.EthernetFields{SrcAddr: tcpip.LinkAddress(GuestMAC), DstAddr: tcpip.LinkAddress(GatewayMAC), Type: typ})
	return append(f, body...)
}

func packet4(dst netip.Addr, proto tcpip.TransportProtocolNumber, body []byte) []byte {
	return fragment4(dst, proto, 0, 0, 0, body)
}

func fragment4(dst netip.Addr, proto tcpip.TransportProtocolNumber, id, offset uint16, flags uint8, body []byte) []byte {
	p := make([]byte, header.IPv4MinimumSize, header.IPv4MinimumSize+len(body))
	ip := header.IPv4(p)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(p) + len(body)), ID: id, Flags: flags, FragmentOffset: offset, TTL: 64, Protocol: uint8(proto),
		SrcAddr: stackAddr(GuestAddr.Addr()), DstAddr: stackAddr(dst),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	return ethernet(header.IPv4ProtocolNumber, append(p, body...))
}

func packet6(dst netip.Addr, proto tcpip.TransportProtocolNumber, hops uint8, body []byte) []byte {
	p := make([]byte, header.IPv6MinimumSize, header.IPv6MinimumSize+len(body))
	header.IPv6(p).Encode(&header.IPv6Fields{
		PayloadLength: uint16(len(body)), TransportProtocol: proto, HopLimit: hops,
		SrcAddr: stackAddr(GuestAddr6.Addr()), DstAddr: stackAddr(dst),
	})
	return ethernet(header.IPv6ProtocolNumber, append(p, body...))
}

func segment(from, to uint16, seq, ack uint32, flags header.TCPFlags, data []byte) []byte {
	s := make([]byte, header.TCPMinimumSize, header.TCPMinimumSize+len(data))
	header.TCP(s).Encode(&header.TCPFields{
		SrcPort: from, DstPort: to, SeqNum: seq, AckNum: ack, DataOffset: header.TCPMinimumSize, Flags: flags, WindowSize: 65535,
	})
	return append(s, data...)
}

func datagram(from, to uint16, data []byte) []byte {
	d := make([]byte, header.UDPMinimumSize, header.UDPMinimumSize+len(data))
	header.UDP(d).Encode(&header.UDPFields{SrcPort: from, DstPort: to, Length: uint16(cap(d))})
	return append(d, data...)
}

func arpFrame(op header.ARPOp, sender, target netip.Addr) []byte {
	a := make([]byte, header.ARPSize)
	p := header.ARP(a)
	p.SetIPv4OverEthernet()
	p.SetOp(op)
	copy(p.HardwareAddressSender(), GuestMAC)
	copy(p.ProtocolAddressSender(), sender.AsSlice())
	copy(p.ProtocolAddressTarget(), target.AsSlice())
	return ethernet(header.ARPProtocolNumber, a)
}

func icmp6(typ header.ICMPv6Type, body []byte) []byte {
	p := make([]byte, header.ICMPv6HeaderSize, header.ICMPv6HeaderSize+len(body))
	header.ICMPv6(p).SetType(typ)
	p = append(p, body...)
	header.ICMPv6(p).SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{
		Header: header.ICMPv6(p), Src: stackAddr(GuestAddr6.Addr()), Dst: stackAddr(GatewayAddr6),
	}))
	return p
}

func randomAddr() netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], rand.Uint32()&0x7fffffff|0x01000000)
	return netip.AddrFrom4(a)
}

func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestFrameFloods: floods of frames of all kinds leave nothing behind, whether
// somebody reads the answers or not, and the gateway works on.
func TestFrameFloods(t *testing.T) {
	big := make([]byte, MTU-100)
	r16 := func() uint16 { return uint16(rand.Uint32()) }
	floods := []struct {
		name string
		next func() []byte
	}{
		{"nothing", func() []byte { return nil }},
		{"runts", func() []byte { return big[:1+rand.IntN(20)] }},
		{"noise", func() []byte {
			f := ethernet(header.IPv4ProtocolNumber, big[:64])
			for n := header.EthernetMinimumSize; n < len(f); n++ {
				f[n] = byte(rand.Uint32())
			}
			return f
		}},
		{"longer than a frame", func() []byte { return ethernet(header.IPv4ProtocolNumber, make([]byte, 100_000)) }},
		{"unknown protocols", func() []byte { return ethernet(tcpip.NetworkProtocolNumber(r16()), big[:100]) }},
		{"ARP requests", func() []byte { return arpFrame(header.ARPRequest, randomAddr(), randomAddr()) }},
		{"ARP replies", func() []byte { return arpFrame(header.ARPReply, randomAddr(), GatewayAddr) }},
		{"neighbours", func() []byte {
			a := GuestAddr6.Addr().As16()
			binary.BigEndian.PutUint64(a[8:], rand.Uint64())
			types := []header.ICMPv6Type{header.ICMPv6NeighborSolicit, header.ICMPv6NeighborAdvert, header.ICMPv6RouterSolicit, header.ICMPv6RouterAdvert, header.ICMPv6MulticastListenerReport}
			return packet6(GatewayAddr6, header.ICMPv6ProtocolNumber, 255, icmp6(types[rand.IntN(len(types))], append(a[:], 2, 1, 2, 0, 0, 0, 0, 9)))
		}},
		{"begun connections", func() []byte {
			return packet4(randomAddr(), header.TCPProtocolNumber, segment(r16(), r16()|1, rand.Uint32(), 0, header.TCPFlagSyn, nil))
		}},
		{"begun connections to the resolver", func() []byte {
			return packet4(GatewayAddr, header.TCPProtocolNumber, segment(r16()|1, 53, rand.Uint32(), 0, header.TCPFlagSyn, nil))
		}},
		{"segments of no connection", func() []byte {
			return packet4(randomAddr(), header.TCPProtocolNumber, segment(r16(), r16()|1, rand.Uint32(), rand.Uint32(), header.TCPFlags(r16()), big[:1000]))
		}},
		{"datagrams", func() []byte {
			return packet4(randomAddr(), header.UDPProtocolNumber, datagram(r16(), r16()|1, big[:1000]))
		}},
		{"nonsense for the resolver", func() []byte {
			return packet4(GatewayAddr, header.UDPProtocolNumber, datagram(r16()|1, 53, big[:4000]))
		}},
		{"fragments", func() []byte {
			return fragment4(randomAddr(), header.UDPProtocolNumber, r16(), r16()&^7&0x7fff, header.IPv4FlagMoreFragments, big[:8*(1+rand.IntN(200))])
		}},
		{"large fragments", func() []byte {
			return fragment4(randomAddr(), header.UDPProtocolNumber, r16(), 0, header.IPv4FlagMoreFragments, big[:60_000])
		}},
		{"fragments of IPv6", func() []byte {
			f := make([]byte, 8, 1008)
			f[0], f[3] = 17, 1
			binary.BigEndian.PutUint32(f[4:], rand.Uint32())
			return packet6(GatewayAddr6, header.IPv6FragmentHeader, 64, append(f, big[:1000]...))
		}},
		{"pings", func() []byte {
			p := make([]byte, 2000)
			p[0] = byte(header.ICMPv4Echo)
			header.ICMPv4(p).SetChecksum(^checksum.Checksum(p, 0))
			return packet4(randomAddr(), header.ICMPv4ProtocolNumber, p)
		}},
		{"errors", func() []byte {
			p := make([]byte, 100)
			p[0], p[1] = byte(header.ICMPv4DstUnreachable), byte(header.ICMPv4FragmentationNeeded)
			copy(p[8:], packet4(GuestAddr.Addr(), header.TCPProtocolNumber, segment(1, 2, 3, 4, 5, nil))[header.EthernetMinimumSize:])
			header.ICMPv4(p).SetChecksum(^checksum.Checksum(p, 0))
			return packet4(GatewayAddr, header.ICMPv4ProtocolNumber, p)
		}},
	}
	w := newWorld(t)
	b := newRawBox(t, Config{Dialer: w, Upstream: w})
	b.alive()
	for _, tt := range floods {
		t.Run(tt.name, func(t *testing.T) {
			b.t = t
			before, goroutines := inUse(), runtime.NumGoroutine()
			// First nobody reads, so that answers find no room.
			b.g.link.wait.Store(0)
			for n := range 1500 {
				b.send(tt.next())
				if n > 700 && n%8 == 0 {
					b.drain()
				}
			}
			many := runtime.NumGoroutine() - goroutines
			b.drain()
			b.g.link.wait.Store(writeWait)
			b.alive()
			if grown := inUse() - before; grown > 24<<20 {
				t.Errorf("%d MiB are kept", grown>>20)
			}
			if many > 2*maxHandshakes {
				t.Errorf("%d goroutines", many)
			}
		})
	}
}

// TestOrphans: a box that takes no data and closes its side does not make room
// for more by that, and what it did not take is gone with the gateway's word.
func TestOrphans(t *testing.T) {
	w := newWorld(t)
	w.serve("8.8.8.8:80", func(c net.Conn) {
		_, _ = c.Write(make([]byte, 400<<10))
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	})
	b := newRawBox(t, Config{Dialer: w, Upstream: w, Network: box.Network{Allow: []string{"8.8.8.8"}}})
	const limit, n = 20, 200
	b.g.mu.Lock() // which each new connection takes
	b.g.limit = limit
	b.g.mu.Unlock()
	b.alive()
	dst := netip.MustParseAddr("8.8.8.8")
	before := inUse()
	opened := 0
	for i := range n {
		port := uint16(2000 + i)
		syn := make([]byte, header.TCPMinimumSize, header.TCPMinimumSize+4)
		header.TCP(syn).Encode(&header.TCPFields{SrcPort: port, DstPort: 80, SeqNum: 100, DataOffset: header.TCPMinimumSize + 4, Flags: header.TCPFlagSyn, WindowSize: 65535})
		syn = append(syn, header.TCPOptionWS, 3, 14, header.TCPOptionNOP)
		b.send(packet4(dst, header.TCPProtocolNumber, syn))
		for {
			f := b.receive()
			if f == nil {
				t.Fatal("no answer")
			}
			s := header.TCP(header.IPv4(f[header.EthernetMinimumSize:]).Payload())
			if s.DestinationPort() != port {
				continue
			}
			if s.Flags().Contains(header.TCPFlagRst) {
				break
			}
			opened++
			ack := s.SequenceNumber() + 1
			b.send(packet4(dst, header.TCPProtocolNumber, segment(port, 80, 101, ack, header.TCPFlagAck, nil)))
			b.send(packet4(dst, header.TCPProtocolNumber, segment(port, 80, 101, ack, header.TCPFlagFin|header.TCPFlagAck, nil)))
			break
		}
	}
	if opened != limit {
		t.Errorf("%d connections were opened, want %d", opened, limit)
	}
	if open := b.g.open.Load(); open != limit {
		t.Errorf("%d connections count, want %d", open, limit)
	}
	if grown := inUse() - before; grown > 24<<20 {
		t.Errorf("%d MiB are kept", grown>>20)
	}
	b.drain()
	b.alive()
	if err := b.g.SetNetwork(box.Network{}); err != nil {
		t.Fatal(err)
	}
	for b.g.open.Load() > 0 {
		runtime.Gosched() // the flows end by themselves
	}
}

// TestResolverOrphans: connections to the resolver, each with a question, whose
// answers are not taken, are few at any time.
func TestResolverOrphans(t *testing.T) {
	d := &closedDialer{}
	b := newRawBox(t, Config{Dialer: d, Upstream: d})
	b.alive()
	before := len(b.g.stack.RegisteredEndpoints())
	question := []byte("\x00\x15\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x01b\x00\x00\x01\x00\x01")
	for i := range 500 {
		port := uint16(2000 + i)
		b.send(packet4(GatewayAddr, header.TCPProtocolNumber, segment(port, 53, 100, 0, header.TCPFlagSyn, nil)))
		for {
			f := b.receive()
			if f == nil {
				t.Fatal("no answer")
			}
			s := header.TCP(header.IPv4(f[header.EthernetMinimumSize:]).Payload())
			if s.DestinationPort() == port && s.Flags().Contains(header.TCPFlagSyn) {
				ack := s.SequenceNumber() + 1
				b.send(packet4(GatewayAddr, header.TCPProtocolNumber, segment(port, 53, 101, ack, header.TCPFlagAck, question)))
				b.send(packet4(GatewayAddr, header.TCPProtocolNumber, segment(port, 53, 101+uint32(len(question)), ack, header.TCPFlagAck|header.TCPFlagFin, nil)))
				break
			}
		}
	}
	// The last are accepted, or refused, in a moment.
	deadline := time.Now().Add(10 * time.Second)
	open := len(b.g.stack.RegisteredEndpoints()) - before
	for ; open > maxDNSConns && time.Now().Before(deadline); open = len(b.g.stack.RegisteredEndpoints()) - before {
		b.drain()
		time.Sleep(time.Millisecond)
	}
	if open > maxDNSConns {
		t.Errorf("%d connections are kept", open)
	}
	b.drain()
	b.alive()
}

// closedDialer is the way out of a gateway that lets nothing out, and its
// resolver.
type closedDialer struct{ dialed atomic.Int64 }

func (d *closedDialer) Dial(context.Context, string, netip.AddrPort) (net.Conn, error) {
	d.dialed.Add(1)
	return nil, unix.ENETUNREACH
}

func (d *closedDialer) Exchange(context.Context, *dns.Msg) (*dns.Msg, error) {
	d.dialed.Add(1)
	return nil, unix.ENETUNREACH
}

func (d *closedDialer) Own(netip.Addr) bool { return false }
func (d *closedDialer) IPv6() bool          { return true }

// FuzzFrames: whatever frames come, the gateway answers the next ping, opens
// nothing, and has no flow.
func FuzzFrames(f *testing.F) {
	for _, frame := range [][]byte{
		{}, {1}, make([]byte, 13), make([]byte, 14),
		arpFrame(header.ARPRequest, GuestAddr.Addr(), GatewayAddr),
		packet4(GatewayAddr, header.TCPProtocolNumber, segment(1, 53, 1, 0, header.TCPFlagSyn, nil)),
		packet4(netip.MustParseAddr("8.8.8.8"), header.TCPProtocolNumber, segment(1, 80, 1, 0, header.TCPFlagSyn, nil)),
		packet4(netip.MustParseAddr("8.8.8.8"), header.TCPProtocolNumber, segment(1, 80, 1, 1, 0xff, []byte("x"))),
		packet4(netip.MustParseAddr("8.8.8.8"), header.UDPProtocolNumber, datagram(1, 80, []byte("x"))),
		packet4(GatewayAddr, header.UDPProtocolNumber, datagram(1, 53, []byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x01b\x00\x00\x01\x00\x01"))),
		fragment4(GatewayAddr, header.UDPProtocolNumber, 7, 8, header.IPv4FlagMoreFragments, make([]byte, 16)),
		fragment4(GatewayAddr, header.UDPProtocolNumber, 7, 65528, 0, make([]byte, 100)),
		packet6(GatewayAddr6, header.ICMPv6ProtocolNumber, 255, icmp6(header.ICMPv6NeighborSolicit, append(GatewayAddr6.AsSlice(), 1, 0, 2, 0, 0, 0, 0, 9))),
		packet6(GatewayAddr6, header.IPv6FragmentHeader, 64, []byte{17, 0, 0, 1, 0, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8}),
		packet6(GatewayAddr6, 0, 64, []byte{60, 0, 5, 2, 0, 0, 1, 0, 43, 0, 0, 0, 0, 0, 0, 0}),
		ethernet(header.IPv4ProtocolNumber, []byte{0x4f, 0, 0, 60}),
		ethernet(header.IPv6ProtocolNumber, []byte{0x60}),
	} {
		f.Add(frame, true)
		f.Add(frame[min(len(frame), header.EthernetMinimumSize):], false)
	}
	d := &closedDialer{}
	b := newRawBox(f, Config{Dialer: d, Upstream: d})
	f.Fuzz(func(t *testing.T, data []byte, whole bool) {
		b.t = t
		frames := [][]byte{data[:min(len(data), 100_000)]}
		if !whole { // what the link itself would drop is not tried again and again
			frames = [][]byte{ethernet(header.IPv4ProtocolNumber, data), ethernet(header.IPv6ProtocolNumber, data)}
			if len(data) > 0 && len(data) < 60_000 {
				frames = append(frames,
					packet4(GatewayAddr, tcpip.TransportProtocolNumber(data[0]), data[1:]),
					packet6(GatewayAddr6, tcpip.TransportProtocolNumber(data[0]), 255, data[1:]))
			}
		}
		for _, frame := range frames {
			if len(frame) <= 100_000 {
				b.send(frame)
			}
		}
		b.alive()
		if d.dialed.Load() > 0 {
			t.Fatal("a closed gateway dialled")
		}
		if s := b.g.Stats(); s.Allowed > 0 || s.Flows > 0 {
			t.Fatalf("a closed gateway has a flow: %+v", s)
		}
	})
}
