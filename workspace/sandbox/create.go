package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/workspace"
)

// place is a box that is ready to work in.
type place struct {
	box *box.Box
	dir string // where commands start, without links
}

// flight is one attempt to get a place, for everybody who waits for it. It does
// not depend on any single caller's context: the last who gives up ends it, and
// waits until it has tidied up.
type flight struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when place and err are set
	place  *place
	err    error

	mu        sync.Mutex
	waiters   int
	over      bool // given up: nobody may join
	destroyed bool // by Destroy
}

// join reports whether the flight can be waited for.
func (f *flight) join() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return false
	}
	f.waiters++
	return true
}

// leave ends the flight when the last one leaves, and reports whether it did.
func (f *flight) leave() bool {
	f.mu.Lock()
	f.waiters--
	last := f.waiters == 0
	f.over = f.over || last
	f.mu.Unlock()
	if last {
		f.cancel()
	}
	return last
}

func (f *flight) destroy() {
	f.mu.Lock()
	f.over, f.destroyed = true, true
	f.mu.Unlock()
	f.cancel()
}

func (f *flight) wasDestroyed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.destroyed
}

// ready returns the box to work in, after making it or attaching to it when
// this is the first use.
func (b *Backend) ready(ctx context.Context) (*place, error) {
	for {
		if err := workspace.ContextError(ctx, "reach the box"); err != nil {
			return nil, err
		}
		b.mu.Lock()
		if b.place != nil {
			defer b.mu.Unlock()
			return b.place, nil
		}
		f := b.flight
		if f == nil {
			f = b.beginLocked(ctx)
		}
		joined := f.join()
		b.mu.Unlock()
		if !joined {
			// Given up by others; what comes after it is a new attempt.
			select {
			case <-f.done:
			case <-ctx.Done():
			}
			continue
		}
		select {
		case <-f.done:
			f.leave()
			return f.place, f.err
		case <-ctx.Done():
			if f.leave() {
				<-f.done
			}
			return nil, workspace.ContextError(ctx, "reach the box")
		}
	}
}

// beginLocked starts a flight. The caller holds mu, and joins.
func (b *Backend) beginLocked(ctx context.Context) *flight {
	fctx := context.WithoutCancel(ctx)
	f := &flight{done: make(chan struct{})}
	create := !b.fixed
	if b.p == nil {
		fctx, f.cancel = context.WithTimeout(fctx, DefaultCreateTimeout)
	} else {
		fctx, f.cancel = context.WithTimeout(fctx, b.p.timeout)
		b.p.mu.Lock()
		b.p.flights[f] = struct{}{}
		if create {
			b.name = newName()
			b.p.making[b.name] = f
		}
		b.p.mu.Unlock()
	}
	b.flight = f
	name := b.name
	go func() {
		defer f.cancel()
		if create {
			b.create(fctx, f, name)
		} else {
			b.attach(fctx, f, name)
		}
	}()
	return f
}

// finish ends a flight. fixed says that the name stays.
func (b *Backend) finish(f *flight, fixed bool) {
	b.mu.Lock()
	b.flight, b.place = nil, f.place
	b.fixed = b.fixed || fixed
	if b.p != nil {
		b.p.mu.Lock()
		delete(b.p.making, b.name)
		delete(b.p.flights, f)
		if f.place != nil {
			b.p.open[b] = struct{}{}
		}
		b.p.mu.Unlock()
	}
	if !b.fixed {
		b.name = ""
	}
	b.mu.Unlock()
	close(f.done)
}

