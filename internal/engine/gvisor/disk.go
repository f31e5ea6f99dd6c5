//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/x/ext4"
)

// agentDir is where the guest agent lives in the box, in an overlay layer of
// its own.
const agentDir = ".hutch"

// disk is a box's mounted root file system. Its mounts are in the keeper's
// mount namespace and end with it at the latest.
type disk struct {
	root   string // the overlay
	layer  string // the mount that holds upper and work, "" for a plain folder
	upper  string
	limit  box.Limit
	closed bool
}

// mountDisk mounts the overlay of the image, the agent and the box's own layer
// below the boot's folder.
func mountDisk(ctx context.Context, cfg *engine.Config) (_ *disk, err error) {
	dir, diskDir, size := cfg.StateDir, cfg.DiskDir, cfg.Limits.Disk
	d := &disk{root: filepath.Join(dir, "root")}
	defer func() {
		if err != nil {
			_ = d.close()
		}
	}()
	base := diskDir
	img := filepath.Join(diskDir, "disk.img")
	_, statErr := os.Stat(img)
	how, why := diskLimitSupport()
	switch {
	case statErr == nil || (size > 0 && how != "" && isEmpty(diskDir)):
		if how == "" {
			return nil, &box.Error{Kind: box.Unsupported, Op: "boot", Object: "disk", Err: fmt.Errorf("the box's disk is an image file, which needs a loop device: %s", why), Hint: "start the box as root"}
		}
		base = filepath.Join(dir, "disk")
		if err := os.Mkdir(base, 0o700); err != nil {
			return nil, err
		}
		if err := mountImage(ctx, img, base, cfg.CacheDir, size); err != nil {
			return nil, fmt.Errorf("disk: %w", err)
		}
		d.layer = base
		d.limit = box.Limit{Value: float64(size), By: how}
	case size > 0:
		d.limit = box.Limit{Note: why}
	}
	d.upper = filepath.Join(base, "upper")
	work := filepath.Join(base, "work")
	for _, sub := range []string{d.upper, work, d.root} {
		// The upper folder's mode is what the box sees of "/".
		if err := os.Mkdir(sub, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	// Whatever the box did to the agent's folder is undone: it must start
	// with our agent, or a process of the box would take its place.
	if err := os.RemoveAll(filepath.Join(d.upper, agentDir)); err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	layer := filepath.Join(dir, "agent")
	if err := placeAgent(cfg.Agent, layer); err != nil {
		return nil, err
	}
	// index=off, metacopy=off: the upper folder must stay readable by itself.
	opts := fmt.Sprintf("lowerdir=%s:%s,upperdir=%s,workdir=%s,index=off,metacopy=off",
		escape(layer), escape(cfg.Image), escape(d.upper), escape(work))
	if inUserNamespace() {
		opts += ",userxattr"
	}
	if err := unix.Mount("overlay", d.root, "overlay", unix.MS_NODEV, opts); err != nil {
		return nil, &box.Error{Kind: box.Unsupported, Op: "mount", Object: "overlay", Err: err,
			Hint: "hutch doctor tells what this machine lacks"}
	}
	return d, nil
}

// escape protects the characters that separate overlay options.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`).Replace(path)
}

// placeAgent makes the overlay layer that holds the agent.
func placeAgent(agent, layer string) error {
	dir := filepath.Join(layer, agentDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	dst := filepath.Join(dir, "agent")
	// The layer is only read (the box's changes go to its own layer), so that
	// all boxes may share the file.
	if os.Link(agent, dst) == nil {
		return nil
	}
	src, err := os.Open(agent)
	if err != nil {
		return fmt.Errorf("guest agent: %w", err)
	}
	defer src.Close()
	f, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return fmt.Errorf("guest agent: %w", err)
	}
	_, err = io.Copy(f, src)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func isEmpty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0
}

func inUserNamespace() bool {
	data, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(data)), " ") != "0 0 4294967295"
}

