package egress

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// The link's fixed addresses. Every box has a network of its own, so all of
// them can use the same ones; they are link-local, and of a local range of
// their own in IPv6, so that they never stand for a place in a real network.
var (
	GuestAddr    = netip.MustParsePrefix("169.254.77.2/30")
	GatewayAddr  = netip.MustParseAddr("169.254.77.1")
	GuestAddr6   = netip.MustParsePrefix("fd48:7574:6368::2/64")
	GatewayAddr6 = netip.MustParseAddr("fd48:7574:6368::1")
	GuestMAC     = net.HardwareAddr{0x02, 0x48, 0x55, 0x54, 0x43, 0x02}
	GatewayMAC   = net.HardwareAddr{0x02, 0x48, 0x55, 0x54, 0x43, 0x01}

	// hostAddr stands for the host's loopback, linkBase and what follows for
	// the ports of other boxes.
	hostAddr = netip.MustParseAddr("169.254.77.5")
	linkBase = netip.MustParseAddr("169.254.78.1")

	broadcast = netip.MustParseAddr("255.255.255.255")
)

// MTU of the link: one frame is one message on a socket, so large frames only
// save work.
const MTU = 65000

const nic tcpip.NICID = 1

// socketPair makes the two ends of a link.
func socketPair() (fd int, guest *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("network link: %w", err)
	}
	for _, fd := range fds {
		// A few dozen full frames; more only adds delay. The forced form
		// passes the host's ceiling and needs privilege, so it may fail.
		const size = 4 << 20
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
		}
	}
	return fds[0], os.NewFile(uintptr(fds[1]), "network link"), nil
}

func closeFD(fd int) { _ = unix.Close(fd) }

// newStack makes the stack on the keeper's end of a link, which answers for
// every address. With checksums it computes those of what it sends.
func newStack(fd int, checksums bool) (*stack.Stack, *link, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	l, err := newLink(fd, checksums)
	if err == nil {
		if err = configure(s, l); err == nil {
			return s, l, nil
		}
	}
	s.Destroy()
	if l != nil {
		l.destroy()
	}
	return nil, nil, fmt.Errorf("network link: %w", err)
}

func configure(s *stack.Stack, ep stack.LinkEndpoint) error {
	if err := s.CreateNIC(nic, ep); err != nil {
		return fmt.Errorf("create interface: %s", err)
	}
	var routes []tcpip.Route
	for _, a := range []struct {
		proto          tcpip.NetworkProtocolNumber
		gateway, guest netip.Addr
	}{
		{ipv4.ProtocolNumber, GatewayAddr, GuestAddr.Addr()},
		{ipv6.ProtocolNumber, GatewayAddr6, GuestAddr6.Addr()},
	} {
		addr := tcpip.ProtocolAddress{Protocol: a.proto, AddressWithPrefix: stackAddr(a.gateway).WithPrefix()}
		if err := s.AddProtocolAddress(nic, addr, stack.AddressProperties{}); err != nil {
			return fmt.Errorf("set address: %s", err)
		}
		guest := stackAddr(a.guest)
		// The neighbour is known: no ARP round trip, and nothing to spoof.
		if err := s.AddStaticNeighbor(nic, a.proto, guest, tcpip.LinkAddress(GuestMAC)); err != nil {
			return fmt.Errorf("set neighbour: %s", err)
		}
		routes = append(routes, tcpip.Route{Destination: guest.WithPrefix().Subnet(), NIC: nic})
	}
	s.SetRouteTable(routes)
	// The gateway is every address there is.
	if err := s.SetPromiscuousMode(nic, true); err != nil {
		return fmt.Errorf("answer for every address: %s", err)
	}
	if err := s.SetSpoofing(nic, true); err != nil {
		return fmt.Errorf("answer for every address: %s", err)
	}
	// Windows large enough for bulk copies over a link with almost no delay.
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 8 << 20}
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 8 << 20}
	sack := tcpip.TCPSACKEnabled(true)
	// Nothing can be late on the link: what a port was used for is forgotten
	// soon, so that a flood leaves little behind.
	wait := tcpip.TCPTimeWaitTimeoutOption(time.Second)
	for _, opt := range []tcpip.SettableTransportProtocolOption{&rcv, &snd, &sack, &wait} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, opt); err != nil {
			return fmt.Errorf("set TCP options: %s", err)
		}
	}
	return nil
}

// LogTo has the stack's own messages, which are about what boxes send, written
// to w, for all of this process.
func LogTo(w io.Writer) { log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: w}}) }

// closeStack ends the stack and gives the descriptor back.
func (g *Gateway) closeStack() {
	g.link.shut()
	g.stack.Close()
	g.link.Wait()
	g.stack.Wait()
	g.link.destroy()
}

// DialBox connects to a TCP port of the box on the link.
func (g *Gateway) DialBox(ctx context.Context, port uint16) (net.Conn, error) {
	return gonet.DialContextTCP(ctx, g.stack, fullAddr(netip.AddrPortFrom(GuestAddr.Addr(), port)), ipv4.ProtocolNumber)
}

func stackAddr(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

func fullAddr(a netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: nic, Addr: stackAddr(a.Addr()), Port: a.Port()}
}

// addrPort is the place that a packet was for. An IPv4 address in IPv6 form
// stays in that form.
func addrPort(a tcpip.Address, port uint16) netip.AddrPort {
	ip, _ := netip.AddrFromSlice(a.AsSlice())
	return netip.AddrPortFrom(ip, port)
}
