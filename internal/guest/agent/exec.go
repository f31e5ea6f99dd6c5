//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
)

const (
	// termGrace is what a command has between TERM and KILL when its timeout
	// passed.
	termGrace = 500 * time.Millisecond
	// drainLimit is how long output is waited for after the command has ended
	// while something else holds its pipe open.
	drainLimit = 2 * time.Second
	// killLimit is how long the death of a tree is waited for. SIGKILL works at
	// once but for processes that the kernel holds.
	killLimit = 5 * time.Second
)

// killRequest asks an exec's supervisor to end the tree.
type killRequest struct {
	reason hutchv1.ExitReason
	grace  time.Duration // between TERM and KILL
}

// exec is a command. Its supervisor goroutine (run) owns the process; all
// other methods only read, or ask the supervisor.
type exec struct {
	agent   *Agent
	id      string
	prog    program
	user    string
	tty     bool
	detach  bool
	timeout time.Duration
	rows    uint32
	cols    uint32

	log   *outputLog
	input *input // nil: standard input is /dev/null

	need    int           // streams that must follow before the start
	ready   chan struct{} // closed when they do
	kills   chan killRequest
	started chan struct{} // closed when the process runs or never will
	done    chan struct{} // closed at the very end, after the log was closed

	telling atomic.Int32 // streams that have not yet been told of the end

	mu      sync.Mutex
	streams int
	pid     int
	group   group
	pty     *os.File
	begun   time.Time
	ended   time.Time
	exited  *hutchv1.Exited // set when the process was waited for
	err     error           // the agent could not run it: then there is no exited
}

// follow counts a stream that follows the command from here on.
func (x *exec) follow() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.streams++
	if x.streams == x.need {
		close(x.ready)
	}
}

// kill asks for the end of the tree. The first request decides the reason; a
// later one only hastens.
func (x *exec) kill(reason hutchv1.ExitReason) {
	select {
	case x.kills <- killRequest{reason: reason}:
	default: // one waits already, and one is enough
	}
}

// run is the supervisor. It returns when the exec is done.
func (x *exec) run(ctx context.Context) {
	x.supervise(ctx)
	x.log.close()
	close(x.done)
	// Nobody waits for this. A group that still has processes is given up
	// later.
	if g, _, _ := x.live(); g != nil {
		g.remove()
	}
}

func (x *exec) supervise(ctx context.Context) {
	if !x.awaitStreams(ctx) {
		x.fail(&box.Error{Kind: box.Canceled, Op: "exec", Err: errors.New("the command was given up before it started")})
		return
	}
	c, pumps, err := x.start(ctx)
	if err != nil {
		var ns *notStarted
		if errors.As(err, &ns) {
			x.end(&hutchv1.Exited{Code: int32(ns.code), Reason: hutchv1.ExitReason_EXIT_REASON_START_FAILED, Message: ns.msg})
			close(x.started)
			return
		}
		x.fail(err)
		return
	}
	close(x.started)
	w, reason := x.wait(ctx, c)
	if w.err != nil {
		x.lose(w.err)
	} else {
		x.end(exitedMessage(w, reason))
	}
	x.drain(ctx, pumps)
}

// awaitStreams waits for as many streams as the start asked for.
func (x *exec) awaitStreams(ctx context.Context) bool {
	select {
	case <-x.ready:
		return true
	default:
	}
	select {
	case <-x.ready:
		return true
	case <-x.kills:
	case <-ctx.Done():
	}
	return false
}

// fail records that the agent could not run the command.
func (x *exec) fail(err error) {
	x.mu.Lock()
	x.err, x.ended = err, time.Now()
	x.mu.Unlock()
	x.input.close()
	close(x.started)
}

// lose records that the command ended in a way that nobody knows.
func (x *exec) lose(err error) {
	x.mu.Lock()
	x.err, x.ended = &box.Error{Kind: box.Internal, Op: "exec", Object: x.id, Err: fmt.Errorf("the status of process %d was lost: %w", x.pid, err)}, time.Now()
	x.mu.Unlock()
	x.input.close()
}

