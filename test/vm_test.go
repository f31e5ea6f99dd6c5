package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

// vmHome is a new home with a kernel for virtual machines, for whoever this
// process is.
func vmHome(t *testing.T) *home {
	h := newHome(t)
	realengine.Kernel(t, h.dir)
	return h
}

// everyEngine runs a test in a home for gVisor as everyone does, and once more
// with boxes that are virtual machines.
func everyEngine(t *testing.T, f func(t *testing.T, h *home)) {
	t.Helper()
	everyone(t, func(t *testing.T) { f(t, newHome(t)) })
	if os.Getenv(asVar) != "" {
		return
	}
	t.Run("vm", func(t *testing.T) {
		realengine.Need(t, "vm")
		h := vmHome(t)
		h.engine = "vm"
		f(t, h)
	})
}

// shareKernel puts the kernel where the processes of other users find it.
func shareKernel(t *testing.T) {
	t.Helper()
	dir, err := stage.dir()
	if err != nil {
		t.Fatal(err)
	}
	from, to := filepath.Join(realengine.Cache(t), "vm", "kernels"), filepath.Join(dir, "kernels")
	err = filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at := filepath.Join(to, strings.TrimPrefix(path, from))
		if d.IsDir() {
			return os.Mkdir(at, 0o755)
		}
		return copyFile(at, path, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(realengine.KernelsVar, to)
}

// A box that is a virtual machine, from the command line, for root and for
// ordinary users: a kernel of its own, streams and statuses, files that stay,
// a volume.
func TestVM(t *testing.T) {
	realengine.Need(t, "vm")
	if os.Getenv(realengine.KernelsVar) == "" {
		shareKernel(t)
	}
	everyone(t, func(t *testing.T) {
		h := vmHome(t)
		host, err := os.ReadFile("/proc/sys/kernel/osrelease")
		if err != nil {
			t.Fatal(err)
		}
		h.ok(t, "create", "--engine", "vm", "--name", "b")
		if own := h.ok(t, "exec", "b", "uname", "-r"); own == "" || own == strings.TrimSpace(string(host)) {
			t.Errorf("the box's kernel is %q, the host's %q", own, host)
		}
		if r := h.hutch(t, "exec", "b", "sh", "-c", "echo out; echo err >&2; exit 7"); r.code != 7 || r.stdout != "out\n" || r.stderr != "err\n" {
			t.Errorf("got %v", r)
		}
		h.ok(t, "exec", "b", "sh", "-c", "id -u > /root/kept; sync")
		h.ok(t, "stop", "b")
		if out := h.ok(t, "exec", "b", "cat", "/root/kept"); out != "0" {
			t.Errorf("after a stop the file holds %q", out)
		}
		// A box keeps its engine, and says which and how strong it is.
		out := h.ok(t, "inspect", "--format", "{{.Engine}} {{.Isolation}}", "b")
		if out != "vm "+string(box.IsolationEmulation) && out != "vm "+string(box.IsolationHardware) {
			t.Errorf("inspect says %q", out)
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte("from the host"), 0o644); err != nil {
			t.Fatal(err)
		}
		if out := h.ok(t, "run", "--rm", "--engine", "vm", "-v", dir+":/v:ro", "--", "sh", "-c", "cat /v/f; echo x > /v/f || echo refused"); out != "from the hostrefused" {
			t.Errorf("the volume: %q", out)
		}
	})
}
