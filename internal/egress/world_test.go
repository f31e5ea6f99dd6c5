package egress

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/hutch-sandbox/hutch/box"
)

// world is the internet of a test: addresses that lead to listeners on
// loopback, and a resolver. A connection to any other place fails the test: a
// hole in the gateway is seen, and sends nothing.
type world struct {
	t  *testing.T
	ca *x509.Certificate
	// caKey signs the servers' certificates.
	caKey *ecdsa.PrivateKey

	mu     sync.Mutex
	places map[string]string // "tcp 93.184.216.1:443" → "127.0.0.1:…"
	closed map[string]bool   // places that refuse
	own    map[netip.Addr]bool
	ipv6   bool
	zone   map[string][]string // "name TYPE" → records
	asked  []string
	dialed []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: serial(), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, ca: ca, caKey: key, places: map[string]string{}, closed: map[string]bool{}, own: map[netip.Addr]bool{}, zone: map[string][]string{}}
}

func (w *world) Dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	w.mu.Lock()
	key := network + " " + addr.String()
	to, ok := w.places[key]
	refuse := w.closed[key]
	w.dialed = append(w.dialed, key)
	w.mu.Unlock()
	if refuse {
		return nil, &net.OpError{Op: "dial", Net: network, Err: unix.ECONNREFUSED}
	}
	if !ok {
		w.t.Errorf("the gateway dialled %s, which is no place of this test", key)
		return nil, unix.ENETUNREACH
	}
	var d net.Dialer
	return d.DialContext(ctx, network, to)
}

func (w *world) Own(a netip.Addr) bool { return w.own[a] }
func (w *world) IPv6() bool            { return w.ipv6 }

// Exchange answers from the zone.
func (w *world) Exchange(_ context.Context, q *dns.Msg) (*dns.Msg, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	asked := q.Question[0]
	name := strings.TrimSuffix(strings.ToLower(asked.Name), ".")
	w.asked = append(w.asked, name+" "+dns.TypeToString[asked.Qtype])
	m := new(dns.Msg)
	m.SetReply(q)
	known := false
	for range 10 {
		if cname := w.zone[name+" CNAME"]; len(cname) > 0 && asked.Qtype != dns.TypeCNAME {
			known = true
			rr, err := dns.NewRR(fmt.Sprintf("%s. 60 IN CNAME %s.", name, cname[0]))
			if err != nil {
				return nil, err
			}
			m.Answer = append(m.Answer, rr)
			name = cname[0]
			continue
		}
		for key, records := range w.zone {
			n, typ, _ := strings.Cut(key, " ")
			known = known || n == name
			if n != name || typ != dns.TypeToString[asked.Qtype] {
				continue
			}
			for _, data := range records {
				rr, err := dns.NewRR(fmt.Sprintf("%s. 60 IN %s %s", n, typ, data))
				if err != nil {
					return nil, err
				}
				m.Answer = append(m.Answer, rr)
			}
		}
		break
	}
	if !known {
		m.Rcode = dns.RcodeNameError
	}
	return m, nil
}

// name makes a name resolve to addresses.
func (w *world) name(name string, addrs ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range addrs {
		typ := " A"
		if netip.MustParseAddr(a).Is6() {
			typ = " AAAA"
		}
		w.zone[name+typ] = append(w.zone[name+typ], a)
	}
}

// serve puts a listener behind an address, and serves every connection.
func (w *world) serve(addr string, handle func(net.Conn)) {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	w.mu.Lock()
	w.places["tcp "+addr] = l.Addr().String()
	w.mu.Unlock()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
}

// serveHTTP puts an HTTP server behind an address; with names, over TLS with a
// certificate for them.
func (w *world) serveHTTP(addr string, h http.Handler, names ...string) {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.places["tcp "+addr] = l.Addr().String()
	w.mu.Unlock()
	s := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	var work sync.WaitGroup
	if len(names) > 0 {
		s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{w.certificate(names...)}, NextProtos: []string{"h2", "http/1.1"}}
		work.Go(func() { _ = s.ServeTLS(l, "", "") })
	} else {
		work.Go(func() { _ = s.Serve(l) })
	}
	w.t.Cleanup(func() {
		s.Close()
		work.Wait()
	})
}

func (w *world) certificate(names ...string) tls.Certificate {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: serial(), DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, w.ca, key.Public(), w.caKey)
	if err != nil {
		w.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (w *world) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(w.ca)
	return p
}

// wasAsked reports whether upstream was asked anything that contains s.
func (w *world) wasAsked(s string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.asked, func(q string) bool { return strings.Contains(q, s) })
}

func (w *world) wasDialed(s string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.dialed, func(q string) bool { return strings.Contains(q, s) })
}

// echo sends back what it gets, up to the end.
func echo(c net.Conn) {
	_, _ = io.Copy(c, c)
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
}

