//go:build linux

package client_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/client"
)

// Frames of HTTP/2, made by hand: no library would send what is sent here.
const (
	typeData, typeHeaders, typeReset, typeSettings      = 0, 1, 3, 4
	typePush, typePing, typeGoAway, typeWindow          = 5, 6, 7, 8
	typeContinuation                                    = 9
	flagEndStream, flagEndHeaders                  byte = 1, 4
	preface                                             = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
)

func h2(typ, flags byte, stream uint32, payload []byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), typ, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// fields are a block of headers: the status 200, and pairs of name and value.
func fields(pairs ...string) []byte {
	b := []byte{0x88}
	for n := 0; n < len(pairs); n += 2 {
		b = append(b, 0) // a literal that is not to be remembered
		for _, s := range pairs[n : n+2] {
			if len(s) < 127 {
				b = append(b, byte(len(s)))
			} else {
				b = append(b, 127)
				rest := len(s) - 127
				for ; rest >= 128; rest >>= 7 {
					b = append(b, byte(rest)|128)
				}
				b = append(b, byte(rest))
			}
			b = append(b, s...)
		}
	}
	return b
}

func setting(id uint16, v uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(nil, id), v)
}

func envelope(flags byte, size uint32, data string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, size), data...)
}

// peer is a connection to somebody who does what attack does, after the
// client's first words.
func peer(attack func(net.Conn)) (dial func(context.Context) (net.Conn, error), wait func()) {
	var work sync.WaitGroup
	return func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		work.Go(func() {
			defer theirs.Close()
			if _, err := io.ReadFull(theirs, make([]byte, len(preface))); err == nil {
				attack(theirs)
			}
		})
		return ours, nil
	}, work.Wait
}

// flood writes the same again and again, up to a bound that no memory may hold
// and no call wait for.
func flood(c net.Conn, again []byte) {
	const most = 32 << 20
	for n := 0; n < most; n += len(again) {
		if _, err := c.Write(again); err != nil {
			return
		}
	}
	_, _ = io.Copy(io.Discard, c) // then it is silent
}

// reading takes what the client sends, as a peer does that plays by the rules.
func reading(attack func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		var read sync.WaitGroup
		read.Go(func() { _, _ = io.Copy(io.Discard, c) })
		defer read.Wait()
		defer c.Close()
		attack(c)
	}
}

func write(c net.Conn, parts ...[]byte) {
	_, _ = c.Write(bytes.Join(parts, nil))
}

// open is the beginning of an answer to the first call.
func open(contentType string, more ...string) []byte {
	return append(h2(typeSettings, 0, 0, nil),
		h2(typeHeaders, flagEndHeaders, 1, fields(append([]string{"content-type", contentType}, more...)...))...)
}

const unary, streaming = "application/proto", "application/connect+proto"

