//go:build linux

package agent

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// cgroupTracker keeps every command in a control group of its own. The
// kernel, not /proc, then says which processes belong to it, whatever they do.
//
// With version 2 the child is cloned into its group. With version 1 a thread
// of the agent enters the group, forks, and goes back: a child begins in the
// groups of the thread that forks it. One thread does all such forks.
//
// The limit of processes is on one group that holds all commands, and never
// the agent: pids.max of the commands' parent with version 2. With version 1
// it is a hierarchy of its own with a single group, since gVisor's version 1
// counts only a group's own processes, not those of its children. The forking
// thread sits in that group and counts as one.
//
// The file systems are mounted on a private folder and detached from it once
// the agent holds their folders open: commands do not find them.
type cgroupTracker struct {
	v2      bool
	memory  bool     // version 2 on a real kernel: commands' memory is bounded
	dir     *os.File // where groups are made
	parent  string   // their parent, below dir
	pidsDir *os.File // version 1: the hierarchy that limits processes; or nil
	next    atomic.Uint64
	thread  *forkThread // nil with version 2 alone
}

const cgroupMount = "/.hutch/cgroup"

func newCgroupTracker(pids int) (_ *cgroupTracker, err error) {
	// A hierarchy may be shared with other agents, so the name is unique.
	t := &cgroupTracker{parent: "hutch-" + randomID()[:16]}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if t.dir, err = mountCgroup("cgroup2", ""); err == nil {
		if err = t.setupV2(pids); err == nil {
			t.v2 = true
			return t, nil
		}
		t.tidy()
		t.dir.Close()
		t.dir = nil
	}
	v2err := err
	// gVisor's version 1: a child inherits only the groups of hierarchies
	// with a controller, and "job" is one that does nothing else. On a real
	// kernel a named hierarchy needs none.
	if t.dir, err = mountCgroup("cgroup", "job"); err != nil {
		if t.dir, err = mountCgroup("cgroup", "none,name=hutch"); err != nil {
			return nil, fmt.Errorf("version 2: %w; version 1: %w", v2err, err)
		}
	}
	if err = mkdirAt(t.dir, t.parent); err != nil {
		return nil, err
	}
	if pids > 0 {
		if t.pidsDir, err = mountCgroup("cgroup", "pids"); err != nil {
			return nil, err
		}
		if err = mkdirAt(t.pidsDir, t.parent); err != nil {
			return nil, err
		}
		if err = writeAt(t.pidsDir, t.parent+"/pids.max", strconv.Itoa(pids+1)); err != nil {
			return nil, err
		}
	}
	t.thread = newForkThread()
	if t.pidsDir != nil {
		err = t.thread.do(func() error {
			return writeAt(t.pidsDir, t.parent+"/tasks", strconv.Itoa(unix.Gettid()))
		})
		if err != nil {
			return nil, err
		}
	}
	// Prove that the way of a fork is open, before a command depends on it.
	g, err := t.newGroup()
	if err != nil {
		return nil, err
	}
	if _, err = g.start(nil, func() (int, error) { return 0, nil }); err != nil {
		return nil, err
	}
	if !g.remove() {
		return nil, errors.New("a control group cannot be removed")
	}
	return t, nil
}

func (t *cgroupTracker) setupV2(pids int) error {
	if err := mkdirAt(t.dir, t.parent); err != nil {
		return err
	}
	if pids > 0 {
		// It is enabled already in gVisor; a real kernel needs this.
		_ = writeAt(t.dir, "cgroup.subtree_control", "+pids")
		if err := writeAt(t.dir, t.parent+"/pids.max", strconv.Itoa(pids)); err != nil {
			return err
		}
	}
	// In gVisor memory is the host's matter.
	if !inGVisor() {
		if err := t.boundMemory(); err != nil {
			return err
		}
	}
	g, err := t.newGroup()
	if err != nil {
		return err
	}
	g.(*cgroup).v2 = true
	g.kill()
	if !g.remove() {
		return errors.New("a control group cannot be removed")
	}
	return nil
}

// boundMemory leaves the kernel and the agent some memory that commands cannot
// have. Without that, a real kernel that runs out first drops every page of
// every program and reads it again, for minutes, before it looks for a victim;
// with it, the victim is one command, with all that it started.
func (t *cgroupTracker) boundMemory() error {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return err
	}
	total := uint64(info.Totalram) * uint64(info.Unit)
	reserve := min(max(total/16, 24<<20), 128<<20)
	if total <= 2*reserve {
		return nil // a machine this small has none to give
	}
	if err := writeAt(t.dir, "cgroup.subtree_control", "+memory"); err != nil {
		return err
	}
	if err := writeAt(t.dir, t.parent+"/memory.max", strconv.FormatUint(total-reserve, 10)); err != nil {
		return err
	}
	if err := writeAt(t.dir, t.parent+"/cgroup.subtree_control", "+memory"); err != nil {
		return err
	}
	t.memory = true
	return nil
}

// mountCgroup mounts a control group file system where nobody sees it and
// returns its root.
func mountCgroup(fstype, options string) (*os.File, error) {
	if err := os.MkdirAll(cgroupMount, 0o700); err != nil {
		return nil, err
	}
	defer os.Remove(cgroupMount)
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("cgroup", cgroupMount, fstype, flags, options); err != nil {
		return nil, fmt.Errorf("mount %s %s: %w", fstype, options, err)
	}
	dir, err := os.Open(cgroupMount)
	if uerr := unix.Unmount(cgroupMount, unix.MNT_DETACH); uerr != nil && err == nil {
		dir.Close()
		err = uerr
	}
	if err != nil {
		return nil, err
	}
	return dir, nil
}

