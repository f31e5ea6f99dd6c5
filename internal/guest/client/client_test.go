//go:build linux

package client_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/api/hutchv1/hutchv1connect"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/agent"
	"github.com/hutch-sandbox/hutch/internal/guest/boot"
	"github.com/hutch-sandbox/hutch/internal/guest/client"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

// serve runs h on a unix socket and returns a client, and what cuts all its
// connections.
func serve(t *testing.T, h http.Handler) (c *client.Client, cut func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hutch") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: h, Protocols: protocols}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	tr := client.Transport(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	})
	c = client.New(tr, "http://box", client.Options{Header: http.Header{boot.TokenHeader: {testToken}}})
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		tr.CloseIdleConnections()
		srv.Close()
		<-served
	})
	return c, func() { srv.Close() }
}

// serveAgent runs a real agent in this process, as the user who runs the test.
func serveAgent(t *testing.T) (c *client.Client, dir string, cut func()) {
	t.Helper()
	dir = t.TempDir()
	a, err := agent.New(agent.Config{Token: testToken, Dir: dir, Env: [][]byte{[]byte("PATH=" + os.Getenv("PATH"))}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	c, cut = serve(t, a.Handler())
	return c, dir, cut
}

// output follows a stream to its end.
func output(s box.ProcessStream) (out string, exit *box.ExitStatus, err error) {
	for {
		ev, err := s.Recv()
		if err != nil {
			if exit != nil && errors.Is(err, io.EOF) {
				err = nil
			}
			return out, exit, err
		}
		out += string(ev.Data)
		if ev.Exit != nil {
			exit = ev.Exit
		}
	}
}

// A command runs, and its stream ends with a status and then io.EOF.
func TestProcess(t *testing.T) {
	c, dir, _ := serveAgent(t)
	s, err := c.StartProcess(t.Context(), box.ProcessSpec{Args: []string{"sh", "-c", "pwd; cat; exit 3"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, part := range []string{"one\n", "two\n"} {
		if err := c.WriteInput(t.Context(), s.ID(), int64(4*i), []byte(part), false); err != nil {
			t.Fatal(err)
		}
	}
	// A repeated call is harmless; a negative offset appends.
	if err := c.WriteInput(t.Context(), s.ID(), 4, []byte("two\n"), false); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteInput(t.Context(), s.ID(), -1, []byte("three\n"), true); err != nil {
		t.Fatal(err)
	}
	out, exit, err := output(s)
	if err != nil || exit == nil || exit.Code != 3 || out != dir+"\none\ntwo\nthree\n" {
		t.Errorf("got %q, %v, %v", out, exit, err)
	}
	ps, err := c.Processes(t.Context())
	if err != nil || len(ps) != 1 || ps[0].ID != s.ID() || ps[0].Running || ps[0].Exit.Code != 3 {
		t.Errorf("processes %+v, %v", ps, err)
	}
}

// A stream that is cut is Unavailable and never looks like an end.
func TestProcessCut(t *testing.T) {
	c, _, cut := serveAgent(t)
	s, err := c.StartProcess(t.Context(), box.ProcessSpec{Args: []string{"sh", "-c", "echo ready; sleep 100"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	cut()
	if _, err := s.Recv(); !errors.Is(err, box.ErrUnavailable) || errors.Is(err, io.EOF) {
		t.Errorf("Recv: %v", err)
	}
	if _, err := c.Stat(t.Context(), "/", true); !errors.Is(err, box.ErrUnavailable) {
		t.Errorf("Stat: %v", err)
	}
}

// Closing the stream that owns a command kills it.
func TestProcessClose(t *testing.T) {
	c, _, _ := serveAgent(t)
	s, err := c.StartProcess(t.Context(), box.ProcessSpec{Args: []string{"sleep", "100"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("Recv after Close: %v", err)
	}
	for {
		ps, err := c.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(ps) == 0 || !ps[0].Running {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Errors keep kind, operation and path, and a context's end is told apart from
// a failure.
func TestErrors(t *testing.T) {
	c, dir, _ := serveAgent(t)
	_, err := c.Stat(t.Context(), dir+"/none", true)
	var p *fs.PathError
	if !errors.As(err, &p) || !errors.Is(err, syscall.ENOENT) || p.Path != dir+"/none" {
		t.Errorf("Stat: %v", err)
	}
	_, err = c.AttachProcess(t.Context(), "none", box.AttachOptions{})
	if !errors.Is(err, box.ErrNotFound) {
		t.Errorf("AttachProcess: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Stat(ctx, dir, true); !errors.Is(err, box.ErrCanceled) {
		t.Errorf("canceled: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if _, err := c.Stat(ctx, dir, true); !errors.Is(err, box.ErrTimeout) {
		t.Errorf("deadline: %v", err)
	}
	// Without the token, nothing.
	tr := client.Transport(func(context.Context) (net.Conn, error) { return nil, syscall.ECONNREFUSED })
	nobody := client.New(tr, "http://box", client.Options{})
	if _, err := nobody.Hello(t.Context()); !errors.Is(err, box.ErrUnavailable) {
		t.Errorf("nobody listens: %v", err)
	}
}

// An upload whose source fails reports that, and changes nothing.
func TestUploadFails(t *testing.T) {
	c, dir, _ := serveAgent(t)
	bad := errors.New("source failed")
	r := io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), errorReader{bad})
	if _, err := c.WriteFile(t.Context(), dir+"/f", r, box.WriteOptions{Atomic: true}); !errors.Is(err, bad) {
		t.Errorf("WriteFile: %v", err)
	}
	if _, err := os.Stat(dir + "/f"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file: %v", err)
	}
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

// keeper answers the Box service as a script says.
type keeper struct {
	hutchv1connect.UnimplementedBoxHandler
	stop chan struct{}
}

func (k keeper) Hold(ctx context.Context, _ *connect.Request[hutchv1.HoldRequest], s *connect.ServerStream[hutchv1.HoldEvent]) error {
	if err := s.Send(&hutchv1.HoldEvent{State: "running"}); err != nil {
		return err
	}
	select {
	case <-k.stop:
		return s.Send(&hutchv1.HoldEvent{State: "stopped", Reason: "asked to"})
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k keeper) Stop(context.Context, *connect.Request[hutchv1.StopRequest]) (*connect.Response[hutchv1.StopResponse], error) {
	close(k.stop)
	return connect.NewResponse(&hutchv1.StopResponse{}), nil
}

func (keeper) Pause(context.Context, *connect.Request[hutchv1.PauseRequest]) (*connect.Response[hutchv1.PauseResponse], error) {
	return nil, wire.Encode(&box.Error{Kind: box.Conflict, Op: "pause", Object: "b", Err: errors.New("paused already"), Hint: "hutch resume b"})
}

func (keeper) Stats(context.Context, *connect.Request[hutchv1.BoxStatsRequest]) (*connect.Response[hutchv1.BoxStatsResponse], error) {
	return connect.NewResponse(&hutchv1.BoxStatsResponse{CpuUsec: 5, Memory: 6, Execs: 7, UptimeUsec: 8, Leases: 9}), nil
}

// A lease says when the box has stopped, and why; one that breaks says that.
func TestBox(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(hutchv1connect.NewBoxHandler(keeper{stop: make(chan struct{})}))
	c, cut := serve(t, mux)
	h, err := c.Hold(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	other, err := c.Hold(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(other.Close(), other.Close()); err != nil {
		t.Error(err)
	}
	if _, _, err := other.Wait(); err == nil {
		t.Error("a closed lease reports an end")
	}
	st, err := c.Stats(t.Context())
	if want := (box.Stats{CPU: 5 * time.Microsecond, Memory: 6, Execs: 7, Uptime: 8 * time.Microsecond, Leases: 9}); err != nil || st != want {
		t.Errorf("stats %+v, %v", st, err)
	}
	err = c.Pause(t.Context())
	var e *box.Error
	if !errors.As(err, &e) || e.Kind != box.Conflict || e.Op != "pause" || e.Object != "b" || e.Hint != "hutch resume b" {
		t.Errorf("Pause: %#v", err)
	}
	if err := c.Resume(t.Context()); !errors.Is(err, box.ErrUnsupported) {
		t.Errorf("Resume: %v", err)
	}
	if err := c.Stop(t.Context(), time.Second); err != nil {
		t.Error(err)
	}
	if reason, _, err := h.Wait(); err != nil || reason != "asked to" {
		t.Errorf("Wait: %q, %v", reason, err)
	}
	h, err = c.Hold(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if reason, _, err := h.Wait(); err != nil || reason != "asked to" {
		t.Errorf("second Wait: %q, %v", reason, err)
	}
	cut()
	if _, err := c.Hold(t.Context(), false); !errors.Is(err, box.ErrUnavailable) {
		t.Errorf("Hold without keeper: %v", err)
	}
}

// A lease whose keeper dies is Unavailable, and not an announced end.
func TestHoldCut(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(hutchv1connect.NewBoxHandler(keeper{stop: make(chan struct{})}))
	c, cut := serve(t, mux)
	h, err := c.Hold(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	cut()
	if _, _, err := h.Wait(); !errors.Is(err, box.ErrUnavailable) {
		t.Errorf("Wait: %v", err)
	}
}
