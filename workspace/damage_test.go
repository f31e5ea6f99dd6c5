//go:build unix

package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/hostdir"
	"github.com/hutch-sandbox/hutch/workspace/workspacetest"
)

// damaged is a folder whose commands go through a transport with a fault. It has
// no file operations of its own.
type damaged struct {
	workspace.Backend
	run func(ctx context.Context, cmd workspace.Command, inner workspace.Runner) (workspace.Result, error)
}

func (d damaged) Run(ctx context.Context, cmd workspace.Command) (workspace.Result, error) {
	return d.run(ctx, cmd, d.Backend.(workspace.Runner))
}

type runFunc = func(context.Context, workspace.Command, workspace.Runner) (workspace.Result, error)

// result makes a fault of what comes back.
func result(change func(*workspace.Result)) runFunc {
	return func(ctx context.Context, cmd workspace.Command, inner workspace.Runner) (workspace.Result, error) {
		if w := cmd.Stdout; w != nil { // what goes to a writer has the same fault
			cmd.Stdout = nil
			res, err := inner.Run(ctx, cmd)
			change(&res)
			_, werr := w.Write([]byte(res.Stdout))
			res.Stdout = ""
			return res, errors.Join(err, werr)
		}
		res, err := inner.Run(ctx, cmd)
		change(&res)
		return res, err
	}
}

