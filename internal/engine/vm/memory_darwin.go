package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// canCapture says whether machines can be captured on this system.
const canCapture = false

// differ would find what a process has changed of its memory. It needs to look
// into another process, which macOS does not allow.
type differ struct{}

func newDiffer(int, *os.File, string) (*differ, error) {
	return nil, fmt.Errorf("macOS: %w", errors.ErrUnsupported)
}

func (*differ) copyRunning(context.Context) error { return errors.ErrUnsupported }
func (*differ) update(context.Context) error      { return errors.ErrUnsupported }
func (*differ) close() error                      { return nil }
