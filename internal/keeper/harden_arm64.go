package keeper

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// refusedHere are those of refusedCalls that only this architecture has.
func refusedHere() []uint32 { return nil }
