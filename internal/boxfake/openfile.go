package boxfake

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// openFile is an open file: a box.FileHandle, and what programs read and write.
type openFile struct {
	fs   *memFS
	n    *node
	path string
	name string
	flag int

	mu     sync.Mutex
	pos    int64
	closed bool
}

func (f *memFS) open(path string, flag int, perm fs.FileMode, a account) (*openFile, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.walk(path, flag&os.O_EXCL == 0)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	writing := flag&(os.O_WRONLY|os.O_RDWR) != 0
	switch {
	case p.node == nil && flag&os.O_CREATE == 0:
		err = syscall.ENOENT
	case p.node != nil && flag&os.O_CREATE != 0 && flag&os.O_EXCL != 0:
		err = syscall.EEXIST
	case p.node != nil && p.node.mode.IsDir():
		err = syscall.EISDIR
	}
	if err != nil {
		return nil, pathError("open", path, err)
	}
	if p.node == nil {
		p.node = f.newNode(perm & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky))
		f.create(p, p.node, a)
	} else if writing && flag&os.O_TRUNC != 0 && len(p.node.data) > 0 {
		p.node.data, p.node.mtime = nil, time.Now()
		f.changed(p.path(), "write")
	}
	return &openFile{fs: f, n: p.node, path: p.path(), name: baseName(path), flag: flag}, nil
}

func (o *openFile) check(op string, write bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	mode := o.flag & (os.O_WRONLY | os.O_RDWR)
	switch {
	case o.closed:
		return fs.ErrClosed
	case write && mode == os.O_RDONLY, !write && mode == os.O_WRONLY:
		return pathError(op, o.path, syscall.EBADF)
	}
	return nil
}

func (o *openFile) ReadAt(p []byte, off int64) (int, error) {
	if err := o.check("read", false); err != nil {
		return 0, err
	}
	switch o.n.device {
	case "null":
		return 0, io.EOF
	case "zero":
		clear(p)
		return len(p), nil
	case "random":
		return rand.Read(p)
	}
	o.fs.mu.Lock()
	defer o.fs.mu.Unlock()
	if off >= int64(len(o.n.data)) {
		return 0, io.EOF
	}
	n := copy(p, o.n.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (o *openFile) WriteAt(p []byte, off int64) (int, error) { return o.write(p, off) }

func (o *openFile) Append(p []byte) (int, error) { return o.write(p, -1) }

func (o *openFile) write(p []byte, off int64) (int, error) {
	if err := o.check("write", true); err != nil {
		return 0, err
	}
	if o.n.device != "" {
		return len(p), nil
	}
	o.fs.mu.Lock()
	defer o.fs.mu.Unlock()
	if off < 0 {
		off = int64(len(o.n.data))
	}
	o.resize(max(off+int64(len(p)), int64(len(o.n.data))))
	copy(o.n.data[off:], p)
	o.n.mtime = time.Now()
	o.fs.changed(o.path, "write")
	return len(p), nil
}

// resize never shares the old bytes beyond the old length.
func (o *openFile) resize(size int64) {
	if size <= int64(len(o.n.data)) {
		o.n.data = o.n.data[:size:size]
		return
	}
	if size > int64(cap(o.n.data)) {
		grown := make([]byte, len(o.n.data), max(size, 2*int64(len(o.n.data))))
		copy(grown, o.n.data)
		o.n.data = grown
	}
	o.n.data = o.n.data[:size]
}

func (o *openFile) Read(p []byte) (int, error) {
	n, err := o.ReadAt(p, o.pos)
	o.pos += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (o *openFile) Write(p []byte) (int, error) {
	if o.flag&os.O_APPEND != 0 {
		return o.Append(p)
	}
	n, err := o.WriteAt(p, o.pos)
	o.pos += int64(n)
	return n, err
}

func (o *openFile) Stat() (box.FileInfo, error) {
	o.mu.Lock()
	closed := o.closed
	o.mu.Unlock()
	if closed {
		return box.FileInfo{}, fs.ErrClosed
	}
	o.fs.mu.Lock()
	defer o.fs.mu.Unlock()
	return o.fs.info(o.name, o.n), nil
}

func (o *openFile) Truncate(size int64) error {
	if err := o.check("truncate", true); err != nil {
		return pathError("truncate", o.path, errors.Unwrap(err))
	}
	o.fs.mu.Lock()
	defer o.fs.mu.Unlock()
	if size > 1<<32 {
		return pathError("truncate", o.path, syscall.EFBIG)
	}
	o.resize(size)
	o.n.mtime = time.Now()
	o.fs.changed(o.path, "write")
	return nil
}

func (o *openFile) Sync() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return fs.ErrClosed
	}
	return nil
}

func (o *openFile) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return fs.ErrClosed
	}
	o.closed = true
	return nil
}