// create makes a box and boots it. When that fails, or is given up, the box
// is removed again and the name withdrawn, in case of doubt the name stays.
func (b *Backend) create(ctx context.Context, f *flight, name string) {
	spec := b.p.spec
	spec.Name = name
	image := spec.Image
	if image == "" {
		image = box.BuiltinImage
	}
	// Before there is anything, so that it can be found whatever happens.
	b.p.log.InfoContext(ctx, "creating box", "name", name, "image", image, "provider", b.provider)
	bx, err := b.p.rt.Create(ctx, spec)
	if err == nil {
		if err = bx.Start(ctx); err == nil {
			f.place, err = b.look(ctx, bx)
		}
	}
	if err == nil && spec.User != "" && !b.p.imageDir {
		err = giveDir(ctx, f.place)
	}
	if err == nil && !f.wasDestroyed() {
		b.finish(f, true)
		return
	}
	f.place = nil
	cause := translate(ctx, "create", name, err)
	switch {
	case f.wasDestroyed():
		cause = unavailable("create", name, errors.New("it was destroyed while it was being made"))
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		cause = unavailable("create", name, fmt.Errorf("it was not ready within %v", b.p.timeout))
	case errors.Is(err, box.ErrExists):
		// Somebody else's: not to be removed. Another name will be free.
		f.err = cause
		b.finish(f, false)
		return
	}
	f.err = cause
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	rerr := b.p.rt.Remove(undo, name, true)
	if bx != nil {
		_ = bx.Close()
	}
	if rerr != nil {
		b.p.log.WarnContext(ctx, "a box that could not be made may still be there", "name", name, "error", rerr)
		f.err = fmt.Errorf("%w; and it could not be removed: %s", cause, rerr.Error())
	}
	// Whoever destroyed it holds the ref, which must not come to name
	// something else.
	b.finish(f, rerr != nil || f.wasDestroyed())
}

// giveDir gives the working directory to the box's user. A box makes a missing
// one so; one that the image has may be root's, and then the user that the
// options ask for could do nothing there.
func giveDir(ctx context.Context, pl *place) error {
	dir, err := pl.box.Stat(ctx, pl.dir)
	if err != nil {
		return err
	}
	// New files belong to that user, whatever its name is in the image.
	probe := path.Join(pl.dir, ".hutch-"+rand.Text())
	user, err := pl.box.WriteStream(ctx, probe, strings.NewReader(""), box.WriteOptions{Exclusive: true})
	if err != nil {
		return err
	}
	if err := pl.box.RemoveFile(ctx, probe); err != nil || user.UID == dir.UID {
		return err
	}
	return pl.box.Chown(ctx, pl.dir, user.UID, user.GID)
}

// attach finds a box that was made before.
func (b *Backend) attach(ctx context.Context, f *flight, name string) {
	defer b.finish(f, true)
	bx := b.given
	if bx == nil {
		var err error
		if bx, err = b.p.rt.Get(ctx, name); err != nil {
			f.err = b.attachError(ctx, name, err)
			return
		}
		if bx.Name() != name {
			f.err = unavailable("attach", name, errors.New("there is no box with this name"))
			return
		}
	}
	pl, err := b.look(ctx, bx)
	if err != nil {
		f.err = b.attachError(ctx, name, err)
		if b.given == nil {
			_ = bx.Close()
		}
		return
	}
	f.place = pl
}

func (b *Backend) attachError(ctx context.Context, name string, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return unavailable("attach", name, errors.New("the box did not answer in time"))
	}
	return translate(ctx, "attach", name, err)
}

// look finds out where commands start, booting the box when it is stopped.
func (b *Backend) look(ctx context.Context, bx *box.Box) (*place, error) {
	want := b.dir
	if want == "" {
		want = "." // relative to the box's own
	}
	dir, err := bx.Realpath(ctx, want)
	if err == nil {
		var info box.FileInfo
		if info, err = bx.Stat(ctx, dir); err == nil && !info.IsDir() {
			return nil, b.noDir(bx.Name(), "is no directory")
		}
	}
	if _, fault := errors.AsType[*fs.PathError](err); fault {
		return nil, b.noDir(bx.Name(), "cannot be used: "+err.Error())
	}
	if err != nil {
		return nil, err
	}
	return &place{box: bx, dir: dir}, nil
}

// noDir is the error for a working directory that is not there.
func (b *Backend) noDir(name, what string) error {
	dir := b.dir
	if dir == "" {
		dir = "of the image"
	}
	return &workspace.Error{Kind: workspace.ErrWorkspace, Op: "working directory", Object: name, Err: fmt.Errorf("the directory %s %s", dir, what), Hint: "make it again in the box, or give another WorkingDir"}
}
