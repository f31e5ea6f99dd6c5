//go:build linux || darwin

package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/vmboot"
)

// instance implements engine.Instance.
type instance struct {
	m        *machine
	p        *vmProcess
	vols     *volumes
	disk     *os.File
	diskSize int64
	dial     func(ctx context.Context, port uint16) (net.Conn, error)
	port     uint16
	want     engine.Limits
	limits   box.Limits
	group    group
	started  time.Time

	done     chan struct{}
	watchers sync.WaitGroup
	stop     context.CancelFunc // ends the watchers
	noSpace  chan struct{}      // holds one word that the machine waits for space on the host

	turn chan struct{} // holds a token; who has it may stop, start or capture the machine

	mu     sync.Mutex // guards the fields below
	paused bool
	ending string // the reason that QEMU gave for its end
	killed bool
	freed  bool
	exit   engine.Exit
}

func newInstance(cfg *engine.Config, m *machine, p *vmProcess, vols *volumes, disk *os.File, diskSize int64) *instance {
	i := &instance{
		m: m, p: p, vols: vols, disk: disk, diskSize: diskSize, dial: cfg.DialLink, port: cfg.AgentPort, want: cfg.Limits,
		done: make(chan struct{}), turn: make(chan struct{}, 1), noSpace: make(chan struct{}, 1), stop: func() {}, started: time.Now(),
	}
	i.turn <- struct{}{}
	i.limits = box.Limits{
		Memory: box.Limit{Value: float64(cfg.Limits.Memory), By: "the machine's memory"},
		Disk:   box.Limit{Value: float64(cfg.Limits.Disk), By: "the machine's disk"},
		Pids:   box.Limit{Value: float64(cfg.Limits.Pids), By: "the box's kernel"},
		CPUs:   box.Limit{Value: cfg.Limits.CPUs, By: "the machine's CPUs"},
	}
	if float64(m.hw.cpus) != cfg.Limits.CPUs {
		i.limits.CPUs.Note = fmt.Sprintf("rounded up to %d", m.hw.cpus)
	}
	for _, l := range []*box.Limit{&i.limits.Memory, &i.limits.Disk, &i.limits.Pids, &i.limits.CPUs} {
		if l.Value == 0 {
			*l = box.Limit{}
		}
	}
	return i
}

// watch starts the goroutines that follow the machine's life.
func (i *instance) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	i.stop = cancel
	i.watchers.Go(i.events)
	i.watchers.Go(func() { i.awaitSpace(ctx) })
	i.watchers.Go(i.awaitEnd)
}

// awaitEnd waits for QEMU itself: its end is the machine's end.
func (i *instance) awaitEnd() {
	<-i.p.exited
	i.stop()
	// What was said last says most.
	_ = i.p.monitor.Close()
	i.p.console.Wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.exit = engine.Exit{Killed: i.killed, OutOfMemory: !i.killed && i.group.oomKills() > 0}
	switch {
	case i.killed:
		i.exit.Detail = "killed"
	case i.exit.OutOfMemory:
		i.exit.Detail = "QEMU used more memory than the box may have"
	default:
		i.exit.Detail = describeEnd(i.ending, i.p.cmd.ProcessState.String(), i.p.console.End())
	}
	close(i.done)
}

// describeEnd says how a machine ended by itself: reason is QEMU's word for
// it, status that of its process, tail the end of its console.
func describeEnd(reason, status string, tail []byte) string {
	if n := bytes.LastIndex(tail, []byte("Kernel panic")); n >= 0 {
		line, _, _ := bytes.Cut(tail[n:], []byte("\n"))
		return "the box's kernel gave up: " + strings.TrimSpace(strings.ToValidUTF8(string(line), "?"))
	}
	switch reason {
	case "guest-shutdown":
		return "the machine was switched off from inside"
	case "guest-reset":
		return "the machine was restarted from inside"
	case "guest-panic":
		return "the box's kernel gave up"
	}
	return "the engine ended: " + status
}

// events takes what QEMU says by itself, until it ends the connection. However
// often it says something, that costs no more than the reading.
func (i *instance) events() {
	for ev := range i.p.monitor.Events() {
		switch ev.Name {
		case "SHUTDOWN":
			var data struct{ Reason string }
			if json.Unmarshal(ev.Data, &data) == nil {
				i.mu.Lock()
				i.ending = data.Reason
				i.mu.Unlock()
			}
		case "BLOCK_IO_ERROR":
			var data struct {
				Action  string
				NoSpace bool
			}
			if json.Unmarshal(ev.Data, &data) == nil && data.Action == "stop" {
				select {
				case i.noSpace <- struct{}{}:
					i.p.console.Note("paused: the host's disk is full; it goes on when there is space")
				default: // each write that fails says so
				}
			}
		}
	}
}

// spaceNeeded is how much must be free on the host before a machine that
// stopped for want of it goes on.
const spaceNeeded = 64 << 20

