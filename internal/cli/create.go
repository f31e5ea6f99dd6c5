package cli

import "github.com/spf13/cobra"

func (e *env) createCommand() *cobra.Command {
	var f specFlags
	cmd := &cobra.Command{
		Use:   "create [flags] [IMAGE] [--] [COMMAND [ARG...]]",
		Short: "Create a box without starting it",
		Long: `It prints the box's id. Flags and arguments are those of run. With --idle the box
has no main command and only waits for exec.`,
		Example: `  hutch create --name dev --idle --memory 4g debian:bookworm
  hutch exec dev sh -c 'echo hello'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			e.failure = ExitHutch
			spec, err := f.spec(e, args)
			if err != nil {
				return err
			}
			spec.Detach = true // it outlives the command that starts it
			b, err := e.createBox(cmd.Context(), spec, f.quiet)
			if err != nil {
				return err
			}
			if e.json {
				info, err := b.Info(cmd.Context())
				if err != nil {
					return err
				}
				return e.document(info)
			}
			return e.println(b.ID())
		},
		ValidArgsFunction: e.completeImages,
	}
	f.register(cmd.Flags())
	return cmd
}
