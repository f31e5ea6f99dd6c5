package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) pauseCommand() *cobra.Command {
	cmd := e.freezeCommand("pause", (*box.Box).Pause)
	cmd.Short = "Freeze every process of boxes"
	cmd.Long = "The memory stays. Commands for a paused box wait until 'hutch unpause'."
	cmd.Example = "  hutch pause web"
	return cmd
}

// freezeCommand is pause and unpause.
func (e *env) freezeCommand(name string, do func(*box.Box, context.Context) error) *cobra.Command {
	return &cobra.Command{
		Use:  name + " BOX...",
		Args: need(1, -1, "BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			r := &results{env: e}
			return r.finish(e.each(ctx, args, func(ref string) error {
				b, info, err := e.find(ctx, ref)
				if err == nil && info.State != box.Running {
					err = notRunning(name, ref, info)
				}
				if err == nil {
					err = do(b, ctx)
				}
				if err != nil {
					return err
				}
				return r.add(ref, result{ID: b.ID(), Name: b.Name()})
			}))
		},
		ValidArgsFunction: e.completeBoxes,
	}
}
