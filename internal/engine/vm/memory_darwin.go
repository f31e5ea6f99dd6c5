package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// canCapture says whether machines can be captured on this system.
const canCapture = false

// addChangedMemory needs to look into QEMU's memory, which macOS does not allow.
func addChangedMemory(context.Context, int, *os.File, string) error {
	return fmt.Errorf("macOS: %w", errors.ErrUnsupported)
}
