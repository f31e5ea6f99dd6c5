//go:build linux

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/api/hutchv1/hutchv1connect"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/boot"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

const testToken = "0123456789abcdef0123456789abcdef"

// asInit makes the test binary behave as the agent, for the tests that need a
// PID 1.
const asInit = "HUTCH_TEST_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(asInit) != "" {
		os.Unsetenv(asInit)
		os.Exit(Main("test"))
	}
	goleak.VerifyTestMain(m)
}

// rig is an agent and a client of it.
type rig struct {
	t       testing.TB
	agent   *Agent
	socket  string
	dir     string
	process hutchv1connect.ProcessClient
	files   hutchv1connect.FilesClient
	tunnel  hutchv1connect.TunnelClient
	system  hutchv1connect.SystemClient
}

type tokenTransport struct {
	token string
	next  http.RoundTripper
}

func (t tokenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(boot.TokenHeader, t.token)
	return t.next.RoundTrip(r)
}

// dialAgent makes clients of the agent at socket.
func dialAgent(t testing.TB, socket, token string) *rig {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	tr := &http.Transport{
		Protocols: protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 4 << 20, MaxReceiveBufferPerConnection: 64 << 20, MaxReadFrameSize: 1 << 20},
	}
	t.Cleanup(tr.CloseIdleConnections)
	c := &http.Client{Transport: tokenTransport{token, tr}}
	return &rig{
		t:       t,
		socket:  socket,
		process: hutchv1connect.NewProcessClient(c, "http://agent"),
		files:   hutchv1connect.NewFilesClient(c, "http://agent"),
		tunnel:  hutchv1connect.NewTunnelClient(c, "http://agent"),
		system:  hutchv1connect.NewSystemClient(c, "http://agent"),
	}
}

func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	dir := t.TempDir()
	if cfg.Dir == "" {
		cfg.Dir = dir
	}
	cfg.Token = testToken
	cfg.Logf = t.Logf
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	// Not in TempDir: a test's name makes the path too long for a socket.
	sockDir, err := os.MkdirTemp("", "hutch")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(sockDir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- a.Serve(context.Background(), l) }()
	t.Cleanup(func() {
		a.Close()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		os.RemoveAll(sockDir)
	})
	r := dialAgent(t, socket, testToken)
	r.agent, r.dir = a, dir
	return r
}

// testContext ends long before the test binary's own limit, so that a hang
// shows as a failure of the test that hangs.
// hang is how long a test waits for what must happen. It only ends a test that
// hangs: under the race detector, on a machine that is busy, everything takes a
// hundred times as long.
const hang = 5 * time.Minute

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

func argv(args ...string) [][]byte {
	var out [][]byte
	for _, a := range args {
		out = append(out, []byte(a))
	}
	return out
}

// outcome is all that a stream told.
type outcome struct {
	id      string
	pid     int
	out     []byte
	err     []byte
	skipped uint64
	exit    *hutchv1.Exited
}

// collect reads a stream to its end and checks what must hold of every one.
func collect(s *connect.ServerStreamForClient[hutchv1.ProcessEvent]) (outcome, error) {
	defer s.Close()
	var o outcome
	var next uint64
	first := true
	for s.Receive() {
		if o.exit != nil {
			return o, errors.New("an event after the exit")
		}
		switch ev := s.Msg().GetEvent().(type) {
		case *hutchv1.ProcessEvent_Started:
			if !first {
				return o, errors.New("started is not the first event")
			}
			o.id, o.pid = ev.Started.GetId(), int(ev.Started.GetPid())
		case *hutchv1.ProcessEvent_Skipped:
			o.skipped += ev.Skipped.GetBytes()
		case *hutchv1.ProcessEvent_Output:
			if next != 0 && ev.Output.GetOffset() != next {
				return o, fmt.Errorf("offset %d, want %d", ev.Output.GetOffset(), next)
			}
			next = ev.Output.GetOffset() + uint64(len(ev.Output.GetData()))
			if ev.Output.GetStream() == hutchv1.Stream_STREAM_STDERR {
				o.err = append(o.err, ev.Output.GetData()...)
			} else {
				o.out = append(o.out, ev.Output.GetData()...)
			}
		case *hutchv1.ProcessEvent_Exited:
			o.exit = ev.Exited
		}
		if first && o.id == "" {
			return o, errors.New("the first event is not started")
		}
		first = false
	}
	return o, wire.Decode(s.Err())
}

