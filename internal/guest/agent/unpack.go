//go:build linux

package agent

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
)

// Unpack writes a tar below a directory. Nothing in the tar reaches anything
// that is not below it.
func (s *filesService) Unpack(ctx context.Context, stream *connect.ClientStream[hutchv1.UnpackRequest]) (*connect.Response[hutchv1.UnpackResponse], error) {
	if !stream.Receive() {
		return nil, cutError("unpack", stream.Err())
	}
	h := stream.Msg().GetHeader()
	if h == nil {
		return nil, invalid("unpack", "header", "is missing in the first message", "")
	}
	dir, err := s.a.path("unpack", h.GetDir())
	if err != nil {
		return nil, err
	}
	owner, err := s.a.owner(h.GetUser())
	if err != nil {
		return nil, err
	}
	root, err := openTree(dir)
	if err != nil {
		return nil, err
	}
	defer root.close()
	buf := fileBuffers.get()
	defer fileBuffers.put(buf)
	in := &unpackStream{stream: stream, data: stream.Msg().GetData(), complete: stream.Msg().GetComplete()}
	u := &unpacker{
		ctx: ctx, tree: root, tr: tar.NewReader(in), buf: *buf, made: make(map[string]struct{}),
		owner: owner, keepOwner: h.GetKeepOwner(), keepDirs: h.GetNoOverwriteDir(),
	}
	err = u.run()
	if derr := u.finishDirs(); err == nil {
		err = derr
	}
	if err == nil {
		// What follows the end of the archive is padding.
		if _, cerr := io.CopyBuffer(io.Discard, in, *buf); cerr != nil {
			err = cerr
		}
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hutchv1.UnpackResponse{Entries: u.entries, Bytes: u.bytes}), nil
}

// unpackStream is the tar as it arrives.
type unpackStream struct {
	stream   *connect.ClientStream[hutchv1.UnpackRequest]
	data     []byte
	complete bool
}

// Read implements io.Reader. It returns io.EOF only after the message that
// completes the stream.
func (u *unpackStream) Read(b []byte) (int, error) {
	for len(u.data) == 0 {
		if u.complete {
			return 0, io.EOF
		}
		if !u.stream.Receive() {
			return 0, cutError("unpack", u.stream.Err())
		}
		u.data, u.complete = u.stream.Msg().GetData(), u.stream.Msg().GetComplete()
	}
	n := copy(b, u.data)
	u.data = u.data[n:]
	return n, nil
}

type unpacker struct {
	ctx       context.Context
	tree      *tree
	tr        *tar.Reader
	buf       []byte
	owner     account
	keepOwner bool
	keepDirs  bool
	dirs      []dirEntry          // to be finished when all is in them
	made      map[string]struct{} // directories among dirs, so that each is there once
	entries   int64
	bytes     int64
}

// dirEntry is a directory whose mode and time are set at the end: a directory
// without write permission must still take its content, and content changes
// the time.
type dirEntry struct {
	elems []string
	mode  uint32
	mtime time.Time
}

func (u *unpacker) run() error {
	for {
		h, err := u.tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return tarError(err)
		}
		if err := u.ctx.Err(); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		elems, err := splitName(h.Name)
		if err != nil {
			return err
		}
		if len(elems) == 0 {
			continue // the directory itself
		}
		if err := u.entry(h, elems); err != nil {
			return err
		}
		u.entries++
	}
}

// tarError tells a broken archive from a broken stream.
func tarError(err error) error {
	if _, ok := errors.AsType[*box.Error](err); ok || errors.Is(err, context.Canceled) {
		return err
	}
	return &box.Error{Kind: box.Invalid, Op: "unpack", Err: err, Hint: "the data is no complete tar archive"}
}

// splitName splits a name of the archive into its elements, and refuses one
// that leads out.
func splitName(name string) ([]string, error) {
	if strings.HasPrefix(name, "/") || strings.Contains(name, "\x00") {
		return nil, invalid("unpack", name, "the archive has an absolute or invalid name", "")
	}
	var elems []string
	for e := range strings.SplitSeq(name, "/") {
		switch e {
		case "", ".":
		case "..":
			return nil, invalid("unpack", name, "the archive has a name with ..", "")
		default:
			elems = append(elems, e)
		}
	}
	return elems, nil
}

