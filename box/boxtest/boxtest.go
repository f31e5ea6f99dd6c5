// Package boxtest is the suite that every box.Driver passes.
//
// A driver's own test calls Run with a Harness that says how to open the driver
// and what this machine's boxes can do. Each rule is a subtest; what right
// behaviour is, it says in a sentence that is printed when it fails.
package boxtest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// Harness is what Run needs to know about a driver. Only New is required.
type Harness struct {
	// New opens a driver on a home of its own. Run closes it.
	New func(t *testing.T) box.Driver
	// Another opens a second driver on the home of d, as another program
	// would; nil: the driver keeps its boxes to itself. Run closes it.
	Another func(t *testing.T, d box.Driver) box.Driver

	// Image has a POSIX shell and the usual programs; empty: builtin.
	Image string
	// RealProcesses says that commands are processes of a real kernel: there
	// is /proc, permissions are enforced, and so on.
	RealProcesses bool
	// TTY says that commands can have a terminal.
	TTY bool
	// TTYSize is a command that prints "rows cols"; nil: not tested.
	TTYSize []string
	// Images says that images can be imported, saved and loaded.
	Images bool
	// Pause says that boxes can be paused.
	Pause bool
	// Serve starts a server in the box that sends back what it receives
	// until the end of input, and then closes; nil: dialing is not tested.
	Serve func(t *testing.T, d box.Driver, b *box.Box) (network, addr string)
	// Crash kills the box's kernel from outside; nil: not tested.
	Crash func(t *testing.T, d box.Driver, b *box.Box)

	// Groups limits Run to these groups of rules, for example "Exec"; nil: all.
	Groups []string
	// Bulk is how many bytes the tests of large output move; zero: 64 MiB,
	// and 4 MiB with -short.
	Bulk int
	// Rounds of 50 parallel commands; zero: 20, and 2 with -short.
	Rounds int
	// Patience bounds every single wait; zero: two minutes. It does not
	// measure, it keeps a hanging driver from hanging the tests.
	Patience time.Duration
}

// Run runs the whole suite.
func Run(t *testing.T, h Harness) {
	if h.Bulk == 0 {
		h.Bulk = 64 << 20
		if testing.Short() {
			h.Bulk = 4 << 20
		}
	}
	if h.Rounds == 0 {
		h.Rounds = 20
		if testing.Short() {
			h.Rounds = 2
		}
	}
	if h.Patience == 0 {
		h.Patience = 2 * time.Minute
	}
	for _, g := range []struct {
		name string
		run  func(*suite)
	}{
		{"Registry", registry}, {"Life", life}, {"Main", mainCommand}, {"Leases", leases},
		{"Exec", execs}, {"Streams", streams}, {"Ends", ends}, {"Attach", attach}, {"TTY", terminal},
		{"Files", files}, {"OddNames", oddNames}, {"FS", conformance}, {"Handles", handles}, {"Watch", watch}, {"Tar", tars},
		{"Images", images}, {"Dial", dial}, {"Parallel", parallel},
	} {
		if h.Groups != nil && !slices.Contains(h.Groups, g.name) {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			s := &suite{T: t, h: h}
			s.driver = h.New(t)
			s.rt = box.New(s.driver)
			t.Cleanup(func() {
				s.removeAll()
				if err := s.rt.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
				if err := s.rt.Close(); err != nil {
					t.Errorf("second Close: %v", err)
				}
			})
			g.run(s)
		})
	}
}

// suite is one group of rules on a driver of its own.
type suite struct {
	*testing.T
	h      Harness
	driver box.Driver
	rt     *box.Runtime
}

// rule runs one subtest.
func (s *suite) rule(name, sentence string, run func(t *T)) {
	s.Run(name, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), s.h.Patience)
		defer cancel()
		defer func() {
			if t.Failed() {
				t.Logf("the rule is: %s", sentence)
			}
		}()
		run(&T{T: t, suite: s, ctx: ctx})
	})
}

func (s *suite) removeAll() {
	ctx, cancel := context.WithTimeout(context.Background(), s.h.Patience)
	defer cancel()
	infos, err := s.rt.List(ctx, box.ListOptions{})
	if err != nil {
		s.Errorf("List: %v", err)
	}
	for _, info := range infos {
		if err := s.rt.Remove(ctx, info.ID, true); err != nil {
			s.Errorf("Remove %s: %v", info.Name, err)
		}
	}
}

// T is one rule under test.
type T struct {
	*testing.T
	suite *suite
	ctx   context.Context
}

// create makes a box that is removed when the rule is done.
func (t *T) create(spec box.Spec) *box.Box {
	t.Helper()
	return t.createOn(t.suite.rt, spec)
}

func (t *T) createOn(rt *box.Runtime, spec box.Spec) *box.Box {
	t.Helper()
	if spec.Image == "" {
		spec.Image = t.suite.h.Image
	}
	b, err := rt.Create(t.ctx, spec)
	t.ok(err, "Create")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), t.suite.h.Patience)
		defer cancel()
		if err := t.suite.rt.Remove(ctx, b.ID(), true); err != nil {
			t.Errorf("Remove: %v", err)
		}
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

func (t *T) ok(err error, what string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func (t *T) is(err, target error, what string) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: error is %v, want %v", what, err, target)
	}
}

// sh runs a script that must succeed and returns its standard output.
func (t *T) sh(b *box.Box, script string) string {
	t.Helper()
	r, err := b.Exec(t.ctx, "sh", "-c", script)
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	if !r.Success() {
		t.Fatalf("%s: %v, stderr %q", script, r.ExitStatus, r.Stderr)
	}
	return string(r.Stdout)
}

// exit runs err through errors.As.
func (t *T) exit(err error) *box.ExitError {
	t.Helper()
	var e *box.ExitError
	if !errors.As(err, &e) {
		t.Fatalf("error is %v (%T), want an *ExitError", err, err)
	}
	return e
}

// eventually waits for something that follows soon, but not at once.
func (t *T) eventually(what string, ok func() bool) {
	t.Helper()
	for !ok() {
		select {
		case <-t.ctx.Done():
			t.Fatalf("in vain waited for: %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (t *T) state(b *box.Box) box.State {
	t.Helper()
	info, err := b.Info(t.ctx)
	t.ok(err, "Info")
	return info.State
}

// processes counts the processes in the box whose command has this in it.
func (t *T) processes(b *box.Box, part string) int {
	t.Helper()
	ps, err := b.Top(t.ctx)
	t.ok(err, "Top")
	n := 0
	for _, p := range ps {
		if strings.Contains(p.Command, part) {
			n++
		}
	}
	return n
}

// noise is the same for the same seed.
func noise(seed uint64, n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	data := make([]byte, n)
	_, _ = r.Read(data)
	return data
}

// same reports where two long values differ, not the values.
func (t *T) same(what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	t.Errorf("%s: %d bytes, want %d; first difference at %d", what, len(got), len(want), at)
}

func closeWrite(t *T, c net.Conn) {
	t.Helper()
	cw, ok := c.(interface{ CloseWrite() error })
	if !ok {
		t.Fatalf("the connection (%T) has no CloseWrite", c)
	}
	t.ok(cw.CloseWrite(), "CloseWrite")
}
