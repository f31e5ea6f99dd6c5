package sparse

import (
	"os"

	"golang.org/x/sys/unix"
)

const (
	seekData = unix.SEEK_DATA
	seekHole = unix.SEEK_HOLE
)

// clone shares the blocks of in, on file systems that can.
func clone(out, in *os.File) error { return unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) }
