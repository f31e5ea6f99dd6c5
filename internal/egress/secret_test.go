package egress

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

const theValue = "zq-s3cret+/=value&<x>"

// secretBox is a box with a secret for api.test, and the pool that it trusts.
func secretBox(t *testing.T, w *world, value string) (*testBox, *x509.CertPool) {
	b := newTestBox(t, w, Config{
		Network: box.Network{Allow: []string{"api.test", "bad.test", "plain.test"}},
		Secrets: []box.Secret{{Name: "TOKEN", Value: value, Hosts: []string{"api.test", "bad.test"}}},
	})
	pool := w.pool()
	if !pool.AppendCertsFromPEM(b.g.CA()) {
		t.Fatal("the authority is no certificate")
	}
	return b, pool
}

// reflector answers with all that it was sent, in several forms, and reports
// what it got.
func reflector(got chan<- http.Header) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.Header
		w.Header().Set("X-Reflected", r.Header.Get("Authorization"))
		w.Header().Set("Trailer", "X-Last")
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, "https://api.test/?key="+r.Header.Get("Authorization"), http.StatusFound)
			return
		}
		fmt.Fprintf(w, "%s %s\n", r.Proto, body)
		for key, v := range r.Header {
			fmt.Fprintf(w, "%s: %q\n", key, v)
			fmt.Fprintf(w, "%s\n", base64.StdEncoding.EncodeToString([]byte(strings.TrimPrefix(v[0], "Bearer "))))
		}
		w.Header().Set("X-Last", r.Header.Get("Authorization"))
	})
}

func TestSecret(t *testing.T) {
	w := newWorld(t)
	w.name("api.test", "93.184.216.10")
	w.name("plain.test", "93.184.216.11")
	got := make(chan http.Header, 10)
	w.serveHTTP("93.184.216.10:443", reflector(got), "api.test")
	w.serveHTTP("93.184.216.11:443", reflector(got), "plain.test")
	b, pool := secretBox(t, w, theValue)
	placeholder := Placeholder("testbox", "TOKEN")
	client := b.client(pool)
	leaks := func(what, text string) {
		t.Helper()
		for _, form := range []string{theValue, base64.StdEncoding.EncodeToString([]byte(theValue)), base64.StdEncoding.EncodeToString([]byte("user:" + theValue)), "s3cret"} {
			if strings.Contains(text, form) {
				t.Errorf("%s shows the value: %q", what, text)
			}
		}
	}
	for _, tt := range []struct {
		host, header, send, want string
	}{
		{"api.test", "Authorization", "Bearer " + placeholder, "Bearer " + theValue},
		{"api.test", "X-Api-Key", placeholder, theValue},
		{"api.test", "Api-Key", placeholder, theValue},
		{"api.test", "Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+placeholder)), "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+theValue))},
		{"api.test", "X-Other", placeholder, placeholder},
		{"api.test", "Cookie", "k=" + placeholder, "k=" + placeholder},
		{"plain.test", "Authorization", "Bearer " + placeholder, "Bearer " + placeholder},
	} {
		req, _ := http.NewRequest("POST", "https://"+tt.host+"/a%2Fb?q=1;2", strings.NewReader("body "+placeholder))
		req.Header.Set(tt.header, tt.send)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if h := (<-got).Get(tt.header); h != tt.want {
			t.Errorf("%s of %s arrived as %q, want %q", tt.header, tt.host, h, tt.want)
		}
		leaks(tt.header, fmt.Sprint(resp.Header, string(body), resp.Trailer))
		if !strings.Contains(string(body), "body "+placeholder) {
			t.Errorf("the body came back as %q", body)
		}
		if resp.Proto != "HTTP/2.0" || !strings.HasPrefix(string(body), "HTTP/2.0") {
			t.Errorf("%s was spoken with the box, %.8s with the server", resp.Proto, body)
		}
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	req, _ := http.NewRequest("GET", "https://api.test/redirect", nil)
	req.Header.Set("Authorization", placeholder)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	leaks("a redirect", fmt.Sprint(resp.Header))
	if !strings.Contains(resp.Header.Get("Location"), "hutch-secret-") {
		t.Errorf("the redirect is %q", resp.Header.Get("Location"))
	}
	b.mu.Lock()
	leaks("the log", fmt.Sprintf("%+v", b.logs))
	b.mu.Unlock()
	b.logged("the use of the secret", func(r box.NetRecord) bool {
		return r.Kind == box.NetHTTP && r.Allowed && strings.Contains(r.Reason, "TOKEN")
	})
	// The box cannot tell the gateway from the server but by its authority.
	addr := b.resolve("api.test")[0]
	c, err := b.dial(addr + ":443")
	if err != nil {
		t.Fatal(err)
	}
	if err := tlsTo(c, w, "api.test"); err == nil {
		t.Error("the server's own authority signed what the box got")
	}
}

