package boxfake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/environ"
)

// leftBehind is how long a command's streams stay open for what it left running
// in the background.
const leftBehind = 2 * time.Second

// exec is a command that was started in a box.
type exec struct {
	id      string
	spec    box.ProcessSpec
	account account
	m       *machineState
	log     *outputLog
	ctx     context.Context // of everything that belongs to the command
	cancel  context.CancelFunc
	done    chan struct{} // closed when the status is known and out
	started time.Time

	mu         sync.Mutex
	stdin      *os.File // what the command reads
	input      *os.File // the other end; nil when closed
	written    int64
	ended      time.Time
	status     *box.ExitStatus
	fate       *box.ExitStatus // what the first kill decided
	traps      map[syscall.Signal]string
	rows, cols int
	jobs       int        // of shells in the background, that run now
	inputMu    sync.Mutex // orders WriteInput
}

// osProcess is one running program of an exec.
type osProcess struct {
	pid, parent int
	exec        *exec
	args        []string
	started     time.Time
	kill        func(sig syscall.Signal)
}

func (m *machineState) newExec(spec box.ProcessSpec) (*exec, error) {
	a, err := lookup(spec.User)
	if err != nil {
		return nil, err
	}
	e := &exec{
		spec: spec, account: a, m: m, id: spec.ID, log: newLog(), done: make(chan struct{}),
		traps: make(map[syscall.Signal]string), rows: spec.Rows, cols: spec.Cols,
	}
	if e.rows == 0 {
		e.rows = 24
	}
	if e.cols == 0 {
		e.cols = 80
	}
	// A pipe of the kernel: what a real command has, and what the shell's
	// interpreter wants.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, &box.Error{Kind: box.Exhausted, Op: "exec", Err: err}
	}
	e.stdin, e.input = r, w
	if !spec.Stdin {
		_ = w.Close()
		e.input = nil
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e, nil
}

// run is the life of the command. The machine's WaitGroup waits for it.
func (e *exec) run() {
	defer close(e.done)
	var timer *time.Timer
	if e.spec.Timeout > 0 {
		timer = time.AfterFunc(e.spec.Timeout, func() {
			e.end(box.ExitStatus{Code: 137, Signal: syscall.SIGKILL, Reason: box.TimedOut})
		})
	}
	stopReading := context.AfterFunc(e.ctx, func() {
		e.log.stop()
		_ = e.stdin.SetReadDeadline(time.Now())
	})

	status := e.main()

	if timer != nil {
		timer.Stop()
	}
	// What it left in the background keeps the streams open for a while.
	left := e.m.awaitOthers(e, leftBehind)
	e.mu.Lock()
	if e.fate != nil {
		status = *e.fate
	}
	e.status, e.ended = &status, time.Now()
	if e.input != nil {
		_ = e.input.Close()
		e.input = nil
	}
	e.mu.Unlock()
	stopReading()
	if !left {
		e.cancel()
		_ = e.stdin.Close()
	}
	e.m.ended(e, status)
	e.log.end(&status, nil)
}

// main finds and runs the program.
func (e *exec) main() box.ExitStatus {
	dir := e.spec.Dir
	if dir == "" {
		dir = e.m.dir()
	} else if dir[0] != '/' {
		dir = strings.TrimSuffix(e.m.dir(), "/") + "/" + dir
	}
	if info, err := e.m.fs.stat(dir, true); err != nil || !info.IsDir() {
		if err == nil {
			err = syscall.ENOTDIR
		}
		return notStarted(126, "cannot enter "+dir, err)
	}
	env := e.environment()
	p := &proc{
		exec: e, ctx: e.ctx, args: e.spec.Args, env: env, dir: dir,
		in: e.stdin, out: e.writer(false), err: e.writer(true),
	}
	run, code, err := e.m.resolve(p)
	if err != nil {
		return notStarted(code, p.args[0], err)
	}
	code = e.m.process(p, run)
	return box.ExitStatus{Code: code, Reason: box.Exited}
}

func notStarted(code int, what string, err error) box.ExitStatus {
	var p *os.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return box.ExitStatus{Code: code, Reason: box.NotStarted, Message: fmt.Sprintf("%s: %v", what, err)}
}

func (e *exec) environment() []string {
	if e.spec.ClearEnv {
		return environ.Merge(e.spec.Env)
	}
	home := "/root"
	if e.account.uid != 0 {
		home = "/home/" + e.account.name
	}
	base := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home, "HOSTNAME=" + e.m.hostname()}
	if e.spec.TTY {
		base = append(base, "TERM=xterm")
	}
	return environ.Merge(base, e.m.image.Config.Env, e.m.spec.Env, e.spec.Env)
}

