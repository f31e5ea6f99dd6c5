package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// extractor applies layers to one tree.
type extractor struct {
	root
	job  Job
	res  Result
	left budget // over all layers

	// first is set while the lowest layer is read: there is nothing below it
	// to hide, so its whiteouts do nothing and mine is not kept.
	first bool
	// mine holds what the current layer has put into the tree, as hashes of
	// (inode of the directory, name): whiteouts hide what is below the layer
	// they are in, wherever in the layer they stand. The seed is random, so a
	// layer cannot aim for collisions.
	mine map[uint64]struct{}
	seed maphash.Seed
	// dirs holds what settle gives to directories at the very end, by inode:
	// until then they must stay writable for us, and every entry made in one
	// would change its time again.
	dirs map[uint64]dirMeta
	// left out of the tree: a hard link to one of these is left out as well.
	absent map[uint64]struct{}

	buf []byte
}

type dirMeta struct {
	mode   uint32
	mtime  time.Time
	xattrs bool // some were set
}

// budget is what may still be used.
type budget struct{ bytes, entries int64 }

func newExtractor(fd int, job Job) *extractor {
	x := &extractor{
		job:    job,
		left:   budget{bytes: job.Limits.TotalBytes, entries: job.Limits.Entries},
		seed:   maphash.MakeSeed(),
		dirs:   map[uint64]dirMeta{},
		absent: map[uint64]struct{}{},
		buf:    make([]byte, 256<<10),
	}
	x.root = root{fd: fd, cache: map[string]dir{}, made: x.madeDir}
	return x
}

func (x *extractor) close() {
	x.forget()
	x.sweep()
}

func (x *extractor) key(parent uint64, name string) uint64 {
	var h maphash.Hash
	h.SetSeed(x.seed)
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], parent)
	h.Write(b[:])
	h.WriteString(name)
	return h.Sum64()
}

// claim notes that the current layer put name into parent.
func (x *extractor) claim(parent uint64, name string) {
	if len(x.absent) > 0 {
		delete(x.absent, x.key(parent, name))
	}
	if !x.first {
		x.mine[x.key(parent, name)] = struct{}{}
	}
}

// madeDir notes a directory that no layer described.
func (x *extractor) madeDir(parent dir, name string, ino uint64) {
	x.claim(parent.ino, name)
	x.dirs[ino] = dirMeta{mode: 0o755}
}

// layer applies the layer in f, which b describes.
func (x *extractor) layer(ctx context.Context, f io.Reader, b Blob) error {
	x.forget() // the inodes of removed directories may name others now
	x.mine = map[uint64]struct{}{}
	clear(x.absent)
	allowed := min(x.job.Limits.LayerBytes, x.left.bytes)
	s, err := newStream(ctx, f, allowed)
	if err != nil {
		return err
	}
	defer s.close()
	var claimed int64 // sizes of the files so far
	tr := tar.NewReader(s)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return badTar(err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if x.left.entries--; x.left.entries < 0 {
			return limitError(fmt.Sprintf("more than %d entries", x.job.Limits.Entries))
		}
		x.res.Entries++
		// The size a sparse file claims costs nothing to write down, so it
		// counts as if it were there.
		if hdr.Size < 0 || hdr.Size > allowed-claimed {
			return limitError(fmt.Sprintf("%q claims %d bytes; the files of this layer may have %d together", hdr.Name, hdr.Size, allowed))
		}
		claimed += hdr.Size
		if err := x.entry(ctx, hdr, tr); err != nil {
			return fmt.Errorf("%q: %w", hdr.Name, err)
		}
	}
	if err := s.drain(); err != nil {
		return err
	}
	x.left.bytes -= max(s.read, claimed)
	if got := s.digest(); got != b.DiffID {
		return malformedf("its content has digest %s, the image says %s", got, b.DiffID)
	}
	return nil
}

// badTar makes an error of archive/tar one about the layer, unless it came
// from the stream below.
func badTar(err error) error {
	var limit limitError
	if errors.As(err, &limit) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return malformed{err}
}