// TestSecretRefusals: wrong certificates, other hosts on the connection, and
// values that nobody gave.
func TestSecretRefusals(t *testing.T) {
	w := newWorld(t)
	w.name("api.test", "93.184.216.10")
	w.name("bad.test", "93.184.216.12")
	w.name("plain.test", "93.184.216.10")
	got := make(chan http.Header, 10)
	w.serveHTTP("93.184.216.10:443", reflector(got), "api.test", "plain.test")
	w.serveHTTP("93.184.216.12:443", reflector(got), "other.test")
	b, pool := secretBox(t, w, theValue)
	if status, body, err := get(b.client(pool), "https://bad.test/"); err != nil || status != http.StatusBadGateway || !strings.Contains(body, "certificate") {
		t.Errorf("a server with another's certificate: %d %q %v", status, body, err)
	}
	b.resolve("api.test")
	c, err := b.dial("93.184.216.10:443")
	if err != nil {
		t.Fatal(err)
	}
	tc := tls.Client(c, &tls.Config{RootCAs: pool, ServerName: "api.test"})
	fmt.Fprintf(tc, "GET / HTTP/1.1\r\nHost: plain.test\r\nAuthorization: %s\r\n\r\n", Placeholder("testbox", "TOKEN"))
	resp, err := http.ReadResponse(bufio.NewReader(tc), nil)
	if err != nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("another host on the connection: %v, %v", resp, err)
	}
	// A host without a secret on the same address is not looked into.
	b.resolve("plain.test")
	if c, err = b.dial("93.184.216.10:443"); err != nil {
		t.Fatal(err)
	}
	if err := tlsTo(c, w, "plain.test"); err != nil {
		t.Errorf("the host without a secret: %v", err)
	}
	<-got

	b, pool = secretBox(t, w, "")
	if status, body, err := get(b.client(pool), "https://api.test/"); err != nil || status != http.StatusForbidden || !strings.Contains(body, "TOKEN") {
		t.Errorf("a value that nobody gave: %d %q %v", status, body, err)
	}
	if err := b.g.SetSecrets(map[string]string{"TOKEN": "short"}); err == nil || strings.Contains(err.Error(), "short ") {
		t.Errorf("a value that is too short: %v", err)
	}
	if err := b.g.SetSecrets(map[string]string{"NONE": theValue}); box.KindOf(err) != box.NotFound || strings.Contains(err.Error(), theValue) {
		t.Errorf("a secret that is not there: %v", err)
	}
	if err := b.g.SetSecrets(map[string]string{"TOKEN": theValue}); err != nil {
		t.Fatal(err)
	}
	if status, _, err := get(b.client(pool), "https://api.test/"); err != nil || status != http.StatusOK {
		t.Errorf("with the value: %d %v", status, err)
	}
	if err := newTestBox(t, w, Config{}).g.SetSecrets(map[string]string{"TOKEN": theValue}); err == nil {
		t.Error("a box without secrets took one")
	}
}

