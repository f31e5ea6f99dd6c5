//go:build linux

// Package vminit is the first thing that runs in a virtual machine of the vm
// engine: the guest agent, started by Linux as /init of an initramfs.
//
// It does what an engine with a kernel of its own has done before the agent
// starts: it loads the kernel's modules, gets the machine's plan over a
// virtio-serial port (package vmboot), mounts the root file system (the image
// below, the box's disk on top), configures the network, and becomes the agent
// in that root. It stays the agent's companion then: when the machine is a
// restored copy, it tells the agent its new identity.
//
// The steps, with their files:
//
//	vminit.go    the order of everything
//	modules.go   the kernel modules of a boot
//	modprobe.go  the program that the kernel calls for more of them
//	device.go    the port and the disks
//	root.go      the root file system, the volumes
//	net.go       the interface
//	identity.go  clock and random numbers
package vminit

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/guest/agent"
	"github.com/hutch-sandbox/hutch/internal/guest/boot"
	"github.com/hutch-sandbox/hutch/internal/vmboot"
)

// Here reports whether this process is the first one of such a machine.
func Here() bool {
	if os.Getpid() != 1 || len(os.Args) == 0 || os.Args[0] != "/init" {
		return false
	}
	_, err := os.Stat(vmboot.ModulesOrder)
	return err == nil
}

// Main is the life of that process. It does not return while the machine
// runs; version is that of the agent.
func Main(version string) {
	logger := log.New(os.Stderr, "hutch-init: ", 0)
	status, err := run(version, logger)
	if err != nil {
		logger.Print(err)
	} else {
		logger.Printf("the agent ended with status %d", status)
	}
	unix.Sync()
	// Give the console the time to be read.
	time.Sleep(50 * time.Millisecond)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {} // not reached: the first process must not end
}

// machine is what vminit keeps while the machine runs.
type machine struct {
	port *port
	log  *log.Logger
}

func run(version string, logger *log.Logger) (status int, err error) {
	m := &machine{log: logger}
	if err := mountKernel(); err != nil {
		return 0, err
	}
	if err := loadModules(vmboot.ModulesOrder); err != nil {
		return 0, err
	}
	if m.port, err = openPort(vmboot.Port); err != nil {
		return 0, err
	}
	// From here on the engine hears of a failure.
	defer func() {
		if err != nil {
			_ = m.port.send(vmboot.Report{Stage: vmboot.Failed, Error: err.Error()})
		}
	}()
	plan, err := m.awaitPlan()
	if err != nil {
		return 0, err
	}
	if err := takeIdentity(plan.Identity); err != nil {
		return 0, err
	}
	if err := bindDisks(); err != nil {
		return 0, err
	}
	if err := mountRoot(plan, logger.Printf); err != nil {
		return 0, err
	}
	if err := configure(plan.Net); err != nil {
		return 0, fmt.Errorf("network: %w", err)
	}
	status = agent.MainIn(version, bytes.NewReader(plan.Agent), func(a *agent.Agent) {
		if err := m.port.send(vmboot.Report{Stage: vmboot.Ready}); err != nil {
			logger.Print(err)
		}
		go m.serve(a) // for as long as the machine runs
	})
	return status, nil
}

// awaitPlan reports that the kernel is up and waits for the plan. A machine
// that is captured meanwhile waits in every copy of it.
func (m *machine) awaitPlan() (*vmboot.Plan, error) {
	var u unix.Utsname
	_ = unix.Uname(&u)
	if err := m.port.send(vmboot.Report{Stage: vmboot.Loaded, Release: unix.ByteSliceToString(u.Release[:])}); err != nil {
		return nil, err
	}
	for {
		var msg vmboot.Message
		if err := vmboot.Read(m.port, vmboot.MaxPlan, &msg); err != nil {
			return nil, err
		}
		switch {
		case msg.Plan != nil:
			return msg.Plan, nil
		case msg.Clock == 0:
			return nil, errors.New("the engine sent no plan")
		}
		if err := setClock(msg.Clock); err != nil {
			return nil, err
		}
		if err := m.port.send(vmboot.Report{Stage: vmboot.Ready}); err != nil {
			return nil, err
		}
	}
}

// serve answers the engine while the machine runs.
func (m *machine) serve(a *agent.Agent) {
	for {
		var msg vmboot.Message
		if err := vmboot.Read(m.port, vmboot.MaxPlan, &msg); err != nil {
			// The stream's frames are lost. Nobody but the engine writes to it.
			m.log.Printf("the engine's port: %v", err)
			return
		}
		report := vmboot.Report{Stage: vmboot.Ready}
		var err error
		if msg.Clock != 0 {
			err = setClock(msg.Clock)
		} else {
			err = adopt(a, msg.Adopt)
		}
		if err != nil {
			report = vmboot.Report{Stage: vmboot.Failed, Error: err.Error()}
		}
		if err := m.port.send(report); err != nil {
			m.log.Print(err)
			return
		}
	}
}

// adopt makes a copy a machine of its own.
func adopt(a *agent.Agent, as *vmboot.Adopt) error {
	if as == nil {
		return errors.New("the engine asked for nothing that is known")
	}
	if err := takeIdentity(as.Identity); err != nil {
		return err
	}
	conf, err := boot.Read(bytes.NewReader(as.Agent))
	if err != nil {
		return err
	}
	return a.Adopt(conf)
}

// mountKernel mounts what the kernel's modules and devices are found with. It
// is for this program alone: the box's root gets its own.
func mountKernel() error {
	for _, m := range []struct{ dir, fstype string }{{"/dev", "devtmpfs"}, {"/proc", "proc"}, {"/sys", "sysfs"}} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fstype, m.dir, m.fstype, unix.MS_NOSUID|unix.MS_NOEXEC, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	return nil
}

// readLine reads a small file of the kernel's and trims it.
func readLine(path string) (string, error) {
	data, err := os.ReadFile(path)
	return strings.TrimSpace(string(data)), err
}
