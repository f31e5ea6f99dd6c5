package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) imageImportCommand() *cobra.Command {
	var changes []string
	cmd := &cobra.Command{
		Use:   "import [flags] FILE|- NAME",
		Short: "Make an image of a root file system's tar",
		Long: `The tar may be plain, gzip or zstd. --change takes Dockerfile lines: CMD, ENTRYPOINT,
ENV, LABEL, STOPSIGNAL, USER, WORKDIR.`,
		Example: `  hutch image import -c 'CMD ["bash"]' rootfs.tar.gz mine`,
		Args:    need(2, 2, "FILE and NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			var cfg box.ImageConfig
			for _, c := range changes {
				if err := applyChange(&cfg, c); err != nil {
					return usagef("--change: %q: %v", clip(c), err)
				}
			}
			if args[1] == "" {
				return usagef("NAME: must not be empty; name the image")
			}
			var r io.Reader
			if args[0] == "-" {
				if e.term.in != nil {
					return usagef("FILE: standard input is a terminal; name a file, or redirect one to standard input")
				}
				in, release, err := readerWithContext(ctx, e.Stdin)
				if err != nil {
					return err
				}
				defer release()
				r = in
			} else {
				f, err := os.Open(e.hostPath(args[0]))
				if err != nil {
					return usagef("FILE: %v; name a tar of a root file system, or - for standard input", err)
				}
				defer f.Close()
				r = f
			}
			rt, err := e.open(ctx)
			if err != nil {
				return err
			}
			img, err := rt.Images().Import(ctx, r, args[1], cfg)
			if err != nil {
				return err
			}
			if e.json {
				return e.document(img)
			}
			return e.println(img.Digest)
		},
	}
	repeated(cmd.Flags(), &changes, "change", "c", "line", "set the image's configuration", someText)
	return cmd
}

// applyChange applies one Dockerfile line to an image's configuration.
func applyChange(cfg *box.ImageConfig, line string) error {
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	rest = strings.TrimSpace(rest)
	if rest == "" {
		return errors.New("write an instruction and its value, for example CMD [\"sh\"]")
	}
	switch strings.ToUpper(word) {
	case "CMD":
		return command(&cfg.Cmd, rest)
	case "ENTRYPOINT":
		return command(&cfg.Entrypoint, rest)
	case "ENV":
		if !strings.Contains(rest, "=") || rest[0] == '=' {
			return errors.New("write ENV KEY=value")
		}
		cfg.Env = append(cfg.Env, rest)
	case "LABEL":
		k, v, ok := strings.Cut(rest, "=")
		if !ok || k == "" {
			return errors.New("write LABEL key=value")
		}
		if cfg.Labels == nil {
			cfg.Labels = map[string]string{}
		}
		cfg.Labels[k] = v
	case "STOPSIGNAL":
		if _, err := parseSignal(rest); err != nil {
			return err
		}
		cfg.StopSignal = rest
	case "USER":
		cfg.User = rest
	case "WORKDIR":
		if !strings.HasPrefix(rest, "/") {
			return errors.New("the folder must be absolute; start it with /")
		}
		cfg.Dir = rest
	default:
		return fmt.Errorf("unknown instruction %s; use CMD, ENTRYPOINT, ENV, LABEL, STOPSIGNAL, USER or WORKDIR", clip(word))
	}
	return nil
}

// command reads a JSON list of words, or else a line for the shell.
func command(to *[]string, s string) error {
	if !strings.HasPrefix(s, "[") {
		*to = []string{"/bin/sh", "-c", s}
		return nil
	}
	var words []string
	if err := json.Unmarshal([]byte(s), &words); err != nil || len(words) == 0 {
		return errors.New(`write a JSON list of words, for example ["sh", "-c", "echo"]`)
	}
	*to = words
	return nil
}
