package keeper

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
	"github.com/hutch-sandbox/hutch/internal/egress"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
	"github.com/hutch-sandbox/hutch/internal/helper"
	"github.com/hutch-sandbox/hutch/internal/x/console"
)

// Request is what the starter of a keeper tells it.
type Request = helper.KeeperRequest

// keeper is this process.
type keeper struct {
	home     *boxdir.Home
	b        *boxdir.Box
	log      *slog.Logger
	rec      boxdir.Record // as it was at boot
	detached bool
	withMain bool // this boot has a main command
	woken    bool // by a call that needs the box, not by one that starts it
	m        *machine
	srv      *server
	leases   leases
	started  time.Time

	// machineCtx ends when the machine is gone or about to be ended.
	machineCtx context.Context
	stops      chan stopRequest // holds the first request
	mainGone   chan struct{}    // closed when the main command is not run any more
	settled    chan struct{}    // closed when the end is on disk; then final is set
	final      boxdir.Record

	calls calls // of the guest's services that leave something behind or bring something back

	mu       sync.Mutex // guards the two below
	isPaused bool
	adopted  *boxdir.Record // of a spare box, once it is somebody's
}

// stopRequest says why and how the box is to stop.
type stopRequest struct {
	reason string
	grace  time.Duration
	kill   bool
	asked  bool // by a caller
	failed bool
	died   bool // the engine has ended already
	done   bool // the main command has ended by itself
}

// logLimit is how much a keeper says in its life.
const logLimit = 4 << 20

// Main is a keeper's whole life. It returns the process's exit status.
func Main() int {
	// The main thread stays with this function: gVisor's code takes threads
	// into other mount namespaces and drops them there, and /proc/self shows
	// what the main thread sees.
	runtime.LockOSThread()
	helper.CloseOnExec()
	// What a boot allocates mostly lives on; collecting in between only costs.
	debug.SetGCPercent(-1)
	hostPid, _ := os.Readlink("/proc/self") // before /proc is this namespace's
	var req Request
	k := &keeper{
		stops:    make(chan stopRequest, 1),
		settled:  make(chan struct{}),
		mainGone: make(chan struct{}),
	}
	// Some of what goes wrong the box can have go wrong again and again, also
	// in packages that have logs of their own.
	said := console.New(os.Stderr, logLimit)
	k.log = slog.New(slog.NewTextHandler(said, nil))
	log.SetOutput(said)
	egress.LogTo(said)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer cancel()
	life, err := k.start(ctx, &req, hostPid)
	if err != nil {
		k.log.Error("boot failed", "error", err)
		_ = helper.Respond(nil, err)
		return 1
	}
	defer life.Close()
	// Before anybody hears of the box: who then asks for the main command,
	// finds it.
	var main box.ProcessStream
	if k.withMain {
		if main, err = k.startMain(ctx, mainExec(0), req.HoldMain); err != nil {
			k.requestStop(stopRequest{reason: err.Error(), failed: true})
		}
	}
	if err := helper.Respond(helper.KeeperAnswer{Kernel: k.rec.Kernel}, nil); err != nil {
		k.log.Warn("nobody waits for the boot", "error", err)
		if !k.outlives() && k.leases.close() {
			// Whoever wanted the box died while it booted.
			k.requestStop(stopRequest{reason: "nobody uses it"})
		}
	}
	switch err := harden(); {
	case errors.Is(err, errCgo):
		k.log.Warn("hardening", "error", err)
	case err != nil:
		// Better no box than one whose keeper can do more than it should.
		k.requestStop(stopRequest{reason: "the keeper could not give up its rights: " + err.Error(), failed: true})
	}
	// From here on a keeper mostly waits. A small heap matters more than a few
	// collections.
	debug.SetGCPercent(40)
	// What it does meanwhile is to pass data on, from one goroutine to the next.
	// On one processor the next one finds all that has come so far, where a
	// second would be woken for each piece; and the box is slower than one.
	runtime.GOMAXPROCS(1)
	k.run(ctx, main, req.HoldMain)
	return 0
}

