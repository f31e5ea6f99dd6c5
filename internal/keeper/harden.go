package keeper

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// keptCapabilities are what a keeper needs once its box is up, and what for.
// As an ordinary user's they are good in the keeper's own user namespace only.
const keptCapabilities = 1<<unix.CAP_SYS_ADMIN | // unmount the box's disk and volumes; what else it allows, refusedCalls take away
	1<<unix.CAP_KILL | // end the engine's processes, which are other users'
	1<<unix.CAP_SYS_PTRACE | // see how much memory those have, without control groups
	1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | // remove a box whose files are other users'
	1<<unix.CAP_NET_BIND_SERVICE // publish a port below 1024

// refusedCalls are system calls that a keeper whose box is up makes no use of:
// whoever got hold of it would. Those that start programs, mount, enter or make
// namespaces (clone is looked at closer), look into other processes, load code into the kernel, or change
// the machine.
func refusedCalls() []uint32 {
	return append(refusedHere(), []uint32{
		unix.SYS_EXECVE, unix.SYS_EXECVEAT,
		unix.SYS_MOUNT, unix.SYS_MOVE_MOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_OPEN_TREE,
		unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
		unix.SYS_SETNS, unix.SYS_UNSHARE,
		unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP, unix.SYS_PROCESS_MADVISE,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
		unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
		unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
		unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_REBOOT,
		unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_ACCT, unix.SYS_SYSLOG, unix.SYS_VHANGUP, unix.SYS_FANOTIFY_INIT,
		unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
		unix.SYS_MKNODAT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_PERSONALITY,
		unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID, unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_SETGROUPS,
	}...)
}

// harden gives up what the keeper needed to bring its box up and does not need
// any more: most capabilities, the right to gain any, and the system calls
// above, on all threads. The engine's processes have filters of their own and
// are not changed. It must be called by the thread that stays with Main.
func harden() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	// TSYNC gives all threads the filter, and the line before with it.
	filter := filterProgram(auditArch, refusedCalls())
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return fmt.Errorf("filter of system calls: %w", errno)
	}
	if thread != 0 {
		return fmt.Errorf("filter of system calls: thread %d has another one", thread)
	}
	return limitCapabilities(keptCapabilities)
}

// errCgo is returned where threads exist that Go does not know.
var errCgo = errors.New("the capabilities of all threads cannot be changed in a program linked with cgo")

// limitCapabilities keeps, of those there are, only some.
func limitCapabilities(keep uint64) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	for i := range data {
		kept := data[i].Permitted & uint32(keep>>(32*i))
		data[i] = unix.CapUserData{Effective: kept, Permitted: kept}
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0)
	runtime.KeepAlive(&hdr)
	runtime.KeepAlive(&data)
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP:
		return errCgo
	}
	return fmt.Errorf("capabilities: %w", errno)
}

// filterProgram is a seccomp filter that refuses calls with EPERM, and allows
// the rest. Of clone, threads are all that is left; clone3, whose flags a filter
// cannot read, does not exist, so that callers use clone.
func filterProgram(arch uint32, refused []uint32) []unix.SockFilter {
	const (
		load    = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		atLeast = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		anyOf   = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret     = unix.BPF_RET | unix.BPF_K
		callAt  = 0  // of struct seccomp_data
		archAt  = 4  //
		flagsAt = 16 // the first argument's low half
		x32     = 0x40000000
		allow   = unix.SECCOMP_RET_ALLOW
		perm    = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
		absent  = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	)
	p := []unix.SockFilter{
		{Code: load, K: archAt},
		{Code: equal, K: arch, Jt: 1},
		{Code: ret, K: perm}, // numbers mean other calls there
		{Code: load, K: callAt},
		{Code: atLeast, K: x32, Jf: 1},
		{Code: ret, K: perm},
		{Code: equal, K: unix.SYS_CLONE3, Jf: 1},
		{Code: ret, K: absent},
		{Code: equal, K: unix.SYS_CLONE, Jf: 4},
		{Code: load, K: flagsAt},
		{Code: anyOf, K: unix.CLONE_THREAD, Jt: 1},
		{Code: ret, K: perm},
		{Code: ret, K: allow},
	}
	for _, nr := range refused {
		p = append(p, unix.SockFilter{Code: equal, K: nr, Jf: 1}, unix.SockFilter{Code: ret, K: perm})
	}
	return append(p, unix.SockFilter{Code: ret, K: allow})
}
