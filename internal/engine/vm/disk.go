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
		// Many small files are what boxes hold. The file system's own id is the
		// same in all boxes, which never see each other's.
		blank := filepath.Join(Dir(cacheDir), "disks", fmt.Sprintf("blank-%d.ext4", size))
		if err := ext4.Place(ctx, file, blank, size, "-i", "16384", "-L", "hutch"); err != nil {
			return nil, fmt.Errorf("disk: %w", err)
		}
		f, err = os.OpenFile(file, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	return f, nil
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
