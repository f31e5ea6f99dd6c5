package workspacetest

import (
	"context"
	"errors"
	"path"
	"time"

	"github.com/hutch-sandbox/hutch/workspace"
)

// endRules are about commands that are ended, and those that live on.
var endRules = []rule{
	{name: "C05", needs: both, limits: []Limit{ExitAtPipeEnd}, sentence: "Run returns when the command ends, though a child it left holds its output",
		run: func(r *R) {
			dir := r.dir()
			// Nobody writes the file before Run has returned.
			res := r.run(workspace.Command{Shell: "cd " + workspace.Quote(dir) + "; (while [ ! -e release ]; do sleep 1; done; : > ended) & echo foreground"})
			r.equal("result", res, workspace.Result{Stdout: "foreground\n"})
			if there, err := r.ws.Exists(r.ctx, path.Join(dir, "ended")); there || err != nil {
				r.Errorf("the child has ended (%v)", err)
			}
			r.write(path.Join(dir, "release"), nil)
			r.eventually("the end of the child", func() bool {
				there, err := r.ws.Exists(r.ctx, path.Join(dir, "ended"))
				return there && err == nil
			})
		}},
	{name: "C10", needs: commands, sentence: "a time limit that passes is ErrTimeout with the output so far, and nothing of the context",
		run: func(r *R) {
			_, err := r.ws.Run(r.ctx, workspace.Command{Shell: "echo begun; echo err >&2; sleep 3600", Timeout: time.Second})
			r.is(err, workspace.ErrTimeout, "Run")
			r.is(err, workspace.ErrWorkspace, "Run")
			r.isNot(err, context.DeadlineExceeded, "Run")
			r.isNot(err, context.Canceled, "Run")
			r.isNot(err, workspace.ErrUnavailable, "Run")
			ce, ok := errors.AsType[*workspace.CommandError](err)
			if !ok {
				r.Fatalf("%T is no *CommandError", err)
			}
			r.equal("stdout", ce.Stdout, "begun\n")
			r.equal("stderr", ce.Stderr, "err\n")
			r.equal("timeout", ce.Timeout, time.Second)
			res := r.run(workspace.Command{Shell: "echo ok", Timeout: time.Minute})
			r.equal("a later command", res.Stdout, "ok\n")
		}},
	{name: "C11", needs: both, sentence: "a caller that gives up is let go with the context's error, and the command is gone",
		run: func(r *R) {
			dir := r.dir()
			ctx, cancel := context.WithCancelCause(r.ctx)
			defer cancel(nil)
			why := errors.New("the user pressed a key")
			done := make(chan error, 1)
			go func() {
				_, err := r.ws.Run(ctx, workspace.Command{Shell: "cd " + workspace.Quote(dir) + "; echo $$ > new; mv new pid; echo begun; exec sleep 3600"})
				done <- err
			}()
			r.eventually("the command's beginning", func() bool {
				there, err := r.ws.Exists(r.ctx, path.Join(dir, "pid"))
				return there && err == nil
			})
			cancel(why)
			err := <-done
			r.is(err, context.Canceled, "Run")
			r.is(err, why, "Run")
			r.isNot(err, workspace.ErrWorkspace, "Run")
			r.gone(path.Join(dir, "pid"))
			r.equal("a later command", r.sh(dir, "echo ok"), "ok\n")
		}},
	{name: "C30", needs: commands, sentence: "the caller's deadline is not ErrTimeout, also when the command has a limit of its own",
		run: func(r *R) {
			ctx, cancel := context.WithTimeout(r.ctx, time.Second)
			defer cancel()
			_, err := r.ws.Run(ctx, workspace.Command{Shell: "echo begun; sleep 3600", Timeout: time.Hour})
			r.is(err, context.DeadlineExceeded, "Run")
			r.isNot(err, workspace.ErrTimeout, "Run")
			r.isNot(err, workspace.ErrWorkspace, "Run")
		}},
	{name: "C31", needs: both, limits: noShell, sentence: "a time limit kills the whole tree, also those that ignore SIGTERM",
		run: func(r *R) {
			dir := r.dir()
			_, err := r.ws.Run(r.ctx, workspace.Command{Timeout: 2 * time.Second, Shell: "cd " + workspace.Quote(dir) + `
				trap '' TERM
				echo $$ > top
				sleep 3600 & echo $! > background
				/bin/sh -c 'echo $$ > inner; /bin/sh -c "echo \$\$ > innermost; sleep 3600; true"; true'
				touch late`})
			r.is(err, workspace.ErrTimeout, "Run")
			for _, pid := range []string{"top", "background", "inner", "innermost"} {
				r.gone(path.Join(dir, pid))
			}
			if there, err := r.ws.Exists(r.ctx, path.Join(dir, "late")); there || err != nil {
				r.Errorf("the script went on (%v)", err)
			}
		}},
	{name: "C32", needs: both, limits: noShell, sentence: "a child that holds the output and ignores signals does not hold up a time limit",
		run: func(r *R) {
			_, err := r.ws.Run(r.ctx, workspace.Command{Timeout: time.Second, Shell: "trap '' TERM HUP; sleep 3600 & sleep 3600"})
			r.is(err, workspace.ErrTimeout, "Run")
		}},
	{name: "C33", needs: both, limits: noShell, sentence: "a job that was left in the background, away from the output, lives on",
		run: func(r *R) {
			dir := r.dir()
			r.sh(dir, "nohup sleep 3600 > /dev/null 2>&1 & echo $! > pid")
			if !r.alive(path.Join(dir, "pid")) {
				r.Errorf("the job ended with the command that started it")
			}
			r.sh(dir, "kill -9 $(cat pid)")
			r.gone(path.Join(dir, "pid"))
		}},
}
