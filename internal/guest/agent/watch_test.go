//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

// watching reads events into a channel, after the watch is in place.
func (r *rig) watching(path string, recursive bool) <-chan string {
	r.t.Helper()
	s, err := r.files.Watch(testContext(r.t), connect.NewRequest(&hutchv1.WatchRequest{Path: []byte(path), Recursive: recursive}))
	if err != nil {
		r.t.Fatal(err)
	}
	if !s.Receive() || len(s.Msg().GetPath()) != 0 {
		r.t.Fatalf("first event %v, %v", s.Msg(), s.Err())
	}
	ch := make(chan string, 100000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s.Receive() {
			ch <- s.Msg().GetOp() + " " + strings.TrimPrefix(string(s.Msg().GetPath()), path)
		}
	}()
	r.t.Cleanup(func() { s.Close(); <-done })
	return ch
}

func expect(t *testing.T, events <-chan string, want ...string) {
	t.Helper()
	timeout := time.After(hang)
	var seen []string
	for _, w := range want {
		for found := false; !found; {
			select {
			case e := <-events:
				seen = append(seen, e)
				found = e == w
			case <-timeout:
				t.Fatalf("no %q among %q", w, seen)
			}
		}
	}
}

func TestWatch(t *testing.T) {
	r := newRig(t, Config{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	root := r.dir + "/w"
	must(os.MkdirAll(root+"/old/sub", 0o755))
	must(os.WriteFile(root+"/old/sub/f", nil, 0o644))
	flat, deep := r.watching(root, false), r.watching(root, true)
	one := r.watching(root+"/old/sub/f", false)
	must(os.WriteFile(root+"/a", []byte("x"), 0o644))
	expect(t, flat, "create /a", "write /a")
	expect(t, deep, "create /a", "write /a")
	must(os.Chmod(root+"/a", 0o600))
	expect(t, deep, "chmod /a")
	must(os.Rename(root+"/a", root+"/b"))
	expect(t, deep, "rename /a", "create /b")
	must(os.Remove(root + "/b"))
	expect(t, flat, "remove /b")
	expect(t, deep, "remove /b")
	must(os.WriteFile(root+"/old/sub/f", []byte("y"), 0o644))
	expect(t, deep, "write /old/sub/f")
	expect(t, one, "write ")
	// A directory that moves is followed under its new name, also what is in it.
	must(os.Rename(root+"/old", root+"/new"))
	expect(t, deep, "rename /old", "create /new")
	must(os.WriteFile(root+"/new/sub/g", nil, 0o644))
	expect(t, deep, "create /new/sub/g")
	// One that leaves is not.
	must(os.Rename(root+"/new", r.dir+"/gone"))
	expect(t, deep, "rename /new")
	must(os.WriteFile(r.dir+"/gone/sub/h", nil, 0o644))
	// One that comes is, with all that is in it.
	must(os.Rename(r.dir+"/gone", root+"/back"))
	expect(t, deep, "create /back", "create /back/sub", "create /back/sub/f")
	must(os.WriteFile(root+"/back/sub/i", nil, 0o644))
	expect(t, deep, "create /back/sub/i")
}

// Everything made right after its directory is told exactly once.
func TestWatchLosesNoCreate(t *testing.T) {
	r := newRig(t, Config{})
	root := r.dir + "/w"
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	events := r.watching(root, true)
	want := make(map[string]int)
	for i := range 100 {
		d := fmt.Sprintf("/d%d/e/f", i)
		if err := os.MkdirAll(root+d, 0o755); err != nil {
			t.Fatal(err)
		}
		want[fmt.Sprintf("create /d%d", i)] = 0
		want[fmt.Sprintf("create /d%d/e", i)] = 0
		want["create "+d] = 0
		for j := range 3 {
			f := fmt.Sprintf("%s/%d", d, j)
			if err := os.WriteFile(root+f, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			want["create "+f] = 0
		}
	}
	timeout := time.After(hang)
	for left := len(want); left > 0; {
		select {
		case e := <-events:
			if n, ok := want[e]; ok {
				want[e]++
				if n == 0 {
					left--
				}
			}
		case <-timeout:
			t.Fatalf("%d creations were not told", left)
		}
	}
	for e, n := range want {
		if n != 1 {
			t.Errorf("%s was told %d times", e, n)
		}
	}
}

func TestWatchMissing(t *testing.T) {
	r := newRig(t, Config{})
	s, err := r.files.Watch(testContext(t), connect.NewRequest(&hutchv1.WatchRequest{Path: []byte(r.dir + "/missing")}))
	if err == nil {
		s.Receive()
		err = s.Err()
		s.Close()
	}
	wantErrno(t, err, "watch", r.dir+"/missing", syscall.ENOENT)
}

func TestTunnel(t *testing.T) {
	r := newRig(t, Config{})
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			r.t = t
			address := "127.0.0.1:0"
			if network == "unix" {
				address = r.socket + ".test"
			}
			l, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			address = l.Addr().String()
			if network == "tcp" {
				_, port, _ := net.SplitHostPort(address)
				address = "localhost:" + port
			}
			type result struct {
				in  []byte
				err error
			}
			served := make(chan result, 1)
			serve := func(first, last string) {
				c, err := l.Accept()
				if err != nil {
					served <- result{err: err}
					return
				}
				defer c.Close()
				io.WriteString(c, first)
				if first == "bye" { // the server's side ends first
					c.(interface{ CloseWrite() error }).CloseWrite()
				}
				in, err := io.ReadAll(c)
				if first != "bye" {
					fmt.Fprintf(c, last, len(in))
				}
				served <- result{in, err}
			}
			big := strings.Repeat("0123456789abcdef", 1<<16)

			// The caller ends its side and still gets the answer.
			go serve("hello ", "got %d")
			s := r.tunnel.Dial(testContext(t))
			if err := s.Send(&hutchv1.DialRequest{Network: network, Address: []byte(address), Data: []byte("first")}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Receive(); err != nil {
				t.Fatal(wire.Decode(err))
			}
			if err := s.Send(&hutchv1.DialRequest{Data: []byte(big)}); err != nil {
				t.Fatal(err)
			}
			s.CloseRequest()
			got, eof, err := tunnelAll(s)
			if err != nil || !eof || got != fmt.Sprintf("hello got %d", len(big)+5) {
				t.Errorf("%q, eof %t, %v", got, eof, err)
			}
			if res := <-served; res.err != nil || string(res.in) != "first"+big {
				t.Errorf("the server got %d bytes, %v", len(res.in), res.err)
			}
			s.CloseResponse()

			// The server ends its side and still takes what comes.
			go serve("bye", "")
			s = r.tunnel.Dial(testContext(t))
			_ = s.Send(&hutchv1.DialRequest{Network: network, Address: []byte(address)})
			var sawEOF bool
			for !sawEOF {
				m, err := s.Receive()
				if err != nil {
					t.Fatal(err)
				}
				sawEOF = m.GetEof()
			}
			_ = s.Send(&hutchv1.DialRequest{Data: []byte("after")})
			s.CloseRequest()
			if res := <-served; res.err != nil || string(res.in) != "after" {
				t.Errorf("the server got %q, %v", res.in, res.err)
			}
			if _, _, err := tunnelAll(s); err != nil {
				t.Error(err)
			}
			s.CloseResponse()
		})
	}
	r.t = t
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := l.Addr().String()
	l.Close()
	for _, tt := range []struct {
		network, address string
		kind             box.Kind
		errno            syscall.Errno
	}{
		{"tcp", free, box.Unavailable, syscall.ECONNREFUSED},
		{"unix", r.dir + "/nosocket", box.NotFound, syscall.ENOENT},
		{"tcp", "noport", box.Invalid, 0},
		{"udp", free, box.Invalid, 0},
		{"unix", "", box.Invalid, 0},
	} {
		s := r.tunnel.Dial(testContext(t))
		_ = s.Send(&hutchv1.DialRequest{Network: tt.network, Address: []byte(tt.address)})
		_, err := s.Receive()
		s.CloseRequest()
		s.CloseResponse()
		err = wire.Decode(err)
		wantKind(t, err, tt.kind)
		if tt.errno != 0 && !errors.Is(err, tt.errno) {
			t.Errorf("%v is not %v", err, tt.errno)
		}
	}
}

// Cancelling a tunnel closes the connection in the box.
func TestTunnelCancel(t *testing.T) {
	r := newRig(t, Config{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(testContext(t))
	s := r.tunnel.Dial(ctx)
	_ = s.Send(&hutchv1.DialRequest{Network: "tcp", Address: []byte(l.Addr().String())})
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := s.Receive(); err != nil {
		t.Fatal(err)
	}
	cancel()
	s.CloseResponse() // the client's transport tells the other side only now
	c.SetReadDeadline(time.Now().Add(hang))
	if n, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("read %d, %v: want the connection closed", n, err)
	}
	s.CloseRequest()
}

func tunnelAll(s *connect.BidiStreamForClient[hutchv1.DialRequest, hutchv1.DialResponse]) (data string, eof bool, err error) {
	for {
		m, err := s.Receive()
		if errors.Is(err, io.EOF) {
			return data, eof, nil
		}
		if err != nil {
			return data, eof, wire.Decode(err)
		}
		data += string(m.GetData())
		eof = eof || m.GetEof()
	}
}

// Uploads to servers that do not read hold up nobody else, though all share
// one connection.
func TestStalledUploads(t *testing.T) {
	r := newRig(t, Config{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(testContext(t))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range 8 {
		s := r.tunnel.Dial(ctx)
		if err := s.Send(&hutchv1.DialRequest{Network: "tcp", Address: []byte(l.Addr().String())}); err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := s.Receive(); err != nil {
			t.Fatal(err)
		}
		sent := make(chan struct{}, 1000)
		wg.Go(func() {
			for s.Send(&hutchv1.DialRequest{Data: make([]byte, 1<<20)}) == nil {
				sent <- struct{}{}
			}
		})
		for range 5 {
			<-sent
		}
		context.AfterFunc(ctx, func() { s.CloseResponse() })
	}
	o := collectAsync(r.start(ctx, &hutchv1.StartRequest{Id: "cat", Args: argv("cat"), Stdin: true}))
	eventually(t, "cat is known", func() bool { _, err := r.agent.execs.get("cat"); return err == nil })
	if _, err := r.process.WriteInput(ctx, connect.NewRequest(&hutchv1.WriteInputRequest{Id: "cat", Data: []byte("through"), Eof: true})); err != nil {
		t.Fatal(err)
	}
	if o := <-o; string(o.out) != "through" {
		t.Errorf("output %q %s", o.out, o.err)
	}
}
