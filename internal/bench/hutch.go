package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/local"
)

// hutch is this module, used through its library as a program would.
type hutch struct {
	b      *bench
	engine string // "" is gVisor's
	// byDefault is whether first uses a runtime with the default Config, which
	// boots a box ahead of a program that makes one after the other. All else
	// is measured with nothing booted ahead.
	byDefault bool
}

func (h *hutch) name() string { return "hutch" }

func (h *hutch) how() []string {
	return []string{
		"`box/local` called from this Go program, the helper is `" + os.Getenv("HUTCH_HELPER") + "`",
		"create → first output: `rt.Create(ctx, box.Spec{Image: …})`, `b.Command(ctx, \"echo\", \"" + word + "\")`, first byte of its `StdoutPipe`",
		"that row, and those of creates one after the other, one every 200 ms and at once, have the default `local.Config{}`: from a program's second box of a kind on, one is booted ahead, which the next create finds. " +
			"The boot ahead is in no figure of a create: it is done while the program does something else",
		"in create → first output that is the others' turns; before the first of them the boot ahead is waited for, or it would be measured beside it. The runtime's first create is left out; its second, which boots its box as the first does, is not",
		"in the creates one after the other, one every 200 ms and at once nothing lies between and nothing is waited for: a create that comes before the box booted ahead is there boots its own",
		"nothing booted ahead: the same in the same turns with `local.Config{Warm: -1}`, which all other rows have, too",
		"exec: `b.Command(ctx, \"true\").Run()`; copy: `b.WriteStream`, `b.ReadStream`; remove: `b.Remove` of a running box",
	}
}

func (h *hutch) prepare(ctx context.Context) error {
	// The first box of a home asks what the machine can do; the answer is kept.
	_, err := h.first(ctx)
	return err
}

func (h *hutch) first(ctx context.Context) (time.Duration, error) {
	return h.firstOf(ctx, h.b.image)
}

func (h *hutch) firstOf(ctx context.Context, image string) (time.Duration, error) {
	rt := h.b.rt
	if h.byDefault {
		var err error
		if rt, err = h.b.ahead.open(ctx); err != nil {
			return 0, err
		}
	}
	return firstOutput(ctx, rt, box.Spec{Image: image, Engine: h.engine})
}

func (h *hutch) settle(ctx context.Context) error { return h.b.ahead.settle(ctx) }

func firstOutput(ctx context.Context, rt *box.Runtime, spec box.Spec) (took time.Duration, err error) {
	start := time.Now()
	bx, err := rt.Create(ctx, spec)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, drop(ctx, bx)) }()
	cmd := bx.Command(ctx, "echo", word)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	took, got, rerr := timeFirst(start, out)
	if err := errors.Join(cmd.Wait(), rerr); err != nil {
		return 0, err
	}
	return took, checkWord(got)
}

// ahead is the runtime with the default Config. Each row has one of its own,
// since what it boots ahead would be in the way of other rows.
type ahead struct {
	home string

	mu    sync.Mutex // guards those below
	rt    *box.Runtime
	opens [2]time.Time // the last two times it was asked for, the older one first
}

// open returns the runtime, for one create.
func (a *ahead) open(ctx context.Context) (*box.Runtime, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rt == nil {
		var err error
		if a.rt, err = local.Open(ctx, local.Config{Home: a.home}); err != nil {
			return nil, err
		}
	}
	a.opens = [2]time.Time{a.opens[1], time.Now()}
	return a.rt, nil
}

// settle waits until the box is there that is booted ahead. That is one if the
// last two creates were less than a minute apart, for a minute.
func (a *ahead) settle(ctx context.Context) error {
	a.mu.Lock()
	rt, opens := a.rt, a.opens
	a.mu.Unlock()
	if rt == nil || opens[1].Sub(opens[0]) > time.Minute {
		return nil
	}
	for time.Since(opens[1]) < time.Minute {
		m, err := rt.Metrics(ctx)
		if err != nil || m.Warm > 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// close ends the runtime and what it has booted ahead.
func (a *ahead) close() error {
	a.mu.Lock()
	rt := a.rt
	a.rt, a.opens = nil, [2]time.Time{}
	a.mu.Unlock()
	if rt == nil {
		return nil
	}
	return rt.Close()
}

// drop removes a box also when the measuring was interrupted.
func drop(ctx context.Context, bx *box.Box) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return errors.Join(bx.Remove(ctx), bx.Close())
}

func (h *hutch) start(ctx context.Context) (machine, error) {
	bx, err := h.b.rt.Create(ctx, box.Spec{Image: h.b.image, Engine: h.engine})
	if err != nil {
		return nil, err
	}
	if err := bx.Start(ctx); err != nil {
		return nil, errors.Join(err, drop(ctx, bx))
	}
	return &hutchBox{h: h, bx: bx}, nil
}

// close removes what is left in the home. The runtime is the bench's.
func (h *hutch) close(ctx context.Context) error {
	infos, err := h.b.rt.List(ctx, box.ListOptions{})
	errs := []error{err}
	for _, info := range infos {
		errs = append(errs, h.b.rt.Remove(ctx, info.ID, true))
	}
	return errors.Join(errs...)
}

// hutchBox is one box.
type hutchBox struct {
	h  *hutch
	bx *box.Box
}

func (m *hutchBox) exec(ctx context.Context, args ...string) (string, error) {
	var out strings.Builder
	cmd := m.bx.Command(ctx, args[0], args[1:]...)
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %.300s", args[0], err, stderr.String())
	}
	return out.String(), nil
}

func (m *hutchBox) copyIn(ctx context.Context, host, path string) error {
	f, err := os.Open(host)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = m.bx.WriteStream(ctx, path, f, box.WriteOptions{Perm: 0o644})
	return err
}

func (m *hutchBox) copyOut(ctx context.Context, path, host string) error {
	f, err := os.Create(host)
	if err != nil {
		return err
	}
	defer f.Close()
	_, r, err := m.bx.ReadStream(ctx, path, 0, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := f.ReadFrom(r); err != nil {
		return err
	}
	return f.Close()
}

func (m *hutchBox) processes() ([]int, error) {
	info, err := m.bx.Info(context.Background())
	if err != nil {
		return nil, err
	}
	if info.Pid == 0 {
		return nil, errors.New("the box does not run")
	}
	return withDescendants([]int{info.Pid})
}

func (m *hutchBox) remove(ctx context.Context) error {
	return errors.Join(m.bx.Remove(ctx), m.bx.Close())
}
