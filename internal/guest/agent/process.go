//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
	"github.com/hutch-sandbox/hutch/internal/x/environ"
)

var (
	errShutdown = errors.New(wire.Stopping)
	errKnownID  = errors.New("an exec of this id is known already")
	errTooMany  = errors.New("too many commands")
	errNoExec   = errors.New("no such exec in this box (ended execs are forgotten after a while)")
)

// validID reports whether id is 1 to 64 letters, digits, - or _.
func validID(id string) bool {
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '-' && c != '_' {
			return false
		}
	}
	return len(id) >= 1 && len(id) <= 64
}

// maxReaders bounds StartRequest.readers.
const maxReaders = 64

// processService implements hutch.v1.Process.
type processService struct{ a *Agent }

// Start runs a command and follows it.
func (s *processService) Start(ctx context.Context, req *connect.Request[hutchv1.StartRequest], stream *connect.ServerStream[hutchv1.ProcessEvent]) error {
	x, err := s.a.newExec(req.Msg)
	if err != nil {
		return err
	}
	x.telling.Add(1)
	defer x.telling.Add(-1)
	r, _, err := x.log.attach(0, false)
	if err != nil {
		return err
	}
	defer r.close()
	if err := s.a.execs.add(x); err != nil {
		x.input.close()
		return err
	}
	// However this stream ends: with it ends the command, unless it is detached.
	// The kill of a command that has ended does nothing.
	defer func() {
		select {
		case <-x.done:
			return
		default:
		}
		select {
		case <-x.started:
			if x.detach {
				return
			}
		default: // never started: nobody would
		}
		x.kill(hutchv1.ExitReason_EXIT_REASON_CANCELED)
	}()
	x.follow()
	if x.need > 1 {
		if err := stream.Send(startedEvent(x)); err != nil {
			return err
		}
	}
	select {
	case <-x.started:
	case <-ctx.Done():
		return ctx.Err()
	}
	if x.need <= 1 && x.exitError() == nil {
		if err := stream.Send(startedEvent(x)); err != nil {
			return err
		}
	}
	return s.follow(ctx, x, r, stream)
}

// Attach follows a command that runs or has ended.
func (s *processService) Attach(ctx context.Context, req *connect.Request[hutchv1.AttachRequest], stream *connect.ServerStream[hutchv1.ProcessEvent]) error {
	x, err := s.a.execs.get(req.Msg.GetId())
	if err != nil {
		return err
	}
	x.telling.Add(1)
	defer x.telling.Add(-1)
	r, skipped, err := x.log.attach(req.Msg.GetOffset(), req.Msg.GetNoFollow())
	if err != nil {
		return &box.Error{Kind: box.Invalid, Op: "attach", Object: x.id, Err: err}
	}
	defer r.close()
	if err := stream.Send(startedEvent(x)); err != nil {
		return err
	}
	// Counted only now: the command must not start before this stream follows.
	if !req.Msg.GetNoFollow() {
		x.follow()
	}
	if skipped > 0 {
		ev := &hutchv1.ProcessEvent{Event: &hutchv1.ProcessEvent_Skipped{Skipped: &hutchv1.Skipped{Bytes: skipped}}}
		if err := stream.Send(ev); err != nil {
			return err
		}
	}
	return s.follow(ctx, x, r, stream)
}

// follow sends output and, at the end, the exit.
func (s *processService) follow(ctx context.Context, x *exec, r *logReader, stream *connect.ServerStream[hutchv1.ProcessEvent]) error {
	buf := pumpBuffers.get()
	defer pumpBuffers.put(buf)
	out := &hutchv1.Output{}
	ev := &hutchv1.ProcessEvent{Event: &hutchv1.ProcessEvent_Output{Output: out}}
	for {
		n, which, offset, err := r.next(ctx, *buf)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		out.Stream, out.Data, out.Offset = which, (*buf)[:n], offset
		if err := stream.Send(ev); err != nil {
			return err
		}
	}
	if r.once {
		select {
		case <-x.done:
		default:
			return nil // it runs on
		}
	}
	select {
	case <-x.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := x.exitError(); err != nil {
		s.a.execs.forget(x)
		return err
	}
	x.mu.Lock()
	exited := x.exited
	x.mu.Unlock()
	return stream.Send(&hutchv1.ProcessEvent{Event: &hutchv1.ProcessEvent_Exited{Exited: exited}})
}

// exitError is why the agent could not run the command, or nil.
func (x *exec) exitError() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err
}

