package box

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"iter"
	"strings"
	"syscall"
	"time"
)

// The file operations act with root's rights in the box, on the file system
// that commands see. A relative path is below the box's working directory. An
// operation that the box's kernel refuses is an *fs.PathError with a
// syscall.Errno; one that could not reach the box is an *Error.

// ReadFile returns the content of a file.
func (b *Box) ReadFile(ctx context.Context, path string) ([]byte, error) {
	info, r, err := b.ReadStream(ctx, path, 0, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var buf bytes.Buffer
	// Size is a hint from the box, and not to be trusted with all memory.
	buf.Grow(int(max(0, min(info.FileSize, 64<<20))) + bytes.MinRead)
	if _, err := buf.ReadFrom(r); err != nil {
		return nil, wrap("read", path, err)
	}
	return buf.Bytes(), nil
}

// ReadStream streams a file from offset; length 0 means to its end. The info
// is that of the open file. Close the reader, also before its end; it also ends
// with ctx.
func (b *Box) ReadStream(ctx context.Context, path string, offset, length int64) (FileInfo, io.ReadCloser, error) {
	if err := checkPath("open", path); err != nil {
		return FileInfo{}, nil, err
	}
	if offset < 0 || length < 0 {
		return FileInfo{}, nil, &fs.PathError{Op: "read", Path: path, Err: syscall.EINVAL}
	}
	info, r, err := b.machine.ReadFile(ctx, path, offset, length)
	return info, r, wrap("read", path, err)
}

// WriteFile replaces the content of a file in one step: whoever reads it sees
// the old content or the new. A new file gets the permissions perm (zero:
// 0644) and the box's user as owner; one that exists keeps both, and a symbolic
// link stays one.
func (b *Box) WriteFile(ctx context.Context, path string, data []byte, perm fs.FileMode) error {
	_, err := b.WriteStream(ctx, path, bytes.NewReader(data), WriteOptions{Perm: perm, Atomic: true})
	return err
}

// WriteStream writes all of r to a file as opts say. When r fails, an atomic
// write changes nothing.
func (b *Box) WriteStream(ctx context.Context, path string, r io.Reader, opts WriteOptions) (FileInfo, error) {
	if err := checkPath("write", path); err != nil {
		return FileInfo{}, err
	}
	if opts.Atomic && opts.Append {
		return FileInfo{}, fieldError("append", "choose one of them", "atomic and append contradict each other")
	}
	if err := checkUser(opts.User); err != nil {
		return FileInfo{}, err
	}
	info, err := b.machine.WriteFile(ctx, path, r, opts)
	return info, wrap("write", path, err)
}

// Stat describes what path leads to.
func (b *Box) Stat(ctx context.Context, path string) (FileInfo, error) {
	if err := checkPath("stat", path); err != nil {
		return FileInfo{}, err
	}
	info, err := b.machine.Stat(ctx, path, true)
	return info, wrap("stat", path, err)
}

// Lstat is Stat that describes a symbolic link itself.
func (b *Box) Lstat(ctx context.Context, path string) (FileInfo, error) {
	if err := checkPath("lstat", path); err != nil {
		return FileInfo{}, err
	}
	info, err := b.machine.Stat(ctx, path, false)
	return info, wrap("lstat", path, err)
}

// ReadDir returns a directory's entries, sorted by name and described as by
// Lstat. Each also is an fs.DirEntry.
func (b *Box) ReadDir(ctx context.Context, path string) ([]FileInfo, error) {
	if err := checkPath("open", path); err != nil {
		return nil, err
	}
	entries, err := b.machine.ReadDir(ctx, path)
	return entries, wrap("readdir", path, err)
}

// Mkdir makes a directory.
func (b *Box) Mkdir(ctx context.Context, path string, perm fs.FileMode) error {
	if err := checkPath("mkdir", path); err != nil {
		return err
	}
	return wrap("mkdir", path, b.machine.Mkdir(ctx, path, perm, false))
}

// MkdirAll makes a directory and its missing parents. One that exists is no error.
func (b *Box) MkdirAll(ctx context.Context, path string, perm fs.FileMode) error {
	if err := checkPath("mkdir", path); err != nil {
		return err
	}
	return wrap("mkdir", path, b.machine.Mkdir(ctx, path, perm, true))
}

// RemoveFile removes a file, a symbolic link itself, or an empty directory.
func (b *Box) RemoveFile(ctx context.Context, path string) error {
	if err := checkPath("remove", path); err != nil {
		return err
	}
	return wrap("remove", path, b.machine.RemoveFile(ctx, path, false))
}

// RemoveAll removes path with all below it. A missing path is no error.
func (b *Box) RemoveAll(ctx context.Context, path string) error {
	if err := checkPath("removeall", path); err != nil {
		return err
	}
	return wrap("removeall", path, b.machine.RemoveFile(ctx, path, true))
}

// Rename moves a file in the box, replacing a file that has the new name. The
// box itself is renamed with SetName.
func (b *Box) Rename(ctx context.Context, oldPath, newPath string) error {
	if err := checkPaths("rename", oldPath, newPath); err != nil {
		return err
	}
	return wrap("rename", oldPath, b.machine.RenameFile(ctx, oldPath, newPath))
}

// Chmod changes permissions, and the setuid, setgid and sticky bits.
func (b *Box) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	if err := checkPath("chmod", path); err != nil {
		return err
	}
	return wrap("chmod", path, b.machine.Chmod(ctx, path, mode))
}

