package keeper

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/api/hutchv1/hutchv1connect"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

// server is the keeper's socket.
type server struct {
	http     *http.Server
	listener net.Listener
	served   sync.WaitGroup
}

// serve opens the socket. The folder's mode keeps other users out; whoever can
// reach the socket owns the box.
func (k *keeper) serve() error {
	l, err := k.b.Listen()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	path, handler := hutchv1connect.NewBoxHandler(&boxService{k: k})
	mux.Handle(path, handler)
	proxy := k.newProxy()
	for _, name := range []string{
		hutchv1connect.ProcessName, hutchv1connect.FilesName,
		hutchv1connect.TunnelName, hutchv1connect.SystemName,
	} {
		mux.Handle("/"+name+"/", proxy)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP1(true)
	k.srv = &server{listener: l, http: &http.Server{
		Handler:           mux,
		Protocols:         &protocols,
		ReadHeaderTimeout: 30 * time.Second,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:      10_000,
			MaxReadFrameSize:          1 << 20,
			MaxReceiveBufferPerStream: 4 << 20,
			// A bound here would let a few stalled uploads stop all others.
			MaxReceiveBufferPerConnection: 1 << 30,
		},
	}}
	k.srv.served.Go(func() { _ = k.srv.http.Serve(l) })
	return nil
}

// closeListener refuses new connections: whoever comes now waits for the end
// of this keeper and starts another.
func (s *server) closeListener() { _ = s.listener.Close() }

// close ends all calls.
func (s *server) close(ctx context.Context) {
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
	}
	s.served.Wait()
}

// leases counts who uses the box. That the box stops because nobody does is
// decided here, in the moment the last user goes: who comes later is refused,
// and boots the box anew.
type leases struct {
	mu     sync.Mutex
	n      int
	ever   bool
	closed bool         // nobody uses it, so that it stops
	ending *stopRequest // it stops when the last user goes, even if it outlives its users
	idle   *time.Timer
}

// firstLease is how long a box that just started waits for its first user.
const firstLease = 15 * time.Second

// start arms the timer that stops the box if nobody comes. One that outlives its
// users stops then only if it is to end anyway.
func (l *leases) start(outlives bool, expire func(stopRequest)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ever { // somebody was quicker
		return
	}
	l.idle = time.AfterFunc(firstLease, func() {
		l.mu.Lock()
		l.idle = nil // nobody is waited for any more
		r := l.ending
		if r == nil && !outlives {
			r = &stopRequest{reason: "nobody uses it"}
		}
		if l.n > 0 {
			r = nil
		}
		l.closed = l.closed || r != nil
		l.mu.Unlock()
		if r != nil {
			expire(*r)
		}
	})
}

// take reports whether there is a lease to be had.
func (l *leases) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.n++
	l.ever = true
	if l.idle != nil {
		l.idle.Stop()
	}
	return true
}

// drop gives a lease back. It returns why the box is to stop, which it is when
// that was the last one, unless it outlives its users; else nil.
func (l *leases) drop(outlives bool) *stopRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n--
	switch {
	case l.n > 0 || l.ending == nil && outlives:
		return nil
	case l.ending == nil:
		l.ending = &stopRequest{reason: "nobody uses it any more"}
	}
	l.closed = true
	return l.ending
}

// end says why the box is to stop once nobody uses it. It reports whether that
// is so already; whom start waits for has still to come.
func (l *leases) end(r stopRequest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ending = &r
	if l.n == 0 && (l.ever || l.idle == nil) {
		l.closed = true
	}
	return l.closed
}

// close refuses leases from now on, if there is none.
func (l *leases) close() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == 0 {
		l.closed = true
	}
	return l.closed
}

func (l *leases) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

func (l *leases) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.idle != nil {
		l.idle.Stop()
	}
}

// boxService is the Box service of hutch.v1.
type boxService struct{ k *keeper }

