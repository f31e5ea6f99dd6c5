package cli

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

func (e *env) imagePruneCommand() *cobra.Command {
	var all, force bool
	cmd := &cobra.Command{
		Use:     "prune [flags]",
		Short:   "Remove images that no name and no box uses",
		Example: `  hutch image prune -af`,
		Args:    need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if !force {
				what := "images without a name"
				if all {
					what = "all images"
				}
				ok, err := e.confirm("This removes " + what + " that no box uses.")
				if err != nil || !ok {
					return err
				}
			}
			rt, err := e.open(ctx)
			if err != nil {
				return err
			}
			freed, err := rt.Images().Prune(ctx, all)
			if err != nil {
				return err
			}
			if e.json {
				return e.document(struct {
					Freed int64 `json:"freed"` // bytes
				}{freed})
			}
			return e.println("Freed: " + size(freed))
		},
	}
	fs := cmd.Flags()
	fs.BoolVarP(&all, "all", "a", false, "also images with a name")
	fs.BoolVarP(&force, "force", "f", false, "do not ask")
	return cmd
}

// confirm asks on the terminal. Without one it refuses rather than guess.
func (e *env) confirm(what string) (bool, error) {
	if e.term.in == nil {
		return false, usagef("--force: missing, and there is no terminal to ask on; add -f")
	}
	fmt.Fprintf(e.Stderr, "%s\nGo on? [y/N] ", what)
	answer, err := bufio.NewReader(io.LimitReader(e.Stdin, 256)).ReadString('\n')
	if err != nil && err != io.EOF {
		return false, fmt.Errorf("read the answer: %w; add -f", err)
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}