// awaitSpace lets the machine go on when it stopped and the host has space
// again. The write that failed is then done again: the box sees no error.
func (i *instance) awaitSpace(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.noSpace:
		}
		if !i.goOn(ctx) {
			return
		}
	}
}

// goOn waits until the host has space and lets the machine go on; false: it
// has ended.
func (i *instance) goOn(ctx context.Context) bool {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		var st unix.Statfs_t
		if unix.Fstatfs(int(i.disk.Fd()), &st) == nil && int64(st.Bavail)*int64(st.Bsize) < spaceNeeded {
			continue
		}
		if err := i.inTurn(ctx, func() error {
			if i.isPaused() {
				return nil // Resume does it
			}
			return i.p.do(ctx, "cont", nil, nil)
		}); err == nil {
			return true
		}
	}
}

// inTurn calls f while nobody else stops or starts the machine.
func (i *instance) inTurn(ctx context.Context, f func() error) error {
	select {
	case <-i.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { i.turn <- struct{}{} }()
	return f()
}

func (i *instance) isPaused() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.paused
}

// DialGuest connects to the agent over the link.
func (i *instance) DialGuest(ctx context.Context) (net.Conn, error) { return i.dial(ctx, i.port) }

// Limits returns what is enforced.
func (i *instance) Limits() box.Limits { return i.limits }

// MemoryPressure returns nil: the machine's own kernel holds the limit, and
// chooses the victim.
func (i *instance) MemoryPressure() <-chan struct{} { return nil }

// Done is closed when QEMU has ended.
func (i *instance) Done() <-chan struct{} { return i.done }

// Exit says how it ended.
func (i *instance) Exit() engine.Exit {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.exit
}

// Pause stops the machine's CPUs.
func (i *instance) Pause(ctx context.Context) error { return i.setPaused(ctx, true) }

// Resume lets them go on, and sets the machine's clock, which stood still.
func (i *instance) Resume(ctx context.Context) error { return i.setPaused(ctx, false) }

func (i *instance) setPaused(ctx context.Context, paused bool) error {
	return i.inTurn(ctx, func() error {
		if i.isPaused() == paused {
			return nil
		}
		command := "cont"
		if paused {
			command = "stop"
		}
		if err := i.p.do(ctx, command, nil, nil); err != nil {
			return err
		}
		i.mu.Lock()
		i.paused = paused
		i.mu.Unlock()
		if paused {
			return nil
		}
		return i.p.setClock(ctx)
	})
}

// setClock gives the machine the host's time.
func (p *vmProcess) setClock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, controlTime)
	defer cancel()
	return p.tell(ctx, vmboot.Message{Clock: time.Now().UnixNano()})
}

// Capture writes the machine to dir.
func (i *instance) Capture(ctx context.Context, dir string) error {
	if !canCapture || i.vols.socket != nil {
		why := "on this system"
		if i.vols.socket != nil {
			why = "with volumes"
		}
		return fmt.Errorf("a virtual machine cannot be captured %s: %w", why, errors.ErrUnsupported)
	}
	return i.inTurn(ctx, func() error {
		// Nobody may be in the middle of a word to the machine: a copy of it
		// would wait for the rest.
		i.p.bootMu.Lock()
		defer i.p.bootMu.Unlock()
		if err := writeCapture(ctx, i.m, i.p, dir, source{disk: i.disk, paused: i.isPaused()}); err != nil {
			return fmt.Errorf("capture: %w", err)
		}
		return nil
	})
}

// Stats reads what the host knows of QEMU.
func (i *instance) Stats(context.Context) (engine.Stats, error) {
	s := engine.Stats{Disk: diskUsage(i.disk), Processes: -1}
	cpu, memory, threads, err := processUsage(i.p.cmd.Process.Pid)
	if err != nil {
		return s, fmt.Errorf("box statistics: %w", err)
	}
	s.CPU, s.Memory, s.Processes = cpu, memory, threads
	return s, nil
}

// Kill ends QEMU and frees what the machine held.
func (i *instance) Kill(ctx context.Context) error {
	i.mu.Lock()
	select {
	case <-i.done:
	default:
		i.killed = true
		_ = i.p.cmd.Process.Kill()
	}
	i.mu.Unlock()
	select {
	case <-i.done:
	case <-ctx.Done():
		return fmt.Errorf("vm: kill: %w", ctx.Err())
	}
	i.stop()
	i.watchers.Wait()

	i.mu.Lock()
	defer i.mu.Unlock()
	if i.freed {
		return nil
	}
	i.p.end()
	i.vols.end()
	err := i.group.remove(ctx)
	if cerr := i.disk.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("vm: clean up: %w", err)
	}
	i.freed = true
	return nil
}

// closeGroup removes the group of an instance that did not come about.
func (i *instance) closeGroup() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = i.group.remove(ctx)
}
