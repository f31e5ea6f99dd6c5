package workspace

import (
	"context"
	"errors"
	"io"
)

// ReadOnly returns b with commands and changes refused (ErrReadOnly). Reads
// work as they do without it, also those that b serves by way of commands. It
// is a policy, not a boundary: Workspace.Backend goes around it.
func ReadOnly(b Backend) *Workspace {
	inner := New(b)
	if inner.ReadOnly() {
		return inner
	}
	return New(readOnly{inner})
}

type readOnly struct{ *Workspace }

func (readOnly) ReadOnly() bool { return true }

func (r readOnly) Run(context.Context, Command) (Result, error) {
	return Result{}, refused("run", "")
}
func (r readOnly) WriteFile(_ context.Context, p string, _ []byte) error { return refused("write", p) }
func (r readOnly) WriteFrom(_ context.Context, p string, _ io.Reader) error {
	return refused("write", p)
}
func (r readOnly) MkdirAll(_ context.Context, p string) error { return refused("mkdir", p) }
func (r readOnly) Remove(_ context.Context, p string) error   { return refused("remove", p) }

// Supports leaves out commands. Files stay, for reading.
func (r readOnly) Supports(f Feature) bool { return f != Commands && r.Workspace.Supports(f) }

func refused(op, p string) error {
	return &Error{Kind: ErrReadOnly, Op: op, Object: p, Err: errors.New("nothing may be changed or run here")}
}

// Unavailable returns the placeholder for a workspace that nobody supplied.
// Attached is false, and every operation is ErrUnavailable. why completes "there
// is no workspace: ..."; it may be empty.
func Unavailable(why string) *Workspace {
	if why == "" {
		why = "nobody supplied one"
	}
	return New(unavailable{why})
}

type unavailable struct{ why string }

var (
	_ Runner     = unavailable{}
	_ Files      = unavailable{}
	_ Streams    = unavailable{}
	_ Realpather = unavailable{}
	_ Forker     = unavailable{}
)

func (u unavailable) err(op string) error {
	return &Error{Kind: ErrUnavailable, Op: op, Err: errors.New("there is no workspace: " + u.why)}
}

func (u unavailable) Attached() bool   { return false }
func (u unavailable) Ref() (Ref, bool) { return Ref{}, false }
func (u unavailable) WorkingDir(context.Context) (string, error) {
	return "", u.err("working directory")
}
func (u unavailable) Run(context.Context, Command) (Result, error) { return Result{}, u.err("run") }
func (u unavailable) ReadFile(context.Context, string) ([]byte, error) {
	return nil, u.err("read")
}
func (u unavailable) WriteFile(context.Context, string, []byte) error { return u.err("write") }
func (u unavailable) Stat(context.Context, string) (Entry, error)     { return Entry{}, u.err("stat") }
func (u unavailable) ReadDir(context.Context, string) ([]Entry, error) {
	return nil, u.err("list")
}
func (u unavailable) MkdirAll(context.Context, string) error       { return u.err("mkdir") }
func (u unavailable) Remove(context.Context, string) error         { return u.err("remove") }
func (u unavailable) Exists(context.Context, string) (bool, error) { return false, u.err("exists") }
func (u unavailable) Open(context.Context, string, int64) (io.ReadCloser, error) {
	return nil, u.err("open")
}
func (u unavailable) WriteFrom(context.Context, string, io.Reader) error { return u.err("write") }
func (u unavailable) Realpath(context.Context, string) (string, error) {
	return "", u.err("realpath")
}
func (u unavailable) Fork(context.Context) (Ref, error) { return Ref{}, u.err("fork") }
