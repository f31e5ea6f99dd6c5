package boxfake

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// packed is an entry of a tar to be, copied out of the file system so that the
// lock is not held while somebody reads slowly.
type packed struct {
	header tar.Header
	data   []byte
}

func (f *memFS) pack(ctx context.Context, name string, opts box.PackOptions) (io.ReadCloser, error) {
	entries, err := f.entries(name, opts)
	if err != nil {
		return nil, err
	}
	pr, pw := io.Pipe()
	r := &packReader{PipeReader: pr}
	stop := context.AfterFunc(ctx, func() { pw.CloseWithError(ctx.Err()) })
	r.done.Go(func() {
		defer stop()
		w := tar.NewWriter(pw)
		for i := range entries {
			if err := w.WriteHeader(&entries[i].header); err != nil {
				pw.CloseWithError(err)
				return
			}
			if _, err := w.Write(entries[i].data); err != nil {
				pw.CloseWithError(err)
				return
			}
		}
		pw.CloseWithError(w.Close())
	})
	return r, nil
}

type packReader struct {
	*io.PipeReader
	done sync.WaitGroup
}

func (r *packReader) Close() error {
	err := r.PipeReader.Close()
	r.done.Wait()
	return err
}

func (f *memFS) entries(name string, opts box.PackOptions) ([]packed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(name, opts.Follow || strings.HasSuffix(name, "/."))
	if err != nil {
		return nil, pathError("open", name, err)
	}
	top := opts.Name
	if top == "" {
		top = baseName(name)
	}
	if top == "/" {
		top = "."
	}
	if top == "." && !p.node.mode.IsDir() {
		return nil, pathError("open", name, syscall.ENOTDIR)
	}
	var out []packed
	seen := make(map[*node]string)
	var add func(name string, n *node)
	add = func(name string, n *node) {
		h := tar.Header{
			Name: name, Mode: int64(unixPerm(n.mode)), Uid: n.uid, Gid: n.gid,
			Uname: userName(n.uid), Gname: userName(n.gid), ModTime: n.mtime, Format: tar.FormatPAX,
		}
		switch first, linked := seen[n], n.links > 1 && !n.mode.IsDir(); {
		case n.mode.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, name+"/"
		case n.device != "":
			return
		case linked && first != "":
			h.Typeflag, h.Linkname = tar.TypeLink, first
		case n.mode.Type() == fs.ModeSymlink:
			h.Typeflag, h.Linkname = tar.TypeSymlink, n.target
		default:
			h.Typeflag, h.Size = tar.TypeReg, int64(len(n.data))
		}
		seen[n] = name
		e := packed{header: h}
		if h.Typeflag == tar.TypeReg {
			e.data = append([]byte(nil), n.data...)
		}
		if name != "." {
			out = append(out, e)
		}
		names := make([]string, 0, len(n.kids))
		for kid := range n.kids {
			names = append(names, kid)
		}
		sort.Strings(names)
		for _, kid := range names {
			below := name + "/" + kid
			if name == "." {
				below = kid
			}
			add(below, n.kids[kid])
		}
	}
	add(top, p.node)
	return out, nil
}

func unixPerm(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	for _, b := range specialBits {
		if m&b.mode != 0 {
			bits |= b.bit
		}
	}
	return bits
}

func modeOf(bits int64) fs.FileMode {
	m := fs.FileMode(bits) & fs.ModePerm
	for _, b := range specialBits {
		if uint32(bits)&b.bit != 0 {
			m |= b.mode
		}
	}
	return m
}

var specialBits = []struct {
	mode fs.FileMode
	bit  uint32
}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}}

func (f *memFS) unpack(dir string, r io.Reader, opts box.UnpackOptions, a account) error {
	top, err := f.walkUnlocked(dir)
	if err == nil && top.node == nil {
		err = syscall.ENOENT
	}
	if err == nil && !top.node.mode.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return pathError("open", dir, err)
	}
	base := top.path()
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return &box.Error{Kind: box.Invalid, Op: "copy in", Object: dir, Err: err, Hint: "send a tar that is not compressed"}
		}
		if err := f.unpackEntry(base, h, tr, opts, a); err != nil {
			return err
		}
	}
}

func (f *memFS) unpackEntry(base string, h *tar.Header, r io.Reader, opts box.UnpackOptions, a account) error {
	refuse := func(why string) error {
		return &box.Error{Kind: box.Invalid, Op: "copy in", Object: h.Name, Err: errors.New(why)}
	}
	inside := func(name string) (string, bool) {
		for _, part := range strings.Split(name, "/") {
			if part == ".." {
				return "", false
			}
		}
		return path.Clean("/" + name), !strings.HasPrefix(name, "/")
	}
	rel, ok := inside(h.Name)
	if !ok {
		return refuse("the entry's name leads out of the directory")
	}
	full := strings.TrimSuffix(base, "/") + rel
	if rel == "/" {
		return nil
	}
	if opts.KeepOwner {
		a = account{uid: h.Uid, gid: h.Gid}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	// No directory on the way may be a symbolic link of the archive.
	parts := strings.Split(strings.Trim(path.Dir(rel), "/"), "/")
	at := strings.TrimSuffix(base, "/")
	for _, part := range parts {
		if part == "" {
			continue
		}
		at += "/" + part
		switch p, err := f.walk(at, false); {
		case err != nil:
			return pathError("mkdir", at, err)
		case p.node == nil:
			f.create(p, f.newNode(fs.ModeDir|0o755), a)
		case p.node.mode.Type() == fs.ModeSymlink:
			return refuse("the entry lies behind a symbolic link")
		case !p.node.mode.IsDir():
			return pathError("mkdir", at, syscall.ENOTDIR)
		}
	}
	p, err := f.walk(full, false)
	if err != nil {
		return pathError("open", full, err)
	}
	if old := p.node; old != nil {
		isDir := h.Typeflag == tar.TypeDir
		if old.mode.IsDir() != isDir && opts.NoOverwriteDir {
			return pathError("open", full, syscall.EEXIST)
		}
		if isDir && old.mode.IsDir() {
			old.mode = fs.ModeDir | modeOf(h.Mode)
			return nil
		}
		f.unlink(p)
	}
	var n *node
	switch h.Typeflag {
	case tar.TypeDir:
		n = f.newNode(fs.ModeDir | modeOf(h.Mode))
	case tar.TypeReg:
		n = f.newNode(modeOf(h.Mode))
		if n.data, err = io.ReadAll(r); err != nil {
			return &box.Error{Kind: box.Invalid, Op: "copy in", Object: h.Name, Err: err}
		}
	case tar.TypeSymlink:
		n = f.newNode(fs.ModeSymlink | 0o777)
		n.target = h.Linkname
	case tar.TypeLink:
		target, ok := inside(h.Linkname)
		if !ok {
			return refuse("the hard link leads out of the directory")
		}
		old, err := f.find(strings.TrimSuffix(base, "/")+target, false)
		if err != nil {
			return pathError("link", target, err)
		}
		old.node.links++
		p.parent().kids[p.name] = old.node
		return nil
	default:
		return refuse("the entry is neither file, directory nor link")
	}
	f.create(p, n, a)
	n.mtime = h.ModTime
	if h.ModTime.IsZero() {
		n.mtime = time.Now()
	}
	return nil
}
