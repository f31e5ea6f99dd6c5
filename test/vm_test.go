package test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// A new box of an image starts as a copy of a machine that was nobody's: what
// the box that made the template was told is not in it, and the copy is a box of
// its own. A template that is broken is in nobody's way.
func TestImageTemplate(t *testing.T) {
	realengine.Need(t, "vm")
	h := newHome(t)
	h.engine = "vm"
	// A folder of templates of its own: in the shared one, others replace them.
	shared, own := filepath.Join(realengine.Cache(t), "vm"), filepath.Join(h.dir, "cache", "vm")
	if err := os.MkdirAll(own, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(shared, "kernels"), filepath.Join(own, "kernels")); err != nil {
		t.Fatal(err)
	}
	const canary = "zqtemplatecanary"
	create := func(args ...string) { // small, since all of it is searched
		t.Helper()
		h.ok(t, append([]string{"create", "--idle", "--memory", "256m", "--disk", "64m"}, args...)...)
	}
	create("--name", "first", "--hostname", canary+"host", "-e", "CANARY="+canary, "-l", "l="+canary)
	if out := h.ok(t, "exec", "first", "sh", "-c", "hostname; echo $CANARY; echo "+canary+" > /root/f; cat /proc/sys/kernel/random/boot_id; sync"); !strings.HasPrefix(out, canary+"host\n"+canary+"\n") {
		t.Fatalf("the first box says %q", out)
	}
	all, err := filepath.Glob(filepath.Join(own, "templates", "*", "disk.ext4"))
	if err != nil || len(all) != 1 {
		t.Fatalf("the first box left the templates %q, %v", all, err)
	}
	made := filepath.Dir(all[0])
	for _, part := range []string{"memory", "disk.ext4"} {
		data, err := os.ReadFile(filepath.Join(made, part))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte(canary)) {
			t.Errorf("what the box was told is in its template's %s", part)
		}
	}
	old := time.Unix(1e9, 0)
	if err := os.Chtimes(made, old, old); err != nil {
		t.Fatal(err)
	}
	used := func() bool {
		fi, err := os.Stat(made)
		return err == nil && !fi.ModTime().Equal(old)
	}
	create("--name", "second", "-e", "OWN=1")
	out := h.ok(t, "exec", "second", "sh", "-c", "hostname; cat /etc/hostname; grep -c second /etc/hosts; echo ${CANARY-none} $OWN; ls -A /root | grep -x f; date +%Y")
	if want := "second\nsecond\n1\nnone 1\n" + time.Now().UTC().Format("2006"); out != want {
		t.Errorf("the second box says %q, want %q", out, want)
	}
	if !used() {
		t.Error("the second box did not start from the template")
	}
	random := func(name string) string {
		return h.ok(t, "exec", name, "sh", "-c", "cat /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -tx1")
	}
	create("--name", "third")
	if a, b := random("second"), random("third"); a == b {
		t.Errorf("two copies have the same random numbers: %q", a)
	}
	// Its disk is its own, and stays.
	h.ok(t, "exec", "third", "sh", "-c", "echo kept > /root/g; sync")
	h.ok(t, "stop", "third")
	if out := h.ok(t, "exec", "third", "cat", "/root/g"); out != "kept" {
		t.Errorf("after a stop the file holds %q", out)
	}
	if err := os.Truncate(filepath.Join(made, "devices"), 1000); err != nil {
		t.Fatal(err)
	}
	create("--name", "fourth")
	if out := h.ok(t, "exec", "fourth", "hostname"); out != "fourth" {
		t.Errorf("with a broken template: %q", out)
	}
	if fi, err := os.Stat(filepath.Join(made, "devices")); err == nil && fi.Size() == 1000 {
		t.Error("the broken template is still there")
	}
}
