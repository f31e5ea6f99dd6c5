package workspacetest

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/hutch-sandbox/hutch/workspace"
)

var (
	commands = []workspace.Feature{workspace.Commands}
	both     = []workspace.Feature{workspace.Commands, workspace.FileOps}
	files    = []workspace.Feature{workspace.FileOps}
	noShell  = []Limit{NoShell}
)

// commandRules are about what a command gets and what it leaves.
var commandRules = []rule{
	{name: "C01", needs: both, sentence: "a command that is malformed is ErrInvalid, and nothing runs",
		run: func(r *R) {
			dir := r.dir()
			ran := path.Join(dir, "ran")
			touch := []string{"touch", ran}
			for what, cmd := range map[string]workspace.Command{
				"both":             {Args: touch, Shell: "touch " + ran},
				"neither":          {},
				"empty argv":       {Args: []string{}},
				"empty program":    {Args: []string{"", ran}},
				"negative timeout": {Args: touch, Timeout: -1},
				"NUL":              {Args: []string{"touch", ran + "\x00"}},
				"NUL in script":    {Shell: "touch " + ran + "\x00"},
				"= in a name":      {Args: touch, Env: map[string]string{"A=B": "x"}},
				"no name":          {Args: touch, Env: map[string]string{"": "x"}},
				"- in a name":      {Args: touch, Env: map[string]string{"A-B": "x"}},
				"digit first":      {Args: touch, Env: map[string]string{"1A": "x"}},
				"NUL in a value":   {Args: touch, Env: map[string]string{"A": "\x00"}},
				"too long":         {Args: []string{"touch", ran, strings.Repeat("x", 128<<10)}},
			} {
				_, err := r.ws.Run(r.ctx, cmd)
				r.is(err, workspace.ErrInvalid, what)
				r.is(err, fs.ErrInvalid, what)
				r.isNot(err, workspace.ErrWorkspace, what)
			}
			if there, err := r.ws.Exists(r.ctx, ran); there || err != nil {
				r.Errorf("a command ran (%v)", err)
			}
		}},
	{name: "C02", needs: commands, sentence: "standard input is at its end",
		run: func(r *R) {
			res := r.run(workspace.Command{Shell: "if read -r x; then echo got; else echo eof; fi"})
			r.equal("output", res.Stdout, "eof\n")
			r.equal("status", res.ExitCode, 0)
			res = r.run(workspace.Command{Args: []string{"cat"}})
			r.equal("output of cat", res.Stdout, "")
			r.equal("status of cat", res.ExitCode, 0)
		}},
	{name: "C03", needs: commands, sentence: "each byte that is not UTF-8 arrives as one U+FFFD",
		run: func(r *R) {
			res := r.run(workspace.Command{Shell: `printf '\377'; printf '\376' >&2`})
			r.equal("stdout", res.Stdout, "\ufffd")
			r.equal("stderr", res.Stderr, "\ufffd")
			res = r.run(workspace.Command{Shell: `printf 'a\377\376b\303\244'`})
			r.equal("stdout", res.Stdout, "a\ufffd\ufffdbä")
		}},
	{name: "C04", needs: commands, sentence: "many small writes arrive complete and in order",
		run: func(r *R) {
			res := r.run(workspace.Command{Shell: `i=0; while [ $i -lt 1024 ]; do printf 'conform!!'; i=$((i+1)); done`})
			r.equal("status", res.ExitCode, 0)
			r.same("stdout", []byte(res.Stdout), []byte(strings.Repeat("conform!!", 1024)))
		}},
	{name: "C06", needs: commands, sentence: "a status that is not zero is a result, with both outputs",
		run: func(r *R) {
			res := r.run(workspace.Command{Shell: "echo out; echo err >&2; exit 7"})
			r.equal("result", res, workspace.Result{ExitCode: 7, Stdout: "out\n", Stderr: "err\n"})
		}},
	{name: "C07", needs: commands, sentence: "a program that is not there is status 127",
		run: func(r *R) {
			for _, name := range []string{"no-such-program-here", "/no/such/program"} {
				res := r.run(workspace.Command{Args: []string{name, "x"}})
				r.equal("status of "+name, res.ExitCode, 127)
			}
			res := r.run(workspace.Command{Shell: "no-such-program-here"})
			r.equal("status in a shell", res.ExitCode, 127)
		}},
	{name: "C08", needs: commands, sentence: "arguments arrive as they are",
		run: func(r *R) {
			args := []string{`quo"te`, "it's", "$(id)", "`id`", "a;b", "c && d", "two words", "", "*", `back\slash`, "new\nline", "ä\u00a0", "-n", "--", "$HOME", "~"}
			res := r.run(workspace.Command{Args: append([]string{"/bin/sh", "-c", `for a do printf '[%s]' "$a"; done`, "sh"}, args...)})
			r.equal("arguments", res.Stdout, "["+strings.Join(args, "][")+"]")
		}},
	{name: "C09", needs: commands, sentence: "the working directory is absolute, clean, without links, stable, and where commands start",
		run: func(r *R) {
			wd, err := r.ws.WorkingDir(r.ctx)
			r.ok(err, "WorkingDir")
			if !path.IsAbs(wd) || path.Clean(wd) != wd {
				r.Errorf("%q is not absolute and clean", wd)
			}
			pwd := "pwd -P"
			if slices.Contains(r.suite.h.Limits, NoShell) {
				pwd = "pwd"
			}
			res := r.run(workspace.Command{Args: []string{"/bin/sh", "-c", pwd}})
			r.equal(pwd, res.Stdout, wd+"\n")
			res = r.run(workspace.Command{Shell: pwd})
			r.equal(pwd+" in a shell", res.Stdout, wd+"\n")
			again, err := r.ws.WorkingDir(r.ctx)
			r.ok(err, "WorkingDir again")
			r.equal("the second answer", again, wd)
		}},
	{name: "C12", needs: commands, sentence: "the call's environment is laid over the place's, and is gone afterwards",
		run: func(r *R) {
			show := `printf '%s %s' "$CONFORM" "${PATH:+path}"`
			res := r.run(workspace.Command{Shell: show, Env: map[string]string{"CONFORM": "it's $X"}})
			r.equal("output", res.Stdout, "it's $X path")
			res = r.run(workspace.Command{Shell: show})
			r.equal("output of the next one", res.Stdout, " path")
			res = r.run(workspace.Command{Shell: `printf %s "$PATH"`, Env: map[string]string{"PATH": "/elsewhere"}})
			r.equal("PATH", res.Stdout, "/elsewhere")
		}},
	{name: "C13", needs: commands, sentence: "nothing of the host's environment is visible",
		run: func(r *R) {
			res := r.run(workspace.Command{Args: []string{"env"}})
			if strings.Contains(res.Stdout, canary) {
				r.Errorf("a command sees %s, a variable of the host", canary)
			}
			res = r.run(workspace.Command{Shell: `printf %s "$` + canary + `"`})
			r.equal("the variable", res.Stdout, "")
		}},
	{name: "C14", needs: commands, sentence: "a program that a signal ends is 128 plus its number; statuses above 128 pass",
		run: func(r *R) {
			for script, want := range map[string]int{"kill -9 $$": 137, "kill -TERM $$": 143, "exit 128": 128, "exit 200": 200, "exit 255": 255} {
				res := r.run(workspace.Command{Args: []string{"/bin/sh", "-c", script}})
				r.equal("status of "+script, res.ExitCode, want)
			}
		}},
	{name: "C15", needs: both, sentence: "a program that cannot be executed is status 126",
		run: func(r *R) {
			dir := r.dir()
			r.write(path.Join(dir, "plain"), []byte("#!/bin/sh\necho ran\n"))
			for _, name := range []string{path.Join(dir, "plain"), dir} {
				res := r.run(workspace.Command{Args: []string{name}})
				r.equal("status of "+path.Base(name), res.ExitCode, 126)
				r.equal("output of "+path.Base(name), res.Stdout, "")
			}
		}},
	{name: "C16", needs: both, sentence: "a script that was written and made executable runs, and finds its interpreter or is 127",
		run: func(r *R) {
			dir := r.dir()
			r.write(path.Join(dir, "good"), []byte("#!/bin/sh\necho \"good $1\"\n"))
			r.write(path.Join(dir, "bad"), []byte("#!/no/such/interpreter\n"))
			r.sh(dir, "chmod +x good bad")
			res := r.run(workspace.Command{Args: []string{path.Join(dir, "good"), "one"}})
			r.equal("output", res.Stdout, "good one\n")
			res = r.run(workspace.Command{Args: []string{"./" + path.Join(r.name, "good"), "two"}})
			r.equal("output by a relative name", res.Stdout, "good two\n")
			res = r.run(workspace.Command{Args: []string{path.Join(dir, "bad")}})
			r.equal("status without interpreter", res.ExitCode, 127)
		}, limits: noShell},
	{name: "C17", needs: commands, sentence: "commands at the same time do not mix",
		run: func(r *R) {
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					want := strings.Repeat(fmt.Sprintf("%d-", i), 500)
					res, err := r.ws.Run(r.ctx, workspace.Command{Shell: fmt.Sprintf("i=0; while [ $i -lt 500 ]; do printf %d-; i=$((i+1)); done; exit %d", i, i)})
					if err != nil || res.Stdout != want || res.ExitCode != i {
						r.Errorf("command %d: status %d, %d bytes, %v", i, res.ExitCode, len(res.Stdout), err)
					}
				})
			}
			wg.Wait()
		}},
	{name: "C18", needs: both, sentence: "a context that has ended runs nothing and touches nothing",
		run: func(r *R) {
			dir := r.dir()
			ran := path.Join(dir, "ran")
			ctx, cancel := context.WithCancel(r.ctx)
			cancel()
			_, err := r.ws.Run(ctx, workspace.Command{Args: []string{"touch", ran}})
			r.is(err, context.Canceled, "Run")
			r.isNot(err, workspace.ErrWorkspace, "Run")
			r.is(r.ws.WriteFile(ctx, ran, nil), context.Canceled, "WriteFile")
			r.is(r.ws.MkdirAll(ctx, ran), context.Canceled, "MkdirAll")
			_, err = r.ws.Exists(ctx, ran)
			r.is(err, context.Canceled, "Exists")
			if there, err := r.ws.Exists(r.ctx, ran); there || err != nil {
				r.Errorf("something happened (%v)", err)
			}
		}},
}
