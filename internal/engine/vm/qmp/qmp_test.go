package qmp_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
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

// conn is a connection whose other side has said all it will.
type conn struct{ io.Reader }

func (conn) Write(b []byte) (int, error) { return len(b), nil }
func (conn) Close() error                { return nil }

func FuzzClient(f *testing.F) {
	f.Add([]byte(hello + `{"return":{}}` + "\n"))
	f.Add([]byte(`{"event":"A"}` + "\n" + `{"error":{"class":"x"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := qmp.New(conn{strings.NewReader(string(data))})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var out map[string]any
		_ = c.Do(ctx, "query-status", nil, &out)
		_ = c.Close()
	})
}
