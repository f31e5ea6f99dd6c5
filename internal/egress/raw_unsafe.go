package egress

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These calls are for descriptors that do not block. They do not tell the Go
// scheduler that they may wait, as those of the standard library do, since they
// do not: a copy of a large frame takes long enough for it to give the
// processor to another thread, which in a gateway costs more than the copy.

// rawRead reads into p, which is not empty.
func rawRead(fd int, p []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	return int(n), errno
}

// rawReadv reads into two pieces, of which none is empty.
func rawReadv(fd int, a, b []byte) (int, syscall.Errno) {
	list := [2]unix.Iovec{{Base: unsafe.SliceData(a)}, {Base: unsafe.SliceData(b)}}
	list[0].SetLen(len(a))
	list[1].SetLen(len(b))
	n, _, errno := syscall.RawSyscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&list)), uintptr(len(list)))
	return int(n), errno
}

// rawWrite writes some of p, which is not empty. A socket whose other side is
// gone raises no signal.
func rawWrite(fd int, p []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// rawWritev writes one message of several parts.
func rawWritev(fd int, parts [][]byte) syscall.Errno {
	var few [8]unix.Iovec
	list := few[:0]
	for _, p := range parts {
		if len(p) > 0 {
			v := unix.Iovec{Base: unsafe.SliceData(p)}
			v.SetLen(len(p))
			list = append(list, v)
		}
	}
	msg := unix.Msghdr{Iov: unsafe.SliceData(list)}
	msg.SetIovlen(len(list))
	_, _, errno := syscall.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	return errno
}
