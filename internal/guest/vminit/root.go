//go:build linux

package vminit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/vmboot"
)

// Folders of the initramfs. They stay under the box's root, where nothing in
// the box looks.
const (
	imageDir   = "/image"
	diskDir    = "/disk"
	volumesDir = "/volumes"
	newRoot    = "/root"
)

// bindDisks gives every disk to the driver, now that it has its size.
func bindDisks() error { return bindAll("0x0002", "virtio_blk") }

// bindAll gives all devices of a kind to the driver. One that the driver has
// already, because it is built into the kernel, is taken away first: it would
// keep the size that the disk had in a template.
func bindAll(kind, driver string) error {
	devices, err := filepath.Glob(virtioBus + "/devices/*/device")
	if err != nil {
		return err
	}
	for _, f := range devices {
		if got, err := readLine(f); err != nil || got != kind {
			continue
		}
		dir := filepath.Dir(f)
		name := []byte(filepath.Base(dir))
		if _, err := os.Stat(dir + "/driver"); err == nil {
			if err := os.WriteFile(dir+"/driver/unbind", name, 0); err != nil {
				return fmt.Errorf("give up %s: %w", name, err)
			}
		}
		if err := os.WriteFile(virtioBus+"/drivers/"+driver+"/bind", name, 0); err != nil {
			return fmt.Errorf("take %s: %w", name, err)
		}
	}
	return nil
}

// disk finds a disk by its serial number.
func disk(serial string) (string, error) {
	return await("the disk "+serial, func() (string, bool) {
		files, _ := filepath.Glob("/sys/block/vd*/serial")
		for _, f := range files {
			if got, err := readLine(f); err == nil && got == serial {
				path := "/dev/" + filepath.Base(filepath.Dir(f))
				_, err := os.Stat(path)
				return path, err == nil
			}
		}
		return "", false
	})
}

// mountRoot mounts the box's root file system and makes it this process's.
// Everything that is mounted into it is mounted from inside, so that the
// image's links mean what they mean to the box.
func mountRoot(plan *vmboot.Plan, logf func(string, ...any)) error {
	image, err := disk(vmboot.SerialImage)
	if err != nil {
		return err
	}
	layer, err := disk(vmboot.SerialDisk)
	if err != nil {
		return err
	}
	for _, m := range []struct {
		source, dir, fstype, data string
		flags                     uintptr
	}{
		{image, imageDir, "erofs", "", unix.MS_RDONLY},
		// discard: what the box deletes, the host gets back. noinit_itable: a new
		// disk is all zero, so that no inode table needs to be written over.
		{layer, diskDir, "ext4", "discard,noinit_itable", 0},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.dir, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s (%s): %w; the kernel says: %s", m.dir, m.fstype, err, kernelSays())
		}
	}
	upper, work := diskDir+"/upper", diskDir+"/work"
	for _, dir := range []string{upper, work, newRoot} {
		// The upper folder's mode is what the box sees of "/".
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	// index and metacopy off: the layer must be readable by itself.
	opts := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,index=off,metacopy=off", imageDir, upper, work)
	if err := unix.Mount("overlay", newRoot, "overlay", 0, opts); err != nil {
		return fmt.Errorf("mount the root: %w; the kernel says: %s", err, kernelSays())
	}
	trees, err := openVolumes(plan.Mounts)
	if err != nil {
		return err
	}
	defer func() {
		for _, fd := range trees {
			unix.Close(fd)
		}
	}()
	self, selfErr := openSelf()
	if err := enter(newRoot); err != nil {
		return err
	}
	if err := mountSystem(); err != nil {
		return err
	}
	if selfErr == nil {
		selfErr = placeSelf(self)
		unix.Close(self)
	}
	if selfErr != nil {
		logf("no further kernel modules will be loaded: %v", selfErr)
	}
	for n, m := range plan.Mounts {
		if err := place(trees[n], m); err != nil {
			return fmt.Errorf("volume %s: %w", m.Target, err)
		}
	}
	return nil
}

// enter makes dir the root of this process, and with it of everything in the
// machine: the kernel's own threads share it.
func enter(dir string) error {
	if err := os.Chdir(dir); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	return os.Chdir("/")
}

// mountSystem mounts the kernel's file systems in the box.
func mountSystem() error {
	const none = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, m := range []struct {
		dir, fstype, data string
		flags             uintptr
	}{
		{"/proc", "proc", "", none},
		{"/sys", "sysfs", "", none},
		{"/sys/fs/cgroup", "cgroup2", "nsdelegate", none},
		{"/dev", "devtmpfs", "", unix.MS_NOSUID},
		{"/dev/pts", "devpts", "newinstance,gid=5,ptmxmode=0666,mode=0620", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"/dev/shm", "tmpfs", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fstype, m.dir, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	// devtmpfs names it for the kernel's first devpts instance.
	_ = os.Remove("/dev/ptmx")
	if err := os.Symlink("pts/ptmx", "/dev/ptmx"); err != nil {
		return err
	}
	// Devices whose drivers are modules: whoever opens one makes the kernel load
	// it. Elsewhere udev makes these files.
	for _, d := range []struct {
		path         string
		mode         uint32
		major, minor uint32
	}{
		{"/dev/loop-control", 0o660, 10, 237},
		{"/dev/net/tun", 0o666, 10, 200},
		{"/dev/fuse", 0o666, 10, 229},
	} {
		if err := os.MkdirAll(filepath.Dir(d.path), 0o755); err != nil {
			return err
		}
		err := unix.Mknod(d.path, unix.S_IFCHR|d.mode, int(unix.Mkdev(d.major, d.minor)))
		if err == nil {
			err = unix.Chmod(d.path, d.mode)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make %s: %w", d.path, err)
		}
	}
	return nil
}

// openVolumes mounts the volumes' file system and opens each volume as a
// mount of its own, which place puts where it belongs.
func openVolumes(mounts []vmboot.Mount) ([]int, error) {
	if len(mounts) == 0 {
		return nil, nil
	}
	if err := bindAll("0x001a", "virtiofs"); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(volumesDir, 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mount(vmboot.VolumesTag, volumesDir, "virtiofs", unix.MS_NODEV|unix.MS_NOSUID, ""); err != nil {
		return nil, fmt.Errorf("mount the volumes: %w", err)
	}
	var trees []int
	for _, m := range mounts {
		if m.Name == "" || strings.ContainsAny(m.Name, "/\x00") || m.Name == "." || m.Name == ".." {
			return trees, fmt.Errorf("volume %q: not a name", m.Name)
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, volumesDir+"/"+m.Name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return trees, fmt.Errorf("volume %s: %w", m.Target, err)
		}
		trees = append(trees, fd)
	}
	return trees, nil
}

// place mounts a volume at its target, which it makes where it is missing.
func place(tree int, m vmboot.Mount) error {
	if m.File {
		if err := os.MkdirAll(filepath.Dir(m.Target), 0o755); err != nil {
			return err
		}
		f, err := os.OpenFile(m.Target, os.O_CREATE|unix.O_NONBLOCK, 0o644)
		if err != nil {
			return err
		}
		f.Close()
	} else if err := os.MkdirAll(m.Target, 0o755); err != nil {
		return err
	}
	if m.ReadOnly {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return err
		}
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, m.Target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
