//go:build linux || darwin

package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/ext4"
)

// diskFile is the box's disk in its folder.
const diskFile = "disk.ext4"

// defaultDisk is its size when nobody bounded it. It only takes what is
// written to it.
const defaultDisk = 10 << 30

// minDisk is the smallest file system with a journal.
const minDisk = 16 << 20

// diskSize is the disk's size in bytes, in whole MiB.
func diskSize(limit int64) int64 {
	if limit <= 0 {
		limit = defaultDisk
	}
	return max(limit, minDisk) >> 20 << 20
}

// openDisk opens the box's disk, which it makes at the first boot.
func openDisk(ctx context.Context, dir, cacheDir string, size int64) (*os.File, error) {
	file := filepath.Join(dir, diskFile)
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeDisk(ctx, file, filepath.Join(Dir(cacheDir), "disks"), size); err != nil {
			return nil, fmt.Errorf("disk: %w", err)
		}
		f, err = os.OpenFile(file, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	return f, nil
}

// makeDisk makes an empty file system by copying one that was made before.
func makeDisk(ctx context.Context, file, cache string, size int64) error {
	if _, err := ext4.Mkfs(); err != nil {
		return noMkfs()
	}
	// Many small files are what boxes hold. The file system's own id is the same
	// in all boxes, which never see each other's.
	return ext4.Place(ctx, file, filepath.Join(cache, fmt.Sprintf("blank-%d.ext4", size)), size, "-i", "16384", "-L", "hutch")
}

// noMkfs is the error of a host that cannot make file systems.
func noMkfs() error {
	return &box.Error{Kind: box.Unsupported, Op: "boot", Object: "disk", Err: errors.New("mkfs.ext4 is missing"), Hint: installHint("e2fsprogs")}
}

// removeDisk removes the disk of a boot that did not come about.
func removeDisk(dir string) error {
	err := os.Remove(filepath.Join(dir, diskFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// copyAtMost copies what is in in, which must be no more than limit bytes.
func copyAtMost(out io.Writer, in io.Reader, limit int64) error {
	n, err := io.Copy(out, io.LimitReader(in, limit+1))
	if err == nil && n > limit {
		err = errors.New("it is longer than allowed")
	}
	return err
}

// openPlain opens a file for reading that a hostile program may have put
// something else in the place of.
func openPlain(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// diskUsage is what the disk takes on the host, in bytes; -1 if unknown.
func diskUsage(f *os.File) int64 {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return -1
	}
	return st.Blocks * 512
}
