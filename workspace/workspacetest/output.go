package workspacetest

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"

	"github.com/hutch-sandbox/hutch/workspace"
)

// outputRules are about how much output there is, and when.
var outputRules = []rule{
	{name: "C20", needs: commands, sentence: "the two outputs are complete and apart, however much goes to one of them",
		run: func(r *R) {
			res := r.run(workspace.Command{Shell: "yes 1234567 2>/dev/null | head -c 1048576; echo E >&2; exit 3"})
			r.equal("status", res.ExitCode, 3)
			r.equal("stderr", res.Stderr, "E\n")
			r.same("stdout", []byte(res.Stdout), bytes.Repeat([]byte("1234567\n"), 1<<17))
			res = r.run(workspace.Command{Shell: "yes 1234567 2>/dev/null | head -c 1000000 >&2; echo ok"})
			r.equal("stdout", res.Stdout, "ok\n")
			r.equal("length of stderr", len(res.Stderr), 1000000)
		}},
	{name: "C21", needs: commands, sentence: "output up to the limit is a result, both streams together",
		run: func(r *R) {
			half := workspace.OutputLimit / 2
			res := r.run(workspace.Command{Shell: fmt.Sprintf("yes 2>/dev/null | head -c %d; yes 2>/dev/null | head -c %d >&2", half, half)})
			r.equal("length", len(res.Stdout)+len(res.Stderr), workspace.OutputLimit)
		}},
	{name: "C22", needs: both, sentence: "output beyond the limit is ErrOutputLimit with the beginning of each stream, and the command is gone",
		run: func(r *R) {
			dir := r.dir()
			for name, script := range map[string]string{
				"one":  "exec yes abcdefg",
				"both": "yes 1234567 2>/dev/null | head -c 6000000; yes abcdefg 2>/dev/null | head -c 6000000 >&2; sleep 3600",
			} {
				_, err := r.ws.Run(r.ctx, workspace.Command{Shell: "cd " + workspace.Quote(dir) + "; echo $$ > " + name + "; " + script})
				r.is(err, workspace.ErrOutputLimit, name)
				r.is(err, workspace.ErrWorkspace, name)
				ce, ok := errors.AsType[*workspace.CommandError](err)
				if !ok {
					r.Fatalf("%s: %T is no *CommandError", name, err)
				}
				r.equal("limit", ce.Limit, int64(workspace.OutputLimit))
				r.equal("preview of stdout", len(ce.Stdout), workspace.PreviewLimit)
				if name == "both" {
					r.equal("preview of stderr", len(ce.Stderr), workspace.PreviewLimit)
				}
				r.gone(path.Join(dir, name))
			}
			r.equal("a later command", r.sh(dir, "echo ok"), "ok\n")
		}},
	{name: "C23", needs: both, sentence: "a writer gets the output as it comes, byte for byte, and the result none of it",
		run: func(r *R) {
			dir := r.dir()
			w := &notifyWriter{want: "one\n", seen: make(chan struct{})}
			done := make(chan workspace.Result, 1)
			go func() {
				defer close(done)
				// Ends only when the writer was given what came first.
				res, err := r.ws.Run(r.ctx, workspace.Command{Stdout: w, Shell: "cd " + workspace.Quote(dir) +
					" && echo one && while [ ! -e go ]; do sleep 1; done; printf '\\377two'; echo err >&2"})
				if err != nil {
					r.Errorf("Run: %v", err)
				}
				done <- res
			}()
			select {
			case <-w.seen:
				r.write(path.Join(dir, "go"), nil)
			case <-r.ctx.Done():
				r.Errorf("the output does not come before the end")
			}
			res := <-done
			r.equal("result", res, workspace.Result{Stderr: "err\n"})
			r.equal("written", w.String(), "one\n\xfftwo")
		}},
	{name: "C24", needs: commands, sentence: "output to a writer is not limited",
		run: func(r *R) {
			const n = workspace.OutputLimit + 2<<20
			var w countWriter
			res := r.run(workspace.Command{Stdout: &w, Shell: fmt.Sprintf("yes 1234567 | head -c %d", n)})
			r.equal("status", res.ExitCode, 0)
			r.equal("bytes", w.n, n)
		}},
	{name: "C25", needs: both, sentence: "one writer for both outputs is never called twice at once",
		run: func(r *R) {
			var w countWriter // is a race when it is
			r.run(workspace.Command{Stdout: &w, Stderr: &w, Shell: "i=0; while [ $i -lt 200 ]; do echo 1234567; echo 1234567 >&2; i=$((i+1)); done"})
			r.equal("bytes", w.n, 3200)
		}},
	{name: "C26", needs: both, sentence: "a writer that fails stops the command, and its failure is the error",
		run: func(r *R) {
			dir := r.dir()
			bad := errors.New("the reader went away")
			_, err := r.ws.Run(r.ctx, workspace.Command{Stdout: failWriter{bad}, Shell: "cd " + workspace.Quote(dir) + "; echo $$ > pid; exec yes"})
			r.is(err, bad, "Run")
			r.gone(path.Join(dir, "pid"))
		}},
}

type notifyWriter struct {
	mu   sync.Mutex
	buf  strings.Builder
	want string
	once sync.Once
	seen chan struct{}
}

func (w *notifyWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(p)
	if strings.Contains(w.buf.String(), w.want) {
		w.once.Do(func() { close(w.seen) })
	}
	return len(p), nil
}

func (w *notifyWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

type countWriter struct{ n int }

func (w *countWriter) Write(p []byte) (int, error) {
	w.n += len(p)
	return len(p), nil
}

type failWriter struct{ err error }

func (w failWriter) Write([]byte) (int, error) { return 0, w.err }
