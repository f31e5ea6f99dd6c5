//go:build linux

package agent

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// openPTY makes a pseudo terminal. The master is fit for the poller; the
// replica is for the child, as its controlling terminal.
func openPTY(rows, cols uint32) (master, replica *os.File, err error) {
	mfd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open /dev/ptmx: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(mfd)
		}
	}()
	if err := unix.IoctlSetPointerInt(mfd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, fmt.Errorf("unlock the terminal: %w", err)
	}
	rfd, err := openReplica(mfd)
	if err != nil {
		return nil, nil, err
	}
	if rows > 0 && cols > 0 {
		if err := setSize(mfd, rows, cols); err != nil {
			unix.Close(rfd)
			return nil, nil, err
		}
	}
	return os.NewFile(uintptr(mfd), "ptmx"), os.NewFile(uintptr(rfd), "pts"), nil
}

// openReplica asks the kernel for the other end, which works wherever devpts
// is mounted, and falls back to its name.
func openReplica(mfd int) (int, error) {
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(mfd), unix.TIOCGPTPEER, flags)
	if errno == 0 {
		return int(fd), nil
	}
	n, err := unix.IoctlGetUint32(mfd, unix.TIOCGPTN)
	if err != nil {
		return 0, fmt.Errorf("terminal's number: %w", err)
	}
	name := "/dev/pts/" + strconv.FormatUint(uint64(n), 10)
	rfd, err := unix.Open(name, flags, 0)
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", name, err)
	}
	return rfd, nil
}

func setSize(fd int, rows, cols uint32) error {
	ws := &unix.Winsize{Row: uint16(rows), Col: uint16(cols)}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, ws); err != nil {
		return fmt.Errorf("set the terminal's size: %w", err)
	}
	return nil
}
