package client

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

// StartProcess starts a command and returns when it has started. The stream
// lives until ctx ends.
func (c *Client) StartProcess(ctx context.Context, spec box.ProcessSpec) (box.ProcessStream, error) {
	return c.startProcess(ctx, spec, 1)
}

// StartProcessFor is StartProcess for a command that starts only when this
// many streams follow it, the returned one included.
func (c *Client) StartProcessFor(ctx context.Context, spec box.ProcessSpec, readers int) (box.ProcessStream, error) {
	return c.startProcess(ctx, spec, readers)
}

func (c *Client) startProcess(ctx context.Context, spec box.ProcessSpec, readers int) (box.ProcessStream, error) {
	req := &hutchv1.StartRequest{
		Id: spec.ID, Args: byteSlices(spec.Args), Env: byteSlices(spec.Env), ClearEnv: spec.ClearEnv,
		Dir: []byte(spec.Dir), User: spec.User, Tty: spec.TTY, Rows: uint32(spec.Rows), Cols: uint32(spec.Cols),
		Stdin: spec.Stdin, Detach: spec.Detach, Readers: uint32(readers),
	}
	if spec.Timeout > 0 {
		req.Timeout = durationpb.New(spec.Timeout)
	}
	s, err := c.follow(ctx, "exec", spec.ID, func(ctx context.Context) (*connect.ServerStreamForClient[hutchv1.ProcessEvent], error) {
		return c.process.Start(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return nil, err // s in the interface would not be nil
	}
	return s, nil
}

// AttachProcess follows a command that another stream started.
func (c *Client) AttachProcess(ctx context.Context, id string, opts box.AttachOptions) (box.ProcessStream, error) {
	req := &hutchv1.AttachRequest{Id: id, Offset: uint64(max(0, opts.Offset)), NoFollow: opts.NoFollow}
	s, err := c.follow(ctx, "attach", id, func(ctx context.Context) (*connect.ServerStreamForClient[hutchv1.ProcessEvent], error) {
		return c.process.Attach(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return nil, err
	}
	s.partial = opts.NoFollow
	return s, nil
}

func (c *Client) follow(ctx context.Context, op, id string, open func(context.Context) (*connect.ServerStreamForClient[hutchv1.ProcessEvent], error)) (*processStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := open(ctx)
	if err != nil {
		cancel()
		return nil, fail(ctx, op, id, err)
	}
	s := &processStream{ctx: ctx, cancel: cancel, stream: stream, op: op, id: id}
	// The first event says that the command stands, or why not.
	if !stream.Receive() {
		err := s.broken()
		_ = s.Close()
		return nil, err
	}
	if started := stream.Msg().GetStarted(); started != nil {
		s.id = started.GetId()
	} else {
		s.first = stream.Msg()
	}
	return s, nil
}

// processStream is a box.ProcessStream over a server stream.
type processStream struct {
	ctx    context.Context
	cancel context.CancelFunc
	stream *connect.ServerStreamForClient[hutchv1.ProcessEvent]
	op, id string

	// For Recv only.
	first   *hutchv1.ProcessEvent // read ahead
	partial bool                  // may end without a status
	ended   bool

	closed atomic.Bool
}

func (s *processStream) ID() string { return s.id }

// Recv returns the next event. A stream that is cut is an error, never io.EOF.
func (s *processStream) Recv() (box.ProcessEvent, error) {
	for {
		if s.ended {
			return box.ProcessEvent{}, io.EOF
		}
		msg := s.first
		s.first = nil
		if msg == nil {
			if !s.stream.Receive() {
				if s.partial && s.stream.Err() == nil {
					s.ended = true
					continue
				}
				return box.ProcessEvent{}, s.broken()
			}
			msg = s.stream.Msg()
		}
		switch e := msg.GetEvent().(type) {
		case *hutchv1.ProcessEvent_Output:
			if len(e.Output.GetData()) == 0 {
				continue
			}
			return box.ProcessEvent{Stderr: e.Output.GetStream() == hutchv1.Stream_STREAM_STDERR, Data: e.Output.GetData()}, nil
		case *hutchv1.ProcessEvent_Skipped:
			return box.ProcessEvent{Skipped: int64(e.Skipped.GetBytes())}, nil
		case *hutchv1.ProcessEvent_Exited:
			s.ended = true
			status := wire.ExitStatus(e.Exited)
			return box.ProcessEvent{Exit: &status}, nil
		}
		// Started, or an event that a newer agent knows: not for us.
	}
}

func (s *processStream) broken() error {
	if err := s.stream.Err(); err != nil {
		return fail(s.ctx, s.op, s.id, err)
	}
	return cut(s.op, s.id, "the stream ended before the command did")
}

// Close cuts the stream; the agent then kills a command that it owns.
func (s *processStream) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.cancel()
	return nil
}

// WriteInput writes to a command's input. A negative offset means its end,
// wherever that is when the data arrives.
func (c *Client) WriteInput(ctx context.Context, id string, offset int64, data []byte, eof bool) error {
	for {
		part := data[:min(len(data), 4*chunk)]
		data = data[len(part):]
		_, err := c.process.WriteInput(ctx, connect.NewRequest(&hutchv1.WriteInputRequest{
			Id: id, Data: part, Offset: uint64(max(0, offset)), Append: offset < 0, Eof: eof && len(data) == 0,
		}))
		if err != nil {
			return fail(ctx, "exec input", id, err)
		}
		if offset >= 0 {
			offset += int64(len(part))
		}
		if len(data) == 0 {
			return nil
		}
	}
}

// SignalProcess sends a signal to a command's process group, or to its tree.
func (c *Client) SignalProcess(ctx context.Context, id string, sig int, tree bool) error {
	_, err := c.process.Signal(ctx, connect.NewRequest(&hutchv1.SignalRequest{Id: id, Signal: int32(sig), Tree: tree}))
	return fail(ctx, "signal", id, err)
}

// ResizeProcess changes the size of a command's terminal.
func (c *Client) ResizeProcess(ctx context.Context, id string, rows, cols int) error {
	_, err := c.process.Resize(ctx, connect.NewRequest(&hutchv1.ResizeRequest{Id: id, Rows: uint32(rows), Cols: uint32(cols)}))
	return fail(ctx, "resize", id, err)
}

// Processes lists the commands that the agent knows.
func (c *Client) Processes(ctx context.Context) ([]box.ProcessInfo, error) {
	resp, err := c.process.List(ctx, connect.NewRequest(&hutchv1.ListProcessesRequest{}))
	if err != nil {
		return nil, fail(ctx, "list commands", "", err)
	}
	infos := make([]box.ProcessInfo, 0, len(resp.Msg.GetProcesses()))
	for _, p := range resp.Msg.GetProcesses() {
		info := box.ProcessInfo{
			ID: p.GetId(), Pid: int(p.GetPid()), User: p.GetUser(), TTY: p.GetTty(), Detached: p.GetDetached(),
			Running: p.GetRunning(), Output: int64(p.GetOutputBytes()),
		}
		for _, a := range p.GetArgs() {
			info.Args = append(info.Args, string(a))
		}
		if p.GetExited() != nil {
			status := wire.ExitStatus(p.GetExited())
			info.Exit = &status
		}
		if p.GetStarted() != nil {
			info.Started = p.GetStarted().AsTime()
		}
		if p.GetEnded() != nil {
			info.Ended = p.GetEnded().AsTime()
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// Top lists every process in the box.
func (c *Client) Top(ctx context.Context) ([]box.OSProcess, error) {
	resp, err := c.system.Top(ctx, connect.NewRequest(&hutchv1.TopRequest{}))
	if err != nil {
		return nil, fail(ctx, "top", "", err)
	}
	ps := make([]box.OSProcess, 0, len(resp.Msg.GetProcesses()))
	for _, p := range resp.Msg.GetProcesses() {
		ps = append(ps, box.OSProcess{
			Pid: int(p.GetPid()), PPid: int(p.GetPpid()), User: p.GetUser(), State: p.GetState(),
			RSS: int64(p.GetRss()), CPU: time.Duration(p.GetCpuUsec()) * time.Microsecond,
			Command: string(p.GetCommand()), ExecID: p.GetExecId(),
		})
	}
	return ps, nil
}

func byteSlices(ss []string) [][]byte {
	bs := make([][]byte, len(ss))
	for i, s := range ss {
		bs[i] = []byte(s)
	}
	return bs
}
