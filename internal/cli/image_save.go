package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func (e *env) imageSaveCommand() *cobra.Command {
	var output, format string
	cmd := &cobra.Command{
		Use:     "save [flags] IMAGE...",
		Short:   "Write images to an archive",
		Example: `  hutch image save -o dev.tar dev`,
		Args:    need(1, -1, "IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if e.json {
				return usagef("--json: the output is an archive; see 'hutch image inspect'")
			}
			if output == "" && e.term.out != nil {
				return usagef("--output: missing, and standard output is a terminal; name a file with -o, or redirect the output")
			}
			rt, err := e.open(ctx)
			if err != nil {
				return err
			}
			if output == "" {
				return rt.Images().Save(ctx, e.stdout, format, args...)
			}
			return writeFile(e.hostPath(output), func(w io.Writer) error {
				return rt.Images().Save(ctx, w, format, args...)
			})
		},
		ValidArgsFunction: e.completeImages,
	}
	fs := cmd.Flags()
	parsed(fs, &output, "output", "o", "file", "write this file, not standard output", someText)
	parsed(fs, &format, "format", "", "name", "oci (the default) or docker", oneOf("oci", "docker"))
	return cmd
}

// writeFile makes a file of what write writes, or leaves everything as it was.
func writeFile(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return usagef("--output: %v; name a file in a folder that you can write", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write %s: %w; free some space", path, err)
	}
	return os.Rename(f.Name(), path)
}