// start brings the box up. When it fails, the record says so and nothing of
// the box runs.
func (k *keeper) start(ctx context.Context, req *Request, hostPid string) (*os.File, error) {
	if err := helper.Request(req); err != nil {
		return nil, err
	}
	if err := helper.SetUp(); err != nil {
		return nil, err
	}
	var err error
	if k.home, err = boxdir.Open(req.Home); err != nil {
		return nil, err
	}
	k.b = k.home.Box(req.ID)
	life, ok, err := k.b.LockLife()
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &box.Error{Kind: box.Conflict, Op: "start", Object: req.ID, Err: fmt.Errorf("another keeper has the box"), Hint: "try again"}
	}
	if err := k.startLocked(ctx, req, hostPid); err != nil {
		life.Close()
		return nil, err
	}
	return life, nil
}

func (k *keeper) startLocked(ctx context.Context, req *Request, hostPid string) error {
	rec, _, err := k.b.SettleLocked(ctx)
	if err != nil {
		return err
	}
	if rec.State == box.Removed {
		return &box.Error{Kind: box.NotFound, Op: "start", Object: rec.Name, Err: fmt.Errorf("the box was removed when it stopped")}
	}
	k.woken = !req.Main && !req.HoldMain
	k.withMain = len(rec.Main) > 0 && (req.Main || req.HoldMain || !rec.MainDone)
	rec, err = k.b.UpdateVolatile(func(r *boxdir.Record) error {
		r.State, r.Reason, r.OOM, r.MainExec = box.Starting, "", false, ""
		r.Pid, _ = strconv.Atoi(hostPid)
		if k.withMain {
			r.Exit, r.Restarts, r.MainDone, r.MainExec = nil, 0, false, mainExec(0)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// A box that is up without its main command is only visited.
	k.rec, k.detached = rec, rec.Spec.Detach && (k.withMain || len(rec.Main) == 0)
	k.m, err = bootMachine(ctx, k.home, k.b, rec, req.Secrets)
	if err == nil {
		k.machineCtx = untilDone(k.m.inst.Done())
		// The socket comes last: who can connect, finds a box that runs.
		k.started = time.Now()
		rec, err = k.b.UpdateVolatile(func(r *boxdir.Record) error {
			r.State, r.StartedAt, r.StoppedAt = box.Running, k.started, time.Time{}
			r.Ports = k.m.gateway.Ports()
			r.Kernel, r.Limits = wire.Clip(k.m.hello.GetKernel()), k.m.inst.Limits()
			return nil
		})
		if err == nil {
			k.rec = rec
			err = k.serve()
		}
	}
	if err != nil {
		k.failBoot(ctx, err)
		return err
	}
	k.emit("start", nil)
	return nil
}

// failBoot undoes a boot that did not come about.
func (k *keeper) failBoot(ctx context.Context, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	if k.m != nil {
		if err := k.m.close(ctx); err != nil {
			k.log.Error("undo boot", "error", err)
		}
	}
	if err := k.sweep(ctx); err != nil {
		k.log.Error("undo boot", "error", err)
	}
	k.update(func(r *boxdir.Record) {
		r.State, r.Reason, r.Pid, r.StoppedAt = box.Failed, cause.Error(), 0, time.Now()
	})
	k.emit("fail", map[string]string{"reason": cause.Error()})
	if k.rec.Spec.Ephemeral {
		if err := k.b.Delete(); err != nil {
			k.log.Error("remove box", "error", err)
		}
	}
}

// sweep takes the volumes' mounts away and removes what the boot left.
func (k *keeper) sweep(ctx context.Context) error {
	if err := boxdir.UnmountBelow(k.b.Path("run")); err != nil {
		return err
	}
	return k.b.Sweep(ctx)
}

// untilDone is a context that ends with the channel.
func untilDone(done <-chan struct{}) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // ends with the machine, which this process never outlives
		<-done
		cancel()
	}()
	return ctx
}

// run waits for the reason to stop, and stops.
func (k *keeper) run(ctx context.Context, main box.ProcessStream, holdMain bool) {
	// Booting took memory that an idle keeper does not need again.
	trim := time.AfterFunc(2*time.Second, debug.FreeOSMemory)
	defer trim.Stop()
	work, endWork := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	if !k.detached || k.woken { // a spare is not detached: it ends with its pool
		k.leases.start(k.detached, k.requestStop)
	}
	if main == nil {
		close(k.mainGone)
	} else {
		wg.Go(func() {
			defer close(k.mainGone)
			k.runMain(work, main)
		})
		if holdMain {
			wg.Go(func() { k.releaseMain(work) })
		}
	}
	wg.Go(func() { k.reclaim(work) })

	var req stopRequest
	select {
	case req = <-k.stops:
	case <-k.m.inst.Done():
		req = stopRequest{reason: firstOf(k.m.inst.Exit().Detail, "the engine ended"), died: true, failed: true}
	case <-ctx.Done():
		req = stopRequest{reason: "the keeper was told to end", grace: k.grace()}
	}
	k.leases.stop()
	endWork()
	k.stop(req)
	wg.Wait()
	k.settle(req)
}

// releaseMain starts the main command after all when the client that wanted
// to follow it did not come.
func (k *keeper) releaseMain(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(firstLease):
	}
	if stream, err := k.m.agent.AttachProcess(ctx, mainExec(0), box.AttachOptions{NoFollow: true}); err == nil {
		_ = stream.Close()
	}
}

