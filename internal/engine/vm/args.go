//go:build linux || darwin

package vm

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/hutch-sandbox/hutch/internal/vmboot"
)

// The accelerators, as QEMU names them.
const (
	accelKVM = "kvm"
	accelHVF = "hvf"
	accelTCG = "tcg"
)

// tbSize is the cache of translated code in MiB. Measured: 16 costs a quarter
// of the speed of starting programs, more than 64 gains nothing.
const tbSize = 64

// command is a QEMU command line under construction, and the files that QEMU
// inherits.
type command struct {
	args  []string
	files []*os.File
	first int // descriptor of the first of files
}

func (c *command) add(args ...string) { c.args = append(c.args, args...) }

// fd passes a file on and returns its number in QEMU.
func (c *command) fd(f *os.File) int {
	c.files = append(c.files, f)
	return c.first + len(c.files) - 1
}

// path passes a file on and returns a name that QEMU's disks can open.
func (c *command) path(f *os.File) string {
	n := c.fd(f)
	c.add("-add-fd", fmt.Sprintf("fd=%d,set=%d", n, n))
	return fmt.Sprintf("/dev/fdset/%d", n)
}

// hardware is what a machine has. Two machines with equal hardware take each
// other's device state.
type hardware struct {
	arch   string // as Go names it
	accel  string
	cpus   int
	memory int64 // bytes
	tsc    int   // kHz of the time stamp counter, for an emulated x86 machine
	mac    net.HardwareAddr

	ram    string // the file behind the memory, as QEMU sees it; unused with volumes
	shared bool   // QEMU need only read that file, so that any number can share it
	kernel string // as QEMU sees it
	initrd string // empty in a trial: the kernel then has nothing to run and says so

	image   *os.File // nil in templates, as the next two
	disk    *os.File
	modules *os.File // nil also without modules; then there is no such disk
	// hasModules keeps the disk's place in a template.
	hasModules bool
	volumes    *os.File // socket of virtiofsd; nil without volumes: then no such device
	volumesAt  string   // the socket's name, as QEMU sees it

	console *os.File
	monitor *os.File
	boot    *os.File
	link    *os.File // nil only where no QEMU is started
	devices *os.File // device state to start from; nil: boot
	seccomp bool
}

// program is QEMU's name for an architecture.
func program(arch string) string {
	if arch == "arm64" {
		return "qemu-system-aarch64"
	}
	return "qemu-system-x86_64"
}

// kernelLine is the kernel's command line. A panic ends the machine at once,
// which is how the engine hears of it.
func (h *hardware) kernelLine() string {
	tty := "ttyS0"
	if h.arch == "arm64" {
		tty = "ttyAMA0"
	}
	line := "console=" + tty + " quiet loglevel=4 panic=-1 reboot=t random.trust_cpu=on"
	if h.accel == accelTCG && h.tsc > 0 {
		// See tscKHz. The CPUs' counters are one counter; and that the timer
		// works need not be found out by waiting for it.
		line += fmt.Sprintf(" tsc_early_khz=%d tsc=reliable no_timer_check", h.tsc)
	}
	if h.initrd == "" {
		return line + " root=/dev/none"
	}
	return line + " rdinit=/init"
}

