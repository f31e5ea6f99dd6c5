package box_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxfake"
)

// newBox returns a box in memory.
func newBox(t *testing.T) (*boxfake.Driver, *box.Box) {
	t.Helper()
	d := boxfake.New(boxfake.Config{})
	rt := box.New(d)
	b, err := rt.Create(t.Context(), box.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(b.Remove(context.Background()), rt.Close()); err != nil {
			t.Error(err)
		}
		d.Quiesce()
	})
	return d, b
}

type blockedWriter struct{ release chan struct{} }

func (w blockedWriter) Write(p []byte) (int, error) {
	<-w.release
	return len(p), nil
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// A writer that blocks holds up Wait for as long as WaitDelay says.
func TestCmdWaitDelay(t *testing.T) {
	_, b := newBox(t)
	w := blockedWriter{make(chan struct{})}
	c := b.Command(t.Context(), "echo", "x")
	c.Stdout, c.WaitDelay = w, 20*time.Millisecond
	if err := c.Run(); !errors.Is(err, box.ErrWaitDelay) {
		t.Errorf("Run: %v", err)
	}
	close(w.release)
}

// The first failure of a writer is Wait's error, when the command ended well;
// one that writes on gets SIGPIPE.
func TestCmdWriterFails(t *testing.T) {
	_, b := newBox(t)
	bad := errors.New("no more")
	c := b.Command(t.Context(), "echo", "x")
	c.Stdout = failingWriter{bad}
	if err := c.Run(); !errors.Is(err, bad) {
		t.Errorf("echo: %v", err)
	}
	c = b.Command(t.Context(), "yes")
	c.Stdout = failingWriter{bad}
	var exit *box.ExitError
	if err := c.Run(); !errors.As(err, &exit) || exit.Signal != syscall.SIGPIPE {
		t.Errorf("yes: %v", err)
	}
}

// The two outputs are independent: a blocked one does not hold up the other.
func TestCmdIndependentOutputs(t *testing.T) {
	_, b := newBox(t)
	w := blockedWriter{make(chan struct{})}
	c := b.Shell(t.Context(), "head -c 20000000 /dev/zero; echo done >&2")
	c.Stdout = w
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(stderr)
	if string(got) != "done\n" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	close(w.release)
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}

// Memory that is used up is an exit that also is ErrExhausted.
func TestCmdOutOfMemory(t *testing.T) {
	_, b := newBox(t)
	err := b.Command(t.Context(), "fake-oom").Run()
	var exit *box.ExitError
	if !errors.As(err, &exit) || !exit.OutOfMemory || !errors.Is(err, box.ErrExhausted) || exit.Code != 137 {
		t.Errorf("error is %#v", err)
	}
}

// A box that goes away is Unavailable for Wait and for those who read pipes.
func TestCmdBoxGone(t *testing.T) {
	d, b := newBox(t)
	c := b.Shell(t.Context(), "echo first; sleep 100")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	d.Crash(b.ID())
	if _, err := out.Read(make([]byte, 1)); !errors.Is(err, box.ErrUnavailable) {
		t.Errorf("Read: %v, want Unavailable and no clean end", err)
	}
	if err := c.Wait(); !errors.Is(err, box.ErrUnavailable) {
		t.Errorf("Wait: %v", err)
	}
}

// lateDriver answers WriteInput only when it is told to.
type lateDriver struct {
	box.Driver
	taken  chan struct{} // one for each input that the command has
	answer chan struct{}
}

func (d lateDriver) Machine(id string) box.Machine { return lateMachine{d.Driver.Machine(id), d} }

type lateMachine struct {
	box.Machine
	d lateDriver
}

func (m lateMachine) WriteInput(ctx context.Context, id string, offset int64, data []byte, eof bool) error {
	if err := m.Machine.WriteInput(ctx, id, offset, data, eof); err != nil {
		return err
	}
	m.d.taken <- struct{}{}
	select {
	case <-m.d.answer:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Input that made the command end was written, though the command's end is
// known before the answer to the write.
func TestCmdInputThatEndsIt(t *testing.T) {
	fake, b := newBox(t)
	d := lateDriver{fake, make(chan struct{}, 1), make(chan struct{})}
	b, err := box.New(d).Get(t.Context(), b.ID())
	if err != nil {
		t.Fatal(err)
	}
	c := b.Shell(t.Context(), "read line; echo $line")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c.Stdout = &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := io.WriteString(in, "end\n")
		wrote <- err
	}()
	<-d.taken
	if err := c.Wait(); err != nil || out.String() != "end\n" {
		t.Errorf("output %q, %v", out.String(), err)
	}
	close(d.answer)
	if err := <-wrote; err != nil {
		t.Errorf("Write: %v", err)
	}
	if _, err := io.WriteString(in, "more\n"); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("Write after the end: %v, want EPIPE", err)
	}
}

// An exit status that came before the context's end stays what it was.
func TestCmdCanceledAfterEnd(t *testing.T) {
	_, b := newBox(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := b.Shell(ctx, "exit 7")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(out); err != nil { // its end comes after the status
		t.Fatal(err)
	}
	cancel()
	var exit *box.ExitError
	if err := c.Wait(); !errors.As(err, &exit) || exit.Code != 7 {
		t.Errorf("Wait: %v", err)
	}
}

// StdinPipe takes a little before Start, and all of it arrives.
func TestCmdStdinPipeEarly(t *testing.T) {
	_, b := newBox(t)
	for _, closeEarly := range []bool{false, true} {
		c := b.Command(t.Context(), "cat")
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		c.Stdout = &out
		if _, err := io.WriteString(in, "early "); err != nil {
			t.Fatal(err)
		}
		want := "early "
		if closeEarly {
			in.Close()
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if !closeEarly {
			if _, err := io.WriteString(in, "late"); err != nil {
				t.Fatal(err)
			}
			want += "late"
		}
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		if err := c.Wait(); err != nil || out.String() != want {
			t.Errorf("got %q, %v", out.String(), err)
		}
		if _, err := in.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Write after Close: %v", err)
		}
	}
}

// A reader that fails is Wait's error, and the command sees the end of input.
func TestCmdStdinFails(t *testing.T) {
	_, b := newBox(t)
	bad := errors.New("source failed")
	c := b.Command(t.Context(), "cat")
	c.Stdin = io.MultiReader(strings.NewReader("some"), readerFunc(func([]byte) (int, error) { return 0, bad }))
	out, err := c.Output()
	if !errors.Is(err, bad) || string(out) != "some" {
		t.Errorf("got %q, %v", out, err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Start that fails lets go of everything that waits for it.
func TestCmdStartFails(t *testing.T) {
	down := &box.Error{Kind: box.Unavailable, Op: "exec", Err: errors.New("down")}
	d := boxfake.New(boxfake.Config{Fail: func(op, _ string) error {
		if op == "startprocess" {
			return down
		}
		return nil
	}})
	rt := box.New(d)
	defer rt.Close()
	b, err := rt.Create(t.Context(), box.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	c := b.Command(t.Context(), "cat")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := in.Write(make([]byte, 1<<20))
		wrote <- err
	}()
	if err := c.Start(); !errors.Is(err, down) {
		t.Errorf("Start: %v", err)
	}
	if err := <-wrote; !errors.Is(err, down) {
		t.Errorf("Write: %v", err)
	}
	if _, err := out.Read(make([]byte, 1)); !errors.Is(err, down) {
		t.Errorf("Read: %v", err)
	}
	if err := c.Wait(); !errors.Is(err, box.ErrInvalid) {
		t.Errorf("Wait: %v", err)
	}
}

// Every way of using a Cmd wrongly is refused, before anything runs.
func TestCmdInvalid(t *testing.T) {
	_, b := newBox(t)
	for name, change := range map[string]func(c *box.Cmd){
		"env":     func(c *box.Cmd) { c.Env = []string{"X"} },
		"user":    func(c *box.Cmd) { c.User = "a:b:c" },
		"dir":     func(c *box.Cmd) { c.Dir = "\x00" },
		"timeout": func(c *box.Cmd) { c.Timeout = -1 },
		"rows":    func(c *box.Cmd) { c.Rows = 1 << 16 },
		"args":    func(c *box.Cmd) { c.Args = nil },
	} {
		c := b.Command(t.Context(), "touch", "/ran")
		change(c)
		if err := c.Run(); !errors.Is(err, box.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.Stat(t.Context(), "/ran"); err == nil {
		t.Error("a command ran")
	}
}

// DialContext fits into an http.Transport, and Forward leads there.
func TestDialHTTP(t *testing.T) {
	d, b := newBox(t)
	l := d.Listen(b.ID(), "tcp", "localhost:8080")
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "hello "+r.URL.Path)
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	tr := &http.Transport{DialContext: b.DialContext}
	defer func() {
		tr.CloseIdleConnections()
		srv.Close()
		<-served
	}()
	get := func(c *http.Client, url string) string {
		t.Helper()
		resp, err := c.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	if got := get(&http.Client{Transport: tr}, "http://localhost:8080/direct"); got != "hello /direct" {
		t.Errorf("got %q", got)
	}

	outer, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Skipf("no loopback: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	forwarded := make(chan error, 1)
	go func() { forwarded <- b.Forward(ctx, outer, "tcp", "localhost:8080") }()
	plain := &http.Transport{}
	if got := get(&http.Client{Transport: plain}, "http://"+outer.Addr().String()+"/through"); got != "hello /through" {
		t.Errorf("got %q", got)
	}
	cancel()
	if err := <-forwarded; err != nil {
		t.Errorf("Forward: %v", err)
	}
	plain.CloseIdleConnections()
}

// GetOrCreate is not misled by a box whose id begins with the name.
func TestGetOrCreateOtherID(t *testing.T) {
	d, b := newBox(t)
	got, created, err := box.New(d).GetOrCreate(t.Context(), box.Spec{Name: b.ID()[:6]})
	if err != nil || !created || got.ID() == b.ID() {
		t.Errorf("created %v, %v", created, err)
	}
}
