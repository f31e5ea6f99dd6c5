package box

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"
)

// fileChunk is the most that a File moves at once.
const fileChunk = 1 << 20

// File is an open file in a box. It is used like os.File, and stays the same
// file when its name is removed or given to another. Reads and writes at given
// offsets may be made by several goroutines at once.
//
// It lives until Close, or until the context that opened it ends.
type File struct {
	handle FileHandle
	name   string
	append bool

	mu  sync.Mutex
	pos int64
}

// Open opens a file for reading.
func (b *Box) Open(ctx context.Context, path string) (*File, error) {
	return b.OpenFile(ctx, path, os.O_RDONLY, 0)
}

// Create makes a file, or empties the one that exists, and opens it for reading
// and writing. Its permissions are 0666 less the box's umask.
func (b *Box) Create(ctx context.Context, path string) (*File, error) {
	return b.OpenFile(ctx, path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// OpenFile opens a file. The flags are those of package os: O_RDONLY, O_WRONLY
// or O_RDWR, with O_APPEND, O_CREATE, O_EXCL and O_TRUNC. Directories,
// pipes and sockets cannot be opened.
func (b *Box) OpenFile(ctx context.Context, path string, flag int, perm fs.FileMode) (*File, error) {
	if err := checkPath("open", path); err != nil {
		return nil, err
	}
	const known = os.O_RDONLY | os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREATE | os.O_EXCL | os.O_TRUNC
	if flag&^known != 0 {
		return nil, &Error{Kind: Invalid, Op: "open", Object: path, Err: errors.New("unknown open flags"), Hint: "use O_RDONLY, O_WRONLY, O_RDWR, O_APPEND, O_CREATE, O_EXCL and O_TRUNC of package os; File.Sync for O_SYNC"}
	}
	h, err := b.machine.OpenFile(ctx, path, flag, perm)
	if err != nil {
		return nil, wrap("open", path, err)
	}
	return &File{handle: h, name: path, append: flag&os.O_APPEND != 0}, nil
}

// Name returns the path that the file was opened with.
func (f *File) Name() string { return f.name }

// Read reads from the current position.
func (f *File) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.handle.ReadAt(p[:min(len(p), fileChunk)], f.pos)
	f.pos += int64(n)
	if n > 0 {
		// What is short now may be an error at the next call.
		return n, nil
	}
	if err == nil {
		err = io.EOF
	}
	return 0, f.wrap("read", err)
}

// ReadAt reads len(p) bytes from off, or returns an error with fewer.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, &fs.PathError{Op: "read", Path: f.name, Err: syscall.EINVAL}
	}
	total := 0
	for total < len(p) {
		n, err := f.handle.ReadAt(p[total:min(len(p), total+fileChunk)], off+int64(total))
		total += n
		if err != nil && total < len(p) {
			return total, f.wrap("read", err)
		}
		if n == 0 && err == nil {
			return total, io.ErrNoProgress
		}
	}
	return total, nil
}

// WriteTo writes the rest of the file to w.
func (f *File) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(w, struct{ io.Reader }{f}, make([]byte, fileChunk))
}

// Write writes at the current position, or at the end when the file was opened
// with O_APPEND.
func (f *File) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.write(p, f.pos)
	f.pos += int64(n)
	return n, err
}

// WriteAt writes at off. It is refused on a file opened with O_APPEND.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || f.append {
		return 0, &fs.PathError{Op: "writeat", Path: f.name, Err: syscall.EINVAL}
	}
	return f.write(p, off)
}

func (f *File) write(p []byte, off int64) (int, error) {
	total := 0
	for total < len(p) {
		part := p[total:min(len(p), total+fileChunk)]
		var n int
		var err error
		if f.append {
			n, err = f.handle.Append(part)
		} else {
			n, err = f.handle.WriteAt(part, off+int64(total))
		}
		total += n
		if err != nil {
			return total, f.wrap("write", err)
		}
		if n == 0 {
			return total, io.ErrShortWrite
		}
	}
	return total, nil
}

// WriteString is Write.
func (f *File) WriteString(s string) (int, error) { return f.Write([]byte(s)) }

// ReadFrom writes all of r.
func (f *File) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{f}, r, make([]byte, fileChunk))
}

// Seek sets the position of the next Read or Write.
func (f *File) Seek(offset int64, whence int) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.pos
	case io.SeekEnd:
		info, err := f.handle.Stat()
		if err != nil {
			return 0, f.wrap("seek", err)
		}
		offset += info.FileSize
	default:
		return 0, &fs.PathError{Op: "seek", Path: f.name, Err: syscall.EINVAL}
	}
	if offset < 0 {
		return 0, &fs.PathError{Op: "seek", Path: f.name, Err: syscall.EINVAL}
	}
	f.pos = offset
	return offset, nil
}

// Stat describes the open file; the result is a FileInfo of this package.
func (f *File) Stat() (fs.FileInfo, error) {
	info, err := f.handle.Stat()
	if err != nil {
		return nil, f.wrap("stat", err)
	}
	return info, nil
}

// Truncate changes the file's size.
func (f *File) Truncate(size int64) error {
	if size < 0 {
		return &fs.PathError{Op: "truncate", Path: f.name, Err: syscall.EINVAL}
	}
	return f.wrap("truncate", f.handle.Truncate(size))
}

// Sync writes the file's content to the box's disk.
func (f *File) Sync() error { return f.wrap("sync", f.handle.Sync()) }

// Close closes the file. A second call is an error that is fs.ErrClosed.
func (f *File) Close() error { return f.wrap("close", f.handle.Close()) }

func (f *File) wrap(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	if errors.Is(err, fs.ErrClosed) {
		return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	return wrap(op, f.name, err)
}

// FileInfo is an fs.FileInfo and an fs.DirEntry.
var (
	_ fs.FileInfo = FileInfo{}
	_ fs.DirEntry = FileInfo{}
)

// Name returns the base name.
func (i FileInfo) Name() string { return i.FileName }

// Size returns the size in bytes; for a symbolic link, that of its target's name.
func (i FileInfo) Size() int64 { return i.FileSize }

// Mode returns type and permissions.
func (i FileInfo) Mode() fs.FileMode { return i.FileMode }

// ModTime returns when the content last changed.
func (i FileInfo) ModTime() time.Time { return i.Modified }

// IsDir reports whether it is a directory.
func (i FileInfo) IsDir() bool { return i.FileMode.IsDir() }

// Sys returns nil: what there is, are FileInfo's fields.
func (i FileInfo) Sys() any { return nil }

// Type returns the type bits of the mode.
func (i FileInfo) Type() fs.FileMode { return i.FileMode.Type() }

// Info returns i.
func (i FileInfo) Info() (fs.FileInfo, error) { return i, nil }

// String is as fs.FormatFileInfo.
func (i FileInfo) String() string { return fs.FormatFileInfo(i) }
