//go:build linux

package vminit

import (
	"strings"

	"golang.org/x/sys/unix"
)

// kernelSays returns the last lines of the kernel's log, which often say why
// a call failed better than its error.
func kernelSays() string {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	const most = 4
	var last []string
	buf := make([]byte, 8<<10)
	for range 10_000 {
		n, err := unix.Read(fd, buf) // one record
		if err == unix.EPIPE {
			continue // it was overwritten
		}
		if err != nil || n <= 0 {
			break
		}
		_, text, _ := strings.Cut(string(buf[:n]), ";")
		text, _, _ = strings.Cut(text, "\n")
		if last = append(last, text); len(last) > most {
			last = last[1:]
		}
	}
	return strings.Join(last, "; ")
}