func startedEvent(x *exec) *hutchv1.ProcessEvent {
	x.mu.Lock()
	defer x.mu.Unlock()
	return &hutchv1.ProcessEvent{Event: &hutchv1.ProcessEvent_Started{
		Started: &hutchv1.Started{Id: x.id, Pid: int32(x.pid), Tty: x.tty},
	}}
}

// newExec checks a request whole and makes the exec, not yet known to anybody.
func (a *Agent) newExec(m *hutchv1.StartRequest) (*exec, error) {
	id := m.GetId()
	if id == "" {
		id = randomID()
	} else if !validID(id) {
		return nil, invalid("exec", "id", fmt.Sprintf("%q is not 1 to 64 letters, digits, - or _", id), "")
	}
	if len(m.GetArgs()) == 0 {
		return nil, invalid("exec", "args", "no command", "give a command to run")
	}
	args, err := checkStrings("args", m.GetArgs(), false)
	if err != nil {
		return nil, err
	}
	env, err := checkStrings("env", m.GetEnv(), true)
	if err != nil {
		return nil, err
	}
	if m.GetReaders() > maxReaders {
		return nil, invalid("exec", "readers", fmt.Sprintf("%d is more than %d", m.GetReaders(), maxReaders), "")
	}
	if m.GetRows() > 0xffff || m.GetCols() > 0xffff {
		return nil, invalid("exec", "rows, cols", "a terminal has at most 65535 of them", "")
	}
	timeout := m.GetTimeout().AsDuration()
	if m.GetTimeout() != nil && (timeout < 0 || m.GetTimeout().CheckValid() != nil) {
		return nil, invalid("exec", "timeout", "not a positive duration", "")
	}
	spec := m.GetUser()
	if spec == "" {
		spec = a.cfg.User
	}
	acc, err := a.accounts.lookup(spec)
	if err != nil {
		return nil, err
	}
	dir := a.cfg.Dir
	if d := string(m.GetDir()); d != "" {
		if strings.Contains(d, "\x00") {
			return nil, invalid("exec", "dir", "contains a zero byte", "")
		}
		dir = a.absolute(d)
	}
	var defaults, base []string
	if !m.GetClearEnv() {
		hostname, _ := os.Hostname()
		defaults, base = []string{"PATH=" + defaultPath, "HOSTNAME=" + hostname, "HOME=" + acc.home}, a.identity.Load().env
		if m.GetTty() {
			defaults = append(defaults, "TERM=xterm")
		}
	}
	full := environ.Merge(defaults, base, env)
	x := &exec{
		agent:   a,
		id:      id,
		prog:    program{args: args, env: full, dir: dir, acc: acc, path: lookupEnv(full, "PATH")},
		user:    spec,
		tty:     m.GetTty(),
		detach:  m.GetDetach(),
		timeout: timeout,
		rows:    m.GetRows(),
		cols:    m.GetCols(),
		log:     newOutputLog(),
		need:    max(1, int(m.GetReaders())),
		ready:   make(chan struct{}),
		kills:   make(chan killRequest, 1),
		started: make(chan struct{}),
		done:    make(chan struct{}),
	}
	if x.user == "" {
		x.user = "root"
	}
	if x.prog.path == "" {
		x.prog.path = defaultPath
	}
	if m.GetStdin() || m.GetTty() {
		if x.input, err = newInput(m.GetTty()); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// WriteInput appends to the command's standard input.
func (s *processService) WriteInput(ctx context.Context, req *connect.Request[hutchv1.WriteInputRequest]) (*connect.Response[hutchv1.WriteInputResponse], error) {
	x, err := s.a.execs.get(req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	at, err := x.input.put(ctx, x.id, req.Msg)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hutchv1.WriteInputResponse{Offset: at}), nil
}

// Signal sends a signal to the command's process group or its whole tree.
func (s *processService) Signal(_ context.Context, req *connect.Request[hutchv1.SignalRequest]) (*connect.Response[hutchv1.SignalResponse], error) {
	x, err := s.a.execs.get(req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	sig := syscall.Signal(req.Msg.GetSignal())
	if sig < 1 || sig > 64 {
		return nil, invalid("signal", x.id, fmt.Sprintf("%d is not a signal: want 1 to 64", sig), "")
	}
	g, pid, running := x.live()
	switch {
	case g == nil && x.pending():
		if sig != syscall.SIGKILL && sig != syscall.SIGTERM {
			return nil, &box.Error{Kind: box.Conflict, Op: "signal", Object: x.id, Err: errors.New("the command has not started")}
		}
		x.kill(hutchv1.ExitReason_EXIT_REASON_CANCELED)
	case req.Msg.GetTree() && running && sig == syscall.SIGKILL:
		x.kill(hutchv1.ExitReason_EXIT_REASON_CANCELED)
	case req.Msg.GetTree() && g != nil && sig == syscall.SIGKILL:
		g.kill()
	case req.Msg.GetTree() && g != nil:
		signalGroup(g, pid, sig)
	case !running:
		return nil, &box.Error{Kind: box.Conflict, Op: "signal", Object: x.id, Err: errors.New("the command has ended")}
	default:
		if err := x.signal(pid, sig); err != nil {
			return nil, &box.Error{Kind: box.Internal, Op: "signal", Object: x.id, Err: err}
		}
	}
	return connect.NewResponse(&hutchv1.SignalResponse{}), nil
}

// pending reports whether the command waits for streams to follow it.
func (x *exec) pending() bool {
	select {
	case <-x.started:
		return false
	default:
		return true
	}
}

// signal signals the process group that the command was started in, which is
// its own.
func (x *exec) signal(pid int, sig syscall.Signal) error {
	err := unix.Kill(-pid, sig)
	if err == unix.ESRCH { // it left its group: never mind
		err = unix.Kill(pid, sig)
	}
	if err == unix.ESRCH { // it ended just now
		err = nil
	}
	return err
}

// Resize sets the size of the command's terminal.
func (s *processService) Resize(_ context.Context, req *connect.Request[hutchv1.ResizeRequest]) (*connect.Response[hutchv1.ResizeResponse], error) {
	x, err := s.a.execs.get(req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	m := req.Msg
	if !x.tty {
		return nil, &box.Error{Kind: box.Conflict, Op: "resize", Object: x.id, Err: errors.New("the command has no terminal")}
	}
	if m.GetRows() == 0 || m.GetCols() == 0 || m.GetRows() > 0xffff || m.GetCols() > 0xffff {
		return nil, invalid("resize", x.id, "rows and columns must be 1 to 65535", "")
	}
	x.mu.Lock()
	pty := x.pty
	if pty == nil { // not started yet
		x.rows, x.cols = m.GetRows(), m.GetCols()
	}
	x.mu.Unlock()
	if pty != nil {
		raw, err := pty.SyscallConn()
		if err == nil {
			cerr := raw.Control(func(fd uintptr) { err = setSize(int(fd), m.GetRows(), m.GetCols()) })
			err = errors.Join(err, cerr)
		}
		if err != nil {
			return nil, &box.Error{Kind: box.Conflict, Op: "resize", Object: x.id, Err: errors.New("the command has ended")}
		}
	}
	return connect.NewResponse(&hutchv1.ResizeResponse{}), nil
}

// List returns the commands that the agent knows, oldest first.
func (s *processService) List(context.Context, *connect.Request[hutchv1.ListProcessesRequest]) (*connect.Response[hutchv1.ListProcessesResponse], error) {
	res := &hutchv1.ListProcessesResponse{}
	for x := range slices.Values(s.a.execs.list()) {
		if x.exitError() == nil {
			res.Processes = append(res.Processes, x.info())
		}
	}
	return connect.NewResponse(res), nil
}