// entry applies one entry of the current layer.
func (x *extractor) entry(ctx context.Context, hdr *tar.Header, body io.Reader) error {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil // a comment on the archive
	}
	if len(hdr.Name) > maxPathLen || strings.IndexByte(hdr.Name, 0) >= 0 {
		return malformedf("the name is longer than %d bytes or holds a zero byte", maxPathLen)
	}
	// "/etc/x", "./etc/x" and "../../etc/x" all mean etc/x of the tree.
	name := path.Clean("/" + hdr.Name)[1:]
	if name == "" {
		if hdr.Typeflag != tar.TypeDir {
			return malformedf("the root is not a directory")
		}
		return x.dirMeta(x.fd, hdr)
	}
	x.sweep()
	parentName, base := path.Split(name)
	parent, err := x.openDir(strings.TrimSuffix(parentName, "/"), true)
	if err != nil {
		return err
	}
	if rest, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		return x.whiteout(parent, rest)
	}

	switch hdr.Typeflag {
	case tar.TypeDir:
		return x.directory(parent, base, hdr)
	case tar.TypeReg, tar.TypeRegA, tar.TypeCont, tar.TypeGNUSparse: //nolint:staticcheck // TypeRegA: old archives have it
		return x.regular(ctx, parent, base, hdr, body)
	case tar.TypeSymlink:
		return x.symlink(parent, base, hdr)
	case tar.TypeLink:
		return x.hardlink(parent, base, hdr)
	case tar.TypeFifo:
		return x.fifo(parent, base, hdr)
	case tar.TypeChar, tar.TypeBlock:
		// It still takes the place of what is below it.
		x.res.Devices++
		x.absent[x.key(parent.ino, base)] = struct{}{}
		return x.replace(parent, base)
	}
	return malformedf("entries of type %q are unknown", hdr.Typeflag)
}

