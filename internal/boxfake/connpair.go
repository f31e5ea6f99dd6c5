package boxfake

import (
	"net"
	"os"
	"syscall"
)

// connPair returns the two ends of a connection, which half-close like TCP's
// and keep deadlines.
func connPair() (a, b net.Conn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	conns := make([]net.Conn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		conns[i], err = net.FileConn(f)
		_ = f.Close()
		if err != nil {
			if i == 0 {
				_ = syscall.Close(fds[1])
			} else {
				_ = conns[0].Close()
			}
			return nil, nil, err
		}
	}
	return conns[0], conns[1], nil
}
