package test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

// Whatever root in a virtual machine does to its end, it is seen and called by
// its name, commands that ran learn that the box is gone, and the box boots
// again with what was on its disk.
func TestMachineEnds(t *testing.T) {
	realengine.Need(t, "vm")
	h := vmHome(t)
	h.engine = "vm"
	b := h.box(t, box.Spec{Name: "b"})
	for n, c := range []struct {
		what, script string
		reason       string
		state        box.State
	}{
		{"a kernel panic", "echo c > /proc/sysrq-trigger", "the box's kernel gave up: Kernel panic", box.Failed},
		{"a power-off", "echo o > /proc/sysrq-trigger", "switched off from inside", box.Failed},
		{"a reboot", "echo b > /proc/sysrq-trigger", "restarted from inside", box.Failed},
		// The agent is the machine's first process. It cannot be killed; made to
		// crash, it takes the kernel with it.
		{"the agent's crash", "kill -9 1; kill -SEGV 1", "the box's kernel gave up: Kernel panic", box.Failed},
	} {
		t.Run(strings.ReplaceAll(c.what, " ", "_"), func(t *testing.T) {
			sh(t, b, fmt.Sprintf("echo %d >> /root/kept; sync", n))
			pending := b.Command(t.Context(), "sleep", "600")
			if err := pending.Start(); err != nil {
				t.Fatal(err)
			}
			end := b.Shell(t.Context(), c.script+"; sleep 600")
			if err := end.Run(); !errors.Is(err, box.ErrUnavailable) {
				t.Errorf("the command that did it: %v; want unavailable", err)
			}
			if err := pending.Wait(); !errors.Is(err, box.ErrUnavailable) {
				t.Errorf("a command beside it: %v; want unavailable", err)
			}
			var info box.Info
			if !eventually(20*time.Second, func() bool {
				var err error
				if info, err = b.Info(t.Context()); err != nil {
					t.Fatal(err)
				}
				return info.State == box.Stopped || info.State == box.Failed
			}) {
				t.Errorf("it is still %s", info.State)
			}
			if info.State != c.state || !strings.Contains(info.Reason, c.reason) {
				t.Errorf("it is %s: %q; want %s: %q", info.State, info.Reason, c.state, c.reason)
			}
			if out := sh(t, b, "wc -l < /root/kept"); strings.TrimSpace(out) != fmt.Sprint(n+1) {
				t.Errorf("booted again, it has kept %q lines, want %d", out, n+1)
			}
		})
	}
}

// When the host's disk is full, a virtual machine that writes waits, says so,
// and goes on when there is space: the box sees no error, and no byte is lost.
func TestHostDiskFull(t *testing.T) {
	realengine.Need(t, "vm")
	if !root() {
		t.Skip("a small disk of the host's needs root")
	}
	small := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(small, 0o755); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "small.img")
	for _, args := range [][]string{
		{"truncate", "-s", "2G", image}, {"mkfs.ext4", "-q", "-m", "0", image}, {"mount", "-o", "loop", image, small},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			required(t, "a small disk: %q: %v\n%s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(small, 0); err != nil {
			t.Errorf("the small disk is still in use: %v", err)
		}
	})
	t.Setenv("TMPDIR", small)
	h := vmHome(t)
	h.engine = "vm"
	b := h.box(t, box.Spec{Name: "b"})
	sh(t, b, "head -c 1000000 /dev/urandom > /root/seed; sync")

	ballast := filepath.Join(small, "ballast")
	fill(t, small, ballast, 16<<20)
	script := "for i in 1 2 3 4 5 6 7 8; do for j in 1 2 3 4 5 6 7 8; do cat /root/seed; done; done > /root/big && sync && sha256sum < /root/big"
	c := b.Shell(t.Context(), script)
	var out bytes.Buffer
	c.Stdout = &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	console := filepath.Join(h.dir, "boxes", b.ID(), "console.log")
	if !eventually(60*time.Second, func() bool {
		said, err := os.ReadFile(console)
		return err == nil && bytes.Contains(said, []byte("the host's disk is full"))
	}) {
		t.Error("nothing says that the host's disk is full")
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Fatalf("the command that wrote: %v", err)
	}
	want := sh(t, b, "for i in 1 2 3 4 5 6 7 8; do for j in 1 2 3 4 5 6 7 8; do cat /root/seed; done; done | sha256sum")
	if got := strings.TrimSpace(out.String()); got != want {
		t.Errorf("what was written is %s, want %s", got, want)
	}
	// Nor is it only in the machine's memory.
	if err := b.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, b, "sha256sum < /root/big"); got != want {
		t.Errorf("after a kill it is %s, want %s", got, want)
	}
}

// fill writes a file that leaves so much of its file system free.
func fill(t *testing.T, dir, file string, leave int64) {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-leave); err != nil {
		t.Fatal(err)
	}
}
