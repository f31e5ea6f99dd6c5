package cli

import (
	"time"

	"github.com/spf13/cobra"
)

// stopTime is the -t of stop and restart.
type stopTime struct{ grace time.Duration }

func (s *stopTime) register(cmd *cobra.Command) {
	s.grace = -1 // the box's own
	parsed(cmd.Flags(), &s.grace, "time", "t", "duration", "wait this long before killing (default: the box's --stop-timeout)", parseDuration)
}

func (e *env) stopCommand() *cobra.Command {
	var t stopTime
	cmd := &cobra.Command{
		Use:     "stop [flags] BOX...",
		Short:   "Stop boxes; their disks are kept",
		Long:    `The commands in the box get SIGTERM, and SIGKILL when they have not ended in time.`,
		Example: `  hutch stop -t 2s web`,
		Args:    need(1, -1, "BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			r := &results{env: e}
			return r.finish(e.each(ctx, args, func(ref string) error {
				b, _, err := e.find(ctx, ref)
				if err == nil {
					err = b.Stop(ctx, t.grace)
				}
				if err != nil {
					return err
				}
				return r.add(ref, result{ID: b.ID(), Name: b.Name()})
			}))
		},
		ValidArgsFunction: e.completeBoxes,
	}
	t.register(cmd)
	return cmd
}
