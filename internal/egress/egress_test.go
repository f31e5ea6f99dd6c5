package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// closedTo are places that no box reaches without a rule of their own: this
// test plants listeners, and the world fails the test if one is dialled.
var closedTo = []string{
	"127.0.0.1:80", "127.8.8.8:80", "10.0.0.1:80", "192.168.1.1:22", "172.16.0.1:80", "100.64.0.1:80", "169.254.169.254:80", "169.254.1.1:80",
	"169.254.77.1:80", "169.254.77.5:80", "169.254.78.1:80", "0.0.0.0:80", "198.18.0.1:80", "[::1]:80", "[fd00::1]:80", "[fe80::1]:80",
	"[::ffff:127.0.0.1]:80", "[64:ff9b::7f00:1]:80", "[2002:7f00:1::]:80", "[::7f00:1]:80", "[fd48:7574:6368::1]:80", "[fd00:ec2::254]:80",
}

// neverSent reports whether a stack drops packets to an address, so that no
// refusal comes.
func neverSent(addr string) bool {
	a := netip.MustParseAddrPort(addr).Addr().Unmap()
	return a.IsLoopback() || a.IsUnspecified()
}

// TestClosed: a box without a network reaches nothing.
func TestClosed(t *testing.T) {
	w := newWorld(t)
	w.name("app.test", "93.184.216.1")
	b := newTestBox(t, w, Config{})
	for _, addr := range append([]string{"93.184.216.1:443", "8.8.8.8:53", "[2606:4700::1]:443"}, closedTo...) {
		if c, err := b.dial(addr); err == nil {
			t.Errorf("%s was reached", addr)
			c.Close()
		} else if neverSent(addr) {
			continue
		} else if !strings.Contains(err.Error(), "refused") && !strings.Contains(err.Error(), "unreachable") {
			t.Errorf("%s: %v, want a refusal at once", addr, err)
		}
	}
	for _, network := range []string{"udp", "tcp"} {
		for _, name := range []string{"app.test", "localhost", "2130706433", "0x7f.1", "host.hutch.internal", "a..b", "1.0.0.127.in-addr.arpa"} {
			m := new(dns.Msg)
			m.Question = []dns.Question{{Name: name + ".", Qtype: dns.TypeA, Qclass: dns.ClassINET}}
			m.Id = dns.Id()
			if name == "a..b" {
				continue // cannot be sent
			}
			if got := b.exchange(network, m); got.Rcode != dns.RcodeRefused || len(got.Answer) > 0 {
				t.Errorf("%s over %s: %v, want REFUSED", name, network, got)
			}
		}
	}
	// UDP to anywhere is answered with "unreachable" and goes nowhere.
	c := b.dialUDP("93.184.216.1:53")
	var err error
	for deadline := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		_, err = c.Write([]byte("x"))
	}
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("UDP: %v, want a refusal", err)
	}
	if len(w.asked) > 0 || len(w.dialed) > 0 {
		t.Errorf("upstream was asked %q, and %q was dialled", w.asked, w.dialed)
	}
	b.logged("a refused connection", func(r box.NetRecord) bool {
		return r.Kind == box.NetFlow && !r.Allowed && r.Addr == "93.184.216.1" && r.Port == 443 && r.Reason != ""
	})
	b.logged("a refused name", func(r box.NetRecord) bool { return r.Kind == box.NetDNS && !r.Allowed && r.Name == "app.test." })
	if s := b.g.Stats(); s.Denied == 0 || s.Refused == 0 || s.Allowed != 0 || s.Flows != 0 {
		t.Errorf("statistics: %+v", s)
	}
}

// TestName: a rule for a name opens the name and nothing else.
func TestName(t *testing.T) {
	w := newWorld(t)
	w.ipv6 = true
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s says hello", r.Host) })
	for i, name := range []string{"app.test", "a.b.app.test", "other.test"} {
		ip := fmt.Sprintf("93.184.216.%d", i+1)
		w.name(name, ip)
		w.serveHTTP(ip+":443", hello, name)
		w.serveHTTP(ip+":80", hello)
	}
	w.name("six.test", "2606:4700::1")
	w.serveHTTP("[2606:4700::1]:443", hello, "six.test")
	exact := newTestBox(t, w, Config{Network: box.Network{Allow: []string{"app.test", "six.test"}}})
	wild := newTestBox(t, w, Config{Network: box.Network{Allow: []string{"*.app.test"}}})
	for _, tt := range []struct {
		b    *testBox
		url  string
		want bool
	}{
		{exact, "https://app.test/", true}, {exact, "http://app.test/", true}, {exact, "https://APP.TEST/", true}, {exact, "https://six.test", true},
		{exact, "https://a.b.app.test/", false}, {exact, "https://other.test/", false}, {exact, "http://other.test/", false},
		{exact, "https://93.184.216.3/", false}, {exact, "http://93.184.216.3/", false},
		{wild, "https://a.b.app.test/", true}, {wild, "http://a.b.app.test/", true}, {wild, "https://app.test/", false}, {wild, "https://other.test/", false},
	} {
		client := tt.b.client(w.pool())
		status, body, err := get(client, tt.url)
		client.CloseIdleConnections()
		if got := err == nil && status == 200 && strings.HasSuffix(body, "says hello"); got != tt.want {
			t.Errorf("%s: %d %q %v, want it to work: %v", tt.url, status, body, err, tt.want)
		}
	}
	r := exact.logged("the end of a connection", func(r box.NetRecord) bool { return r.Kind == box.NetEnd && r.Name == "app.test" && r.Port == 80 })
	if r.Sent == 0 || r.Received == 0 || r.Rule != "allow app.test" {
		t.Errorf("the end is recorded as %+v", r)
	}
}

