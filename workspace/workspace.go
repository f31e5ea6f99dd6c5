package workspace

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"
)

// Workspace is what users of a Backend hold. Paths given to it may be relative
// to the working directory. It may be used by any number of goroutines.
//
// It is itself a Backend with every optional interface, so that a policy can
// embed it and override what the policy is about; Supports says what works.
type Workspace struct {
	backend  Backend
	runner   Runner     // nil: no commands
	files    Files      // nil: none, see noFiles
	streams  Streams    // nil: none of the backend's own
	realpath Realpather // nil: none of the backend's own
	noFiles  error      // why there are no files
}

var (
	_ Backend    = (*Workspace)(nil)
	_ Runner     = (*Workspace)(nil)
	_ Files      = (*Workspace)(nil)
	_ Streams    = (*Workspace)(nil)
	_ Realpather = (*Workspace)(nil)
	_ Closer     = (*Workspace)(nil)
	_ Forker     = (*Workspace)(nil)
	_ Supporter  = (*Workspace)(nil)
)

// New returns a Workspace on b. It does no I/O. A *Workspace is returned as it
// is; nil is Unavailable. A backend that runs commands and has no files gets
// them by way of shell commands.
func New(b Backend) *Workspace {
	switch w := b.(type) {
	case nil:
		return Unavailable("")
	case *Workspace:
		if w == nil {
			return Unavailable("")
		}
		return w
	}
	w := &Workspace{backend: b}
	if Supports(b, Commands) {
		w.runner = b.(Runner)
	}
	if Supports(b, Streaming) {
		w.streams = b.(Streams)
	}
	if Supports(b, Realpaths) {
		w.realpath = b.(Realpather)
	}
	missing := missingFiles(b)
	switch {
	case Supports(b, FileOps):
		w.files = b.(Files)
	case len(missing) > 0:
		w.noFiles = &Error{Kind: ErrUnsupported, Op: "files", Err: fmt.Errorf("%T implements a part of Files", b), Hint: "it lacks " + strings.Join(missing, ", ")}
	case w.runner != nil:
		shell := &shellFiles{run: w.runner}
		w.files = shell
		if w.streams == nil {
			w.streams = shell
		}
		if w.realpath == nil {
			w.realpath = shell
		}
	default:
		w.noFiles = &Error{Kind: ErrUnsupported, Op: "files", Err: fmt.Errorf("%T has neither files nor commands", b)}
	}
	return w
}

// missingFiles names the methods of Files that b lacks, when it has some.
func missingFiles(b Backend) []string {
	var missing []string
	have := 0
	note := func(name string, ok bool) {
		if ok {
			have++
		} else {
			missing = append(missing, name)
		}
	}
	_, ok := b.(interface {
		ReadFile(context.Context, string) ([]byte, error)
	})
	note("ReadFile", ok)
	_, ok = b.(interface {
		WriteFile(context.Context, string, []byte) error
	})
	note("WriteFile", ok)
	_, ok = b.(interface {
		Stat(context.Context, string) (Entry, error)
	})
	note("Stat", ok)
	_, ok = b.(interface {
		ReadDir(context.Context, string) ([]Entry, error)
	})
	note("ReadDir", ok)
	_, ok = b.(interface {
		MkdirAll(context.Context, string) error
	})
	note("MkdirAll", ok)
	_, ok = b.(interface {
		Remove(context.Context, string) error
	})
	note("Remove", ok)
	_, ok = b.(interface {
		Exists(context.Context, string) (bool, error)
	})
	note("Exists", ok)
	if have == 0 {
		return nil
	}
	return missing
}

// Ref names the place; false until there is something to name.
func (w *Workspace) Ref() (Ref, bool) { return w.backend.Ref() }

// Backend returns the backend below all policies. Using it goes around them.
func (w *Workspace) Backend() Backend {
	if inner, ok := w.backend.(interface{ Backend() Backend }); ok {
		return inner.Backend()
	}
	return w.backend
}

// ReadOnly reports whether commands and changes are refused.
func (w *Workspace) ReadOnly() bool {
	p, ok := w.backend.(interface{ ReadOnly() bool })
	return ok && p.ReadOnly()
}

// Attached reports whether somebody supplied a workspace at all: it is false
// for Unavailable, and for nothing else.
func (w *Workspace) Attached() bool {
	p, ok := w.backend.(interface{ Attached() bool })
	return !ok || p.Attached()
}

// Supports reports whether a feature works, by the backend or by what the
// Workspace supplies. Closing always does.
func (w *Workspace) Supports(f Feature) bool {
	switch f {
	case Commands:
		return w.runner != nil
	case FileOps, Streaming:
		return w.files != nil
	case Realpaths:
		return w.realpath != nil
	case Closing:
		return true
	}
	return Supports(w.backend, f)
}

// WorkingDir is the absolute directory, free of symbolic links, in which
// commands start and to which relative paths belong.
func (w *Workspace) WorkingDir(ctx context.Context) (string, error) {
	if err := ContextError(ctx, "working directory"); err != nil {
		return "", err
	}
	dir, err := w.backend.WorkingDir(ctx)
	if err != nil {
		return "", err
	}
	if !path.IsAbs(dir) || path.Clean(dir) != dir {
		return "", &Error{Kind: ErrWorkspace, Op: "working directory", Err: fmt.Errorf("the backend says %q, which is no clean absolute path", clip(dir))}
	}
	return dir, nil
}

