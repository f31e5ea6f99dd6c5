package cli

import (
	"runtime"

	"github.com/spf13/cobra"
)

func (e *env) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this program",
		Example: `  hutch version`,
		Args:    need(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			if e.json {
				return e.document(struct {
					Version string `json:"version"`
					Go      string `json:"go"`
					OS      string `json:"os"`
					Arch    string `json:"arch"`
				}{e.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH})
			}
			return e.println("hutch " + e.Version + " (" + runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ")")
		},
	}
}
