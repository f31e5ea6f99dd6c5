package keeper

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/hutch-sandbox/hutch/api/hutchv1/hutchv1connect"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/boot"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

// newProxy passes calls on to the guest agent, byte for byte, with the token
// that only the keeper knows. Calls end when the machine does: a machine that
// is gone answers nothing, not even with a reset.
func (k *keeper) newProxy() http.Handler {
	target := &url.URL{Scheme: "http", Host: "agent"}
	errs := connect.NewErrorWriter()
	proxy := &httputil.ReverseProxy{
		Transport: k.m.transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Set(boot.TokenHeader, k.m.token)
		},
		// When the agent has said all it will, nobody reads what the caller
		// still sends. Closing the response would wait for the copy of the
		// request to end, which waits for the caller, who waits for us.
		ModifyResponse: func(r *http.Response) error {
			if in, ok := r.Request.Context().Value(inboundBody{}).(io.Closer); ok {
				r.Body = &responseBody{ReadCloser: r.Body, request: in}
			}
			return nil
		},
		FlushInterval: -1, // streams are for now, not for later
		BufferPool:    &bufferPool{},
		ErrorLog:      slog.NewLogLogger(k.log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil && k.machineCtx.Err() == nil {
				return // the caller is gone
			}
			_ = errs.Write(w, r, wire.Encode(k.goneError(err)))
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if k.machineCtx.Err() != nil && !k.outOfMemory() {
			// Nothing was done: the caller may wake the box and ask again.
			_ = errs.Write(w, r, wire.Encode(&box.Error{Kind: box.Unavailable, Op: "box", Object: k.b.ID(), Err: errors.New(wire.Stopping)}))
			return
		}
		if refusable(r.URL.Path) {
			if !k.calls.begin(waitedFor(r.URL.Path)) {
				_ = errs.Write(w, r, wire.Encode(&box.Error{Kind: box.Unavailable, Op: "box", Object: k.b.ID(), Err: errors.New(wire.Stopping)}))
				return
			}
			if waitedFor(r.URL.Path) {
				defer k.calls.end()
			}
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		stop := context.AfterFunc(k.machineCtx, cancel)
		defer stop()
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(ctx, inboundBody{}, r.Body)))
	})
}

// refusable reports whether a call is one that a box on its way down refuses,
// so that its caller comes back when the box is up again. What is about
// commands that run already goes on until the end.
func refusable(path string) bool {
	for _, service := range []string{hutchv1connect.FilesName, hutchv1connect.TunnelName} {
		if strings.HasPrefix(path, "/"+service+"/") {
			return true
		}
	}
	return path == hutchv1connect.ProcessStartProcedure
}

// waitedFor reports whether a box that stops waits for such a call: those that
// end by themselves.
func waitedFor(path string) bool {
	return strings.HasPrefix(path, "/"+hutchv1connect.FilesName+"/") && path != hutchv1connect.FilesWatchProcedure
}

// callTime bounds how long a box that stops waits for calls that it took.
const callTime = 2 * time.Second

// calls counts those that are under way.
type calls struct {
	mu   sync.Mutex
	n    int
	down bool          // no more are taken
	idle chan struct{} // set by wait; closed with the last call
}

// begin takes a call, unless the box is on its way down. One that counts must
// be ended.
func (c *calls) begin(counts bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down {
		return false
	}
	if counts {
		c.n++
	}
	return true
}

func (c *calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	if c.n == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// shut refuses calls from now on.
func (c *calls) shut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = true
}

// wait waits for those that were taken, for some time. It is called once,
// after shut.
func (c *calls) wait(most time.Duration) {
	c.mu.Lock()
	if c.n == 0 {
		c.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	c.idle = idle
	c.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(most):
	}
}

// inboundBody is the context key of the caller's request body.
type inboundBody struct{}

// responseBody ends the request with the response.
type responseBody struct {
	io.ReadCloser
	request io.Closer
}

func (b *responseBody) Close() error {
	_ = b.request.Close()
	return b.ReadCloser.Close()
}

// goneError describes why the agent cannot be reached.
func (k *keeper) goneError(cause error) error {
	select {
	case <-k.m.inst.Done():
	default:
		if k.machineCtx.Err() == nil {
			return &box.Error{Kind: box.Unavailable, Op: "reach guest agent", Err: cause}
		}
	}
	if k.outOfMemory() {
		return &box.Error{Kind: box.Exhausted, Op: "box", Object: k.b.ID(), Err: errors.New("it used up its memory and was ended"),
			Hint: "give it more with --memory"}
	}
	return &box.Error{Kind: box.Unavailable, Op: "box", Object: k.b.ID(), Err: errors.New("it has stopped")}
}

// bufferPool keeps the proxy's copies large and cheap.
type bufferPool struct{ pool sync.Pool }

func (p *bufferPool) Get() []byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 256<<10)
}

func (p *bufferPool) Put(b []byte) { p.pool.Put(&b) }