// close unmounts what mountDisk mounted, so that the disk is whole before
// somebody mounts it again.
func (d *disk) close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	var errs []error
	for _, dir := range []string{d.root, d.layer} {
		if dir == "" {
			continue
		}
		err := unix.Unmount(dir, 0)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(dir, unix.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// usage returns the bytes that the writable layer takes; -1 if unknown.
func (d *disk) usage() int64 {
	if d.layer == "" {
		return -1
	}
	var st unix.Statfs_t
	if unix.Statfs(d.layer, &st) != nil {
		return -1
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

// diskLimitSupport says what bounds a disk here, or why nothing does.
func diskLimitSupport() (how, why string) {
	if os.Geteuid() != 0 || inUserNamespace() {
		return "", "a bounded disk needs root, for a loop device"
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return "", "this machine has no loop devices (/dev/loop-control)"
	}
	if _, err := ext4.Mkfs(); err != nil {
		return "", "mkfs.ext4 is missing (apt-get install e2fsprogs)"
	}
	return "an ext4 image file", ""
}

// mountImage mounts the ext4 file system in the file img, which it makes when
// it is not there.
func mountImage(ctx context.Context, img, dir, cache string, size int64) error {
	if _, err := os.Stat(img); errors.Is(err, fs.ErrNotExist) {
		// A small journal: it is copied for each box.
		blank := filepath.Join(cache, fmt.Sprintf("ext4-%d.img", size))
		if err := ext4.Place(ctx, img, blank, size, "-i", "8192", "-J", "size=4"); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if err := waitUnused(ctx, img); err != nil {
		return err
	}
	loop, err := attachLoop(img)
	if err != nil {
		return err
	}
	// The mount keeps the device; it goes when the mount goes.
	defer loop.Close()
	// discard: what the box deletes is given back to the host. noinit_itable: a
	// new disk is all zero, so that no inode table needs to be written over.
	err = unix.Mount(loop.Name(), dir, "ext4", unix.MS_NODEV|unix.MS_NOATIME, "discard,noinit_itable,errors=remount-ro")
	if err != nil {
		return fmt.Errorf("mount %s: %w", img, err)
	}
	return nil
}

// waitUnused waits until no loop device has the file any more. After a crash
// the kernel unmounts the dead box's disk on its own time, and a file system
// mounted twice is lost.
func waitUnused(ctx context.Context, img string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		dev, err := loopOf(img)
		if err != nil || dev == "" {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is still in use by %s", img, dev)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func loopOf(img string) (string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // detached meanwhile
		}
		if strings.TrimSpace(string(data)) == img {
			return filepath.Base(filepath.Dir(filepath.Dir(file))), nil
		}
	}
	return "", nil
}

// attachLoop binds a free loop device to the file. The device unbinds itself
// at its last close.
func attachLoop(img string) (*os.File, error) {
	file, err := os.OpenFile(img, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	for try := 0; ; try++ {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("loop device: %w", err)
		}
		dev := fmt.Sprintf("/dev/loop%d", n)
		if err := ensureLoopNode(dev, n); err != nil {
			return nil, err
		}
		loop, err := os.OpenFile(dev, os.O_RDWR, 0)
		if err != nil {
			return nil, fmt.Errorf("loop device: %w", err)
		}
		cfg := unix.LoopConfig{Fd: uint32(file.Fd()), Size: 4096}
		cfg.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		copy(cfg.Info.File_name[:63], img)
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &cfg)
		if err == nil {
			return loop, nil
		}
		loop.Close()
		// Another process took the device between the two calls.
		if !errors.Is(err, unix.EBUSY) || try > 100 {
			return nil, fmt.Errorf("loop device: %w", err)
		}
	}
}

// ensureLoopNode makes the device's node where devtmpfs or udev did not.
func ensureLoopNode(dev string, n int) error {
	if _, err := os.Stat(dev); err == nil {
		return nil
	}
	err := unix.Mknod(dev, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n))))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("loop device: %w", err)
	}
	return nil
}