// TestTransports: half-close, resets, refusals, servers that speak first, UDP.
func TestTransports(t *testing.T) {
	w := newWorld(t)
	w.name("app.test", "93.184.216.1")
	w.serve("93.184.216.1:7", echo)
	w.serve("93.184.216.1:22", func(c net.Conn) { fmt.Fprint(c, "SSH-2.0-test\r\n"); echo(c) })
	w.serve("93.184.216.1:9", func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		_ = c.(*net.TCPConn).SetLinger(0)
	})
	got := make(chan error, 10)
	w.serve("93.184.216.1:10", func(c net.Conn) { _, err := io.Copy(io.Discard, c); got <- err })
	w.closed["tcp 93.184.216.1:11"] = true
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	w.places["udp 93.184.216.1:123"] = u.LocalAddr().String()
	w.places["udp 93.184.216.1:124"] = u.LocalAddr().String()
	go func() {
		buf := make([]byte, 65536)
		for {
			n, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(buf[:n], from)
		}
	}()
	for _, n := range []box.Network{
		{Allow: []string{"app.test", "app.test:123,124/udp"}},
		{Preset: box.NetInternet},
		{Preset: box.NetInternet, Deny: []string{"bad.test"}},
		{Allow: []string{"93.184.216.0/24"}},
	} {
		t.Run(n.String(), func(t *testing.T) {
			b := newTestBox(t, w, Config{Network: n})
			if n.Preset == "" && strings.HasPrefix(n.Allow[0], "app") {
				if _, err := b.dial("93.184.216.1:7"); err == nil {
					t.Error("an address was open before its name was asked for")
				}
				b.resolve("app.test")
			}
			c, err := b.dial("93.184.216.1:7")
			if err != nil {
				t.Fatal(err)
			}
			echoes(t, c)
			// The end of our direction is passed on, the other one lives.
			if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
				t.Errorf("after the half-close: %q, %v", rest, err)
			}
			if c, err = b.dial("93.184.216.1:22"); err != nil {
				t.Fatal(err)
			}
			banner := make([]byte, 14)
			if _, err := io.ReadFull(c, banner); err != nil || string(banner) != "SSH-2.0-test\r\n" {
				t.Fatalf("the server that speaks first: %q, %v", banner, err)
			}
			echoes(t, c)
			if c, err = b.dial("93.184.216.1:9"); err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write([]byte("\x01"))
			if _, err := c.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "reset") {
				t.Errorf("a reset by the server is %v", err)
			}
			if c, err = b.dial("93.184.216.1:10"); err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write([]byte("\x01\x02"))
			b.reset(c)
			if err := <-got; !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("a reset by the box is %v to the server", err)
			}
			if _, err := b.dial("93.184.216.1:11"); err == nil || !strings.Contains(err.Error(), "refused") {
				t.Errorf("a refusal by the server is %v", err)
			}
			for _, size := range []int{1, 1400, 60000} {
				c := b.dialUDP("93.184.216.1:123")
				want := strings.Repeat("u", size)
				_, _ = c.Write([]byte(want))
				buf := make([]byte, 65536)
				_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
				if n, err := c.Read(buf); err != nil || string(buf[:n]) != want {
					t.Errorf("UDP of %d bytes: %d, %v", size, n, err)
				}
			}
		})
	}
}

// TestBulk moves data both ways at once, much more than any buffer holds.
func TestBulk(t *testing.T) {
	w := newWorld(t)
	w.serve("93.184.216.1:7", echo)
	b := newTestBox(t, w, Config{Network: box.Network{Allow: []string{"93.184.216.1"}}})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			c, err := b.dial("93.184.216.1:7")
			if err != nil {
				t.Error(err)
				return
			}
			const total = 24 << 20
			var up sync.WaitGroup
			up.Go(func() {
				data := make([]byte, 1<<20)
				for i := range data {
					data[i] = byte(i * 7)
				}
				for range total / len(data) {
					if _, err := c.Write(data); err != nil {
						t.Error(err)
						return
					}
				}
				_ = c.(interface{ CloseWrite() error }).CloseWrite()
			})
			buf := make([]byte, 64<<10)
			at := 0
			for {
				n, err := c.Read(buf)
				for _, v := range buf[:n] {
					if v != byte(at%(1<<20)*7) {
						t.Errorf("byte %d is wrong", at)
						return
					}
					at++
				}
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
			if at != total {
				t.Errorf("%d bytes came back, want %d", at, total)
			}
			up.Wait()
		})
	}
	wg.Wait()
}