// testBox plays the box: a stack of its own at the other end of a link.
type testBox struct {
	t  *testing.T
	w  *world
	g  *Gateway
	s  *stack.Stack
	fd int

	mu   sync.Mutex
	logs []box.NetRecord
}

func newTestBox(t *testing.T, w *world, cfg Config) *testBox {
	t.Helper()
	b := &testBox{t: t, w: w}
	cfg.Dialer, cfg.Upstream, cfg.Roots = w, w, w.pool()
	if cfg.ID == "" {
		cfg.ID = "testbox"
	}
	cfg.Record = func(r box.NetRecord) {
		b.mu.Lock()
		b.logs = append(b.logs, r)
		b.mu.Unlock()
	}
	g, guest, err := NewLink(cfg)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(guest.Fd()))
	guest.Close()
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.SetNonblock(fd, true)
	b.g, b.fd = g, fd
	b.s = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	ep, err := fdbased.New(&fdbased.Options{
		FDs: []int{fd}, MTU: MTU, EthernetHeader: true, Address: tcpip.LinkAddress(GuestMAC),
		PacketDispatchMode: fdbased.Readv, RXChecksumOffload: true, TXChecksumOffload: true, ProcessorsPerChannel: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.s.CreateNIC(1, ep); err != nil {
		t.Fatal(err)
	}
	var routes []tcpip.Route
	for _, a := range []struct {
		proto tcpip.NetworkProtocolNumber
		own   netip.Prefix
		gw    netip.Addr
		all   tcpip.Subnet
	}{
		{ipv4.ProtocolNumber, GuestAddr, GatewayAddr, subnet("0.0.0.0/0")},
		{ipv6.ProtocolNumber, GuestAddr6, GatewayAddr6, subnet("::/0")},
	} {
		pa := tcpip.ProtocolAddress{Protocol: a.proto, AddressWithPrefix: tcpip.AddressWithPrefix{Address: stackAddr(a.own.Addr()), PrefixLen: a.own.Bits()}}
		if err := b.s.AddProtocolAddress(1, pa, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
		if err := b.s.AddStaticNeighbor(1, a.proto, stackAddr(a.gw), tcpip.LinkAddress(GatewayMAC)); err != nil {
			t.Fatal(err)
		}
		routes = append(routes, tcpip.Route{Destination: a.all, Gateway: stackAddr(a.gw), NIC: 1})
	}
	b.s.SetRouteTable(routes)
	t.Cleanup(func() {
		g.Close()
		b.s.Close()
		ep.Close()
		ep.Wait()
		b.s.Wait()
		unix.Close(fd)
	})
	return b
}

func subnet(s string) tcpip.Subnet {
	p := netip.MustParsePrefix(s)
	a := tcpip.AddressWithPrefix{Address: stackAddr(p.Addr()), PrefixLen: p.Bits()}
	return a.Subnet()
}

func protoOf(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is6() {
		return ipv6.ProtocolNumber
	}
	return ipv4.ProtocolNumber
}

// dial connects as a program in the box.
func (b *testBox) dial(addr string) (net.Conn, error) {
	ap := netip.MustParseAddrPort(addr)
	patience := 20 * time.Second
	if neverSent(addr) {
		patience = 50 * time.Millisecond // for what would be a hole
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	c, err := gonet.DialContextTCP(ctx, b.s, tcpip.FullAddress{NIC: 1, Addr: stackAddr(ap.Addr()), Port: ap.Port()}, protoOf(ap.Addr()))
	if err != nil {
		return nil, err
	}
	b.t.Cleanup(func() { c.Close() })
	return c, nil
}

func (b *testBox) dialUDP(addr string) net.Conn {
	b.t.Helper()
	ap := netip.MustParseAddrPort(addr)
	to := tcpip.FullAddress{NIC: 1, Addr: stackAddr(ap.Addr()), Port: ap.Port()}
	c, err := gonet.DialUDP(b.s, nil, &to, protoOf(ap.Addr()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	return c
}

// ask asks the gateway's resolver over network.
func (b *testBox) ask(network, name string, qtype uint16) *dns.Msg {
	b.t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), qtype)
	return b.exchange(network, m)
}

func (b *testBox) exchange(network string, m *dns.Msg) *dns.Msg {
	b.t.Helper()
	var conn net.Conn
	if network == "tcp" {
		var err error
		if conn, err = b.dial(GatewayAddr.String() + ":53"); err != nil {
			b.t.Fatal(err)
		}
	} else {
		conn = b.dialUDP(GatewayAddr.String() + ":53")
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
	// dns.Conn looks at the type for framing; this one is neither of net's.
	data, err := m.Pack()
	if err != nil {
		b.t.Fatal(err)
	}
	if network == "tcp" {
		data = append([]byte{byte(len(data) >> 8), byte(len(data))}, data...)
	}
	if _, err := conn.Write(data); err != nil {
		b.t.Fatal(err)
	}
	buf := make([]byte, 65536)
	n := 0
	if network == "tcp" {
		if _, err = io.ReadFull(conn, buf[:2]); err == nil {
			n, err = io.ReadFull(conn, buf[:int(buf[0])<<8|int(buf[1])])
		}
	} else {
		n, err = conn.Read(buf)
	}
	if err != nil {
		b.t.Fatalf("%s: %v", m.Question[0].Name, err)
	}
	out := new(dns.Msg)
	if err := out.Unpack(buf[:n]); err != nil {
		b.t.Fatal(err)
	}
	if out.Id != m.Id {
		b.t.Fatalf("the answer has id %d, the question %d", out.Id, m.Id)
	}
	return out
}

// resolve returns the addresses of a name, as the box sees them.
func (b *testBox) resolve(name string) []string {
	b.t.Helper()
	var out []string
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		for _, rr := range b.ask("udp", name, qtype).Answer {
			switch rr := rr.(type) {
			case *dns.A:
				out = append(out, rr.A.String())
			case *dns.AAAA:
				out = append(out, rr.AAAA.String())
			}
		}
	}
	return out
}

// client is an HTTP client in the box, which resolves names as the box does.
func (b *testBox) client(roots *x509.CertPool) *http.Client {
	t := &http.Transport{
		DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			if _, err := netip.ParseAddr(host); err != nil {
				addrs := b.resolve(host)
				if len(addrs) == 0 {
					return nil, fmt.Errorf("%s: no such host", host)
				}
				host = addrs[0]
			}
			return b.dial(net.JoinHostPort(host, port))
		},
		TLSClientConfig:   &tls.Config{RootCAs: roots},
		ForceAttemptHTTP2: true,
	}
	b.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: 30 * time.Second}
}

// get returns the status and body, or an error.
func get(c *http.Client, url string) (int, string, error) {
	resp, err := c.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}

// logged waits for a record that matches.
func (b *testBox) logged(what string, match func(box.NetRecord) bool) box.NetRecord {
	b.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		b.mu.Lock()
		i := slices.IndexFunc(b.logs, match)
		var r box.NetRecord
		if i >= 0 {
			r = b.logs[i]
		}
		all := slices.Clone(b.logs)
		b.mu.Unlock()
		if i >= 0 {
			return r
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("no record of %s in\n%+v", what, all)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// echoes reports whether an echo server answers on a connection.
func echoes(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 6)
	if _, err := io.ReadFull(c, buf); err != nil || !bytes.Equal(buf, []byte("hello\n")) {
		t.Fatalf("the echo is %q, %v", buf, err)
	}
}

// isCut reports that a connection is ended from the other side.
func isCut(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	buf := make([]byte, 1024)
	for {
		_, err := c.Read(buf)
		if err == nil {
			continue
		}
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Fatal("the connection was not cut")
		}
		return
	}
}

// reset ends a connection as a program that is killed with unread data does.
func (b *testBox) reset(c net.Conn) {
	b.t.Helper()
	tc := c.(*gonet.TCPConn)
	local, remote := tc.LocalAddr().(*net.TCPAddr), tc.RemoteAddr().(*net.TCPAddr)
	la, _ := netip.AddrFromSlice(local.IP)
	ra, _ := netip.AddrFromSlice(remote.IP)
	id := stack.TransportEndpointID{LocalAddress: stackAddr(la), LocalPort: uint16(local.Port), RemoteAddress: stackAddr(ra), RemotePort: uint16(remote.Port)}
	ep := b.s.FindTransportEndpoint(protoOf(la), tcp.ProtocolNumber, id, 1)
	ep.(interface{ Abort() }).Abort()
}

// serveTCP runs a server in the box.
func (b *testBox) serveTCP(port uint16, handle func(net.Conn)) {
	b.t.Helper()
	l, err := gonet.ListenTCP(b.s, tcpip.FullAddress{NIC: 1, Port: port}, ipv4.ProtocolNumber)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
}

// serveUDP runs an echo server in the box.
func (b *testBox) serveUDP(port uint16) {
	b.t.Helper()
	c, err := gonet.DialUDP(b.s, &tcpip.FullAddress{NIC: 1, Port: port}, nil, ipv4.ProtocolNumber)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 65536)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(buf[:n], from)
		}
	}()
}

// echo2 is echo for a server in the box.
func echo2(c net.Conn) {
	_, _ = io.Copy(c, c)
	_ = c.(interface{ CloseWrite() error }).CloseWrite()
}

// parallel does something n times at once.
func parallel(t *testing.T, n int, do func() error) {
	t.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := do(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
