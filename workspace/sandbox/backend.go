package sandbox

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/workspace"
)

// Backend is one box as a workspace. It may be used by any number of
// goroutines.
type Backend struct {
	setting
	p     *Provider // nil for FromBox
	given *box.Box  // of FromBox

	// Order of locks: Backend.mu, then Provider.mu.
	mu     sync.Mutex
	name   string // of the box; empty until its making begins
	fixed  bool   // the name stays, whatever becomes of the box
	flight *flight
	place  *place
}

var (
	_ workspace.Backend    = (*Backend)(nil)
	_ workspace.Runner     = (*Backend)(nil)
	_ workspace.Files      = (*Backend)(nil)
	_ workspace.Streams    = (*Backend)(nil)
	_ workspace.Realpather = (*Backend)(nil)
	_ workspace.Closer     = (*Backend)(nil)
)

// BoxOptions are for FromBox. The zero value is fine.
type BoxOptions struct {
	// WorkingDir is where commands start, an absolute path that exists;
	// empty: the box's own.
	WorkingDir string
	// Env is laid over the box's environment. Names are identifiers.
	Env map[string]string
	// Provider is the name in the ref; empty: ProviderName.
	Provider string
}

// FromBox returns a backend on a box that the program has, whatever it is
// called, mounts or publishes. The program goes on owning the box: Close of the
// backend does not close it. A Provider refuses the backend's ref when the box has
// no name of the kind that providers give.
func FromBox(b *box.Box, opts BoxOptions) (*Backend, error) {
	if b == nil {
		return nil, invalid("box", "no box given", "create one with a box.Runtime")
	}
	set, err := newSetting(opts.Provider, opts.WorkingDir, opts.Env)
	if err != nil {
		return nil, err
	}
	return &Backend{setting: set, given: b, name: b.Name(), fixed: true}, nil
}

// Ref names the box. It is there as soon as the making of the box begins, and
// withdrawn only when the box was given up before it was ready and certainly is
// gone.
func (b *Backend) Ref() (workspace.Ref, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.name == "" {
		return workspace.Ref{}, false
	}
	return workspace.Ref{Provider: b.provider, ID: b.name}, true
}

// WorkingDir is where commands start.
func (b *Backend) WorkingDir(ctx context.Context) (string, error) {
	pl, err := b.ready(ctx)
	if err != nil {
		return "", err
	}
	return pl.dir, nil
}

// Box returns the box, for what a workspace cannot do: ports, snapshots and so
// on. It is made or attached to when this is the first use. Closing the backend
// closes it.
func (b *Backend) Box(ctx context.Context) (*box.Box, error) {
	pl, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	return pl.box, nil
}

// Close says that this backend does not use the box any more: it stops when
// nobody else does, and keeps its disk. Operations that overlap Close may fail.
// A later operation uses the same box again.
func (b *Backend) Close(context.Context) error {
	b.mu.Lock()
	pl := b.place
	b.place = nil
	if b.p != nil {
		b.p.mu.Lock()
		delete(b.p.open, b)
		b.p.mu.Unlock()
	}
	b.mu.Unlock()
	if pl == nil || b.given != nil {
		return nil
	}
	return pl.box.Close()
}

// Run implements workspace.Runner.
func (b *Backend) Run(ctx context.Context, cmd workspace.Command) (workspace.Result, error) {
	pl, err := b.ready(ctx)
	if err != nil {
		return workspace.Result{}, err
	}
	rctx, stop := context.WithCancel(ctx)
	defer stop()
	out := workspace.NewCapture(cmd, stop)
	var c *box.Cmd
	if cmd.Shell != "" {
		c = pl.box.Shell(rctx, cmd.Shell)
	} else {
		c = pl.box.Command(rctx, cmd.Args[0], cmd.Args[1:]...)
	}
	c.Dir, c.Timeout = pl.dir, cmd.Timeout
	c.Env = slices.Clone(b.env)
	for _, name := range slices.Sorted(maps.Keys(cmd.Env)) {
		c.Env = append(c.Env, name+"="+cmd.Env[name])
	}
	c.Stdout, c.Stderr = out.Stdout(), out.Stderr()
	err = c.Run()
	status := c.Status()

	switch {
	case out.Stopped():
		return workspace.Result{}, out.Fail(workspace.ErrOutputLimit, nil)
	case err == nil:
		return out.Result(0)
	case status != nil && status.Reason == box.TimedOut:
		return workspace.Result{}, out.Fail(workspace.ErrTimeout, nil)
	case ctx.Err() != nil:
		return workspace.Result{}, out.Fail(ctx.Err(), context.Cause(ctx))
	}
	exit, ok := errors.AsType[*box.ExitError](err)
	if !ok {
		err = translate(ctx, "run", pl.box.Name(), err)
		if errors.Is(err, workspace.ErrUnavailable) {
			return workspace.Result{}, out.Fail(workspace.ErrUnavailable, err)
		}
		return workspace.Result{}, err
	}
	switch {
	case exit.Reason == box.NotStarted:
		if exit.Code == 126 {
			if _, err := pl.box.Stat(ctx, pl.dir); errors.Is(err, fs.ErrNotExist) && !isBoxError(err) {
				return workspace.Result{}, b.noDir(pl.box.Name(), "was removed")
			}
		}
		_, _ = out.Stderr().Write([]byte(exit.Message + "\n"))
	case exit.Reason == box.Killed, exit.Signal != 0 && !exit.OutOfMemory:
		// By somebody in the box, or because the box is being stopped?
		if err := stopped(ctx, pl.box); err != nil {
			return workspace.Result{}, out.Fail(workspace.ErrUnavailable, err)
		}
	}
	return out.Result(exit.Code)
}

// stopped returns an error when the box does not run any more.
func stopped(ctx context.Context, bx *box.Box) error {
	info, err := bx.Info(ctx)
	if err != nil {
		return translate(ctx, "run", bx.Name(), err)
	}
	switch info.State {
	case box.Stopping, box.Stopped, box.Failed, box.Removed:
		return unavailable("run", bx.Name(), errors.New("the box was stopped meanwhile"))
	}
	return nil
}

func isBoxError(err error) bool {
	_, ok := errors.AsType[*box.Error](err)
	return ok
}

// unavailable keeps only the text of the cause: a box that is not found must
// not be taken for a file that is not.
func unavailable(op, name string, cause error) error {
	return &workspace.Error{Kind: workspace.ErrUnavailable, Op: op, Object: name, Err: errors.New(cause.Error())}
}

// translate gives the errors of a box the words of a workspace. What has none
// passes unchanged.
func translate(ctx context.Context, op, name string, err error) error {
	if err == nil {
		return nil
	}
	if cerr := workspace.ContextError(ctx, op); cerr != nil {
		return cerr
	}
	be, ok := errors.AsType[*box.Error](err)
	if !ok {
		return err
	}
	switch be.Kind {
	case box.NotFound, box.Unavailable:
		return unavailable(op, name, err)
	case box.Unauthenticated, box.Permission:
		// What was said to a stranger may quote the credentials.
		return unavailable(op, name, errors.New("the runtime refuses this caller"))
	case box.Timeout, box.Canceled:
		// Not by this caller's context: the runtime was closed, or gave up.
		return unavailable(op, name, err)
	case box.Unsupported:
		switch op {
		case "create", "attach":
			return unavailable(op, name, err)
		}
		return &workspace.Error{Kind: workspace.ErrUnsupported, Op: op, Object: name, Err: err}
	}
	return err
}