func openDir(t *testing.T, dir string) workspace.Backend {
	t.Helper()
	d, err := hostdir.New(dir, hostdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// The suite fails on a backend with a fault, by the rules that are about that
// fault and not by others; and derived files never hand out damaged data.
func TestSuiteFindsFaults(t *testing.T) {
	var left sync.WaitGroup // commands that a fault does not end
	stopAll, stop := context.WithCancel(context.Background())
	t.Cleanup(func() {
		stop()
		left.Wait()
	})
	for _, c := range []struct {
		name  string
		run   runFunc
		fails []string
		holds []string
	}{
		{"nothing", func(ctx context.Context, cmd workspace.Command, inner workspace.Runner) (workspace.Result, error) {
			return inner.Run(ctx, cmd)
		}, nil, []string{"C02", "C06", "C11", "F02", "F16"}},
		{"long output is cut", result(func(r *workspace.Result) {
			r.Stdout = r.Stdout[:min(len(r.Stdout), 4000)]
		}), []string{"C04", "C20", "F25", "F27"}, []string{"C02", "C06", "F03", "F05", "F16"}},
		{"the last byte is lost", result(func(r *workspace.Result) {
			r.Stdout = r.Stdout[:max(0, len(r.Stdout)-1)]
		}), []string{"C02", "C04", "C06", "C08"}, []string{"C07", "C14", "L01"}},
		{"data is altered", result(func(r *workspace.Result) {
			if len(r.Stdout) > 100 {
				r.Stdout = strings.ToUpper(r.Stdout)
			}
		}), []string{"C04", "F25"}, []string{"C02", "C06", "C07"}},
		{"errors are mixed in", result(func(r *workspace.Result) {
			r.Stdout, r.Stderr = r.Stdout+r.Stderr, ""
		}), []string{"C03", "C06"}, []string{"C02", "C04", "F02", "F16"}},
		{"statuses are lost", result(func(r *workspace.Result) {
			r.ExitCode = 0
		}), []string{"C06", "C07", "C14", "C15", "F03", "F07", "F08", "F13"}, []string{"C02", "C04", "F02"}},
		{"statuses are 1 or 0", result(func(r *workspace.Result) {
			r.ExitCode = min(r.ExitCode, 1)
		}), []string{"C06", "C07", "F07", "F08", "F12", "F13"}, []string{"C02", "F02", "F03"}},
		{"line ends are translated", result(func(r *workspace.Result) {
			r.Stdout = strings.ReplaceAll(r.Stdout, "\n", "\r\n")
		}), []string{"C02", "C06"}, []string{"C03", "C04", "F02", "F16", "F28"}},
		{"a lost place is status 1", func(ctx context.Context, cmd workspace.Command, inner workspace.Runner) (workspace.Result, error) {
			res, err := inner.Run(ctx, cmd)
			if errors.Is(err, workspace.ErrUnavailable) {
				return workspace.Result{ExitCode: 1}, nil
			}
			return res, err
		}, []string{"L05", "L06", "L13"}, []string{"C06", "F03", "L04"}},
		{"giving up leaves the command", func(ctx context.Context, cmd workspace.Command, inner workspace.Runner) (workspace.Result, error) {
			type outcome struct {
				res workspace.Result
				err error
			}
			done := make(chan outcome, 1)
			left.Go(func() {
				res, err := inner.Run(stopAll, cmd)
				done <- outcome{res, err}
			})
			select {
			case o := <-done:
				return o.res, o.err
			case <-ctx.Done():
				return workspace.Result{}, workspace.ContextError(ctx, "run")
			}
		}, []string{"C11"}, []string{"C06", "C10", "F02"}},
		{"the caller's end is a time limit", func(ctx context.Context, cmd workspace.Command, inner workspace.Runner) (workspace.Result, error) {
			res, err := inner.Run(ctx, cmd)
			if err != nil && ctx.Err() != nil {
				err = &workspace.CommandError{Kind: workspace.ErrTimeout}
			}
			return res, err
		}, []string{"C11", "C30"}, []string{"C06", "C10"}},
		{"partial output is lost", func(ctx context.Context, cmd workspace.Command, inner workspace.Runner) (workspace.Result, error) {
			res, err := inner.Run(ctx, cmd)
			if ce, ok := errors.AsType[*workspace.CommandError](err); ok {
				ce.Stdout, ce.Stderr = "", ""
			}
			return res, err
		}, []string{"C10", "C22"}, []string{"C06", "C11"}},
		{"the host's environment leaks", func(ctx context.Context, cmd workspace.Command, inner workspace.Runner) (workspace.Result, error) {
			env := map[string]string{}
			for _, kv := range os.Environ() {
				if name, value, _ := strings.Cut(kv, "="); workspace.CheckEnv(name, value) == nil {
					env[name] = value
				}
			}
			for name, value := range cmd.Env {
				env[name] = value
			}
			cmd.Env = env
			return inner.Run(ctx, cmd)
		}, []string{"C13"}, []string{"C06", "C12"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			wrap := func(b workspace.Backend) workspace.Backend { return damaged{b, c.run} }
			report, problems := workspacetest.Check(workspacetest.Harness{
				New: func() workspace.Backend {
					dir, err := os.MkdirTemp(root, "")
					if err != nil {
						t.Error(err)
					}
					return wrap(openDir(t, dir))
				},
				Attach:  func(ref workspace.Ref) workspace.Backend { return wrap(openDir(t, ref.ID)) },
				Destroy: func(_ context.Context, ref workspace.Ref) error { return os.RemoveAll(ref.ID) },
				Only:    slices.Concat(c.fails, c.holds),
			})
			if len(problems) > 0 {
				t.Errorf("cleaning up: %v", problems)
			}
			if len(report.Outcomes) != len(c.fails)+len(c.holds) {
				t.Fatalf("%d rules ran, want %d", len(report.Outcomes), len(c.fails)+len(c.holds))
			}
			for _, o := range report.Outcomes {
				want := workspacetest.Passed
				if slices.Contains(c.fails, o.Name) {
					want = workspacetest.Failed
				}
				if o.Status != want {
					t.Errorf("%s %s, want %s: %s", o.Name, o.Status, want, strings.Join(o.Problems, "\n"))
				}
			}
		})
	}
}

// What arrives damaged is an error and never a short file, a missing one or an
// empty directory.
func TestDamagedTransfer(t *testing.T) {
	dir := t.TempDir()
	content := strings.Repeat("0123456789", 30_000)
	for name, text := range map[string]string{"file": content, "sub/a": "", "sub/b": ""} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(string) string{
		"empty":     func(string) string { return "" },
		"cut":       func(s string) string { return s[:len(s)/2] },
		"one less":  func(s string) string { return s[:max(0, len(s)-2)] },
		"repeated":  func(s string) string { return s + s },
		"with junk": func(s string) string { return "warning: something\n" + s },
	} {
		t.Run(name, func(t *testing.T) {
			ws := workspace.New(damaged{openDir(t, dir), result(func(r *workspace.Result) { r.Stdout = change(r.Stdout) })})
			for op, err := range map[string]error{
				"ReadFile": second(ws.ReadFile(t.Context(), "file")), "ReadDir": second(ws.ReadDir(t.Context(), "sub")),
				"Realpath": second(ws.Realpath(t.Context(), "sub/a")), "Stat": second(ws.Stat(t.Context(), "sub")),
			} {
				if op == "Stat" && err == nil {
					continue // two letters that mean the same twice
				}
				if !errors.Is(err, workspace.ErrDamaged) || errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s: error is %v", op, err)
				}
			}
		})
	}
	t.Run("writing", func(t *testing.T) {
		// Each command gets only a part of its last argument.
		ws := workspace.New(damaged{openDir(t, dir), func(ctx context.Context, cmd workspace.Command, inner workspace.Runner) (workspace.Result, error) {
			if last := len(cmd.Args) - 1; last > 0 && len(cmd.Args[last]) > 1000 {
				cmd.Args = slices.Clone(cmd.Args)
				cmd.Args[last] = cmd.Args[last][:1000]
			}
			return inner.Run(ctx, cmd)
		}})
		if err := ws.WriteText(t.Context(), "file", strings.Repeat("x", 100_000)); !errors.Is(err, workspace.ErrDamaged) {
			t.Errorf("WriteText: %v", err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "file")); string(got) != content || err != nil {
			t.Errorf("the file has %d bytes, %v", len(got), err)
		}
		left, err := filepath.Glob(filepath.Join(dir, ".hutch-*"))
		if len(left) > 0 || err != nil {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// A place without a program that files need says which.
func TestMissingTools(t *testing.T) {
	for _, missing := range []string{"base64", "dd", "wc", "find", "readlink", "mv"} {
		t.Run(missing, func(t *testing.T) {
			bin := t.TempDir()
			for _, tool := range []string{"base64", "cat", "cp", "dd", "find", "mkdir", "mv", "readlink", "rm", "wc"} {
				if tool == missing {
					continue
				}
				p, err := exec.LookPath(tool)
				if err != nil {
					t.Skipf("this machine itself has no %s", tool)
				}
				if err := os.Symlink(p, filepath.Join(bin, tool)); err != nil {
					t.Fatal(err)
				}
			}
			dir := t.TempDir()
			if err := errors.Join(os.WriteFile(filepath.Join(dir, "f"), []byte("old"), 0o644), os.Symlink("f", filepath.Join(dir, "link"))); err != nil {
				t.Fatal(err)
			}
			ws := workspace.New(damaged{openDir(t, dir), func(ctx context.Context, cmd workspace.Command, inner workspace.Runner) (workspace.Result, error) {
				cmd.Env = map[string]string{"PATH": bin, "LC_ALL": "C"}
				return inner.Run(ctx, cmd)
			}})
			op := map[string]error{
				"base64": second(ws.ReadFile(t.Context(), "f")), "dd": second(ws.ReadFile(t.Context(), "f")), "wc": ws.WriteText(t.Context(), "f", "new"),
				"find": second(ws.ReadDir(t.Context(), ".")), "readlink": second(ws.Realpath(t.Context(), "link")), "mv": ws.WriteText(t.Context(), "f", "new"),
			}
			err := op[missing]
			if !errors.Is(err, workspace.ErrWorkspace) || errors.Is(err, fs.ErrNotExist) || !strings.Contains(fmt.Sprint(err), "lacks "+missing) {
				t.Errorf("error is %v", err)
			}
			if missing == "mv" || missing == "wc" {
				if got, err := os.ReadFile(filepath.Join(dir, "f")); string(got) != "old" || err != nil {
					t.Errorf("the file has %q, %v", got, err)
				}
			}
		})
	}
}
