//go:build unix

package hostdir

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"github.com/hutch-sandbox/hutch/workspace"
)

// ProviderName is the Provider of this package's refs. Their ID is the folder.
const ProviderName = "hostdir"

// Options are for New. The zero value is fine.
type Options struct {
	// Env is added to the environment of every command. Names are
	// identifiers.
	Env map[string]string
}

// Dir is a folder as a workspace, and also the provider of its ref. It may be
// used by any number of goroutines.
type Dir struct {
	path string
	env  map[string]string

	locks locks // of files, by real path

	mu   sync.Mutex
	real string // the working directory, once it was looked up
}

var (
	_ workspace.Backend    = (*Dir)(nil)
	_ workspace.Runner     = (*Dir)(nil)
	_ workspace.Files      = (*Dir)(nil)
	_ workspace.Streams    = (*Dir)(nil)
	_ workspace.Realpather = (*Dir)(nil)
	_ workspace.Provider   = (*Dir)(nil)
)

// New returns the workspace on a folder. A relative path is below the current
// directory. The folder is not looked at before the first operation.
func New(dir string, opts Options) (*Dir, error) {
	if dir == "" {
		return nil, &workspace.Error{Kind: workspace.ErrInvalid, Op: "hostdir", Err: errors.New("no folder named"), Hint: `use "." for the current one`}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("hostdir: %w", err)
	}
	for name, value := range opts.Env {
		if err := workspace.CheckEnv(name, value); err != nil {
			return nil, err
		}
	}
	return &Dir{path: abs, env: maps.Clone(opts.Env)}, nil
}

// Ref names the folder as New was told it, made absolute: another spelling that
// leads there by a symbolic link is another ref.
func (d *Dir) Ref() (workspace.Ref, bool) {
	return workspace.Ref{Provider: ProviderName, ID: d.path}, true
}

// New returns d: there is nothing to create.
func (d *Dir) New() workspace.Backend { return d }

// Backend returns d for its own ref, and ErrUnknownRef for every other one: a
// ref from somewhere must not open any folder of this machine.
func (d *Dir) Backend(ref workspace.Ref) (workspace.Backend, error) {
	if own, _ := d.Ref(); ref == own {
		return d, nil
	}
	return nil, &workspace.Error{Kind: workspace.ErrUnknownRef, Op: "attach", Object: ref.String(), Err: fmt.Errorf("this is the workspace of %s alone", d.path)}
}

// check reports a folder that is gone.
func (d *Dir) check(op string) error {
	info, err := os.Stat(d.path)
	switch {
	case err != nil:
		return d.unavailable(op, err)
	case !info.IsDir():
		return d.unavailable(op, errors.New("it is no folder any more"))
	}
	return nil
}

func (d *Dir) unavailable(op string, err error) error {
	// Only the text of the cause: a folder that is gone is not a file that is
	// missing.
	return &workspace.Error{Kind: workspace.ErrUnavailable, Op: op, Object: d.path, Err: errors.New(err.Error())}
}

// WorkingDir returns the folder's path without symbolic links.
func (d *Dir) WorkingDir(ctx context.Context) (string, error) {
	if err := workspace.ContextError(ctx, "working directory"); err != nil {
		return "", err
	}
	if err := d.check("working directory"); err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.real == "" {
		real, err := filepath.EvalSymlinks(d.path)
		if err != nil {
			return "", d.unavailable("working directory", err)
		}
		d.real = real
	}
	return d.real, nil
}
