package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// jailArg is argv[0] of a process that confines itself and becomes QEMU.
const jailArg = "hutch-qemu"

// jailSpec says what that process does. It comes as JSON on jailFD.
type jailSpec struct {
	Root    string            // an empty folder for the new root
	Private string            // the private folder, at /box in the new root
	Files   map[string]string // host files, by their path in the new root, read-only
	KVM     bool              // /dev/kvm is needed
	Program string
	Args    []string
	UID     int // -1: stay who we are
	GID     int
}

const jailFD = 3

// IsHelper reports whether this process was started by the engine.
func IsHelper(args []string) bool { return len(args) > 0 && args[0] == jailArg }

// RunHelper is the life of such a process, until it has become QEMU. It must
// be called first in main and does not return.
func RunHelper() {
	// What follows is about this thread, which executes QEMU in the end.
	runtime.LockOSThread()
	err := runJail()
	fmt.Fprintln(os.Stderr, "hutch: confine qemu:", err)
	os.Exit(1)
}

func runJail() error {
	f := os.NewFile(jailFD, "jail")
	var s jailSpec
	err := json.NewDecoder(f).Decode(&s)
	f.Close()
	if err != nil {
		return err
	}
	if err := s.enterRoot(); err != nil {
		return err
	}
	if err := s.dropRights(); err != nil {
		return err
	}
	return &os.PathError{Op: "exec", Path: s.Program, Err: syscall.Exec(s.Program, append([]string{filepath.Base(s.Program)}, s.Args...), []string{"PATH=/usr/bin:/bin", "LC_ALL=C"})}
}

// systemDirs is where programs and libraries live. All are read-only in the
// jail; nothing else of the host's files is there, no home, no /etc, no /proc.
var systemDirs = []string{"/usr", "/lib", "/lib64", "/lib32", "/libx32", "/bin", "/sbin", "/nix/store", "/gnu/store"}

// enterRoot makes the new root and makes it this process's.
func (s *jailSpec) enterRoot() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if err := unix.Mount("tmpfs", s.Root, "tmpfs", unix.MS_NOSUID, "size=1m,mode=0755"); err != nil {
		return fmt.Errorf("new root: %w", err)
	}
	dirs := systemDirs
	if dir := filepath.Dir(s.Program); !strings.HasPrefix(dir, "/usr/") && dir != "/bin" {
		dirs = append(dirs, dir)
	}
	for _, dir := range dirs {
		if err := s.system(dir); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	const quiet = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	if err := s.graft(s.Private, "/box", quiet, true); err != nil {
		return fmt.Errorf("private folder: %w", err)
	}
	for at, file := range s.Files {
		if err := s.graft(file, at, quiet|unix.MOUNT_ATTR_RDONLY, false); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	if _, err := os.Stat("/etc/ld.so.cache"); err == nil {
		if err := s.graft("/etc/ld.so.cache", "/etc/ld.so.cache", quiet|unix.MOUNT_ATTR_RDONLY, false); err != nil {
			return err
		}
	}
	devices := []string{"/dev/null", "/dev/urandom"}
	if s.KVM {
		devices = append(devices, "/dev/kvm")
	}
	for _, dev := range devices {
		if err := s.device(dev); err != nil {
			return fmt.Errorf("%s: %w", dev, err)
		}
	}
	if err := unix.Mount("", s.Root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID, ""); err != nil {
		return fmt.Errorf("new root: %w", err)
	}
	if err := os.Chdir(s.Root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	// The old root lies on top of the new one now.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	return os.Chdir("/box")
}

// system puts a folder of the system into the new root. A symbolic link stays
// one.
func (s *jailSpec) system(dir string) error {
	fi, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.Mode()&os.ModeSymlink != 0 {
		target, err := os.Readlink(dir)
		if err != nil {
			return err
		}
		return os.Symlink(target, s.Root+dir)
	}
	if !fi.IsDir() {
		return nil
	}
	return s.graft(dir, dir, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_RDONLY, true)
}

// graft shows a file or folder of the host at a place in the new root. A
// folder's own mounts come along only if they must: in a user namespace a
// mount that covers something cannot be taken away.
func (s *jailSpec) graft(source, at string, attrs uint64, folder bool) error {
	dst := s.Root + at
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return err
	}
	var err error
	if folder {
		err = os.MkdirAll(dst, 0o755)
	} else {
		err = os.WriteFile(dst, nil, 0o644)
	}
	if err != nil {
		return err
	}
	var recursive uint
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if errors.Is(err, unix.EINVAL) {
		recursive = unix.AT_RECURSIVE
		tree, err = unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|recursive)
	}
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: attrs}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|recursive, &attr); err != nil {
		return err
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, dst, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// device makes a device in the new root that QEMU's own user may use, or
// shows the host's where making one is not allowed.
func (s *jailSpec) device(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if err := os.MkdirAll(s.Root+"/dev", 0o755); err != nil {
		return err
	}
	if s.UID >= 0 && unix.Mknod(s.Root+path, unix.S_IFCHR|0o600, int(st.Rdev)) == nil {
		return os.Chown(s.Root+path, s.UID, s.GID)
	}
	return s.graft(path, path, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, false)
}

// dropRights leaves this thread nothing but what any program has, for good.
func (s *jailSpec) dropRights() error {
	for _, l := range []struct {
		what  int
		value uint64
	}{{unix.RLIMIT_CORE, 0}, {unix.RLIMIT_NOFILE, 1024}} {
		if err := unix.Setrlimit(l.what, &unix.Rlimit{Cur: l.value, Max: l.value}); err != nil {
			return fmt.Errorf("limit: %w", err)
		}
	}
	for c := 0; c <= 63; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			if errors.Is(err, unix.EINVAL) {
				break // past the last that this kernel has
			}
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if s.UID >= 0 {
		// Raw calls, for this thread only: the others end when it executes.
		if !s.KVM || os.Getuid() == 0 && !inUserNamespace() {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 && errno != unix.EPERM {
				return fmt.Errorf("groups: %w", errno)
			}
		}
		gid, uid := uintptr(s.GID), uintptr(s.UID)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); errno != 0 {
			return fmt.Errorf("group %d: %w", s.GID, errno)
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
			return fmt.Errorf("user %d: %w", s.UID, errno)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	return nil
}

func inUserNamespace() bool {
	data, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(data)), " ") != "0 0 4294967295"
}
