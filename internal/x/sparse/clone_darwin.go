package sparse

import (
	"errors"
	"os"
)

// As in sys/unistd.h.
const (
	seekHole = 3
	seekData = 4
)

// clone is for an existing file, which APFS cannot make a clone of.
func clone(_, _ *os.File) error { return errors.ErrUnsupported }
