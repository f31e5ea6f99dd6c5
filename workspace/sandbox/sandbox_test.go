package sandbox_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxfake"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
	"github.com/hutch-sandbox/hutch/workspace/workspacetest"
)

// slowDriver takes its time to make a box, half of it when the box is there
// already: a caller that gives up then is told of a failure.
type slowDriver struct {
	box.Driver
	delay func() time.Duration
}

func (d slowDriver) Create(ctx context.Context, spec box.Spec) (box.Info, error) {
	wait := func() error {
		select {
		case <-time.After(d.delay() / 2):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := wait(); err != nil {
		return box.Info{}, err
	}
	info, err := d.Driver.Create(ctx, spec)
	if err != nil {
		return info, err
	}
	return info, wait()
}

var quiet = slog.New(slog.DiscardHandler)

func newProvider(t testing.TB, rt *box.Runtime, opts sandbox.Options) *sandbox.Provider {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = quiet
	}
	p, err := sandbox.New(rt, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

// fleet is a harness over a driver.
type fleet struct {
	t         *testing.T
	driver    box.Driver
	rt        *box.Runtime
	opts      sandbox.Options
	providers []*sandbox.Provider // the first is the one without delays
	mu        sync.Mutex
}

func newFleet(t *testing.T, d box.Driver, opts sandbox.Options) *fleet {
	f := &fleet{t: t, driver: d, rt: box.New(d), opts: opts}
	t.Cleanup(func() {
		if err := f.rt.Close(); err != nil {
			t.Errorf("Close of the runtime: %v", err)
		}
	})
	f.providers = []*sandbox.Provider{newProvider(t, f.rt, opts)}
	return f
}

func (f *fleet) harness() workspacetest.Harness {
	return workspacetest.Harness{
		New:     f.providers[0].New,
		Attach:  f.attach,
		Destroy: f.destroy,
		Alive:   f.alive,
		Slow:    f.slow,
	}
}

func (f *fleet) attach(ref workspace.Ref) workspace.Backend {
	b, err := f.providers[0].Backend(ref)
	if err != nil {
		f.t.Fatal(err)
	}
	return b
}

func (f *fleet) slow(delay time.Duration) workspace.Backend {
	p := newProvider(f.t, box.New(slowDriver{f.driver, func() time.Duration { return delay }}), f.opts)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.providers = append(f.providers, p)
	return p.New()
}

// destroy asks every provider, since any of them may be making the box.
func (f *fleet) destroy(ctx context.Context, ref workspace.Ref) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for i := range f.providers {
		errs = append(errs, f.providers[len(f.providers)-1-i].Destroy(ctx, ref))
	}
	return errors.Join(errs...)
}

func (f *fleet) alive(ctx context.Context) ([]workspace.Ref, error) {
	infos, err := f.rt.List(ctx, box.ListOptions{})
	var refs []workspace.Ref
	for _, info := range infos {
		refs = append(refs, workspace.Ref{Provider: sandbox.ProviderName, ID: info.Name})
	}
	return refs, err
}

func TestConformanceFake(t *testing.T) {
	d := boxfake.New(boxfake.Config{})
	t.Cleanup(d.Quiesce)
	h := newFleet(t, d, sandbox.Options{}).harness()
	h.Limits = []workspacetest.Limit{workspacetest.NoShell, workspacetest.PermissionsIgnored}
	workspacetest.Run(t, h)
}