// end records the command's end.
func (x *exec) end(e *hutchv1.Exited) {
	e.Message = strings.ToValidUTF8(e.Message, "?") // it may quote a path
	x.mu.Lock()
	x.exited, x.ended = e, time.Now()
	x.mu.Unlock()
	x.input.close()
}

// start makes the pipes or the terminal and starts the process.
func (x *exec) start(ctx context.Context) (_ *child, _ []*pump, err error) {
	if err := checkDir(x.prog.dir); err != nil {
		return nil, nil, err
	}
	g, err := x.agent.tracker.newGroup()
	if err != nil {
		return nil, nil, &box.Error{Kind: box.Exhausted, Op: "exec", Err: fmt.Errorf("make a process group: %w", err)}
	}
	var theirs, ours []*os.File // closed after the start; on failure
	defer func() {
		closeAll(theirs)
		if err != nil {
			closeAll(ours)
			g.remove()
		}
	}()
	sys := &syscall.SysProcAttr{Setsid: true, Credential: x.prog.acc.credential()}
	var files []uintptr
	var pumps []*pump
	if x.tty {
		x.mu.Lock()
		rows, cols := x.rows, x.cols // Resize may come before the start
		x.mu.Unlock()
		master, replica, err := openPTY(rows, cols)
		if err != nil {
			return nil, nil, &box.Error{Kind: box.Exhausted, Op: "exec", Object: "terminal", Err: err}
		}
		theirs, ours = append(theirs, replica), append(ours, master)
		if x.prog.acc.uid != 0 {
			_ = replica.Chown(int(x.prog.acc.uid), -1) // so that the command can open it by name
		}
		fd := replica.Fd()
		files = []uintptr{fd, fd, fd}
		sys.Setctty = true
		pumps = append(pumps, newPump(master, hutchv1.Stream_STREAM_STDOUT, false))
		x.mu.Lock()
		x.pty = master
		x.mu.Unlock()
		x.input.connect(master, true)
	} else {
		stdin, err := x.input.open()
		if err != nil {
			return nil, nil, resourceError(err)
		}
		theirs = append(theirs, stdin)
		files = append(files, stdin.Fd())
		for _, stream := range []hutchv1.Stream{hutchv1.Stream_STREAM_STDOUT, hutchv1.Stream_STREAM_STDERR} {
			r, w, err := os.Pipe()
			if err != nil {
				return nil, nil, resourceError(err)
			}
			theirs, ours = append(theirs, w), append(ours, r)
			files = append(files, w.Fd())
			pumps = append(pumps, newPump(r, stream, true))
		}
	}
	c, err := x.agent.reaper.start(func() (int, error) {
		return g.start(sys, func() (int, error) { return x.prog.start(sys, files) })
	})
	if err != nil {
		return nil, nil, err
	}
	x.agent.protect(c.pid)
	x.mu.Lock()
	x.pid, x.group, x.begun = c.pid, g, time.Now()
	x.mu.Unlock()
	for _, p := range pumps {
		x.agent.pumps.add(p)
		x.agent.wg.Go(func() {
			defer x.agent.pumps.remove(p)
			p.run(x.log, ctx.Done())
		})
	}
	return c, pumps, nil
}

