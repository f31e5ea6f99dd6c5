package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// netClientArg makes this program the client of the network rows: it is
// mounted into the sandboxes, so that the same program runs in all of them.
const netClientArg = "net-client"

// A connection begins with a word of five bytes: what is wanted, and how many
// MiB of it.
const (
	wantDown = 'd' // the server sends that many MiB and closes
	wantUp   = 'u' // the client sends that many, and the server then one byte
	wantEcho = 'e' // each message of echoBytes comes back
)

const echoBytes = 128

// netServer is what the clients talk to.
type netServer struct {
	l     net.Listener
	conns sync.WaitGroup
}

func newNetServer(addr string) (*netServer, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &netServer{l: l}
	s.conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.conns.Go(func() {
				defer c.Close()
				_ = serveNet(c)
			})
		}
	})
	return s, nil
}

func (s *netServer) addr() string { return s.l.Addr().String() }

// close waits for the connections; their clients are gone by then.
func (s *netServer) close() {
	_ = s.l.Close()
	s.conns.Wait()
}

func serveNet(c net.Conn) error {
	// A sandbox that was killed says nothing more, not even that it is gone.
	if err := c.SetDeadline(time.Now().Add(attempt)); err != nil {
		return err
	}
	var head [5]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint32(head[1:])) << 20
	switch head[0] {
	case wantDown:
		return send(c, size)
	case wantUp:
		if err := receive(c, size); err != nil {
			return err
		}
		_, err := c.Write([]byte{0})
		return err
	case wantEcho:
		buf := make([]byte, echoBytes)
		for {
			if _, err := io.ReadFull(c, buf); err != nil {
				return err
			}
			if _, err := c.Write(buf); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("the client wants %q", head[0])
}

// netBuffer is large enough that calls to the kernel are not what is measured.
const netBuffer = 256 << 10

func send(c net.Conn, size int64) error {
	buf := make([]byte, netBuffer)
	for size > 0 {
		n, err := c.Write(buf[:min(size, netBuffer)])
		if err != nil {
			return err
		}
		size -= int64(n)
	}
	return nil
}

func receive(c net.Conn, size int64) error {
	buf := make([]byte, netBuffer)
	for size > 0 {
		n, err := c.Read(buf[:min(size, netBuffer)])
		size -= int64(n)
		if err != nil && (err != io.EOF || size > 0) {
			return err
		}
	}
	return nil
}

// netAnswer is what the client prints: seconds, of the whole or of each
// request.
type netAnswer struct{ Seconds []float64 }

// netClient is the program in the sandbox:
//
//	net-client ADDR down|up FLOWS MIB   all flows together move that many MiB
//	net-client ADDR fresh|kept REQUESTS each on a connection of its own, or all on one
func netClient(ctx context.Context, args []string, out io.Writer) error {
	if len(args) < 3 {
		return errors.New("net-client ADDR down|up FLOWS MIB, or net-client ADDR fresh|kept REQUESTS")
	}
	addr, n := args[0], make([]int, len(args)-2)
	for i, arg := range args[2:] {
		var err error
		if n[i], err = strconv.Atoi(arg); err != nil || n[i] < 1 {
			return fmt.Errorf("net-client: %q is no number of anything", arg)
		}
	}
	var answer netAnswer
	var err error
	switch args[1] {
	case "down", "up":
		if len(n) != 2 {
			return errors.New("net-client: how many MiB?")
		}
		answer.Seconds, err = bulk(ctx, addr, args[1][0], n[0], n[1])
	case "fresh", "kept":
		answer.Seconds, err = requests(ctx, addr, args[1] == "kept", n[0])
	default:
		err = fmt.Errorf("net-client: %q is not known", args[1])
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(answer)
}

func dialNet(ctx context.Context, addr string, want byte, mib int) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	head := binary.BigEndian.AppendUint32([]byte{want}, uint32(mib))
	if _, err := c.Write(head); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func bulk(ctx context.Context, addr string, want byte, flows, mib int) ([]float64, error) {
	errs := make([]error, flows)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range flows {
		wg.Go(func() {
			errs[i] = func() error {
				mine := mib / flows
				c, err := dialNet(ctx, addr, want, mine)
				if err != nil {
					return err
				}
				defer c.Close()
				if want == wantDown {
					return receive(c, int64(mine)<<20)
				}
				if err := send(c, int64(mine)<<20); err != nil {
					return err
				}
				_, err = io.ReadFull(c, make([]byte, 1))
				return err
			}()
		})
	}
	wg.Wait()
	return []float64{time.Since(began).Seconds()}, errors.Join(errs...)
}

func requests(ctx context.Context, addr string, kept bool, n int) ([]float64, error) {
	buf := make([]byte, echoBytes)
	var c net.Conn
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	var list []float64
	for range n {
		began := time.Now()
		if c == nil {
			var err error
			if c, err = dialNet(ctx, addr, wantEcho, 0); err != nil {
				return nil, err
			}
		}
		if _, err := c.Write(buf); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			return nil, err
		}
		list = append(list, time.Since(began).Seconds())
		if !kept {
			c.Close()
			c = nil
		}
	}
	if kept && len(list) > 1 {
		list = list[1:] // the first one connected
	}
	return list, nil
}

// runNetClient is main in a sandbox.
func runNetClient(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), attempt)
	defer cancel()
	return netClient(ctx, args, os.Stdout)
}
