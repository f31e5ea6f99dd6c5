//go:build unix

package hostdir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/workspace"
)

const (
	// reapTime bounds the wait for a command that was killed.
	reapTime = 2 * time.Second
	// drainTime bounds the wait for output that others hold open.
	drainTime = 2 * time.Second
)

// inherited are the variables that commands see of this program's own.
var inherited = []string{"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE"}

const defaultPath = "/usr/local/bin:/usr/bin:/bin"

func (d *Dir) environment(over map[string]string) map[string]string {
	env := map[string]string{"PATH": defaultPath}
	for _, name := range inherited {
		if v, ok := os.LookupEnv(name); ok {
			env[name] = v
		}
	}
	maps.Copy(env, d.env)
	maps.Copy(env, over)
	return env
}

// Run runs a command in a session of its own. When it has to end, it and every
// process of its group are killed; a process that made itself a session is not.
func (d *Dir) Run(ctx context.Context, cmd workspace.Command) (workspace.Result, error) {
	dir, err := d.WorkingDir(ctx)
	if err != nil {
		return workspace.Result{}, err
	}
	args := cmd.Args
	if cmd.Shell != "" {
		args = []string{"/bin/sh", "-c", cmd.Shell}
	}
	env := d.environment(cmd.Env)
	program, code := find(args[0], dir, env["PATH"])
	if code != 0 {
		return notStarted(cmd, code, args[0])
	}
	c := &exec.Cmd{Path: program, Args: args, Dir: dir, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		c.Env = append(c.Env, name+"="+env[name])
	}
	r := &running{cmd: c, stop: make(chan struct{})}
	r.out = workspace.NewCapture(cmd, sync.OnceFunc(func() { close(r.stop) }))
	if err := r.start(); err != nil {
		if gone := d.check("run"); gone != nil {
			return workspace.Result{}, gone
		}
		switch {
		case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR): // the interpreter of a script
			return notStarted(cmd, 127, args[0])
		case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.E2BIG), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.EPERM):
			return notStarted(cmd, 126, args[0])
		}
		return workspace.Result{}, fmt.Errorf("run: %w", err)
	}
	kind, cause := r.wait(ctx, cmd.Timeout)
	if gone := d.check("run"); gone != nil {
		return workspace.Result{}, r.out.Fail(workspace.ErrUnavailable, gone)
	}
	if kind != nil {
		return workspace.Result{}, r.out.Fail(kind, cause)
	}
	return r.out.Result(r.code)
}

// notStarted is the result for a program that is not there or cannot be run, as
// a shell gives it.
func notStarted(cmd workspace.Command, code int, name string) (workspace.Result, error) {
	what := "command not found"
	if code == 126 {
		what = "cannot be executed"
	}
	out := workspace.NewCapture(cmd, func() {})
	_, _ = fmt.Fprintf(out.Stderr(), "%s: %s\n", name, what)
	return out.Result(code)
}

// find looks a program up as a shell does, in the command's own PATH. A code
// other than zero is why it cannot be run.
func find(name, dir, path string) (program string, code int) {
	candidates := []string{name}
	searched := !strings.Contains(name, "/")
	if searched {
		candidates = nil
		for _, d := range strings.Split(path, ":") {
			candidates = append(candidates, filepath.Join(d, name))
		}
	}
	code = 127
	for _, p := range candidates {
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}
		info, err := os.Stat(p)
		switch {
		case errors.Is(err, os.ErrPermission) && !searched:
			code = 126
		case err != nil: // also a folder of the PATH that this user cannot enter
		case info.IsDir() || info.Mode()&0o111 == 0:
			code = 126
		default:
			return p, 0
		}
	}
	return "", code
}

// running is a command that was started.
type running struct {
	cmd  *exec.Cmd
	out  *workspace.Capture
	stop chan struct{} // closed when the capture wants no more

	pipes  []*os.File
	copies sync.WaitGroup
	code   int // valid after wait without an error
}

// start starts the command with pipes of its own: those of os/exec would make
// Wait depend on whoever holds them open.
func (r *running) start() (err error) {
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
		if err != nil {
			for _, f := range r.pipes {
				_ = f.Close()
			}
		}
	}()
	for range 2 {
		ours, other, err := os.Pipe()
		if err != nil {
			return err
		}
		r.pipes, theirs = append(r.pipes, ours), append(theirs, other)
	}
	r.cmd.Stdout, r.cmd.Stderr = theirs[0], theirs[1]
	if err := r.spawn(); err != nil {
		return err
	}
	for i, w := range []io.Writer{r.out.Stdout(), r.out.Stderr()} {
		r.copies.Go(func() {
			buf := make([]byte, 64<<10)
			_, _ = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r.pipes[i]}, buf)
		})
	}
	return nil
}

// spawn starts the process. A program that was written a moment ago is busy for
// as long as another process that is being started has it open.
func (r *running) spawn() error {
	for wait := time.Millisecond; ; wait *= 2 {
		err := r.cmd.Start()
		if !errors.Is(err, syscall.ETXTBSY) || wait > 200*time.Millisecond {
			return err
		}
		time.Sleep(wait)
		c := *r.cmd
		r.cmd = &exec.Cmd{Path: c.Path, Args: c.Args, Dir: c.Dir, Env: c.Env, Stdout: c.Stdout, Stderr: c.Stderr, SysProcAttr: c.SysProcAttr}
	}
}

// wait waits for the end, or brings it about. kind says why there is no exit
// status; nil when there is one.
func (r *running) wait(ctx context.Context, timeout time.Duration) (kind, cause error) {
	var waitErr error // once exited is closed
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		waitErr = r.cmd.Wait()
	}()

	var limit <-chan time.Time
	if timeout > 0 {
		t := time.NewTimer(timeout)
		defer t.Stop()
		limit = t.C
	}
	select {
	case <-exited:
		r.drain(drainTime)
		return r.status(waitErr)
	case <-ctx.Done():
		kind, cause = ctx.Err(), context.Cause(ctx)
	case <-limit:
		kind = workspace.ErrTimeout
	case <-r.stop:
		// The capture knows what was wrong.
		kind = workspace.ErrOutputLimit
	}
	if err := r.kill(); err != nil {
		cause = errors.Join(cause, err)
	}
	t := time.NewTimer(reapTime)
	defer t.Stop()
	select {
	case <-exited:
	case <-t.C:
		cause = errors.Join(cause, fmt.Errorf("process %d was killed and has not ended yet", r.cmd.Process.Pid))
	}
	r.drain(drainTime)
	return kind, cause
}

func (r *running) status(err error) (kind, cause error) {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return workspace.ErrWorkspace, err
	}
	ws, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		r.code = 128 + int(ws.Signal())
	} else {
		r.code = r.cmd.ProcessState.ExitCode()
	}
	return nil, nil
}

// kill kills the command's process group, or at least the command.
func (r *running) kill() error {
	pid := r.cmd.Process.Pid
	err := syscall.Kill(-pid, syscall.SIGKILL)
	if err == nil || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	_ = r.cmd.Process.Kill()
	return fmt.Errorf("only process %d itself could be killed, not those that it started: %w", pid, err)
}

// drain waits for the rest of the output, and gives up on what others hold
// open. A writer of the caller that blocks is not waited for longer than that.
func (r *running) drain(most time.Duration) {
	done := make(chan struct{})
	go func() {
		r.copies.Wait()
		close(done)
	}()
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
	for _, f := range r.pipes {
		_ = f.Close() // ends the reads
	}
	select {
	case <-done:
	case <-time.After(100 * time.Millisecond):
	}
}
