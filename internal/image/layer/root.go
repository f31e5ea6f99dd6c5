package layer

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// dir is an open directory of the tree.
type dir struct {
	fd  int    // O_PATH
	ino uint64 // its inode number, which names it within the tree
}

// root resolves paths inside one directory the way the kernel would after a
// chroot into it: absolute links start at the root, ".." stops there. It does
// so by hand, one component at a time and never through a link that the kernel
// follows, so it needs no privilege and no recent kernel, and cannot leave.
type root struct {
	fd    int
	cache map[string]dir // resolved directories; forgotten when a directory or link goes
	dead  []dir          // no longer in the cache, perhaps still in use: closed by sweep
	made  func(parent dir, name string, ino uint64)
}

// cacheSize bounds the descriptors that the cache holds.
const cacheSize = 64

// forget drops what was resolved so far. Descriptors stay open until sweep.
func (r *root) forget() {
	for p, d := range r.cache {
		r.dead = append(r.dead, d)
		delete(r.cache, p)
	}
}

// sweep closes what was forgotten. Nothing that openDir returned before the
// last forget may be used afterwards.
func (r *root) sweep() {
	for _, d := range r.dead {
		unix.Close(d.fd)
	}
	r.dead = r.dead[:0]
}

// openDir resolves p, a clean path without a leading slash ("" is the root),
// following links, and makes the directories that are missing when create is
// set. The result belongs to the cache and stays valid until sweep.
func (r *root) openDir(p string, create bool) (dir, error) {
	if d, ok := r.cache[p]; ok {
		return d, nil
	}
	d, err := r.walk(p, create)
	if err != nil {
		return dir{}, err
	}
	if len(r.cache) >= cacheSize {
		r.forget()
	}
	r.cache[p] = d
	return d, nil
}

func (r *root) walk(p string, create bool) (dir, error) {
	var (
		todo  = strings.Split(p, "/")
		real  []string // where we are, free of links
		links int
	)
	cur, err := openDirAt(r.fd, ".")
	if err != nil {
		return dir{}, err
	}
	ok := false
	defer func() {
		if !ok {
			unix.Close(cur.fd)
		}
	}()
	step := func(name string) error {
		next, err := openDirAt(cur.fd, name)
		if err != nil {
			return err
		}
		unix.Close(cur.fd)
		cur = next
		return nil
	}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			// Never the kernel's "..": walk down again to the parent.
			if len(real) == 0 {
				continue
			}
			real = real[:len(real)-1]
			top, err := openDirAt(r.fd, ".")
			if err != nil {
				return dir{}, err
			}
			unix.Close(cur.fd)
			cur = top
			for _, name := range real {
				if err := step(name); err != nil {
					return dir{}, err
				}
			}
			continue
		}
		if len(real) >= maxDepth {
			return dir{}, limitError(fmt.Sprintf("a path is more than %d directories deep", maxDepth))
		}
		err := step(name)
		if errors.Is(err, unix.ENOENT) && create {
			parent := cur
			if err := unix.Mkdirat(cur.fd, name, 0o700); err != nil {
				return dir{}, os.NewSyscallError("mkdir", err)
			}
			next, err := openDirAt(parent.fd, name)
			if err != nil {
				return dir{}, err
			}
			r.made(parent, name, next.ino)
			unix.Close(cur.fd)
			cur = next
			real = append(real, name)
			continue
		}
		if err == nil {
			real = append(real, name)
			continue
		}
		if !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
			return dir{}, err
		}
		target, lerr := readlinkAt(cur.fd, name)
		if lerr != nil {
			return dir{}, malformedf("%q is used as a directory but is none", p)
		}
		if links++; links > maxSymlinks {
			return dir{}, malformedf("%q passes through more than %d symbolic links", p, maxSymlinks)
		}
		if strings.HasPrefix(target, "/") {
			top, err := openDirAt(r.fd, ".")
			if err != nil {
				return dir{}, err
			}
			unix.Close(cur.fd)
			cur, real = top, nil
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	ok = true
	return cur, nil
}

// openDirAt opens the directory name in fd, not following a link.
func openDirAt(fd int, name string) (dir, error) {
	got, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return dir{}, os.NewSyscallError("open", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(got, &st); err != nil {
		unix.Close(got)
		return dir{}, os.NewSyscallError("stat", err)
	}
	return dir{fd: got, ino: st.Ino}, nil
}

func readlinkAt(fd int, name string) (string, error) {
	buf := make([]byte, maxPathLen)
	n, err := unix.Readlinkat(fd, name, buf)
	if err != nil {
		return "", os.NewSyscallError("readlink", err)
	}
	return string(buf[:n]), nil
}