type execWriter struct {
	e      *exec
	stderr bool
}

func (e *exec) writer(stderr bool) io.Writer { return &execWriter{e, stderr && !e.spec.TTY} }

func (w *execWriter) Write(p []byte) (int, error) {
	if w.e.ctx.Err() != nil {
		return 0, syscall.EPIPE
	}
	out := p
	if w.e.spec.TTY {
		out = []byte(strings.ReplaceAll(string(p), "\n", "\r\n"))
	}
	w.e.log.write(w.stderr, out)
	if w.e.id == box.MainProcess {
		w.e.m.appendLog(w.stderr, out)
	}
	return len(p), nil
}

// end kills the whole tree; the first call decides the status.
func (e *exec) end(status box.ExitStatus) {
	e.mu.Lock()
	if e.status == nil && e.fate == nil {
		e.fate = &status
	}
	e.mu.Unlock()
	e.cancel()
}

func (e *exec) countJobs(by int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.jobs += by
}

// abandon is the end of the stream that owns the command.
func (e *exec) abandon() {
	e.mu.Lock()
	ended := e.status != nil
	e.mu.Unlock()
	if !ended {
		e.end(box.ExitStatus{Code: 137, Signal: syscall.SIGKILL, Reason: box.Killed})
	}
}

var ignoredSignals = []syscall.Signal{syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGWINCH, syscall.SIGURG, syscall.SIGSTOP, syscall.SIGTSTP}

// signal is what the kernel does with a signal to the process group, or tree.
func (e *exec) signal(sig syscall.Signal) error {
	e.mu.Lock()
	ended := e.status != nil
	action, trapped := e.traps[sig]
	e.mu.Unlock()
	switch {
	case ended && sig == syscall.SIGKILL:
		e.cancel() // what it left behind
		return nil
	case ended:
		return &box.Error{Kind: box.NotFound, Op: "signal", Object: e.id, Err: syscall.ESRCH}
	case sig == 0 || slices.Contains(ignoredSignals, sig):
		return nil
	case sig != syscall.SIGKILL && trapped && action == "":
		return nil
	case sig != syscall.SIGKILL && trapped:
		e.m.runTrap(e, action)
		return nil
	}
	e.end(box.ExitStatus{Code: 128 + int(sig), Signal: sig, Reason: box.Exited})
	return nil
}

// write is WriteInput.
func (e *exec) write(ctx context.Context, offset int64, data []byte, eof bool) error {
	e.inputMu.Lock()
	defer e.inputMu.Unlock()
	e.mu.Lock()
	w, at := e.input, e.written
	e.mu.Unlock()
	if offset >= 0 {
		if offset > at {
			return &box.Error{Kind: box.Invalid, Op: "exec input", Object: e.id, Err: errors.New("there is a gap before this input")}
		}
		data = data[min(at-offset, int64(len(data))):]
	}
	if w == nil {
		return &box.Error{Kind: box.Conflict, Op: "exec input", Object: e.id, Err: syscall.EPIPE}
	}
	if e.spec.TTY {
		data, eof = e.typed(data, eof)
	}
	if len(data) > 0 {
		stop := context.AfterFunc(ctx, func() { _ = w.SetWriteDeadline(time.Now()) })
		n, err := w.Write(data)
		if !stop() {
			_ = w.SetWriteDeadline(time.Time{})
		}
		e.mu.Lock()
		e.written += int64(n)
		e.mu.Unlock()
		if err != nil {
			return &box.Error{Kind: box.Conflict, Op: "exec input", Object: e.id, Err: syscall.EPIPE}
		}
	}
	if eof {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.input != nil {
			_ = e.input.Close()
			e.input = nil
		}
	}
	return nil
}

// typed is the little that there is of a terminal: Ctrl-C, Ctrl-D, and Enter.
func (e *exec) typed(data []byte, eof bool) ([]byte, bool) {
	var out []byte
	for _, c := range data {
		switch c {
		case 3:
			_ = e.signal(syscall.SIGINT)
		case 4:
			eof = true
		case '\r':
			out = append(out, '\n')
		default:
			out = append(out, c)
		}
	}
	return out, eof
}

func (e *exec) info(pid int) box.ProcessInfo {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.log.mu.Lock()
	defer e.log.mu.Unlock()
	return box.ProcessInfo{
		ID: e.id, Pid: pid, Args: slices.Clone(e.spec.Args), User: e.account.name, TTY: e.spec.TTY, Detached: e.spec.Detach,
		Running: e.status == nil, Exit: e.status, Started: e.started, Ended: e.ended, Output: e.log.total,
	}
}
