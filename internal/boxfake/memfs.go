package boxfake

import (
	"errors"
	"io/fs"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// node is a file of any type.
type node struct {
	mode     fs.FileMode
	uid, gid int
	mtime    time.Time
	ino      uint64
	links    int
	data     []byte
	kids     map[string]*node
	target   string
	program  string // of a file in /bin: the Go function that it stands for
	device   string // null, zero, random
}

// memFS is the file system of one box.
type memFS struct {
	mu       sync.Mutex
	root     *node
	inodes   uint64
	watchers map[*watcher]bool
}

func newFS() *memFS {
	f := &memFS{watchers: make(map[*watcher]bool)}
	f.root = f.newNode(fs.ModeDir | 0o755)
	return f
}

func (f *memFS) newNode(mode fs.FileMode) *node {
	f.inodes++
	n := &node{mode: mode, mtime: time.Now(), ino: f.inodes, links: 1}
	if mode.IsDir() {
		n.kids = make(map[string]*node)
		n.links = 2
	}
	return n
}

// place is where a path leads: the directories on the way, root first, and the
// node, nil when only the last name is missing.
type place struct {
	dirs  []*node
	names []string // of dirs, without the root's
	node  *node
	name  string // in the last of dirs; empty: the root itself
}

func (p place) parent() *node { return p.dirs[len(p.dirs)-1] }

func (p place) path() string {
	s := "/" + strings.Join(p.names, "/")
	if p.name == "" {
		return s
	}
	return strings.TrimSuffix(s, "/") + "/" + p.name
}

// walk resolves an absolute path as a kernel does.
func (f *memFS) walk(path string, follow bool) (place, error) {
	p := place{dirs: []*node{f.root}}
	todo := strings.Split(path, "/")
	slash := strings.HasSuffix(path, "/")
	cur := f.root
	push := func() error {
		// The node found last becomes a directory on the way.
		if p.name == "" {
			return nil
		}
		if !cur.mode.IsDir() {
			return syscall.ENOTDIR
		}
		p.dirs, p.names, p.name = append(p.dirs, cur), append(p.names, p.name), ""
		return nil
	}
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		if name == "" || name == "." {
			continue
		}
		if cur == nil {
			return p, syscall.ENOENT
		}
		if err := push(); err != nil {
			return p, err
		}
		if name == ".." {
			if len(p.dirs) > 1 {
				p.dirs, p.names = p.dirs[:len(p.dirs)-1], p.names[:len(p.names)-1]
			}
			cur = p.parent()
			// Normalise to the directory's own place in its parent.
			if len(p.dirs) > 1 {
				p.name = p.names[len(p.names)-1]
				p.dirs, p.names = p.dirs[:len(p.dirs)-1], p.names[:len(p.names)-1]
			}
			continue
		}
		if len(name) > 255 {
			return p, syscall.ENAMETOOLONG
		}
		child := p.parent().kids[name]
		last := true
		for _, rest := range todo {
			if rest != "" && rest != "." {
				last = false
			}
		}
		if child != nil && child.mode.Type() == fs.ModeSymlink && (follow || !last || slash) {
			if links++; links > 40 {
				return p, syscall.ELOOP
			}
			todo = append(strings.Split(child.target, "/"), todo...)
			if strings.HasPrefix(child.target, "/") {
				p.dirs, p.names, cur = p.dirs[:1], nil, f.root
			} else {
				cur = p.parent()
			}
			continue
		}
		p.name, cur = name, child
	}
	if p.name == "" {
		cur = p.parent()
	}
	if slash && cur != nil && !cur.mode.IsDir() {
		return p, syscall.ENOTDIR
	}
	p.node = cur
	return p, nil
}

// find is walk for a file that must exist.
func (f *memFS) find(path string, follow bool) (place, error) {
	p, err := f.walk(path, follow)
	if err == nil && p.node == nil {
		err = syscall.ENOENT
	}
	return p, err
}

func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

func (f *memFS) info(name string, n *node) box.FileInfo {
	fi := box.FileInfo{
		FileName: name, FileSize: int64(len(n.data)), FileMode: n.mode, Modified: n.mtime,
		UID: n.uid, GID: n.gid, User: userName(n.uid), Group: userName(n.gid), Inode: n.ino, Links: uint64(n.links), Target: n.target,
	}
	if n.mode.Type() == fs.ModeSymlink {
		fi.FileSize = int64(len(n.target))
	}
	return fi
}

func (f *memFS) stat(path string, follow bool) (box.FileInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(path, follow)
	if err != nil {
		return box.FileInfo{}, pathError("stat", path, err)
	}
	return f.info(baseName(path), p.node), nil
}

func baseName(path string) string {
	path = strings.TrimRight(path, "/")
	if path == "" {
		return "/"
	}
	return path[strings.LastIndexByte(path, '/')+1:]
}

func (f *memFS) readDir(path string) ([]box.FileInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(path, true)
	if err == nil && !p.node.mode.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, pathError("open", path, err)
	}
	infos := []box.FileInfo{}
	for name, n := range p.node.kids {
		infos = append(infos, f.info(name, n))
	}
	sort.Slice(infos, func(i, j int) bool { return infos[i].FileName < infos[j].FileName })
	return infos, nil
}

