package client

import (
	"context"
	"io"
	"time"

	"connectrpc.com/connect"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

// Protocol is the version that this client speaks.
const Protocol = 1

// Hello waits until the box is ready and returns what its agent says.
func (c *Client) Hello(ctx context.Context) (*hutchv1.HelloResponse, error) {
	resp, err := c.system.Hello(ctx, connect.NewRequest(&hutchv1.HelloRequest{Protocol: Protocol}))
	if err != nil {
		return nil, fail(ctx, "hello", "", err)
	}
	return resp.Msg, nil
}

// Identify gives the machine a host name.
func (c *Client) Identify(ctx context.Context, hostname string) error {
	_, err := c.system.Identify(ctx, connect.NewRequest(&hutchv1.IdentifyRequest{Hostname: hostname}))
	return fail(ctx, "identify", hostname, err)
}

// SystemStats asks the agent for the box's own view of what it uses.
func (c *Client) SystemStats(ctx context.Context) (*hutchv1.SystemStatsResponse, error) {
	resp, err := c.system.Stats(ctx, connect.NewRequest(&hutchv1.SystemStatsRequest{}))
	if err != nil {
		return nil, fail(ctx, "stats", "", err)
	}
	return resp.Msg, nil
}

// Shutdown makes the agent end every command and sync the file systems.
func (c *Client) Shutdown(ctx context.Context, grace time.Duration) error {
	_, err := c.system.Shutdown(ctx, connect.NewRequest(&hutchv1.ShutdownRequest{GraceMsec: msec(grace)}))
	return fail(ctx, "shutdown", "", err)
}

// Reclaim makes the agent kill the command that holds most memory.
func (c *Client) Reclaim(ctx context.Context) (*hutchv1.ReclaimResponse, error) {
	resp, err := c.system.Reclaim(ctx, connect.NewRequest(&hutchv1.ReclaimRequest{}))
	if err != nil {
		return nil, fail(ctx, "reclaim", "", err)
	}
	return resp.Msg, nil
}

// Hold is a lease on a box: while it is open, the box is in use.
type Hold struct {
	ctx    context.Context
	cancel context.CancelFunc
	stream *connect.ServerStreamForClient[hutchv1.HoldEvent]
}

// Hold takes a lease and returns when the box runs. The lease lasts until Close
// or until ctx ends. With observe it is no lease: it only watches.
func (c *Client) Hold(ctx context.Context, observe bool) (*Hold, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.box.Hold(ctx, connect.NewRequest(&hutchv1.HoldRequest{Observe: observe}))
	if err != nil {
		cancel()
		return nil, fail(ctx, "hold", "", err)
	}
	h := &Hold{ctx: ctx, cancel: cancel, stream: stream}
	ev, err := h.next()
	if err == nil && ev.GetState() != "running" {
		err = &box.Error{Kind: box.Unavailable, Op: "hold", Err: &stopped{ev.GetReason()}}
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return h, nil
}

// Wait waits for the box's end and returns the reason that its keeper gives,
// and how its main command ended (nil without one). An error means that the
// end was not announced: the keeper died, or the lease was closed. Only one
// goroutine may wait.
func (h *Hold) Wait() (reason string, exit *box.ExitStatus, err error) {
	for {
		ev, err := h.next()
		if err != nil {
			return "", nil, err
		}
		if ev.GetState() != "stopped" {
			continue
		}
		if e := ev.GetExit(); e != nil {
			status := wire.ExitStatus(e)
			exit = &status
		}
		return ev.GetReason(), exit, nil
	}
}

func (h *Hold) next() (*hutchv1.HoldEvent, error) {
	if h.stream.Receive() {
		return h.stream.Msg(), nil
	}
	if err := h.stream.Err(); err != nil {
		return nil, fail(h.ctx, "hold", "", err)
	}
	return nil, &box.Error{Kind: box.Unavailable, Op: "hold", Err: io.ErrUnexpectedEOF}
}

// Close gives up the lease. It may be called twice.
func (h *Hold) Close() error {
	h.cancel()
	return nil
}

type stopped struct{ reason string }

func (s *stopped) Error() string {
	if s.reason == "" {
		return "the box has stopped"
	}
	return "the box has stopped: " + s.reason
}

// Stop ends the box and returns when it has stopped.
func (c *Client) Stop(ctx context.Context, grace time.Duration) error {
	_, err := c.box.Stop(ctx, connect.NewRequest(&hutchv1.StopRequest{GraceMsec: msec(grace)}))
	return fail(ctx, "stop", "", err)
}

// Kill ends the box without asking its commands.
func (c *Client) Kill(ctx context.Context) error {
	_, err := c.box.Stop(ctx, connect.NewRequest(&hutchv1.StopRequest{Kill: true}))
	return fail(ctx, "kill", "", err)
}

// Stats asks the keeper what the box uses on the host.
func (c *Client) Stats(ctx context.Context) (box.Stats, error) {
	resp, err := c.box.Stats(ctx, connect.NewRequest(&hutchv1.BoxStatsRequest{}))
	if err != nil {
		return box.Stats{}, fail(ctx, "stats", "", err)
	}
	m := resp.Msg
	return box.Stats{
		CPU:    time.Duration(m.GetCpuUsec()) * time.Microsecond,
		Memory: int64(m.GetMemory()), MemoryLimit: int64(m.GetMemoryLimit()),
		Disk: int64(m.GetDisk()), DiskLimit: int64(m.GetDiskLimit()),
		Processes: int(m.GetProcesses()), Execs: int(m.GetExecs()), Leases: int(m.GetLeases()),
		Uptime: time.Duration(m.GetUptimeUsec()) * time.Microsecond,
		Network: box.NetStats{
			Sent: int64(m.GetNetwork().GetSent()), Received: int64(m.GetNetwork().GetReceived()), Flows: int(m.GetNetwork().GetFlows()),
			Allowed: int64(m.GetNetwork().GetAllowed()), Denied: int64(m.GetNetwork().GetDenied()),
			Queries: int64(m.GetNetwork().GetQueries()), Refused: int64(m.GetNetwork().GetRefused()),
		},
	}, nil
}

// Pause freezes every process of the box.
func (c *Client) Pause(ctx context.Context) error {
	_, err := c.box.Pause(ctx, connect.NewRequest(&hutchv1.PauseRequest{}))
	return fail(ctx, "pause", "", err)
}

// Resume thaws a paused box.
func (c *Client) Resume(ctx context.Context) error {
	_, err := c.box.Resume(ctx, connect.NewRequest(&hutchv1.ResumeRequest{}))
	return fail(ctx, "resume", "", err)
}

// SetNetwork replaces what the box may reach.
func (c *Client) SetNetwork(ctx context.Context, n box.Network) error {
	_, err := c.box.SetNetwork(ctx, connect.NewRequest(&hutchv1.SetNetworkRequest{Network: wire.NetworkMessage(n)}))
	return fail(ctx, "set network", "", err)
}

// Publish adds a port and returns it with its host port.
func (c *Client) Publish(ctx context.Context, p box.Port) (box.Port, error) {
	resp, err := c.box.Publish(ctx, connect.NewRequest(&hutchv1.PublishRequest{Port: wire.PortMessage(p)}))
	if err != nil {
		return p, fail(ctx, "publish port", p.String(), err)
	}
	return wire.Port(resp.Msg.GetPort()), nil
}

// Unpublish takes a port away.
func (c *Client) Unpublish(ctx context.Context, p box.Port) error {
	_, err := c.box.Unpublish(ctx, connect.NewRequest(&hutchv1.UnpublishRequest{Port: wire.PortMessage(p)}))
	return fail(ctx, "unpublish port", p.String(), err)
}

// SetSecrets hands over values of the box's secrets.
func (c *Client) SetSecrets(ctx context.Context, values map[string]string) error {
	_, err := c.box.SetSecrets(ctx, connect.NewRequest(&hutchv1.SetSecretsRequest{Values: values}))
	return fail(ctx, "set secrets", "", err)
}

func msec(d time.Duration) uint32 {
	const most = 1<<32 - 1
	return uint32(min(max(0, d.Milliseconds()), most))
}
