//go:build linux

package vm

import (
	"context"
	"os"
	"os/exec"
	"time"
)

// StartJailed starts a program as QEMU is started, and says who it runs as.
func StartJailed(stateDir, program string, args []string, out *os.File) (cmd *exec.Cmd, uid int, err error) {
	l, err := prepareLayout(stateDir, "0123456789ab")
	if err != nil {
		return nil, 0, err
	}
	cmd, err = l.startQEMU(program, &command{args: args, first: firstFD}, false, nil, out)
	return cmd, l.uid, err
}

// Parts that tests look at by themselves.
var (
	ParseMapping   = parseMapping
	ParseVersion   = parseVersion
	InstallCommand = installCommand
	DescribeEnd    = describeEnd
	MemorySize     = memorySize
	Prune          = prune
	SinceBoot      = sinceBoot
)

// Try boots a kernel with nothing to run behind an accelerator.
func Try(ctx context.Context, cacheDir, accel string, limit time.Duration) error {
	e := New()
	h, err := e.lookUp(ctx, cacheDir)
	if err != nil {
		return err
	}
	return e.try(ctx, h, accel, cacheDir, limit)
}

// Arguments is the command line of a machine.
func Arguments(arch, accel string, cpus int, memory int64) []string {
	h := hardware{arch: arch, accel: accel, cpus: cpus, memory: memory, mac: []byte{2, 0, 0, 0, 0, 1}, tsc: 2_000_000,
		ram: "/box/ram", kernel: "/boot/vmlinuz", initrd: "/boot/initramfs", seccomp: true, hasModules: true,
		image: os.Stdin, disk: os.Stdin, modules: os.Stdin, link: os.Stdin}
	c := &command{first: firstFD}
	h.arguments(c)
	return c.args
}
