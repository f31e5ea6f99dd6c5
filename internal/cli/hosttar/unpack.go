package hosttar

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

// maxEntries bounds what a tar can make this process remember.
const maxEntries = 4 << 20

// Unpack writes the tar r into dir, an existing directory of the host. Every
// entry must be called top or lie below it; with "." all of dir is allowed. An
// entry takes the place of a file that is there; it never replaces a directory
// by a file or the reverse, and directories that are there keep their mode.
//
// owners sets the numeric owners of the tar, which usually takes root.
// Devices and named pipes are refused. What was unpacked before an error stays.
func Unpack(ctx context.Context, dir string, r io.Reader, top string, owners bool) (err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	u := unpacker{root: root, top: top, owners: owners}
	// Modes and times of directories come last: unpacking into a directory
	// needs it writable and changes its time.
	defer func() { err = errors.Join(err, u.finish()) }()
	tr := tar.NewReader(r)
	for n := 0; ; n++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			// The rest of the stream is padding; the sender wants to be heard
			// to its end.
			_, err := io.Copy(io.Discard, r)
			return err
		}
		if err != nil {
			return fmt.Errorf("read the tar: %w", err)
		}
		if n >= maxEntries {
			return fmt.Errorf("the tar has more than %d entries; copy its folders one by one", maxEntries)
		}
		if err := u.entry(h, tr); err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
}

type unpacker struct {
	root   *os.Root
	top    string
	owners bool
	dirs   []madeDir
}

type madeDir struct {
	name string
	mode fs.FileMode
	time time.Time
}

// name checks a name of the tar and returns it clean.
func (u *unpacker) name(name string) (string, error) {
	clean := path.Clean(strings.TrimSuffix(name, "/"))
	switch {
	case name == "" || strings.HasPrefix(name, "/") || clean == ".." || strings.HasPrefix(clean, "../"):
		return "", errors.New("the name points outside of what was asked for")
	case u.top != "." && clean != u.top && !strings.HasPrefix(clean, u.top+"/"):
		return "", errors.New("the name points outside of what was asked for")
	}
	return clean, nil
}

// parents refuses a name that goes through anything but directories.
func (u *unpacker) parents(name string) error {
	for i, c := range name {
		if c != '/' {
			continue
		}
		fi, err := u.root.Lstat(name[:i])
		if err != nil {
			return err
		}
		if !fi.IsDir() {
			return fmt.Errorf("%s is no directory", name[:i])
		}
	}
	return nil
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	name, err := u.name(h.Name)
	if err != nil {
		return err
	}
	if err := u.parents(name); err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode) & fs.ModePerm
	if h.Typeflag == tar.TypeDir {
		return u.dir(name, mode, h)
	}
	if name == "." {
		return errors.New("a file cannot take the folder's place")
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return errors.New("sparse entries are not taken")
		}
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return u.file(name, mode, h, r)
	case tar.TypeSymlink:
		if err := u.clear(name); err != nil {
			return err
		}
		if err := u.root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return u.chown(name, h)
	case tar.TypeLink:
		target, err := u.name(h.Linkname)
		if err != nil {
			return fmt.Errorf("hard link to %q: %w", h.Linkname, err)
		}
		if err := u.parents(target); err != nil {
			return err
		}
		if target == name {
			return nil
		}
		if err := u.clear(name); err != nil {
			return err
		}
		return u.root.Link(target, name)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return errors.New("devices and named pipes are not copied to the host; leave it out")
	}
	return fmt.Errorf("entries of type %q are not taken", h.Typeflag)
}

func (u *unpacker) dir(name string, mode fs.FileMode, h *tar.Header) error {
	err := u.root.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		fi, err := u.root.Lstat(name)
		if err == nil && !fi.IsDir() {
			err = errors.New("a directory cannot replace a file")
		}
		return err
	}
	if err != nil {
		return err
	}
	u.dirs = append(u.dirs, madeDir{name, mode, h.ModTime})
	return u.chown(name, h)
}

func (u *unpacker) file(name string, mode fs.FileMode, h *tar.Header, r io.Reader) error {
	if err := u.clear(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err == nil && u.owners {
		err = f.Chown(h.Uid, h.Gid)
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = u.root.Remove(name) // half a file is worse than none
		return err
	}
	return u.root.Chtimes(name, h.ModTime, h.ModTime)
}

// clear makes place for something that is no directory.
func (u *unpacker) clear(name string) error {
	fi, err := u.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.IsDir() {
		return errors.New("a file cannot replace a directory")
	}
	return u.root.Remove(name)
}

func (u *unpacker) chown(name string, h *tar.Header) error {
	if !u.owners {
		return nil
	}
	return u.root.Lchown(name, h.Uid, h.Gid)
}

func (u *unpacker) finish() error {
	var errs []error
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		// A hostile tar cannot have replaced it: directories are not removed.
		errs = append(errs, u.root.Chmod(d.name, d.mode), u.root.Chtimes(d.name, d.time, d.time))
	}
	return errors.Join(errs...)
}
