package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// Sentinels for errors.Is. Each of the first group also is ErrWorkspace: a
// deliberate answer of the workspace layer, which an agent can be told about.
// Errors of another kind that a backend returns are passed on as they are.
var (
	// ErrWorkspace is what they have in common. By itself it is a failure for
	// which there is no word of its own, for example a place whose working
	// directory was removed, or one without the programs that file operations
	// need.
	ErrWorkspace error = &sentinel{text: "workspace"}
	// ErrUnavailable: the place is gone, cannot be reached, refuses the
	// credentials, or was destroyed meanwhile; or there is none. Trying again
	// does not help, and an agent's run ends.
	ErrUnavailable error = &sentinel{text: "workspace unavailable", is: []error{ErrWorkspace}}
	// ErrTimeout: the command's own time limit passed. It is not the caller's
	// context, whose end is context.Canceled or context.DeadlineExceeded.
	ErrTimeout error = &sentinel{text: "time limit passed", is: []error{ErrWorkspace, os.ErrDeadlineExceeded}}
	// ErrOutputLimit: more output, or a larger file, than is held in memory.
	ErrOutputLimit error = &sentinel{text: "output limit passed", is: []error{ErrWorkspace}}
	// ErrReadOnly: a command or a change in a workspace that allows neither.
	ErrReadOnly error = &sentinel{text: "workspace is read-only", is: []error{ErrWorkspace, fs.ErrPermission}}
	// ErrUnsupported: this backend cannot do that at all.
	ErrUnsupported error = &sentinel{text: "not supported", is: []error{ErrWorkspace, errors.ErrUnsupported}}
	// ErrDamaged: data did not arrive whole, so it is not handed out at all.
	ErrDamaged error = &sentinel{text: "transfer damaged", is: []error{ErrWorkspace}}
	// ErrNotText: the file is not UTF-8, and was asked for as text.
	ErrNotText error = &sentinel{text: "not text", is: []error{ErrWorkspace}}

	// ErrInvalid is a mistake of the caller, not of the workspace: a malformed
	// command, path or ref, or the removal of the working directory. Nothing
	// was done.
	ErrInvalid error = &sentinel{text: "invalid", is: []error{fs.ErrInvalid}}
	// ErrUnknownRef is a ref of another provider. It also is ErrInvalid.
	ErrUnknownRef error = &sentinel{text: "ref of another provider", is: []error{ErrInvalid, fs.ErrInvalid}}
)

type sentinel struct {
	text string
	is   []error
}

func (s *sentinel) Error() string { return s.text }

func (s *sentinel) Is(target error) bool { return slices.Contains(s.is, target) }

// Error is the error type of this package for everything but paths and
// commands.
type Error struct {
	Kind   error  // one of the sentinels
	Op     string // what was being done, for example "attach"
	Object string // to what: a ref or a path; may be empty
	Err    error  // the cause; may be nil
	Hint   string // what to do about it; may be empty
}

// Error returns "op object: cause; hint" on one line, without what is empty.
func (e *Error) Error() string {
	msg := e.Kind.Error()
	if e.Err != nil {
		msg = e.Err.Error()
		// ErrWorkspace itself, and what is no error of the workspace, say nothing
		// that the cause does not.
		if s, ok := errors.AsType[*sentinel](e.Kind); ok && slices.Contains(s.is, ErrWorkspace) && !strings.Contains(msg, s.text) {
			msg = s.text + ": " + msg
		}
	}
	var b strings.Builder
	for _, part := range []string{e.Op, e.Object} {
		if part != "" {
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(part)
		}
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	b.WriteString(msg)
	if e.Hint != "" {
		b.WriteString("; " + e.Hint)
	}
	return b.String()
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// CommandError is a command that began and has no Result.
type CommandError struct {
	// Kind is ErrTimeout, ErrOutputLimit, ErrUnavailable, or the error of the
	// caller's context.
	Kind error
	// Stdout and Stderr are the output so far, as in Result; at most
	// PreviewLimit bytes of each for ErrOutputLimit.
	Stdout, Stderr string
	// Limit is the number of bytes that was passed, for ErrOutputLimit.
	Limit int64
	// Timeout is the time that passed, for ErrTimeout.
	Timeout time.Duration
	// Err is the cause; may be nil.
	Err error
}

// Error says what happened, without the output.
func (e *CommandError) Error() string {
	switch {
	case errors.Is(e.Kind, ErrTimeout) && e.Timeout > 0:
		return fmt.Sprintf("run: the command did not end within %v", e.Timeout)
	case errors.Is(e.Kind, ErrOutputLimit) && e.Limit > 0:
		return fmt.Sprintf("run: the command wrote more than %d bytes of output; redirect it to a file", e.Limit)
	case e.Err != nil && errors.Is(e.Err, ErrWorkspace):
		return e.Err.Error() // it says its kind itself
	case e.Err != nil && e.Err.Error() != e.Kind.Error():
		return fmt.Sprintf("run: %v: %v", e.Kind, e.Err)
	}
	return fmt.Sprintf("run: %v", e.Kind)
}

// Unwrap returns the kind and the cause.
func (e *CommandError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// ContextError is the error of an operation that ended because ctx did: it is
// both ctx.Err and context.Cause, and nothing of this package. It is nil while
// ctx lasts.
func ContextError(ctx context.Context, op string) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, err) {
		return fmt.Errorf("%s: %w: %w", op, err, cause)
	}
	return fmt.Errorf("%s: %w", op, err)
}