// ids is the owner of an entry.
func (u *unpacker) ids(h *tar.Header) (account, error) {
	if !u.keepOwner {
		return u.owner, nil
	}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= 1<<32-1 || int64(h.Gid) >= 1<<32-1 {
		return account{}, invalid("unpack", h.Name, "the archive has an owner out of range", "")
	}
	return account{uid: uint32(h.Uid), gid: uint32(h.Gid)}, nil
}

func (u *unpacker) entry(h *tar.Header, elems []string) error {
	owner, err := u.ids(h)
	if err != nil {
		return err
	}
	fail := func(op string, err error) error { return pathError(op, u.tree.path(elems), err) }
	parentFD, err := u.tree.dir(elems[:len(elems)-1], u.owner)
	if err != nil {
		return err
	}
	base := elems[len(elems)-1]
	mode := uint32(h.Mode) & 0o7777
	if h.Typeflag == tar.TypeDir {
		return u.directory(h, elems, parentFD, owner, mode)
	}
	if err := u.clear(parentFD, elems); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		return u.file(h, elems, parentFD, owner, mode)
	case tar.TypeLink:
		target, err := splitName(h.Linkname)
		if err != nil {
			return err
		}
		if len(target) == 0 {
			return invalid("unpack", h.Name, "the archive has a hard link to nothing", "")
		}
		targetFD, err := u.tree.open(target[:len(target)-1])
		if err != nil {
			return err
		}
		defer unix.Close(targetFD)
		return fail("link", unix.Linkat(targetFD, target[len(target)-1], parentFD, base, 0))
	case tar.TypeSymlink:
		if h.Linkname == "" || strings.Contains(h.Linkname, "\x00") {
			return invalid("unpack", h.Name, "the archive has an invalid symbolic link", "")
		}
		// What a link says is free: following it is confined.
		err = unix.Symlinkat(h.Linkname, parentFD, base)
	case tar.TypeFifo:
		err = unix.Mknodat(parentFD, base, unix.S_IFIFO|0o600, 0)
	case tar.TypeChar, tar.TypeBlock:
		kind := uint32(unix.S_IFCHR)
		if h.Typeflag == tar.TypeBlock {
			kind = unix.S_IFBLK
		}
		err = unix.Mknodat(parentFD, base, kind|0o600, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))))
	default:
		return invalid("unpack", h.Name, "the archive has an entry of unknown type "+string(h.Typeflag), "")
	}
	if err != nil {
		return fail("create", err)
	}
	if int(owner.uid) != os.Geteuid() || int(owner.gid) != os.Getegid() {
		if err := unix.Fchownat(parentFD, base, int(owner.uid), int(owner.gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fail("chown", err)
		}
	}
	if h.Typeflag != tar.TypeSymlink {
		// A race for this name can at worst change a mode in the box.
		if err := unix.Fchmodat(parentFD, base, mode, 0); err != nil {
			return fail("chmod", err)
		}
	}
	return fail("chtimes", unix.UtimesNanoAt(parentFD, base, times(h.ModTime), unix.AT_SYMLINK_NOFOLLOW))
}

func times(t time.Time) []unix.Timespec {
	if t.IsZero() {
		return []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
	}
	ts := unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
	return []unix.Timespec{ts, ts}
}

// clear removes what is in the way of a file.
func (u *unpacker) clear(parentFD int, elems []string) error {
	base := elems[len(elems)-1]
	var st unix.Stat_t
	err := unix.Fstatat(parentFD, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		return nil
	}
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			u.tree.changed()
		}
		if err = unix.Unlinkat(parentFD, base, 0); err == unix.ENOENT {
			err = nil
		}
		return pathError("remove", u.tree.path(elems), err)
	}
	if err != nil {
		return pathError("remove", u.tree.path(elems), err)
	}
	if u.keepDirs {
		return &box.Error{
			Kind: box.Conflict, Op: "unpack", Object: u.tree.path(elems),
			Err: errors.New("a directory is in the way of a file"), Hint: "remove it first",
		}
	}
	u.tree.changed()
	u.dirs = slices.DeleteFunc(u.dirs, func(d dirEntry) bool {
		return len(d.elems) >= len(elems) && slices.Equal(d.elems[:len(elems)], elems)
	})
	return removeTreeAt(parentFD, base, u.tree.path(elems))
}

