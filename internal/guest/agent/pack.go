//go:build linux

package agent

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
)

// xattrRecord is how tar archives name extended attributes.
const xattrRecord = "SCHILY.xattr."

// Pack streams a tar of a path. Names are as on the disk, byte for byte;
// owners are numeric.
func (s *filesService) Pack(ctx context.Context, req *connect.Request[hutchv1.PackRequest], stream *connect.ServerStream[hutchv1.PackResponse]) error {
	path, err := s.a.path("pack", req.Msg.GetPath())
	if err != nil {
		return err
	}
	name := string(req.Msg.GetName())
	if strings.Contains(name, "\x00") {
		return invalid("pack", "name", "contains a zero byte", "")
	}
	if name == "" {
		name = filepath.Base(path)
		if name == "/" {
			name = "."
		}
	}
	top := path
	if req.Msg.GetFollow() {
		if top, err = realpath(path); err != nil {
			return pathError("pack", path, err)
		}
	}
	var st unix.Stat_t
	if err := ignoringEINTR(func() error { return unix.Lstat(top, &st) }); err != nil {
		return pathError("pack", path, err)
	}
	if name == "." && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return pathError("pack", path, unix.ENOTDIR)
	}
	out := &packStream{stream: stream, buf: fileBuffers.get()}
	defer fileBuffers.put(out.buf)
	copyBuf := fileBuffers.get()
	defer fileBuffers.put(copyBuf)
	p := &packer{ctx: ctx, tw: tar.NewWriter(out), buf: *copyBuf, links: make(map[[2]uint64]string)}
	if name == "." {
		err = p.children(top, "")
	} else {
		err = p.entry(top, name, &st)
	}
	if err != nil {
		return err
	}
	if err := p.tw.Close(); err != nil {
		return err
	}
	return out.flush()
}

// packStream collects bytes into messages of a good size.
type packStream struct {
	stream *connect.ServerStream[hutchv1.PackResponse]
	buf    *[]byte
	n      int
}

// Write implements io.Writer.
func (p *packStream) Write(b []byte) (int, error) {
	total := len(b)
	for len(b) > 0 {
		if p.n == 0 && len(b) >= len(*p.buf) {
			if err := p.stream.Send(&hutchv1.PackResponse{Data: b}); err != nil {
				return 0, err
			}
			break
		}
		n := copy((*p.buf)[p.n:], b)
		p.n += n
		b = b[n:]
		if p.n == len(*p.buf) {
			if err := p.flush(); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}

func (p *packStream) flush() error {
	if p.n == 0 {
		return nil
	}
	err := p.stream.Send(&hutchv1.PackResponse{Data: (*p.buf)[:p.n]})
	p.n = 0
	return err
}

type packer struct {
	ctx   context.Context
	tw    *tar.Writer
	buf   []byte
	links map[[2]uint64]string // names of files with several, by device and inode
}

// children packs what is in a directory, sorted by name.
func (p *packer) children(dir, name string) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return pathError("pack", dir, err)
	}
	names, err := f.Readdirnames(-1)
	f.Close()
	if err != nil {
		return pathError("pack", dir, err)
	}
	slices.Sort(names)
	for _, n := range names {
		path := strings.TrimSuffix(dir, "/") + "/" + n
		var st unix.Stat_t
		err := ignoringEINTR(func() error { return unix.Lstat(path, &st) })
		if err == unix.ENOENT {
			continue // removed in the meantime
		}
		if err != nil {
			return pathError("pack", path, err)
		}
		if err := p.entry(path, name+n, &st); err != nil {
			return err
		}
	}
	return nil
}

// entry packs path, and what is below it, under name.
func (p *packer) entry(path, name string, st *unix.Stat_t) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	h := &tar.Header{
		Format:  tar.FormatPAX,
		Name:    name,
		Mode:    int64(st.Mode & 0o7777),
		Uid:     int(st.Uid),
		Gid:     int(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()),
	}
	for _, x := range listXattrs(path) {
		if !strings.HasPrefix(x, "user.") || strings.Contains(x, "=") {
			continue
		}
		if value, err := getXattr(path, x); err == nil {
			if h.PAXRecords == nil {
				h.PAXRecords = make(map[string]string)
			}
			h.PAXRecords[xattrRecord+x] = string(value)
		}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return p.file(path, h, st)
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := p.tw.WriteHeader(h); err != nil {
			return err
		}
		return p.children(path, h.Name)
	case unix.S_IFLNK:
		target, err := readlinkAt(unix.AT_FDCWD, path)
		if err != nil {
			return pathError("pack", path, err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFCHR, unix.S_IFBLK:
		h.Typeflag = tar.TypeChar
		if st.Mode&unix.S_IFMT == unix.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
		h.Devmajor, h.Devminor = int64(unix.Major(uint64(st.Rdev))), int64(unix.Minor(uint64(st.Rdev)))
	default:
		return nil // a socket has no meaning elsewhere
	}
	return p.tw.WriteHeader(h)
}

func (p *packer) file(path string, h *tar.Header, st *unix.Stat_t) error {
	key := [2]uint64{uint64(st.Dev), st.Ino}
	if st.Nlink > 1 {
		if first, ok := p.links[key]; ok {
			h.Typeflag, h.Linkname, h.PAXRecords = tar.TypeLink, first, nil
			return p.tw.WriteHeader(h)
		}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil // removed in the meantime
	}
	if err != nil {
		return pathError("pack", path, err)
	}
	defer f.Close()
	if err := ignoringEINTR(func() error { return unix.Fstat(int(f.Fd()), st) }); err != nil {
		return pathError("pack", path, err)
	}
	if err := checkRegular("pack", path, st.Mode); err != nil {
		return err
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	if st.Nlink > 1 {
		p.links[key] = h.Name
	}
	// The header promised a size. A file that grows is cut there, one that
	// shrinks is filled with zeros, as tar(1) does.
	for left := h.Size; left > 0; {
		b := p.buf[:min(int64(len(p.buf)), left)]
		n, err := f.Read(b)
		if err == io.EOF {
			clear(b)
			n, err = len(b), nil
		}
		if err != nil {
			return pathError("pack", path, err)
		}
		if _, err := p.tw.Write(b[:n]); err != nil {
			return err
		}
		if err := p.ctx.Err(); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}
