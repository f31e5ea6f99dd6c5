//go:build linux || darwin

package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/console"
	"github.com/hutch-sandbox/hutch/internal/x/sparse"
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
	Hardware string `json:"hardware"` // see machine.key
	Memory   int64  `json:"memory"`
	Template bool   `json:"template"` // it waits for its plan, and has no disks yet
	// Image is the image's file, for a template of an image: of no use when that
	// is gone.
	Image string `json:"image,omitempty"`
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
	if err := sparse.Place(ctx, filepath.Join(dir, diskFile), filepath.Join(c.dir, diskFile)); err != nil {
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
	devices, send, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	defer devices.Close()
	defer send.Close()
	hw := m.hw
	hw.devices = devices
	hw.initrd = l.seenKernel(m.files["initramfs"], "initramfs")
	base, err := c.base(&hw, l)
	if err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	// The memory is copied while QEMU starts: it does nothing with it before it
	// has the devices' state, which comes after.
	fctx, cancel := context.WithCancel(ctx)
	defer cancel()
	filled := make(chan error, 1)
	go func() { filled <- c.fill(fctx, &hw, base) }()
	p, err := start(ctx, m.program, &hw, l, con, c.shown(&hw))
	if err != nil {
		cancel()
	}
	devices.Close() // QEMU has its own; when it is gone, sending fails
	ferr := <-filled
	if err != nil {
		base.Close()
		return nil, err
	}
	p.base = base
	if err = ferr; err == nil {
		err = c.sendDevices(ctx, send)
	}
	if err != nil {
		p.end()
		return nil, fmt.Errorf("restore: %w", err)
	}
	return p, nil
}

// base opens the file behind the memory of a machine that is to be restored.
// Where QEMU must be able to write to it, that is a new one, which fill makes a
// copy: a QEMU that was broken out of would else reach every machine that
// shares the file.
func (c *captured) base(hw *hardware, l *layout) (*os.File, error) {
	if hw.shared {
		hw.ram = l.seenKernel(filepath.Join(c.dir, memoryFile), memoryFile)
		return os.Open(filepath.Join(c.dir, memoryFile))
	}
	hw.ram = l.seen("ram")
	return emptyMemory(l, hw.memory)
}

// shown is what a restored machine's QEMU sees of the host beside its private
// folder.
func (c *captured) shown(hw *hardware) map[string]string {
	if !hw.shared {
		return nil
	}
	return map[string]string{memoryFile: filepath.Join(c.dir, memoryFile)}
}

// fill gives the memory of a machine that is to be restored its content.
func (c *captured) fill(ctx context.Context, hw *hardware, base *os.File) error {
	if hw.shared {
		return nil
	}
	in, err := os.Open(filepath.Join(c.dir, memoryFile))
	if err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	defer in.Close()
	if err := sparse.Into(ctx, base, in); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	return nil
}

// sendDevices writes the devices' state to QEMU, which then lets the machine
// go on.
func (c *captured) sendDevices(ctx context.Context, send *os.File) error {
	in, err := os.Open(filepath.Join(c.dir, devicesFile))
	if err != nil {
		return err
	}
	defer in.Close()
	ctx, cancel := context.WithTimeout(ctx, controlTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = send.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.Copy(send, in); err != nil {
		return fmt.Errorf("device state: %w", errors.Join(ctx.Err(), err))
	}
	return send.Close()
}

// source is what a capture is made of beside the machine.
type source struct {
	disk   *os.File // nil for a template that waits for its plan
	image  string   // see manifest.Image
	paused bool     // the machine is stopped, and stays so
}

// writeCapture writes the machine behind p to the empty folder dir. The machine
// is stopped for as short a time as can be, and goes on if it ran.
func writeCapture(ctx context.Context, m *machine, p *vmProcess, dir string, of source) (err error) {
	memory := filepath.Join(dir, memoryFile)
	// What the machine started from never changes, so it is copied while the
	// machine runs, and so is most of what it has changed.
	if err := sparse.CopyOpen(ctx, memory, p.base); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if m.hw.shared {
		// QEMU opens it itself, as somebody else, and gets to see only this file.
		if err := os.Chmod(memory, 0o644); err != nil {
			return fmt.Errorf("memory: %w", err)
		}
	}
	diff, err := newDiffer(p.cmd.Process.Pid, p.base, memory)
	if err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	defer func() {
		if cerr := diff.close(); err == nil && cerr != nil {
			err = fmt.Errorf("memory: %w", cerr)
		}
	}()
	if err := diff.copyRunning(ctx); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if !of.paused {
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
	if err := diff.update(ctx); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if of.disk != nil {
		// By descriptor: the disk that the machine has, whatever its name is now.
		if err := sparse.CopyOpen(ctx, filepath.Join(dir, diskFile), of.disk); err != nil {
			return fmt.Errorf("disk: %w", err)
		}
	}
	if err := takeFile(state, filepath.Join(dir, devicesFile)); err != nil {
		return fmt.Errorf("device state: %w", err)
	}
	data, err := json.Marshal(manifest{Version: manifestVersion, Hardware: m.key(), Memory: m.hw.memory, Template: of.disk == nil, Image: of.image})
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
