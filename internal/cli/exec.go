package cli

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) execCommand() *cobra.Command {
	var (
		stdin, tty, detach bool
		sigProxy           bool
		vars               environment
		workdir, user      string
		keys               = defaultDetachKeys
		timeout            time.Duration
	)
	cmd := &cobra.Command{
		Use:   "exec [flags] BOX [--] COMMAND [ARG...]",
		Short: "Run a command in a box",
		Long: `A box that does not run is started first. exec ends with the command's status.
With -d it prints the command's id, which 'hutch attach BOX ID' takes.`,
		Example: `  hutch exec -w /src dev go test ./...
  hutch exec -it dev sh`,
		Args: need(2, -1, "BOX and COMMAND"),
		RunE: func(cmd *cobra.Command, args []string) error {
			e.failure = ExitHutch
			ctx := cmd.Context()
			command := withoutDashes(args[1:])
			if len(command) == 0 {
				return usagef("COMMAND: missing; see 'hutch exec --help'")
			}
			switch {
			case command[0] == "":
				return usagef("COMMAND: must not be empty; name a program")
			case detach && stdin:
				return usagef("-i: a command that runs detached has no input; leave out -i or -d")
			case e.json && !detach:
				return usagef("--json: the output is the command's own; add -d to get the command's id as JSON")
			}
			if !detach {
				if err := e.checkTerminal(stdin, tty); err != nil {
					return err
				}
			}
			keySequence, err := parseDetachKeys(keys)
			if err != nil {
				return err
			}
			environ, err := vars.resolve(e)
			if err != nil {
				return err
			}
			b, _, err := e.find(ctx, args[0])
			if err != nil {
				return err
			}
			f := follower{env: e, what: fmt.Sprintf("exec %s: %s", args[0], clip(command[0])),
				stdin: stdin, tty: tty, sigProxy: sigProxy, detachKeys: keySequence}
			open := func(ctx context.Context) (*box.Cmd, error) {
				c := b.Command(ctx, command[0], command[1:]...)
				c.Env, c.Dir, c.User, c.TTY, c.Timeout = environ, workdir, user, tty, timeout
				if rows, cols, ok := e.term.size(); ok && tty {
					c.Rows, c.Cols = rows, cols
				}
				return c, nil
			}
			if detach {
				return e.execDetached(ctx, b, f.what, open)
			}
			return e.execForeground(ctx, b, f, open)
		},
		ValidArgsFunction: e.completeBoxes,
	}
	fs := cmd.Flags()
	docker(fs)
	fs.BoolVarP(&stdin, "interactive", "i", false, "pass standard input on")
	fs.BoolVarP(&tty, "tty", "t", false, "give the command a terminal")
	fs.BoolVarP(&detach, "detach", "d", false, "do not wait for the command")
	fs.BoolVar(&sigProxy, "sig-proxy", true, "pass signals on to the command")
	vars.register(fs)
	parsed(fs, &workdir, "workdir", "w", "dir", "working directory in the box", someText)
	parsed(fs, &user, "user", "u", "user[:group]", "name or number to run as", someText)
	parsed(fs, &keys, "detach-keys", "", "keys", "keys that leave a command with -it running (default "+defaultDetachKeys+")", parseKeys)
	parsed(fs, &timeout, "timeout", "", "duration", "kill the command after this long, with status 124", parsePositiveDuration)
	return cmd
}

func (e *env) execForeground(ctx context.Context, b *box.Box, f follower, open func(context.Context) (*box.Cmd, error)) error {
	var c *box.Cmd
	// Only a detached command survives the detach keys.
	detachable := f.stdin && f.tty && len(f.detachKeys) > 0
	status, err := f.follow(ctx, func(ctx context.Context) (*box.Cmd, error) {
		var err error
		c, err = open(ctx)
		if err == nil {
			c.Detach = detachable
		}
		return c, err
	})
	if err == nil {
		return statusError(f.what, status)
	}
	if detachable && !errors.Is(err, errDetached) && c != nil && c.ID() != "" && c.Status() == nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		// It may be gone already, and the first error is the one to report.
		_ = b.SignalProcess(undo, c.ID(), int(syscall.SIGKILL), true)
	}
	return err
}

// execDetached starts a command and leaves it running.
func (e *env) execDetached(ctx context.Context, b *box.Box, what string, open func(context.Context) (*box.Cmd, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := open(ctx)
	if err != nil {
		return err
	}
	c.Detach = true
	if err := c.Start(); err != nil {
		return err
	}
	id := c.ID()
	if err := started(ctx, b, what, id); err != nil {
		return err
	}
	cancel()
	_ = c.Wait() // it was left, which Wait reports as canceled
	if e.json {
		return e.document(struct {
			Box  string `json:"box"`
			Exec string `json:"exec"`
		}{b.ID(), id})
	}
	return e.println(id)
}

// started waits until a command that was just started really runs, and fails
// when its program is not there.
func started(ctx context.Context, b *box.Box, what, id string) error {
	for {
		p, err := findProcess(ctx, b, id)
		if err != nil {
			return err
		}
		if !p.Running && p.Exit != nil && p.Exit.Reason == box.NotStarted {
			return statusError(what, *p.Exit)
		}
		if !p.Running || p.Pid > 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
