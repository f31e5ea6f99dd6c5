//go:build linux

package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
)

// dirBatch is how many entries one message of ReadDir carries.
const dirBatch = 500

// filesService implements hutch.v1.Files.
type filesService struct{ a *Agent }

// Stat describes a file.
func (s *filesService) Stat(_ context.Context, req *connect.Request[hutchv1.StatRequest]) (*connect.Response[hutchv1.StatResponse], error) {
	path, err := s.a.path("stat", req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	stat, link, op := unix.Stat, "", "stat"
	if req.Msg.GetNoFollow() {
		stat, op = unix.Lstat, "lstat"
	}
	var st unix.Stat_t
	if err := ignoringEINTR(func() error { return stat(path, &st) }); err != nil {
		return nil, pathError(op, path, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		if link, err = readlinkAt(unix.AT_FDCWD, path); err != nil {
			return nil, pathError(op, path, err)
		}
	}
	return connect.NewResponse(&hutchv1.StatResponse{Info: s.a.infos().make(filepath.Base(path), &st, link)}), nil
}

// ReadDir lists a directory, sorted by name.
func (s *filesService) ReadDir(ctx context.Context, req *connect.Request[hutchv1.ReadDirRequest], stream *connect.ServerStream[hutchv1.ReadDirResponse]) error {
	path, err := s.a.path("readdir", req.Msg.GetPath())
	if err != nil {
		return err
	}
	dir, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return pathError("readdir", path, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return pathError("readdir", path, err)
	}
	slices.Sort(names)
	infos := s.a.infos()
	for batch := range slices.Chunk(names, dirBatch) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		res := &hutchv1.ReadDirResponse{}
		for _, name := range batch {
			var st unix.Stat_t
			err := ignoringEINTR(func() error {
				return unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
			})
			if err == unix.ENOENT {
				continue // removed in the meantime
			}
			if err != nil {
				return pathError("readdir", path+"/"+name, err)
			}
			link := ""
			if st.Mode&unix.S_IFMT == unix.S_IFLNK {
				link, _ = readlinkAt(int(dir.Fd()), name)
			}
			res.Entries = append(res.Entries, infos.make(name, &st, link))
		}
		if err := stream.Send(res); err != nil {
			return err
		}
	}
	return nil
}

// openRegular opens a file and makes sure that it is one, without waiting for
// the other end of a pipe or touching a device.
func openRegular(op, path string, flags int) (*os.File, *unix.Stat_t, error) {
	var st unix.Stat_t
	if err := ignoringEINTR(func() error { return unix.Stat(path, &st) }); err != nil {
		return nil, nil, pathError(op, path, err)
	}
	if err := checkRegular(op, path, st.Mode); err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(path, flags|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, pathError(op, path, err)
	}
	// It may be another file by now.
	err = pathError(op, path, ignoringEINTR(func() error { return unix.Fstat(int(f.Fd()), &st) }))
	if err == nil {
		err = checkRegular(op, path, st.Mode)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, &st, nil
}

// Read streams a file or a range of it.
func (s *filesService) Read(ctx context.Context, req *connect.Request[hutchv1.ReadRequest], stream *connect.ServerStream[hutchv1.ReadResponse]) error {
	path, err := s.a.path("read", req.Msg.GetPath())
	if err != nil {
		return err
	}
	offset, length := req.Msg.GetOffset(), req.Msg.GetLength()
	if offset < 0 || length < 0 {
		return invalid("read", path, "offset and length must not be negative", "")
	}
	f, st, err := openRegular("read", path, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	info := s.a.infos().make(filepath.Base(path), st, "")
	info.RealPath = []byte(realpathOf(path, st))
	if err := stream.Send(&hutchv1.ReadResponse{Info: info}); err != nil {
		return err
	}
	if offset > 0 {
		if _, err := f.Seek(offset, io.SeekStart); err != nil {
			return pathError("read", path, err)
		}
	}
	var r io.Reader = f
	if length > 0 {
		r = io.LimitReader(f, length)
	}
	buf := fileBuffers.get()
	defer fileBuffers.put(buf)
	msg := &hutchv1.ReadResponse{}
	for {
		// Not io.ReadFull: files of /proc answer in pieces that must go out.
		n, err := r.Read(*buf)
		if n > 0 {
			msg.Data = (*buf)[:n]
			if err := stream.Send(msg); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return pathError("read", path, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// Mkdir creates a directory.
func (s *filesService) Mkdir(_ context.Context, req *connect.Request[hutchv1.MkdirRequest]) (*connect.Response[hutchv1.MkdirResponse], error) {
	path, err := s.a.path("mkdir", req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	owner, err := s.a.owner("")
	if err != nil {
		return nil, err
	}
	mode := req.Msg.GetMode() & 0o7777
	if mode == 0 {
		mode = 0o755
	}
	if req.Msg.GetParents() {
		err = makeDirs(path, mode, owner)
	} else {
		err = makeDir(path, mode, owner)
	}
	return connect.NewResponse(&hutchv1.MkdirResponse{}), err
}

// Remove removes a file, an empty directory or a tree.
func (s *filesService) Remove(_ context.Context, req *connect.Request[hutchv1.RemoveRequest]) (*connect.Response[hutchv1.RemoveResponse], error) {
	path, err := s.a.path("remove", req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if filepath.Clean(path) == "/" {
		return nil, invalid("remove", path, "the root of the box cannot be removed", "remove the box instead")
	}
	if req.Msg.GetRecursive() {
		err = os.RemoveAll(path)
	} else {
		err = os.Remove(path)
	}
	if err != nil {
		return nil, removeError(path, err)
	}
	return connect.NewResponse(&hutchv1.RemoveResponse{}), nil
}

// removeError keeps the path at which a removal failed.
func removeError(path string, err error) error {
	if pe, ok := errors.AsType[*os.PathError](err); ok && strings.HasPrefix(pe.Path, path) {
		return pathError("remove", pe.Path, pe.Err)
	}
	return pathError("remove", path, err)
}

// Rename renames a file as rename(2): a file that is in the way is replaced.
func (s *filesService) Rename(_ context.Context, req *connect.Request[hutchv1.RenameRequest]) (*connect.Response[hutchv1.RenameResponse], error) {
	from, to, err := s.twoPaths("rename", req.Msg.GetOldPath(), req.Msg.GetNewPath())
	if err != nil {
		return nil, err
	}
	if err := ignoringEINTR(func() error { return unix.Rename(from, to) }); err != nil {
		return nil, &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return connect.NewResponse(&hutchv1.RenameResponse{}), nil
}

func (s *filesService) twoPaths(op string, a, b []byte) (string, string, error) {
	from, err := s.a.path(op, a)
	if err != nil {
		return "", "", err
	}
	to, err := s.a.path(op, b)
	return from, to, err
}

// Chmod sets permission, setuid, setgid and sticky bits.
func (s *filesService) Chmod(_ context.Context, req *connect.Request[hutchv1.ChmodRequest]) (*connect.Response[hutchv1.ChmodResponse], error) {
	path, err := s.a.path("chmod", req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	err = ignoringEINTR(func() error { return unix.Chmod(path, req.Msg.GetMode()&0o7777) })
	return connect.NewResponse(&hutchv1.ChmodResponse{}), pathError("chmod", path, err)
}

// Chown sets owner and group; minus one leaves one.
func (s *filesService) Chown(_ context.Context, req *connect.Request[hutchv1.ChownRequest]) (*connect.Response[hutchv1.ChownResponse], error) {
	path, err := s.a.path("chown", req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	uid, gid := req.Msg.GetUid(), req.Msg.GetGid()
	if uid < -1 || gid < -1 || uid >= 1<<32-1 || gid >= 1<<32-1 {
		return nil, invalid("chown", path, "ids must be -1 or 0 to 4294967294", "")
	}
	flags := 0
	if req.Msg.GetNoFollow() {
		flags = unix.AT_SYMLINK_NOFOLLOW
	}
	err = ignoringEINTR(func() error { return unix.Fchownat(unix.AT_FDCWD, path, int(uid), int(gid), flags) })
	return connect.NewResponse(&hutchv1.ChownResponse{}), pathError("chown", path, err)
}

// Chtimes sets times; one that is not given stays.
func (s *filesService) Chtimes(_ context.Context, req *connect.Request[hutchv1.ChtimesRequest]) (*connect.Response[hutchv1.ChtimesResponse], error) {
	path, err := s.a.path("chtimes", req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
	if t := req.Msg.GetAccessed(); t != nil {
		ts[0] = unix.Timespec{Sec: t.GetSeconds(), Nsec: int64(t.GetNanos())}
	}
	if t := req.Msg.GetModified(); t != nil {
		ts[1] = unix.Timespec{Sec: t.GetSeconds(), Nsec: int64(t.GetNanos())}
	}
	err = ignoringEINTR(func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, 0) })
	return connect.NewResponse(&hutchv1.ChtimesResponse{}), pathError("chtimes", path, err)
}

// Symlink makes a symbolic link with exactly the target given.
func (s *filesService) Symlink(_ context.Context, req *connect.Request[hutchv1.SymlinkRequest]) (*connect.Response[hutchv1.SymlinkResponse], error) {
	path, err := s.a.path("symlink", req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	target := string(req.Msg.GetTarget())
	if target == "" || strings.Contains(target, "\x00") {
		return nil, invalid("symlink", "target", "is empty or contains a zero byte", "")
	}
	owner, err := s.a.owner("")
	if err != nil {
		return nil, err
	}
	if err := ignoringEINTR(func() error { return unix.Symlink(target, path) }); err != nil {
		return nil, pathError("symlink", path, err)
	}
	return connect.NewResponse(&hutchv1.SymlinkResponse{}), pathError("chown", path, giveTo(path, owner))
}

// Link makes a hard link; a symbolic link is not followed.
func (s *filesService) Link(_ context.Context, req *connect.Request[hutchv1.LinkRequest]) (*connect.Response[hutchv1.LinkResponse], error) {
	from, to, err := s.twoPaths("link", req.Msg.GetOldPath(), req.Msg.GetNewPath())
	if err != nil {
		return nil, err
	}
	if err := ignoringEINTR(func() error { return unix.Link(from, to) }); err != nil {
		return nil, &os.LinkError{Op: "link", Old: from, New: to, Err: err}
	}
	return connect.NewResponse(&hutchv1.LinkResponse{}), nil
}

// Readlink returns what a symbolic link says.
func (s *filesService) Readlink(_ context.Context, req *connect.Request[hutchv1.ReadlinkRequest]) (*connect.Response[hutchv1.ReadlinkResponse], error) {
	path, err := s.a.path("readlink", req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	target, err := readlinkAt(unix.AT_FDCWD, path)
	if err != nil {
		return nil, pathError("readlink", path, err)
	}
	return connect.NewResponse(&hutchv1.ReadlinkResponse{Target: []byte(target)}), nil
}

// Realpath returns the absolute path without links, as the kernel sees it.
func (s *filesService) Realpath(_ context.Context, req *connect.Request[hutchv1.RealpathRequest]) (*connect.Response[hutchv1.RealpathResponse], error) {
	path, err := s.a.path("realpath", req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	real, err := realpath(path)
	if err != nil {
		return nil, pathError("realpath", path, err)
	}
	return connect.NewResponse(&hutchv1.RealpathResponse{Path: []byte(real)}), nil
}