func mkdirAt(dir *os.File, name string) error {
	err := unix.Mkdirat(int(dir.Fd()), name, 0o700)
	if err != nil && err != unix.EEXIST {
		return &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return nil
}

func openAt(dir *os.File, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func writeAt(dir *os.File, name, value string) error {
	fd, err := openAt(dir, name, unix.O_WRONLY)
	if err == nil {
		_, err = unix.Write(fd, []byte(value))
		unix.Close(fd)
	}
	if err != nil {
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

func (t *cgroupTracker) name() string {
	if t.v2 {
		return "cgroup2"
	}
	return "cgroup"
}

func (t *cgroupTracker) tidy() {
	if t.pidsDir != nil && t.thread != nil {
		_ = t.thread.do(func() error {
			return writeAt(t.pidsDir, "tasks", strconv.Itoa(unix.Gettid()))
		})
	}
	for _, d := range []*os.File{t.dir, t.pidsDir} {
		if d != nil {
			_ = unix.Unlinkat(int(d.Fd()), t.parent, unix.AT_REMOVEDIR)
		}
	}
}

func (t *cgroupTracker) close() {
	t.tidy()
	if t.thread != nil {
		t.thread.close()
	}
	for _, d := range []*os.File{t.dir, t.pidsDir} {
		if d != nil {
			d.Close()
		}
	}
}

func (t *cgroupTracker) newGroup() (group, error) {
	g := &cgroup{t: t, v2: t.v2, path: t.parent + "/" + strconv.FormatUint(t.next.Add(1), 10)}
	if err := mkdirAt(t.dir, g.path); err != nil {
		return nil, err
	}
	if t.memory {
		if err := writeAt(t.dir, g.path+"/memory.oom.group", "1"); err != nil {
			return nil, err
		}
	}
	return g, nil
}

type cgroup struct {
	t    *cgroupTracker
	v2   bool
	path string
	gone atomic.Bool
}

func (g *cgroup) start(attr *syscall.SysProcAttr, fork func() (int, error)) (pid int, err error) {
	if g.v2 {
		fd, err := openAt(g.t.dir, g.path, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		attr.UseCgroupFD, attr.CgroupFD = true, fd
		return fork()
	}
	err = g.t.thread.do(func() error {
		tid := strconv.Itoa(unix.Gettid())
		if err := writeAt(g.t.dir, g.path+"/tasks", tid); err != nil {
			return err
		}
		var ferr error
		pid, ferr = fork()
		if err := writeAt(g.t.dir, "tasks", tid); err != nil && ferr == nil {
			// The thread would go on counting as a process of this command. That
			// does no harm beyond a folder that stays.
			return nil
		}
		return ferr
	})
	return pid, err
}

func (g *cgroup) pids() []int {
	if g.gone.Load() {
		return nil
	}
	fd, err := openAt(g.t.dir, g.path+"/cgroup.procs", unix.O_RDONLY)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), g.path)
	defer f.Close()
	var data []byte
	buf := make([]byte, 16<<10)
	for {
		n, err := f.Read(buf)
		data = append(data, buf[:n]...)
		if err != nil || len(data) > 1<<20 {
			break
		}
	}
	self := os.Getpid()
	var pids []int
	for line := range strings.FieldsSeq(string(data)) {
		// In version 1 the forking thread shows as the agent.
		if pid, err := strconv.Atoi(line); err == nil && pid > 0 && pid != self {
			pids = append(pids, pid)
		}
	}
	return pids
}

// outOfMemory reports whether the kernel has killed the group for want of
// memory.
func (g *cgroup) outOfMemory() bool {
	if !g.t.memory || g.gone.Load() {
		return false
	}
	fd, err := openAt(g.t.dir, g.path+"/memory.events", unix.O_RDONLY)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), g.path)
	defer f.Close()
	data := make([]byte, 4<<10)
	n, _ := f.Read(data)
	for line := range strings.Lines(string(data[:n])) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "oom_kill" && f[1] != "0" {
			return true
		}
	}
	return false
}

func (g *cgroup) kill() {
	if g.gone.Load() {
		return
	}
	if g.v2 && writeAt(g.t.dir, g.path+"/cgroup.kill", "1") == nil {
		return
	}
	// Stop them first: what does not run does not fork.
	pids := g.pids()
	if len(pids) > 1 {
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		pids = g.pids()
	}
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

func (g *cgroup) remove() bool {
	if g.gone.Load() {
		return true
	}
	err := unix.Unlinkat(int(g.t.dir.Fd()), g.path, unix.AT_REMOVEDIR)
	if err == nil || err == unix.ENOENT {
		g.gone.Store(true)
		return true
	}
	return false
}

// forkThread runs functions one after another on one thread of its own.
type forkThread struct {
	calls chan func()
	once  sync.Once
	wg    sync.WaitGroup
}

func newForkThread() *forkThread {
	f := &forkThread{calls: make(chan func())}
	f.wg.Go(func() {
		// The thread is never unlocked, so it ends with this goroutine and no
		// other goroutine runs in its control group.
		runtime.LockOSThread()
		for call := range f.calls {
			call()
		}
	})
	return f
}

func (f *forkThread) do(fn func() error) error {
	done := make(chan error, 1)
	f.calls <- func() { done <- fn() }
	return <-done
}

// close ends the thread; do must not be called any more.
func (f *forkThread) close() {
	f.once.Do(func() { close(f.calls) })
	f.wg.Wait()
}
