package cli

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) imageLoadCommand() *cobra.Command {
	var (
		input string
		quiet bool
	)
	cmd := &cobra.Command{
		Use:   "load [flags]",
		Short: "Read images from an archive or an OCI layout folder",
		Long: `It reads docker archives and OCI archives, plain, gzip or zstd, from standard input
or the file of -i; -i may also name an OCI layout folder.`,
		Example: `  docker save python:3.12-slim | hutch image load`,
		Args:    need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			imgs, err := e.loadImages(cmd.Context(), input)
			if err != nil {
				return err
			}
			if e.json {
				return e.document(append([]box.Image{}, imgs...))
			}
			if quiet {
				return nil
			}
			for _, img := range imgs {
				names := img.Names
				if len(names) == 0 {
					names = []string{img.Digest}
				}
				for _, n := range names {
					if err := e.println("Loaded image: " + familiar(n)); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	fs := cmd.Flags()
	parsed(fs, &input, "input", "i", "file", "read this file or folder, not standard input", someText)
	fs.BoolVarP(&quiet, "quiet", "q", false, "print nothing")
	return cmd
}

func (e *env) loadImages(ctx context.Context, input string) ([]box.Image, error) {
	var r io.Reader
	path := ""
	if input != "" {
		path = e.hostPath(input)
		f, err := os.Open(path)
		if err != nil {
			return nil, usagef("--input: %v; name an archive or an OCI layout folder", err)
		}
		defer f.Close()
		r = f
		if st, err := f.Stat(); err != nil || !st.IsDir() {
			path = ""
		}
	} else {
		if e.term.in != nil {
			return nil, usagef("--input: missing, and standard input is a terminal; name a file with -i, or redirect one to standard input")
		}
		in, release, err := readerWithContext(ctx, e.Stdin)
		if err != nil {
			return nil, err
		}
		defer release()
		r = in
	}
	rt, err := e.open(ctx)
	if err != nil {
		return nil, err
	}
	if path != "" {
		return rt.Images().LoadDir(ctx, path)
	}
	return rt.Images().Load(ctx, r)
}
