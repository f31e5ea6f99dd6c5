package qmp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/internal/engine/vm/qmp"
)

// peer plays QEMU: it answers each line with what reply gives.
func peer(t *testing.T, greeting string, reply func(line string) string) *qmp.Client {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := io.WriteString(theirs, greeting); err != nil {
			return
		}
		s := bufio.NewScanner(theirs)
		for s.Scan() {
			if _, err := io.WriteString(theirs, reply(s.Text())); err != nil {
				return
			}
		}
	}()
	c := qmp.New(ours)
	t.Cleanup(func() {
		_ = c.Close()
		_ = theirs.Close()
		<-done
	})
	return c
}

const hello = `{"QMP":{"version":{},"capabilities":[]}}` + "\n"

func TestDo(t *testing.T) {
	c := peer(t, hello, func(line string) string {
		switch {
		case strings.Contains(line, "query-status"):
			return `{"event":"STOP","data":{"a":1},"timestamp":{}}` + "\n" + `{"return":{"status":"paused"}}` + "\n"
		case strings.Contains(line, "bad"):
			return `{"error":{"class":"GenericError","desc":"no such thing"}}` + "\n"
		}
		return `{"return":{}}` + "\n"
	})
	if err := c.Do(t.Context(), "qmp_capabilities", nil, nil); err != nil {
		t.Fatal(err)
	}
	var status struct{ Status string }
	if err := c.Do(t.Context(), "query-status", nil, &status); err != nil || status.Status != "paused" {
		t.Errorf("status %+v, %v", status, err)
	}
	if ev := <-c.Events(); ev.Name != "STOP" || string(ev.Data) != `{"a":1}` {
		t.Errorf("event %+v", ev)
	}
	var refused *qmp.Error
	if err := c.Do(t.Context(), "bad", map[string]int{"x": 1}, nil); !errors.As(err, &refused) || refused.Desc != "no such thing" || refused.Command != "bad" {
		t.Errorf("a refusal gives %v", err)
	}
	if err := c.Do(t.Context(), "qmp_capabilities", nil, nil); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
}

// TestHostile: a QEMU that does not play by the rules costs the connection and
// nothing else.
func TestHostile(t *testing.T) {
	for _, tt := range []struct{ name, answer string }{
		{"two answers", `{"return":{}}` + "\n" + `{"return":{}}` + "\n"},
		{"no JSON", "hello\n"},
		{"nothing known", `{"what":1}` + "\n"},
		{"an endless line", strings.Repeat("x", 2<<20)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := peer(t, hello, func(string) string { return tt.answer })
			_ = c.Do(t.Context(), "first", nil, nil)
			if err := c.Do(t.Context(), "second", nil, nil); err == nil {
				t.Error("the connection goes on")
			}
		})
	}
}

func TestCanceled(t *testing.T) {
	c := peer(t, hello, func(string) string { return "" })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := c.Do(ctx, "query-status", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without an answer: %v", err)
	}
	if err := c.Do(t.Context(), "query-status", nil, nil); err == nil {
		t.Error("the connection is used on, although an answer is open")
	}
}

func TestEventsAreBounded(t *testing.T) {
	c := peer(t, hello, func(string) string {
		return strings.Repeat(`{"event":"FLOOD"}`+"\n", 1000) + `{"return":{}}` + "\n"
	})
	if err := c.Do(t.Context(), "x", nil, nil); err != nil {
		t.Fatal(err)
	}
	if c.Dropped() < 900 {
		t.Errorf("%d events were dropped", c.Dropped())
	}
}

// TestFloods: whatever QEMU sends without end, little of it is kept, and who
// asked something gets an error.
func TestFloods(t *testing.T) {
	long := strings.Repeat("x", 900<<10)
	for _, tt := range []struct{ name, again string }{
		{"events", `{"event":"FLOOD","data":{"a":1}}` + "\n"},
		{"long events", `{"event":"FLOOD","data":"` + long + `"}` + "\n"},
		{"greetings", hello},
		{"a line without end", long},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			sent := make(chan int)
			go func() {
				n := 0
				for n < 8<<20 {
					m, err := io.WriteString(theirs, tt.again)
					n += m
					if err != nil {
						break
					}
				}
				_ = theirs.Close()
				sent <- n
			}()
			c := qmp.New(ours)
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			before := heap()
			err := c.Do(t.Context(), "query-status", nil, nil)
			if err == nil {
				t.Error("an answer was taken from a flood")
			}
			if n := <-sent; n < 1<<20 {
				t.Errorf("it ended after %d bytes: %v", n, err)
			}
			if grown := heap() - before; grown > 4<<20 {
				t.Errorf("%d KiB of the flood are kept", grown>>10)
			}
			_ = c.Close()
			n := 0
			for range c.Events() {
				n++
			}
			if n > 64 {
				t.Errorf("%d events waited", n)
			}
		})
	}
}

