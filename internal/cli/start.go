package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) startCommand() *cobra.Command {
	var (
		attach, stdin bool
		sigProxy      bool
		keys          = defaultDetachKeys
		secrets       []secretFlag
	)
	cmd := &cobra.Command{
		Use:   "start [flags] BOX...",
		Short: "Start boxes that are stopped",
		Long: `With -a it joins the main command's output, and with -i its input too, and ends
with its status. A box that was made by run in the foreground lives only as long
as somebody uses it: start it with -a, or use exec.`,
		Example: `  hutch start -a job
  hutch start web db`,
		Args: need(1, -1, "BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			keySequence, err := parseDetachKeys(keys)
			if err != nil {
				return err
			}
			values, err := e.readValues(secrets)
			if err != nil {
				return err
			}
			if !attach && !stdin {
				r := &results{env: e}
				return r.finish(e.each(ctx, args, func(ref string) error {
					b, info, err := e.find(ctx, ref)
					if err == nil {
						err = needDetached(ref, info)
					}
					if err == nil {
						err = giveSecrets(ctx, b, values)
					}
					if err == nil {
						err = b.Start(ctx)
					}
					if err != nil {
						return err
					}
					return r.add(ref, result{ID: b.ID(), Name: b.Name()})
				}))
			}
			switch {
			case len(args) > 1:
				return usagef("%q: only one box can be joined at once; leave out -a and -i, or name one box", clip(args[1]))
			case e.json:
				return usagef("--json: the output is the command's own; leave out -a and -i")
			}
			return e.startAttached(ctx, args[0], values, follower{env: e, stdin: stdin, sigProxy: sigProxy, detachKeys: keySequence})
		},
		ValidArgsFunction: e.completeBoxes,
	}
	fs := cmd.Flags()
	fs.BoolVarP(&attach, "attach", "a", false, "join the main command's output")
	fs.BoolVarP(&stdin, "interactive", "i", false, "join the main command's input, too")
	repeated(fs, &secrets, "secret", "", "name[=source]", "hand over the value of a secret of the boxes", parseValue)
	fs.BoolVar(&sigProxy, "sig-proxy", true, "pass signals on to the command")
	parsed(fs, &keys, "detach-keys", "", "keys", "keys that leave the command running (default "+defaultDetachKeys+")", parseKeys)
	return cmd
}

// giveSecrets hands values to a box that is about to start.
func giveSecrets(ctx context.Context, b *box.Box, values map[string]string) error {
	if len(values) == 0 {
		return nil
	}
	return b.SetSecrets(ctx, values)
}

func (e *env) startAttached(ctx context.Context, ref string, values map[string]string, f follower) error {
	b, info, err := e.find(ctx, ref)
	if err != nil {
		return err
	}
	switch {
	case info.Main == nil && !info.Spec.HasMain():
		return &box.Error{Kind: box.Invalid, Op: "start", Object: ref,
			Err: errors.New("the box has no main command to join"), Hint: "leave out -a and -i, then use 'hutch exec'"}
	case f.stdin && !info.Spec.Stdin:
		return &box.Error{Kind: box.Invalid, Op: "start", Object: ref,
			Err: errors.New("its main command takes no input"), Hint: "create the box with -i, or start it with -a alone"}
	}
	f.what, f.tty = "start "+ref, info.Spec.TTY
	if !info.Spec.Detach {
		f.detachKeys = nil // there is nothing that would go on
	}
	if err := e.checkTerminal(f.stdin, f.tty); err != nil {
		return err
	}
	if err := giveSecrets(ctx, b, values); err != nil {
		return err
	}
	status, err := f.follow(ctx, func(ctx context.Context) (*box.Cmd, error) {
		return b.AttachMain(ctx, box.AttachOptions{})
	})
	if err != nil {
		return err
	}
	if err := awaitStop(ctx, b, info.Spec); err != nil {
		return err
	}
	return statusError(f.what, status)
}

// needDetached refuses to start a box that would stop again as soon as this
// program ends.
func needDetached(ref string, info box.Info) error {
	if info.Spec.Detach || info.State == box.Running {
		return nil
	}
	return &box.Error{Kind: box.Conflict, Op: "start", Object: ref,
		Err:  fmt.Errorf("the box is not detached and would stop as soon as nobody uses it"),
		Hint: "use 'hutch start -a " + ref + "' or 'hutch exec', or make boxes with 'run -d' or 'create'"}
}
