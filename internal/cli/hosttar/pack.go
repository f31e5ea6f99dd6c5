// Package hosttar moves files between this host and a tar stream, for
// "hutch cp": Pack reads the host's files, Unpack writes them.
//
// The tar that Unpack reads comes from a box and is taken to be hostile. It
// can put files only where its caller said: names that point elsewhere are
// refused, symbolic links are never written through, neither those of the tar
// nor those that were there before, and nothing it brings is set-user-ID.
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
	"path/filepath"
	"syscall"
)

// Pack writes a tar of the file or directory at src to w. name is the name of
// its top entry; "." means the content of a directory without a top entry.
// follow follows a symbolic link at src itself; other links are kept as links.
// Files with several names keep them. Sockets are left out: they mean nothing
// elsewhere.
func Pack(ctx context.Context, w io.Writer, src, name string, follow bool) error {
	stat := os.Lstat
	if follow {
		stat = os.Stat
	}
	fi, err := stat(src)
	if err != nil {
		return err
	}
	p := packer{ctx: ctx, w: tar.NewWriter(w), seen: map[fileID]string{}}
	if err := p.add(src, name, fi); err != nil {
		return err
	}
	return p.w.Close()
}

type fileID struct{ dev, ino uint64 }

type packer struct {
	ctx  context.Context
	w    *tar.Writer
	seen map[fileID]string // first name of files that have several
}

func (p *packer) add(src, name string, fi fs.FileInfo) error {
	if err := p.ctx.Err(); err != nil {
		return context.Cause(p.ctx)
	}
	if fi.Mode()&fs.ModeSocket != 0 {
		return nil
	}
	if name != "." {
		if err := p.entry(src, name, fi); err != nil {
			return err
		}
	}
	if !fi.IsDir() {
		return nil
	}
	entries, err := os.ReadDir(src)
	if err != nil {
		return err
	}
	for _, d := range entries {
		fi, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		}
		if err != nil {
			return err
		}
		if err := p.add(filepath.Join(src, d.Name()), path.Join(name, d.Name()), fi); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) entry(src, name string, fi fs.FileInfo) error {
	link := ""
	if fi.Mode()&fs.ModeSymlink != 0 {
		var err error
		if link, err = os.Readlink(src); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(fi, link)
	if err != nil {
		return fmt.Errorf("%s: %w", src, err)
	}
	h.Name, h.Format = name, tar.FormatPAX
	if fi.IsDir() {
		h.Name += "/"
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && fi.Mode().IsRegular() && st.Nlink > 1 {
		id := fileID{uint64(st.Dev), st.Ino}
		if first, ok := p.seen[id]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return p.w.WriteHeader(h)
		}
		p.seen[id] = name
	}
	if !fi.Mode().IsRegular() {
		return p.w.WriteHeader(h)
	}
	f, err := os.Open(src)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := p.w.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(p.w, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size {
		err = fmt.Errorf("%s became shorter while it was copied", src)
	}
	return err
}
