//go:build linux || darwin

// Package ext4 makes empty file systems in files, for the disks of machines.
package ext4

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/hutch-sandbox/hutch/internal/x/sparse"
)

// Mkfs finds the program that makes file systems.
func Mkfs() (string, error) {
	for _, p := range []string{"/sbin/mkfs.ext4", "/usr/sbin/mkfs.ext4", "/opt/homebrew/opt/e2fsprogs/sbin/mkfs.ext4", "/usr/local/opt/e2fsprogs/sbin/mkfs.ext4"} {
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return exec.LookPath("mkfs.ext4")
}

// Place makes the file a file system of size bytes with nothing in it. It
// appears whole or not at all, and takes what is written to it. The file system
// is made once, as the file blank, and then copied: that takes a few hundred
// KiB and no other program. Options are those of mkfs.ext4 that the blank was
// made with.
func Place(ctx context.Context, file, blank string, size int64, options ...string) error {
	if _, err := os.Stat(blank); errors.Is(err, fs.ErrNotExist) {
		if err := makeBlank(ctx, blank, size, options); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return sparse.Place(ctx, file, blank)
}

// features are those that ext4 has by default since 2016, but for growing, and
// for 64 bits: a file system that has those takes longer to mount, and only one
// of 16 TiB and more needs them.
const (
	features = "none,has_journal,ext_attr,dir_index,filetype,extent,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"
	large    = 16 << 40
)

func makeBlank(ctx context.Context, blank string, size int64, options []string) error {
	mkfs, err := Mkfs()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(blank), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(blank), ".ext4-*")
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
	// Nothing is written that is zero anyway. Blocks that only root may use
	// would be lost: a machine's root is not the host's. The features do not
	// depend on how the host is configured.
	with := features
	if size >= large {
		with += ",64bit"
	}
	args := append([]string{"-q", "-F", "-m", "0", "-b", "4096", "-I", "256",
		"-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0",
		"-O", with}, options...)
	cmd := exec.CommandContext(ctx, mkfs, append(args, f.Name())...)
	cmd.Env = []string{"PATH=/sbin:/usr/sbin:/bin:/usr/bin", "MKE2FS_CONFIG=/dev/null"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.ext4: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return os.Rename(f.Name(), blank)
}