// arguments makes QEMU's command line.
func (h *hardware) arguments(c *command) {
	machine := "microvm,acpi=on,isa-serial=on,pit=on,pic=on,rtc=on"
	if h.arch == "arm64" {
		machine = "virt,gic-version=max"
	}
	// suppress-vmdesc and send-configuration: a capture is device state alone.
	c.add("-machine", machine+",memory-backend=ram,suppress-vmdesc=on",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-name", "hutch",
		"-global", "migration.send-configuration=off",
		"-global", "virtio-mmio.force-legacy=false")
	switch h.accel {
	case accelTCG:
		c.add("-accel", fmt.Sprintf("tcg,thread=multi,tb-size=%d", tbSize), "-cpu", "max")
	default:
		c.add("-accel", h.accel, "-cpu", "host")
	}
	if h.seccomp {
		c.add("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
	}
	memory := fmt.Sprintf("memory-backend-file,id=ram,size=%d,mem-path=%s,share=off", h.memory, escape(h.ram))
	if h.shared {
		memory += ",readonly=on,rom=off"
	}
	if h.volumes != nil {
		// virtiofsd writes into it. Not a file of a disk: the disk would get all
		// that the machine writes to its memory, and one that is full would end it.
		memory = fmt.Sprintf("memory-backend-memfd,id=ram,size=%d,share=on", h.memory)
	}
	c.add("-smp", fmt.Sprint(h.cpus), "-m", fmt.Sprintf("%dM", h.memory>>20), "-object", memory)
	if h.devices == nil {
		c.add("-kernel", h.kernel, "-append", h.kernelLine())
		if h.initrd != "" {
			c.add("-initrd", h.initrd)
		}
	} // else the kernel is in the memory already, and would be held a second time

	c.add("-chardev", fmt.Sprintf("socket,id=console,fd=%d", c.fd(h.console)), "-serial", "chardev:console",
		"-chardev", fmt.Sprintf("socket,id=monitor,fd=%d", c.fd(h.monitor)), "-mon", "chardev=monitor,mode=control",
		"-device", "virtio-serial-device,max_ports=2",
		"-chardev", fmt.Sprintf("socket,id=boot,fd=%d", c.fd(h.boot)),
		"-device", "virtserialport,nr=1,chardev=boot,name="+vmboot.Port,
		"-object", "rng-builtin,id=rng", "-device", "virtio-rng-device,rng=rng")
	// A machine checks what it receives, so nothing is said about checksums.
	if h.link != nil {
		c.add("-netdev", fmt.Sprintf("dgram,id=link,local.type=fd,local.str=%d", c.fd(h.link)))
	}
	if h.initrd != "" { // a trial has no network
		c.add("-device", "virtio-net-device,netdev=link,mac="+h.mac.String())
	}

	h.addDisk(c, "image", vmboot.SerialImage, h.image, true)
	h.addDisk(c, "disk", vmboot.SerialDisk, h.disk, false)
	if h.hasModules {
		h.addDisk(c, "modules", vmboot.SerialModules, h.modules, true)
	}
	if h.volumes != nil {
		c.add("-chardev", "socket,id=volumes,path="+escape(h.volumesAt),
			"-device", "vhost-user-fs-device,chardev=volumes,tag="+vmboot.VolumesTag)
	}
	if h.devices != nil {
		c.add("-incoming", fmt.Sprintf("fd:%d", c.fd(h.devices)))
	}
}

// templateDisk is the size of disks that are not there yet.
const templateDisk = 1 << 30

func (h *hardware) addDisk(c *command, node, serial string, f *os.File, readOnly bool) {
	mode := "off"
	if readOnly {
		mode = "on"
	}
	switch {
	case f == nil:
		c.add("-blockdev", fmt.Sprintf("driver=null-co,node-name=%s,size=%d,read-only=%s", node, templateDisk, mode))
	case readOnly:
		// Shared by boxes: nothing to lock.
		c.add("-blockdev", fmt.Sprintf("driver=file,node-name=%s,filename=%s,read-only=on,locking=off", node, c.path(f)))
	default:
		// A write that the guest flushed is on the host's disk. What it
		// discards is given back.
		c.add("-blockdev", fmt.Sprintf("driver=file,node-name=%s,filename=%s,locking=off,discard=unmap,cache.direct=off,cache.no-flush=off", node, c.path(f)))
	}
	// A full host pauses the machine, instead of an error that breaks its file
	// system; see instance.watch.
	c.add("-device", fmt.Sprintf("virtio-blk-device,drive=%s,serial=%s,werror=enospc,rerror=report", node, serial))
}

// escape protects the character that separates QEMU's options.
func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }
