package egress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hutch-sandbox/hutch/box"
)

// attackWorld has an allowed name, a forbidden one on an address of its own,
// and one on the same address as the allowed one.
func attackWorld(t *testing.T) *world {
	w := newWorld(t)
	say := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "host "+r.Host) })
	w.name("app.test", "93.184.216.1")
	w.name("evil.test", "93.184.216.66")
	w.name("shared.test", "93.184.216.1")
	w.serveHTTP("93.184.216.1:443", say, "app.test", "shared.test")
	w.serveHTTP("93.184.216.1:80", say)
	w.serveHTTP("93.184.216.1:8080", say)
	return w
}

func tlsTo(c net.Conn, w *world, name string) error {
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	tc := tls.Client(c, &tls.Config{RootCAs: w.pool(), ServerName: name, InsecureSkipVerify: name == ""})
	if err := tc.Handshake(); err != nil {
		return err
	}
	fmt.Fprintf(tc, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", name)
	_, err := io.ReadAll(tc)
	return err
}

// TestForgedNames: whatever a connection says it is for, only the allowed name
// is reached.
func TestForgedNames(t *testing.T) {
	w := attackWorld(t)
	b := newTestBox(t, w, Config{Network: box.Network{Allow: []string{"app.test"}}})
	b.resolve("app.test")
	// The allowed name to another address.
	if c, err := b.dial("93.184.216.66:443"); err == nil {
		t.Errorf("another address was reached with %v", tlsTo(c, w, "app.test"))
	}
	for name, want := range map[string]bool{"app.test": true, "shared.test": false, "evil.test": false, "": false} {
		c, err := b.dial("93.184.216.1:443")
		if err != nil {
			t.Fatal(err)
		}
		if err := tlsTo(c, w, name); (err == nil) != want {
			t.Errorf("TLS for %q: %v, want it to work: %v", name, err, want)
		}
	}
	// Not TLS where TLS belongs, and the reverse, and TLS in pieces.
	for _, tt := range []struct {
		port, send string
	}{
		{"443", "GET / HTTP/1.1\r\nHost: app.test\r\n\r\n"}, {"443", "\x00\x01\x02\x03"}, {"443", "SSH-2.0-x\r\n"},
		{"443", "\x16\x03\x01\x00\x05\x02aaaa"}, {"443", "\x16\x03\x01\x00\x00"}, {"443", "\x16\x02\x01\x00\x05aaaaa"},
		{"80", "\x00\x01\x02\x03"}, {"80", "SSH-2.0-x\r\n"}, {"80", "GET /\r\n"}, {"80", "garbage without end of line or sense in it whatsoever, my dear\n"},
		{"8080", "\x16\x03\x01\xff\xff"},
	} {
		c, err := b.dial("93.184.216.1:" + tt.port)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte(tt.send))
		isCut(t, c)
	}
	hello := captureHello(t, "shared.test", false)
	for _, size := range []int{1, 5, 100} {
		c, err := b.dial("93.184.216.1:443")
		if err != nil {
			t.Fatal(err)
		}
		for rest := hello; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			if _, err := c.Write(rest[:min(size, len(rest))]); err != nil {
				break
			}
		}
		isCut(t, c)
	}
	b.logged("the forged name", func(r box.NetRecord) bool {
		return r.Kind == box.NetEnd && strings.Contains(r.Reason, "shared.test")
	})
	// An encrypted ClientHello, whose outside is the allowed name.
	c, err := b.dial("93.184.216.1:443")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write(captureHello(t, "app.test", true))
	isCut(t, c)
	b.logged("the encrypted hello", func(r box.NetRecord) bool { return strings.Contains(r.Reason, "encrypted ClientHello") })
}

