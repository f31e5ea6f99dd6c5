// Package client speaks hutch.v1 to one box: to its guest agent, to the keeper
// that stands before the agent, or to a server that stands before keepers. What
// differs is only the http.RoundTripper and the base URL.
//
// A Client implements the part of box.Machine that works on a running box. It
// adds the errors' operation and object where the other side named none, and
// turns every failure of the connection into box.Unavailable, so that a box
// which went away is never taken for an answer of the box.
package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/hutch-sandbox/hutch/api/hutchv1/hutchv1connect"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

const (
	// chunk is how much data one message of a bulk transfer carries.
	chunk = 256 << 10
	// maxMessage bounds a message from the other side, which may be hostile.
	maxMessage = 16 << 20
	// maxPiece bounds one of a connection into the box, of which there may be
	// many; the agent's are a quarter of that.
	maxPiece = 1 << 20
	// maxHeader bounds what comes before and after an answer.
	maxHeader = 64 << 10
	// idleTime is how long a connection is kept that no call uses. A peer can
	// refuse to take calls on one and keep it open.
	idleTime = time.Minute
)

// Transport returns a transport that speaks HTTP/2 without TLS over what dial
// returns, and multiplexes all calls over few connections.
//
// Every stream may have 4 MiB under way. The connection as a whole may have 1
// GiB, which is Go's default: a smaller bound would let a few streams that
// nobody reads use it up and so stall all others.
//
// Close idle connections when done with it.
func Transport(dial func(ctx context.Context) (net.Conn, error)) *http.Transport {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{
		Protocols: &protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx)
		},
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
		IdleConnTimeout:        idleTime,
		WriteBufferSize:        64 << 10,
		ReadBufferSize:         64 << 10,
		HTTP2: &http.HTTP2Config{
			MaxReadFrameSize:          1 << 20,
			MaxReceiveBufferPerStream: 4 << 20,
		},
	}
}

// Options are the optional settings of a Client.
type Options struct {
	// Header is added to every request, for example the agent's token.
	Header http.Header
}

// Client calls one box. It may be used by any number of goroutines.
type Client struct {
	process hutchv1connect.ProcessClient
	files   hutchv1connect.FilesClient
	tunnel  hutchv1connect.TunnelClient
	system  hutchv1connect.SystemClient
	box     hutchv1connect.BoxClient

	life    context.Context // ends with Close
	end     context.CancelFunc
	tunnels sync.WaitGroup
}

// New returns a client that sends its calls through rt to baseURL, for example
// "http://box" for a Transport. It does no I/O.
func New(rt http.RoundTripper, baseURL string, opts Options) *Client {
	d := &doer{rt: rt, header: opts.Header.Clone()}
	o := []connect.ClientOption{
		// Boxes are near or behind TLS; compressing streams costs more than
		// it saves, and an archive bomb has no chance.
		connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithReadMaxBytes(maxMessage),
	}
	c := &Client{
		process: hutchv1connect.NewProcessClient(d, baseURL, o...),
		files:   hutchv1connect.NewFilesClient(d, baseURL, o...),
		tunnel:  hutchv1connect.NewTunnelClient(d, baseURL, append(o[:len(o):len(o)], connect.WithReadMaxBytes(maxPiece))...),
		system:  hutchv1connect.NewSystemClient(d, baseURL, o...),
		box:     hutchv1connect.NewBoxClient(d, baseURL, o...),
	}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// Close cuts the connections that Dial made and waits for their goroutines. It
// does not touch the round tripper. It may be called twice.
func (c *Client) Close() error {
	c.end()
	c.tunnels.Wait()
	return nil
}

// doer adds the headers. It goes around http.Client, whose redirects and
// cookies have no place here.
type doer struct {
	rt     http.RoundTripper
	header http.Header
}

func (d *doer) Do(req *http.Request) (*http.Response, error) {
	if len(d.header) > 0 {
		// connect made this request, and uses it no more.
		for k, v := range d.header {
			req.Header[k] = v
		}
	}
	resp, err := d.rt.RoundTrip(req)
	if err == nil && !strings.HasPrefix(resp.Header.Get("Content-Type"), streamType) {
		// connect reads an answer that is too long to its end, which an endless
		// one has not.
		resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxMessage + 1}
	}
	return resp, err
}

// streamType is the beginning of the content types of streams, whose messages
// have bounds of their own.
const streamType = "application/connect+"

// errTooLong is the end of an answer that is not read to its own.
var errTooLong = errors.New("the answer is longer than allowed")

// boundedBody is the body of an answer that is one message.
type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// fail turns the error of a call into one of package box.
func fail(ctx context.Context, op, object string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		kind := box.Canceled
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			kind = box.Timeout
		}
		return &box.Error{Kind: kind, Op: op, Object: object, Err: context.Cause(ctx)}
	}
	decoded := wire.Decode(err)
	e, ok := errors.AsType[*box.Error](decoded)
	if !ok {
		if _, isConnect := errors.AsType[*connect.Error](err); !isConnect {
			return &box.Error{Kind: box.Unavailable, Op: op, Object: object, Err: err}
		}
		return decoded
	}
	named := *e
	if named.Op == "" {
		named.Op = op
	}
	if named.Object == "" {
		named.Object = object
	}
	if !connect.IsWireError(err) && local(err, e.Kind) {
		named.Kind = box.Unavailable
	}
	return &named
}

// local reports whether a failure that was noticed on this side is one of the
// connection, although its code says something else: a stream reset by the
// peer looks like a cancellation, one cut in the middle of a message like a
// malformed one.
func local(err error, kind box.Kind) bool {
	switch kind {
	case box.Canceled, box.Timeout:
		return true
	case box.Invalid:
		return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
	}
	return false
}

// cut is the error of a stream that ended cleanly where it must not.
func cut(op, object, what string) error {
	return &box.Error{Kind: box.Unavailable, Op: op, Object: object, Err: errors.New(what)}
}
