package workspace

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/local"
	"github.com/hutch-sandbox/hutch/box/local/embed"
	"github.com/hutch-sandbox/hutch/internal/x/realengine"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
	"github.com/hutch-sandbox/hutch/workspace/workspacetest"
)

// The test program is its own helper.
func TestMain(m *testing.M) {
	embed.Init()
	os.Exit(m.Run())
}

// open opens a home of its own, which has to be empty of boxes in the end.
func open(t *testing.T) *box.Runtime { return openOn(t, "gvisor") }

// openOn is open for boxes of an engine.
func openOn(t *testing.T, engine string) *box.Runtime {
	t.Helper()
	realengine.Need(t, engine)
	home, err := os.MkdirTemp("", "hutch-test-")
	if err != nil {
		t.Fatal(err)
	}
	if engine == "vm" {
		realengine.Kernel(t, home)
	}
	rt, err := local.Open(t.Context(), local.Config{Home: home, Engine: engine})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		infos, err := rt.List(ctx, box.ListOptions{})
		if err != nil {
			t.Error(err)
		}
		for _, info := range infos {
			t.Errorf("box %s is left", info.Name)
			if err := rt.Remove(ctx, info.ID, true); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(rt.Close(), os.RemoveAll(home)); err != nil {
			t.Error(err)
		}
	})
	return rt
}

func harness(t *testing.T, rt *box.Runtime) workspacetest.Harness {
	return harnessWith(t, rt, sandbox.Options{})
}

func harnessWith(t *testing.T, rt *box.Runtime, opts sandbox.Options) workspacetest.Harness {
	opts.Logger = slog.New(slog.DiscardHandler)
	p, err := sandbox.New(rt, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return workspacetest.Harness{
		New: p.New,
		Attach: func(ref workspace.Ref) workspace.Backend {
			b, err := p.Backend(ref)
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		Destroy: p.Destroy,
		Alive: func(ctx context.Context) ([]workspace.Ref, error) {
			infos, err := rt.List(ctx, box.ListOptions{})
			var refs []workspace.Ref
			for _, info := range infos {
				refs = append(refs, workspace.Ref{Provider: sandbox.ProviderName, ID: info.Name})
			}
			return refs, err
		},
		// Every file operation is several commands where files are derived from
		// them, and machines are busy.
		Patience: 10 * time.Minute,
		// The builtin image's user is root.
		Limits: []workspacetest.Limit{workspacetest.PermissionsIgnored},
	}
}

func TestBox(t *testing.T) { workspacetest.Run(t, harness(t, open(t))) }

func TestBoxVM(t *testing.T) { workspacetest.Run(t, harness(t, openOn(t, "vm"))) }

// commandsOnly hides everything else that a box can do, so that files are those
// which the workspace derives from commands.
type commandsOnly struct {
	workspace.Backend
	workspace.Runner
	workspace.Closer
}

func TestBoxCommandsOnly(t *testing.T) {
	h := harness(t, open(t))
	hide := func(b workspace.Backend) workspace.Backend {
		return commandsOnly{b, b.(workspace.Runner), b.(workspace.Closer)}
	}
	own, attach := h.New, h.Attach
	h.New = func() workspace.Backend { return hide(own()) }
	h.Attach = func(ref workspace.Ref) workspace.Backend { return hide(attach(ref)) }
	workspacetest.Run(t, h)
}

// As an ordinary user of the box, permissions bind what is derived from commands,
// and what the box's own file operations make belongs to that user.
func TestBoxAsUser(t *testing.T) {
	for name, wrap := range map[string]func(workspace.Backend) workspace.Backend{
		"own files": func(b workspace.Backend) workspace.Backend { return b },
		"derived files": func(b workspace.Backend) workspace.Backend {
			return commandsOnly{b, b.(workspace.Runner), b.(workspace.Closer)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := harnessWith(t, open(t), sandbox.Options{Spec: box.Spec{User: "1000:1000"}})
			own := h.New
			h.New = func() workspace.Backend { return wrap(own()) }
			h.Only = []string{"C06", "C09", "F02", "F06", "F11", "F12", "F14", "F17", "F20", "F21"}
			if name == "derived files" {
				h.Limits = nil
			}
			workspacetest.Run(t, h)
		})
	}
}

// policy is a policy that changes nothing.
type policy struct{ *workspace.Workspace }

func TestBoxBehindPolicies(t *testing.T) {
	h := harness(t, open(t))
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