// heap is what is in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// conn is a connection whose other side says all it will when it is asked.
type conn struct {
	io.Reader
	asked chan struct{}
	once  sync.Once
}

func (c *conn) Read(b []byte) (int, error) {
	<-c.asked
	return c.Reader.Read(b)
}

func (c *conn) Write(b []byte) (int, error) {
	c.once.Do(func() { close(c.asked) })
	return len(b), nil
}

func (c *conn) Close() error { return nil }

// FuzzClient: whatever QEMU says, a question ends, by QEMU's first answer if
// all before it was in order, else with an error; errors are short, and few
// events wait.
func FuzzClient(f *testing.F) {
	f.Add([]byte(hello + `{"return":{}}` + "\n"))
	f.Add([]byte(`{"event":"A"}` + "\n" + `{"error":{"class":"x"}}`))
	f.Add([]byte(`{"return":{}}` + "\n" + `{"return":{}}` + "\n"))
	f.Add([]byte(`{"return":[1]}`))
	f.Add([]byte(`{"return":null,"error":null,"event":""}`))
	f.Add([]byte(`{"error":{"class":"x","desc":"` + strings.Repeat("ä", 3000) + `"}}`))
	f.Add([]byte(`{"event":"` + strings.Repeat("A", 40<<10) + `"}` + "\n" + `{"return":{"a":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}}`))
	f.Add(bytes.Repeat([]byte(`{"event":"A"}`+"\n"), 100))
	f.Add([]byte("\n\r\n{}\n"))
	f.Add([]byte(`{"event":` + strings.Repeat("1", 20<<10) + `}`))
	f.Add([]byte(`{"return":` + strings.Repeat("1", 20<<10) + `}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := qmp.New(&conn{Reader: bytes.NewReader(data), asked: make(chan struct{})})
		var out map[string]any
		err := c.Do(t.Context(), "query-status", nil, &out)
		_ = c.Close()
		events := 0
		for ev := range c.Events() {
			if events++; ev.Name == "" || len(ev.Name)+len(ev.Data) > 16<<10 {
				t.Errorf("event %.40q with %d bytes", ev.Name, len(ev.Data))
			}
		}
		if events > 64 {
			t.Errorf("%d events waited", events)
		}
		if err != nil && len(err.Error()) > 8<<10 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
		var refused *qmp.Error
		var want map[string]any
		switch got, how := firstAnswer(data); how {
		case "return":
			if werr := json.Unmarshal(got, &want); (werr == nil) != (err == nil) || !reflect.DeepEqual(out, want) {
				t.Errorf("the answer %.100q gives %v, %v; want %v, %v", got, out, err, want, werr)
			}
		case "error":
			if !errors.As(err, &refused) {
				t.Errorf("a refusal gives %v", err)
			}
		default:
			if err == nil || errors.As(err, &refused) {
				t.Errorf("without an answer: %v", err)
			}
		}
	})
}

// firstAnswer is the first answer among lines that are all in order until then.
func firstAnswer(data []byte) (got json.RawMessage, how string) {
	for line := range bytes.Lines(data) {
		var m map[string]json.RawMessage
		if json.Unmarshal(line, &m) != nil {
			return nil, ""
		}
		var typed struct {
			QMP, Return, Data json.RawMessage
			Error             *struct{ Class, Desc string }
			Event             string
		}
		if json.Unmarshal(line, &typed) != nil {
			return nil, ""
		}
		switch {
		case typed.Event != "":
		case typed.Return != nil:
			return typed.Return, "return"
		case typed.Error != nil:
			return nil, "error"
		case typed.QMP == nil:
			return nil, ""
		}
	}
	return nil, ""
}
