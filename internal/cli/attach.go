package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) attachCommand() *cobra.Command {
	var (
		noStdin  bool
		sigProxy bool
		keys     = defaultDetachKeys
	)
	cmd := &cobra.Command{
		Use:   "attach [flags] BOX [EXEC]",
		Short: "Join a command that runs in a box",
		Long: `Without EXEC it is the box's main command, from now on ('hutch logs' has what was
before). EXEC is the id that 'hutch exec -d' printed; the output that is kept is
shown from the start. attach ends with the command's status.`,
		Example: `  hutch attach web
  hutch attach dev $(hutch exec -d dev make)`,
		Args: need(1, 2, "BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if e.json {
				return usagef("--json: the output is the command's own; leave it out")
			}
			keySequence, err := parseDetachKeys(keys)
			if err != nil {
				return err
			}
			b, info, err := e.find(ctx, args[0])
			if err != nil {
				return err
			}
			if info.State != box.Running {
				return &box.Error{Kind: box.Conflict, Op: "attach", Object: args[0],
					Err: fmt.Errorf("the box is %s", info.State), Hint: "start it with 'hutch start -a " + args[0] + "'"}
			}
			id := box.MainProcess
			if len(args) == 2 {
				id = args[1]
			} else if info.Main == nil {
				return &box.Error{Kind: box.Invalid, Op: "attach", Object: args[0],
					Err: errors.New("the box has no main command"), Hint: "name a command that 'hutch exec -d' started"}
			}
			p, err := findProcess(ctx, b, id)
			if err != nil {
				return err
			}
			opts := box.AttachOptions{}
			if len(args) == 1 {
				opts.Offset = p.Output
			}
			f := follower{env: e, what: "attach " + args[0], stdin: !noStdin, tty: p.TTY, sigProxy: sigProxy, detachKeys: keySequence}
			if len(args) == 1 && !info.Spec.Stdin {
				f.stdin = false
			}
			if err := e.checkTerminal(f.stdin, f.tty); err != nil {
				return err
			}
			status, err := f.follow(ctx, func(ctx context.Context) (*box.Cmd, error) {
				return b.Attach(ctx, id, opts)
			})
			if err != nil {
				return err
			}
			return statusError(f.what, status)
		},
		ValidArgsFunction: e.completeBoxes,
	}
	fs := cmd.Flags()
	fs.BoolVar(&noStdin, "no-stdin", false, "do not pass standard input on")
	fs.BoolVar(&sigProxy, "sig-proxy", true, "pass signals on to the command")
	parsed(fs, &keys, "detach-keys", "", "keys", "keys that leave the command (default "+defaultDetachKeys+")", parseKeys)
	return cmd
}

// findProcess finds a command of a running box by its id.
func findProcess(ctx context.Context, b *box.Box, id string) (box.ProcessInfo, error) {
	ps, err := b.Processes(ctx)
	if err != nil {
		return box.ProcessInfo{}, err
	}
	for _, p := range ps {
		if p.ID == id {
			return p, nil
		}
	}
	return box.ProcessInfo{}, &box.Error{Kind: box.NotFound, Op: "attach", Object: b.Name(),
		Err: fmt.Errorf("no command %q", clip(id)), Hint: "give the id that 'hutch exec -d' printed, or leave it out for the main command"}
}
