package cli

import (
	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) imageDebianCommand() *cobra.Command {
	var (
		opts    box.DebianOptions
		include [][]string
		quiet   bool
	)
	cmd := &cobra.Command{
		Use:   "debian [flags] NAME",
		Short: "Build an image from Debian's archive, without a registry",
		Long: `It needs mmdebstrap ('hutch doctor' tells) and a way to Debian's archive. Messages
go to standard error, the image's digest to standard output.`,
		Example: `  hutch image debian --include python3,git,ripgrep dev`,
		Args:    need(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if args[0] == "" {
				return usagef("NAME: must not be empty; name the image")
			}
			for _, words := range include {
				opts.Include = append(opts.Include, words...)
			}
			if !quiet && !e.noProgress {
				opts.Progress = e.Stderr
			}
			rt, err := e.open(ctx)
			if err != nil {
				return err
			}
			img, err := rt.Images().Debian(ctx, args[0], opts)
			if err != nil {
				return err
			}
			if e.json {
				return e.document(img)
			}
			return e.println(img.Digest)
		},
	}
	fs := cmd.Flags()
	repeated(fs, &include, "include", "", "packages", "packages to install, separated by commas", parseWords)
	parsed(fs, &opts.Suite, "suite", "", "name", "Debian release (default bookworm)", someText)
	parsed(fs, &opts.Mirror, "mirror", "", "url", "Debian archive (default: mmdebstrap's)", someText)
	fs.BoolVarP(&quiet, "quiet", "q", false, "no messages")
	return cmd
}