// directory makes a directory, or merges with one, or with a link to one that
// is below the root.
func (u *unpacker) directory(h *tar.Header, elems []string, parentFD int, owner account, mode uint32) error {
	base := elems[len(elems)-1]
	path := u.tree.path(elems)
	err := unix.Mkdirat(parentFD, base, 0o700)
	if err == unix.EEXIST {
		var st unix.Stat_t
		if err := unix.Fstatat(parentFD, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return pathError("mkdir", path, err)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			err = nil
		case unix.S_IFLNK:
			if fd, oerr := u.tree.open(elems); oerr == nil {
				unix.Close(fd)
				return nil // leave the directory that it points to as it is
			}
			fallthrough
		default:
			if u.keepDirs {
				return &box.Error{
					Kind: box.Conflict, Op: "unpack", Object: path,
					Err: errors.New("a file is in the way of a directory"), Hint: "remove it first",
				}
			}
			u.tree.changed()
			if err = unix.Unlinkat(parentFD, base, 0); err == nil {
				err = unix.Mkdirat(parentFD, base, 0o700)
			}
		}
	}
	if err != nil {
		return pathError("mkdir", path, err)
	}
	fd, err := openDirAt(parentFD, base)
	if err != nil {
		return pathError("mkdir", path, err)
	}
	defer unix.Close(fd)
	if err := fgiveTo(fd, owner); err != nil {
		return pathError("chown", path, err)
	}
	// Open to its owner until all is in it.
	if err := unix.Fchmod(fd, mode|0o700); err != nil {
		return pathError("chmod", path, err)
	}
	setXattrs(fd, h)
	key := strings.Join(elems, "/")
	if _, again := u.made[key]; again {
		u.dirs = slices.DeleteFunc(u.dirs, func(d dirEntry) bool { return slices.Equal(d.elems, elems) })
	}
	u.made[key] = struct{}{}
	u.dirs = append(u.dirs, dirEntry{elems, mode, h.ModTime})
	return nil
}

// finishDirs gives directories their modes and times, innermost first.
func (u *unpacker) finishDirs() error {
	slices.SortStableFunc(u.dirs, func(a, b dirEntry) int { return len(b.elems) - len(a.elems) })
	var first error
	for _, d := range u.dirs {
		fd, err := u.tree.open(d.elems)
		if err == nil {
			// The mode comes last: it may take the right to do the rest.
			err = errors.Join(unix.UtimesNanoAt(fd, ".", times(d.mtime), 0), unix.Fchmod(fd, d.mode))
			unix.Close(fd)
		}
		if err != nil && first == nil {
			first = pathError("chmod", u.tree.path(d.elems), err)
		}
	}
	return first
}

func (u *unpacker) file(h *tar.Header, elems []string, parentFD int, owner account, mode uint32) error {
	path := u.tree.path(elems)
	fd, err := unix.Openat(parentFD, elems[len(elems)-1], unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return pathError("create", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	for {
		n, rerr := u.tr.Read(u.buf)
		if n > 0 {
			if _, err := f.Write(u.buf[:n]); err != nil {
				return pathError("write", path, err)
			}
			u.bytes += int64(n)
		}
		if rerr == io.EOF {
			break
		}
		if rerr != nil {
			return tarError(rerr)
		}
		if err := u.ctx.Err(); err != nil {
			return err
		}
	}
	if err := fgiveTo(fd, owner); err != nil {
		return pathError("chown", path, err)
	}
	setXattrs(fd, h)
	if err := unix.Fchmod(fd, mode); err != nil {
		return pathError("chmod", path, err)
	}
	return pathError("chtimes", path, unix.UtimesNanoAt(parentFD, elems[len(elems)-1], times(h.ModTime), unix.AT_SYMLINK_NOFOLLOW))
}

// setXattrs sets the user attributes that the archive has, where the file
// system takes them.
func setXattrs(fd int, h *tar.Header) {
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, xattrRecord); ok && strings.HasPrefix(name, "user.") {
			_ = unix.Fsetxattr(fd, name, []byte(value), 0)
		}
	}
}
