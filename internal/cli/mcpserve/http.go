package mcpserve

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/hutch-sandbox/hutch/agent/shell"
)

// Path is where the server is, at its address.
const Path = "/mcp"

// SessionTime is how long the session of a client lasts that sends nothing. It
// is longer than any call.
const SessionTime = 2 * shell.MaxTimeout

// postHeader carries the id of an HTTP request from ServeHTTP to the call that
// the request asks for. Clients cannot set it.
const postHeader = "X-Hutch-Request"

// withoutSessions is the protocol's first version without sessions, which has
// to be served otherwise than those before.
const withoutSessions = "2026-07-28"

// Handler serves the protocol over HTTP at Path, to clients that have the
// token, which must not be empty. loopback says that the server listens on an
// address of this machine alone.
//
// Requests without the token are refused, and so are those of web pages from
// elsewhere: an Origin has to be that of the request's Host, and a server on
// loopback answers only to names for that, since a page can make its own name
// lead anywhere.
func (s *Server) Handler(token string, loopback bool) http.Handler {
	server := func(*http.Request) *mcp.Server { return s.mcp }
	sessions := mcp.NewStreamableHTTPHandler(server, &mcp.StreamableHTTPOptions{SessionTimeout: SessionTime, MaxRequestBodyBytes: MaxMessage})
	single := mcp.NewStreamableHTTPHandler(server, &mcp.StreamableHTTPOptions{
		Stateless: true, MaxRequestBodyBytes: MaxMessage, PropagateRequestCancellation: true,
	})
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkOrigin(r, loopback); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		kind, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(strings.TrimSpace(given)))
		if token == "" || !strings.EqualFold(kind, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Bearer realm="hutch"`)
			http.Error(w, "a token is needed: Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		}
		if r.URL.Path != Path {
			http.NotFound(w, r)
			return
		}
		id, done := s.post()
		defer done()
		r.Header.Set(postHeader, id)
		if r.Header.Get("Mcp-Protocol-Version") >= withoutSessions {
			single.ServeHTTP(w, r)
			return
		}
		sessions.ServeHTTP(w, r)
	})
}

// post notes an HTTP request that is under way. The returned function says that
// nobody waits for its answer any more.
func (s *Server) post() (id string, done func()) {
	id = rand.Text()
	gone := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.posts[id] = gone
	return id, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.posts, id)
		close(gone)
	}
}

// untilGone calls cancel when an HTTP request ends. The returned function ends
// the waiting.
func (s *Server) untilGone(post string, cancel func()) (stop func()) {
	if post == "" {
		return func() {}
	}
	s.mu.Lock()
	gone, ok := s.posts[post]
	s.mu.Unlock()
	if !ok {
		cancel() // it has ended already
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-gone:
			cancel()
		case <-done:
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// checkOrigin refuses requests that a web page of somebody else can make.
func checkOrigin(r *http.Request, loopback bool) error {
	if loopback && !isLoopback(hostOf(r.Host)) {
		return errors.New("this server is reached as localhost or 127.0.0.1 only")
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return errors.New("requests of web pages from elsewhere are refused")
		}
	}
	return nil
}

func hostOf(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Serve serves HTTP on a listener until ctx ends. Then it closes the clients'
// connections, which ends their calls.
func (s *Server) Serve(ctx context.Context, l net.Listener, token string) error {
	addr, ok := l.Addr().(*net.TCPAddr)
	srv := &http.Server{
		Handler:           s.Handler(token, ok && addr.IP.IsLoopback()),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); err != nil && (ctx.Err() == nil || !errors.Is(err, http.ErrServerClosed)) {
		return err
	}
	return nil
}
