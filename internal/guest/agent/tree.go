//go:build linux

package agent

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

// tree opens directories below a root and never above it, whatever links are
// on the way and whoever changes them meanwhile: every step opens one element
// in an open directory, without following it. A link is read and its target
// walked from the root.
type tree struct {
	root     int
	name     string // for messages
	isSlash  bool   // the root is "/": then links to absolute paths are below it
	cached   int    // the directory last used by dir, or -1
	cachedAt []string
	stale    bool // cached may no longer be what its name leads to
}

// openTree opens a root, which may be reached by links.
func openTree(dir string) (*tree, error) {
	real, err := realpath(dir)
	if err != nil {
		return nil, pathError("unpack", dir, err)
	}
	fd, err := unix.Open(real, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, pathError("unpack", dir, err)
	}
	return &tree{root: fd, name: strings.TrimSuffix(dir, "/"), isSlash: real == "/", cached: -1}, nil
}

func (t *tree) close() {
	if t.cached >= 0 {
		unix.Close(t.cached)
	}
	unix.Close(t.root)
}

// changed says that a link or a directory was replaced. What dir returned last
// stays open until it is called again.
func (t *tree) changed() { t.stale = true }

func (t *tree) path(elems []string) string { return t.name + "/" + strings.Join(elems, "/") }

// openDirAt opens a directory of fd, and refuses a link to one with ELOOP.
//
// It takes two steps, since gVisor (20260905) follows the link when an open
// asks for O_DIRECTORY and O_NOFOLLOW together: a descriptor of whatever is
// there, and, once that is known to be a directory, one that can be read.
func openDirAt(fd int, name string) (dir int, err error) {
	var at int
	err = ignoringEINTR(func() (err error) {
		at, err = unix.Openat(fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return 0, err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstatat(at, "", &st, unix.AT_EMPTY_PATH); err != nil {
		return 0, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
	case unix.S_IFLNK:
		return 0, unix.ELOOP
	default:
		return 0, unix.ENOTDIR
	}
	err = ignoringEINTR(func() (err error) {
		dir, err = unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	return dir, err
}

// dir returns the directory at elems, making what is missing for owner. The
// descriptor is the tree's and good until the next call.
func (t *tree) dir(elems []string, owner account) (int, error) {
	if len(elems) == 0 {
		return t.root, nil
	}
	if t.cached >= 0 && !t.stale && slices.Equal(t.cachedAt, elems) {
		return t.cached, nil
	}
	fd, err := t.walk(elems, &owner)
	if err != nil {
		return 0, err
	}
	if t.cached >= 0 {
		unix.Close(t.cached)
	}
	t.cached, t.cachedAt, t.stale = fd, slices.Clone(elems), false
	return fd, nil
}

// open opens the directory at elems. The caller closes the descriptor.
func (t *tree) open(elems []string) (int, error) {
	if len(elems) == 0 {
		return unix.FcntlInt(uintptr(t.root), unix.F_DUPFD_CLOEXEC, 0)
	}
	return t.walk(elems, nil)
}

// maxDepth bounds how deep below its root a tree goes.
const maxDepth = 512

// walk opens the directory at elems; with owner it makes what is missing. It
// holds every directory on the way open, so that ".." in a link is the
// directory it came through, and not what its name says by then.
func (t *tree) walk(elems []string, owner *account) (int, error) {
	var stack []int
	defer func() {
		for _, fd := range stack {
			unix.Close(fd)
		}
	}()
	top := func() int {
		if len(stack) == 0 {
			return t.root
		}
		return stack[len(stack)-1]
	}
	fail := func(err error) (int, error) { return 0, pathError("open", t.path(elems), err) }
	queue := slices.Clone(elems)
	for links := 0; len(queue) > 0; {
		e := queue[0]
		queue = queue[1:]
		switch e {
		case "", ".":
			continue
		case "..":
			if len(stack) > 0 {
				unix.Close(top())
				stack = stack[:len(stack)-1]
			} else if !t.isSlash {
				return 0, t.escape(elems)
			}
			continue
		}
		fd, err := step(top(), e, owner)
		if err == nil {
			stack = append(stack, fd)
			if len(stack) > maxDepth {
				return fail(unix.ENAMETOOLONG)
			}
			continue
		}
		if err != unix.ELOOP && err != unix.ENOTDIR {
			return fail(err)
		}
		target, lerr := readlinkAt(top(), e)
		if lerr != nil {
			return fail(unix.ENOTDIR)
		}
		if links++; links > 40 {
			return fail(unix.ELOOP)
		}
		if strings.HasPrefix(target, "/") {
			if !t.isSlash {
				return 0, t.escape(elems)
			}
			for _, fd := range stack {
				unix.Close(fd)
			}
			stack = nil
		}
		queue = append(strings.Split(target, "/"), queue...)
	}
	if len(stack) == 0 {
		return unix.FcntlInt(uintptr(t.root), unix.F_DUPFD_CLOEXEC, 0)
	}
	fd := top()
	stack = stack[:len(stack)-1]
	return fd, nil
}

// step opens the directory name in the directory at fd; with owner it makes it
// when it is missing.
func step(fd int, name string, owner *account) (int, error) {
	next, err := openDirAt(fd, name)
	if err != unix.ENOENT || owner == nil {
		return next, err
	}
	made := unix.Mkdirat(fd, name, 0o755)
	if made != nil && made != unix.EEXIST {
		return 0, made
	}
	if next, err = openDirAt(fd, name); err != nil || made != nil {
		return next, err
	}
	if err = fgiveTo(next, *owner); err == nil {
		err = unix.Fchmod(next, 0o755)
	}
	if err != nil {
		unix.Close(next)
	}
	return next, err
}

func (t *tree) escape(elems []string) error {
	return &box.Error{
		Kind: box.Invalid, Op: "unpack", Object: t.path(elems),
		Err: errors.New("a symbolic link on the way leads out of the directory"),
	}
}

// removeTreeAt removes a directory with all below it, following nothing.
func removeTreeAt(parent int, name, path string) error {
	fd, err := openDirAt(parent, name)
	if err != nil {
		return pathError("remove", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return pathError("remove", path, err)
	}
	for _, n := range names {
		err := unix.Unlinkat(fd, n, 0)
		if err == unix.EISDIR || err == unix.EPERM {
			if err := removeTreeAt(fd, n, path+"/"+n); err != nil {
				return err
			}
			continue
		}
		if err != nil && err != unix.ENOENT {
			return pathError("remove", path+"/"+n, err)
		}
	}
	if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		return pathError("remove", path, err)
	}
	return nil
}
