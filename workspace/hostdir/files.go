//go:build unix

package hostdir

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/hutch-sandbox/hutch/workspace"
)

// begin is the beginning of every file operation.
func (d *Dir) begin(ctx context.Context, op string) error {
	if err := workspace.ContextError(ctx, op); err != nil {
		return err
	}
	return d.check(op)
}

func fault(op, name string, errno syscall.Errno) error {
	return &fs.PathError{Op: op, Path: name, Err: errno}
}

// regular refuses what is no regular file.
func regular(op, name string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return fault(op, name, syscall.EISDIR)
	case !info.Mode().IsRegular():
		return fault(op, name, syscall.EINVAL)
	}
	return nil
}

// open opens a regular file and no other: a pipe would wait for its writer, a
// device may do anything.
func open(op, name string, flag int) (*os.File, fs.FileInfo, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	if err := regular(op, name, info); err != nil {
		return nil, nil, err
	}
	// It may be another file by now.
	f, err := os.OpenFile(name, flag|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = regular(op, name, info)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// ReadFile implements workspace.Files.
func (d *Dir) ReadFile(ctx context.Context, name string) ([]byte, error) {
	if err := d.begin(ctx, "read"); err != nil {
		return nil, err
	}
	defer d.locks.read(d.key(name))()
	f, info, err := open("read", name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size() > workspace.MaxFile {
		return nil, workspace.TooLarge(name)
	}
	var buf bytes.Buffer
	buf.Grow(int(info.Size()) + bytes.MinRead)
	n, err := buf.ReadFrom(io.LimitReader(f, workspace.MaxFile+1))
	if err != nil {
		return nil, err
	}
	if n > workspace.MaxFile {
		return nil, workspace.TooLarge(name)
	}
	return buf.Bytes(), nil
}

// Open implements workspace.Streams.
func (d *Dir) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	if err := d.begin(ctx, "open"); err != nil {
		return nil, err
	}
	f, _, err := open("open", name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		_ = f.Close()
		return nil, err
	}
	return &reader{ctx: ctx, f: f}, nil
}

type reader struct {
	ctx context.Context
	f   *os.File
}

func (r *reader) Read(p []byte) (int, error) {
	if err := workspace.ContextError(r.ctx, "read"); err != nil {
		return 0, err
	}
	return r.f.Read(p)
}

func (r *reader) Close() error { return r.f.Close() }

// WriteFile implements workspace.Files.
func (d *Dir) WriteFile(ctx context.Context, name string, data []byte) error {
	return d.WriteFrom(ctx, name, bytes.NewReader(data))
}

// WriteFrom replaces the file by renaming a new one, so that a full disk or a
// reader that fails leaves the old content. A file that has several names, or
// is in a folder where no other can be made, is written in place instead.
func (d *Dir) WriteFrom(ctx context.Context, name string, r io.Reader) (err error) {
	if err := d.begin(ctx, "write"); err != nil {
		return err
	}
	defer func() { err = renamed("write", name, err) }()
	target, err := realpath(name)
	if err != nil {
		return err
	}
	if err := d.mkdirs(path.Dir(target), syscall.ENOTDIR); err != nil {
		return err
	}
	// What cannot be written is refused before r is read.
	if old, _, err := open("write", target, os.O_WRONLY); err == nil {
		_ = old.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temp, err := createTemp(path.Dir(target))
	here := err == nil
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		temp, err = createTemp(os.TempDir())
	}
	if err != nil {
		return err
	}
	defer func() {
		_ = temp.Close()
		_ = os.Remove(temp.Name())
	}()
	if err := copyTo(ctx, temp, r); err != nil {
		return err
	}
	return d.commit(ctx, target, temp, here)
}

// createTemp makes a file with the permissions that every new file gets.
func createTemp(dir string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, ".hutch-"+rand.Text()), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
}

// commit gives target the content of temp; here says that they are in the same
// folder.
func (d *Dir) commit(ctx context.Context, target string, temp *os.File, here bool) error {
	defer d.locks.write(target)()
	old, info, err := open("write", target, os.O_WRONLY)
	switch {
	case err == nil:
		defer old.Close()
		st, ok := info.Sys().(*syscall.Stat_t)
		if !here || ok && st.Nlink > 1 {
			return inPlace(ctx, old, temp)
		}
		if ok {
			// Whoever may not give files away keeps them.
			_ = temp.Chown(int(st.Uid), int(st.Gid))
		}
		if err := temp.Chmod(info.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case !here:
		return fault("write", target, syscall.EACCES)
	}
	if err := temp.Close(); err != nil {
		return err
	}
	return os.Rename(temp.Name(), target)
}

// copyTo writes all of r, as long as ctx lasts.
func copyTo(ctx context.Context, w io.Writer, r io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, readerFunc(func(p []byte) (int, error) {
		if err := workspace.ContextError(ctx, "write"); err != nil {
			return 0, err
		}
		return r.Read(p)
	}), make([]byte, 256<<10))
	return err
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func inPlace(ctx context.Context, old, temp *os.File) error {
	if _, err := temp.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := old.Truncate(0); err != nil {
		return err
	}
	// Not to be left half written.
	if err := copyTo(context.WithoutCancel(ctx), old, temp); err != nil {
		return err
	}
	return old.Close()
}

// renamed gives path faults the name that the caller knows.
func renamed(op, name string, err error) error {
	var (
		pe *fs.PathError
		le *os.LinkError
	)
	switch {
	case errors.As(err, &pe):
		return &fs.PathError{Op: op, Path: name, Err: pe.Err}
	case errors.As(err, &le):
		return &fs.PathError{Op: op, Path: name, Err: le.Err}
	}
	return err
}

// Stat implements workspace.Files.
func (d *Dir) Stat(ctx context.Context, name string) (workspace.Entry, error) {
	if err := d.begin(ctx, "stat"); err != nil {
		return workspace.Entry{}, err
	}
	info, err := os.Stat(name)
	if err != nil {
		return workspace.Entry{}, err
	}
	return entry(name, info), nil
}

func entry(name string, info fs.FileInfo) workspace.Entry {
	e := workspace.Entry{Name: path.Base(name), Path: name, Dir: info.IsDir(), Size: -1}
	if info.Mode().IsRegular() {
		e.Size = info.Size()
	}
	return e
}

// ReadDir implements workspace.Files.
func (d *Dir) ReadDir(ctx context.Context, name string) ([]workspace.Entry, error) {
	if err := d.begin(ctx, "list"); err != nil {
		return nil, err
	}
	// A pipe would wait for its writer.
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fault("list", name, syscall.ENOTDIR)
	}
	list, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	entries := make([]workspace.Entry, 0, len(list))
	for _, item := range list {
		p := path.Join(name, item.Name())
		if info, err := os.Stat(p); err == nil {
			entries = append(entries, entry(p, info))
			continue
		}
		if _, err := os.Lstat(p); errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		// A link that leads nowhere, or nowhere that may be looked at.
		entries = append(entries, workspace.Entry{Name: item.Name(), Path: p, Size: -1})
	}
	return entries, nil
}

// MkdirAll implements workspace.Files.
func (d *Dir) MkdirAll(ctx context.Context, name string) error {
	if err := d.begin(ctx, "mkdir"); err != nil {
		return err
	}
	return d.mkdirs(name, syscall.EEXIST)
}

// mkdirs makes name and its parents; taken is the fault when name is a file.
func (d *Dir) mkdirs(name string, taken syscall.Errno) error {
	err := os.MkdirAll(name, 0o777)
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrExist) {
		if _, lerr := os.Lstat(name); lerr == nil {
			return fault("mkdir", name, taken)
		}
	}
	return renamed("mkdir", name, err)
}

