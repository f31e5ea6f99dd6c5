//go:build linux

package agent

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/boot"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

const (
	// maxStrangers is how many connections may be open that have not shown the
	// token. Any process in the box can connect.
	maxStrangers = 64
	// strangerTime is how long one may stay.
	strangerTime = 10 * time.Second
	// pingAfter is how long a connection may be silent before the agent asks
	// whether the other side is there. A dead keeper's link sends no reset.
	pingAfter = 15 * time.Second
)

func newServer(h http.Handler, g *guard) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           h,
		Protocols:         protocols,
		ReadHeaderTimeout: strangerTime,
		MaxHeaderBytes:    32 << 10,
		ConnContext:       g.connContext,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:      10000,
			MaxReadFrameSize:          1 << 20,
			MaxReceiveBufferPerStream: 4 << 20,
			// All requests of a keeper share one connection. Were this not far more
			// than one stream's share, a few uploads to somebody who does not read
			// would stop every other request.
			MaxReceiveBufferPerConnection: 1 << 30,
			SendPingTimeout:               pingAfter,
			PingTimeout:                   pingAfter,
		},
	}
}

// authenticate lets only requests with the token through to next.
func (a *Agent) authenticate(next http.Handler) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := sha256.Sum256([]byte(r.Header.Get(boot.TokenHeader)))
		id := a.identity.Load()
		if !id.open || subtle.ConstantTimeCompare(got[:], id.token[:]) != 1 {
			err := wire.Encode(&box.Error{
				Kind: box.Unauthenticated, Op: "guest agent",
				Err: errors.New("the request does not carry this boot's token"),
			})
			if !refuse.IsSupported(r) {
				http.Error(w, err.Error(), http.StatusUnauthorized)
				return
			}
			_ = refuse.Write(w, r, err)
			return
		}
		if c, ok := r.Context().Value(guardKey{}).(*guardConn); ok {
			c.admit()
		}
		next.ServeHTTP(w, r)
	})
}

// guard counts the connections that have not shown the token, and drops the
// oldest of too many.
type guard struct {
	mu        sync.Mutex
	strangers []*guardConn // oldest first
}

type guardKey struct{}

func newGuard() *guard { return &guard{} }

func (g *guard) listener(l net.Listener) net.Listener { return guardListener{l, g} }

func (g *guard) connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, guardKey{}, c)
}

// add counts c, and returns the connection to drop for it, if any.
func (g *guard) add(c *guardConn) *guardConn {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.strangers = append(g.strangers, c)
	if len(g.strangers) <= maxStrangers {
		return nil
	}
	oldest := g.strangers[0]
	g.strangers = g.strangers[1:]
	return oldest
}

// drop no longer counts c, and reports whether it did.
func (g *guard) drop(c *guardConn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, s := range g.strangers {
		if s == c {
			g.strangers = append(g.strangers[:i], g.strangers[i+1:]...)
			return true
		}
	}
	return false
}

type guardListener struct {
	net.Listener
	g *guard
}

// Accept counts the new connection as a stranger.
func (l guardListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &guardConn{Conn: conn, g: l.g}
	c.timer = time.AfterFunc(strangerTime, func() {
		if l.g.drop(c) {
			conn.Close()
		}
	})
	if old := l.g.add(c); old != nil {
		_ = old.Close()
	}
	return c, nil
}

type guardConn struct {
	net.Conn
	g     *guard
	timer *time.Timer
	once  sync.Once
}

// admit says that the connection has shown the token.
func (c *guardConn) admit() {
	c.once.Do(func() {
		c.timer.Stop()
		c.g.drop(c)
	})
}

// Close closes the connection and no longer counts it.
func (c *guardConn) Close() error {
	c.admit()
	return c.Conn.Close()
}
