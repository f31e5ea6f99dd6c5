package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// serveHTTP carries a connection of plain HTTP and checks the host of each
// request in it: with keep-alive, the second may be for another one.
func (g *Gateway) serveHTTP(f *flow, c, up net.Conn) error {
	first := make(chan net.Conn, 1)
	first <- up
	dial := func(ctx context.Context, _, addr string) (net.Conn, error) {
		select {
		case conn := <-first:
			return conn, nil
		default:
		}
		var conn net.Conn
		var err error
		if f.kind == named {
			host, _, _ := net.SplitHostPort(addr)
			conn, err = g.dialName(ctx, "tcp", host, f.dst, host)
		} else {
			conn, err = g.dialer.Dial(ctx, "tcp", netip.AddrPortFrom(f.dst.Addr().Unmap(), f.dst.Port()))
		}
		if err == nil {
			f.onEnd(func() { _ = conn.Close() })
		}
		return conn, err
	}
	var h1, h2c http.Protocols
	h1.SetHTTP1(true)
	h2c.SetUnencryptedHTTP2(true)
	transports := [2]*http.Transport{
		{DialContext: dial, Protocols: &h1, DisableCompression: true, MaxConnsPerHost: 8, IdleConnTimeout: time.Minute},
		{DialContext: dial, Protocols: &h2c, DisableCompression: true, IdleConnTimeout: time.Minute},
	}
	defer transports[0].CloseIdleConnections()
	defer transports[1].CloseIdleConnections()
	proxy := newProxy()
	proxy.Rewrite = func(r *httputil.ProxyRequest) {
		restore(r)
		r.Out.URL.Scheme = "http"
		r.Out.URL.Host = net.JoinHostPort(r.In.Context().Value(hostKey{}).(string), strconv.Itoa(int(f.dst.Port())))
	}
	proxy.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.ProtoMajor == 2 {
			return transports[1].RoundTrip(r)
		}
		return transports[0].RoundTrip(r)
	})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, v := requestHost(r)
		switch {
		case v.Allowed && name != "":
			v = g.nameAllowed(f, name)
		case v.Allowed && f.kind == named:
			v = box.Verdict{Reason: "the request names no host, which the rule is about"}
		}
		if !v.Allowed {
			g.refuseRequest(w, f, name, v)
			return
		}
		if name != "" {
			f.setName(name)
		} else {
			name = f.dst.Addr().Unmap().String()
		}
		// No sniffing on behalf of the server.
		w.Header()["Content-Type"] = nil
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), hostKey{}, name)))
	})
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return g.serveConn(f, &http.Server{Handler: handler, Protocols: &protocols}, c)
}

// hostKey is the context key of the name that a request is for.
type hostKey struct{}

// newProxy makes a proxy that passes on what it gets when it gets it.
func newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		FlushInterval: -1,
		BufferPool:    copyBuffers{},
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			// A server that is not there is a broken connection without us, and
			// is one with us.
			if errors.Is(err, errCertificate) {
				http.Error(w, "hutch: "+err.Error(), http.StatusBadGateway)
				return
			}
			panic(http.ErrAbortHandler)
		},
	}
}

