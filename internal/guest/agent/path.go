//go:build linux

package agent

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
)

// absolute makes a path absolute without changing what it means: ".." is left
// to the kernel, which knows the links.
func (a *Agent) absolute(p string) string {
	if strings.HasPrefix(p, "/") {
		return p
	}
	return strings.TrimSuffix(a.cfg.Dir, "/") + "/" + p
}

// path checks a path of a request.
func (a *Agent) path(op string, b []byte) (string, error) {
	if len(b) == 0 {
		return "", invalid(op, "path", "is empty", "")
	}
	if bytes.IndexByte(b, 0) >= 0 {
		return "", invalid(op, "path", "contains a zero byte", "")
	}
	return a.absolute(string(b)), nil
}

func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// specialError is for a file that is no file: reading one could wait for ever
// or have effects.
func specialError(op, path string, mode uint32) error {
	what := "special file"
	switch mode & unix.S_IFMT {
	case unix.S_IFIFO:
		what = "named pipe"
	case unix.S_IFSOCK:
		what = "socket"
	case unix.S_IFCHR, unix.S_IFBLK:
		what = "device"
	}
	return &box.Error{
		Kind: box.Invalid, Op: op, Object: path, Err: errors.New("is a " + what + ", not a regular file"),
		Hint: "use a command in the box for it",
	}
}

// checkRegular refuses what is no regular file.
func checkRegular(op, path string, mode uint32) error {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return pathError(op, path, syscall.EISDIR)
	}
	return specialError(op, path, mode)
}

// ignoringEINTR repeats a system call that a signal interrupted.
func ignoringEINTR(fn func() error) error {
	for {
		if err := fn(); err != unix.EINTR {
			return err
		}
	}
}

// infoMaker describes files; it holds the box's names for one request.
type infoMaker struct {
	users, groups map[uint32]string
}

func (a *Agent) infos() infoMaker {
	u, g := a.accounts.names()
	return infoMaker{u, g}
}

func (m infoMaker) make(name string, st *unix.Stat_t, link string) *hutchv1.FileInfo {
	return &hutchv1.FileInfo{
		Name:     []byte(name),
		Size:     st.Size,
		Mode:     st.Mode,
		Modified: timestamppb.New(time.Unix(st.Mtim.Unix())),
		Uid:      st.Uid,
		Gid:      st.Gid,
		Inode:    st.Ino,
		Links:    uint64(st.Nlink),
		Link:     []byte(link),
		User:     strings.ToValidUTF8(m.users[st.Uid], "?"),
		Group:    strings.ToValidUTF8(m.groups[st.Gid], "?"),
	}
}

// describe is the information on an open file.
func (a *Agent) describe(path string, fd int) (*hutchv1.FileInfo, error) {
	var st unix.Stat_t
	if err := ignoringEINTR(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return nil, pathError("stat", path, err)
	}
	return a.infos().make(filepath.Base(path), &st, ""), nil
}

// lastTarget follows symbolic links at the end of path, the last of which may
// point to nothing. What it returns is the file itself or the place for it.
func lastTarget(op, path string) (string, *unix.Stat_t, error) {
	p := path
	for range 40 {
		var st unix.Stat_t
		err := ignoringEINTR(func() error { return unix.Lstat(p, &st) })
		if err == unix.ENOENT {
			return p, nil, nil
		}
		if err != nil {
			return "", nil, pathError(op, path, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			return p, &st, nil
		}
		target, err := readlinkAt(unix.AT_FDCWD, p)
		if err != nil {
			return "", nil, pathError(op, path, err)
		}
		if !strings.HasPrefix(target, "/") {
			target = parent(p) + "/" + target
		}
		p = target
	}
	return "", nil, pathError(op, path, syscall.ELOOP)
}

// parent is the directory that holds path's last element, left as written.
func parent(path string) string {
	p := strings.TrimRight(path, "/")
	i := strings.LastIndexByte(p, '/')
	if i <= 0 {
		return "/"
	}
	return p[:i]
}

func readlinkAt(dirfd int, name string) (string, error) {
	for size := 256; ; size *= 2 {
		buf := make([]byte, size)
		var n int
		err := ignoringEINTR(func() (err error) {
			n, err = unix.Readlinkat(dirfd, name, buf)
			return err
		})
		if err != nil {
			return "", err
		}
		if n < size {
			return string(buf[:n]), nil
		}
	}
}

// makeParents creates the missing directories above path for owner.
func makeParents(path string, owner account) error {
	return makeDirs(parent(path), 0o755, owner)
}

// makeDirs creates dir and what is missing above it for owner.
func makeDirs(dir string, mode uint32, owner account) error {
	var st unix.Stat_t
	err := ignoringEINTR(func() error { return unix.Stat(dir, &st) })
	if err == nil {
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return pathError("mkdir", dir, syscall.ENOTDIR)
		}
		return nil
	}
	if err != unix.ENOENT {
		return pathError("mkdir", dir, err)
	}
	if up := parent(dir); up != dir {
		if err := makeDirs(up, mode, owner); err != nil {
			return err
		}
	}
	err = makeDir(dir, mode, owner)
	if errors.Is(err, unix.EEXIST) {
		// Made by somebody else just now, or a link to nothing.
		if serr := unix.Stat(dir, &st); serr != nil {
			return pathError("mkdir", dir, serr)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return nil
		}
	}
	return err
}

// makeDir creates one directory with exactly mode for owner.
func makeDir(dir string, mode uint32, owner account) error {
	err := ignoringEINTR(func() error { return unix.Mkdir(dir, mode&0o7777) })
	if err != nil {
		return pathError("mkdir", dir, err)
	}
	if err := giveTo(dir, owner); err != nil {
		return pathError("chown", dir, err)
	}
	// The umask took bits away, and chown may have.
	return pathError("chmod", dir, unix.Chmod(dir, mode&0o7777))
}

// giveTo makes owner the owner of a new file. The agent's own files are its
// own already.
func giveTo(path string, owner account) error {
	if int(owner.uid) == unix.Geteuid() && int(owner.gid) == unix.Getegid() {
		return nil
	}
	return unix.Lchown(path, int(owner.uid), int(owner.gid))
}

func fgiveTo(fd int, owner account) error {
	if int(owner.uid) == unix.Geteuid() && int(owner.gid) == unix.Getegid() {
		return nil
	}
	return unix.Fchown(fd, int(owner.uid), int(owner.gid))
}

// owner resolves the owner of what a request creates.
func (a *Agent) owner(spec string) (account, error) {
	if spec == "" {
		spec = a.cfg.User
	}
	return a.accounts.lookup(spec)
}