// TestHostilePeer: whatever the agent does to a call, the call ends, at the
// latest with its context, and little of what was sent is kept.
func TestHostilePeer(t *testing.T) {
	block := make([]byte, 16<<10)
	noise := bytes.Repeat([]byte("\xa5\x00noise"), 2000)
	unknown := envelope(0, 3, "\xfa\x01\x00") // an event that nobody knows
	tests := []struct {
		name    string
		patient bool // the call may only end with its context
		stream  bool
		attack  func(net.Conn)
	}{
		{"silence", true, false, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }},
		{"reads nothing", true, false, func(c net.Conn) { flood(c, wide()) }},
		{"closes at once", false, false, func(net.Conn) {}},
		{"garbage", false, false, reading(func(c net.Conn) { flood(c, noise) })},
		{"another protocol", false, false, reading(func(c net.Conn) { write(c, []byte("HTTP/1.1 200 OK\r\n\r\n")) })},
		{"settings", true, false, reading(func(c net.Conn) { flood(c, h2(typeSettings, 0, 0, setting(3, 100))) })},
		{"settings, and reads nothing", true, false, func(c net.Conn) { flood(c, h2(typeSettings, 0, 0, setting(3, 100))) }},
		{"no streams allowed", true, false, reading(func(c net.Conn) {
			write(c, h2(typeSettings, 0, 0, setting(3, 0)))
			_, _ = io.Copy(io.Discard, c)
		})},
		{"pings", true, false, reading(func(c net.Conn) {
			write(c, h2(typeSettings, 0, 0, nil))
			flood(c, h2(typePing, 0, 0, make([]byte, 8)))
		})},
		{"pings, and reads nothing", true, false, func(c net.Conn) {
			write(c, h2(typeSettings, 0, 0, nil))
			flood(c, h2(typePing, 0, 0, make([]byte, 8)))
		}},
		{"windows", true, false, reading(func(c net.Conn) {
			write(c, h2(typeSettings, 0, 0, nil))
			flood(c, h2(typeWindow, 0, 0, []byte{0, 0, 0, 1}))
		})},
		{"a frame of 16 MiB", false, false, reading(func(c net.Conn) {
			write(c, h2(typeSettings, 0, 0, nil), []byte{0xff, 0xff, 0xff, typeData, 0, 0, 0, 0, 1})
			flood(c, block)
		})},
		{"pushes", false, false, reading(func(c net.Conn) {
			write(c, h2(typeSettings, 0, 0, nil))
			flood(c, h2(typePush, flagEndHeaders, 1, append([]byte{0, 0, 0, 2}, fields()...)))
		})},
		{"resets", false, false, reading(func(c net.Conn) {
			write(c, open(unary))
			flood(c, h2(typeReset, 0, 1, []byte{0, 0, 0, 8}))
		})},
		{"goes away", false, false, reading(func(c net.Conn) {
			write(c, open(unary), h2(typeGoAway, 0, 0, append(make([]byte, 8), noise...)))
		})},
		{"endless headers", false, false, reading(func(c net.Conn) {
			write(c, h2(typeSettings, 0, 0, nil), h2(typeHeaders, 0, 1, fields()))
			flood(c, h2(typeContinuation, 0, 1, fields("x", strings.Repeat("x", 16000))[1:]))
		})},
		{"a header of 1 MiB", false, false, reading(func(c net.Conn) {
			block := fields("content-type", unary, "x", strings.Repeat("x", 1<<20))
			write(c, h2(typeSettings, 0, 0, nil), h2(typeHeaders, 0, 1, block[:16000]))
			for block = block[16000:]; len(block) > 16000; block = block[16000:] {
				write(c, h2(typeContinuation, 0, 1, block[:16000]))
			}
			write(c, h2(typeContinuation, flagEndHeaders, 1, block))
			_, _ = io.Copy(io.Discard, c)
		})},
		{"headers again and again", false, false, reading(func(c net.Conn) {
			write(c, open(unary))
			flood(c, h2(typeHeaders, flagEndHeaders, 1, fields()))
		})},
		{"data for others", true, false, reading(func(c net.Conn) {
			write(c, open(unary))
			flood(c, h2(typeData, 0, 99, block))
		})},
		{"more data than asked for", false, false, reading(func(c net.Conn) { // the reader is 4 MiB behind at most
			write(c, open(unary))
			flood(c, h2(typeData, 0, 1, block))
		})},
		{"more data than asked for, and a stream", true, true, reading(func(c net.Conn) {
			write(c, open(streaming), h2(typeData, 0, 1, envelope(0, 0, "")))
			flood(c, h2(typeData, 0, 1, block))
		})},
		{"empty data", true, false, reading(func(c net.Conn) {
			write(c, open(unary))
			flood(c, h2(typeData, 0, 1, nil))
		})},
		{"a message that is longer than it may be", false, true, reading(func(c net.Conn) {
			write(c, open(streaming), h2(typeData, flagEndStream, 1, envelope(0, 1<<32-1, "x")))
		})},
		{"half a message", false, true, reading(func(c net.Conn) {
			write(c, open(streaming), h2(typeData, flagEndStream, 1, envelope(0, 10<<20, "x")))
		})},
		{"half a message, and silence", true, true, reading(func(c net.Conn) {
			write(c, open(streaming), h2(typeData, 0, 1, envelope(0, 16<<20, "x")))
			_, _ = io.Copy(io.Discard, c)
		})},
		{"half a message, and cut", false, true, reading(func(c net.Conn) {
			write(c, open(streaming), h2(typeData, 0, 1, envelope(0, 10<<20, "x")))
		})},
		{"unknown events", true, true, reading(func(c net.Conn) {
			write(c, open(streaming))
			flood(c, h2(typeData, 0, 1, bytes.Repeat(unknown, 50)))
		})},
		{"a compressed stream", false, true, reading(func(c net.Conn) {
			write(c, open(streaming, "connect-content-encoding", "gzip"), h2(typeData, 0, 1, envelope(1, 1000, string(block[:1000]))))
			_, _ = io.Copy(io.Discard, c)
		})},
		{"a compressed message", false, true, reading(func(c net.Conn) {
			write(c, open(streaming), h2(typeData, 0, 1, envelope(1, 1000, string(block[:1000]))))
			_, _ = io.Copy(io.Discard, c)
		})},
		{"a compressed answer", false, false, reading(func(c net.Conn) {
			write(c, open(unary, "content-encoding", "gzip"), h2(typeData, flagEndStream, 1, block))
			_, _ = io.Copy(io.Discard, c)
		})},
		{"wrong flags", false, true, reading(func(c net.Conn) {
			write(c, open(streaming), h2(typeData, flagEndStream, 1, envelope(0xfe, 10, "0123456789")))
		})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dial, wait := peer(tt.attack)
			tr := client.Transport(dial)
			var mu sync.Mutex
			var conns []net.Conn
			tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				c, err := dial(ctx)
				mu.Lock()
				conns = append(conns, c)
				mu.Unlock()
				return c, err
			}
			c := client.New(tr, "http://agent", client.Options{})
			patience := 30 * time.Second
			if tt.patient {
				patience = 300 * time.Millisecond
			}
			before := heap()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			err := call(ctx, c, tt.stream)
			if err == nil {
				t.Error("the call succeeded")
			} else if len(err.Error()) > 64<<10 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			if _, ok := errors.AsType[*box.Error](err); !ok && err != nil {
				t.Errorf("the error is a %T: %v", err, err)
			}
			if late := ctx.Err() != nil; late && !tt.patient {
				t.Errorf("the call ended with its context only: %v", err)
			}
			if grown := heap() - before; grown > 24<<20 {
				t.Errorf("%d MiB are kept", grown>>20)
			}
			cancel()
			_ = c.Close()
			tr.CloseIdleConnections()
			for _, c := range conns {
				_ = c.Close()
			}
			wait()
		})
	}
}

