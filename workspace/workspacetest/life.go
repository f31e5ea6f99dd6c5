package workspacetest

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hutch-sandbox/hutch/workspace"
)

// lifeRules are about places: how they come to be, are found again, and end.
var lifeRules = []rule{
	{name: "L01", sentence: "a backend can do something, and says so without I/O",
		run: func(r *R) {
			if !r.ws.Supports(workspace.Commands) && !r.ws.Supports(workspace.FileOps) {
				r.Errorf("neither commands nor files")
			}
		}},
	{name: "L02", needs: files, sentence: "the ref is there after the first operation at the latest, and never changes",
		run: func(r *R) {
			ws := r.fresh()
			before, early := ws.Ref()
			r.ok(ws.WriteText(r.ctx, "f", "x"), "WriteText")
			ref, ok := ws.Ref()
			if !ok || ref.Validate() != nil {
				r.Fatalf("the ref is %v, %v", ref, ok)
			}
			if early && before != ref {
				r.Errorf("the ref was %v and is %v", before, ref)
			}
			_, err := ws.ReadText(r.ctx, "f")
			r.ok(err, "ReadText")
			if again, _ := ws.Ref(); again != ref {
				r.Errorf("the ref was %v and is %v", ref, again)
			}
		}},
	{name: "L03", needs: files, sentence: "first operations at the same time make one place",
		run: func(r *R) {
			alive := r.count()
			ws := r.fresh()
			var wg sync.WaitGroup
			refs := make([]workspace.Ref, 5)
			for i := range refs {
				wg.Go(func() {
					if err := ws.WriteText(r.ctx, "file"+strconv.Itoa(i), "x"); err != nil {
						r.Errorf("WriteText: %v", err)
					}
					refs[i], _ = ws.Ref()
				})
			}
			wg.Wait()
			if slices.ContainsFunc(refs, func(ref workspace.Ref) bool { return ref != refs[0] }) {
				r.Errorf("there are several refs: %v", refs)
			}
			entries, err := ws.ReadDir(r.ctx, ".")
			r.ok(err, "ReadDir")
			var names []string
			for _, e := range entries {
				names = append(names, e.Name)
			}
			r.equal("entries", strings.Join(names, " "), "file0 file1 file2 file3 file4")
			if alive >= 0 {
				r.equal("places more", r.count()-alive, 1)
			}
		}},
	{name: "L04", needs: files, harness: []string{"Attach"}, sentence: "a second backend from the ref finds the same files",
		run: func(r *R) {
			ws := r.fresh()
			r.ok(ws.WriteText(r.ctx, "f", "first"), "WriteText")
			ref, _ := ws.Ref()
			other := r.attach(ref)
			got, err := other.ReadText(r.ctx, "f")
			r.ok(err, "ReadText")
			r.equal("content", got, "first")
			if again, ok := other.Ref(); !ok || again != ref {
				r.Errorf("its ref is %v, want %v", again, ref)
			}
			// Both at once, then the first one closed.
			var wg sync.WaitGroup
			for name, w := range map[string]*workspace.Workspace{"a": ws, "b": other} {
				wg.Go(func() {
					for i := range 5 {
						if err := w.WriteText(r.ctx, name+strconv.Itoa(i), name); err != nil {
							r.Errorf("WriteText: %v", err)
						}
					}
				})
			}
			wg.Wait()
			r.ok(ws.Close(r.ctx), "Close")
			entries, err := other.ReadDir(r.ctx, ".")
			r.ok(err, "ReadDir")
			r.equal("entries", len(entries), 11)
			r.ok(other.Close(r.ctx), "Close")
			// A closed backend comes back to its own place.
			got, err = ws.ReadText(r.ctx, "b4")
			r.ok(err, "ReadText after Close")
			r.equal("content after Close", got, "b")
			r.ok(ws.Close(r.ctx), "Close")
			r.ok(ws.Close(r.ctx), "second Close")
			// And for a second time, with more written in between.
			r.ok(ws.WriteText(r.ctx, "later", "x"), "WriteText after Close")
			r.ok(ws.Close(r.ctx), "Close")
			got, err = r.attach(ref).ReadText(r.ctx, "later")
			r.ok(err, "ReadText")
			r.equal("content", got, "x")
		}},
	{name: "L05", needs: commands, harness: []string{"Destroy"}, sentence: "a place that is destroyed under a running command is ErrUnavailable, and no exit status",
		run: func(r *R) {
			ws := r.fresh()
			w := &notifyWriter{want: "begun\n", seen: make(chan struct{})}
			done := make(chan error, 1)
			go func() {
				res, err := ws.Run(r.ctx, workspace.Command{Shell: "echo begun; sleep 5", Stdout: w})
				if err == nil {
					r.Errorf("Run: %+v", res)
				}
				done <- err
			}()
			select {
			case <-w.seen:
				r.destroy(ws)
			case err := <-done:
				r.Fatalf("Run: %v", err)
			}
			r.is(<-done, workspace.ErrUnavailable, "Run")
		}},
	{name: "L06", needs: files, harness: []string{"Attach", "Destroy"}, sentence: "a place that was destroyed is ErrUnavailable for everything, and no new one is made",
		run: func(r *R) {
			ws := r.fresh()
			r.ok(ws.WriteText(r.ctx, "f", "x"), "WriteText")
			ref, _ := ws.Ref()
			r.destroy(ws)
			alive := r.count()
			for who, w := range map[string]*workspace.Workspace{"the old backend": ws, "a new one": workspace.New(r.suite.h.Attach(ref))} {
				ops := map[string]error{
					"ReadFile": second(w.ReadFile(r.ctx, "/f")), "WriteFile": w.WriteFile(r.ctx, "/f", nil), "Stat": second(w.Stat(r.ctx, "/")),
					"ReadDir": second(w.ReadDir(r.ctx, "/")), "MkdirAll": w.MkdirAll(r.ctx, "/d"), "Remove": w.Remove(r.ctx, "/d"),
					"Exists": second(w.Exists(r.ctx, "/")), "Open": second(w.Open(r.ctx, "/f", 0)),
				}
				if w.Supports(workspace.Realpaths) {
					ops["Realpath"] = second(w.Realpath(r.ctx, "/f"))
				}
				if w.Supports(workspace.Commands) {
					ops["Run"] = second(w.Run(r.ctx, workspace.Command{Shell: "true"}))
				}
				for op, err := range ops {
					r.is(err, workspace.ErrUnavailable, who+": "+op)
					r.isNot(err, fs.ErrNotExist, who+": "+op)
				}
				r.ok(w.Close(r.ctx), who+": Close")
			}
			if alive >= 0 {
				r.equal("places", r.count(), alive)
			}
		}},
	{name: "L07", needs: files, harness: []string{"Alive"}, sentence: "making a backend, asking for its ref and closing it do nothing",
		run: func(r *R) {
			before := r.count()
			ws := r.fresh()
			ws.Ref()
			ws.Supports(workspace.Commands)
			r.ok(ws.Close(r.ctx), "Close")
			r.equal("places", r.count(), before)
		}},
	{name: "L08", needs: commands, harness: []string{"Slow"}, sentence: "the time limit begins when the place is ready",
		run: func(r *R) {
			ws := workspace.New(r.suite.keep(r.suite.h.Slow(2 * time.Second)))
			res, err := ws.Run(r.ctx, workspace.Command{Shell: "echo ok", Timeout: time.Second})
			r.ok(err, "Run")
			r.equal("output", res.Stdout, "ok\n")
		}},
	{name: "L09", needs: files, harness: []string{"Slow", "Alive"}, sentence: "a caller that gives up while the place is being made leaves no place without a known ref",
		run: func(r *R) {
			for _, after := range []time.Duration{0, 100 * time.Millisecond, 400 * time.Millisecond} {
				before, err := r.suite.h.Alive(r.ctx)
				r.ok(err, "Alive")
				ws := workspace.New(r.suite.keep(r.suite.h.Slow(time.Second)))
				ctx, cancel := context.WithTimeout(r.ctx, after)
				err = ws.WriteText(ctx, "f", "x")
				cancel()
				r.is(err, context.DeadlineExceeded, "WriteText")
				r.isNot(err, workspace.ErrWorkspace, "WriteText")
				ref, known := ws.Ref()
				now, err := r.suite.h.Alive(r.ctx)
				r.ok(err, "Alive")
				for _, there := range now {
					if !slices.Contains(before, there) && (!known || ref != there) {
						r.Errorf("there is %v, which nobody knows", there)
					}
				}
				// The backend is still good for something.
				r.ok(ws.WriteText(r.ctx, "f", "x"), "WriteText later")
			}
		}},
	{name: "L10", needs: files, harness: []string{"Slow", "Alive"}, sentence: "one caller that gives up does not spoil it for those that wait with it",
		run: func(r *R) {
			before := r.count()
			ws := workspace.New(r.suite.keep(r.suite.h.Slow(time.Second)))
			ctx, cancel := context.WithCancel(r.ctx)
			defer cancel()
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					ctx := ctx
					if i == 3 {
						ctx = r.ctx
						// The others are waiting by now, or come later: both are fine.
						time.AfterFunc(200*time.Millisecond, cancel)
					}
					err := ws.WriteText(ctx, "f"+strconv.Itoa(i), "x")
					if i == 3 && err != nil || i != 3 && err != nil && !errors.Is(err, context.Canceled) {
						r.Errorf("caller %d: %v", i, err)
					}
				})
			}
			wg.Wait()
			r.equal("places more", r.count()-before, 1)
			_, err := ws.ReadText(r.ctx, "f3")
			r.ok(err, "ReadText")
		}},
	{name: "L11", needs: files, harness: []string{"Destroy", "Alive"}, sentence: "to destroy a place is to destroy it, in any state, twice, and with a context that has ended",
		run: func(r *R) {
			before := r.count()
			ws := r.fresh()
			r.ok(ws.WriteText(r.ctx, "f", "x"), "WriteText")
			ref, _ := ws.Ref()
			r.ok(ws.Close(r.ctx), "Close")
			ctx, cancel := context.WithCancel(r.ctx)
			cancel()
			r.ok(r.suite.h.Destroy(ctx, ref), "Destroy with a context that has ended")
			r.ok(r.suite.h.Destroy(r.ctx, ref), "Destroy again")
			r.equal("places", r.count(), before)
		}},
	{name: "L12", needs: files, harness: []string{"Destroy", "Alive", "Slow"}, sentence: "to destroy a place that is being made waits for it, and leaves none",
		run: func(r *R) {
			before := r.count()
			ws := workspace.New(r.suite.keep(r.suite.h.Slow(time.Second)))
			done := make(chan error, 1)
			go func() { done <- ws.WriteText(r.ctx, "f", "x") }()
			var ref workspace.Ref
			r.eventually("the ref", func() bool {
				var ok bool
				ref, ok = ws.Ref()
				return ok
			})
			r.ok(r.suite.h.Destroy(r.ctx, ref), "Destroy")
			if err := <-done; err != nil {
				r.is(err, workspace.ErrUnavailable, "WriteText")
			}
			r.equal("places", r.count(), before)
			r.is(ws.WriteText(r.ctx, "f", "x"), workspace.ErrUnavailable, "WriteText later")
			r.equal("places", r.count(), before)
		}},
	{name: "L13", needs: both, limits: noShell, sentence: "a working directory that was removed is an error, and no exit status or empty answer",
		run: func(r *R) {
			ws := r.fresh()
			wd, err := ws.WorkingDir(r.ctx)
			r.ok(err, "WorkingDir")
			_, err = ws.Run(r.ctx, workspace.Command{Shell: "cd / && rm -rf " + workspace.Quote(wd)})
			if err != nil {
				r.is(err, workspace.ErrUnavailable, "the command that removes it")
			}
			res, err := ws.Run(r.ctx, workspace.Command{Shell: "echo ran"})
			r.is(err, workspace.ErrWorkspace, "Run")
			r.equal("output", res.Stdout, "")
			_, err = ws.ReadDir(r.ctx, ".")
			if !errors.Is(err, workspace.ErrWorkspace) && !errors.Is(err, fs.ErrNotExist) {
				r.Errorf("ReadDir: %v", err)
			}
		}},
}

