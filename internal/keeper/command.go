package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
)

// mainExec names the n-th run of the main command.
func mainExec(n int) string {
	if n == 0 {
		return "main"
	}
	return "main-" + strconv.Itoa(n)
}

// startMain makes the agent start the main command. hold keeps it from starting
// before a client follows it, so that the client misses nothing.
func (k *keeper) startMain(ctx context.Context, id string, hold bool) (box.ProcessStream, error) {
	s := k.rec.Spec
	readers := 1
	if hold {
		readers = 2
	}
	// The command outlives ctx: at a stop it is asked to end by a signal, and
	// what it then says is still logged.
	stream, err := k.m.agent.StartProcessFor(context.WithoutCancel(ctx), box.ProcessSpec{
		ID: id, Args: k.rec.Main, TTY: s.TTY, Stdin: s.Stdin, Detach: true,
	}, readers)
	if err != nil {
		return nil, fmt.Errorf("start the main command: %w", err)
	}
	return stream, nil
}

// runMain follows the main command, whose first run is stream, and runs it
// again as the policy says. When it has ended for good it asks for the box's
// stop.
func (k *keeper) runMain(ctx context.Context, stream box.ProcessStream) {
	log, err := k.b.OpenLog()
	if err != nil {
		k.requestStop(stopRequest{reason: "its log cannot be written: " + err.Error(), failed: true})
		return
	}
	defer func() { _ = log.Close() }()
	policy := k.rec.Spec.Restart
	backoff := 100 * time.Millisecond
	inRow := 0
	for n := 0; ; n++ {
		began := time.Now()
		if n > 0 {
			stream, err = k.startMain(ctx, mainExec(n), false)
		}
		var status box.ExitStatus
		if err == nil {
			status, err = k.followMain(stream, log)
		}
		if time.Since(began) > 10*time.Second {
			inRow, backoff = 0, 100*time.Millisecond
		}
		again := policy.When == box.RestartAlways || (policy.When == box.RestartOnFailure && !status.Success())
		if policy.When == box.RestartOnFailure && policy.Max > 0 && inRow >= policy.Max {
			again = false
		}
		end := stopRequest{reason: "the main command ended: " + status.String(), done: true}
		stop := !again
		if err == nil {
			// A box that a call woke goes on for as long as it is used: the
			// caller did not ask for the main command, and must not die with it.
			// The last user may go while the status is being written.
			if !again && k.woken && ctx.Err() == nil {
				stop = k.leases.end(end)
			}
			k.recordExit(status)
		}
		switch {
		case ctx.Err() != nil:
			return // the box is stopping; status was recorded where there was one
		case err != nil:
			k.requestStop(stopRequest{reason: "the main command was lost: " + err.Error(), failed: true})
			return
		case !again:
			if stop {
				k.requestStop(end)
			}
			return
		}
		inRow++
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff):
		}
		backoff = min(backoff*2, time.Minute)
		k.update(func(r *boxdir.Record) { r.Restarts++; r.MainExec = mainExec(n + 1) })
		k.emit("restart", nil)
	}
}

// recordExit writes down how the main command ended.
func (k *keeper) recordExit(status box.ExitStatus) {
	k.update(func(r *boxdir.Record) { r.Exit = &status })
	k.emit("exit", map[string]string{"code": strconv.Itoa(status.Code), "status": status.String()})
}

// followMain logs what the main command says and returns how it ended.
func (k *keeper) followMain(stream box.ProcessStream, log *boxdir.LogWriter) (box.ExitStatus, error) {
	defer func() { _ = stream.Close() }()
	lost := false // what it says, for want of a log; said once
	for {
		ev, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("no exit status was reported")
			}
			return box.ExitStatus{}, err
		}
		if len(ev.Data) > 0 {
			err := log.Write(time.Now(), ev.Stderr, ev.Data)
			if err != nil && !lost {
				k.log.Warn("main command's log", "error", err)
			}
			lost = err != nil
		}
		if ev.Exit != nil {
			return *ev.Exit, nil
		}
	}
}