// TestEndlessAnswer: an answer that is one message and has no end is not read to
// its end, and one that is compressed is not unpacked, however small it is.
func TestEndlessAnswer(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 24 { // MiB, more than a message may have
		_, _ = z.Write(make([]byte, 1<<20))
	}
	_ = z.Close()
	wrote := make(chan int, 1)
	c, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", unary)
		if strings.HasSuffix(r.URL.Path, "/Top") {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
			return
		}
		n, block := 0, make([]byte, 64<<10)
		for {
			m, err := w.Write(block)
			n += m
			if err != nil {
				wrote <- n
				return
			}
		}
	}))
	before := heap()
	if _, err := c.SystemStats(t.Context()); err == nil {
		t.Error("an endless answer was taken")
	}
	if n := <-wrote; n > 64<<20 {
		t.Errorf("the client took %d MiB", n>>20)
	}
	if _, err := c.Top(t.Context()); err == nil {
		t.Error("a compressed answer was taken")
	}
	if grown := heap() - before; grown > 24<<20 {
		t.Errorf("%d MiB are kept", grown>>20)
	}
}

// wide lets the client write as much as it likes.
func wide() []byte { return h2(typeSettings, 0, 0, setting(4, 1<<31-1)) }

// call makes one call and takes all of its answer.
func call(ctx context.Context, c *client.Client, stream bool) error {
	if !stream {
		_, err := c.SystemStats(ctx)
		return err
	}
	s, err := c.StartProcess(ctx, box.ProcessSpec{Args: []string{"x"}})
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
}

// heap is what is in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// answers gives every call the same answer.
type answers struct {
	status int
	header http.Header
	body   []byte
	work   *sync.WaitGroup
}

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		a.work.Go(func() { _, _ = io.Copy(io.Discard, r.Body); r.Body.Close() })
	}
	return &http.Response{
		StatusCode: a.status, ProtoMajor: 2, Header: a.header.Clone(), Trailer: http.Header{},
		Body: io.NopCloser(bytes.NewReader(a.body)), Request: r,
	}, nil
}

