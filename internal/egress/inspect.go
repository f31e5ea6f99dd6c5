package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/hutch-sandbox/hutch/box"
)

// protocol is what the first bytes of a connection are.
type protocol int

const (
	unknown   protocol = iota // too little is there yet
	isTLS                     // a whole ClientHello
	isHTTP                    // a request line
	isOther                   // neither
	malformed                 // begins as TLS and is none
)

const (
	// helloSize bounds what is read before a connection is judged.
	helloSize = 16 << 10
	// helloTime is how long a client may take to say something that a name can
	// be read from.
	helloTime = 2 * time.Minute
)

// greeting is the beginning of a connection.
type greeting struct {
	proto protocol
	name  string // that TLS asks for; empty: none
	ech   bool   // the name may be a cover for another one
	data  []byte
}

// inspect reads the beginning of a connection, checks what name it is for and
// carries it to its end. up is nil if the connection may be for a host that
// gets a secret; then it is made here, or not at all.
func (g *Gateway) inspect(f *flow, c *boxConn, up net.Conn) error {
	var (
		ahead *bufio.Reader // of what the server says
		down  sync.WaitGroup
		spoke bool // the server did, before the client
		derr  error
	)
	defer down.Wait()
	strict := f.kind == named
	if up != nil && f.dst.Port() != 443 && f.dst.Port() != 80 {
		// Some servers speak first.
		ahead = bufio.NewReader(up)
		spoke = waitEither(c, up, ahead)
		if spoke {
			down.Go(func() { derr = f.copyDown(c, ahead, up) })
		}
	}
	hello, err := readGreeting(c)
	if len(hello.data) == 0 && errors.Is(err, io.EOF) && ahead == nil {
		return nil // it only knocked
	}
	if err != nil && hello.proto != isOther {
		f.end("it did not say what it is for: " + err.Error())
		return nil
	}
	if err := g.checkGreeting(f, hello, strict, spoke); err != nil {
		f.end(err.Error())
		return nil
	}
	if hello.proto == isTLS && g.secret.has(hello.name) && f.dst.Port() == 443 {
		return g.serveSecret(f, &replay{Conn: c, buf: hello.data}, hello.name)
	}
	if up == nil {
		if up, err = g.dialUp(f, decision{kind: f.kind, names: f.names}); err != nil {
			c.abort()
			return err
		}
		f.onEnd(func() { abort(up) })
		defer up.Close()
	}
	if ahead == nil {
		ahead = bufio.NewReader(up)
	}
	if hello.proto == isHTTP {
		return g.serveHTTP(f, &replay{Conn: c, buf: hello.data}, &replay{Conn: up, r: ahead})
	}
	if !spoke {
		down.Go(func() {
			from := io.Reader(up)
			if ahead.Buffered() > 0 {
				from = ahead
			}
			derr = f.copyDown(c, from, up)
		})
	}
	err = f.copyUp(c, hello.data, up)
	down.Wait()
	if err == nil {
		err = derr
	}
	return err
}

