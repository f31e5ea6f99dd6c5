package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

// undoTime is how long cleaning up behind a command that was ended may take.
const undoTime = 15 * time.Second

func (e *env) runCommand() *cobra.Command {
	var (
		f        specFlags
		detach   bool
		sigProxy bool
		keys     = defaultDetachKeys
		timeout  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "run [flags] [IMAGE] [--] [COMMAND [ARG...]]",
		Short: "Run a command in a new box",
		Long: `Without IMAGE the box has the small userland that is part of Hutch; write -- before
the command then. Flags go before IMAGE. Without -d, run passes output and signals
on and ends with the command's status; the stopped box is kept, see --rm.`,
		Example: `  hutch run --rm -v ./src:/src:ro -w /src python:3.12-slim python main.py
  hutch run -it --rm
  hutch run -- sh -c 'echo hello'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			e.failure = ExitHutch
			spec, err := f.spec(e, args)
			if err != nil {
				return err
			}
			keySequence, err := parseDetachKeys(keys)
			if err != nil {
				return err
			}
			spec.Detach = detach
			if detach {
				if timeout > 0 {
					return usagef("--timeout: nobody is there to watch it with -d; leave out one of them")
				}
				return e.runDetached(cmd.Context(), spec, f.quiet)
			}
			switch {
			case f.idle:
				return usagef("--idle: there is no command to wait for; add -d")
			case spec.Restart.When != box.RestartNo:
				return usagef("--restart: a command in the foreground runs once; add -d")
			case e.json:
				return usagef("--json: the output is the command's own; add -d to get the box as JSON")
			}
			if err := e.checkTerminal(f.stdin, f.tty); err != nil {
				return err
			}
			// Whoever types the detach keys wants the box to run on.
			spec.Detach = f.stdin && f.tty && len(keySequence) > 0
			return e.runForeground(cmd.Context(), spec, f.quiet, follower{
				env: e, stdin: f.stdin, tty: f.tty, sigProxy: sigProxy, detachKeys: keySequence, timeout: timeout,
			})
		},
		ValidArgsFunction: e.completeImages,
	}
	fs := cmd.Flags()
	f.register(fs)
	fs.BoolVarP(&detach, "detach", "d", false, "print the box's id and let it run")
	fs.BoolVar(&sigProxy, "sig-proxy", true, "pass signals on to the command")
	parsed(fs, &keys, "detach-keys", "", "keys", "keys that leave a box with -it running (default "+defaultDetachKeys+")", parseKeys)
	parsed(fs, &timeout, "timeout", "", "duration", "end the box after this long, with status 124", parsePositiveDuration)
	return cmd
}

func (e *env) runDetached(ctx context.Context, spec box.Spec, quiet bool) error {
	b, err := e.createBox(ctx, spec, quiet)
	if err != nil {
		return err
	}
	if spec.HasMain() {
		err = e.startMain(ctx, b, "run "+b.Name()+": "+commandName(spec))
	} else {
		err = b.Start(ctx)
	}
	if err != nil {
		return e.giveUp(ctx, b, spec, err)
	}
	// An ephemeral box whose command was quick is gone by now.
	info, err := b.Info(ctx)
	if e.json {
		if errors.Is(err, box.ErrNotFound) {
			info = box.Info{ID: b.ID(), Name: b.Name(), State: box.Removed, Spec: spec}
		} else if err != nil {
			return err
		}
		return e.document(info)
	}
	return e.println(b.ID())
}

// startPatience is how long a main command is watched after its start in the
// background: a program that is not there ends at once.
const startPatience = 100 * time.Millisecond

// startMain starts a box and leaves its main command running. It fails when
// the command cannot be started.
func (e *env) startMain(ctx context.Context, b *box.Box, what string) error {
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := b.AttachMain(watch, box.AttachOptions{}) // boots the box
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		return err
	}
	timer := time.AfterFunc(startPatience, cancel)
	defer timer.Stop()
	_ = c.Wait() // whether it ended is what Status says
	if s := c.Status(); s != nil && s.Reason == box.NotStarted {
		return statusError(what, *s)
	}
	return context.Cause(ctx)
}

func (e *env) runForeground(ctx context.Context, spec box.Spec, quiet bool, f follower) error {
	b, err := e.createBox(ctx, spec, quiet)
	if err != nil {
		return err
	}
	f.what = "run " + b.Name()
	status, err := f.follow(ctx, func(ctx context.Context) (*box.Cmd, error) {
		return b.AttachMain(ctx, box.AttachOptions{})
	})
	if err == nil {
		if err := awaitStop(ctx, b, spec); err != nil {
			return err
		}
		return statusError(f.what+": "+commandName(spec), status)
	}
	if errors.Is(err, errDetached) {
		return err
	}
	err = e.giveUp(ctx, b, spec, err)
	if errors.Is(err, errTimedOut) {
		return &exitError{ExitTimeout, fmt.Errorf("%s: timed out after %v and was killed; give it longer with --timeout", f.what, f.timeout)}
	}
	return err
}

// awaitStop waits for the end of a box whose main command has ended: whoever
// runs "hutch ps" next sees it stopped, or, if it is ephemeral, gone, and what
// the command wrote is on the disk. A box that restarts its command is not
// waited for.
func awaitStop(ctx context.Context, b *box.Box, spec box.Spec) error {
	if spec.Restart.When != box.RestartNo {
		return nil
	}
	waitCtx, cancel := context.WithTimeout(ctx, undoTime)
	defer cancel()
	if _, err := b.Wait(waitCtx); err != nil && !errors.Is(err, box.ErrNotFound) && ctx.Err() == nil {
		return err
	}
	return nil
}

// giveUp ends a box that must not run on unseen after err, and finishes what
// --rm asks for. It returns err, with what went wrong meanwhile.
func (e *env) giveUp(ctx context.Context, b *box.Box, spec box.Spec, err error) error {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	uerr := b.Kill(undo)
	if spec.Ephemeral {
		uerr = b.Remove(undo)
	}
	if uerr != nil && !errors.Is(uerr, box.ErrNotFound) {
		e.complain(uerr)
	}
	return err
}

// commandName is the command a spec names itself, for messages.
func commandName(s box.Spec) string {
	words := append(append([]string{}, s.Entrypoint...), s.Cmd...)
	if len(words) == 0 {
		return "main command"
	}
	return strings.TrimSpace(clip(words[0]))
}
