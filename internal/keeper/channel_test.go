package keeper

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/api/hutchv1/hutchv1connect"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/egress"
	"github.com/hutch-sandbox/hutch/internal/engine"
)

// agentMachine is a machine whose agent is reached by dial.
type agentMachine struct {
	engine.Instance
	dial func(context.Context) (net.Conn, error)
}

func (m *agentMachine) DialGuest(ctx context.Context) (net.Conn, error) { return m.dial(ctx) }
func (m *agentMachine) Done() <-chan struct{}                           { return nil }
func (m *agentMachine) Kill(context.Context) error                      { return nil }
func (m *agentMachine) Limits() box.Limits                              { return box.Limits{} }
func (m *agentMachine) Stats(context.Context) (engine.Stats, error) {
	return engine.Stats{Memory: 7, Disk: 8}, nil
}

func newMachine(dial func(context.Context) (net.Conn, error)) *machine {
	m := &machine{inst: &agentMachine{dial: dial}}
	m.reach()
	return m
}

// silent is a connection to an agent that takes what it gets and says nothing,
// or, if deaf, takes nothing.
func silent(t *testing.T, deaf bool) func(context.Context) (net.Conn, error) {
	var work sync.WaitGroup
	t.Cleanup(work.Wait)
	return func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		if !deaf {
			work.Go(func() { _, _ = io.Copy(io.Discard, theirs) })
		}
		return ours, nil
	}
}

// stalling is a connection whose other side stops to take anything when it is
// told.
type stalling struct {
	net.Conn
	stalled chan struct{} // closed: from now on
	cut     chan struct{} // closed with the deadline
	once    sync.Once
}

func (s *stalling) Write(p []byte) (int, error) {
	select {
	case <-s.stalled:
		<-s.cut
		return 0, os.ErrDeadlineExceeded
	default:
		return s.Conn.Write(p)
	}
}

func (s *stalling) SetDeadline(at time.Time) error {
	s.once.Do(func() { close(s.cut) })
	return s.Conn.SetDeadline(at)
}

type tunnels struct{ hutchv1connect.TunnelHandler }

// Dial takes a connection and nothing that comes over it.
func (tunnels) Dial(ctx context.Context, stream *connect.BidiStream[hutchv1.DialRequest, hutchv1.DialResponse]) error {
	if err := stream.Send(&hutchv1.DialResponse{}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// TestCloseDespiteDeafAgent: the end of a machine does not wait for an agent
// that takes nothing off its connection any more, while somebody writes to it.
func TestCloseDespiteDeafAgent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(hutchv1connect.NewTunnelHandler(tunnels{}))
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: mux, Protocols: &protocols}
	var served sync.WaitGroup
	served.Go(func() { _ = srv.Serve(l) })
	defer served.Wait()
	defer srv.Close()

	stalled := make(chan struct{})
	m := newMachine(func(ctx context.Context) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		return &stalling{Conn: conn, stalled: stalled, cut: make(chan struct{})}, err
	})
	conn, err := m.agent.Dial(t.Context(), "tcp", "localhost:1")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	close(stalled)
	var wrote sync.WaitGroup
	wrote.Go(func() {
		if _, err := conn.Write(make([]byte, 1<<20)); err == nil {
			t.Error("the write went through")
		}
	})
	if err := m.close(t.Context()); err != nil {
		t.Error(err)
	}
	wrote.Wait()
}

// TestChannels: connections are counted, at most so many are open, and none is
// after the cut.
func TestChannels(t *testing.T) {
	c := &channel{dial: silent(t, false)}
	var open []net.Conn
	for range maxChannels {
		conn, err := c.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	if _, err := c.Dial(t.Context()); !errors.Is(err, errChannels) {
		t.Errorf("one more: %v", err)
	}
	for range 2 { // closed twice, counted once
		_ = open[0].Close()
	}
	if _, err := c.Dial(t.Context()); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
	if _, err := c.Dial(t.Context()); !errors.Is(err, errChannels) {
		t.Errorf("one more again: %v", err)
	}
	c.cut()
	c.cut()
	for _, conn := range open {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a connection is open")
		}
	}
	if _, err := c.Dial(t.Context()); !errors.Is(err, errCut) {
		t.Errorf("after the cut: %v", err)
	}
	failing := &channel{dial: func(context.Context) (net.Conn, error) { return nil, io.ErrClosedPipe }}
	for range maxChannels + 1 {
		if _, err := failing.Dial(t.Context()); !errors.Is(err, io.ErrClosedPipe) {
			t.Fatal(err)
		}
	}
}

// TestStatsOfSilentBox: what the host knows of a box is told, whatever the box
// does to the question.
func TestStatsOfSilentBox(t *testing.T) {
	gateway, guest, err := egress.NewLink(egress.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer gateway.Close()
	defer guest.Close()
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(silent(t, deaf))
			m.gateway = gateway
			k := &keeper{m: m, machineCtx: t.Context()}
			start := time.Now()
			resp, err := (&boxService{k: k}).Stats(t.Context(), connect.NewRequest(&hutchv1.BoxStatsRequest{}))
			if err != nil || resp.Msg.GetMemory() != 7 || resp.Msg.GetDisk() != 8 {
				t.Errorf("deaf is %v: %v, %v", deaf, resp, err)
			}
			if d := time.Since(start); d != statsTime {
				t.Errorf("deaf is %v: it took %v", deaf, d)
			}
			m.gateway = nil
			if err := m.close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStopOfSilentBox: the calls that end a box are over in time.
func TestStopOfSilentBox(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(silent(t, deaf))
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			start := time.Now()
			if err := m.agent.Shutdown(ctx, time.Second); box.KindOf(err) != box.Timeout {
				t.Errorf("shutdown: %v", err)
			}
			if err := m.close(t.Context()); err != nil {
				t.Error(err)
			}
			if d := time.Since(start); d != 5*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
}
