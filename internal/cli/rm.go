package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) rmCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "rm [flags] BOX...",
		Short:   "Remove boxes and their disks",
		Example: `  hutch rm -f $(hutch ps -aq)`,
		Args:    need(1, -1, "BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			rt, err := e.open(ctx)
			if err != nil {
				return err
			}
			r := &results{env: e}
			return r.finish(e.each(ctx, args, func(ref string) error {
				b, info, err := e.find(ctx, ref)
				if force && errors.Is(err, box.ErrNotFound) {
					return nil
				}
				if err == nil {
					err = rt.Remove(ctx, info.ID, force)
				}
				if errors.Is(err, box.ErrConflict) && box.HintOf(err) == "" {
					err = &box.Error{Kind: box.Conflict, Op: "remove", Object: ref,
						Err: errors.New("the box is " + string(info.State)), Hint: "stop it first, or use rm -f"}
				}
				if err != nil {
					return err
				}
				return r.add(ref, result{ID: b.ID(), Name: b.Name()})
			}))
		},
		ValidArgsFunction: e.completeBoxes,
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also boxes that run, and no error for boxes that are not there")
	return cmd
}