// TestSetNetwork: connections that are no longer allowed are cut, others not,
// and the next packet is judged by the new rules.
func TestSetNetwork(t *testing.T) {
	w := newWorld(t)
	w.name("a.test", "93.184.216.1")
	w.name("b.test", "93.184.216.2")
	w.serve("93.184.216.1:7", echo)
	w.serve("93.184.216.2:7", echo)
	w.serve("8.8.8.8:7", echo)
	b := newTestBox(t, w, Config{Network: box.Network{Allow: []string{"a.test", "8.8.8.8"}}})
	b.resolve("a.test")
	a, err := b.dial("93.184.216.1:7")
	if err != nil {
		t.Fatal(err)
	}
	echoes(t, a)
	kept, err := b.dial("8.8.8.8:7")
	if err != nil {
		t.Fatal(err)
	}
	echoes(t, kept)
	if got := b.resolve("b.test"); len(got) > 0 {
		t.Errorf("b.test is %v before it is allowed", got)
	}
	if err := b.g.SetNetwork(box.Network{Allow: []string{"b.test", "8.8.8.8"}}); err != nil {
		t.Fatal(err)
	}
	isCut(t, a)
	echoes(t, kept)
	if _, err := b.dial("93.184.216.1:7"); err == nil {
		t.Error("the old address is still open")
	}
	if got := b.resolve("a.test"); len(got) > 0 {
		t.Errorf("a.test is %v after it was closed", got)
	}
	if got := b.resolve("b.test"); len(got) != 1 {
		t.Fatalf("b.test is %v", got)
	}
	c, err := b.dial("93.184.216.2:7")
	if err != nil {
		t.Fatal(err)
	}
	echoes(t, c)
	if err := b.g.SetNetwork(box.Network{Allow: []string{"*"}}); box.KindOf(err) != box.Invalid {
		t.Errorf("a wrong network: %v", err)
	}
	echoes(t, c)
	if err := b.g.SetNetwork(box.Network{}); err != nil {
		t.Fatal(err)
	}
	isCut(t, c)
	isCut(t, kept)
	r := b.logged("the cut", func(r box.NetRecord) bool { return r.Kind == box.NetEnd && r.Addr == "8.8.8.8" })
	if !strings.Contains(r.Reason, "changed") {
		t.Errorf("it was cut because %q", r.Reason)
	}
}

// TestHostAndLinks: only the port that a rule or a link names.
func TestHostAndLinks(t *testing.T) {
	w := newWorld(t)
	w.serve("127.0.0.1:8080", echo)
	linked := make(chan string, 10)
	cfg := Config{
		Network: box.Network{Allow: []string{"host.hutch.internal:8080"}},
		Links:   []box.Link{{Name: "db", Box: "pg", Port: 5432}},
		DialBox: func(_ context.Context, ref string, port int) (net.Conn, error) {
			linked <- fmt.Sprintf("%s:%d", ref, port)
			here, there := net.Pipe()
			go func() { defer there.Close(); _, _ = io.Copy(there, there) }()
			return here, nil
		},
	}
	b := newTestBox(t, w, cfg)
	host := b.resolve(box.HostName)
	db := b.resolve("db")
	if len(host) != 1 || len(db) != 1 || host[0] == db[0] {
		t.Fatalf("the host is %v, the link %v", host, db)
	}
	for addr, want := range map[string]bool{host[0] + ":8080": true, host[0] + ":8081": false, db[0] + ":5432": true, db[0] + ":5433": false} {
		c, err := b.dial(addr)
		if (err == nil) != want {
			t.Errorf("%s: %v, want it to work: %v", addr, err, want)
		}
		if err == nil {
			echoes(t, c)
		}
	}
	if got := <-linked; got != "pg:5432" {
		t.Errorf("the link led to %s", got)
	}
	if w.wasAsked("db") || w.wasAsked("hutch") {
		t.Error("upstream was asked for a name that means something here")
	}
}

// TestOwnAddresses: the host's own addresses are not the internet, however
// public they are.
func TestOwnAddresses(t *testing.T) {
	w := newWorld(t)
	w.own[netip.MustParseAddr("93.184.216.9")] = true
	w.name("me.test", "93.184.216.9")
	for _, n := range []box.Network{{Preset: box.NetInternet}, {Preset: box.NetAll}, {Allow: []string{"me.test"}}} {
		b := newTestBox(t, w, Config{Network: n})
		if got := b.resolve("me.test"); len(got) > 0 {
			t.Errorf("%v: the host's own name resolves to %v", n, got)
		}
		for _, addr := range append(closedTo, "93.184.216.9:80") {
			if n.Preset == box.NetAll && (strings.HasPrefix(addr, "10.") || strings.HasPrefix(addr, "172.") || strings.HasPrefix(addr, "192.168") || strings.HasPrefix(addr, "100.") || strings.HasPrefix(addr, "198.18") || strings.HasPrefix(addr, "[fd00::")) {
				continue
			}
			if _, err := b.dial(addr); err == nil {
				t.Errorf("%v opens %s", n, addr)
			}
		}
	}
}
