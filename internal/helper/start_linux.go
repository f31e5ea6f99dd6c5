package helper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

// Process is a started helper. Its owner must call Wait, which reaps it.
type Process struct {
	cmd  *exec.Cmd
	mode Mode
	log  *tailBuffer

	once sync.Once
	err  error
}

// Options for Start.
type Options struct {
	Path    string   // of the helper program
	Log     *os.File // its standard output and error; nil: kept for error messages
	Request any      // sent as JSON
	Answer  any      // filled from the answer; may be nil
}

// Start starts a helper in its namespaces and waits for its answer. When it
// fails, nothing is left running.
func Start(ctx context.Context, mode Mode, o Options) (*Process, error) {
	req, err := json.Marshal(o.Request)
	if err != nil {
		return nil, fmt.Errorf("helper: %w", err)
	}
	ids, err := LookupIDs()
	if err != nil {
		return nil, err
	}
	answer, answerW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	defer answerW.Close()

	p := &Process{mode: mode}
	p.cmd = &exec.Cmd{
		Path:       o.Path,
		Args:       []string{string(mode), protocol},
		Env:        helperEnv(),
		Dir:        "/",
		ExtraFiles: []*os.File{answerW},
		SysProcAttr: &syscall.SysProcAttr{
			Setsid:     true,
			Pdeathsig:  deathSignal(mode),
			Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		},
	}
	// A file, not a pipe: nobody has to write it while the helper reads.
	if p.cmd.Stdin, err = memFile(req); err != nil {
		return nil, err
	}
	defer p.cmd.Stdin.(*os.File).Close()
	if o.Log != nil {
		p.cmd.Stdout, p.cmd.Stderr = o.Log, o.Log
	} else {
		p.log = &tailBuffer{}
		p.cmd.Stderr = p.log
	}
	var gate *os.File
	if ids.user {
		p.cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		if ids.ranges() {
			var gateR *os.File
			if gateR, gate, err = os.Pipe(); err != nil {
				return nil, err
			}
			defer gateR.Close()
			defer gate.Close()
			p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, gateR)
			p.cmd.Args = append([]string{string(userns)}, p.cmd.Args...)
		} else {
			p.cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
			p.cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
		}
	}
	if err := p.cmd.Start(); err != nil {
		return nil, startError(o.Path, err)
	}
	answerW.Close()
	if gate != nil {
		if err := ids.write(ctx, p.cmd.Process.Pid); err != nil {
			p.Kill()
			return nil, err
		}
		if _, err := gate.Write([]byte{1}); err != nil {
			p.Kill()
			return nil, fmt.Errorf("helper: %w", err)
		}
	}
	if err := readAnswer(ctx, answer, o.Answer); err != nil {
		p.Kill()
		if errors.Is(err, errNoAnswer) {
			err = p.died()
		}
		return nil, err
	}
	return p, nil
}

func startError(path string, err error) error {
	e := &box.Error{Kind: box.Internal, Op: "start helper", Object: path, Err: err}
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		// clone refused the namespaces.
		e.Kind, e.Hint = box.Unsupported, "hutch doctor tells what this machine lacks"
	case errors.Is(err, unix.ENOENT):
		e.Kind = box.Unsupported
	}
	return e
}

// died describes a helper that ended before it answered.
func (p *Process) died() error {
	msg := ""
	if p.log != nil {
		msg = strings.TrimSpace(p.log.String())
	}
	err := fmt.Errorf("%s: %s", p.mode, p.cmd.ProcessState)
	if msg != "" {
		err = fmt.Errorf("%w: %s", err, msg)
	}
	return &box.Error{Kind: box.Internal, Op: "helper", Err: err}
}

// Pid is the helper's process id, as this process counts.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Wait waits for the helper to end, and reaps it. It may be called several
// times and concurrently.
func (p *Process) Wait() error {
	p.once.Do(func() { p.err = p.cmd.Wait() })
	return p.err
}

// Kill ends the helper, with all that it started, and reaps it.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.Wait()
}

// helperEnv is all of the environment that helpers see: none of it reaches a
// box, and secrets of the calling program have no business in a keeper.
func helperEnv() []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, name := range []string{"HUTCH_DEBUG", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

func memFile(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("request", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("helper: %w", err)
	}
	f := os.NewFile(uintptr(fd), "request")
	if _, err := f.WriteAt(data, 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("helper: %w", err)
	}
	return f, nil
}

// tailBuffer keeps the last few KiB written to it.
type tailBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if over := t.buf.Len() - 8<<10; over > 0 {
		t.buf.Next(over)
	}
	return len(p), nil
}

func (t *tailBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

// SetUp finishes the namespaces of this helper process: mounts no longer
// spread, and /proc shows this process namespace.
func SetUp() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return &box.Error{Kind: box.Unsupported, Op: "helper", Err: fmt.Errorf("mount /proc: %w", err),
			Hint: "run Hutch where /proc is not masked, for example outside of a container or in a privileged one"}
	}
	return nil
}

// deathSignal ends a helper that only works for this process with it. A keeper
// outlives whoever started it.
func deathSignal(mode Mode) syscall.Signal {
	if mode == Keeper {
		return 0
	}
	return syscall.SIGKILL
}
