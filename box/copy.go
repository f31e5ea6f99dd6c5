package box

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
)

// CopyIn unpacks a tar stream (not compressed) below dir, a directory in the
// box. Nothing is written outside of it: absolute names and ".." are refused,
// and symbolic links of the tar are not followed.
func (b *Box) CopyIn(ctx context.Context, dir string, r io.Reader, opts UnpackOptions) error {
	if err := checkPath("copy in", dir); err != nil {
		return err
	}
	if err := checkUser(opts.User); err != nil {
		return err
	}
	return wrap("copy in", dir, b.machine.Unpack(ctx, dir, r, opts))
}

// CopyOut returns a tar stream of a file or directory in the box. Close it, also
// before its end; it also ends with ctx.
func (b *Box) CopyOut(ctx context.Context, path string, opts PackOptions) (io.ReadCloser, error) {
	if err := checkPath("copy out", path); err != nil {
		return nil, err
	}
	r, err := b.machine.Pack(ctx, path, opts)
	return r, wrap("copy out", path, err)
}

// CopyFS copies all of fsys below dir, a directory in the box. The files belong
// to the box's user.
func (b *Box) CopyFS(ctx context.Context, dir string, fsys fs.FS) error {
	if err := checkPath("copy in", dir); err != nil {
		return err
	}
	pr, pw := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		w := tar.NewWriter(pw)
		err := w.AddFS(fsys)
		if err == nil {
			err = w.Close()
		}
		pw.CloseWithError(err)
		packed <- err
	}()
	err := b.machine.Unpack(ctx, dir, pr, UnpackOptions{})
	// An Unpack that stopped early must not leave the packer waiting.
	_ = pr.Close()
	if perr := <-packed; perr != nil && !errors.Is(perr, io.ErrClosedPipe) {
		return wrap("copy in", dir, perr)
	}
	return wrap("copy in", dir, err)
}