func resourceError(err error) error {
	return &box.Error{Kind: box.Exhausted, Op: "exec", Object: "pipe", Err: err, Hint: "end other commands in the box"}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// wait waits for the process, and kills the tree when it must. In that case it
// returns when the tree is gone.
func (x *exec) wait(ctx context.Context, c *child) (waitResult, hutchv1.ExitReason) {
	var timeout <-chan time.Time
	if x.timeout > 0 {
		t := time.NewTimer(x.timeout)
		defer t.Stop()
		timeout = t.C
	}
	req := killRequest{}
	select {
	case w := <-c.exit:
		if g, ok := x.group.(interface{ outOfMemory() bool }); ok && w.status.Signaled() && w.status.Signal() == syscall.SIGKILL && g.outOfMemory() {
			return w, hutchv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY
		}
		return w, hutchv1.ExitReason_EXIT_REASON_EXITED
	case <-timeout:
		req = killRequest{hutchv1.ExitReason_EXIT_REASON_TIMEOUT, termGrace}
	case req = <-x.kills:
	case <-ctx.Done():
		req.reason = hutchv1.ExitReason_EXIT_REASON_CANCELED
	}
	select {
	case w := <-c.exit: // it ended at the same moment, by itself
		if req.reason != hutchv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY {
			return w, hutchv1.ExitReason_EXIT_REASON_EXITED
		}
		return w, req.reason
	default:
	}
	// The tree must be killed even while the agent shuts down.
	kctx := context.WithoutCancel(ctx)
	if req.grace > 0 {
		signalGroup(x.group, c.pid, syscall.SIGTERM)
		signalGroup(x.group, c.pid, syscall.SIGCONT) // a stopped process takes no TERM
		hasten := make(chan struct{})
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			select {
			case <-x.kills:
				close(hasten)
			case <-ctx.Done():
				close(hasten)
			case <-stop:
			}
		})
		waitEmpty(kctx, x.group, req.grace, hasten)
		close(stop)
		wg.Wait()
	}
	c.kill() // before the others, for the reason that signalGroup gives
	killGroup(kctx, x.group, killLimit)
	select {
	case w := <-c.exit:
		return w, req.reason
	case <-time.After(killLimit):
		// The kernel holds it. Nothing was waited for, so nothing is known but
		// that it was killed.
		return waitResult{status: syscall.WaitStatus(syscall.SIGKILL)}, req.reason
	}
}

func exitedMessage(w waitResult, reason hutchv1.ExitReason) *hutchv1.Exited {
	e := &hutchv1.Exited{
		Reason:     reason,
		UserUsec:   uint64(w.usage.Utime.Nano() / 1000),
		SystemUsec: uint64(w.usage.Stime.Nano() / 1000),
	}
	if w.status.Signaled() {
		e.Signal = int32(w.status.Signal())
		e.Code = 128 + e.Signal
	} else {
		e.Code = int32(w.status.ExitStatus())
	}
	return e
}

// drain waits until the log has the command's output. What the command itself
// wrote always gets there. What others write that hold the pipe is taken for
// drainLimit at most, then read and dropped, so that they neither block nor
// die of it.
func (x *exec) drain(ctx context.Context, pumps []*pump) {
	for _, p := range pumps {
		p.must <- p.queued()
		p.setDeadline(time.Now().Add(drainLimit))
	}
	for _, p := range pumps {
		select {
		case <-p.done:
		case <-ctx.Done():
			return
		}
	}
}

// info describes the exec for List.
func (x *exec) info() *hutchv1.ProcessInfo {
	total, _ := x.log.size()
	x.mu.Lock()
	defer x.mu.Unlock()
	p := &hutchv1.ProcessInfo{
		Id:          x.id,
		Pid:         int32(x.pid),
		User:        x.user,
		Tty:         x.tty,
		Detached:    x.detach,
		Running:     x.ended.IsZero(),
		Exited:      x.exited,
		Started:     timestamp(x.begun),
		Ended:       timestamp(x.ended),
		OutputBytes: total,
	}
	for _, a := range x.prog.args {
		p.Args = append(p.Args, []byte(a))
	}
	return p
}

// live returns the group and first process of an exec that has been started,
// and whether that process is still there.
func (x *exec) live() (g group, pid int, running bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.group, x.pid, x.ended.IsZero() && x.pid != 0
}

// protect gives a new process the ordinary standing with the kernel's
// out-of-memory killer; it inherited the agent's.
func (a *Agent) protect(pid int) {
	if a.shielded {
		_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte("0"), 0)
	}
}
