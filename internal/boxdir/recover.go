package boxdir

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/cgroup"
)

// Recover finishes or undoes what processes left half done when they died. It
// is cheap when there is nothing to do, and may run in many processes at once.
// The boxes it settled are returned.
func (h *Home) Recover(ctx context.Context) ([]Record, error) {
	ids, err := h.IDs()
	if err != nil {
		return nil, err
	}
	var settled []Record
	var errs []error
	for _, id := range ids {
		rec, changed, err := h.Box(id).Settle(ctx)
		if err != nil && !errors.Is(err, box.ErrNotFound) {
			errs = append(errs, err)
		}
		if changed {
			settled = append(settled, rec)
		}
	}
	h.sweepTmp()
	h.sweepNames()
	return settled, errors.Join(errs...)
}

// Settle brings the record of a box whose keeper died up to date. The box must
// not be held by the caller.
func (b *Box) Settle(ctx context.Context) (Record, bool, error) {
	rec, err := b.Load()
	if err != nil || !unsettled(rec) {
		return rec, false, err
	}
	f, ok, err := b.LockLife()
	if err != nil || !ok {
		return rec, false, err // a keeper lives
	}
	defer f.Close()
	return b.SettleLocked(ctx)
}

func unsettled(rec Record) bool {
	switch rec.State {
	case box.Starting, box.Running, box.Stopping:
		return true
	}
	if rec.Spare && time.Since(rec.CreatedAt) < bootTime {
		return false // its pool may be about to boot it
	}
	return rec.Spare || rec.State == box.Stopped && rec.Spec.Ephemeral
}

// bootTime is longer than a boot takes.
const bootTime = 5 * time.Minute

// SettleLocked is Settle for a caller that holds LockLife.
func (b *Box) SettleLocked(ctx context.Context) (Record, bool, error) {
	rec, err := b.Load()
	if err != nil || !unsettled(rec) {
		return rec, false, err
	}
	if err := b.Sweep(ctx); err != nil {
		return rec, false, err
	}
	if rec.Spec.Ephemeral {
		rec.State = box.Removed
		return rec, true, b.Delete()
	}
	rec, err = b.Update(func(r *Record) error {
		r.State, r.Pid, r.MainExec, r.Ports = box.Stopped, 0, "", nil
		r.Reason = "the keeper died"
		r.StoppedAt = time.Now()
		return nil
	})
	return rec, err == nil, err
}

// Sweep removes what a boot leaves behind beside the disk: the control group
// with all that is in it, the socket and the boot's own folder. The caller
// holds LockLife and the box does not run.
func (b *Box) Sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := cgroup.Open(b.id).Remove(ctx); err != nil {
		return err
	}
	_ = os.Remove(b.Path("keeper.sock"))
	return b.home.remove(b.Path("run"))
}

// sweepTmp removes old leftovers. What is young may be somebody's work.
func (h *Home) sweepTmp() {
	entries, err := os.ReadDir(h.Path("tmp"))
	if err != nil {
		return
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			continue
		}
		if strings.HasPrefix(e.Name(), "gone-") || time.Since(fi.ModTime()) > time.Hour {
			_ = h.remove(h.Path("tmp", e.Name()))
		}
	}
}

// sweepNames drops names that lost their box.
func (h *Home) sweepNames() {
	entries, err := os.ReadDir(h.Path("names"))
	if err != nil {
		return
	}
	for _, e := range entries {
		// A young one may be a box in the making, whose folder came first.
		if data, err := os.ReadFile(h.Path("names", e.Name())); err == nil {
			if _, err := h.Box(strings.TrimSpace(string(data))).Load(); errors.Is(err, box.ErrNotFound) {
				h.dropStaleName(e.Name())
			}
		}
	}
}
