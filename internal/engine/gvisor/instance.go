//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/container"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/x/cgroup"
	"github.com/hutch-sandbox/hutch/internal/x/console"
)

// instance implements engine.Instance.
type instance struct {
	id         string
	dial       func(ctx context.Context, port uint16) (net.Conn, error)
	port       uint16
	sandboxPid int
	goferPid   int
	memory     int64
	limits     box.Limits
	group      *cgroup.Group // nil without control groups
	disk       *disk
	console    *console.Log

	pressure chan struct{}
	done     chan struct{}
	watchers sync.WaitGroup
	stop     context.CancelFunc // ends the watchers

	mu     sync.Mutex // guards the fields below and c, which is not safe for concurrent use
	c      *container.Container
	paused bool
	killed bool
	freed  bool
	oom    bool
	exit   engine.Exit
}

func newInstance(c *container.Container, d *disk, con *console.Log, cfg engine.Config) *instance {
	return &instance{
		id: cfg.ID, dial: cfg.DialLink, port: cfg.AgentPort, memory: cfg.Limits.Memory,
		sandboxPid: c.SandboxPid(), goferPid: c.GoferPid.Load(),
		c: c, disk: d, console: con,
		pressure: make(chan struct{}, 1),
		done:     make(chan struct{}),
		stop:     func() {},
	}
}

// watch starts the goroutines that follow the machine's life.
func (i *instance) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	i.stop = cancel
	i.watchers.Go(i.waitSandbox)
	if i.memory > 0 {
		i.watchers.Go(func() { i.watchMemory(ctx) })
	}
}

// waitEnd waits until a child process has ended. Its status is left for
// gVisor's own wait.
func waitEnd(pid int) {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// guardGofer has the machine end with its file server, from now on, also when
// it has not started yet. gVisor notices that end, too, but only ends the
// programs in the machine, which may hang in calls to the server that is gone,
// as a start of the machine does.
func (i *instance) guardGofer() {
	i.watchers.Go(func() {
		waitEnd(i.goferPid)
		// A sandbox that has ended first is not reaped before the watchers are
		// gone, so that this is its process or nobody's.
		_ = unix.Kill(i.sandboxPid, unix.SIGKILL)
	})
}

// abandon ends the processes of a machine that did not start.
func (i *instance) abandon() {
	_ = unix.Kill(i.sandboxPid, unix.SIGKILL)
	_ = unix.Kill(i.goferPid, unix.SIGKILL)
	i.watchers.Wait()
}

// waitSandbox waits for the sandbox process itself: its end is the machine's
// end, whatever the reason.
func (i *instance) waitSandbox() {
	waitEnd(i.sandboxPid)
	i.console.Wait() // what was said last says most
	i.mu.Lock()
	defer i.mu.Unlock()
	i.exit = engine.Exit{Killed: i.killed, OutOfMemory: i.oom || (!i.killed && i.group != nil && i.group.OOMKills() > 0)}
	switch {
	case i.exit.OutOfMemory:
		i.exit.Detail = "the box used up its memory"
	case i.killed:
		i.exit.Detail = "killed"
	default:
		i.exit.Detail = "the engine ended"
	}
	i.stop()
	close(i.done)
}

// watchMemory compares what the machine uses with its limit, the more often
// the nearer it is.
func (i *instance) watchMemory(ctx context.Context) {
	const fastest = 4 << 30 // bytes a second that a program may at most take
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		used, err := i.memoryUsed()
		if err != nil {
			timer.Reset(500 * time.Millisecond)
			continue
		}
		if used >= i.memory {
			select {
			case i.pressure <- struct{}{}:
			default:
			}
		}
		if i.group == nil && used >= i.memory+headroom {
			// Nothing else holds the limit.
			i.mu.Lock()
			i.oom = true
			i.mu.Unlock()
			_ = unix.Kill(i.sandboxPid, unix.SIGKILL)
			return
		}
		left := max(i.memory-used, 0)
		wait := time.Duration(float64(left) / fastest * float64(time.Second))
		timer.Reset(min(max(wait, 20*time.Millisecond), 500*time.Millisecond))
	}
}

