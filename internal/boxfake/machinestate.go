package boxfake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// maxLogEntries is how much of the main command's output is kept.
const maxLogEntries = 100_000

// machineState is a box. Its fields are guarded by the host's mutex.
type machineState struct {
	h        *host
	id       string
	seq      int
	spec     box.Spec
	image    *storedImage
	ref      string // the image as it was asked for
	mainArgs []string
	fs       *memFS

	name      string
	state     box.State
	reason    string
	created   time.Time
	startedAt time.Time
	stoppedAt time.Time
	exit      *box.ExitStatus
	restarts  int
	leases    int
	boot      int           // counts the boots
	stopped   chan struct{} // of the present boot; closed when it is over
	paused    chan struct{} // closed by resume; nil when not paused
	running   *sync.WaitGroup
	execs     map[string]*exec
	execSeq   int
	procs     map[int]*osProcess
	pids      int

	netlog    []box.NetRecord
	logs      []box.LogEntry
	partial   [2][]byte // of a line of stdout and stderr
	logChange chan struct{}
}

func (m *machineState) dir() string {
	switch {
	case m.spec.Dir != "":
		return m.spec.Dir
	case m.image.Config.Dir != "":
		return m.image.Config.Dir
	}
	return "/"
}

func (m *machineState) hostname() string {
	if m.spec.Hostname != "" {
		return m.spec.Hostname
	}
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	return m.name
}

func (m *machineState) infoLocked() box.Info {
	host := m.spec.Hostname
	if host == "" {
		host = m.name
	}
	memory, pids := m.spec.Memory, m.spec.Pids
	if memory == 0 {
		memory = box.DefaultMemory
	}
	if pids == 0 {
		pids = box.DefaultPids
	}
	const note = "in memory: nothing is enforced"
	info := box.Info{
		Ports: m.runningPortsLocked(),
		ID:    m.id, Name: m.name, State: m.state, Reason: m.reason, Image: m.ref, Digest: m.image.Digest,
		Engine: "gvisor", Isolation: box.IsolationKernel, Hostname: host,
		Limits: box.Limits{
			CPUs:   box.Limit{Value: m.spec.CPUs, Note: note},
			Memory: box.Limit{Value: float64(memory), Note: note},
			Disk:   box.Limit{Value: float64(m.spec.Disk), Note: note},
			Pids:   box.Limit{Value: float64(pids), Note: note},
		},
		CreatedAt: m.created, StartedAt: m.startedAt, StoppedAt: m.stoppedAt, Exit: m.exit, Restarts: m.restarts,
		Labels: maps.Clone(m.spec.Labels), Main: slices.Clone(m.mainArgs), Spec: m.spec,
	}
	if m.boot > 0 {
		info.Kernel = "fake"
	}
	if m.state == box.Running {
		info.Pid = 1
	}
	return info
}

// wake makes the box run and counts one more lease when lease says so. It
// reports whether it booted it.
func (m *machineState) wake(ctx context.Context, lease func()) (booted bool, err error) {
	for {
		m.h.mu.Lock()
		switch m.state {
		case box.Running:
			lease()
			m.h.mu.Unlock()
			return booted, nil
		case box.Removed:
			m.h.mu.Unlock()
			return false, notFound(m.id)
		case box.Stopping:
			stopped := m.stopped
			m.h.mu.Unlock()
			select {
			case <-stopped:
			case <-ctx.Done():
				return false, ctx.Err()
			}
			continue
		}
		if m.h.cfg.Fail != nil {
			if err := m.h.cfg.Fail("boot", m.id); err != nil {
				m.state, m.reason = box.Failed, err.Error()
				m.h.emit(m, "fail", map[string]string{"reason": m.reason})
				m.h.mu.Unlock()
				return false, err
			}
		}
		booted = true
		m.boot++
		m.state, m.reason, m.exit, m.restarts = box.Running, "", nil, 0
		m.startedAt, m.stoppedAt = time.Now(), time.Time{}
		m.stopped, m.running = make(chan struct{}), new(sync.WaitGroup)
		m.h.emit(m, "start", nil)
		m.h.mu.Unlock()
	}
}

// startMain starts the main command, and follows it with a complete stream when
// asked to.
func (m *machineState) startMain(follow *box.AttachOptions) (*stream, error) {
	if len(m.mainArgs) == 0 {
		return nil, nil
	}
	user := m.spec.User
	if user == "" {
		user = m.image.Config.User
	}
	return m.start(box.ProcessSpec{ID: box.MainProcess, Args: m.mainArgs, User: user, TTY: m.spec.TTY, Stdin: m.spec.Stdin, Detach: true}, follow)
}

