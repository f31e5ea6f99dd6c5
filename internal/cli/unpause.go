package cli

import (
	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) unpauseCommand() *cobra.Command {
	cmd := e.freezeCommand("unpause", (*box.Box).Resume)
	cmd.Short = "Thaw boxes that were paused"
	cmd.Example = "  hutch unpause web"
	return cmd
}
