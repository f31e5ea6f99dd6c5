//go:build unix

package hostdir_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/hostdir"
	"github.com/hutch-sandbox/hutch/workspace/workspacetest"
)

// harness makes folders below the test's own.
func harness(t *testing.T) workspacetest.Harness {
	root := t.TempDir()
	open := func(dir string) workspace.Backend {
		d, err := hostdir.New(dir, hostdir.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	h := workspacetest.Harness{
		New: func() workspace.Backend {
			dir, err := os.MkdirTemp(root, "")
			if err != nil {
				t.Fatal(err)
			}
			return open(dir)
		},
		Attach:  func(ref workspace.Ref) workspace.Backend { return open(ref.ID) },
		Destroy: func(_ context.Context, ref workspace.Ref) error { return os.RemoveAll(ref.ID) },
	}
	if os.Getuid() == 0 {
		h.Limits = append(h.Limits, workspacetest.PermissionsIgnored)
	}
	return h
}

func TestConformance(t *testing.T) { workspacetest.Run(t, harness(t)) }

// commandsOnly hides everything else that a backend can do, so that its files
// are those that the workspace derives from commands.
type commandsOnly struct {
	workspace.Backend
	workspace.Runner
}

func hide(b workspace.Backend) workspace.Backend {
	return commandsOnly{b, b.(workspace.Runner)}
}

func TestConformanceCommandsOnly(t *testing.T) {
	h := harness(t)
	own, attach := h.New, h.Attach
	h.New = func() workspace.Backend { return hide(own()) }
	h.Attach = func(ref workspace.Ref) workspace.Backend { return hide(attach(ref)) }
	workspacetest.Run(t, h)
}

// filesOnly hides the commands.
type filesOnly struct {
	workspace.Backend
	workspace.Files
	workspace.Realpather
}

func TestConformanceFilesOnly(t *testing.T) {
	h := harness(t)
	hide := func(b workspace.Backend) workspace.Backend {
		return filesOnly{b, b.(workspace.Files), b.(workspace.Realpather)}
	}
	own, attach := h.New, h.Attach
	h.New = func() workspace.Backend { return hide(own()) }
	h.Attach = func(ref workspace.Ref) workspace.Backend { return hide(attach(ref)) }
	workspacetest.Run(t, h)
}

// policy is a policy that changes nothing.
type policy struct{ *workspace.Workspace }

func TestConformanceBehindPolicies(t *testing.T) {
	h := harness(t)
	wrap := func(b workspace.Backend) workspace.Backend {
		ws, err := workspace.Composite(policy{workspace.New(b)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return ws
	}
	own, attach := h.New, h.Attach
	h.New = func() workspace.Backend { return wrap(own()) }
	h.Attach = func(ref workspace.Ref) workspace.Backend { return wrap(attach(ref)) }
	workspacetest.Run(t, h)
}

func open(t *testing.T, dir string, opts hostdir.Options) *workspace.Workspace {
	t.Helper()
	d, err := hostdir.New(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	return workspace.New(d)
}

// A folder that is gone is unavailable for every operation, absolute paths
// too, and comes back only when somebody else makes it.
func TestGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	ws := open(t, dir, hostdir.Options{})
	check := func(when string) {
		t.Helper()
		for op, err := range map[string]error{
			"WorkingDir": second(ws.WorkingDir(t.Context())), "Run": second(ws.Run(t.Context(), workspace.Command{Shell: "echo ran"})),
			"ReadFile": second(ws.ReadFile(t.Context(), "/etc/passwd")), "Exists": second(ws.Exists(t.Context(), "/etc/passwd")),
			"WriteFile": ws.WriteFile(t.Context(), "f", nil), "ReadDir": second(ws.ReadDir(t.Context(), ".")),
		} {
			if !errors.Is(err, workspace.ErrUnavailable) || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %s: %v", when, op, err)
			}
		}
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("%s: the folder was made", when)
		}
	}
	check("before it is there")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// The command succeeds, in a folder that is gone by then.
	_, err := ws.Run(t.Context(), workspace.Command{Shell: "echo done; rmdir " + workspace.Quote(dir)})
	ce, ok := errors.AsType[*workspace.CommandError](err)
	if !ok || !errors.Is(err, workspace.ErrUnavailable) || ce.Stdout != "done\n" {
		t.Errorf("the command that removes it: %v", err)
	}
	check("after it is gone")
	if err := os.WriteFile(dir, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ws.ReadDir(t.Context(), "/"); !errors.Is(err, workspace.ErrUnavailable) {
		t.Errorf("a file in its place: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// Only the folder's own spelling is its ref.
func TestRef(t *testing.T) {
	root := t.TempDir()
	dir, link := filepath.Join(root, "dir"), filepath.Join(root, "link")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Symlink("dir", link)); err != nil {
		t.Fatal(err)
	}
	d, err := hostdir.New(link+"/./", hostdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ref, ok := d.Ref()
	if !ok || ref != (workspace.Ref{Provider: "hostdir", ID: link}) {
		t.Errorf("the ref is %v, %v", ref, ok)
	}
	if got, err := d.WorkingDir(t.Context()); err != nil || filepath.Base(got) != "dir" {
		t.Errorf("the working directory is %q, %v", got, err)
	}
	for _, c := range []struct {
		ref workspace.Ref
		ok  bool
	}{{ref, true}, {workspace.Ref{Provider: "hostdir", ID: dir}, false}, {workspace.Ref{Provider: "hostdir", ID: "/"}, false}, {workspace.Ref{Provider: "hutch", ID: link}, false}, {workspace.Ref{}, false}} {
		if _, err := d.Backend(c.ref); (err == nil) != c.ok || err != nil && !errors.Is(err, workspace.ErrUnknownRef) {
			t.Errorf("Backend(%v): %v", c.ref, err)
		}
	}
	if _, err := hostdir.New("", hostdir.Options{}); !errors.Is(err, workspace.ErrInvalid) {
		t.Errorf("no folder: %v", err)
	}
	if _, err := hostdir.New(dir, hostdir.Options{Env: map[string]string{"a b": "c"}}); !errors.Is(err, workspace.ErrInvalid) {
		t.Errorf("a bad variable: %v", err)
	}
}

// Of this program's environment, commands see the path, the home and the locale.
func TestEnvironment(t *testing.T) {
	for name, value := range map[string]string{"HOME": "/some/home", "LANG": "C.UTF-8", "LC_ALL": "C", "LC_CTYPE": "C", "SECRET_KEY": "s3cret", "LD_LIBRARY_PATH": "/x", "LC_TIME": "C"} {
		t.Setenv(name, value)
	}
	ws := open(t, t.TempDir(), hostdir.Options{Env: map[string]string{"LANG": "mine", "ADDED": "a b"}})
	res, err := ws.Run(t.Context(), workspace.Command{Args: []string{"env"}, Env: map[string]string{"LC_ALL": "call"}})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(res.Stdout), "\n")
	slices.Sort(got)
	want := []string{"ADDED=a b", "HOME=/some/home", "LANG=mine", "LC_ALL=call", "LC_CTYPE=C", "PATH=" + os.Getenv("PATH")}
	if !slices.Equal(got, want) {
		t.Errorf("the environment is %q, want %q", got, want)
	}
}

// A program is looked up in the command's own PATH.
func TestOwnPath(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"good": 0o755, "plain": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho "+name+"\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	ws := open(t, t.TempDir(), hostdir.Options{})
	for name, want := range map[string]int{"good": 0, "plain": 126, "absent": 127} {
		res, err := ws.Run(t.Context(), workspace.Command{Args: []string{name}, Env: map[string]string{"PATH": "/nowhere::" + dir}})
		if err != nil || res.ExitCode != want {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
	if res, err := ws.Run(t.Context(), workspace.Command{Args: []string{"good"}}); err != nil || res.ExitCode != 127 {
		t.Errorf("without the PATH: %+v, %v", res, err)
	}
}

// A file with several names stays one file.
func TestHardLinks(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := errors.Join(os.WriteFile(a, []byte("a long old content"), 0o640), os.Link(a, b)); err != nil {
		t.Fatal(err)
	}
	ws := open(t, dir, hostdir.Options{})
	if err := ws.WriteText(t.Context(), "a", "new"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(b); string(got) != "new" || err != nil {
		t.Errorf("the other name has %q, %v", got, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".hutch-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A program that was just written can be run, while others are being started.
func TestTextBusy(t *testing.T) {
	ws := open(t, t.TempDir(), hostdir.Options{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 5 {
				name := fmt.Sprintf("p%d-%d", i, j)
				if err := ws.WriteText(t.Context(), name, "#!/bin/sh\necho "+name+"\n"); err != nil {
					t.Error(err)
					return
				}
				p, err := ws.Realpath(t.Context(), name)
				if err == nil {
					err = os.Chmod(p, 0o755)
				}
				if err != nil {
					t.Error(err)
					return
				}
				if res, err := ws.Run(t.Context(), workspace.Command{Args: []string{p}}); err != nil || res.Stdout != name+"\n" {
					t.Errorf("%s: %+v, %v", name, res, err)
				}
			}
		})
	}
	wg.Wait()
}
