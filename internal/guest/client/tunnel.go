package client

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
)

// linger is how long a connection that was closed here stays half-open, so
// that what was written before is delivered, as the kernel does for TCP.
const linger = time.Second

// Dial connects to a server in the box. The context bounds only the dialing.
func (c *Client) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if network == "tcp4" || network == "tcp6" {
		network = "tcp"
	}
	life, cancel := context.WithCancel(c.life)
	stop := context.AfterFunc(ctx, cancel)
	stream := c.tunnel.Dial(life)
	err := stream.Send(&hutchv1.DialRequest{Network: network, Address: []byte(addr)})
	var first *hutchv1.DialResponse
	if err == nil || errors.Is(err, io.EOF) {
		first, err = stream.Receive()
	}
	if !stop() {
		cancel()
		return nil, fail(ctx, "dial", addr, context.Canceled)
	}
	if err != nil {
		err = fail(life, "dial", addr, err)
		cancel()
		if errors.Is(err, io.EOF) {
			err = cut("dial", addr, "the answer ended before it began")
		}
		return nil, err
	}
	t := &tunnel{
		stream: stream, ctx: life, cancel: cancel, addr: tunnelAddr{network, addr},
		incoming: make(chan []byte), ended: make(chan struct{}), closed: make(chan struct{}),
	}
	t.rest, t.eof = first.GetData(), first.GetEof()
	c.tunnels.Go(t.receive)
	return t, nil
}

type tunnelAddr struct{ network, addr string }

func (a tunnelAddr) Network() string { return a.network }
func (a tunnelAddr) String() string  { return a.addr }

// tunnel is a net.Conn over a bidirectional stream.
type tunnel struct {
	stream *connect.BidiStreamForClient[hutchv1.DialRequest, hutchv1.DialResponse]
	ctx    context.Context
	cancel context.CancelFunc
	addr   tunnelAddr

	incoming chan []byte   // from receive
	ended    chan struct{} // closed when nothing more comes; then recvErr is set
	recvErr  error
	eof      bool // the first message had the end already

	closed    chan struct{} // closed by Close
	closeOnce sync.Once

	readMu sync.Mutex
	rest   []byte

	writeMu    sync.Mutex
	halfClosed bool

	readBy, writeBy deadline
}

// receive hands on what comes in. It ends with the stream, and a moment after
// Close.
func (t *tunnel) receive() {
	defer t.cancel()
	if t.eof {
		t.finish(io.EOF)
	}
	for {
		msg, err := t.stream.Receive()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				err = fail(context.WithoutCancel(t.ctx), "read", t.addr.addr, err)
			} else {
				err = io.EOF
			}
			t.finish(err)
			return
		}
		if len(msg.GetData()) > 0 {
			select {
			case t.incoming <- msg.GetData():
			case <-t.closed: // dropped, while what was written is delivered
			case <-t.ctx.Done():
				t.finish(net.ErrClosed)
				return
			}
		}
		if msg.GetEof() {
			// The writing side lives on until the stream ends.
			t.finish(io.EOF)
		}
	}
}

// finish tells the reader that nothing more comes. Only the first call counts.
// Only receive calls it.
func (t *tunnel) finish(err error) {
	if t.recvErr == nil {
		t.recvErr = err
		close(t.ended)
	}
}

