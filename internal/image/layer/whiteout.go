package layer

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// The names by which a layer hides what is below it: ".wh.x" hides x, and
// ".wh..wh..opq" everything in its directory. Other names that start with
// ".wh..wh." are notes of AUFS to itself.
const (
	whiteoutPrefix = ".wh."
	opaque         = ".wh..opq"
)

// whiteout applies the whiteout ".wh."+rest found in parent.
func (x *extractor) whiteout(parent dir, rest string) error {
	switch {
	case rest == "" || rest == "." || rest == "..":
		return malformedf("a whiteout of nothing")
	case rest == opaque:
		if x.first {
			return nil
		}
		fd, err := unix.Openat(parent.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("open", err)
		}
		defer unix.Close(fd)
		x.forget()
		return x.removeLowerIn(dir{fd: fd, ino: parent.ino})
	case strings.HasPrefix(rest, whiteoutPrefix):
		return nil
	case x.first:
		return nil
	}
	x.forget()
	_, err := x.removeLower(parent, rest)
	return err
}

// removeLowerIn removes from d, which is open for reading, what the current
// layer did not put there.
func (x *extractor) removeLowerIn(d dir) error {
	return eachName(d.fd, func(name string, _ os.FileMode) (bool, error) {
		return x.removeLower(d, name)
	})
}

// removeLower removes the entry name of parent as far as it comes from lower
// layers, and reports whether it did. A directory that the current layer put
// something into stays, even if it does not list the directory itself.
func (x *extractor) removeLower(parent dir, name string) (gone bool, err error) {
	_, mine := x.mine[x.key(parent.ino, name)]
	var st unix.Stat_t
	err = unix.Fstatat(parent.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, os.NewSyscallError("stat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if mine {
			return false, nil
		}
		return true, os.NewSyscallError("unlink", unix.Unlinkat(parent.fd, name, 0))
	}
	fd, err := unix.Openat(parent.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, os.NewSyscallError("open", err)
	}
	err = x.removeLowerIn(dir{fd: fd, ino: st.Ino})
	unix.Close(fd)
	if err != nil || mine {
		return false, err
	}
	err = unix.Unlinkat(parent.fd, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	return true, os.NewSyscallError("rmdir", err)
}