// memoryUsed is the memory of the machine on the host.
func (i *instance) memoryUsed() (int64, error) {
	if i.group != nil {
		if n, err := i.group.Memory(); err == nil {
			return n, nil
		}
	}
	return processMemory(i.sandboxPid)
}

// processMemory adds up the sandbox's private memory and the file that holds
// the box's memory.
func processMemory(pid int) (int64, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	var sum int64
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			sum += kb << 10
		}
	}
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return 0, err
	}
	for _, fd := range fds {
		path := filepath.Join(dir, "fd", fd.Name())
		target, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(target, "/memfd:runsc-memory") {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil {
			sum += st.Blocks * 512
		}
		break
	}
	return sum, nil
}

// DialGuest connects to the agent over the link.
func (i *instance) DialGuest(ctx context.Context) (net.Conn, error) { return i.dial(ctx, i.port) }

// Limits returns what is enforced.
func (i *instance) Limits() box.Limits { return i.limits }

// MemoryPressure receives while the machine is at its limit.
func (i *instance) MemoryPressure() <-chan struct{} { return i.pressure }

// Done is closed when the sandbox has ended.
func (i *instance) Done() <-chan struct{} { return i.done }

// Exit says how it ended.
func (i *instance) Exit() engine.Exit {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.exit
}

// Stats reads the control group where there is one.
func (i *instance) Stats(context.Context) (engine.Stats, error) {
	s := engine.Stats{Disk: i.disk.usage(), Processes: -1}
	var err error
	if s.Memory, err = i.memoryUsed(); err != nil {
		return s, fmt.Errorf("box statistics: %w", err)
	}
	if i.group != nil {
		s.CPU, _ = i.group.CPU()
		if n, err := i.group.Processes(); err == nil {
			s.Processes = n
		}
	}
	return s, nil
}

// Pause freezes the machine.
func (i *instance) Pause(context.Context) error { return i.setPaused(true) }

// Resume thaws it.
func (i *instance) Resume(context.Context) error { return i.setPaused(false) }

func (i *instance) setPaused(paused bool) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.paused == paused {
		return nil
	}
	var err error
	if paused {
		err = i.c.Pause()
	} else {
		err = i.c.Resume()
	}
	if err != nil {
		return fmt.Errorf("gvisor: %w", err)
	}
	i.paused = paused
	return nil
}

// Capture is not supported.
func (i *instance) Capture(context.Context, string) error {
	return fmt.Errorf("gvisor: capture: %w", errors.ErrUnsupported)
}

// Kill ends both processes and frees the mounts and the group.
func (i *instance) Kill(ctx context.Context) error {
	i.mu.Lock()
	select {
	case <-i.done:
	default:
		i.killed = true
		_ = unix.Kill(i.sandboxPid, unix.SIGKILL)
	}
	i.mu.Unlock()
	select {
	case <-i.done:
	case <-ctx.Done():
		return fmt.Errorf("gvisor: kill: %w", ctx.Err())
	}
	i.stop()
	i.mu.Lock()
	if !i.freed {
		// It would end by itself, but nobody needs to wait for that.
		_ = unix.Kill(i.goferPid, unix.SIGKILL)
	}
	i.mu.Unlock()
	i.watchers.Wait()

	i.mu.Lock()
	defer i.mu.Unlock()
	if i.freed {
		return nil
	}
	err := i.c.Destroy()
	if i.group != nil {
		err = errors.Join(err, i.group.Remove(ctx))
	}
	err = errors.Join(err, i.disk.close())
	if err != nil {
		return fmt.Errorf("gvisor: clean up: %w", err)
	}
	i.freed = true
	return nil
}

// closeGroup removes the group of an instance that was never started.
func (i *instance) closeGroup() {
	if i.group == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = i.group.Remove(ctx)
}
