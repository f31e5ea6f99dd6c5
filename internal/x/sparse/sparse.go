//go:build linux || darwin

// Package sparse copies files and leaves their holes holes.
package sparse

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Place copies the file src to dst, which appears whole or not at all, and
// must not be made by anybody else meanwhile. What an attempt that was killed
// left is replaced.
func Place(ctx context.Context, dst, src string) error {
	tmp := dst + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	err := Copy(ctx, tmp, src)
	if err == nil {
		err = os.Rename(tmp, dst)
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

// Copy copies the file src to dst, which it makes, for this user alone. An
// unfinished copy stays.
func Copy(ctx context.Context, dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	return CopyOpen(ctx, dst, in)
}

// CopyOpen is Copy for a file that is open. It moves the file's offset.
func CopyOpen(ctx context.Context, dst string, in *os.File) error {
	out, err := os.OpenFile(dst, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = Into(ctx, out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return err
}

// Into is CopyOpen for a file that is there, and empty or all hole. It shares
// the blocks where the file system can.
func Into(ctx context.Context, out, in *os.File) error {
	if clone(out, in) == nil {
		return nil
	}
	fi, err := in.Stat()
	if err != nil {
		return err
	}
	return copyData(ctx, out, in, fi.Size())
}

// copyData copies the data between the holes.
func copyData(ctx context.Context, out, in *os.File, size int64) error {
	if err := out.Truncate(size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		start, err := unix.Seek(int(in.Fd()), at, seekData)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			start = at // this file system does not tell holes
		}
		end, err := unix.Seek(int(in.Fd()), start, seekHole)
		if err != nil {
			end = size
		}
		const piece = 8 << 20
		for start < end {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(piece, end-start)
			// On Linux this is copy_file_range, within the kernel.
			if _, err := in.Seek(start, io.SeekStart); err != nil {
				return err
			}
			if _, err := out.Seek(start, io.SeekStart); err != nil {
				return err
			}
			if _, err := io.CopyN(out, in, n); err != nil {
				return err
			}
			start += n
		}
		at = end
	}
	return nil
}
