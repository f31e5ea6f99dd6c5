package box

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// DialContext connects to a server in the box. Network is "tcp", "tcp4", "tcp6"
// or "unix"; addr is "host:port" as seen in the box (an empty host, and
// "localhost", are the box itself) or the path of a socket. The connection has
// CloseWrite. The context bounds only the dialing. It fits into an
// http.Transport:
//
//	http.Client{Transport: &http.Transport{DialContext: b.DialContext}}
func (b *Box) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := checkAddress(network, addr); err != nil {
		return nil, err
	}
	conn, err := b.machine.Dial(ctx, network, addr)
	return conn, wrap("dial", addr, err)
}

func checkAddress(network, addr string) error {
	bad := func(msg, hint string) error {
		return &Error{Kind: Invalid, Op: "dial", Object: clip(addr), Err: errors.New(msg), Hint: hint}
	}
	switch network {
	case "tcp", "tcp4", "tcp6":
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return bad("the address is not host:port", "write for example localhost:8080")
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return bad("the port is not a number from 1 to 65535", "write for example localhost:8080")
		}
	case "unix":
		if addr == "" || strings.IndexByte(addr, 0) >= 0 {
			return bad("the address is no path", "give the path of the socket in the box")
		}
	default:
		return bad("unknown network "+clip(network), `use "tcp" or "unix"`)
	}
	return nil
}

// Forward accepts connections from l and connects each to addr in the box, as
// DialContext. It returns nil when ctx ends or l is closed, and otherwise the
// error of l. It closes l, and before it returns, all its connections. A
// connection that cannot be made in the box is closed.
func (b *Box) Forward(ctx context.Context, l net.Listener, network, addr string) error {
	if err := checkAddress(network, addr); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer func() {
		if stop() {
			_ = l.Close()
		}
	}()

	delay := time.Duration(0)
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			delay = 0
			conns.Go(func() { b.forward(ctx, conn, network, addr) })
			continue
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		}
		// Out of file descriptors, or a client that went away again: as
		// net/http does, go on after a while.
		var ne interface{ Temporary() bool }
		if !errors.As(err, &ne) || !ne.Temporary() {
			return wrap("forward", l.Addr().String(), err)
		}
		delay = min(max(2*delay, 5*time.Millisecond), time.Second)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
		}
	}
}

func (b *Box) forward(ctx context.Context, outer net.Conn, network, addr string) {
	defer outer.Close()
	inner, err := b.machine.Dial(ctx, network, addr)
	if err != nil {
		return
	}
	defer inner.Close()
	// Both ends are closed when ctx ends, which ends both copies.
	stop := context.AfterFunc(ctx, func() {
		_ = outer.Close()
		_ = inner.Close()
	})
	defer stop()
	var up sync.WaitGroup
	up.Go(func() { splice(inner, outer) })
	splice(outer, inner)
	up.Wait()
}

// splice copies src to dst and passes on the end; after a failure neither is
// of use any more.
func splice(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if cw, ok := dst.(interface{ CloseWrite() error }); ok && err == nil {
		if cw.CloseWrite() == nil {
			return
		}
	}
	_ = dst.Close()
	_ = src.Close()
}