// TestSecretStreams: events arrive one by one, uploads stream, a WebSocket
// works, and compressed answers are looked into.
func TestSecretStreams(t *testing.T) {
	w := newWorld(t)
	w.name("api.test", "93.184.216.10")
	next := make(chan string)
	mux := http.NewServeMux()
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for ev := range next {
			fmt.Fprintf(w, "data: %s\n\n", ev)
			w.(http.Flusher).Flush()
		}
	})
	mux.HandleFunc("/upload", func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		line, _ := bufio.NewReader(r.Body).ReadString('\n')
		fmt.Fprint(w, "got "+line)
		_ = rc.Flush()
		_, _ = io.Copy(io.Discard, r.Body)
	})
	mux.HandleFunc("/gzip", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", r.URL.Query().Get("as"))
		z := gzip.NewWriter(w)
		fmt.Fprint(z, "hidden "+r.Header.Get("Authorization"))
		z.Close()
	})
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != theValue || r.Header.Get("Upgrade") != "websocket" {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		for {
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			if line == "leak\n" {
				line = theValue + "\n"
			}
			fmt.Fprint(c, line)
		}
	})
	w.serveHTTP("93.184.216.10:443", mux, "api.test")
	b, pool := secretBox(t, w, theValue)
	placeholder := Placeholder("testbox", "TOKEN")
	client := b.client(pool)

	resp, err := client.Get("https://api.test/events")
	if err == nil {
		r := bufio.NewReader(resp.Body)
		for _, ev := range []string{"one", "two " + theValue, "three z"} {
			next <- ev
			line, err := r.ReadString('\n')
			blank, _ := r.ReadString('\n')
			if want := "data: " + strings.ReplaceAll(ev, theValue, placeholder) + "\n"; line != want || blank != "\n" || err != nil {
				t.Errorf("the event is %q, %v, want %q", line, err, want)
			}
		}
		close(next)
		resp.Body.Close()
	} else {
		t.Fatal(err)
	}

	pr, pw := io.Pipe()
	req, _ := http.NewRequest("POST", "https://api.test/upload", pr)
	go fmt.Fprint(pw, "first\n")
	if resp, err = client.Do(req); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if line != "got first\n" || err != nil {
		t.Errorf("while the upload goes on: %q, %v", line, err)
	}
	pw.Close()
	resp.Body.Close()

	for as, want := range map[string]int{"gzip": 200, "br": 0} {
		req, _ = http.NewRequest("GET", "https://api.test/gzip?as="+as, nil)
		req.Header.Set("Authorization", placeholder)
		resp, err := client.Do(req)
		if want == 0 {
			if err == nil {
				data, _ := io.ReadAll(resp.Body)
				t.Errorf("an encoding that cannot be looked into: %d %q", resp.StatusCode, data)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(data) != "hidden "+placeholder || err != nil {
			t.Errorf("the compressed answer is %q, %v", data, err)
		}
	}

	b.resolve("api.test")
	c, err := b.dial("93.184.216.10:443")
	if err != nil {
		t.Fatal(err)
	}
	tc := tls.Client(c, &tls.Config{RootCAs: pool, ServerName: "api.test", NextProtos: []string{"http/1.1"}})
	_ = tc.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(tc, "GET /ws HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nAuthorization: %s\r\n\r\n", placeholder)
	r := bufio.NewReader(tc)
	up, err := http.ReadResponse(r, nil)
	if err != nil || up.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the upgrade: %v, %v", up, err)
	}
	for _, frame := range []string{"ping z\n", "pong\n"} {
		fmt.Fprint(tc, frame)
		if line, err := r.ReadString('\n'); line != frame || err != nil {
			t.Errorf("the frame comes back as %q, %v", line, err)
		}
	}
	fmt.Fprint(tc, "leak\n")
	if rest, _ := io.ReadAll(r); strings.Contains(string(rest), theValue[:shown+1]) {
		t.Errorf("the value came through: %q", rest)
	}
}

// TestScrub: whatever the pieces, no value comes through.
func TestScrub(t *testing.T) {
	s := newScrubber([]substitution{{"A", "PLACE-A", "secret-one", nil}, {"B", "PLACE-B", "secret-on-two", nil}, {"C", "PLACE-C", "aaaaaaab", nil}}, nil)
	for in, want := range map[string]string{
		"":                                "",
		"nothing":                         "nothing",
		"secret-one":                      "PLACE-A",
		"xsecret-onesecret-on-twosecret-": "xPLACE-APLACE-Bsecret-",
		"secret-secret-one":               "secret-PLACE-A",
		"aaaaaaaaaaab":                    "aaaaPLACE-C",
		"c2VjcmV0LW9uZQ==":                base64.StdEncoding.EncodeToString([]byte("PLACE-A")),
		"secret-on":                       "secret-on",
	} {
		for _, r := range []io.Reader{strings.NewReader(in), iotest.OneByteReader(strings.NewReader(in)), iotest.DataErrReader(strings.NewReader(in)), iotest.HalfReader(strings.NewReader(in))} {
			got, err := io.ReadAll(&scrubReader{s: s, r: r})
			if string(got) != want || err != nil {
				t.Errorf("%q becomes %q, %v, want %q", in, got, err, want)
			}
		}
	}
}