// create makes n the entry of a missing place.
func (f *memFS) create(p place, n *node, a account) {
	n.uid, n.gid = a.uid, a.gid
	p.parent().kids[p.name] = n
	p.parent().mtime = time.Now()
	if n.mode.IsDir() {
		p.parent().links++
	}
	f.changed(p.path(), "create")
}

func (f *memFS) mkdir(path string, perm fs.FileMode, parents bool, a account) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return pathError("mkdir", path, f.mkdirLocked(path, perm, parents, a))
}

func (f *memFS) mkdirLocked(path string, perm fs.FileMode, parents bool, a account) error {
	p, err := f.walk(path, parents)
	if parents && errors.Is(err, syscall.ENOENT) {
		trimmed := strings.TrimRight(path, "/")
		if err := f.mkdirLocked(trimmed[:strings.LastIndexByte(trimmed, '/')+1], perm, true, a); err != nil {
			return err
		}
		p, err = f.walk(path, true)
	}
	switch {
	case err != nil:
		return err
	case p.node != nil && parents && p.node.mode.IsDir():
		return nil
	case p.node != nil && parents:
		return syscall.ENOTDIR
	case p.node != nil:
		return syscall.EEXIST
	}
	f.create(p, f.newNode(fs.ModeDir|perm&(fs.ModePerm|fs.ModeSticky|fs.ModeSetgid)), a)
	return nil
}

func (f *memFS) remove(path string, recursive bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	trimmed := strings.TrimRight(path, "/")
	p, err := f.walk(trimmed, false)
	switch {
	case recursive && (errors.Is(err, syscall.ENOENT) || err == nil && p.node == nil):
		return nil
	case err == nil && p.node == nil:
		err = syscall.ENOENT
	case err == nil && p.name == "":
		err = syscall.EBUSY
	case err == nil && !recursive && len(p.node.kids) > 0:
		err = syscall.ENOTEMPTY
	}
	if err != nil {
		return pathError("remove", path, err)
	}
	f.unlink(p)
	f.changed(p.path(), "remove")
	return nil
}

func (f *memFS) unlink(p place) {
	delete(p.parent().kids, p.name)
	p.parent().mtime = time.Now()
	p.node.links--
	if p.node.mode.IsDir() {
		p.parent().links--
		p.node.links = 0
	}
}

func (f *memFS) rename(oldPath, newPath string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, err := f.find(strings.TrimRight(oldPath, "/"), false)
	if err != nil {
		return pathError("rename", oldPath, err)
	}
	to, err := f.walk(strings.TrimRight(newPath, "/"), false)
	if err != nil {
		return pathError("rename", newPath, err)
	}
	if from.name == "" || to.name == "" {
		return pathError("rename", oldPath, syscall.EBUSY)
	}
	for _, d := range to.dirs {
		if d == from.node {
			return pathError("rename", newPath, syscall.EINVAL)
		}
	}
	if to.node == from.node {
		return nil
	}
	if to.node != nil {
		switch dir, newDir := from.node.mode.IsDir(), to.node.mode.IsDir(); {
		case dir && !newDir:
			return pathError("rename", newPath, syscall.ENOTDIR)
		case !dir && newDir:
			return pathError("rename", newPath, syscall.EISDIR)
		case newDir && len(to.node.kids) > 0:
			return pathError("rename", newPath, syscall.ENOTEMPTY)
		}
		f.unlink(to)
	}
	delete(from.parent().kids, from.name)
	to.parent().kids[to.name] = from.node
	if from.node.mode.IsDir() {
		from.parent().links--
		to.parent().links++
	}
	from.parent().mtime, to.parent().mtime = time.Now(), time.Now()
	f.changed(from.path(), "rename")
	f.changed(to.path(), "create")
	return nil
}

// change runs do on the node at path.
func (f *memFS) change(op, path string, follow bool, do func(n *node)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(path, follow)
	if err != nil {
		return pathError(op, path, err)
	}
	do(p.node)
	f.changed(p.path(), "chmod")
	return nil
}

func (f *memFS) symlink(target, path string, a account) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.walk(path, false)
	if err == nil && p.node != nil {
		err = syscall.EEXIST
	}
	if err != nil {
		return pathError("symlink", path, err)
	}
	n := f.newNode(fs.ModeSymlink | 0o777)
	n.target = target
	f.create(p, n, a)
	return nil
}

func (f *memFS) link(oldPath, newPath string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, err := f.find(oldPath, false)
	if err == nil && from.node.mode.IsDir() {
		err = syscall.EPERM
	}
	if err != nil {
		return pathError("link", oldPath, err)
	}
	to, err := f.walk(newPath, false)
	if err == nil && to.node != nil {
		err = syscall.EEXIST
	}
	if err != nil {
		return pathError("link", newPath, err)
	}
	from.node.links++
	to.parent().kids[to.name] = from.node
	f.changed(to.path(), "create")
	return nil
}

func (f *memFS) readlink(path string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(path, false)
	if err == nil && p.node.mode.Type() != fs.ModeSymlink {
		err = syscall.EINVAL
	}
	if err != nil {
		return "", pathError("readlink", path, err)
	}
	return p.node.target, nil
}

func (f *memFS) realpath(path string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(path, true)
	if err != nil {
		return "", pathError("realpath", path, err)
	}
	return p.path(), nil
}