// Remove implements workspace.Files.
func (d *Dir) Remove(ctx context.Context, name string) error {
	if err := d.begin(ctx, "remove"); err != nil {
		return err
	}
	if _, err := os.Lstat(name); err != nil {
		return renamed("remove", name, err)
	}
	return os.RemoveAll(name)
}

// Exists implements workspace.Files.
func (d *Dir) Exists(ctx context.Context, name string) (bool, error) {
	if err := d.begin(ctx, "exists"); err != nil {
		return false, err
	}
	_, err := os.Stat(name)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP):
		return false, nil
	}
	return false, err
}

// Realpath implements workspace.Realpather.
func (d *Dir) Realpath(ctx context.Context, name string) (string, error) {
	if err := d.begin(ctx, "realpath"); err != nil {
		return "", err
	}
	return realpath(name)
}

func realpath(name string) (string, error) {
	return workspace.WalkLinks(name, func(p string) (string, error) {
		target, err := os.Readlink(p)
		switch {
		case err == nil:
			return target, nil
		case errors.Is(err, syscall.EINVAL), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			return "", nil
		}
		return "", err
	})
}

// key is what a file is locked by: all its spellings have the same.
func (d *Dir) key(name string) string {
	if real, err := realpath(name); err == nil {
		return real
	}
	return filepath.Clean(name)
}

// locks are the locks of files that are in use.
type locks struct {
	mu    sync.Mutex
	files map[string]*fileLock
}

type fileLock struct {
	sync.RWMutex
	users int
}

func (l *locks) get(key string) *fileLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.files[key]
	if f == nil {
		if l.files == nil {
			l.files = make(map[string]*fileLock)
		}
		f = &fileLock{}
		l.files[key] = f
	}
	f.users++
	return f
}

func (l *locks) put(key string, f *fileLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.users--; f.users == 0 {
		delete(l.files, key)
	}
}

func (l *locks) read(key string) (unlock func()) {
	f := l.get(key)
	f.RLock()
	return func() {
		f.RUnlock()
		l.put(key, f)
	}
}

func (l *locks) write(key string) (unlock func()) {
	f := l.get(key)
	f.Lock()
	return func() {
		f.Unlock()
		l.put(key, f)
	}
}
