//go:build linux || darwin

package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/engine/vm/kernel"
	"github.com/hutch-sandbox/hutch/internal/x/console"
	"github.com/hutch-sandbox/hutch/internal/x/ext4"
)

// trialTime is how long a kernel may take to boot behind an accelerator before
// it is not believed to. Where one works it takes a fraction of a second.
const trialTime = 4 * time.Second

// facts is what was found out about this host's QEMU, and is kept on disk: as
// long as the host is up, and QEMU and the kernel are the same.
type facts struct {
	Key     string `json:"key"`
	Version string `json:"version"` // of QEMU
	Accel   string `json:"accel"`
	Shared  bool   `json:"shared,omitempty"` // see hardware.shared
	TSC     int    `json:"tsc,omitempty"`    // see tscKHz
	Why     string `json:"why,omitempty"`    // why nothing better than emulation
	Fix     string `json:"fix,omitempty"`
}

// host is what a boot needs of this machine.
type host struct {
	facts
	program string
	id      string // of QEMU's file
	kernel  kernel.Info
}

// Probe finds QEMU and a kernel and, once for each boot of the host, boots the
// kernel behind the hardware's virtualization to see whether it is real.
func (e *Engine) Probe(ctx context.Context, cacheDir string) engine.Report {
	r := engine.Report{Isolation: box.IsolationHardware, Pause: true, Capture: canCapture, Limits: box.Limits{
		Memory: box.Limit{By: "the machine's memory"},
		Disk:   box.Limit{By: "the machine's disk"},
		Pids:   box.Limit{By: "the box's kernel"},
		CPUs:   cpuLimitSupport(),
	}}
	h, err := e.lookUp(ctx, cacheDir)
	if err != nil {
		r.Reason, r.Fix = err.Error(), box.HintOf(err)
		if e, ok := errors.AsType[*box.Error](err); ok && e.Err != nil {
			r.Reason = e.Err.Error()
		}
		return r
	}
	r.Usable, r.Version, r.Accelerator = true, "QEMU "+h.Version+", Linux "+h.kernel.Release, h.Accel
	if h.Accel == accelTCG {
		r.Isolation, r.Explicit, r.Fix = box.IsolationEmulation, true, h.Fix
		r.Note = "QEMU emulates the machine, which makes it about ten times slower and is not made to resist attacks: " + h.Why
	}
	return r
}

// lookUp finds what machines are made with. It is quick once it was done.
func (e *Engine) lookUp(ctx context.Context, cacheDir string) (*host, error) {
	h := &host{}
	var err error
	if h.program, err = findQEMU(); err != nil {
		return nil, err
	}
	if _, err := ext4.Mkfs(); err != nil {
		return nil, &box.Error{Kind: box.Unsupported, Op: "boot", Object: "disk", Err: errors.New("mkfs.ext4 is missing"), Hint: installHint("e2fsprogs")}
	}
	if h.kernel, err = Kernels(cacheDir).Selected(); err != nil {
		return nil, err
	}
	fi, err := os.Stat(h.program)
	if err != nil {
		return nil, err
	}
	h.id = fmt.Sprintf("%s %d %d ", h.program, fi.Size(), fi.ModTime().UnixNano())
	key := "2 " + h.id + h.kernel.Digest + " " + bootID() + " " + hypervisor()
	file := filepath.Join(Dir(cacheDir), "host.json")
	if data, err := os.ReadFile(file); err == nil && json.Unmarshal(data, &h.facts) == nil && h.Key == key {
		return h, nil
	}
	h.facts = facts{Key: key, TSC: tscKHz()}
	if h.Version, h.Shared, err = qemuVersion(ctx, h.program); err != nil {
		return nil, err
	}
	h.Accel = accelTCG
	accel, why, fix := accelerator()
	if accel != "" {
		err := e.try(ctx, h, accel, cacheDir, trialTime)
		if err == nil {
			h.Accel = accel
		} else if ctx.Err() != nil {
			return nil, &box.Error{Kind: box.Timeout, Op: "look at the host", Err: ctx.Err()}
		} else {
			why = fmt.Sprintf("%s is there, but a kernel did not boot with it: %v", strings.ToUpper(accel), err)
			fix = "run Hutch on a machine whose hardware virtualization works, or leave the choice of the engine to Hutch"
		}
	}
	if h.Accel == accelTCG {
		h.Why, h.Fix = why, fix
	}
	if data, err := json.Marshal(h.facts); err == nil {
		// Without it the next process finds out again.
		if os.MkdirAll(filepath.Dir(file), 0o700) == nil {
			tmp := fmt.Sprintf("%s.%d", file, os.Getpid())
			if os.WriteFile(tmp, data, 0o600) == nil {
				_ = os.Rename(tmp, file)
			}
		}
	}
	return h, nil
}

// findQEMU finds the program for this machine's processor.
func findQEMU() (string, error) {
	name := program(runtime.GOARCH)
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin", "/usr/libexec") {
		path := filepath.Join(dir, name)
		if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", &box.Error{Kind: box.Unsupported, Op: "find QEMU", Err: fmt.Errorf("QEMU is missing (%s)", name), Hint: installHint("qemu")}
}

var versionText = regexp.MustCompile(`version (\d+)\.(\d+)(\.\d+)*`)

// qemuVersion asks QEMU for its version. Before 7.2 it cannot take a link that
// is open already.
func qemuVersion(ctx context.Context, program string) (version string, shared bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", false, &box.Error{Kind: box.Unsupported, Op: "find QEMU", Object: program, Err: err, Hint: installHint("qemu")}
	}
	return parseVersion(program, out)
}