// waitEither waits for the first byte of either side and reports whether it
// was the server's. What the server said is kept in ahead.
func waitEither(c *boxConn, up net.Conn, ahead *bufio.Reader) bool {
	server := make(chan bool, 1)
	go func() {
		_, err := ahead.Peek(1)
		server <- err == nil || !isTimeout(err)
	}()
	entry, notify := waiter.NewChannelEntry(readable)
	c.wq.EventRegister(&entry)
	defer c.wq.EventUnregister(&entry)
	for c.ep.Readiness(readable) == 0 {
		select {
		case spoke := <-server:
			return spoke
		case <-notify:
		}
	}
	_ = up.SetReadDeadline(time.Unix(1, 0))
	spoke := <-server
	_ = up.SetReadDeadline(time.Time{})
	return spoke
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// checkGreeting says what is wrong with the beginning of a connection.
func (g *Gateway) checkGreeting(f *flow, h greeting, strict, spoke bool) error {
	port := f.dst.Port()
	switch h.proto {
	case isTLS:
		if h.name == "" {
			if strict {
				return errors.New("TLS without a server name, which the rule is about")
			}
			return nil
		}
		name, err := box.NormalName(h.name)
		if err != nil {
			return fmt.Errorf("TLS asks for %q, which is no name", clip(h.name))
		}
		if v := g.nameAllowed(f, name); !v.Allowed {
			return fmt.Errorf("TLS asks for %s: %s", name, v.Reason)
		}
		f.setName(name)
		if h.ech && strict && !(g.secret.has(name) && port == 443) {
			return errors.New("an encrypted ClientHello hides the name that the rule is about")
		}
	case isHTTP:
		if strict && port == 443 {
			return errors.New("port 443 is TLS to a name")
		}
		if spoke {
			return errors.New("the server spoke before an HTTP request")
		}
	case malformed:
		if strict {
			return errors.New("it begins as TLS and is none")
		}
	case isOther:
		if strict && port == 443 {
			return errors.New("port 443 is TLS to a name")
		}
		if strict && port == 80 {
			return errors.New("port 80 is HTTP to a name")
		}
	default:
		return errors.New("it did not say what it is for")
	}
	return nil
}

// nameAllowed judges a name that a connection gives.
func (g *Gateway) nameAllowed(f *flow, name string) box.Verdict {
	st := g.state.Load()
	if f.kind != named {
		if v := st.policy.DeniedName(name, f.dst.Port(), f.proto); v != nil {
			return *v
		}
		return box.Verdict{Allowed: true, Reason: "the address is open"}
	}
	v := st.policy.NameFlow(name, f.dst.Port(), f.proto)
	if v.Allowed && !slices.Contains(g.res.namesOf(f.dst.Addr()), name) {
		return box.Verdict{Reason: "the address is not the resolver's answer for it"}
	}
	return v
}

// readGreeting reads until it is clear what a connection is. An error comes
// with what was read.
func readGreeting(c net.Conn) (greeting, error) {
	_ = c.SetReadDeadline(time.Now().Add(helloTime))
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	var data []byte
	for {
		if len(data) == helloSize {
			return greeting{}, errors.New("it goes on too long")
		}
		data = slices.Grow(data, 4<<10)
		n, err := c.Read(data[len(data):min(cap(data), helloSize)])
		data = data[:len(data)+n]
		if n > 0 {
			if g := classify(data); g.proto != unknown {
				return g, nil
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) && len(data) == 0 {
				return greeting{proto: isOther}, err
			}
			return greeting{data: data}, err
		}
	}
}

// classify looks at the first bytes of a connection.
func classify(data []byte) greeting {
	g := greeting{data: data}
	if data[0] == 0x16 {
		g.proto, g.name, g.ech = readHello(data)
		return g
	}
	g.proto = requestLine(data)
	return g
}

// requestLine says whether data begins with the first line of an HTTP request.
// Servers forgive white space before it, so it is skipped here.
func requestLine(data []byte) protocol {
	line := bytes.TrimLeft(data, "\r\n\t\v\f \x00")
	if len(line) == 0 {
		return unknown
	}
	space := bytes.IndexAny(line, " \t")
	method := line
	if space >= 0 {
		method = line[:space]
	}
	if len(method) > 32 || bytes.ContainsFunc(method, func(r rune) bool { return r < '!' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) }) {
		return isOther
	}
	end := bytes.IndexByte(line, '\n')
	if space < 0 {
		if end >= 0 {
			return isOther
		}
		return unknown
	}
	if end < 0 {
		return unknown
	}
	if bytes.Contains(bytes.ToUpper(line[:end]), []byte("HTTP/")) {
		return isHTTP
	}
	return isOther
}

// readHello reads a ClientHello once all of it is there.
func readHello(data []byte) (p protocol, name string, ech bool) {
	var message []byte
	for rest := data; ; {
		if len(rest) < 5 {
			return unknown, "", false
		}
		size := int(rest[3])<<8 | int(rest[4])
		if rest[0] != 0x16 || rest[1] != 3 || size == 0 || size > 1<<14 {
			return malformed, "", false
		}
		if len(message) == 0 && len(rest) > 5 && rest[5] != 1 {
			return malformed, "", false
		}
		if len(rest) < 5+size {
			return unknown, "", false
		}
		message = append(message, rest[5:5+size]...)
		rest = rest[5+size:]
		if len(message) >= 4 {
			if want := int(message[1])<<16 | int(message[2])<<8 | int(message[3]); want > helloSize {
				return malformed, "", false
			} else if len(message) >= 4+want {
				break
			}
		}
	}
	// The parser is the one that the ends use.
	p = malformed
	errSeen := errors.New("seen")
	conn := tls.Server(&deafConn{r: bytes.NewReader(data)}, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			p, name = isTLS, h.ServerName
			ech = slices.Contains(h.Extensions, 0xfe0d)
			return nil, errSeen
		},
	})
	_ = conn.Handshake()
	return p, name, ech
}

// deafConn reads from memory and drops what is written.
type deafConn struct {
	net.Conn
	r io.Reader
}

func (c *deafConn) Read(p []byte) (int, error)       { return c.r.Read(p) }
func (c *deafConn) Write(p []byte) (int, error)      { return len(p), nil }
func (c *deafConn) Close() error                     { return nil }
func (c *deafConn) SetDeadline(time.Time) error      { return nil }
func (c *deafConn) SetWriteDeadline(time.Time) error { return nil }

// replay is a connection of which something was read already.
type replay struct {
	net.Conn
	buf []byte    // read first
	r   io.Reader // read then, instead of Conn
}

func (c *replay) Read(p []byte) (int, error) {
	if len(c.buf) > 0 {
		n := copy(p, c.buf)
		c.buf = c.buf[n:]
		return n, nil
	}
	if c.r != nil {
		return c.r.Read(p)
	}
	return c.Conn.Read(p)
}

// CloseWrite ends one direction.
func (c *replay) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return c.Conn.Close()
}

// clip keeps what a box says from filling a log.
func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "..."
	}
	return s
}

func isClosed(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) || err != nil && strings.Contains(err.Error(), "endpoint is closed")
}