// Hold keeps a lease while the stream lasts, and announces the end.
func (s *boxService) Hold(ctx context.Context, req *connect.Request[hutchv1.HoldRequest], stream *connect.ServerStream[hutchv1.HoldEvent]) error {
	k := s.k
	if !req.Msg.GetObserve() {
		if !k.leases.take() {
			return wire.Encode(&box.Error{Kind: box.Unavailable, Op: "box", Object: k.b.ID(), Err: errors.New(wire.Stopping)})
		}
		defer func() {
			if r := k.leases.drop(k.outlives()); r != nil {
				k.requestStop(*r)
			}
		}()
	}
	if err := stream.Send(&hutchv1.HoldEvent{State: "running"}); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-k.settled:
	}
	ev := &hutchv1.HoldEvent{State: "stopped", Reason: k.final.Reason}
	if k.final.Exit != nil {
		ev.Exit = wire.ExitedMessage(*k.final.Exit)
	}
	return stream.Send(ev)
}

// Stop asks for the end and waits for it.
func (s *boxService) Stop(ctx context.Context, req *connect.Request[hutchv1.StopRequest]) (*connect.Response[hutchv1.StopResponse], error) {
	r := stopRequest{reason: "stopped", grace: time.Duration(req.Msg.GetGraceMsec()) * time.Millisecond, asked: true}
	if req.Msg.GetKill() {
		r = stopRequest{reason: "killed", kill: true, asked: true}
	}
	s.k.requestStop(r)
	select {
	case <-s.k.settled:
		return connect.NewResponse(&hutchv1.StopResponse{}), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// statsTime is how long the agent may take to say what it knows.
const statsTime = 5 * time.Second

// Stats joins what the engine and the agent know.
func (s *boxService) Stats(ctx context.Context, _ *connect.Request[hutchv1.BoxStatsRequest]) (*connect.Response[hutchv1.BoxStatsResponse], error) {
	host, err := s.k.m.inst.Stats(ctx)
	if err != nil {
		return nil, wire.Encode(s.k.goneError(err))
	}
	lim := s.k.m.inst.Limits()
	out := &hutchv1.BoxStatsResponse{
		CpuUsec:     uint64(host.CPU.Microseconds()),
		Memory:      uint64(max(host.Memory, 0)),
		MemoryLimit: uint64(lim.Memory.Value),
		DiskLimit:   uint64(lim.Disk.Value),
		UptimeUsec:  uint64(time.Since(s.k.started).Microseconds()),
		Leases:      uint32(s.k.leases.count()),
		Network:     networkStats(s.k.m.gateway.Stats()),
	}
	if !s.k.paused() {
		gctx, cancel := context.WithTimeout(ctx, statsTime)
		defer cancel()
		guest, err := s.k.m.agent.SystemStats(gctx)
		if err != nil && (ctx.Err() != nil || s.k.machineCtx.Err() != nil) {
			return nil, wire.Encode(err)
		}
		// A box whose agent does not answer is told of by what the host knows,
		// as one that is paused: nobody who looks at all boxes waits for it.
		out.Processes, out.Execs, out.Disk = guest.GetProcesses(), guest.GetExecs(), guest.GetDiskUsed()
	}
	if host.Disk >= 0 {
		out.Disk = uint64(host.Disk)
	}
	return connect.NewResponse(out), nil
}

// Pause freezes the box.
func (s *boxService) Pause(ctx context.Context, _ *connect.Request[hutchv1.PauseRequest]) (*connect.Response[hutchv1.PauseResponse], error) {
	return connect.NewResponse(&hutchv1.PauseResponse{}), wireError(s.k.setPaused(ctx, true))
}

// Resume thaws it.
func (s *boxService) Resume(ctx context.Context, _ *connect.Request[hutchv1.ResumeRequest]) (*connect.Response[hutchv1.ResumeResponse], error) {
	return connect.NewResponse(&hutchv1.ResumeResponse{}), wireError(s.k.setPaused(ctx, false))
}

func wireError(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, errors.ErrUnsupported) {
		err = &box.Error{Kind: box.Unsupported, Op: "pause", Err: err}
	}
	return wire.Encode(err)
}