// restore undoes what ReverseProxy does to a request that it was not asked to.
func restore(r *httputil.ProxyRequest) {
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	r.Out.Host = r.In.Host
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := r.In.Header[h]; ok {
			r.Out.Header[h] = v
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// requestHost returns the name that a request is for, "" for none or an
// address.
func requestHost(r *http.Request) (string, box.Verdict) {
	ok := box.Verdict{Allowed: true}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if r.Method == http.MethodConnect {
		return clip(host), box.Verdict{Reason: "CONNECT asks for a connection to somewhere else"}
	}
	if ct := r.Header.Get("Content-Type"); ct == "application/dns-message" {
		return clip(host), box.Verdict{Reason: "DNS over HTTP would be a way around the resolver"}
	}
	if host == "" {
		return "", ok
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return "", ok
	}
	name, err := box.NormalName(host)
	if err != nil {
		return clip(host), box.Verdict{Reason: err.Error()}
	}
	return name, ok
}

// refuseRequest answers a request that is not allowed, and closes.
func (g *Gateway) refuseRequest(w http.ResponseWriter, f *flow, name string, v box.Verdict) {
	g.counters.denied.Add(1)
	r := f.record(box.NetHTTP, false)
	r.Name, r.Rule, r.Reason = name, v.Rule, v.Reason
	g.cfg.Record(r)
	w.Header().Set("Connection", "close")
	http.Error(w, fmt.Sprintf("hutch: this box may not reach %q: %s", name, v.Reason), http.StatusForbidden)
}

// serveConn serves one connection to its end.
func (g *Gateway) serveConn(f *flow, s *http.Server, c net.Conn) error {
	select {
	case g.proxies <- struct{}{}:
		defer func() { <-g.proxies }()
	default:
		f.end(tooMany)
		return nil
	}
	s.MaxHeaderBytes = 128 << 10
	s.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 100, MaxReceiveBufferPerConnection: 512 << 10, MaxReceiveBufferPerStream: 256 << 10}
	cc := &counted{Conn: c, f: f, wake: make(chan struct{})}
	l := &oneConn{conn: cc, done: make(chan struct{})}
	s.ConnState = func(_ net.Conn, state http.ConnState) { cc.setActive(state == http.StateActive) }
	s.ReadHeaderTimeout = helloTime
	s.ErrorLog = log.New(io.Discard, "", 0)
	s.BaseContext = func(net.Listener) context.Context { return f.ctx }
	f.onEnd(func() { _ = s.Close() })
	var err error
	if s.TLSConfig != nil {
		err = s.ServeTLS(l, "", "")
	} else {
		err = s.Serve(l)
	}
	// Handlers of connections that were hijacked may still run; they end with
	// the connection.
	_ = s.Close()
	if errors.Is(err, errServed) || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

var errServed = errors.New("the connection has ended")

// oneConn is a listener with one connection, after whose end Accept fails.
type oneConn struct {
	conn *counted
	done chan struct{}
	once sync.Once
	got  sync.Once
}

func (l *oneConn) Accept() (conn net.Conn, err error) {
	l.got.Do(func() {
		l.conn.closed = sync.OnceFunc(func() { close(l.done) })
		conn = l.conn
	})
	if conn != nil {
		return conn, nil
	}
	<-l.done
	return nil, errServed
}

func (l *oneConn) Close() error {
	l.once.Do(func() { l.conn.Close() })
	return nil
}

func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

// counted counts what a flow carries, and says when the connection is closed.
//
// It hides that the client will send nothing more while a request is being
// answered: net/http would take that for a client that went away.
type counted struct {
	net.Conn
	f      *flow
	closed func()

	mu     sync.Mutex // guards the fields below
	active bool
	abort  bool          // a read is to end
	gone   bool          // closed here
	wake   chan struct{} // closed and replaced when one of them changes
}

func (c *counted) change(set func()) {
	c.mu.Lock()
	set()
	close(c.wake)
	c.wake = make(chan struct{})
	c.mu.Unlock()
}

func (c *counted) setActive(active bool) { c.change(func() { c.active = active }) }

// SetReadDeadline ends a read that waits here, too.
func (c *counted) SetReadDeadline(t time.Time) error {
	c.change(func() { c.abort = !t.IsZero() && !t.After(time.Now()) })
	return c.Conn.SetReadDeadline(t)
}

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (c *counted) SetDeadline(t time.Time) error {
	c.change(func() { c.abort = !t.IsZero() && !t.After(time.Now()) })
	return c.Conn.SetDeadline(t)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.f.sent.Add(int64(n))
	c.f.g.counters.sent.Add(int64(n))
	for n == 0 && errors.Is(err, io.EOF) {
		c.mu.Lock()
		active, abort, gone, wake := c.active, c.abort, c.gone, c.wake
		c.mu.Unlock()
		switch {
		case abort:
			return 0, os.ErrDeadlineExceeded
		case !active, gone:
			return 0, err
		}
		<-wake
	}
	return n, err
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.f.received.Add(int64(n))
	c.f.g.counters.received.Add(int64(n))
	return n, err
}

func (c *counted) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return nil
}

func (c *counted) Close() error {
	err := c.Conn.Close()
	c.change(func() { c.gone = true })
	if c.closed != nil {
		c.closed()
	}
	return err
}

// copyBuffers gives the proxy buffers of the common size.
type copyBuffers struct{}

func (copyBuffers) Get() []byte {
	if b, ok := buffers.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, bufferBytes)
}

func (copyBuffers) Put(b []byte) { buffers.Put(&b) }