// start starts a command. With follow nil, nobody listens yet.
func (m *machineState) start(spec box.ProcessSpec, follow *box.AttachOptions) (*stream, error) {
	if spec.User == "" {
		spec.User = m.spec.User
	}
	if spec.User == "" {
		spec.User = m.image.Config.User
	}
	e, err := m.newExec(spec)
	if err != nil {
		return nil, err
	}
	undo := func() {
		_ = e.stdin.Close()
		if e.input != nil {
			_ = e.input.Close()
		}
		e.cancel()
	}
	m.h.mu.Lock()
	if m.state != box.Running {
		m.h.mu.Unlock()
		undo()
		return nil, m.gone()
	}
	if e.id == "" {
		m.execSeq++
		e.id = fmt.Sprintf("exec%d", m.execSeq)
	}
	if old := m.execs[e.id]; old != nil && e.id != box.MainProcess {
		m.h.mu.Unlock()
		undo()
		return nil, &box.Error{Kind: box.Exists, Op: "exec", Object: e.id, Err: errors.New("a command has this id")}
	}
	e.started = time.Now()
	m.execs[e.id] = e
	var s *stream
	if follow != nil {
		var closed func()
		if !spec.Detach {
			closed = e.abandon
		}
		s = e.log.follow(e.id, *follow, true, closed)
	}
	m.running.Go(e.run)
	m.h.mu.Unlock()
	return s, nil
}

func (m *machineState) gone() error {
	return &box.Error{Kind: box.Unavailable, Op: "exec", Object: m.id, Err: errors.New("the box has stopped")}
}

// process runs a program as a process of the box.
func (m *machineState) process(p *proc, run func(*proc) int) int {
	ctx, cancel := context.WithCancel(p.ctx)
	p.ctx = ctx
	defer func() {
		// The background jobs of a shell outlive it, under its context, which
		// then ends with the command's.
		p.exec.mu.Lock()
		defer p.exec.mu.Unlock()
		if p.exec.jobs == 0 {
			cancel()
		}
	}()
	var by atomic.Int64
	m.h.mu.Lock()
	m.pids++
	p.pid = m.pids + 1
	parent := p.parent
	if parent == 0 {
		parent = 1
	}
	o := &osProcess{pid: p.pid, parent: parent, exec: p.exec, args: p.args, started: time.Now()}
	if p.parent == 0 {
		o.kill = func(sig syscall.Signal) { _ = p.exec.signal(sig) }
	} else {
		o.kill = func(sig syscall.Signal) {
			p.exec.mu.Lock()
			action, trapped := p.exec.traps[sig]
			p.exec.mu.Unlock()
			if sig != 0 && !slices.Contains(ignoredSignals, sig) && (sig == syscall.SIGKILL || !trapped || action != "") {
				by.Store(int64(sig))
				cancel()
			}
		}
	}
	m.procs[p.pid] = o
	m.h.mu.Unlock()
	defer func() {
		m.h.mu.Lock()
		defer m.h.mu.Unlock()
		delete(m.procs, p.pid)
	}()
	code := run(p)
	if sig := by.Load(); sig != 0 {
		return 128 + int(sig)
	}
	return code & 0xff
}

func (m *machineState) signalPid(pid int, sig syscall.Signal) error {
	m.h.mu.Lock()
	o := m.procs[pid]
	m.h.mu.Unlock()
	if o == nil {
		return syscall.ESRCH
	}
	o.kill(sig)
	return nil
}

func (m *machineState) othersOf(e *exec) int {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	n := 0
	for _, o := range m.procs {
		if o.exec == e {
			n++
		}
	}
	return n
}

// awaitOthers waits for what a command left behind, and reports whether there
// still is something.
func (m *machineState) awaitOthers(e *exec, most time.Duration) bool {
	left := func() bool {
		e.mu.Lock()
		jobs := e.jobs
		e.mu.Unlock()
		return e.ctx.Err() == nil && (jobs > 0 || m.othersOf(e) > 0)
	}
	deadline := time.Now().Add(most)
	for left() && time.Now().Before(deadline) {
		time.Sleep(2 * time.Millisecond)
	}
	return left()
}

func (m *machineState) top() []box.OSProcess {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	ps := []box.OSProcess{{Pid: 1, User: "root", State: "S", RSS: 1 << 20, Command: "init"}}
	for _, pid := range slices.Sorted(maps.Keys(m.procs)) {
		o := m.procs[pid]
		ps = append(ps, box.OSProcess{
			Pid: pid, PPid: o.parent, User: o.exec.account.name, State: "S", RSS: 1 << 20,
			Command: strings.Join(o.args, " "), ExecID: o.exec.id,
		})
	}
	return ps
}

// ended is told by a command that it has ended.
func (m *machineState) ended(e *exec, status box.ExitStatus) {
	if status.Reason == box.OutOfMemory {
		m.h.mu.Lock()
		m.h.emit(m, "oom", map[string]string{"exec": e.id})
		m.h.mu.Unlock()
	}
	if e.id != box.MainProcess {
		return
	}
	m.h.mu.Lock()
	for i := range m.partial {
		m.flushLog(i == 1)
	}
	boot := m.boot
	m.h.mu.Unlock()
	m.h.work.Go(func() {
		<-e.done
		m.mainEnded(e, status, boot)
	})
}

