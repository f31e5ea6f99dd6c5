package layer

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Confine shuts this whole process into dir for the rest of its life, as far
// as its privileges and the kernel allow, and returns the names of the walls
// it could put up:
//
//	chroot        dir is the root, and the working directory
//	landlock      no file outside dir can be opened, made, linked or removed
//	capabilities  none is left but those that unpacking needs, and none can
//	              be gained
//
// Descriptors that are open already stay usable. What is not permitted or not
// known to the kernel is left out; an error is something that should have
// worked.
func Confine(dir string) (walls []string, err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	defer unix.Close(fd)
	// A dump of this process would hold the layer's content and land anywhere.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})

	// Threads share their root, so this one call is for the whole process.
	switch err := unix.Chroot(dir); {
	case err == nil:
		if err := unix.Chdir("/"); err != nil {
			return nil, os.NewSyscallError("chdir", err)
		}
		walls = append(walls, "chroot")
	case !errors.Is(err, unix.EPERM):
		return nil, os.NewSyscallError("chroot", err)
	}
	// The rest is kept by each thread for itself.
	_, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if errno == syscall.ENOTSUP {
		return walls, nil // a program linked with cgo, such as a test with the race detector
	}
	if errno != 0 {
		return walls, os.NewSyscallError("prctl", errno)
	}
	ok, err := landlock(fd)
	if err != nil {
		return walls, err
	}
	if ok {
		walls = append(walls, "landlock")
	}
	if err := dropCapabilities(); err != nil {
		return walls, err
	}
	return append(walls, "capabilities"), nil
}

// The rights of Landlock ABI 2 that concern files. REFER, which came with ABI
// 2, is what hard links between directories need; without it there is no use
// in Landlock here.
const landlockRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
	unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR |
	unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
	unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
	unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
	unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK |
	unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER

func landlock(fd int) (bool, error) {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || abi < 2 {
		return false, nil
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: landlockRights}
	// Only the first field is passed: it is all that ABI 2 knows.
	ruleset, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET,
		uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr.Handled_access_fs), 0)
	if errno != 0 {
		return false, os.NewSyscallError("landlock_create_ruleset", errno)
	}
	defer unix.Close(int(ruleset))
	const granted = landlockRights &^ (unix.LANDLOCK_ACCESS_FS_EXECUTE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK)
	below := unix.LandlockPathBeneathAttr{Allowed_access: granted, Parent_fd: int32(fd)}
	_, _, errno = unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, ruleset, unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&below)), 0, 0, 0)
	if errno != 0 {
		return false, os.NewSyscallError("landlock_add_rule", errno)
	}
	_, _, errno = syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0, 0)
	if errno != 0 {
		return false, os.NewSyscallError("landlock_restrict_self", errno)
	}
	return true, nil
}

// dropCapabilities keeps of the capabilities this process has those that are
// about files and their owners.
func dropCapabilities() error {
	const keep = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER |
		1<<unix.CAP_FSETID | 1<<unix.CAP_SETFCAP
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	data[0].Effective &= keep & 0xffffffff
	data[1] = unix.CapUserData{}
	data[0].Permitted = data[0].Effective
	data[0].Inheritable = 0
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET,
		uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0)
	runtime.KeepAlive(&hdr)
	runtime.KeepAlive(&data)
	if errno != 0 {
		return os.NewSyscallError("capset", errno)
	}
	return nil
}
