//go:build linux

package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
)

// dialTimeout bounds a connection attempt whose caller sets no deadline.
const dialTimeout = 30 * time.Second

// tunnelService implements hutch.v1.Tunnel.
type tunnelService struct{ a *Agent }

// Dial connects to a server in the box and carries both directions, each of
// which can end on its own.
func (s *tunnelService) Dial(ctx context.Context, stream *connect.BidiStream[hutchv1.DialRequest, hutchv1.DialResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	conn, err := s.dial(ctx, first.GetNetwork(), string(first.GetAddress()))
	if err != nil {
		return err
	}
	defer conn.Close()
	// A deadline ends what blocks in the connection; closing would take the
	// descriptor away under it.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	closing := context.AfterFunc(s.a.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer closing()
	if err := stream.Send(&hutchv1.DialResponse{}); err != nil {
		return err
	}

	// Receive cannot be interrupted but by the end of this call, so its
	// goroutine is the agent's to wait for. It ends with the stream.
	up := make(chan error, 1)
	s.a.wg.Go(func() { up <- s.upstream(stream, conn, first.GetData()) })
	down := make(chan error, 1)
	sent := make(chan struct{}) // downstream has ended
	s.a.wg.Go(func() {
		defer close(sent)
		down <- s.downstream(stream, conn)
	})

	for up != nil || down != nil {
		var err error
		select {
		case err = <-up:
			up = nil
		case err = <-down:
			down = nil
		}
		if err != nil {
			_ = conn.SetDeadline(time.Unix(1, 0))
			<-sent // downstream sends on the stream, which must not outlive this call
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
	}
	return nil
}

// upstream carries the caller's bytes to the server in the box.
func (s *tunnelService) upstream(stream *connect.BidiStream[hutchv1.DialRequest, hutchv1.DialResponse], conn net.Conn, data []byte) error {
	for {
		if len(data) > 0 {
			if _, err := conn.Write(data); err != nil {
				return brokenError("write", err)
			}
		}
		m, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			if c, ok := conn.(interface{ CloseWrite() error }); ok {
				_ = c.CloseWrite() // the server may have gone: reading will tell
			}
			return nil
		}
		if err != nil {
			return err
		}
		data = m.GetData()
	}
}

// downstream carries the server's bytes to the caller.
func (s *tunnelService) downstream(stream *connect.BidiStream[hutchv1.DialRequest, hutchv1.DialResponse], conn net.Conn) error {
	buf := pumpBuffers.get()
	defer pumpBuffers.put(buf)
	m := &hutchv1.DialResponse{}
	for {
		n, err := conn.Read(*buf)
		if n > 0 {
			m.Data = (*buf)[:n]
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return stream.Send(&hutchv1.DialResponse{Eof: true})
		}
		if err != nil {
			return brokenError("read", err)
		}
	}
}

func (s *tunnelService) dial(ctx context.Context, network, address string) (net.Conn, error) {
	switch network {
	case "tcp":
		host, port, err := net.SplitHostPort(address)
		if err != nil || port == "" {
			return nil, invalid("dial", address, "want host:port", "for example localhost:8080")
		}
		if host == "" {
			address = net.JoinHostPort("localhost", port)
		}
		if host == "" || host == "localhost" {
			// Not every image has localhost in /etc/hosts.
			conn, err := s.connect(ctx, network, net.JoinHostPort("127.0.0.1", port), address)
			if err == nil || !errors.Is(err, syscall.ECONNREFUSED) {
				return conn, err
			}
			if conn, err6 := s.connect(ctx, network, net.JoinHostPort("::1", port), address); err6 == nil {
				return conn, nil
			}
			return nil, err
		}
		return s.connect(ctx, network, address, address)
	case "unix":
		if address == "" {
			return nil, invalid("dial", "address", "is empty", "give the path of a socket")
		}
		return s.connect(ctx, network, s.a.absolute(address), address)
	}
	return nil, invalid("dial", "network", "must be tcp or unix", "")
}

func (s *tunnelService) connect(ctx context.Context, network, address, asked string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, network, address)
	if err == nil {
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	e := &box.Error{Kind: box.Unavailable, Op: "dial", Object: asked, Err: err}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		e.Err = errno
		if k := box.KindOf(errno); k != box.Internal {
			e.Kind = k
		}
		if errno == syscall.ECONNREFUSED {
			e.Hint = "is a server listening there in the box?"
		}
	}
	return nil, e
}

func brokenError(op string, err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		err = errno
	}
	return &box.Error{Kind: box.Unavailable, Op: "tunnel " + op, Err: err}
}