func (r *rig) start(ctx context.Context, req *hutchv1.StartRequest) *connect.ServerStreamForClient[hutchv1.ProcessEvent] {
	r.t.Helper()
	s, err := r.process.Start(ctx, connect.NewRequest(req))
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// run runs a command to its end.
func (r *rig) run(req *hutchv1.StartRequest) outcome {
	r.t.Helper()
	o, err := r.tryRun(req)
	if err != nil {
		r.t.Fatal(err)
	}
	if o.exit == nil {
		r.t.Fatal("the stream ended without an exit")
	}
	return o
}

func (r *rig) tryRun(req *hutchv1.StartRequest) (outcome, error) {
	s, err := r.process.Start(testContext(r.t), connect.NewRequest(req))
	if err != nil {
		return outcome{}, wire.Decode(err)
	}
	return collect(s)
}

func (r *rig) sh(script string) outcome {
	r.t.Helper()
	return r.run(&hutchv1.StartRequest{Args: argv("/bin/sh", "-c", script)})
}

// eventually polls until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(hang)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func wantKind(t *testing.T, err error, kind box.Kind) {
	t.Helper()
	if got := box.KindOf(wire.Decode(err)); got != kind {
		t.Errorf("error %v is of kind %q, want %q", err, got, kind)
	}
}

func TestHello(t *testing.T) {
	r := newRig(t, Config{BootID: "boot-1", Version: "v1.2.3"})
	res, err := r.system.Hello(testContext(t), connect.NewRequest(&hutchv1.HelloRequest{Protocol: boot.Protocol}))
	if err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	m := res.Msg
	if m.GetBootId() != "boot-1" || m.GetVersion() != "v1.2.3" || m.GetHostname() != host || m.GetProtocol() != boot.Protocol || m.GetKernel() == "" {
		t.Errorf("hello: %v", m)
	}
	_, err = r.system.Hello(testContext(t), connect.NewRequest(&hutchv1.HelloRequest{Protocol: 99}))
	wantKind(t, err, box.Unsupported)
}

func TestTokenRequired(t *testing.T) {
	r := newRig(t, Config{})
	for _, token := range []string{"", "wrong", testToken + "x", testToken[:31]} {
		stranger := dialAgent(t, r.socket, token)
		ctx := testContext(t)
		_, err := stranger.system.Hello(ctx, connect.NewRequest(&hutchv1.HelloRequest{}))
		wantKind(t, err, box.Unauthenticated)
		if err == nil || strings.Contains(err.Error(), testToken) {
			t.Errorf("token %q: error %v", token, err)
		}
		_, err = stranger.files.Mkdir(ctx, connect.NewRequest(&hutchv1.MkdirRequest{Path: []byte(r.dir + "/made")}))
		wantKind(t, err, box.Unauthenticated)
		s, err := stranger.process.Start(ctx, connect.NewRequest(&hutchv1.StartRequest{Args: argv("touch", r.dir+"/made")}))
		if err == nil {
			s.Receive()
			err = s.Err()
			s.Close()
		}
		wantKind(t, err, box.Unauthenticated)
	}
	if _, err := os.Stat(r.dir + "/made"); err == nil {
		t.Error("a request without the token had an effect")
	}
}

// Strangers who connect and say nothing must not keep the keeper out.
func TestStrangersAreBounded(t *testing.T) {
	r := newRig(t, Config{})
	var conns []net.Conn
	for range 3 * maxStrangers {
		c, err := net.Dial("unix", r.socket)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		defer c.Close()
	}
	if o := r.sh("echo here"); string(o.out) != "here\n" {
		t.Errorf("output %q", o.out)
	}
	// The oldest have been dropped.
	conns[0].SetReadDeadline(time.Now().Add(hang))
	if _, err := conns[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("the oldest stranger's connection: %v, want it closed", err)
	}
	r.agent.guard.mu.Lock()
	n := len(r.agent.guard.strangers)
	r.agent.guard.mu.Unlock()
	if n > maxStrangers {
		t.Errorf("%d strangers, want at most %d", n, maxStrangers)
	}
}

func TestHTTP1(t *testing.T) {
	r := newRig(t, Config{})
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", r.socket)
	}}
	defer tr.CloseIdleConnections()
	req, _ := http.NewRequest(http.MethodPost, "http://agent/hutch.v1.System/Hello", bytes.NewReader([]byte("{}")))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(boot.TokenHeader, testToken)
	res, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK || res.ProtoMajor != 1 || !bytes.Contains(body, []byte("hostname")) {
		t.Errorf("%s %s: %s", res.Proto, res.Status, body)
	}
}