func FuzzScrub(f *testing.F) {
	f.Add([]byte("xsecret-onesecret-on-two"), 3)
	f.Fuzz(func(t *testing.T, in []byte, size int) {
		s := newScrubber([]substitution{{"A", "PLACE-A", "secret-one", nil}, {"C", "PLACE-C", "aaaaaaab", nil}}, nil)
		if size < 1 || size > 100 {
			return
		}
		pieces := make([]io.Reader, 0, len(in)/size+1)
		for rest := in; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			pieces = append(pieces, bytes.NewReader(rest[:min(size, len(rest))]))
		}
		got, err := io.ReadAll(&scrubReader{s: s, r: io.MultiReader(pieces...)})
		if err != nil || bytes.Contains(got, []byte("secret-one")) || bytes.Contains(got, []byte("aaaaaaab")) {
			t.Fatalf("%q in pieces of %d becomes %q, %v", in, size, got, err)
		}
	})
}

// TestPublish: TCP and UDP, added and removed while the box runs.
func TestPublish(t *testing.T) {
	w := newWorld(t)
	inside := make(chan int, 10)
	b := newTestBox(t, w, Config{DialInside: func(_ context.Context, port int) (net.Conn, error) {
		inside <- port
		if port != 9000 {
			return nil, fmt.Errorf("refused")
		}
		here, there := net.Pipe()
		go func() { defer there.Close(); _, _ = io.Copy(there, there) }()
		return here, nil
	}})
	b.serveTCP(8000, echo2)
	b.serveUDP(8001)
	p, err := b.g.Publish(box.Port{Box: 8000})
	if err != nil || p.Host == 0 {
		t.Fatalf("%v, %v", p, err)
	}
	for range 50 {
		c, err := net.Dial("tcp", p.HostAddr())
		if err != nil {
			t.Fatal(err)
		}
		echoes(t, c)
		_ = c.(*net.TCPConn).CloseWrite()
		if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
			t.Errorf("the end: %q, %v", rest, err)
		}
		c.Close()
	}
	parallel(t, 200, func() error {
		c, err := net.Dial("tcp", p.HostAddr())
		if err != nil {
			return err
		}
		defer c.Close()
		want := bytes.Repeat([]byte("0123456789"), 2000)
		go func() { _, _ = c.Write(want); _ = c.(*net.TCPConn).CloseWrite() }()
		_ = c.SetDeadline(time.Now().Add(60 * time.Second))
		got, err := io.ReadAll(c)
		if err == nil && !bytes.Equal(got, want) {
			err = fmt.Errorf("%d bytes came back, want %d", len(got), len(want))
		}
		return err
	})
	// A port that is taken.
	if _, err := b.g.Publish(box.Port{Host: p.Host, Box: 1}); box.KindOf(err) != box.Exists || box.HintOf(err) == "" {
		t.Errorf("a port that is taken: %v", err)
	}
	if _, err := b.g.Publish(box.Port{IP: "192.0.2.77", Box: 1}); box.KindOf(err) != box.Invalid {
		t.Errorf("an address of another host: %v", err)
	}
	// A server that listens on the box's loopback only, and none at all.
	q, err := b.g.Publish(box.Port{Box: 9000})
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", q.HostAddr())
	if err != nil {
		t.Fatal(err)
	}
	echoes(t, c)
	r, err := b.g.Publish(box.Port{Box: 9001})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", r.HostAddr()); err == nil {
		isCut(t, c)
	}
	u, err := b.g.Publish(box.Port{Box: 8001, Proto: "udp"})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c, err := net.Dial("udp", u.HostAddr())
		if err != nil {
			t.Fatal(err)
		}
		echoes(t, c)
		echoes(t, c)
		c.Close()
	}
	if got := b.g.Ports(); len(got) != 4 {
		t.Errorf("published are %v", got)
	}
	// Removing a port cuts its connections and no others.
	open, err := net.Dial("tcp", p.HostAddr())
	if err != nil {
		t.Fatal(err)
	}
	echoes(t, open)
	if err := b.g.Unpublish(p); err != nil {
		t.Fatal(err)
	}
	isCut(t, open)
	echoes(t, c)
	if _, err := net.Dial("tcp", p.HostAddr()); err == nil {
		t.Error("the port is still open")
	}
	if err := b.g.Unpublish(p); box.KindOf(err) != box.NotFound {
		t.Errorf("a second removal: %v", err)
	}
	if _, err := b.g.Publish(box.Port{Host: p.Host, Box: 8000}); err != nil {
		t.Errorf("the port again: %v", err)
	}
}
