//go:build linux

package vm_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/engine/vm"
)

func TestArguments(t *testing.T) {
	for _, tt := range []struct {
		name       string
		arch       string
		accel      string
		have, lack []string
	}{
		{"x86 emulated", "amd64", "tcg", []string{"-machine microvm,", "-accel tcg,", "tsc_early_khz=2000000", "ttyS0"}, []string{"-cpu host", "balloon"}},
		{"x86 with KVM", "amd64", "kvm", []string{"-accel kvm", "-cpu host"}, []string{"tsc_early_khz"}},
		{"ARM on macOS", "arm64", "hvf", []string{"-machine virt,", "-accel hvf", "ttyAMA0"}, []string{"microvm", "tsc"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			line := strings.Join(vm.Arguments(tt.arch, tt.accel, 2, 512<<20), " ")
			have := append(tt.have, "-nodefaults", "-no-user-config", "-no-reboot", "-smp 2", "-m 512M", "share=off",
				"-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny", "panic=-1")
			for _, want := range have {
				if !strings.Contains(line, want) {
					t.Errorf("no %q in %s", want, line)
				}
			}
			for _, not := range tt.lack {
				if strings.Contains(line, not) {
					t.Errorf("%q in %s", not, line)
				}
			}
		})
	}
}

func TestMemorySize(t *testing.T) {
	const mib = 1 << 20
	for limit, want := range map[int64]int64{
		0:           2047 * mib, // the default; see below
		1:           64 * mib,
		100*mib + 1: 100 * mib,
		2047 * mib:  2047 * mib,
		2048 * mib:  2047 * mib, // a kernel hangs with just that much
		2049 * mib:  2049 * mib,
	} {
		if got := vm.MemorySize(limit); got != want {
			t.Errorf("a limit of %d bytes makes a machine of %d, want %d", limit, got, want)
		}
	}
}

func TestParseVersion(t *testing.T) {
	for _, tt := range []struct {
		out, want string
		shared    bool // it can map a file that it may only read
		kind      box.Kind
	}{
		{"QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright", "7.2.22", false, ""},
		{"QEMU emulator version 8.1.3", "8.1.3", false, ""},
		{"QEMU emulator version 8.2.0", "8.2.0", true, ""},
		{"QEMU emulator version 10.0.0\n", "10.0.0", true, ""},
		{"QEMU emulator version 6.2.0 (Debian)", "", false, box.Unsupported},
		{"QEMU emulator version 7.1.0", "", false, box.Unsupported},
		{"hello", "", false, box.Unsupported},
		{"", "", false, box.Unsupported},
	} {
		got, shared, err := vm.ParseVersion("qemu", []byte(tt.out))
		if got != tt.want || shared != tt.shared || (err == nil) != (tt.kind == "") || err != nil && box.KindOf(err) != tt.kind {
			t.Errorf("%.30q gives %q, %t, %v", tt.out, got, shared, err)
		}
	}
}

func TestInstallCommand(t *testing.T) {
	for _, tt := range []struct{ what, goos, arch, release, want string }{
		{"qemu", "linux", "amd64", "ID=debian\n", "sudo apt-get install -y qemu-system-x86 e2fsprogs"},
		{"qemu", "linux", "arm64", "ID=ubuntu\nID_LIKE=debian\n", "sudo apt-get install -y qemu-system-arm e2fsprogs"},
		{"e2fsprogs", "linux", "amd64", "ID=debian\n", "sudo apt-get install -y e2fsprogs"},
		{"qemu", "linux", "amd64", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "sudo dnf install -y qemu-system-x86-core e2fsprogs virtiofsd"},
		{"qemu", "linux", "amd64", "ID=arch\n", "sudo pacman -S --needed qemu-system-x86 e2fsprogs virtiofsd"},
		{"qemu", "darwin", "arm64", "", "brew install qemu e2fsprogs"},
		{"qemu", "linux", "amd64", "ID=plan9\n", "install QEMU (qemu-system-x86_64), e2fsprogs and virtiofsd with this system's package manager"},
	} {
		if got := vm.InstallCommand(tt.what, tt.goos, tt.arch, tt.release); got != tt.want {
			t.Errorf("%s on %s %s: %q, want %q", tt.what, tt.goos, tt.release, got, tt.want)
		}
	}
}

func TestDescribeEnd(t *testing.T) {
	for _, tt := range []struct{ reason, status, console, want string }{
		{"guest-shutdown", "exit status 0", "", "switched off from inside"},
		{"guest-reset", "exit status 0", "", "restarted from inside"},
		{"guest-reset", "exit status 0", "[ 1.0] Kernel panic - not syncing: Attempted to kill init!\nmore", "gave up: Kernel panic - not syncing: Attempted to kill init!"},
		{"", "signal: killed", "", "the engine ended: signal: killed"},
	} {
		if got := vm.DescribeEnd(tt.reason, tt.status, []byte(tt.console)); !strings.Contains(got, tt.want) {
			t.Errorf("%+v gives %q", tt, got)
		}
	}
}

func TestParseMapping(t *testing.T) {
	for _, tt := range []struct {
		line  string
		inode uint64
		ok    bool
	}{
		{"7f2a00000000-7f2a20000000 rw-p 00000000 fe:00 1234   /box/ram", 1234, true},
		{"7f2a00000000-7f2a20000000 rw-p 00000000 00:00 0", 0, true},
		{"7f2a20000000-7f2a00000000 rw-p 00000000 00:00 5 x", 0, false},
		{"", 0, false},
		{"x-y rw-p 0 00:00 5", 0, false},
		{"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]", 0, false},
	} {
		_, inode, ok := vm.ParseMapping(tt.line)
		if ok != tt.ok || ok && inode != tt.inode {
			t.Errorf("%q gives %d, %v", tt.line, inode, ok)
		}
	}
}

// Of the templates go those of another boot of the host, of images that are
// gone, and that were never finished; and of each kind those that were used
// longest ago, so that one more has room.
func TestPrune(t *testing.T) {
	root := t.TempDir()
	image := filepath.Join(root, "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	age := time.Now()
	add := func(name, manifest string) {
		t.Helper()
		dir := filepath.Join(root, name)
		age = age.Add(-time.Minute) // each was used before the one above
		err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "machine.json"), []byte(manifest), 0o600), os.Chtimes(dir, age, age))
		if err != nil {
			t.Fatal(err)
		}
	}
	now := vm.SinceBoot()
	for n := range 5 {
		add(fmt.Sprintf("%skernel%d", now, n), `{"version":1,"template":true}`)
	}
	for n := range 9 {
		add(fmt.Sprintf("%simage%d", now, n), fmt.Sprintf(`{"version":1,"image":%q}`, image))
	}
	add("00000000-kernel", `{"version":1,"template":true}`)
	add(now+"gone", `{"version":1,"image":"/nowhere/image"}`)
	add(now+"broken", `{`)
	add(".new-1", `{}`)
	vm.Prune(root)
	var left []string
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			left = append(left, strings.TrimPrefix(e.Name(), now))
		}
	}
	want := "image0 image1 image2 image3 image4 image5 image6 kernel0 kernel1 kernel2"
	if got := strings.Join(left, " "); got != want {
		t.Errorf("left are %s, want %s", got, want)
	}
}
