package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// podman is podman with crun, as Debian packages them.
type podman struct {
	b     *bench
	dir   string
	n     atomic.Int64
	spawn *spawner
	extra []string // arguments of run that this machine needs
	notes []string
	lock  bool // the lock file in /dev/shm is ours
}

// podmanLocks is where podman keeps its locks, whatever its folders are.
const podmanLocks = "/dev/shm/libpod_lock"

func (p *podman) name() string { return "podman" }

func (p *podman) how() []string {
	return append([]string{
		"Debian's podman and crun, `podman --runtime crun --cgroup-manager cgroupfs` with folders of its own",
		"create → first output: `podman run --network none --rootfs TREE:O echo " + word + "`, first byte of its standard output",
		"idle: `podman run -d … " + strings.Join(idle(), " ") + "`; exec: `podman exec ID true`; copy: `podman cp`; remove: `podman rm --force --time 0 ID`",
	}, p.notes...)
}

func (p *podman) program() program {
	prog := program{args: []string{"podman", "--runtime", "crun", "--cgroup-manager", "cgroupfs",
		"--root", filepath.Join(p.dir, "root"), "--runroot", filepath.Join(p.dir, "run"), "--tmpdir", filepath.Join(p.dir, "tmp")}}
	if p.spawn != nil {
		prog.spawn = p.spawn.do
	}
	return prog
}

// prepare finds out what this machine needs to run podman at all. What is not
// needed is not done, and what is done is in the report.
func (p *podman) prepare(ctx context.Context) error {
	for _, name := range []string{"podman", "crun"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%s is not installed (apt-get install podman crun)", name)
		}
	}
	if os.Geteuid() != 0 {
		return errors.New("is measured as root, as the others")
	}
	if _, err := os.Stat(podmanLocks); errors.Is(err, os.ErrNotExist) {
		p.lock = true
	}
	p.dir = filepath.Join(p.b.disk, "podman")
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	var errs []error
	for _, remedy := range []func() error{
		func() error { return nil },
		p.lowerLimits,
		p.hideUnified,
		func() error {
			p.extra = append(p.extra, "--cgroups=disabled")
			p.notes = append(p.notes, "`--cgroups=disabled`: with control groups it does not start here")
			return nil
		},
	} {
		if err := remedy(); err != nil {
			return err
		}
		_, err := p.first(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// lowerLimits is for a machine where root may not raise its limits.
func (p *podman) lowerLimits() error {
	p.extra = append(p.extra, "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
	p.notes = append(p.notes, "`--ulimit nofile=1024:1024 --ulimit nproc=1024:1024`: root of this machine may not raise its limits, and podman's defaults do")
	return nil
}

// hideUnified is for a machine with control groups of both versions, which
// crun refuses: podman is started in a mount namespace without the second.
func (p *podman) hideUnified() error {
	const unified = "/sys/fs/cgroup/unified"
	if _, err := os.Stat(unified); err != nil {
		return nil
	}
	s, err := newSpawner(func() error { return unix.Unmount(unified, unix.MNT_DETACH) })
	if err != nil {
		return err
	}
	p.spawn = s
	p.notes = append(p.notes, "in a mount namespace without "+unified+": crun refuses control groups of both versions at once")
	return nil
}

func (p *podman) runArgs(id string, flags ...string) []string {
	args := append([]string{"run", "--network", "none", "--name", id}, p.extra...)
	return append(append(args, flags...), "--rootfs", p.b.tree+":O")
}

func (p *podman) newID() string { return fmt.Sprintf("bench-%d-%d", os.Getpid(), p.n.Add(1)) }

func (p *podman) first(ctx context.Context) (time.Duration, error) {
	id := p.newID()
	took, err := p.program().firstByte(ctx, append(p.runArgs(id), "echo", word)...)
	return took, errors.Join(err, p.drop(ctx, id))
}

func (p *podman) drop(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return p.program().run(ctx, nil, nil, "rm", "--force", "--ignore", "--time", "0", id)
}

func (p *podman) settle(context.Context) error { return nil }

func (p *podman) start(ctx context.Context) (machine, error) {
	id := p.newID()
	if _, err := p.program().output(ctx, append(p.runArgs(id, "--detach"), idle()...)...); err != nil {
		return nil, errors.Join(err, p.drop(ctx, id))
	}
	return &podmanBox{p: p, id: id}, nil
}

func (p *podman) close(ctx context.Context) error {
	if p.dir == "" {
		return nil
	}
	err := p.program().run(ctx, nil, nil, "rm", "--all", "--force", "--time", "0")
	if p.spawn != nil {
		// Its mounts are in that namespace.
		err = errors.Join(err, p.spawn.do(func() error { return unmountBelow(p.dir) }))
		p.spawn.close()
	}
	err = errors.Join(err, unmountBelow(p.dir))
	if p.lock {
		_ = os.Remove(podmanLocks)
	}
	return err
}

// podmanBox is one container.
type podmanBox struct {
	p  *podman
	id string
}

func (m *podmanBox) exec(ctx context.Context, args ...string) (string, error) {
	return m.p.program().output(ctx, append([]string{"exec", m.id}, args...)...)
}

func (m *podmanBox) copyIn(ctx context.Context, host, path string) error {
	return m.p.program().run(ctx, nil, nil, "cp", host, m.id+":"+path)
}

func (m *podmanBox) copyOut(ctx context.Context, path, host string) error {
	return m.p.program().run(ctx, nil, nil, "cp", m.id+":"+path, host)
}

func (m *podmanBox) processes() ([]int, error) { return processesNaming(m.id) }

func (m *podmanBox) remove(ctx context.Context) error { return m.p.drop(ctx, m.id) }

// spawner is a thread in a mount namespace of its own. Processes that are
// started on it are in the namespace from the start, which costs nothing.
type spawner struct {
	calls chan func()
	done  sync.WaitGroup
}

// newSpawner starts the thread and changes its mounts with change.
func newSpawner(change func() error) (*spawner, error) {
	s := &spawner{calls: make(chan func())}
	ready := make(chan error)
	var run func()
	run = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// Not the first thread: what looks at /proc/self looks at that
			// one. While it is held here, the next goroutine is on another.
			defer runtime.UnlockOSThread()
			var other sync.WaitGroup
			other.Go(run)
			other.Wait()
			return
		}
		// Never unlocked: the thread ends with the goroutine.
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = change()
		}
		ready <- err
		if err != nil {
			return
		}
		for call := range s.calls {
			call()
		}
	}
	s.done.Go(run)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("mount namespace for podman: %w", err)
	}
	return s, nil
}

// do runs f on the thread.
func (s *spawner) do(f func() error) error {
	result := make(chan error, 1)
	s.calls <- func() { result <- f() }
	return <-result
}

func (s *spawner) close() {
	close(s.calls)
	s.done.Wait()
}
