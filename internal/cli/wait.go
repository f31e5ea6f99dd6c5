package cli

import (
	"strconv"

	"github.com/spf13/cobra"
)

func (e *env) waitCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "wait BOX...",
		Short:   "Wait until boxes have stopped, and print their commands' statuses",
		Long:    `A box without a main command counts as status 0.`,
		Example: `  hutch wait $(hutch run -d debian sleep 10)`,
		Args:    need(1, -1, "BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			r := &results{env: e}
			return r.finish(e.each(ctx, args, func(ref string) error {
				b, _, err := e.find(ctx, ref)
				if err != nil {
					return err
				}
				status, err := b.Wait(ctx)
				if err != nil {
					return err
				}
				code := 0
				if status != nil {
					code = status.Code
				}
				return r.add(strconv.Itoa(code), result{ID: b.ID(), Name: b.Name(), Exit: status})
			}))
		},
		ValidArgsFunction: e.completeBoxes,
	}
}
