package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

// statsEvery is how often stats looks.
const statsEvery = time.Second

// statsRecord is one line of "stats --json".
type statsRecord struct {
	ID    string    `json:"id"`
	Name  string    `json:"name"`
	State box.State `json:"state"`
	// CPUPercent is of one CPU, since the look before or, at the first, since
	// boot.
	CPUPercent float64 `json:"cpuPercent"`
	box.Stats
}

func (e *env) statsCommand() *cobra.Command {
	var noStream bool
	cmd := &cobra.Command{
		Use:     "stats [flags] [BOX...]",
		Short:   "Show what boxes use, every second",
		Long:    `Without BOX all boxes that run. CPU is of one CPU, at the first look since boot.`,
		Example: `  hutch stats --no-stream`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			before := map[string]statsRecord{}
			for {
				records, err := e.collectStats(ctx, args, before)
				if err != nil {
					return err
				}
				if err := e.printStats(records, !noStream); err != nil {
					return err
				}
				if noStream {
					return nil
				}
				timer := time.NewTimer(statsEvery)
				select {
				case <-ctx.Done():
					timer.Stop()
					return context.Cause(ctx)
				case <-timer.C:
				}
			}
		},
		ValidArgsFunction: e.completeBoxes,
	}
	cmd.Flags().BoolVar(&noStream, "no-stream", false, "look once")
	return cmd
}

// collectStats looks at the boxes, without starting any. before is the look
// before, which it replaces.
func (e *env) collectStats(ctx context.Context, refs []string, before map[string]statsRecord) ([]statsRecord, error) {
	rt, err := e.open(ctx)
	if err != nil {
		return nil, err
	}
	if len(refs) == 0 {
		infos, err := rt.List(ctx, box.ListOptions{States: []box.State{box.Running}})
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			refs = append(refs, info.ID)
		}
	}
	records := make([]statsRecord, 0, len(refs))
	for _, ref := range refs {
		b, info, err := e.find(ctx, ref)
		if err != nil {
			return nil, err
		}
		r := statsRecord{ID: info.ID, Name: info.Name, State: info.State}
		if info.State == box.Running {
			s, err := b.Stats(ctx)
			switch {
			case errors.Is(err, box.ErrUnavailable), errors.Is(err, box.ErrConflict), errors.Is(err, box.ErrNotFound):
				r.State = box.Stopping // it went away between the two questions
			case err != nil:
				return nil, err
			}
			r.Stats = s
		}
		last := before[r.ID].Stats
		if last.Uptime >= r.Uptime {
			last = box.Stats{} // it was started anew
		}
		if d := r.Uptime - last.Uptime; d > 0 {
			r.CPUPercent = 100 * float64(r.CPU-last.CPU) / float64(d)
		}
		records = append(records, r)
	}
	clear(before)
	for _, r := range records {
		before[r.ID] = r
	}
	return records, nil
}

func (e *env) printStats(records []statsRecord, stream bool) error {
	if e.json {
		for _, r := range records {
			if err := e.record(r); err != nil {
				return err
			}
		}
		return nil
	}
	var buf bytes.Buffer
	if stream && e.term.out != nil {
		buf.WriteString("\x1b[H\x1b[2J") // the table replaces the one before
	}
	t := newTable(&buf, "BOX ID", "NAME", "CPU %", "MEM USAGE / LIMIT", "DISK / LIMIT", "PIDS", "EXECS")
	for _, r := range records {
		if r.State != box.Running {
			t.row(r.ID, r.Name, "--", "-- / --", "-- / --", "--", "--")
			continue
		}
		t.row(r.ID, r.Name, fmt.Sprintf("%.2f%%", r.CPUPercent),
			size(r.Memory)+" / "+limit(r.MemoryLimit), size(r.Disk)+" / "+limit(r.DiskLimit),
			strconv.Itoa(r.Processes), strconv.Itoa(r.Execs))
	}
	if err := t.flush(); err != nil {
		return err
	}
	_, err := e.stdout.Write(buf.Bytes())
	return err
}

func limit(n int64) string {
	if n <= 0 {
		return "none"
	}
	return size(n)
}
