package box

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"
)

// FS returns the box's whole file system as an fs.FS, which lives as long as
// ctx. It also implements fs.ReadFileFS, fs.ReadDirFS, fs.StatFS and
// fs.ReadLinkFS. Symbolic links are followed as the box's kernel does.
func (b *Box) FS(ctx context.Context) fs.FS { return boxFS{b, ctx, "/"} }

// DirFS is FS for what is below dir. Like os.DirFS it is no jail: a symbolic
// link can lead out of dir.
func (b *Box) DirFS(ctx context.Context, dir string) fs.FS {
	return boxFS{b, ctx, dir}
}

type boxFS struct {
	box *Box
	ctx context.Context // io/fs has no other place for it
	dir string
}

func (f boxFS) path(op, name string) (string, error) {
	if !fs.ValidPath(name) || strings.IndexByte(name, 0) >= 0 {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	// path.Join would resolve ".." in dir without asking the box.
	switch {
	case name == ".":
		return f.dir, nil
	case strings.HasSuffix(f.dir, "/"):
		return f.dir + name, nil
	}
	return f.dir + "/" + name, nil
}

// as renames the path in an error to the name that the caller knows.
func (f boxFS) as(op, name string, err error) error {
	if err == nil {
		return nil
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		return &fs.PathError{Op: op, Path: name, Err: p.Err}
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// Open opens a file or directory.
func (f boxFS) Open(name string) (fs.File, error) {
	p, err := f.path("open", name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat(name)
	if err != nil {
		return nil, f.as("open", name, err)
	}
	if info.IsDir() {
		return &dirFile{fs: f, name: name, info: info}, nil
	}
	file, err := f.box.Open(f.ctx, p)
	if err != nil {
		return nil, f.as("open", name, err)
	}
	return fsFile{file, info}, nil
}

// Stat follows symbolic links.
func (f boxFS) Stat(name string) (fs.FileInfo, error) {
	p, err := f.path("stat", name)
	if err != nil {
		return nil, err
	}
	info, err := f.box.Stat(f.ctx, p)
	if err != nil {
		return nil, f.as("stat", name, err)
	}
	info.FileName = path.Base(name)
	return info, nil
}

// Lstat does not follow a symbolic link at the end.
func (f boxFS) Lstat(name string) (fs.FileInfo, error) {
	p, err := f.path("lstat", name)
	if err != nil {
		return nil, err
	}
	info, err := f.box.Lstat(f.ctx, p)
	if err != nil {
		return nil, f.as("lstat", name, err)
	}
	info.FileName = path.Base(name)
	return info, nil
}

// ReadLink returns a symbolic link's target.
func (f boxFS) ReadLink(name string) (string, error) {
	p, err := f.path("readlink", name)
	if err != nil {
		return "", err
	}
	target, err := f.box.Readlink(f.ctx, p)
	return target, f.as("readlink", name, err)
}

// ReadFile returns a file's content.
func (f boxFS) ReadFile(name string) ([]byte, error) {
	p, err := f.path("open", name)
	if err != nil {
		return nil, err
	}
	data, err := f.box.ReadFile(f.ctx, p)
	return data, f.as("read", name, err)
}

// ReadDir returns a directory's entries, sorted.
func (f boxFS) ReadDir(name string) ([]fs.DirEntry, error) {
	p, err := f.path("open", name)
	if err != nil {
		return nil, err
	}
	infos, err := f.box.ReadDir(f.ctx, p)
	if err != nil {
		return nil, f.as("readdir", name, err)
	}
	entries := make([]fs.DirEntry, len(infos))
	for i, info := range infos {
		entries[i] = info
	}
	return entries, nil
}

// fsFile is an open file as io/fs wants it: it has the base name that it was
// asked for by, where a symbolic link led to another one, and its Stat is that
// of Open, which spares a call for every file of a walk.
type fsFile struct {
	*File
	info fs.FileInfo
}

func (f fsFile) Stat() (fs.FileInfo, error) { return f.info, nil }

// dirFile is an open directory. It reads the entries when first asked.
type dirFile struct {
	fs      boxFS
	name    string
	info    fs.FileInfo
	entries []fs.DirEntry
	read    bool
	closed  bool
}

func (d *dirFile) Stat() (fs.FileInfo, error) {
	if d.closed {
		return nil, &fs.PathError{Op: "stat", Path: d.name, Err: fs.ErrClosed}
	}
	return d.info, nil
}

func (d *dirFile) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.name, Err: syscall.EISDIR}
}

func (d *dirFile) Close() error {
	if d.closed {
		return &fs.PathError{Op: "close", Path: d.name, Err: fs.ErrClosed}
	}
	d.closed, d.entries = true, nil
	return nil
}

func (d *dirFile) ReadDir(n int) ([]fs.DirEntry, error) {
	if d.closed {
		return nil, &fs.PathError{Op: "readdir", Path: d.name, Err: fs.ErrClosed}
	}
	if !d.read {
		entries, err := d.fs.ReadDir(d.name)
		if err != nil {
			return nil, err
		}
		d.entries, d.read = entries, true
	}
	if n <= 0 {
		all := d.entries
		d.entries = nil
		if all == nil {
			all = []fs.DirEntry{}
		}
		return all, nil
	}
	if len(d.entries) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(d.entries))
	part := d.entries[:n:n]
	d.entries = d.entries[n:]
	return part, nil
}
