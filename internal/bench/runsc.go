package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// runsc is gVisor's own command, built from the version that Hutch links.
type runsc struct {
	b   *bench
	bin string
	dir string
	n   atomic.Int64
}

func (r *runsc) name() string { return "runsc" }

func (r *runsc) how() []string {
	return []string{
		"built by `go build -C tools/runsc gvisor.dev/gvisor/runsc`, of the version that Hutch links (" + r.b.gvisor + ")",
		"`runsc --root=DIR --network=none --overlay2=root:dir=DIR`, else its defaults (systrap, its overlay in memory backed by a file); the overlay's file would by default be put into the root file system, which is shared here",
		"create → first output: the bundle's `config.json` written, then `runsc run --bundle DIR ID`, with `echo " + word + "` as the process; first byte of its standard output",
		"idle: `runsc run --detach` of `" + strings.Join(idle(), " ") + "`; exec: `runsc exec ID true`; copy: `runsc exec ID sh -c 'cat > FILE'` and `cat FILE` with host files as standard input and output, since it has no copy; remove: `runsc delete --force ID`",
	}
}

func (r *runsc) program() program { return r.with("none") }

// networked is for sandboxes in a network namespace that leads somewhere.
func (r *runsc) networked() program { return r.with("sandbox") }

func (r *runsc) with(network string) program {
	return program{args: []string{r.bin, "--root=" + filepath.Join(r.dir, "state"), "--network=" + network, "--overlay2=root:dir=" + filepath.Join(r.dir, "overlay")}}
}

func (r *runsc) prepare(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root to make its network namespace")
	}
	var err error
	if r.bin, err = buildRunsc(ctx, r.b.gvisor); err != nil {
		return err
	}
	r.dir = filepath.Join(r.b.disk, "runsc")
	for _, dir := range []string{"state", "overlay", "bundles"} {
		if err := os.MkdirAll(filepath.Join(r.dir, dir), 0o700); err != nil {
			return err
		}
	}
	_, err = r.first(ctx)
	return err
}

// buildRunsc builds runsc from the module cache, once for a version.
func buildRunsc(ctx context.Context, version string) (string, error) {
	goTool := program{args: []string{"go"}}
	pinned, err := goTool.output(ctx, "list", "-C", "tools/runsc", "-m", "-f", "{{.Version}}", "gvisor.dev/gvisor")
	if err != nil {
		return "", err
	}
	if pinned = strings.TrimSpace(pinned); pinned != version {
		return "", fmt.Errorf("tools/runsc/go.mod has gVisor %s, Hutch %s: go get -C tools/runsc gvisor.dev/gvisor/runsc@%s", pinned, version, version)
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(cache, "runsc-"+version)
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	fmt.Fprintln(os.Stderr, "building runsc, once …")
	err = program{args: []string{"env", "CGO_ENABLED=0", "go"}}.run(ctx, nil, nil, "build", "-C", "tools/runsc",
		"-ldflags=-s -w -X gvisor.dev/gvisor/runsc/version.version="+version, "-o", bin+".new", "gvisor.dev/gvisor/runsc")
	if err != nil {
		return "", err
	}
	return bin, os.Rename(bin+".new", bin)
}

// bundleOptions are for the sandboxes of the network rows.
type bundleOptions struct {
	netns  string // path of the network namespace; empty: a new one
	client string // program to mount at clientPath; empty: none
}

// bundle writes what runsc run needs.
func (r *runsc) bundle(id string, args []string, o bundleOptions) (string, error) {
	dir := filepath.Join(r.dir, "bundles", id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	type object = map[string]any
	mount := func(dst, typ string, opts ...string) object {
		return object{"destination": dst, "type": typ, "source": typ, "options": opts}
	}
	var namespaces []object
	for _, ns := range []string{"pid", "ipc", "uts", "mount", "network"} {
		n := object{"type": ns}
		if ns == "network" && o.netns != "" {
			n["path"] = o.netns
		}
		namespaces = append(namespaces, n)
	}
	mounts := []object{mount("/proc", "proc"), mount("/dev", "tmpfs"), mount("/sys", "sysfs", "ro"), mount("/dev/shm", "tmpfs")}
	if o.client != "" {
		mounts = append(mounts, object{"destination": clientPath, "type": "bind", "source": o.client, "options": []string{"bind", "ro"}})
	}
	caps := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_CHROOT"}
	data, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "args": args, "cwd": "/",
			"env":          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
			"capabilities": object{"bounding": caps, "effective": caps, "permitted": caps},
		},
		"root":     object{"path": r.b.tree},
		"hostname": id,
		"mounts":   mounts,
		"linux":    object{"namespaces": namespaces},
	})
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}

func (r *runsc) newID() string { return fmt.Sprintf("bench-%d-%d", os.Getpid(), r.n.Add(1)) }

func (r *runsc) first(ctx context.Context) (time.Duration, error) {
	id := r.newID()
	start := time.Now()
	dir, err := r.bundle(id, []string{"echo", word}, bundleOptions{})
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	written := time.Since(start)
	took, err := r.program().firstByte(ctx, "run", "--bundle", dir, id)
	return written + took, err
}

func (r *runsc) settle(context.Context) error { return nil }

func (r *runsc) start(ctx context.Context) (machine, error) {
	id := r.newID()
	dir, err := r.bundle(id, idle(), bundleOptions{})
	if err != nil {
		return nil, err
	}
	if err := r.program().detach(ctx, filepath.Join(dir, "log"), "run", "--detach", "--bundle", dir, id); err != nil {
		return nil, err
	}
	return &runscBox{r: r, id: id, dir: dir}, nil
}

func (r *runsc) close(ctx context.Context) error {
	if r.bin == "" || r.dir == "" {
		return nil
	}
	ids, err := r.program().output(ctx, "list", "--quiet")
	errs := []error{err}
	for _, id := range strings.Fields(ids) {
		errs = append(errs, r.program().run(ctx, nil, nil, "delete", "--force", id))
	}
	// It binds its empty network namespace here.
	errs = append(errs, unmountBelow(r.dir))
	return errors.Join(errs...)
}

// runscBox is one container.
type runscBox struct {
	r       *runsc
	id, dir string
}

func (m *runscBox) exec(ctx context.Context, args ...string) (string, error) {
	return m.r.program().output(ctx, append([]string{"exec", m.id}, args...)...)
}

func (m *runscBox) copyIn(ctx context.Context, host, path string) error {
	f, err := os.Open(host)
	if err != nil {
		return err
	}
	defer f.Close()
	return m.r.program().run(ctx, f, nil, "exec", m.id, "sh", "-c", `cat > "$0"`, path)
}

func (m *runscBox) copyOut(ctx context.Context, path, host string) error {
	f, err := os.Create(host)
	if err != nil {
		return err
	}
	defer f.Close()
	return m.r.program().run(ctx, nil, f, "exec", m.id, "cat", path)
}

func (m *runscBox) processes() ([]int, error) { return processesNaming(m.id) }

func (m *runscBox) remove(ctx context.Context) error {
	err := m.r.program().run(ctx, nil, nil, "delete", "--force", m.id)
	return errors.Join(err, os.RemoveAll(m.dir))
}
