package box

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"
	"time"
)

// Box is a handle on one box. Every operation on commands, files and servers
// boots the box first when it does not run, and makes the handle count as a
// user of the box until Close: a box that is not detached stops when its last
// user is gone.
//
// It may be used by any number of goroutines.
type Box struct {
	driver  Driver
	machine Machine
	id      string
	name    atomic.Pointer[string]
}

// ID returns the box's id: 12 lower-case letters and digits.
func (b *Box) ID() string { return b.id }

// Name returns the box's name as this handle last saw it. Info asks again.
func (b *Box) Name() string { return *b.name.Load() }

// Info describes the box as it is now. It does not boot it.
func (b *Box) Info(ctx context.Context) (Info, error) {
	info, err := b.machine.Info(ctx)
	if err != nil {
		return Info{}, b.wrap("inspect", err)
	}
	b.name.Store(&info.Name)
	return info, nil
}

// Start boots the box. One that runs is no error.
func (b *Box) Start(ctx context.Context) error { return b.wrap("start", b.machine.Start(ctx)) }

// Stop asks the box's commands to end (SIGTERM), kills after grace those that
// did not, and then ends the box. Its disk is kept. A negative grace is that of
// the spec. A stopped box is no error.
func (b *Box) Stop(ctx context.Context, grace time.Duration) error {
	return b.wrap("stop", b.machine.Stop(ctx, grace))
}

// Kill ends the box at once. A stopped box is no error.
func (b *Box) Kill(ctx context.Context) error { return b.wrap("kill", b.machine.Kill(ctx)) }

// Wait waits until the box has stopped, and returns how its main command
// ended, nil without one. It does not keep the box running.
func (b *Box) Wait(ctx context.Context) (*ExitStatus, error) {
	status, err := b.machine.Wait(ctx)
	return status, b.wrap("wait", err)
}

// Remove deletes the box and its disk, in every state. A box that is not there
// any more is no error. Files are deleted with RemoveFile and RemoveAll.
func (b *Box) Remove(ctx context.Context) error {
	return b.wrap("remove", b.driver.Remove(ctx, b.id, true))
}

// SetName renames the box. A name that is taken is an error of kind Exists.
// Files are renamed with Rename.
func (b *Box) SetName(ctx context.Context, name string) error {
	if err := ValidateName(name); err != nil {
		return err
	}
	if err := b.driver.Rename(ctx, b.id, name); err != nil {
		return b.wrap("rename", err)
	}
	b.name.Store(&name)
	return nil
}

// Pause freezes every process of the box; its memory stays. Operations on it
// wait until Resume.
func (b *Box) Pause(ctx context.Context) error { return b.wrap("pause", b.machine.Pause(ctx)) }

// Resume thaws a paused box.
func (b *Box) Resume(ctx context.Context) error { return b.wrap("resume", b.machine.Resume(ctx)) }

// Logs yields the output of the main command. It does not boot the box. An
// error ends it.
func (b *Box) Logs(ctx context.Context, opts LogOptions) iter.Seq2[LogEntry, error] {
	return b.machine.Logs(ctx, opts)
}

// Stats says what the box uses now.
func (b *Box) Stats(ctx context.Context) (Stats, error) {
	s, err := b.machine.Stats(ctx)
	return s, b.wrap("stats", err)
}

// Top lists every process in the box, as ps does.
func (b *Box) Top(ctx context.Context) ([]OSProcess, error) {
	ps, err := b.machine.Top(ctx)
	return ps, b.wrap("top", err)
}

// Processes lists the commands that were started in the box since it booted
// and that are still known: those that run, and for a while those that ended.
func (b *Box) Processes(ctx context.Context) ([]ProcessInfo, error) {
	ps, err := b.machine.Processes(ctx)
	return ps, b.wrap("list commands", err)
}

// SignalProcess sends a signal to the command with this id, for a caller that
// does not follow it; tree reaches every process that it started, too.
func (b *Box) SignalProcess(ctx context.Context, execID string, sig int, tree bool) error {
	if sig < 0 || sig > 64 {
		return &Error{Kind: Invalid, Op: "signal", Object: execID, Err: errors.New("no such signal"), Hint: "use 1 to 64"}
	}
	return b.wrap("signal", b.machine.SignalProcess(ctx, execID, sig, tree))
}

// Close says that this handle does not use the box any more. Using the handle
// again is allowed.
func (b *Box) Close() error { return b.wrap("close", b.machine.Close()) }

func (b *Box) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return wrap(op, b.Name(), err)
}
