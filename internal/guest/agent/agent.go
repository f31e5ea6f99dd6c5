//go:build linux

package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hutch-sandbox/hutch/api/hutchv1/hutchv1connect"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

// maxMessage bounds one request message: room for the largest environment
// that the kernel takes and for chunks of files.
const maxMessage = 8 << 20

// Config is what an Agent serves with.
type Config struct {
	// Token must be in every request's Hutch-Token header. An empty token
	// refuses all requests.
	Token string
	// BootID and Version are for System.Hello.
	BootID  string
	Version string
	// Env is the base environment of commands, "KEY=value".
	Env [][]byte
	// Dir is the box's working directory; empty: "/".
	Dir string
	// User is the box's user, as in StartRequest; empty: who the agent is.
	User string
	// Init says that the process is PID 1 and nothing else in it waits for
	// children. The agent then reaps all orphans.
	Init bool
	// Cgroups tracks commands with control groups, where the agent may make
	// them; else it reads /proc.
	Cgroups bool
	// Pids limits the processes of all commands together; zero: no limit. It
	// needs Cgroups.
	Pids int
	// Logf receives what an operator should know; nil drops it.
	Logf func(format string, args ...any)
}

// Agent serves the guest protocol. Its methods may be called concurrently.
type Agent struct {
	cfg      Config
	identity atomic.Pointer[identity]
	logf     func(string, ...any)
	tracker  tracker
	reaper   *reaper
	accounts accounts
	execs    table
	handles  handles
	pumps    pumpSet
	shielded bool // the agent is safe from the out-of-memory killer, its children must not be

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // supervisors and pumps
	server *http.Server
	guard  *guard
	handle http.Handler
	close  sync.Once
}

// New returns an agent. It does nothing until requests come, except that it
// prepares the tracking of processes. Close it.
func New(cfg Config) (*Agent, error) {
	a := &Agent{cfg: cfg, logf: cfg.Logf}
	if a.logf == nil {
		a.logf = func(string, ...any) {}
	}
	id, err := newIdentity(cfg.Token, cfg.BootID, cfg.Env)
	if err != nil {
		return nil, err
	}
	a.identity.Store(id)
	if a.cfg.Dir == "" {
		a.cfg.Dir = "/"
	}
	if a.cfg.User == "" {
		a.cfg.User = fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid())
		if os.Geteuid() == 0 {
			a.cfg.User = ""
		}
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.execs.init()
	a.tracker = newTracker(cfg.Cgroups, cfg.Pids, a.logf)
	a.reaper = newReaper(cfg.Init)
	a.guard = newGuard()
	a.handle = a.routes()
	a.server = newServer(a.handle, a.guard)
	return a, nil
}

// routes is the four services behind the token check.
func (a *Agent) routes() http.Handler {
	opts := []connect.HandlerOption{
		connect.WithReadMaxBytes(maxMessage),
		// Data crosses a link within one machine: compressing it costs more than
		// it saves.
		connect.WithCompression("gzip", nil, nil),
		connect.WithInterceptors(errorInterceptor{}),
	}
	mux := http.NewServeMux()
	mux.Handle(hutchv1connect.NewProcessHandler(&processService{a}, opts...))
	mux.Handle(hutchv1connect.NewFilesHandler(&filesService{a}, opts...))
	mux.Handle(hutchv1connect.NewTunnelHandler(&tunnelService{a}, opts...))
	mux.Handle(hutchv1connect.NewSystemHandler(&systemService{a}, opts...))
	return a.authenticate(mux)
}

// Handler serves the protocol. It checks the token itself.
func (a *Agent) Handler() http.Handler { return a.handle }

// Serve accepts connections from l until ctx ends or Close is called, and
// closes l. It returns nil then.
func (a *Agent) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { a.server.Close() })
	defer stop()
	err := a.server.Serve(a.guard.listener(l))
	if err == http.ErrServerClosed {
		return nil
	}
	return err
}

// Close kills every command's process tree, ends every request and waits for
// all goroutines of the agent. It may be called twice.
func (a *Agent) Close() {
	a.close.Do(func() {
		a.cancel()
		a.server.Close()
		a.execs.killAll()
		a.execs.wait()
		a.pumps.closeAll()
		a.wg.Wait()
		a.handles.closeAll()
		if !a.cfg.Init {
			a.reaper.wait()
		}
		a.execs.removeGroups()
		a.tracker.close()
	})
}

// errorInterceptor puts every error into the protocol's form.
type errorInterceptor struct{}

func (errorInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		return res, wire.Encode(err)
	}
}

func (errorInterceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (errorInterceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return wire.Encode(next(ctx, conn))
	}
}

func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, says its documentation
	return hex.EncodeToString(b[:])
}

func timestamp(t time.Time) *timestamppb.Timestamp { return wire.Timestamp(t) }
