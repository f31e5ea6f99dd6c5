//go:build linux

package vminit

import (
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/vmboot"
)

// takeIdentity sets what no two machines may share and what a copy has from
// its original: the clock, and the state of the random numbers.
func takeIdentity(id vmboot.Identity) error {
	if err := setClock(id.Time); err != nil {
		return err
	}
	return stir(id.Entropy)
}

// setClock sets the clock to nanoseconds since 1970; zero leaves it.
func setClock(at int64) error {
	if at <= 0 {
		return nil
	}
	tv := unix.NsecToTimeval(at)
	if err := unix.Settimeofday(&tv); err != nil {
		return fmt.Errorf("set the clock to %s: %w", time.Unix(0, at).UTC(), err)
	}
	return nil
}

// maxEntropy is how much one call adds.
const maxEntropy = 512

// stir adds entropy to the kernel's pool, counts it, and makes the generator
// start from it: two copies must not give the same numbers for even a moment.
func stir(entropy []byte) error {
	if len(entropy) == 0 {
		return nil
	}
	f, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("seed random numbers: %w", err)
	}
	defer f.Close()
	var req struct {
		bits  int32
		bytes int32
		data  [maxEntropy]byte
	}
	n := copy(req.data[:], entropy)
	req.bits, req.bytes = int32(n*8), int32(n)
	for _, c := range []struct{ op, arg uintptr }{
		{unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&req))},
		{unix.RNDRESEEDCRNG, 0},
	} {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), c.op, c.arg); errno != 0 {
			return fmt.Errorf("seed random numbers: %w", errno)
		}
	}
	return nil
}
