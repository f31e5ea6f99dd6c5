// Package qmp is a small client of QEMU's machine protocol: JSON lines over a
// socket, questions with an answer each, and events in between.
//
// QEMU is not trusted: it runs what a box makes of it. Lines are bounded, an
// answer that nobody asked for ends the connection, and events that nobody
// takes are counted and dropped.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
)

const (
	// maxLine bounds one message of QEMU's.
	maxLine = 1 << 20
	// maxEvents is how many events may wait to be taken.
	maxEvents = 64
	// maxEvent bounds what such an event says; those that are of use say a few
	// hundred bytes. Longer ones are lost.
	maxEvent = 16 << 10
	// maxText bounds what errors quote of what QEMU said: they end in logs and
	// records.
	maxText = 1 << 10
)

// Event is something that QEMU says by itself.
type Event struct {
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
}

// Error is QEMU's refusal of a command.
type Error struct {
	Command string `json:"-"`
	Class   string `json:"class"`
	Desc    string `json:"desc"`
}

// Error says what QEMU said.
func (e *Error) Error() string { return fmt.Sprintf("qemu: %s: %s", e.Command, e.Desc) }

// ErrClosed says that QEMU, or Close, ended the connection.
var ErrClosed = errors.New("qemu: the control connection is closed")

// Client is a connection to one QEMU. Its methods may be called concurrently;
// commands are sent one after another.
type Client struct {
	conn   io.ReadWriteCloser
	events chan Event
	done   chan struct{} // closed when the reader has ended
	turn   chan struct{} // holds a token; who has it may send

	mu      sync.Mutex
	waiting chan answer // of the open command, nil without one
	err     error       // why the reader ended
	dropped int
}

type answer struct {
	data json.RawMessage
	err  *Error
}

// message is any line that QEMU sends.
type message struct {
	Greeting json.RawMessage `json:"QMP"`
	Return   json.RawMessage `json:"return"`
	Error    *Error          `json:"error"`
	Event    string          `json:"event"`
	Data     json.RawMessage `json:"data"`
}

// New starts a client on a connection that it then owns. Close it.
func New(conn io.ReadWriteCloser) *Client {
	c := &Client{conn: conn, events: make(chan Event, maxEvents), done: make(chan struct{}), turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	go c.read()
	return c
}

// read ends with the connection.
func (c *Client) read() {
	defer close(c.done)
	defer close(c.events)
	s := bufio.NewScanner(c.conn)
	s.Buffer(make([]byte, 0, 4096), maxLine)
	var err error
	for s.Scan() {
		if err = c.line(s.Bytes()); err != nil {
			break
		}
	}
	if err == nil {
		err = s.Err()
	}
	if err == nil {
		err = ErrClosed
	}
	_ = c.conn.Close()
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
}

func (c *Client) line(data []byte) error {
	var m message
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("qemu: control connection: %s", clip(err.Error()))
	}
	switch {
	case m.Event != "":
		if len(m.Event)+len(m.Data) > maxEvent {
			c.drop()
			break
		}
		select {
		case c.events <- Event{Name: m.Event, Data: m.Data}:
		default:
			c.drop()
		}
	case m.Return != nil || m.Error != nil:
		c.mu.Lock()
		waiting := c.waiting
		c.waiting = nil
		c.mu.Unlock()
		if waiting == nil {
			return errors.New("qemu: control connection: an answer without a question")
		}
		waiting <- answer{m.Return, m.Error}
	case m.Greeting != nil:
	default:
		return errors.New("qemu: control connection: neither an answer nor an event")
	}
	return nil
}

func (c *Client) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped++
}

// Events is closed when the connection has ended. When nobody takes them,
// events beyond a few dozen are lost, and very long ones are always.
func (c *Client) Events() <-chan Event { return c.events }

// Dropped is how many events were lost.
func (c *Client) Dropped() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}

// Do sends a command and waits for its answer, which is decoded into out (nil:
// dropped). Args may be nil. When ctx ends before the answer comes, the
// connection is closed: nobody could tell whose answer comes next.
func (c *Client) Do(ctx context.Context, command string, args, out any) error {
	select {
	case <-c.turn:
	case <-ctx.Done():
		return fmt.Errorf("qemu: %s: %w", command, ctx.Err())
	case <-c.done:
		return c.closed()
	}
	defer func() { c.turn <- struct{}{} }()
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{command, args})
	if err != nil {
		return fmt.Errorf("qemu: %s: %w", command, err)
	}
	got := make(chan answer, 1)
	c.mu.Lock()
	c.waiting = got
	c.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = c.conn.Close() })
	defer stop()
	if _, err := c.conn.Write(append(line, '\n')); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("qemu: %s: %w", command, err)
	}
	select {
	case a := <-got:
		return a.decode(command, out)
	case <-c.done:
		// What it answered before it ended the connection counts.
		select {
		case a := <-got:
			return a.decode(command, out)
		default:
		}
		if ctx.Err() != nil {
			return fmt.Errorf("qemu: %s: %w", command, ctx.Err())
		}
		return c.closed()
	}
}

// decode is what Do returns of an answer.
func (a answer) decode(command string, out any) error {
	if a.err != nil {
		return &Error{Command: command, Class: clip(a.err.Class), Desc: clip(a.err.Desc)}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(a.data, out); err != nil {
		return fmt.Errorf("qemu: %s: %s", command, clip(err.Error()))
	}
	return nil
}

func clip(s string) string {
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}

func (c *Client) closed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and waits for the client's goroutine. It may be
// called twice.
func (c *Client) Close() error {
	err := c.conn.Close()
	<-c.done
	return err
}
