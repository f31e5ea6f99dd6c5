package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/local"
)

// hutch is this module, used through its library as a program would.
type hutch struct {
	b      *bench
	engine string // "" is gVisor's
}

func (h *hutch) name() string { return "hutch" }

func (h *hutch) how() []string {
	return []string{
		"`box/local` called from this Go program, the helper is `" + os.Getenv("HUTCH_HELPER") + "`",
		"create → first output: `rt.Create(ctx, box.Spec{Image: …})`, `b.Command(ctx, \"echo\", \"" + word + "\")`, first byte of its `StdoutPipe`",
		"booted ahead: the same with `local.Config{Warm: 1}`, once such a box is ready; it is booted between the turns",
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
	return firstOutput(ctx, h.b.rt, box.Spec{Image: image, Engine: h.engine})
}

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

// warm is Hutch in a program that keeps one box booted ahead.
type warm struct {
	hutch
	rt *box.Runtime
}

// newWarm opens such a runtime on the bench's home and waits for the box.
func newWarm(ctx context.Context, b *bench) (*warm, error) {
	rt, err := local.Open(ctx, local.Config{Home: b.home(), Warm: 1})
	if err != nil {
		return nil, err
	}
	w := &warm{hutch: hutch{b: b}, rt: rt}
	if _, err = w.first(ctx); err == nil { // tells it which kind
		err = w.await(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, rt.Close())
	}
	return w, nil
}

func (w *warm) first(ctx context.Context) (time.Duration, error) {
	return firstOutput(ctx, w.rt, box.Spec{Image: w.b.image})
}

// await waits for the box booted ahead.
func (w *warm) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	for {
		m, err := w.rt.Metrics(ctx)
		if err != nil || m.Warm > 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no box was booted ahead: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
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
