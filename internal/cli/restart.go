package cli

import "github.com/spf13/cobra"

func (e *env) restartCommand() *cobra.Command {
	var t stopTime
	cmd := &cobra.Command{
		Use:     "restart [flags] BOX...",
		Short:   "Stop boxes and start them again",
		Example: `  hutch restart web`,
		Args:    need(1, -1, "BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			r := &results{env: e}
			return r.finish(e.each(ctx, args, func(ref string) error {
				b, info, err := e.find(ctx, ref)
				if err == nil && !info.Spec.Detach {
					info.State = "" // it is about to be stopped
					err = needDetached(ref, info)
				}
				if err == nil {
					err = b.Stop(ctx, t.grace)
				}
				if err == nil {
					err = b.Start(ctx)
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
