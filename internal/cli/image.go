package cli

import (
	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image COMMAND",
		Short:   "Manage images",
		Example: `  hutch image load -i python.tar`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("COMMAND: missing; see 'hutch image --help'")
			}
			return unknownCommand(cmd, args)
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	pull := e.pullCommand()
	cmd.AddCommand(pull, e.imageListCommand(), e.imageInspectCommand(), e.imageLoadCommand(), e.imageSaveCommand(),
		e.imageImportCommand(), e.imageTagCommand(), e.imageRmCommand(), e.imagePruneCommand(), e.imageDebianCommand())
	return cmd
}

func (e *env) imageInspectCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "inspect [flags] IMAGE...",
		Short:   "Print all that is known about images, as JSON",
		Example: `  hutch image inspect -f '{{.Digest}}' python:3.12-slim`,
		Args:    need(1, -1, "IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			rt, err := e.open(ctx)
			if err != nil {
				return err
			}
			return inspect(e, format, args, func(ref string) (box.Image, error) {
				return rt.Images().Get(ctx, ref)
			}, func(refs []string, one func(string) error) error { return e.each(ctx, refs, one) })
		},
		ValidArgsFunction: e.completeImages,
	}
	parsed(cmd.Flags(), &format, "format", "f", "template", "a Go template for each instead of JSON", someText)
	return cmd
}

func (e *env) imageTagCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "tag IMAGE NAME",
		Short:   "Give an image another name",
		Example: `  hutch image tag python:3.12-slim work`,
		Args:    need(2, 2, "IMAGE and NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			rt, err := e.open(cmd.Context())
			if err != nil {
				return err
			}
			if err := rt.Images().Tag(cmd.Context(), args[0], args[1]); err != nil || !e.json {
				return err
			}
			img, err := rt.Images().Get(cmd.Context(), args[1])
			if err != nil {
				return err
			}
			return e.document(img)
		},
		ValidArgsFunction: e.completeImages,
	}
}