// FuzzAnswers: whatever an agent answers, every call ends without its context;
// an error is one of package box or of a file, with bounded texts; and what is
// taken for data is not more than was sent.
func FuzzAnswers(f *testing.F) {
	for _, ct := range []string{unary, streaming, "application/json", ""} {
		for _, body := range []string{
			"", "\x00", "\x00\x00\x00\x00\x00", "\x02\x00\x00\x00\x02{}", "\x00\x00\x00\x00\x02\x08\x01\x02\x00\x00\x00\x02{}",
			"\x00\x00\x00\x00\x07\x12\x05\x12\x03abc\x02\x00\x00\x00\x02{}",
			"\x02\x00\x00\x00\x1b{\"error\":{\"code\":\"unknown\"}}", `{"code":"not_found","message":"x"}`,
			`{"code":"internal","details":[{"type":"hutch.v1.Error","value":"CghpbnRlcm5hbBoBeA"}]}`,
			"\xff\xff\xff\xff\xff", "\x01\x00\x00\x00\x01x", "\x08\x96\x01\x12\x04host",
			"\x00\x00\x00\x00\x03\x1a\x01\x00\x00\x00\x00\x00\x03\x1a\x01\x00",
		} {
			f.Add(uint16(200), ct, "", []byte(body))
			f.Add(uint16(503), ct, "gzip", []byte(body))
		}
	}
	f.Add(uint16(500), "application/json", "", []byte(`{"code":"internal","message":"`+strings.Repeat("x", 100<<10)+`"}`))
	f.Fuzz(func(t *testing.T, status uint16, contentType, encoding string, body []byte) {
		var work sync.WaitGroup
		defer work.Wait()
		h := http.Header{"Content-Type": {contentType}}
		if encoding != "" {
			h["Content-Encoding"], h["Connect-Content-Encoding"] = []string{encoding}, []string{encoding}
		}
		c := client.New(answers{200 + int(status)%400, h, body, &work}, "http://agent", client.Options{})
		defer c.Close()
		ctx := t.Context()
		check := func(what string, err error) {
			if err == nil {
				return
			}
			if k := box.KindOf(err); k == "" || k == box.Timeout && ctx.Err() != nil {
				t.Errorf("%s: kind %q of %v", what, k, err)
			}
			if len(err.Error()) > 64<<10 {
				t.Errorf("%s: an error of %d bytes", what, len(err.Error()))
			}
		}
		_, err := c.Hello(ctx)
		check("hello", err)
		_, err = c.SystemStats(ctx)
		check("stats", err)
		check("shutdown", c.Shutdown(ctx, time.Second))
		_, err = c.Reclaim(ctx)
		check("reclaim", err)
		_, err = c.Processes(ctx)
		check("processes", err)
		_, err = c.Stat(ctx, "/x", true)
		check("stat", err)
		_, err = c.ReadDir(ctx, "/x")
		check("readdir", err)
		for _, follow := range []func() (box.ProcessStream, error){
			func() (box.ProcessStream, error) { return c.StartProcess(ctx, box.ProcessSpec{Args: []string{"x"}}) },
			func() (box.ProcessStream, error) {
				return c.AttachProcess(ctx, "main", box.AttachOptions{NoFollow: true})
			},
		} {
			s, err := follow()
			total := 0
			for err == nil {
				var ev box.ProcessEvent
				ev, err = s.Recv()
				total += len(ev.Data)
				if ev.Exit != nil && len(ev.Exit.Message) > 16<<10 {
					t.Errorf("an exit message of %d bytes", len(ev.Exit.Message))
				}
			}
			if err != io.EOF {
				check("follow", err)
			}
			if total > len(body) {
				t.Errorf("%d bytes of output from %d", total, len(body))
			}
			if s != nil {
				_ = s.Close()
			}
		}
		_, r, err := c.ReadFile(ctx, "/x", 0, -1)
		check("read", err)
		if err == nil {
			n, err := io.Copy(io.Discard, r)
			check("read", err)
			if n > int64(len(body)) {
				t.Errorf("a file of %d bytes from %d", n, len(body))
			}
			_ = r.Close()
		}
		if conn, err := c.Dial(ctx, "tcp", "localhost:1"); err == nil {
			n, err := io.Copy(io.Discard, conn)
			check("connection", err)
			if n > int64(len(body)) {
				t.Errorf("%d bytes through a connection from %d", n, len(body))
			}
			_ = conn.Close()
		} else {
			check("dial", err)
		}
	})
}
