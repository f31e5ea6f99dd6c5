//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
)

// Write creates or replaces a file with the stream's data.
func (s *filesService) Write(ctx context.Context, stream *connect.ClientStream[hutchv1.WriteRequest]) (*connect.Response[hutchv1.WriteResponse], error) {
	if !stream.Receive() {
		return nil, cutError("write", stream.Err())
	}
	h := stream.Msg().GetHeader()
	if h == nil {
		return nil, invalid("write", "header", "is missing in the first message", "")
	}
	path, err := s.a.path("write", h.GetPath())
	if err != nil {
		return nil, err
	}
	if h.GetAtomic() && h.GetAppend() {
		return nil, invalid("write", path, "atomic and append contradict each other", "choose one")
	}
	if strings.HasSuffix(path, "/") {
		return nil, pathError("write", path, syscall.EISDIR)
	}
	owner, err := s.a.owner(h.GetUser())
	if err != nil {
		return nil, err
	}
	if h.GetParents() {
		if err := makeParents(path, owner); err != nil {
			return nil, err
		}
	}
	w, err := openWriter(path, h, owner)
	if err != nil {
		return nil, err
	}
	defer w.abort()
	var written int64
	for {
		m := stream.Msg()
		n, err := w.file.Write(m.GetData())
		written += int64(n)
		if err != nil {
			return nil, pathError("write", path, err)
		}
		if m.GetComplete() {
			break
		}
		if !stream.Receive() {
			return nil, cutError("write "+path, stream.Err())
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := w.commit(h); err != nil {
		return nil, err
	}
	info, err := s.a.describe(path, int(w.file.Fd()))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hutchv1.WriteResponse{Written: written, Info: info}), nil
}

// cutError is for a stream that ended before its last message.
func cutError(op string, err error) error {
	if err == nil {
		err = errors.New("the stream ended before the message that completes it")
	}
	if ce, ok := errors.AsType[*connect.Error](err); ok && ce.Code() == connect.CodeInvalidArgument {
		return &box.Error{Kind: box.Invalid, Op: op, Err: err}
	}
	return &box.Error{Kind: box.Canceled, Op: op, Err: fmt.Errorf("cut: %w", err)}
}

// writer is a file being written. After commit or abort the file of an atomic
// write has its name or is gone.
type writer struct {
	file   *os.File
	path   string // as asked
	target string // where an atomic write goes in the end
	temp   string // the name it has until then
}

// openWriter opens what h wants to be written. A link at the end of the path
// is followed and stays.
func openWriter(path string, h *hutchv1.WriteHeader, owner account) (*writer, error) {
	target, st := path, (*unix.Stat_t)(nil)
	var err error
	if h.GetExclusive() {
		var have unix.Stat_t
		if err := unix.Lstat(path, &have); err == nil {
			return nil, pathError("write", path, syscall.EEXIST)
		}
	} else if target, st, err = lastTarget("write", path); err != nil {
		return nil, err
	}
	if st != nil {
		if err := checkRegular("write", path, st.Mode); err != nil {
			return nil, err
		}
	}
	mode := h.GetMode() & 0o7777
	if mode == 0 {
		mode = 0o644
	}
	if h.GetAtomic() {
		return openAtomic(path, target, st, mode, owner)
	}
	if st == nil {
		f, err := createFile(target, os.O_WRONLY|appendFlag(h), mode, owner)
		if err == nil {
			return &writer{file: f, path: path}, nil
		}
		if !errors.Is(err, syscall.EEXIST) || h.GetExclusive() {
			return nil, pathError("write", path, err)
		}
		// Somebody made it just now.
	}
	f, _, err := openRegular("write", target, os.O_WRONLY|appendFlag(h))
	if err != nil {
		return nil, err
	}
	if !h.GetAppend() {
		if err := f.Truncate(0); err != nil {
			f.Close()
			return nil, pathError("write", path, err)
		}
	}
	return &writer{file: f, path: path}, nil
}

func appendFlag(h *hutchv1.WriteHeader) int {
	if h.GetAppend() {
		return os.O_APPEND
	}
	return 0
}

// createFile makes a new file with exactly mode for owner.
func createFile(path string, flags int, mode uint32, owner account) (*os.File, error) {
	f, err := os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, os.FileMode(mode&0o700))
	if err != nil {
		return nil, err
	}
	err = fgiveTo(int(f.Fd()), owner)
	if err == nil {
		err = unix.Fchmod(int(f.Fd()), mode)
	}
	if err != nil {
		f.Close()
		os.Remove(path)
		return nil, err
	}
	return f, nil
}

// openAtomic makes the file beside its target under a name nobody can guess,
// with the standing of the file that it will replace.
func openAtomic(path, target string, st *unix.Stat_t, mode uint32, owner account) (*writer, error) {
	if st != nil {
		owner, mode = account{uid: st.Uid, gid: st.Gid}, st.Mode&0o7777
	}
	temp := parent(target) + "/.hutch-" + randomID()
	f, err := createFile(temp, os.O_WRONLY, mode, owner)
	if err != nil {
		return nil, pathError("write", path, err)
	}
	if st != nil {
		copyXattrs(target, int(f.Fd()))
	}
	return &writer{file: f, path: path, target: target, temp: temp}, nil
}

// copyXattrs copies extended attributes and access lists as far as this file
// system and the agent's rights allow.
func copyXattrs(from string, fd int) {
	for _, name := range listXattrs(from) {
		if value, err := getXattr(from, name); err == nil {
			_ = unix.Fsetxattr(fd, name, value, 0)
		}
	}
}

// commit makes the content the file's.
func (w *writer) commit(h *hutchv1.WriteHeader) error {
	if h.GetSync() || h.GetAtomic() {
		if err := w.file.Sync(); err != nil {
			return pathError("sync", w.path, err)
		}
	}
	if w.temp == "" {
		return nil
	}
	var err error
	if h.GetExclusive() {
		err = renameNew(w.temp, w.target)
	} else {
		err = ignoringEINTR(func() error { return unix.Rename(w.temp, w.target) })
	}
	if err != nil {
		return pathError("write", w.path, err)
	}
	w.temp = ""
	if h.GetSync() {
		return syncDir(parent(w.target))
	}
	return nil
}

// renameNew renames from to a name that must be free.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if err != unix.EINVAL && err != unix.ENOSYS {
		return err
	}
	if err := unix.Link(from, to); err != nil {
		return err
	}
	return unix.Unlink(from)
}

// abort closes the file, and removes it if it never got its name.
func (w *writer) abort() {
	w.file.Close()
	if w.temp != "" {
		os.Remove(w.temp)
	}
}

func syncDir(dir string) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return pathError("sync", dir, err)
	}
	defer d.Close()
	// Some file systems refuse it for directories; their data is as safe as
	// they can make it.
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return pathError("sync", dir, err)
	}
	return nil
}
