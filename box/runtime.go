package box

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"time"
)

// Runtime is where boxes live. New makes one from a driver; package box/local
// opens one on this machine. It may be used by any number of goroutines.
type Runtime struct {
	driver Driver
}

// New returns a Runtime over d. Closing the Runtime closes d.
func New(d Driver) *Runtime { return &Runtime{driver: d} }

// Create checks spec whole, writes the box down and returns a handle on it. It
// may pull the image, but does not boot the box: the first use does, or Start.
// (A driver may have booted one ahead; such a box runs already.)
// A name that is taken is an error of kind Exists. Nothing stays behind when
// Create fails. The spec is copied.
func (r *Runtime) Create(ctx context.Context, spec Spec) (*Box, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	info, err := r.driver.Create(ctx, spec.clone())
	if err != nil {
		return nil, wrap("create", spec.Name, err)
	}
	return r.box(info), nil
}

// GetOrCreate returns the box called spec.Name, and creates it when there is
// none; created says which. When several callers do this at once, one creates
// and all get the same box. A box that exists is returned as it is, even when
// its spec differs: look at Box.Info.
func (r *Runtime) GetOrCreate(ctx context.Context, spec Spec) (b *Box, created bool, err error) {
	if spec.Name == "" {
		return nil, false, fieldError("name", "give the name to look for", "no name")
	}
	if err := spec.Validate(); err != nil {
		return nil, false, err
	}
	// Between Get and Create somebody may create the box, between Create and
	// Get remove it. Each round of the loop is such a change by others.
	for range 16 {
		info, err := r.driver.Get(ctx, spec.Name)
		if err == nil && info.Name == spec.Name {
			return r.box(info), false, nil
		}
		// The name may also be the beginning of other boxes' ids, unique or
		// ambiguous: for the question asked here, that is "not found".
		if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrInvalid) {
			return nil, false, wrap("get", spec.Name, err)
		}
		b, err := r.Create(ctx, spec)
		if err == nil {
			return b, true, nil
		}
		if !errors.Is(err, ErrExists) {
			return nil, false, err
		}
	}
	return nil, false, &Error{Kind: Conflict, Op: "create", Object: spec.Name,
		Err: errors.New("others create and remove this box all the time"), Hint: "use another name"}
}

// Get returns the box with this name, id, or unique beginning of an id (at
// least 4 characters). It does not boot it.
func (r *Runtime) Get(ctx context.Context, ref string) (*Box, error) {
	if ref == "" {
		return nil, &Error{Kind: Invalid, Op: "get", Err: errors.New("no box named"), Hint: "give a box's name or id"}
	}
	info, err := r.driver.Get(ctx, ref)
	if err != nil {
		return nil, wrap("get", ref, err)
	}
	return r.box(info), nil
}

// List returns the boxes that opts selects, newest first.
func (r *Runtime) List(ctx context.Context, opts ListOptions) ([]Info, error) {
	infos, err := r.driver.List(ctx, opts)
	return infos, wrap("list", "", err)
}

// Remove deletes the box with this name or id, and its disk. A box that runs
// is refused (Conflict) unless force. A box that is not there is no error.
func (r *Runtime) Remove(ctx context.Context, ref string, force bool) error {
	b, err := r.Get(ctx, ref)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return wrap("remove", ref, r.driver.Remove(ctx, b.id, force))
}

// Images returns the images of this runtime.
func (r *Runtime) Images() *Images { return &Images{driver: r.driver.Images()} }

// Events yields what happens to boxes from now on, until ctx ends or the loop
// does. An error ends it.
func (r *Runtime) Events(ctx context.Context) iter.Seq2[Event, error] {
	return r.driver.Events(ctx)
}

// Host says what this runtime's host can do.
func (r *Runtime) Host(ctx context.Context) (HostInfo, error) {
	info, err := r.driver.Host(ctx)
	return info, wrap("host", "", err)
}

// Metrics returns the runtime's counters.
func (r *Runtime) Metrics(ctx context.Context) (Metrics, error) {
	m, err := r.driver.Metrics(ctx)
	return m, wrap("metrics", "", err)
}

// Close gives up everything that the runtime holds. Boxes that are not
// detached and that nobody else uses stop; their disks are kept. It may be
// called twice. Operations that overlap it fail.
func (r *Runtime) Close() error { return wrap("close", "", r.driver.Close()) }

func (r *Runtime) box(info Info) *Box {
	b := &Box{driver: r.driver, machine: r.driver.Machine(info.ID), id: info.ID}
	b.name.Store(&info.Name)
	return b
}

func (s Spec) clone() Spec {
	s.Labels = maps.Clone(s.Labels)
	s.Env = slices.Clone(s.Env)
	s.Entrypoint = slices.Clone(s.Entrypoint)
	s.Cmd = slices.Clone(s.Cmd)
	s.Volumes = slices.Clone(s.Volumes)
	s.Network = s.Network.clone()
	s.Ports = slices.Clone(s.Ports)
	s.Links = slices.Clone(s.Links)
	s.Secrets = slices.Clone(s.Secrets)
	return s
}

// wrap makes every error one of those that the package promises. Errors that
// are already pass unchanged.
func wrap(op, object string, err error) error {
	if err == nil {
		return nil
	}
	var (
		e    *Error
		exit *ExitError
		path *fs.PathError
	)
	if errors.As(err, &e) || errors.As(err, &exit) || errors.As(err, &path) {
		return err
	}
	return &Error{Kind: KindOf(err), Op: op, Object: object, Err: err}
}

// contextError is the error for a call whose context ended.
func contextError(ctx context.Context, op, object string) error {
	kind := Canceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = Timeout
	}
	return &Error{Kind: kind, Op: op, Object: object, Err: context.Cause(ctx)}
}

// undo is how long cleaning up behind a caller that gave up may take.
const undo = 10 * time.Second