// parseVersion also says whether a machine's memory can be a private mapping of
// a file that QEMU may only read: that came with version 8.2.
func parseVersion(program string, out []byte) (version string, shared bool, err error) {
	m := versionText.FindSubmatch(bytes.TrimSpace(out))
	if m == nil {
		return "", false, &box.Error{Kind: box.Unsupported, Op: "find QEMU", Object: program, Err: errors.New("it does not say its version")}
	}
	major, _ := strconv.Atoi(string(m[1]))
	minor, _ := strconv.Atoi(string(m[2]))
	version = strings.TrimPrefix(string(m[0]), "version ")
	if major < 7 || major == 7 && minor < 2 {
		return "", false, &box.Error{Kind: box.Unsupported, Op: "find QEMU", Object: program, Err: fmt.Errorf("version %s is too old, 7.2 is needed", version), Hint: "install a newer QEMU"}
	}
	return version, major > 8 || major == 8 && minor >= 2, nil
}

// accelerator says what could run a machine's instructions here besides
// emulation, or why nothing can.
func accelerator() (accel, why, fix string) {
	if runtime.GOOS == "darwin" {
		return accelHVF, "", ""
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	switch {
	case err == nil:
		f.Close()
		return accelKVM, "", ""
	case errors.Is(err, fs.ErrPermission):
		return "", "/dev/kvm may not be used by this user", "sudo usermod -aG kvm $USER, then log in again"
	case errors.Is(err, fs.ErrNotExist):
		return "", "there is no /dev/kvm", "switch virtualization on in the firmware, or nested virtualization on in the hypervisor; sudo modprobe kvm_intel or kvm_amd"
	}
	return "", "/dev/kvm: " + err.Error(), ""
}

// try boots the kernel with nothing to run: it comes as far as it can and says
// that it found no root file system. A device that opens proves nothing.
func (e *Engine) try(ctx context.Context, h *host, accel, cacheDir string, limit time.Duration) error {
	if err := os.MkdirAll(Dir(cacheDir), 0o700); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(Dir(cacheDir), ".try-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	l, err := prepareLayout(tmp, "trial")
	if err != nil {
		return err
	}
	hw := hardware{arch: runtime.GOARCH, accel: accel, cpus: 1, memory: 256 << 20, tsc: h.TSC, mac: []byte{2, 0, 0, 0, 0, 1}, seccomp: jailed, shared: h.Shared}
	base, err := emptyMemory(l, hw.memory)
	if err != nil {
		return err
	}
	defer base.Close()
	files := map[string]string{"vmlinuz": Kernels(cacheDir).Path(h.kernel.Name, "vmlinuz")}
	hw.ram, hw.kernel = l.seen("ram"), l.seenKernel(files["vmlinuz"], "vmlinuz")
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	con := console.New(nil, 0)
	p, err := start(ctx, h.program, &hw, l, con, files)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("nothing happened for %s", limit)
		}
		return err
	}
	select {
	case <-p.exited:
	case <-ctx.Done():
	}
	p.end()
	if bytes.Contains(con.End(), []byte("Unable to mount root fs")) {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("it hung for %s", limit)
	}
	return fmt.Errorf("%s: %s", p.cmd.ProcessState, lastLine(con.End()))
}

// hypervisor tells one /dev/kvm from another.
func hypervisor() string {
	fi, err := os.Stat("/dev/kvm")
	if err != nil {
		return "none"
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf("%d %o %d:%d by %d", st.Rdev, st.Mode, st.Uid, st.Gid, os.Geteuid())
	}
	return "kvm"
}

// bootID names this boot of the host.
func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return runtime.GOOS
	}
	return strings.TrimSpace(string(data))
}

// installHint says how to install what is missing on this system.
func installHint(what string) string {
	release, _ := os.ReadFile("/etc/os-release")
	return installCommand(what, runtime.GOOS, runtime.GOARCH, string(release))
}

// installCommand is installHint for a given system: release is its
// /etc/os-release.
func installCommand(what, goos, arch, release string) string {
	arm := arch == "arm64"
	pick := func(x86, a64 string) string {
		if arm {
			return a64
		}
		return x86
	}
	family := ""
	for line := range strings.Lines(release) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && (key == "ID" || key == "ID_LIKE") {
			family += " " + strings.Trim(value, `"`) + " "
		}
	}
	has := func(names ...string) bool {
		for _, n := range names {
			if strings.Contains(family, " "+n+" ") {
				return true
			}
		}
		return false
	}
	switch {
	case goos == "darwin":
		return "brew install qemu e2fsprogs"
	case has("debian", "ubuntu"):
		if what == "e2fsprogs" {
			return "sudo apt-get install -y e2fsprogs"
		}
		if what == "virtiofsd" {
			return "sudo apt-get install -y virtiofsd || sudo apt-get install -y qemu-system-common"
		}
		return "sudo apt-get install -y " + pick("qemu-system-x86", "qemu-system-arm") + " e2fsprogs"
	case has("fedora", "rhel", "centos"):
		return "sudo dnf install -y " + pick("qemu-system-x86-core", "qemu-system-aarch64-core") + " e2fsprogs virtiofsd"
	case has("arch"):
		return "sudo pacman -S --needed " + pick("qemu-system-x86", "qemu-system-aarch64") + " e2fsprogs virtiofsd"
	case has("alpine"):
		return "sudo apk add " + pick("qemu-system-x86_64", "qemu-system-aarch64") + " e2fsprogs virtiofsd"
	}
	return "install QEMU (" + program(arch) + "), e2fsprogs and virtiofsd with this system's package manager"
}
