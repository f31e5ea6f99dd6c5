package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Composite returns base with other file systems at some of its directories,
// by absolute path: a Files mounted at "/skills" is asked for "/guide.md" when
// "/skills/guide.md" is read. A mount hides what base has there. Mount points
// and the directories above them are directories, and cannot be removed.
//
// Commands are base's and do not see the mounts. When base is read-only, the
// whole is. Symbolic links do not lead from
// one file system into another.
func Composite(base Backend, mounts map[string]Files) (*Workspace, error) {
	c := &composite{Workspace: New(base)}
	for dir, files := range mounts {
		if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" || strings.IndexByte(dir, 0) >= 0 {
			return nil, &Error{Kind: ErrInvalid, Op: "mount", Object: clip(dir), Err: errors.New("not a clean absolute path below /")}
		}
		if files == nil {
			return nil, &Error{Kind: ErrInvalid, Op: "mount", Object: dir, Err: errors.New("no files to mount")}
		}
		c.mounts = append(c.mounts, mount{dir, files})
	}
	// The longest first, so that the first match is the right one.
	slices.SortFunc(c.mounts, func(a, b mount) int { return len(b.dir) - len(a.dir) })
	if c.Workspace.ReadOnly() {
		return New(readOnly{New(c)}), nil
	}
	return New(c), nil
}

type mount struct {
	dir   string
	files Files
}

type composite struct {
	*Workspace
	mounts []mount
}

// Supports counts the mounts: there are files even when base has none.
func (c *composite) Supports(f Feature) bool {
	switch f {
	case FileOps, Streaming:
		return true
	}
	return c.Workspace.Supports(f)
}

// route returns the file system for p, what p is called there, and the mount
// point, "" for base.
func (c *composite) route(p string) (Files, string, string) {
	for _, m := range c.mounts {
		if within(p, m.dir) {
			return m.files, "/" + strings.TrimPrefix(p[len(m.dir):], "/"), m.dir
		}
	}
	return c.Workspace, p, ""
}

// fixed reports whether p is a mount point or a directory above one.
func (c *composite) fixed(p string) bool {
	return slices.ContainsFunc(c.mounts, func(m mount) bool { return within(m.dir, p) })
}

// outer gives errors the path that the caller knows.
func outer(err error, at string) error {
	var pe *fs.PathError
	if at == "" || !errors.As(err, &pe) {
		return err
	}
	return &fs.PathError{Op: pe.Op, Path: path.Join(at, pe.Path), Err: pe.Err}
}

func outerEntry(e Entry, at string) Entry {
	if at != "" {
		e.Path = path.Join(at, e.Path)
		e.Name = path.Base(e.Path)
	}
	return e
}

func dirEntry(p string) Entry { return Entry{Name: path.Base(p), Path: p, Dir: true, Size: -1} }

func (c *composite) ReadFile(ctx context.Context, p string) ([]byte, error) {
	if c.fixed(p) {
		return nil, &fs.PathError{Op: "read", Path: p, Err: syscall.EISDIR}
	}
	files, inner, at := c.route(p)
	data, err := files.ReadFile(ctx, inner)
	return data, outer(err, at)
}

func (c *composite) WriteFile(ctx context.Context, p string, data []byte) error {
	if c.fixed(p) {
		return &fs.PathError{Op: "write", Path: p, Err: syscall.EISDIR}
	}
	files, inner, at := c.route(p)
	return outer(files.WriteFile(ctx, inner, data), at)
}

func (c *composite) Open(ctx context.Context, p string, offset int64) (io.ReadCloser, error) {
	if c.fixed(p) {
		return nil, &fs.PathError{Op: "open", Path: p, Err: syscall.EISDIR}
	}
	files, inner, at := c.route(p)
	r, err := New(mounted{files}).Open(ctx, inner, offset)
	if d, ok := r.(Described); ok && at != "" {
		r = describedAt{d, at}
	}
	return r, outer(err, at)
}

// describedAt is a reader of a file system mounted at a path.
type describedAt struct {
	Described
	at string
}