func (t *tunnel) Read(p []byte) (int, error) {
	t.readMu.Lock()
	defer t.readMu.Unlock()
	if isDone(t.closed) {
		return 0, net.ErrClosed
	}
	if isDone(t.readBy.done()) {
		return 0, os.ErrDeadlineExceeded
	}
	if len(p) == 0 {
		return 0, nil
	}
	if len(t.rest) == 0 {
		select {
		case t.rest = <-t.incoming:
		case <-t.ended:
			return 0, t.recvErr
		case <-t.closed:
			return 0, net.ErrClosed
		case <-t.readBy.done():
			return 0, os.ErrDeadlineExceeded
		}
	}
	n := copy(p, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}

// Write sends p. A write whose deadline passes breaks the connection.
func (t *tunnel) Write(p []byte) (int, error) {
	t.writeMu.Lock()
	defer t.writeMu.Unlock()
	total := 0
	for total < len(p) {
		part := p[total:min(len(p), total+chunk)]
		if err := t.send(part); err != nil {
			return total, err
		}
		total += len(part)
	}
	return total, nil
}

func (t *tunnel) send(p []byte) error {
	switch {
	case isDone(t.closed) || t.halfClosed:
		return net.ErrClosed
	case isDone(t.writeBy.done()):
		return os.ErrDeadlineExceeded
	}
	finished := make(chan struct{})
	late := make(chan bool, 1)
	go func() {
		select {
		case <-finished:
			late <- false
		case <-t.writeBy.done():
			t.cancel()
			late <- true
		case <-t.closed:
			// Close waits for no writer: cut it.
			t.cancel()
			late <- false
		}
	}()
	err := t.stream.Send(&hutchv1.DialRequest{Data: p})
	close(finished)
	switch {
	case <-late && err != nil:
		return os.ErrDeadlineExceeded
	case err == nil:
		return nil
	case isDone(t.closed):
		return net.ErrClosed
	case errors.Is(err, io.EOF):
		// The peer's reason comes to the reader.
		return &box.Error{Kind: box.Unavailable, Op: "write", Object: t.addr.addr, Err: errors.New("the connection was closed by the box")}
	}
	return fail(context.WithoutCancel(t.ctx), "write", t.addr.addr, err)
}

// CloseWrite tells the server that no more comes.
func (t *tunnel) CloseWrite() error {
	t.writeMu.Lock()
	defer t.writeMu.Unlock()
	if isDone(t.closed) {
		return net.ErrClosed
	}
	if t.halfClosed {
		return nil
	}
	t.halfClosed = true
	return t.stream.CloseRequest()
}

// Close closes both directions. What was written before is still delivered.
func (t *tunnel) Close() error {
	t.closeOnce.Do(func() {
		close(t.closed) // ends a Write in progress
		t.writeMu.Lock()
		defer t.writeMu.Unlock()
		if !t.halfClosed {
			t.halfClosed = true
			_ = t.stream.CloseRequest()
		}
		// receive drops what still comes, for a moment.
		time.AfterFunc(linger, t.cancel)
		t.readBy.set(time.Time{})
		t.writeBy.set(time.Time{})
	})
	return nil
}

func (t *tunnel) LocalAddr() net.Addr  { return tunnelAddr{t.addr.network, "hutch"} }
func (t *tunnel) RemoteAddr() net.Addr { return t.addr }

func (t *tunnel) SetDeadline(at time.Time) error {
	t.readBy.set(at)
	t.writeBy.set(at)
	return nil
}

func (t *tunnel) SetReadDeadline(at time.Time) error {
	t.readBy.set(at)
	return nil
}

func (t *tunnel) SetWriteDeadline(at time.Time) error {
	t.writeBy.set(at)
	return nil
}

// deadline is a point in time that can be moved while others wait for it. The
// zero value never comes.
type deadline struct {
	mu    sync.Mutex
	ch    chan struct{} // closed when the time has come
	timer *time.Timer
}

func (d *deadline) done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ch == nil {
		d.ch = make(chan struct{})
	}
	return d.ch
}

func (d *deadline) set(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.ch // the timer is closing it, or has
	}
	d.timer = nil
	// Those who wait for the channel wait for the new time: it is replaced
	// only when it was closed.
	if d.ch == nil || isDone(d.ch) {
		d.ch = make(chan struct{})
	}
	ch := d.ch
	switch wait := time.Until(at); {
	case at.IsZero():
	case wait <= 0:
		close(ch)
	default:
		d.timer = time.AfterFunc(wait, func() { close(ch) })
	}
}

func isDone(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
