package filesystem_test

import (
	"context"

	"github.com/hutch-sandbox/hutch/workspace"
)

// noRipgrep is a workspace on which ripgrep is not installed.
type noRipgrep struct{ *workspace.Workspace }

func (w noRipgrep) Run(ctx context.Context, cmd workspace.Command) (workspace.Result, error) {
	if len(cmd.Args) > 0 && cmd.Args[0] == "rg" {
		return workspace.Result{ExitCode: 127}, nil
	}
	return w.Workspace.Run(ctx, cmd)
}