// Resolve returns the absolute path that name stands for. It is about text: it
// follows no links and confines nothing. What an operation on name really
// touches is Realpath of the result, at that moment.
func (w *Workspace) Resolve(ctx context.Context, name string) (string, error) {
	base := ""
	if !path.IsAbs(name) {
		var err error
		if base, err = w.WorkingDir(ctx); err != nil {
			return "", err
		}
	}
	return Resolve(base, name)
}

// Realpath resolves every symbolic link of name, which is not cleaned before:
// "link/.." leads above the link's target. Elements that do not exist are kept.
// A place that cannot look gives the cleaned text.
func (w *Workspace) Realpath(ctx context.Context, name string) (string, error) {
	base := ""
	if !path.IsAbs(name) {
		var err error
		if base, err = w.WorkingDir(ctx); err != nil {
			return "", err
		}
	}
	joined, err := join(base, name)
	if err != nil {
		return "", err
	}
	if err := ContextError(ctx, "realpath"); err != nil {
		return "", err
	}
	if w.realpath == nil {
		return path.Clean(joined), nil
	}
	return w.realpath.Realpath(ctx, joined)
}

// Run runs a command in the working directory; see Runner.Run. Without
// commands, it is ErrUnsupported.
func (w *Workspace) Run(ctx context.Context, cmd Command) (Result, error) {
	if err := checkCommand(cmd); err != nil {
		return Result{}, err
	}
	if w.runner == nil {
		if w.ReadOnly() {
			return Result{}, refused("run", "")
		}
		return Result{}, &Error{Kind: ErrUnsupported, Op: "run", Err: fmt.Errorf("this workspace runs no commands (%T)", w.Backend())}
	}
	if err := ContextError(ctx, "run"); err != nil {
		return Result{}, err
	}
	res, err := w.runner.Run(ctx, cmd)
	res.Stdout, res.Stderr = valid(res.Stdout), valid(res.Stderr)
	return res, err
}

func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return Text([]byte(s))
}

// maxArg is what Linux takes as one argument or environment entry, without the
// NUL at its end.
const maxArg = 128<<10 - 1

func checkCommand(cmd Command) error {
	bad := func(hint, format string, args ...any) error {
		return &Error{Kind: ErrInvalid, Op: "run", Err: fmt.Errorf(format, args...), Hint: hint}
	}
	switch {
	case len(cmd.Args) > 0 && cmd.Shell != "":
		return bad("set one of them", "Args and Shell contradict each other")
	case len(cmd.Args) == 0 && cmd.Shell == "":
		return bad("set Args or Shell", "no command")
	case len(cmd.Args) > 0 && cmd.Args[0] == "":
		return bad("name a program", "the program's name is empty")
	case cmd.Timeout < 0:
		return bad("use 0 for none", "time limit %v is negative", cmd.Timeout)
	}
	for _, arg := range append(cmd.Args[:len(cmd.Args):len(cmd.Args)], cmd.Shell) {
		if strings.IndexByte(arg, 0) >= 0 {
			return bad("pass binary data in a file", "%q has a NUL byte, which no argument can hold", clip(arg))
		}
		if len(arg) > maxArg {
			return bad("pass long data in a file", "an argument has %d bytes; Linux takes at most %d", len(arg), maxArg)
		}
	}
	for name, value := range cmd.Env {
		if err := CheckEnv(name, value); err != nil {
			return err
		}
	}
	return nil
}

// CheckEnv reports, as ErrInvalid, a name that is no identifier and a value that
// no environment can hold. The value is not in the error.
func CheckEnv(name, value string) error {
	bad := func(format string, args ...any) error {
		return &Error{Kind: ErrInvalid, Op: "env", Err: fmt.Errorf(format, args...)}
	}
	for i, c := range []byte(name) {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return bad("%q is not a variable's name: use letters, digits and '_'", clip(name))
		}
	}
	switch {
	case name == "":
		return bad("a variable's name is empty")
	case strings.IndexByte(value, 0) >= 0:
		return bad("the value of %s has a NUL byte", clip(name))
	case len(name)+1+len(value) > maxArg:
		return bad("%s has %d bytes; Linux takes at most %d", clip(name), len(value), maxArg)
	}
	return nil
}

// Close lets go of what the backend holds; see Closer. Where there is nothing to
// let go of, it does nothing.
func (w *Workspace) Close(ctx context.Context) error {
	if Supports(w.backend, Closing) {
		return w.backend.(Closer).Close(ctx)
	}
	return nil
}

// Fork copies the place; see Forker. Where that cannot be, it is ErrUnsupported.
func (w *Workspace) Fork(ctx context.Context) (Ref, error) {
	if !Supports(w.backend, Forking) {
		return Ref{}, &Error{Kind: ErrUnsupported, Op: "fork", Err: errors.New("this workspace cannot be copied")}
	}
	return w.backend.(Forker).Fork(ctx)
}
