package basic

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernelSigaction is struct sigaction of the kernel on amd64 and arm64.
type kernelSigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// resetSignal gives sig its default effect. The os/signal package can only
// hand a signal back to the Go runtime, which prints goroutines for SIGQUIT.
func resetSignal(sig syscall.Signal) {
	var sa kernelSigaction
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&sa)), 0, 8, 0, 0)
}
