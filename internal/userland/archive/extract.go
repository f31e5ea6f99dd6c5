package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// extractor puts members below a directory. It goes through an os.Root, which
// refuses every path that leaves the directory, by dots or by links.
type extractor struct {
	t      *tarRun
	root   *os.Root
	dirs   []pendingDir
	users  map[string]int
	groups map[string]int
	umask  fs.FileMode
	warned bool
}

func newExtractor(t *tarRun, dir string) (*extractor, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	m := unix.Umask(0)
	unix.Umask(m)
	x := &extractor{t: t, root: root, umask: fs.FileMode(m), users: map[string]int{}, groups: map[string]int{}}
	for _, a := range tool.Accounts("/etc/passwd") {
		x.users[a.Name] = a.ID
	}
	for _, a := range tool.Accounts("/etc/group") {
		x.groups[a.Name] = a.ID
	}
	return x, nil
}

func (x *extractor) close() { _ = x.root.Close() }

// clean makes a member's name relative and refuses those with "..".
func (x *extractor) clean(name string) (string, error) {
	if strings.HasPrefix(name, "/") {
		if !x.warned {
			x.warned = true
			x.t.c.Errorf("removing leading `/' from member names")
		}
		name = strings.TrimLeft(name, "/")
	}
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", errors.New("member name contains '..'; skipped")
	}
	return filepath.Clean(name), nil
}

func (x *extractor) member(h *tar.Header, r io.Reader) error {
	name, err := x.clean(h.Name)
	if err != nil {
		return err
	}
	if up := filepath.Dir(name); up != "." {
		if err := x.root.MkdirAll(up, 0o777); err != nil {
			return err
		}
	}
	mode := h.FileInfo().Mode()
	if h.Typeflag == tar.TypeDir {
		err := x.root.Mkdir(name, mode.Perm()|0o700)
		if err != nil {
			st, e := x.root.Stat(name)
			if e != nil || !st.IsDir() {
				return err
			}
			if name == "." || x.t.keepOld {
				return nil
			}
		}
		x.dirs = append(x.dirs, pendingDir{name, h})
		return nil
	}
	if st, err := x.root.Lstat(name); err == nil {
		if x.t.keepOld {
			return fs.ErrExist
		}
		if st.IsDir() {
			// An empty directory gives way, as with GNU tar.
			if err := x.root.Remove(name); err != nil {
				return unix.EISDIR
			}
		} else if err := x.root.Remove(name); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, '7', 0:
		f, err := x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		n, err := io.Copy(f, r)
		if e := f.Close(); err == nil {
			err = e
		}
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) || n < h.Size && !errors.As(err, new(*fs.PathError)) {
				return fmt.Errorf("%w: %s", errArchive, reason(err))
			}
			return err
		}
	case tar.TypeSymlink:
		if err := x.root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return x.owner(name, h)
	case tar.TypeLink:
		to, err := x.clean(h.Linkname)
		if err != nil {
			return err
		}
		return x.root.Link(to, name)
	case tar.TypeFifo, tar.TypeChar, tar.TypeBlock:
		// There is no mknod below a Root; the parent is opened through it.
		dir, err := x.root.Open(filepath.Dir(name))
		if err != nil {
			return err
		}
		defer dir.Close()
		kind := map[byte]uint32{tar.TypeFifo: unix.S_IFIFO, tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK}[h.Typeflag]
		if err := unix.Mknodat(int(dir.Fd()), filepath.Base(name), kind|0o600, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))); err != nil {
			return err
		}
	default:
		return fmt.Errorf("members of type '%c' are not supported", h.Typeflag)
	}
	return x.attributes(name, h)
}

func (x *extractor) owner(name string, h *tar.Header) error {
	if !x.t.owner {
		return nil
	}
	uid, gid := h.Uid, h.Gid
	if !x.t.numeric {
		if id, ok := x.users[h.Uname]; ok && h.Uname != "" {
			uid = id
		}
		if id, ok := x.groups[h.Gname]; ok && h.Gname != "" {
			gid = id
		}
	}
	return x.root.Lchown(name, uid, gid)
}

func (x *extractor) attributes(name string, h *tar.Header) error {
	if err := x.owner(name, h); err != nil {
		return err
	}
	mode := h.FileInfo().Mode()
	perm := mode.Perm()
	if x.t.keepMode {
		perm = mode & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
	} else {
		perm &^= x.umask
	}
	if err := x.root.Chmod(name, perm); err != nil {
		return err
	}
	if x.t.noTime {
		return nil
	}
	at := h.AccessTime
	if at.IsZero() {
		at = time.Now()
	}
	return x.root.Chtimes(name, at, h.ModTime)
}

// finish sets the attributes of directories, the deepest first.
func (x *extractor) finish() {
	for _, d := range slices.Backward(x.dirs) {
		if err := x.attributes(d.name, d.h); err != nil {
			x.t.fail("%s: %s", d.name, tool.Reason(err))
		}
	}
}