// Chown changes owner and group; -1 leaves one as it is.
func (b *Box) Chown(ctx context.Context, path string, uid, gid int) error {
	return b.chown(ctx, "chown", path, uid, gid, true)
}

// Lchown is Chown for a symbolic link itself.
func (b *Box) Lchown(ctx context.Context, path string, uid, gid int) error {
	return b.chown(ctx, "lchown", path, uid, gid, false)
}

func (b *Box) chown(ctx context.Context, op, path string, uid, gid int, follow bool) error {
	if err := checkPath(op, path); err != nil {
		return err
	}
	if uid < -1 || gid < -1 {
		return &fs.PathError{Op: op, Path: path, Err: syscall.EINVAL}
	}
	return wrap(op, path, b.machine.Chown(ctx, path, uid, gid, follow))
}

// Chtimes changes the access and modification times. A zero time leaves one.
func (b *Box) Chtimes(ctx context.Context, path string, atime, mtime time.Time) error {
	if err := checkPath("chtimes", path); err != nil {
		return err
	}
	return wrap("chtimes", path, b.machine.Chtimes(ctx, path, atime, mtime))
}

// Symlink makes a symbolic link at path to target.
func (b *Box) Symlink(ctx context.Context, target, path string) error {
	if err := checkPaths("symlink", path, target); err != nil {
		return err
	}
	return wrap("symlink", path, b.machine.Symlink(ctx, target, path))
}

// Link makes newPath one more name of the file oldPath.
func (b *Box) Link(ctx context.Context, oldPath, newPath string) error {
	if err := checkPaths("link", oldPath, newPath); err != nil {
		return err
	}
	return wrap("link", oldPath, b.machine.Link(ctx, oldPath, newPath))
}

// Readlink returns the target of a symbolic link.
func (b *Box) Readlink(ctx context.Context, path string) (string, error) {
	if err := checkPath("readlink", path); err != nil {
		return "", err
	}
	target, err := b.machine.Readlink(ctx, path)
	return target, wrap("readlink", path, err)
}

// Realpath returns the absolute path without symbolic links of a file that
// exists.
func (b *Box) Realpath(ctx context.Context, path string) (string, error) {
	if err := checkPath("realpath", path); err != nil {
		return "", err
	}
	p, err := b.machine.Realpath(ctx, path)
	return p, wrap("realpath", path, err)
}

// Watch yields changes of path and, when that is a directory, of its entries;
// recursive means of everything below it. It returns when the watch is in
// place, so that no later change is missed. The loop ends with ctx, or with an
// error.
func (b *Box) Watch(ctx context.Context, path string, recursive bool) (iter.Seq2[FileEvent, error], error) {
	if err := checkPath("watch", path); err != nil {
		return nil, err
	}
	events, err := b.machine.Watch(ctx, path, recursive)
	return events, wrap("watch", path, err)
}

// checkPath refuses what no kernel takes, as a kernel does.
func checkPath(op, path string) error {
	switch {
	case path == "":
		return &fs.PathError{Op: op, Path: path, Err: syscall.ENOENT}
	case strings.IndexByte(path, 0) >= 0:
		return &fs.PathError{Op: op, Path: path, Err: syscall.EINVAL}
	case len(path) > 4095:
		return &fs.PathError{Op: op, Path: clip(path), Err: syscall.ENAMETOOLONG}
	}
	return nil
}

func checkPaths(op string, paths ...string) error {
	for _, p := range paths {
		if err := checkPath(op, p); err != nil {
			return err
		}
	}
	return nil
}
