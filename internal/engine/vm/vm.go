//go:build linux || darwin

// Package vm is the engine that runs boxes in virtual machines: QEMU, with a
// Linux kernel of the box's own behind KVM (or HVF on macOS), or behind QEMU's
// emulation where there is neither.
//
// A machine is one QEMU process, and one of virtiofsd if it has volumes. QEMU
// has no right that it can do without: no capability, a user of its own where
// there are users to spare, a root that holds its program, its libraries and
// one private folder, a network namespace without a network, and its own
// system call filter. What it works on, it gets as open files: the disks, the
// link, the control connections.
//
// Inside, Linux starts the guest agent from an initramfs (internal/guest/
// vminit), which gets the machine's plan over a virtio-serial port
// (internal/vmboot), mounts the image (EROFS) and the box's disk (ext4), and
// serves. Commands and files then go over the network link, as with any
// engine: one way in for all of them, whose streams the kernel keeps apart.
//
// The files: vm.go the engine, probe.go what works here, args.go QEMU's
// command line, boot.go and instance.go a machine's life, disk.go its disks,
// volumes*.go its volumes, process*.go and jail*.go the confined process,
// memory*.go captures, template.go and image.go machines that are booted in
// advance.
package vm

import (
	"context"
	"path/filepath"
	"runtime"

	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/engine/vm/kernel"
)

// Name is the engine's name.
const Name = "vm"

// Engine implements engine.Engine.
type Engine struct {
	cold bool // every machine boots its kernel; no templates
}

// New returns the engine. It does nothing yet.
func New() *Engine { return &Engine{} }

// Name returns Name.
func (*Engine) Name() string { return Name }

// Form returns engine.EROFS.
func (*Engine) Form() engine.Form { return engine.EROFS }

// Checksums returns true: Linux checks what it receives.
func (*Engine) Checksums() bool { return true }

// Dir is the engine's folder below the cache that all boxes share.
func Dir(cacheDir string) string { return filepath.Join(cacheDir, "vm") }

// Kernels is the store of kernels below that cache.
func Kernels(cacheDir string) *kernel.Store {
	return kernel.In(cacheDir)
}

// maxCPUs is how many CPUs a machine has at most when nobody asked for a
// number.
const maxCPUs = 8

// cpus is how many CPUs a machine has.
func cpus(limit float64) int {
	if limit <= 0 {
		return min(runtime.NumCPU(), maxCPUs)
	}
	n := int(limit)
	if float64(n) < limit {
		n++
	}
	return max(1, n)
}

// defaultMemory is a machine's when nobody bounded it: it must have some.
const defaultMemory = 2 << 30

// minMemory is the least that Linux boots with.
const minMemory = 64 << 20

// memorySize is the machine's memory in bytes, in whole MiB.
func memorySize(limit int64) int64 {
	if limit <= 0 {
		limit = defaultMemory
	}
	size := max(limit, minMemory) >> 20 << 20
	if size == 2<<30 {
		// With just that much QEMU 10.0 lays the initramfs over the firmware's
		// tables, and the kernel hangs; with more or less it does not.
		size -= 1 << 20
	}
	return size
}

// undoList runs its functions last to first.
type undoList []func()

func (u *undoList) add(f func()) { *u = append(*u, f) }

func (u *undoList) run() {
	for i := len(*u) - 1; i >= 0; i-- {
		(*u)[i]()
	}
	*u = nil
}

// Boot starts a machine.
func (e *Engine) Boot(ctx context.Context, cfg engine.Config) (engine.Instance, error) {
	return e.boot(ctx, cfg, "")
}

// Restore starts a machine from a capture.
func (e *Engine) Restore(ctx context.Context, cfg engine.Config, from string) (engine.Instance, error) {
	return e.boot(ctx, cfg, from)
}
