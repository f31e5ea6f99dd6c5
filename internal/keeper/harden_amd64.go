package keeper

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// refusedHere are those of refusedCalls that only this architecture has.
func refusedHere() []uint32 {
	return []uint32{unix.SYS_MKNOD, unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_USELIB}
}