// replace makes room for a new entry.
func (x *extractor) replace(parent dir, base string) error {
	var st unix.Stat_t
	err := unix.Fstatat(parent.fd, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("stat", err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFLNK:
		x.forget() // resolved paths may lead through it
	}
	return removeAt(parent.fd, base, 0)
}

// put runs create, and once more after making room if the name is taken.
func (x *extractor) put(parent dir, base string, create func() error) error {
	err := create()
	if errors.Is(err, unix.EEXIST) {
		if err := x.replace(parent, base); err != nil {
			return err
		}
		err = create()
	}
	if err == nil {
		x.claim(parent.ino, base)
	}
	return err
}

func (x *extractor) directory(parent dir, base string, hdr *tar.Header) error {
	err := unix.Mkdirat(parent.fd, base, 0o700)
	if errors.Is(err, unix.EEXIST) {
		var st unix.Stat_t
		if err := unix.Fstatat(parent.fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return os.NewSyscallError("stat", err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			err = nil // keeps what is in it
		} else {
			if err := x.replace(parent, base); err != nil {
				return err
			}
			err = unix.Mkdirat(parent.fd, base, 0o700)
		}
	}
	if err != nil {
		return os.NewSyscallError("mkdir", err)
	}
	x.claim(parent.ino, base)
	fd, err := unix.Openat(parent.fd, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer unix.Close(fd)
	return x.dirMeta(fd, hdr)
}

// dirMeta gives the directory fd its owner and attributes, and settle its mode
// and time.
func (x *extractor) dirMeta(fd int, hdr *tar.Header) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("stat", err)
	}
	if x.dirs[st.Ino].xattrs {
		clearXattrs(fd) // of a lower layer; the new entry stands for all of them
	}
	mode, err := x.chown(hdr, func(uid, gid int) error { return unix.Fchown(fd, uid, gid) })
	if err != nil {
		return err
	}
	if x.job.Owners == KeepOwners {
		// chown clears setuid bits, not the bits we need.
		if err := unix.Fchmod(fd, 0o700); err != nil {
			return os.NewSyscallError("chmod", err)
		}
	}
	x.dirs[st.Ino] = dirMeta{mode: mode, mtime: hdr.ModTime, xattrs: x.xattrs(fd, hdr)}
	return nil
}

func (x *extractor) regular(ctx context.Context, parent dir, base string, hdr *tar.Header, body io.Reader) error {
	var fd int
	err := x.put(parent, base, func() (err error) {
		fd, err = unix.Openat(parent.fd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return os.NewSyscallError("create", err)
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "file")
	defer f.Close()
	if err := x.copy(ctx, f, body, hdr.Size); err != nil {
		return err
	}
	// In this order: chown clears setuid bits and capabilities.
	mode, err := x.chown(hdr, func(uid, gid int) error { return unix.Fchown(fd, uid, gid) })
	if err != nil {
		return err
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		return os.NewSyscallError("chmod", err)
	}
	x.xattrs(fd, hdr)
	return setTime(parent.fd, base, hdr.ModTime)
}

// copy writes size bytes of body to f, leaving holes where there are only zeros.
func (x *extractor) copy(ctx context.Context, f *os.File, body io.Reader, size int64) error {
	var off int64
	for off < size {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(body, x.buf[:min(int64(len(x.buf)), size-off)])
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return badTar(err)
		}
		for chunk := x.buf[:n]; len(chunk) > 0; {
			// A run of whole zero blocks is skipped, anything else written.
			zeros := 0
			for len(chunk)-zeros >= len(zeroBlock) && bytes.Equal(chunk[zeros:zeros+len(zeroBlock)], zeroBlock[:]) {
				zeros += len(zeroBlock)
			}
			off += int64(zeros)
			chunk = chunk[zeros:]
			data := 0
			for data < len(chunk) {
				step := min(len(zeroBlock), len(chunk)-data)
				if step == len(zeroBlock) && bytes.Equal(chunk[data:data+step], zeroBlock[:]) {
					break
				}
				data += step
			}
			if data > 0 {
				if _, err := f.WriteAt(chunk[:data], off); err != nil {
					return err
				}
				x.res.Bytes += int64(data)
				off += int64(data)
				chunk = chunk[data:]
			}
		}
	}
	// A hole at the end is only there once the size says so.
	if size > 0 {
		return f.Truncate(size)
	}
	return nil
}

var zeroBlock [4096]byte

func (x *extractor) symlink(parent dir, base string, hdr *tar.Header) error {
	if hdr.Linkname == "" || len(hdr.Linkname) >= maxPathLen || strings.IndexByte(hdr.Linkname, 0) >= 0 {
		return malformedf("a symbolic link needs a target of 1 to %d bytes without zero bytes", maxPathLen-1)
	}
	// The target is not looked at: it means something inside the box only,
	// and openDir interprets it as the box would.
	err := x.put(parent, base, func() error {
		return os.NewSyscallError("symlink", unix.Symlinkat(hdr.Linkname, parent.fd, base))
	})
	if err != nil {
		return err
	}
	x.forget() // a path that did not exist may lead somewhere now
	if _, err := x.chown(hdr, func(uid, gid int) error {
		return unix.Fchownat(parent.fd, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
	}); err != nil {
		return err
	}
	x.res.Xattrs += int64(len(xattrsOf(hdr)))
	return setTime(parent.fd, base, hdr.ModTime)
}

func (x *extractor) hardlink(parent dir, base string, hdr *tar.Header) error {
	target := path.Clean("/" + hdr.Linkname)[1:]
	if target == "" || len(hdr.Linkname) > maxPathLen || strings.IndexByte(target, 0) >= 0 {
		return malformedf("a hard link needs the name of a file in the image")
	}
	dirName, targetBase := path.Split(target)
	from, err := x.openDir(strings.TrimSuffix(dirName, "/"), false)
	if errors.Is(err, unix.ENOENT) {
		return malformedf("it is a hard link to %q, which is not in the image", hdr.Linkname)
	}
	if err != nil {
		return err
	}
	if _, ok := x.absent[x.key(from.ino, targetBase)]; ok {
		x.res.Devices++
		x.absent[x.key(parent.ino, base)] = struct{}{}
		return x.replace(parent, base)
	}
	var st unix.Stat_t
	err = unix.Fstatat(from.fd, targetBase, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return malformedf("it is a hard link to %q, which is not in the image", hdr.Linkname)
	}
	if err != nil {
		return os.NewSyscallError("stat", err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return malformedf("it is a hard link to the directory %q", hdr.Linkname)
	}
	if from.ino == parent.ino && targetBase == base {
		x.claim(parent.ino, base)
		return nil // to itself
	}
	// Without AT_SYMLINK_FOLLOW: a link to a symbolic link is one to the link
	// itself, wherever that points.
	err = x.put(parent, base, func() error {
		return os.NewSyscallError("link", unix.Linkat(from.fd, targetBase, parent.fd, base, 0))
	})
	if errors.Is(err, unix.ENOENT) {
		return malformedf("it is a hard link to %q, whose place it takes", hdr.Linkname)
	}
	return err
}

func (x *extractor) fifo(parent dir, base string, hdr *tar.Header) error {
	err := x.put(parent, base, func() error {
		return os.NewSyscallError("mkfifo", unix.Mknodat(parent.fd, base, unix.S_IFIFO|0o600, 0))
	})
	if err != nil {
		return err
	}
	mode, err := x.chown(hdr, func(uid, gid int) error {
		return unix.Fchownat(parent.fd, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		return err
	}
	if err := unix.Fchmodat(parent.fd, base, mode, 0); err != nil {
		return os.NewSyscallError("chmod", err)
	}
	x.res.Xattrs += int64(len(xattrsOf(hdr)))
	return setTime(parent.fd, base, hdr.ModTime)
}

// chown gives an entry the owner hdr records, if that is asked for and can be
// done, and returns the mode that fits the outcome.
func (x *extractor) chown(hdr *tar.Header, set func(uid, gid int) error) (mode uint32, err error) {
	mode = uint32(hdr.Mode & 0o7777)
	// -1 would mean "leave it" to the kernel.
	const maxID = 1<<32 - 2
	if hdr.Uid < 0 || hdr.Gid < 0 || int64(hdr.Uid) > maxID || int64(hdr.Gid) > maxID {
		return 0, malformedf("owner %d:%d is not possible", hdr.Uid, hdr.Gid)
	}
	if x.job.Owners == OneOwner {
		if hdr.Uid != 0 || hdr.Gid != 0 {
			x.res.Owners++
		}
		return mode, nil
	}
	err = set(hdr.Uid, hdr.Gid)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
		x.res.Owners++
		return mode &^ 0o6000, nil
	}
	return mode, os.NewSyscallError("chown", err)
}

const xattrPrefix = "SCHILY.xattr."

// xattrsOf returns the names of the attributes that hdr records, sorted.
func xattrsOf(hdr *tar.Header) []string {
	var names []string
	for k := range hdr.PAXRecords {
		if name, ok := strings.CutPrefix(k, xattrPrefix); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// xattrs sets the attributes of hdr on fd that an image may have, counts those
// left out, and reports whether it set any.
func (x *extractor) xattrs(fd int, hdr *tar.Header) (set bool) {
	for _, name := range xattrsOf(hdr) {
		if !allowedXattr(name) || unix.Fsetxattr(fd, name, []byte(hdr.PAXRecords[xattrPrefix+name]), 0) != nil {
			x.res.Xattrs++ // not allowed, or the filesystem or namespace cannot
			continue
		}
		set = true
	}
	return set
}

// allowedXattr reports whether an image may set the attribute. Not the ones by
// which overlayfs steers what is seen in the merged tree (user.overlay.redirect
// and its kin), nor any that speaks to the host's security modules.
func allowedXattr(name string) bool {
	if name == "security.capability" {
		return true
	}
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

// clearXattrs removes what xattrs may have set. What cannot be listed or
// removed stays: it is the image's own.
func clearXattrs(fd int) {
	buf := make([]byte, 64<<10)
	n, err := unix.Flistxattr(fd, buf)
	if err != nil {
		return
	}
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if allowedXattr(name) {
			_ = unix.Fremovexattr(fd, name)
		}
	}
}

// setTime sets the modification time of an entry, not following a link.
func setTime(fd int, base string, t time.Time) error {
	ts := timespec(t)
	err := unix.UtimesNanoAt(fd, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	return os.NewSyscallError("utimes", err)
}

// timespec keeps t within what every filesystem stores.
func timespec(t time.Time) unix.Timespec {
	sec := min(max(t.Unix(), -1<<31), 1<<33)
	return unix.Timespec{Sec: sec, Nsec: int64(t.Nanosecond())}
}

// settle gives every directory its final mode and time, the deepest first.
func (x *extractor) settle() error {
	x.forget()
	x.sweep()
	return x.settleDir(x.fd)
}

func (x *extractor) settleDir(fd int) error {
	_, err := onePass(fd, func(name string, typ os.FileMode) (bool, error) {
		if !typ.IsDir() {
			return false, nil
		}
		sub, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return false, os.NewSyscallError("open", err)
		}
		defer unix.Close(sub)
		return false, x.settleDir(sub)
	})
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("stat", err)
	}
	meta, ok := x.dirs[st.Ino]
	if !ok {
		meta.mode = 0o755 // the root, when no layer mentions it
	}
	if err := unix.Fchmod(fd, meta.mode); err != nil {
		return os.NewSyscallError("chmod", err)
	}
	ts := timespec(meta.mtime) // the zero time becomes 1901; nobody recorded one
	if meta.mtime.IsZero() {
		ts = unix.Timespec{}
	}
	err = unix.UtimesNanoAt(fd, ".", []unix.Timespec{ts, ts}, 0)
	if errors.Is(err, unix.EACCES) {
		return nil // a directory without search permission keeps its time
	}
	return os.NewSyscallError("utimes", err)
}