func (d describedAt) Entry() Entry {
	e := d.Described.Entry()
	if e.Path == "" {
		return e
	}
	return outerEntry(e, d.at)
}

func (c *composite) WriteFrom(ctx context.Context, p string, r io.Reader) error {
	if c.fixed(p) {
		return &fs.PathError{Op: "write", Path: p, Err: syscall.EISDIR}
	}
	files, inner, at := c.route(p)
	return outer(New(mounted{files}).WriteFrom(ctx, inner, r), at)
}

// mounted makes a Backend of Files, for what a Workspace supplies.
type mounted struct{ Files }

func (mounted) Ref() (Ref, bool)                           { return Ref{}, false }
func (mounted) WorkingDir(context.Context) (string, error) { return "/", nil }

func (m mounted) Open(ctx context.Context, p string, offset int64) (io.ReadCloser, error) {
	return m.Files.(Streams).Open(ctx, p, offset)
}

func (m mounted) WriteFrom(ctx context.Context, p string, r io.Reader) error {
	return m.Files.(Streams).WriteFrom(ctx, p, r)
}

func (m mounted) Supports(f Feature) bool {
	if f != Streaming {
		return f == FileOps
	}
	if b, ok := m.Files.(Backend); ok {
		return Supports(b, Streaming)
	}
	_, ok := m.Files.(Streams)
	return ok
}

func (c *composite) Stat(ctx context.Context, p string) (Entry, error) {
	if c.fixed(p) {
		return dirEntry(p), nil
	}
	files, inner, at := c.route(p)
	e, err := files.Stat(ctx, inner)
	return outerEntry(e, at), outer(err, at)
}

func (c *composite) ReadDir(ctx context.Context, p string) ([]Entry, error) {
	files, inner, at := c.route(p)
	entries, err := files.ReadDir(ctx, inner)
	switch {
	case err == nil:
	case c.fixed(p) && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, ErrUnsupported)):
		entries = nil // there because of what is mounted below it
	default:
		return nil, outer(err, at)
	}
	byName := make(map[string]Entry, len(entries))
	for _, e := range entries {
		e = outerEntry(e, at)
		byName[e.Name] = e
	}
	for _, m := range c.mounts {
		if m.dir != p && within(m.dir, p) {
			name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(m.dir, p), "/"), "/")
			byName[name] = dirEntry(path.Join(p, name))
		}
	}
	all := make([]Entry, 0, len(byName))
	for _, e := range byName {
		all = append(all, e)
	}
	sortEntries(all)
	return all, nil
}

func (c *composite) MkdirAll(ctx context.Context, p string) error {
	if c.fixed(p) {
		return nil
	}
	files, inner, at := c.route(p)
	return outer(files.MkdirAll(ctx, inner), at)
}

func (c *composite) Remove(ctx context.Context, p string) error {
	if c.fixed(p) {
		return &fs.PathError{Op: "remove", Path: p, Err: fmt.Errorf("a file system is mounted in it: %w", syscall.EBUSY)}
	}
	files, inner, at := c.route(p)
	return outer(files.Remove(ctx, inner), at)
}

func (c *composite) Exists(ctx context.Context, p string) (bool, error) {
	if c.fixed(p) {
		return true, nil
	}
	files, inner, at := c.route(p)
	ok, err := files.Exists(ctx, inner)
	return ok, outer(err, at)
}

// Realpath resolves in the file system that the cleaned path belongs to.
func (c *composite) Realpath(ctx context.Context, p string) (string, error) {
	files, inner, at := c.route(path.Clean(p))
	if at == "" {
		return c.Workspace.Realpath(ctx, p)
	}
	r, ok := files.(Realpather)
	if b, backend := files.(Backend); !ok || backend && !Supports(b, Realpaths) {
		return path.Clean(p), nil
	}
	got, err := r.Realpath(ctx, inner)
	if err != nil {
		return "", outer(err, at)
	}
	return path.Join(at, got), nil
}