// captureHello makes a ClientHello, with an encrypted_client_hello extension
// that is not meant if ech.
func captureHello(t *testing.T, name string, ech bool) []byte {
	t.Helper()
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		defer there.Close()
		_ = tls.Client(there, &tls.Config{ServerName: name}).Handshake()
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(here, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(here, body); err != nil {
		t.Fatal(err)
	}
	if ech {
		// Appended as the last extension: type, length, "outer" and zeroes.
		ext := []byte{0xfe, 0x0d, 0x00, 0x0a, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0}
		at := 4 + 2 + 32
		at += 1 + int(body[at])
		at += 2 + int(body[at])<<8 + int(body[at+1])
		at += 1 + int(body[at])
		total := int(body[at])<<8 | int(body[at+1])
		total += len(ext)
		body[at], body[at+1] = byte(total>>8), byte(total)
		body = append(body, ext...)
		n := len(body) - 4
		body[1], body[2], body[3] = byte(n>>16), byte(n>>8), byte(n)
		head[3], head[4] = byte(len(body)>>8), byte(len(body))
	}
	return append(head, body...)
}

// TestHostHeader: each request of a plain HTTP connection is checked, also on
// ports that are not HTTP's.
func TestHostHeader(t *testing.T) {
	w := attackWorld(t)
	b := newTestBox(t, w, Config{Network: box.Network{Allow: []string{"app.test"}}})
	b.resolve("app.test")
	for _, port := range []string{"80", "8080"} {
		for _, tt := range []struct {
			request string
			want    string // status lines
		}{
			{"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n", "200"},
			{"GET / HTTP/1.1\r\nHost: APP.test.\r\n\r\n", "200"},
			{"GET / HTTP/1.1\r\nHost: app.test:" + port + "\r\n\r\n", "200"},
			{"GET / HTTP/1.1\r\nHost: shared.test\r\n\r\n", "403"},
			{"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "403"},
			{"GET http://evil.test/ HTTP/1.1\r\nHost: app.test\r\n\r\n", "403"},
			{"\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "403 cut|400 cut"},
			{" GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "400 cut"},
			{"get / http/1.1\r\nHost: evil.test\r\n\r\n", "400 cut"},
			{"GET / HTTP/1.1\r\n\r\n", "400 cut"},
			{"GET / HTTP/1.1\r\nHost: 93.184.216.1\r\n\r\n", "403"},
			{"GET / HTTP/1.0\r\n\r\n", "403"},
			{"GET / HTTP/1.1\r\nHost: app.test\r\nHost: evil.test\r\n\r\n", "400 cut"},
			{"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n", "403"},
			{"CONNECT app.test:443 HTTP/1.1\r\nHost: app.test:443\r\n\r\n", "403"},
			{"POST /dns-query HTTP/1.1\r\nHost: app.test\r\nContent-Type: application/dns-message\r\nContent-Length: 1\r\n\r\nx", "403"},
			// The second request on the connection lies; so does one that hides
			// in the body of the first.
			{"GET / HTTP/1.1\r\nHost: app.test\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "200 403"},
			{"POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "400 cut|200 403|200 cut"},
		} {
			c, err := b.dial("93.184.216.1:" + port)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			_, _ = c.Write([]byte(tt.request))
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
			var got []string
			r := bufio.NewReader(c)
			for {
				resp, err := http.ReadResponse(r, nil)
				if err != nil {
					break
				}
				body, _ := io.ReadAll(resp.Body)
				got = append(got, fmt.Sprint(resp.StatusCode))
				if strings.Contains(string(body), "host evil") || strings.Contains(string(body), "host shared") {
					t.Errorf("port %s, %q: the server was asked for another host: %q", port, tt.request, body)
				}
			}
			text := strings.Join(got, " ")
			ok := false
			for _, want := range strings.Split(tt.want, "|") {
				ok = ok || text == want || strings.HasSuffix(want, " cut") && (text == "" || text == strings.TrimSuffix(want, " cut"))
			}
			if !ok {
				t.Errorf("port %s, %q: %q, want %q", port, tt.request, text, tt.want)
			}
		}
	}
	b.logged("a refused request", func(r box.NetRecord) bool { return r.Kind == box.NetHTTP && !r.Allowed && r.Name == "evil.test" })
}

// TestDNS: names do not carry data out, and answers do not lead in.
func TestDNS(t *testing.T) {
	w := attackWorld(t)
	w.name("rebind.test", "127.0.0.1")
	w.name("half.test", "10.0.0.7", "93.184.216.1")
	w.name("meta.test", "169.254.169.254")
	w.name("v6.test", "::ffff:10.0.0.1")
	w.name("lan.test", "10.0.0.7")
	w.ipv6 = true
	w.zone["cdn.test CNAME"] = []string{"edge.cdn-net.test"}
	w.zone["edge.cdn-net.test CNAME"] = []string{"pop.cdn-net.test"}
	w.name("pop.cdn-net.test", "93.184.216.1")
	w.zone["trick.test CNAME"] = []string{"evil.test"}
	w.zone["loop.test CNAME"] = []string{"loop.test"}
	w.zone["app.test TXT"] = []string{`"v=1"`}
	w.zone["_xmpp._tcp.app.test SRV"] = []string{"1 2 5222 im.app.test."}
	w.zone["app.test MX"] = []string{"1 mx.test."}
	w.zone["app.test HTTPS"] = []string{`1 . alpn="h3"`}
	n := box.Network{Allow: []string{"app.test", "rebind.test", "half.test", "meta.test", "v6.test", "lan.test:80", "10.0.0.7:443", "cdn.test", "trick.test", "loop.test", "none.test"}, Deny: []string{"evil.test"}}
	b := newTestBox(t, w, Config{Network: n})
	for _, tt := range []struct {
		name  string
		qtype uint16
		rcode int
		want  string // of the answer section
		asks  bool   // upstream
	}{
		{"app.test", dns.TypeA, dns.RcodeSuccess, "93.184.216.1", true},
		{"aPP.tEst", dns.TypeA, dns.RcodeSuccess, "93.184.216.1", true},
		{"app.test", dns.TypeTXT, dns.RcodeSuccess, `"v=1"`, true},
		{"app.test", dns.TypeHTTPS, dns.RcodeSuccess, "", false},
		{"app.test", dns.TypeMX, dns.RcodeRefused, "", false},
		{"app.test", dns.TypeANY, dns.RcodeRefused, "", false},
		{"app.test", dns.TypeNS, dns.RcodeRefused, "", false},
		{"app.test", dns.TypeAXFR, dns.RcodeRefused, "", false},
		{"_xmpp._tcp.app.test", dns.TypeSRV, dns.RcodeSuccess, "im.app.test.", true},
		{"_c2VjcmV0LWRhdGEtaGVyZS0x._tcp.app.test", dns.TypeSRV, dns.RcodeRefused, "", false},
		{"_a._b.app.test", dns.TypeSRV, dns.RcodeRefused, "", false},
		{"_xmpp._tcp.app.test", dns.TypeTXT, dns.RcodeRefused, "", false},
		{"secret-data.app.test", dns.TypeA, dns.RcodeRefused, "", false},
		{"secret-data.evil.test", dns.TypeTXT, dns.RcodeRefused, "", false},
		{"none.test", dns.TypeA, dns.RcodeNameError, "", true},
		{"rebind.test", dns.TypeA, dns.RcodeRefused, "", true},
		{"meta.test", dns.TypeA, dns.RcodeRefused, "", true},
		{"v6.test", dns.TypeAAAA, dns.RcodeRefused, "", true},
		{"half.test", dns.TypeA, dns.RcodeSuccess, "10.0.0.7 93.184.216.1", true}, // a rule opens 10.0.0.7
		{"lan.test", dns.TypeA, dns.RcodeSuccess, "10.0.0.7", true},
		{"cdn.test", dns.TypeA, dns.RcodeSuccess, "edge.cdn-net.test. pop.cdn-net.test. 93.184.216.1", true},
		{"edge.cdn-net.test", dns.TypeA, dns.RcodeRefused, "", false},
		{"trick.test", dns.TypeA, dns.RcodeRefused, "", true},
		{"loop.test", dns.TypeA, dns.RcodeSuccess, "loop.test.", true},
		{"dns.google", dns.TypeA, dns.RcodeRefused, "", false},
		{"0177.0.0.1", dns.TypeA, dns.RcodeRefused, "", false},
	} {
		for _, network := range []string{"udp", "tcp"} {
			w.mu.Lock()
			w.asked = nil
			w.mu.Unlock()
			if network == "tcp" {
				b.g.res.forget()
			}
			m := b.ask(network, tt.name, tt.qtype)
			var got []string
			for _, rr := range m.Answer {
				f := strings.Fields(rr.String())
				got = append(got, f[len(f)-1])
			}
			text := strings.Join(got, " ")
			if tt.name == "loop.test" && len(got) > 0 {
				text = got[0]
			}
			if m.Rcode != tt.rcode || text != tt.want && len(strings.Fields(text)) != len(strings.Fields(tt.want)) {
				t.Errorf("%s %s over %s: %s %q, want %s %q", tt.name, dns.TypeToString[tt.qtype], network, dns.RcodeToString[m.Rcode], text, dns.RcodeToString[tt.rcode], tt.want)
			}
			w.mu.Lock()
			all := w.asked
			w.mu.Unlock()
			if asked := len(all) > 0; asked != tt.asks && (network == "tcp" || !asked) && tt.name != "aPP.tEst" {
				t.Errorf("%s %s: upstream was asked %q, want it asked: %v", tt.name, dns.TypeToString[tt.qtype], all, tt.asks)
			}
			if len(m.Question) != 1 || m.Question[0].Name != tt.name+"." {
				t.Errorf("%s: the question comes back as %v", tt.name, m.Question)
			}
		}
	}
	// The address that a rule opens, at the port it opens; the name's port does
	// not open a private address.
	w.serve("10.0.0.7:443", echo)
	if c, err := b.dial("10.0.0.7:443"); err != nil {
		t.Error(err)
	} else {
		echoes(t, c)
	}
	if _, err := b.dial("10.0.0.7:80"); err == nil {
		t.Error("a name rule opened a private address")
	}
}

// TestQUICAndEncryptedDNS: what would hide names is closed to name rules.
func TestQUICAndEncryptedDNS(t *testing.T) {
	w := attackWorld(t)
	b := newTestBox(t, w, Config{Network: box.Network{Allow: []string{"app.test", "app.test:1-65000/udp"}}})
	b.resolve("app.test")
	for _, port := range []string{"443", "853", "53", "80"} {
		c := b.dialUDP("93.184.216.1:" + port)
		var err error
		for deadline := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			_, err = c.Write([]byte("\xc0\x00\x00\x00\x01\x08abcdefgh"))
		}
		if err == nil {
			t.Errorf("UDP port %s is open", port)
		}
	}
	for _, port := range []string{"853", "53"} {
		if _, err := b.dial("93.184.216.1:" + port); err == nil {
			t.Errorf("TCP port %s is open", port)
		}
	}
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	w.mu.Lock() // the gateway is at work already
	w.places["udp 93.184.216.1:5000"] = u.LocalAddr().String()
	w.mu.Unlock()
	for _, first := range []string{
		"\xc0\x00\x00\x00\x01\x08abcdefgh", "\xd0\x6b\x33\x43\xcf\x08abcdefgh", "\xc3\xff\x00\x00\x1d\x08abcdefgh", "\xc0\x0a\x1a\x2a\x3a\x08abcdefgh",
	} {
		c := b.dialUDP("93.184.216.1:5000")
		_, _ = c.Write([]byte(first))
	}
	c := b.dialUDP("93.184.216.1:5000")
	_, _ = c.Write([]byte("plain"))
	buf := make([]byte, 100)
	_ = u.SetReadDeadline(time.Now().Add(10 * time.Second))
	n, _, err := u.ReadFrom(buf)
	if err != nil || string(buf[:n]) != "plain" {
		t.Errorf("the first datagram at the server is %q, %v; want the plain one", buf[:n], err)
	}
}

// TestRedirect: a redirect to a private address is a new connection, which is
// refused.
func TestRedirect(t *testing.T) {
	w := attackWorld(t)
	w.name("r.test", "93.184.216.5")
	w.serveHTTP("93.184.216.5:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+r.URL.Query().Get("to")+"/", http.StatusFound)
	}))
	for _, n := range []box.Network{{Allow: []string{"r.test"}}, {Preset: box.NetInternet}} {
		b := newTestBox(t, w, Config{Network: n})
		for _, to := range []string{"10.0.0.1", "169.254.169.254", "[fd00::1]", "192.168.0.1"} {
			if _, body, err := get(b.client(nil), "http://r.test/?to="+to); err == nil {
				t.Errorf("%v: the redirect to %s led to %q", n, to, body)
			}
		}
	}
}

// TestDeniedNames: deny rules hold where addresses are open.
func TestDeniedNames(t *testing.T) {
	w := attackWorld(t)
	b := newTestBox(t, w, Config{Network: box.Network{Preset: box.NetInternet, Deny: []string{"shared.test"}}})
	for name, want := range map[string]bool{"app.test": true, "shared.test": false} {
		c, err := b.dial("93.184.216.1:443")
		if err != nil {
			t.Fatal(err)
		}
		if err := tlsTo(c, w, name); (err == nil) != want {
			t.Errorf("TLS for %s: %v, want it to work: %v", name, err, want)
		}
		if c, err = b.dial("93.184.216.1:80"); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", name)
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		data, _ := io.ReadAll(c)
		if ok := strings.HasPrefix(string(data), "HTTP/1.1 200"); ok != want {
			t.Errorf("HTTP for %s: %q", name, data)
		}
	}
}

// TestRotation: an address that the box keeps longer than its answer lives
// leads to what the name means now.
func TestRotation(t *testing.T) {
	w := newWorld(t)
	w.name("rot.test", "93.184.216.1")
	w.serve("93.184.216.2:7", echo)
	b := newTestBox(t, w, Config{Network: box.Network{Allow: []string{"rot.test"}}})
	b.resolve("rot.test")
	w.mu.Lock()
	w.zone["rot.test A"] = []string{"93.184.216.2"}
	w.mu.Unlock()
	// The answer runs out.
	b.g.res.mu.Lock()
	for _, a := range b.g.res.cache {
		a.until = time.Now().Add(-time.Second)
	}
	for _, e := range b.g.res.pins.byAddr {
		for i := range e.Value.(*pinned).names {
			e.Value.(*pinned).names[i].until = time.Now().Add(-time.Second)
		}
	}
	b.g.res.mu.Unlock()
	c, err := b.dial("93.184.216.1:7")
	if err != nil {
		t.Fatal(err)
	}
	echoes(t, c)
	if w.wasDialed("93.184.216.1:7") {
		t.Error("the old address was dialled")
	}
}

// TestFlood: many connections and many questions at once cost bounded memory,
// and the gateway still answers.
func TestFlood(t *testing.T) {
	w := newWorld(t)
	w.name("app.test", "93.184.216.1")
	w.serve("93.184.216.1:7", echo)
	b := newTestBox(t, w, Config{Network: box.Network{Allow: []string{"app.test"}}})
	b.resolve("app.test")
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const n = 10000
	var wg sync.WaitGroup
	for part := range 20 {
		wg.Go(func() {
			for range n / 20 {
				if part%2 == 0 {
					c, err := b.dial("93.184.216.66:443")
					if err == nil {
						c.Close()
						t.Error("the forbidden address was reached")
					}
				} else {
					c := b.dialUDP(GatewayAddr.String() + ":53")
					m := new(dns.Msg)
					m.SetQuestion("data.evil.test.", dns.TypeA)
					data, _ := m.Pack()
					_, _ = c.Write(data)
					c.Close()
				}
			}
		})
	}
	wg.Wait()
	b.mu.Lock()
	b.logs = nil // the test's own
	b.mu.Unlock()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 64<<20 {
		t.Errorf("the flood left %d MiB behind", grown>>20)
	}
	if w.wasAsked("evil") || w.wasDialed("93.184.216.66") {
		t.Error("the flood reached the world")
	}
	c, err := b.dial("93.184.216.1:7")
	if err != nil {
		t.Fatal(err)
	}
	echoes(t, c)
}

// TestManyFlows: hundreds of connections that are open at once.
func TestManyFlows(t *testing.T) {
	w := newWorld(t)
	w.serve("8.8.8.8:7", echo)
	b := newTestBox(t, w, Config{Network: box.Network{Allow: []string{"8.8.8.8"}}})
	b.g.limit = 500
	conns := make(chan net.Conn, 1500)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 60 {
				if c, err := b.dial("8.8.8.8:7"); err == nil {
					conns <- c
				}
			}
		})
	}
	wg.Wait()
	close(conns)
	if len(conns) != 500 {
		t.Errorf("%d connections are open, want 500", len(conns))
	}
	for c := range conns {
		echoes(t, c)
	}
}

func FuzzGreeting(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Add([]byte("\x16\x03\x01\x00\x05\x01aaaa"))
	f.Add([]byte("\r\n \x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		// More never makes a decision undone, or a name disappear behind an
		// unclassified beginning.
		for n := 1; n <= len(data); n++ {
			g := classify(data[:n])
			if g.proto != unknown {
				if full := classify(data); full.proto != g.proto || full.name != g.name {
					t.Fatalf("%q is %v %q at %d bytes and %v %q in the end", data, g.proto, g.name, n, full.proto, full.name)
				}
				return
			}
		}
	})
}
