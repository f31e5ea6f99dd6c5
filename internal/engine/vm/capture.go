//go:build linux || darwin

package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/console"
)

// Files of a capture.
const (
	manifestFile = "machine.json"
	memoryFile   = "memory"  // the machine's memory, with holes where it is zero
	devicesFile  = "devices" // QEMU's device state
)

// manifest says what a capture can be restored on. Device state has nothing
// that QEMU could check it by.
type manifest struct {
	Version  int    `json:"version"`
	Hardware string `json:"hardware"` // see hardwareKey
	Memory   int64  `json:"memory"`
	Template bool   `json:"template"` // it waits for its plan, and has no disks yet
}

const manifestVersion = 1

// captured is a capture on disk.
type captured struct {
	dir string
	manifest
}

func openCapture(dir string) (*captured, error) {
	c := &captured{dir: dir}
	data, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err == nil {
		err = json.Unmarshal(data, &c.manifest)
	}
	if err == nil && c.Version != manifestVersion {
		err = fmt.Errorf("version %d, not %d", c.Version, manifestVersion)
	}
	if err != nil {
		return nil, &box.Error{Kind: box.Invalid, Op: "restore", Object: dir, Err: fmt.Errorf("no capture of a virtual machine: %w", err)}
	}
	return c, nil
}

// placeDisk copies the captured disk into the new box's folder.
func (c *captured) placeDisk(ctx context.Context, dir string) error {
	if err := copySparse(ctx, filepath.Join(dir, diskFile), filepath.Join(c.dir, diskFile)); err != nil {
		return fmt.Errorf("restore: disk: %w", err)
	}
	return nil
}

// restore starts a machine from a capture. It runs when restore returns, or is
// about to.
func restore(ctx context.Context, m *machine, l *layout, con *console.Log, c *captured) (*vmProcess, error) {
	if key := m.key(); c.Hardware != key || c.Memory != m.hw.memory {
		return nil, &box.Error{Kind: box.Conflict, Op: "restore", Object: c.dir,
			Err: errors.New("the machine was captured with another QEMU, kernel, accelerator, number of CPUs or size of memory")}
	}
	hw := m.hw
	ram := filepath.Join(l.dir, "ram")
	_ = os.Remove(ram)
	// A copy of its own: QEMU must be able to write to it, and one that was
	// broken out of would else reach every machine that shares the file.
	if err := copySparse(ctx, ram, filepath.Join(c.dir, memoryFile)); err != nil {
		return nil, fmt.Errorf("restore: memory: %w", err)
	}
	if err := l.give(ram); err != nil {
		return nil, err
	}
	devices, err := os.Open(filepath.Join(c.dir, devicesFile))
	if err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	defer devices.Close()
	hw.ram, hw.devices = l.seen("ram"), devices
	hw.kernel = l.seenKernel(m.files["vmlinuz"], "vmlinuz")
	hw.initrd = l.seenKernel(m.files["initramfs"], "initramfs")
	return start(ctx, m.program, &hw, l, con, m.files)
}

// writeCapture writes the machine behind p to the empty folder dir. Disk is
// the box's disk, nil for a template. The machine is stopped for as short a
// time as can be, and goes on if it ran.
func writeCapture(ctx context.Context, m *machine, p *vmProcess, dir string, disk *os.File, paused bool) (err error) {
	memory := filepath.Join(dir, memoryFile)
	ram := filepath.Join(p.files.dir, "ram")
	// What the machine started from never changes, so it is copied while the
	// machine runs.
	if err := copySparse(ctx, memory, ram); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if !paused {
		if err := p.do(ctx, "stop", nil, nil); err != nil {
			return err
		}
		defer func() {
			// The machine goes on, whatever became of the capture.
			if cerr := p.do(context.WithoutCancel(ctx), "cont", nil, nil); err == nil {
				err = cerr
			}
		}()
	}
	state := filepath.Join(p.files.dir, devicesFile)
	_ = os.Remove(state)
	args := map[string]any{"filename": p.files.seen(devicesFile), "live": false}
	if err := p.do(ctx, "xen-save-devices-state", args, nil); err != nil {
		return err
	}
	if err := addChangedMemory(ctx, p.cmd.Process.Pid, ram, memory); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if disk != nil {
		// By descriptor: the disk that the machine has, whatever its name is now.
		if err := copyOpen(ctx, filepath.Join(dir, diskFile), disk); err != nil {
			return fmt.Errorf("disk: %w", err)
		}
	}
	if err := takeFile(state, filepath.Join(dir, devicesFile)); err != nil {
		return fmt.Errorf("device state: %w", err)
	}
	data, err := json.Marshal(manifest{Version: manifestVersion, Hardware: m.key(), Memory: m.hw.memory, Template: disk == nil})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, manifestFile), data, 0o600)
}

// maxDevices bounds device state, which a QEMU that was broken out of could
// make as long as it liked. It is about 200 KB.
const maxDevices = 64 << 20

// takeFile copies what QEMU wrote in its private folder. QEMU may have put
// anything there: it must be a file.
func takeFile(src, dst string) error {
	in, err := openPlain(src)
	if err != nil {
		return err
	}
	defer in.Close()
	fi, err := in.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxDevices {
		return fmt.Errorf("%s is not what QEMU should have written", filepath.Base(src))
	}
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = copyAtMost(out, in, maxDevices)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return err
}