// count returns how many places there are, or -1 when nobody counts.
func (r *R) count() int {
	if r.suite.h.Alive == nil {
		return -1
	}
	refs, err := r.suite.h.Alive(r.ctx)
	r.ok(err, "Alive")
	return len(refs)
}

func (r *R) destroy(ws *workspace.Workspace) {
	ref, ok := ws.Ref()
	if !ok {
		r.Fatalf("there is no ref to destroy")
	}
	r.ok(r.suite.h.Destroy(r.ctx, ref), "Destroy")
}

// policyRules are about what stands between a backend and its user.
var policyRules = []rule{
	{name: "P01", needs: files, sentence: "ReadOnly refuses commands and every change, and reads as before",
		run: func(r *R) {
			dir := r.dir()
			name := path.Join(dir, "f")
			r.write(name, []byte("x"))
			ro := workspace.ReadOnly(r.ws)
			ops := map[string]error{
				"Run": second(ro.Run(r.ctx, workspace.Command{Shell: "touch " + path.Join(dir, "ran")})), "WriteFile": ro.WriteFile(r.ctx, name, nil),
				"WriteText": ro.WriteText(r.ctx, name, ""), "WriteFrom": ro.WriteFrom(r.ctx, name, strings.NewReader("y")),
				"MkdirAll": ro.MkdirAll(r.ctx, path.Join(dir, "d")), "Remove": ro.Remove(r.ctx, name),
			}
			for op, err := range ops {
				if op == "Run" && !ro.Supports(workspace.Commands) && errors.Is(err, workspace.ErrUnsupported) {
					r.Errorf("Run: %v, want a refusal that is about reading only", err)
				}
				r.is(err, workspace.ErrReadOnly, op)
				r.is(err, workspace.ErrWorkspace, op)
				r.is(err, fs.ErrPermission, op)
			}
			got, err := ro.ReadText(r.ctx, name)
			r.ok(err, "ReadText")
			r.equal("content", got, "x")
			f, err := ro.Open(r.ctx, name, 0)
			r.ok(err, "Open")
			r.ok(f.Close(), "Close")
			_, err = ro.Stat(r.ctx, name)
			r.ok(err, "Stat")
			there, err := ro.Exists(r.ctx, name)
			r.ok(err, "Exists")
			r.equal("existence", there, true)
			_, err = ro.Realpath(r.ctx, name)
			r.ok(err, "Realpath")
			r.equal("entries", strings.Join(r.names(dir), " "), "f")
			r.equal("ReadOnly", ro.ReadOnly() && workspace.ReadOnly(ro).ReadOnly() && !r.ws.ReadOnly(), true)
			a, aok := r.ws.Ref()
			b, bok := ro.Ref()
			if a != b || aok != bok {
				r.Errorf("its ref is %v, want %v", b, a)
			}
			if ro.Backend() != r.ws.Backend() {
				r.Errorf("Backend is %T", ro.Backend())
			}
		}},
	{name: "P02", needs: files, sentence: "a policy that embeds the workspace keeps what it can do",
		run: func(r *R) {
			wrapped := workspace.New(policy{r.ws})
			for _, f := range []workspace.Feature{workspace.Commands, workspace.FileOps, workspace.Streaming, workspace.Realpaths, workspace.Closing, workspace.Forking} {
				r.equal(string(f), wrapped.Supports(f), r.ws.Supports(f))
			}
			name := path.Join(r.dir(), "f")
			r.ok(wrapped.WriteText(r.ctx, name, "x"), "WriteText")
			got, err := wrapped.ReadText(r.ctx, name)
			r.ok(err, "ReadText")
			r.equal("content", got, "x")
		}},
}

// policy is the least that one can be.
type policy struct{ *workspace.Workspace }