// reclaim has the agent choose a victim when the box is at its memory limit.
func (k *keeper) reclaim(ctx context.Context) {
	pressure := k.m.inst.MemoryPressure()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pressure:
		}
		before, _ := k.m.inst.Stats(ctx)
		rctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		victim, err := k.m.agent.Reclaim(rctx)
		cancel()
		if err != nil {
			k.log.Warn("reclaim memory", "error", err)
		} else if victim.GetPid() != 0 {
			k.emit("oom", map[string]string{"exec": victim.GetExecId(), "pid": strconv.Itoa(int(victim.GetPid()))})
		}
		k.awaitRelief(ctx, before.Memory)
	}
}

// lastWords bounds the wait for what the agent has sent already.
const lastWords = 5 * time.Second

// reliefTime is how long a victim's memory may take to come back on a busy
// host.
const reliefTime = 2 * time.Second

// awaitRelief waits while a victim's memory is given back, so that no innocent
// command follows it. When memory grows meanwhile, somebody else eats too.
func (k *keeper) awaitRelief(ctx context.Context, before int64) {
	const growth = 32 << 20
	limit := int64(k.m.inst.Limits().Memory.Value)
	for deadline := time.Now().Add(reliefTime); time.Now().Before(deadline); {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
		now, err := k.m.inst.Stats(ctx)
		if err != nil || now.Memory < limit || now.Memory > before+growth {
			break
		}
	}
	// The last pressure was that of before.
	select {
	case <-k.m.inst.MemoryPressure():
	default:
	}
}

