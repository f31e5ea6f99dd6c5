package cli

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) killCommand() *cobra.Command {
	sig := syscall.SIGKILL
	cmd := &cobra.Command{
		Use:   "kill [flags] BOX...",
		Short: "Kill boxes, or send a signal to their main commands",
		Example: `  hutch kill web
  hutch kill -s HUP web`,
		Args: need(1, -1, "BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			r := &results{env: e}
			return r.finish(e.each(ctx, args, func(ref string) error {
				b, info, err := e.find(ctx, ref)
				switch {
				case err != nil:
				case info.State != box.Running && info.State != box.Starting && info.State != box.Stopping:
					err = notRunning("kill", ref, info)
				case sig == syscall.SIGKILL:
					err = b.Kill(ctx)
				case info.Main == nil:
					err = &box.Error{Kind: box.Invalid, Op: "kill", Object: ref,
						Err: errors.New("the box has no main command to signal"), Hint: "leave out -s to kill the box"}
				default:
					err = b.SignalProcess(ctx, box.MainProcess, int(sig), false)
				}
				if err != nil {
					return err
				}
				return r.add(ref, result{ID: b.ID(), Name: b.Name()})
			}))
		},
		ValidArgsFunction: e.completeBoxes,
	}
	parsed(cmd.Flags(), &sig, "signal", "s", "signal", "signal to send (default KILL, which ends the box)", parseSignal)
	return cmd
}

// notRunning refuses what only a running box can do, rather than start it.
func notRunning(op, ref string, info box.Info) error {
	return &box.Error{Kind: box.Conflict, Op: op, Object: ref,
		Err: fmt.Errorf("the box is %s", info.State), Hint: "start it with 'hutch start " + ref + "'"}
}
