package layer

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// RemoveAll removes dir and what is in it, directories that lack write
// permission included. It follows no link and is content when dir is gone
// already. Run it in the user namespace that the tree was unpacked in: files
// of mapped users cannot be removed from outside.
func RemoveAll(dir string) error {
	parent, err := unix.Open(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Dir(dir), Err: err}
	}
	defer unix.Close(parent)
	if err := removeAt(parent, filepath.Base(dir), 0); err != nil {
		return &os.PathError{Op: "remove", Path: dir, Err: err}
	}
	return nil
}

// removeDepth bounds the recursion, and so the descriptors it holds. It is
// above what Unpack makes, since a box may have nested deeper.
const removeDepth = 4 * maxDepth

// removeAt removes the entry name of the directory fd, whatever it is.
func removeAt(fd int, name string, depth int) error {
	err := unix.Unlinkat(fd, name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return os.NewSyscallError("unlink", err)
	}
	if depth > removeDepth {
		return errors.New("directories are nested too deep")
	}
	// Somebody may still be writing: a helper whose parent was just killed
	// takes a moment to die.
	for try := 0; ; try++ {
		sub, err := openToEmpty(fd, name)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		err = removeChildren(sub, depth+1)
		unix.Close(sub)
		if err != nil {
			return err
		}
		err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.ENOTEMPTY) && try < 20:
			time.Sleep(10 * time.Millisecond)
		default:
			return os.NewSyscallError("rmdir", err)
		}
	}
}

// openToEmpty opens the directory name of fd for reading and makes sure that
// its entries can be removed.
func openToEmpty(fd int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	sub, err := unix.Openat(fd, name, flags, 0)
	if errors.Is(err, unix.EACCES) {
		// name is a directory (a link would have been ENOTDIR or ELOOP), and
		// nobody else changes this tree.
		if err := unix.Fchmodat(fd, name, 0o700, 0); err != nil {
			return -1, os.NewSyscallError("chmod", err)
		}
		sub, err = unix.Openat(fd, name, flags, 0)
	}
	if err != nil {
		return -1, os.NewSyscallError("open", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(sub, &st); err == nil && st.Mode&0o300 != 0o300 {
		// Ignored: as root it is not needed, and where it is needed and fails
		// the removal says so.
		_ = unix.Fchmod(sub, st.Mode&0o7777|0o700)
	}
	return sub, nil
}

// removeChildren empties the directory fd, which is open for reading.
func removeChildren(fd, depth int) error {
	return eachName(fd, func(name string, _ os.FileMode) (gone bool, err error) {
		return true, removeAt(fd, name, depth)
	})
}

// eachName calls f for every entry of the directory fd, which is open for
// reading. Removing entries while reading may make a filesystem skip some, so
// as long as f says that entries are gone, it reads the directory once more.
func eachName(fd int, f func(name string, typ os.FileMode) (gone bool, err error)) error {
	for {
		again, err := onePass(fd, f)
		if err != nil || !again {
			return err
		}
	}
}

// onePass calls f once for every entry of fd and reports whether any is gone.
func onePass(fd int, f func(name string, typ os.FileMode) (gone bool, err error)) (anyGone bool, err error) {
	own, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, os.NewSyscallError("open", err)
	}
	d := os.NewFile(uintptr(own), "dir")
	defer d.Close()
	for {
		names, err := d.ReadDir(256)
		for _, e := range names {
			gone, err := f(e.Name(), e.Type())
			if err != nil {
				return anyGone, err
			}
			anyGone = anyGone || gone
		}
		if err == io.EOF {
			return anyGone, nil
		}
		if err != nil {
			return anyGone, err
		}
	}
}

func isEmpty(fd int) (bool, error) {
	empty := true
	_, err := onePass(fd, func(string, os.FileMode) (bool, error) {
		empty = false
		return false, nil
	})
	return empty, err
}
