package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sync"
	"syscall"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/workspace"
)

// fail translates the error of a file operation.
func (pl *place) fail(ctx context.Context, op string, err error) error {
	return translate(ctx, op, pl.box.Name(), err)
}

// failContent is fail for what reads or writes content. A box refuses pipes,
// devices and sockets with words of its own; here they are a fault of the path.
func (pl *place) failContent(ctx context.Context, op, name string, err error) error {
	if be, ok := errors.AsType[*box.Error](err); ok && be.Kind == box.Invalid && ctx.Err() == nil {
		return &fs.PathError{Op: op, Path: name, Err: fmt.Errorf("%w: %s", syscall.EINVAL, be.Error())}
	}
	return pl.fail(ctx, op, err)
}

// ReadFile implements workspace.Files.
func (b *Backend) ReadFile(ctx context.Context, name string) ([]byte, error) {
	pl, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	info, r, err := pl.box.ReadStream(ctx, name, 0, workspace.MaxFile+1)
	if err != nil {
		return nil, pl.failContent(ctx, "read", name, err)
	}
	defer r.Close()
	if info.FileSize > workspace.MaxFile {
		return nil, workspace.TooLarge(name)
	}
	var buf bytes.Buffer
	// The size is a hint from the box, and not to be trusted with all memory.
	buf.Grow(int(max(0, min(info.FileSize, 64<<20))) + bytes.MinRead)
	if _, err := buf.ReadFrom(r); err != nil {
		return nil, pl.fail(ctx, "read", err)
	}
	if buf.Len() > workspace.MaxFile {
		return nil, workspace.TooLarge(name)
	}
	return buf.Bytes(), nil
}

// Open implements workspace.Streams.
func (b *Backend) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	pl, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	info, r, err := pl.box.ReadStream(ctx, name, offset, 0)
	if err != nil {
		return nil, pl.failContent(ctx, "open", name, err)
	}
	e := entry(info.RealPath, info)
	return &reader{ctx: ctx, pl: pl, r: r, entry: e}, nil
}

// reader implements workspace.Described.
type reader struct {
	ctx   context.Context
	pl    *place
	r     io.ReadCloser
	entry workspace.Entry
}

func (r *reader) Entry() workspace.Entry { return r.entry }

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.pl.fail(r.ctx, "read", err)
	}
	return n, err
}

func (r *reader) Close() error { return r.r.Close() }

// WriteFile implements workspace.Files. Readers see the old content or the new.
func (b *Backend) WriteFile(ctx context.Context, name string, data []byte) error {
	return b.WriteFrom(ctx, name, bytes.NewReader(data))
}

// WriteFrom implements workspace.Streams. Readers see the old content or the
// new.
func (b *Backend) WriteFrom(ctx context.Context, name string, r io.Reader) error {
	pl, err := b.ready(ctx)
	if err != nil {
		return err
	}
	src := &source{ctx: ctx, r: r}
	_, err = pl.box.WriteStream(ctx, name, src, box.WriteOptions{Atomic: true, Parents: true})
	if failed := src.failed(); failed != nil {
		return failed
	}
	return pl.failContent(ctx, "write", name, err)
}

// source remembers how its reader failed: on its way through the box, an error
// is only text.
//
// It also ends with the context, since a write that was given up must not
// be completed by a reader that ends early for the same reason.
type source struct {
	ctx context.Context
	r   io.Reader
	mu  sync.Mutex
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if cerr := workspace.ContextError(s.ctx, "write"); cerr != nil {
		n, err = 0, cerr
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
	}
	return n, err
}

func (s *source) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Stat implements workspace.Files.
func (b *Backend) Stat(ctx context.Context, name string) (workspace.Entry, error) {
	pl, err := b.ready(ctx)
	if err != nil {
		return workspace.Entry{}, err
	}
	info, err := pl.box.Stat(ctx, name)
	if err != nil {
		return workspace.Entry{}, pl.fail(ctx, "stat", err)
	}
	return entry(name, info), nil
}

func entry(name string, info box.FileInfo) workspace.Entry {
	e := workspace.Entry{Name: path.Base(name), Path: name, Dir: info.IsDir(), Size: -1}
	if info.Mode().IsRegular() {
		e.Size = info.FileSize
	}
	return e
}

// statsAtOnce is how many links of a directory are followed at the same time.
const statsAtOnce = 8

// ReadDir implements workspace.Files.
func (b *Backend) ReadDir(ctx context.Context, name string) ([]workspace.Entry, error) {
	pl, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	infos, err := pl.box.ReadDir(ctx, name)
	if err != nil {
		return nil, pl.fail(ctx, "list", err)
	}
	entries := make([]workspace.Entry, len(infos))
	var links sync.WaitGroup
	slots := make(chan struct{}, statsAtOnce)
	errs := make([]error, len(infos))
	for i, info := range infos {
		p := path.Join(name, info.FileName)
		entries[i] = entry(p, info)
		if info.Mode().Type() != fs.ModeSymlink {
			continue
		}
		slots <- struct{}{}
		links.Go(func() {
			defer func() { <-slots }()
			switch info, err := pl.box.Stat(ctx, p); {
			case err == nil:
				entries[i] = entry(p, info)
			case isBoxError(err):
				errs[i] = err
			default: // it leads nowhere: as it is
			}
		})
	}
	links.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, pl.fail(ctx, "list", err)
	}
	return entries, nil
}

// MkdirAll implements workspace.Files.
func (b *Backend) MkdirAll(ctx context.Context, name string) error {
	pl, err := b.ready(ctx)
	if err != nil {
		return err
	}
	err = pl.box.MkdirAll(ctx, name, 0o755)
	if errors.Is(err, syscall.ENOTDIR) && !isBoxError(err) {
		// Is it the path itself that is no directory, or one above it?
		if _, serr := pl.box.Lstat(ctx, name); serr == nil {
			return &fs.PathError{Op: "mkdir", Path: name, Err: syscall.EEXIST}
		}
	}
	return pl.fail(ctx, "mkdir", err)
}

// Remove implements workspace.Files.
func (b *Backend) Remove(ctx context.Context, name string) error {
	pl, err := b.ready(ctx)
	if err != nil {
		return err
	}
	if _, err := pl.box.Lstat(ctx, name); err != nil {
		return pl.fail(ctx, "remove", err)
	}
	return pl.fail(ctx, "remove", pl.box.RemoveAll(ctx, name))
}

// Exists implements workspace.Files.
func (b *Backend) Exists(ctx context.Context, name string) (bool, error) {
	pl, err := b.ready(ctx)
	if err != nil {
		return false, err
	}
	_, err = pl.box.Stat(ctx, name)
	switch {
	case err == nil:
		return true, nil
	case isBoxError(err):
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP):
		return false, nil
	}
	return false, pl.fail(ctx, "exists", err)
}

// Realpath implements workspace.Realpather.
func (b *Backend) Realpath(ctx context.Context, name string) (string, error) {
	pl, err := b.ready(ctx)
	if err != nil {
		return "", err
	}
	// Most paths exist, and the box resolves those in one step.
	real, err := pl.box.Realpath(ctx, name)
	if err == nil {
		return real, nil
	}
	if isBoxError(err) || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return "", pl.fail(ctx, "realpath", err)
	}
	real, err = workspace.WalkLinks(name, func(p string) (string, error) {
		info, err := pl.box.Lstat(ctx, p)
		switch {
		case err == nil:
			return info.Target, nil
		case !isBoxError(err) && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)):
			return "", nil
		}
		return "", err
	})
	return real, pl.fail(ctx, "realpath", err)
}