// record is what the box is. Booted as a spare, it became another's box since.
func (k *keeper) record() boxdir.Record {
	if !k.rec.Spare {
		return k.rec
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.adopted == nil {
		rec, err := k.b.Load()
		if err != nil || rec.Spare {
			return k.rec
		}
		k.adopted = &rec
	}
	return *k.adopted
}

// outlives reports whether the box runs on when nobody uses it.
func (k *keeper) outlives() bool {
	if k.rec.Spare {
		return k.record().Spec.Detach
	}
	return k.detached
}

func (k *keeper) grace() time.Duration {
	if d := k.record().Spec.StopTimeout; d > 0 {
		return d
	}
	return box.DefaultStopTimeout
}

// requestStop asks for the end; only the first request counts.
func (k *keeper) requestStop(r stopRequest) {
	select {
	case k.stops <- r:
	default:
	}
}

// stop ends the machine. Afterwards nothing of the box runs.
func (k *keeper) stop(req stopRequest) {
	k.srv.closeListener()
	k.calls.shut()
	_, _ = k.b.UpdateVolatile(func(r *boxdir.Record) error { r.State = box.Stopping; return nil })
	if !req.kill && !req.died {
		_ = k.setPaused(context.Background(), false)
		grace := req.grace
		if !req.asked {
			grace = min(k.grace(), 2*time.Second)
		}
		grace = k.stopMain(grace)
		ctx, cancel := context.WithTimeout(context.Background(), grace+5*time.Second)
		if err := k.m.agent.Shutdown(ctx, grace); err != nil {
			k.log.Warn("shut the guest down", "error", err)
		} else {
			k.awaitMain()
		}
		cancel()
		k.calls.wait(callTime)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := k.m.close(ctx); err != nil {
		k.log.Error("end the machine", "error", err)
	}
}

// awaitMain waits until what the main command said last, and how it ended, is
// written down. The agent has sent it; the machine must not be gone before it
// was read.
func (k *keeper) awaitMain() {
	select {
	case <-k.mainGone:
	case <-k.m.inst.Done():
	case <-time.After(lastWords):
		k.log.Warn("the main command's end was not reported")
	}
}

// stopMain sends the main command the signal that its image wants to be
// stopped with, if that is not the one that all commands get, and waits for
// its end. It returns what is left of the grace.
func (k *keeper) stopMain(grace time.Duration) time.Duration {
	sig := signalNumber(k.rec.Config.StopSignal)
	if !k.withMain || sig == 0 || sig == syscall.SIGTERM {
		return grace
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	rec, err := k.b.Load()
	if err == nil {
		err = k.m.agent.SignalProcess(ctx, rec.MainExec, int(sig), false)
	}
	if err != nil {
		k.log.Warn("signal the main command", "signal", sig, "error", err)
		return grace
	}
	select {
	case <-k.mainGone:
	case <-k.m.inst.Done():
	case <-ctx.Done():
	}
	return max(grace-time.Since(began), 0)
}

// signalNumber reads an image's stop signal: "SIGINT", "INT" or "2".
func signalNumber(s string) syscall.Signal {
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n < 65 {
		return syscall.Signal(n)
	}
	if s == "" {
		return 0
	}
	return unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(s), "SIG"))
}

// settle writes the end down and tells everybody.
func (k *keeper) settle(req stopRequest) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := k.sweep(ctx); err != nil {
		k.log.Error("clean up", "error", err)
	}
	oom := k.outOfMemory()
	reason := req.reason
	if oom {
		reason = "out of memory"
	}
	k.update(func(r *boxdir.Record) {
		r.State, r.Reason, r.OOM = box.Stopped, reason, oom
		r.Pid, r.MainExec, r.Ports, r.StoppedAt = 0, "", nil, time.Now()
		if req.failed && !oom {
			r.State = box.Failed
		}
		r.MainDone = r.MainDone || req.done
		if r.Exit == nil && k.withMain {
			// The main command was killed with the machine.
			status := box.ExitStatus{Code: 137, Signal: syscall.SIGKILL, Reason: box.Exited}
			if oom {
				status.Reason = box.OutOfMemory
			}
			r.Exit = &status
		}
		k.final = *r
	})
	// As it was written down: a spare that was adopted at the last moment is
	// not removed.
	ephemeral := k.final.Spec.Ephemeral
	if oom {
		k.emit("oom", nil)
	}
	k.emit("stop", map[string]string{"reason": reason})
	if ephemeral {
		if err := k.b.Delete(); err != nil {
			k.log.Error("remove box", "error", err)
		} else {
			k.emit("remove", nil)
		}
	}
	close(k.settled)
	k.srv.close(ctx)
}

// outOfMemory reports whether the machine ended at its memory limit.
func (k *keeper) outOfMemory() bool {
	select {
	case <-k.m.inst.Done():
		return k.m.inst.Exit().OutOfMemory
	default:
		return false
	}
}

// update changes the record; the keeper must go on when the disk is full.
func (k *keeper) update(change func(*boxdir.Record)) {
	if _, err := k.b.Update(func(r *boxdir.Record) error { change(r); return nil }); err != nil {
		k.log.Error("write the box's state", "error", err)
		rec := k.record()
		change(&rec) // so that k.final is set all the same
	}
}

func (k *keeper) emit(action string, attrs map[string]string) {
	rec := k.record()
	if rec.Spare {
		return // nobody's box has no events
	}
	k.home.Emit(box.Event{Action: action, ID: rec.ID, Name: rec.Name, Attrs: attrs})
}

func (k *keeper) paused() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.isPaused
}

func (k *keeper) setPaused(ctx context.Context, paused bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var err error
	if paused {
		err = k.m.inst.Pause(ctx)
	} else {
		err = k.m.inst.Resume(ctx)
	}
	if err == nil {
		k.isPaused = paused
	}
	return err
}
