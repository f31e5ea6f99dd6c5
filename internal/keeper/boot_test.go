package keeper

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/internal/engine"
)

// deadMachine is a machine that takes a connection and ends before it answers.
type deadMachine struct {
	engine.Instance
	t    *testing.T
	done chan struct{}
}

func (d *deadMachine) Done() <-chan struct{} { return d.done }

func (d *deadMachine) DialGuest(context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	d.t.Cleanup(func() { far.Close() })
	close(d.done)
	return near, nil
}

// A machine that ends in the middle of the agent's first answer is noticed at
// once: its connections stay open and silent.
func TestMachineEndsBeforeItsAgentAnswers(t *testing.T) {
	console, err := os.Create(filepath.Join(t.TempDir(), "console"))
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	if _, err := console.WriteString("the last words"); err != nil {
		t.Fatal(err)
	}
	inst := &deadMachine{t: t, done: make(chan struct{})}
	m := &machine{inst: inst, console: console}
	m.reach()
	err = m.awaitAgent(t.Context())
	if err == nil || !strings.Contains(err.Error(), "ended before") || !strings.Contains(err.Error(), "the last words") {
		t.Errorf("got %v", err)
	}
}