// mainEnded applies the restart policy.
func (m *machineState) mainEnded(e *exec, status box.ExitStatus, boot int) {
	m.h.mu.Lock()
	m.exit = &status
	m.h.emit(m, "exit", map[string]string{"code": fmt.Sprint(status.Code)})
	r := m.spec.Restart
	again := r.When == box.RestartAlways || r.When == box.RestartOnFailure && !status.Success() && (r.Max == 0 || m.restarts < r.Max)
	if m.state != box.Running || m.boot != boot || m.execs[box.MainProcess] != e {
		m.h.mu.Unlock()
		return
	}
	if !again {
		m.h.mu.Unlock()
		m.shutdown(false, -1, "the main command ended: "+status.String())
		return
	}
	stopped, delay := m.stopped, min(time.Second, 10*time.Millisecond<<min(m.restarts, 7))
	m.h.mu.Unlock()
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-stopped:
		return
	}
	m.h.mu.Lock()
	if m.state != box.Running || m.boot != boot {
		m.h.mu.Unlock()
		return
	}
	m.restarts++
	m.h.emit(m, "restart", nil)
	m.h.mu.Unlock()
	_, _ = m.startMain(nil)
}

// shutdown ends a running box and returns when it has stopped. With kill the
// streams are cut at once; a negative grace is the spec's.
func (m *machineState) shutdown(kill bool, grace time.Duration, reason string) {
	m.shutdownIf(nil, kill, grace, reason)
}

// shutdownIf is shutdown when, with the host's mutex held, a condition still
// holds.
func (m *machineState) shutdownIf(still func() bool, kill bool, grace time.Duration, reason string) {
	if grace < 0 {
		if grace = m.spec.StopTimeout; grace == 0 {
			grace = box.DefaultStopTimeout
		}
	}
	m.h.mu.Lock()
	if still != nil && !still() {
		m.h.mu.Unlock()
		return
	}
	switch m.state {
	case box.Stopping:
		stopped := m.stopped
		if !kill {
			m.h.mu.Unlock()
			<-stopped
			return
		}
		// A kill overtakes a stop that waits for its grace.
		m.killLocked()
		m.h.mu.Unlock()
		<-stopped
		return
	case box.Running:
	default:
		m.h.mu.Unlock()
		return
	}
	m.state = box.Stopping
	execs := slices.Collect(maps.Values(m.execs))
	running, stopped := m.running, m.stopped
	if m.paused != nil {
		close(m.paused)
		m.paused = nil
	}
	if kill {
		m.killLocked()
	}
	m.h.mu.Unlock()

	if !kill {
		for _, e := range execs {
			_ = e.signal(syscall.SIGTERM)
		}
		t := time.NewTimer(grace)
		for _, e := range execs {
			select {
			case <-e.done:
			case <-t.C:
				t.Reset(0)
			}
		}
		t.Stop()
		for _, e := range execs {
			e.end(box.ExitStatus{Code: 137, Signal: syscall.SIGKILL, Reason: box.Exited})
		}
	}
	running.Wait()
	for m.anyProcess() {
		time.Sleep(time.Millisecond) // children of the shell see their context
	}
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	if main := m.execs[box.MainProcess]; main != nil {
		main.mu.Lock()
		m.exit = main.status
		main.mu.Unlock()
	}
	m.state, m.reason, m.stoppedAt = box.Stopped, reason, time.Now()
	m.execs = make(map[string]*exec)
	m.h.emit(m, "stop", map[string]string{"reason": reason})
	m.notifyLogs()
	close(stopped)
	if m.spec.Ephemeral {
		m.removeLocked()
	}
}

func (m *machineState) killLocked() {
	for _, e := range m.execs {
		e.log.end(nil, m.gone())
		e.end(box.ExitStatus{Code: 137, Signal: syscall.SIGKILL, Reason: box.Exited})
	}
}

func (m *machineState) anyProcess() bool {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	return len(m.procs) > 0
}

func (m *machineState) removeLocked() {
	if m.state == box.Removed {
		return
	}
	m.state = box.Removed
	delete(m.h.boxes, m.id)
	m.h.emit(m, "remove", nil)
}

// appendLog records output of the main command, by lines.
func (m *machineState) appendLog(stderr bool, p []byte) {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	i := 0
	if stderr {
		i = 1
	}
	m.partial[i] = append(m.partial[i], p...)
	for {
		nl := bytes.IndexByte(m.partial[i], '\n')
		if nl < 0 {
			break
		}
		m.addEntry(stderr, m.partial[i][:nl+1])
		m.partial[i] = m.partial[i][nl+1:]
	}
	if len(m.partial[i]) > pieceMax {
		m.flushLog(stderr)
	}
	m.notifyLogs()
}

func (m *machineState) flushLog(stderr bool) {
	i := 0
	if stderr {
		i = 1
	}
	if len(m.partial[i]) > 0 {
		m.addEntry(stderr, m.partial[i])
		m.partial[i] = nil
	}
}

func (m *machineState) addEntry(stderr bool, line []byte) {
	m.logs = append(m.logs, box.LogEntry{Time: time.Now(), Stderr: stderr, Data: bytes.Clone(line)})
	if len(m.logs) > maxLogEntries {
		m.logs = slices.Clone(m.logs[maxLogEntries/10:])
	}
}

func (m *machineState) notifyLogs() {
	close(m.logChange)
	m.logChange = make(chan struct{})
}
