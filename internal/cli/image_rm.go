package cli

import (
	"github.com/spf13/cobra"
)

func (e *env) imageRmCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm IMAGE...",
		Aliases: []string{"remove"},
		Short:   "Remove names of images, and images with their last name",
		Long:    `An image that a box uses is kept, with an error.`,
		Example: `  hutch image rm python:3.12-slim`,
		Args:    need(1, -1, "IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			rt, err := e.open(ctx)
			if err != nil {
				return err
			}
			removed := []string{}
			err = e.each(ctx, args, func(ref string) error {
				if err := rt.Images().Remove(ctx, ref); err != nil {
					return err
				}
				if e.json {
					removed = append(removed, ref)
					return nil
				}
				return e.println("Removed: " + ref)
			})
			if e.json {
				if derr := e.document(struct {
					Removed []string `json:"removed"`
				}{removed}); err == nil {
					err = derr
				}
			}
			return err
		},
		ValidArgsFunction: e.completeImages,
	}
}
