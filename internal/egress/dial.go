package egress

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"
)

// hostDialer is the host's own network.
type hostDialer struct {
	mu      sync.Mutex
	read    time.Time // when the fields below were
	own     map[netip.Addr]bool
	hasIPv6 bool
}

// dialTimeout is how long a server may take to accept.
const dialTimeout = 30 * time.Second

func (d *hostDialer) Dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	// Keep-alive stays on: a server that vanished must not hold a flow.
	nd := net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return nd.DialContext(ctx, network, addr.String())
}

func (d *hostDialer) Own(addr netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refreshLocked()
	return d.own[addr]
}

func (d *hostDialer) IPv6() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refreshLocked()
	return d.hasIPv6
}

// refreshLocked looks at the host's interfaces, at most every few seconds.
func (d *hostDialer) refreshLocked() {
	if time.Since(d.read) < 5*time.Second {
		return
	}
	d.read = time.Now()
	own := map[netip.Addr]bool{}
	addrs, err := net.InterfaceAddrs()
	if err != nil && d.own != nil {
		return // what was known is better than nothing
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				own[ip.Unmap()] = true
			}
		}
	}
	d.own = own
	// Choosing a route sends nothing.
	conn, err := net.Dial("udp6", "[2000::1]:9")
	if d.hasIPv6 = err == nil; err == nil {
		conn.Close()
	}
}
