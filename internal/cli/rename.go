package cli

import "github.com/spf13/cobra"

func (e *env) renameCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rename BOX NAME",
		Short:   "Give a box another name",
		Example: `  hutch rename dev old-dev`,
		Args:    need(2, 2, "BOX and NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, _, err := e.find(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := b.SetName(cmd.Context(), args[1]); err != nil {
				return err
			}
			if e.json {
				return e.document(result{ID: b.ID(), Name: b.Name()})
			}
			return nil
		},
		ValidArgsFunction: e.completeBoxes,
	}
}