// regular refuses devices, for the file operations, as the real agent does.
func (f *memFS) regular(op, path string) error {
	info, err := f.stat(path, true)
	if err != nil || info.FileMode.IsRegular() || info.IsDir() {
		return nil // whatever is wrong, the operation itself says
	}
	return &box.Error{Kind: box.Invalid, Op: op, Object: path, Err: errors.New("it is a device, not a regular file"), Hint: "use a command in the box"}
}

// writeFile is Machine.WriteFile.
func (f *memFS) writeFile(path string, r io.Reader, opts box.WriteOptions, a account) (box.FileInfo, error) {
	if opts.Parents {
		if i := lastSlash(path); i > 0 {
			if err := f.mkdir(path[:i], 0o755, true, a); err != nil {
				return box.FileInfo{}, err
			}
		}
	}
	if err := f.regular("write", path); err != nil {
		return box.FileInfo{}, err
	}
	perm := opts.Perm
	if perm == 0 {
		perm = 0o644
	}
	flag := os.O_WRONLY | os.O_CREATE
	if opts.Exclusive {
		flag |= os.O_EXCL
	}
	if opts.Atomic {
		return f.replaceFile(path, r, flag, perm, a)
	}
	if opts.Append {
		flag |= os.O_APPEND
	} else {
		flag |= os.O_TRUNC
	}
	o, err := f.open(path, flag, perm, a)
	if err != nil {
		return box.FileInfo{}, err
	}
	defer func() { _ = o.Close() }()
	if _, err := io.Copy(struct{ io.Writer }{o}, r); err != nil {
		return box.FileInfo{}, err
	}
	return o.Stat()
}

// replaceFile puts a new node in the place of the old one, which those who have
// it open keep.
func (f *memFS) replaceFile(path string, r io.Reader, flag int, perm fs.FileMode, a account) (box.FileInfo, error) {
	// A missing directory shows before all of r is read.
	if _, err := f.walkUnlocked(path); err != nil {
		return box.FileInfo{}, pathError("open", path, err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return box.FileInfo{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.walk(path, true)
	switch {
	case err == nil && p.node != nil && p.node.mode.IsDir():
		err = syscall.EISDIR
	case err == nil && p.node != nil && flag&os.O_EXCL != 0:
		err = syscall.EEXIST
	}
	if err != nil {
		return box.FileInfo{}, pathError("open", path, err)
	}
	n := f.newNode(perm & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky))
	n.data = data
	if old := p.node; old != nil {
		n.mode, n.uid, n.gid = old.mode, old.uid, old.gid
		old.links--
		p.parent().kids[p.name] = n
		f.changed(p.path(), "write")
	} else {
		f.create(p, n, a)
		f.changed(p.path(), "write")
	}
	return f.info(baseName(path), n), nil
}

func (f *memFS) walkUnlocked(path string) (place, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.walk(path, true)
}

func lastSlash(path string) int {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return i
		}
	}
	return -1
}
