//go:build linux || darwin

package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

// diskFile is the box's disk in its folder.
const diskFile = "disk.ext4"

// defaultDisk is its size when nobody bounded it. It only takes what is
// written to it.
const defaultDisk = 10 << 30

// minDisk is the smallest file system with a journal.
const minDisk = 8 << 20

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

// makeDisk makes an empty ext4 file system by copying one that was made before.
func makeDisk(ctx context.Context, file, cache string, size int64) error {
	blank := filepath.Join(cache, fmt.Sprintf("blank-%d.ext4", size))
	if _, err := os.Stat(blank); err != nil {
		if err := makeBlank(ctx, blank, size); err != nil {
			return err
		}
	}
	tmp := file + ".new"
	if err := copySparse(ctx, tmp, blank); err != nil {
		_ = os.Remove(tmp)
		return err
	}
	return os.Rename(tmp, file)
}

// makeBlank makes an empty file system in a file. It is all lazy: the file
// holds little more than the journal.
func makeBlank(ctx context.Context, blank string, size int64) error {
	mkfs, err := mkfsPath()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(blank), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(blank), ".blank-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	err = f.Truncate(size)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	// Many small files are what boxes hold. Blocks that only root may use
	// would be lost: everybody in a box is its root. The file system's own id
	// is the same in all boxes, which never see each other's.
	cmd := exec.CommandContext(ctx, mkfs, "-q", "-F", "-m", "0", "-I", "256", "-i", "16384",
		"-L", "hutch", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0", f.Name())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.ext4: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return os.Rename(f.Name(), blank)
}

// removeDisk removes the disk of a boot that did not come about.
func removeDisk(dir string) error {
	err := os.Remove(filepath.Join(dir, diskFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func mkfsPath() (string, error) {
	for _, p := range []string{"/sbin/mkfs.ext4", "/usr/sbin/mkfs.ext4", "/opt/homebrew/opt/e2fsprogs/sbin/mkfs.ext4", "/usr/local/opt/e2fsprogs/sbin/mkfs.ext4"} {
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	if p, err := exec.LookPath("mkfs.ext4"); err == nil {
		return p, nil
	}
	return "", &box.Error{Kind: box.Unsupported, Op: "boot", Object: "disk", Err: errors.New("mkfs.ext4 is missing"), Hint: installHint("e2fsprogs")}
}

// copySparse copies a file to a new one: by sharing its blocks where the file
// system can, else only what is not a hole.
func copySparse(ctx context.Context, dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	return copyOpen(ctx, dst, in)
}

// copyOpen is copySparse for a file that is open. It moves the file's offset.
func copyOpen(ctx context.Context, dst string, in *os.File) error {
	fi, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(dst, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = copyInto(ctx, out, in, fi.Size())
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return err
}

// copyInto is copyOpen for a file that is there, and empty or all hole.
func copyInto(ctx context.Context, out, in *os.File, size int64) error {
	if cloneFile(out, in) == nil {
		return nil
	}
	return copyData(ctx, out, in, size)
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

// diskUsage is what the disk takes on the host, in bytes; -1 if unknown.
func diskUsage(f *os.File) int64 {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return -1
	}
	return st.Blocks * 512
}
