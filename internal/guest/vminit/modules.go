//go:build linux

package vminit

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// loadModules loads the modules that the file lists, in its order. Before the
// first driver of disks, the kernel stops to take devices by itself: what was
// taken before is part of a template, while the disks are each box's own.
func loadModules(order string) error {
	data, err := os.ReadFile(order)
	if err != nil {
		return fmt.Errorf("kernel modules: %w", err)
	}
	for path := range strings.Lines(string(data)) {
		path = strings.TrimSpace(path)
		if strings.HasSuffix(path, "virtio_blk.ko") {
			if err := stopProbing(); err != nil {
				return err
			}
		}
		if err := loadModule(path); err != nil {
			return err
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("kernel module: %w", err)
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("kernel module %s: %w", path, err)
	}
	return nil
}
