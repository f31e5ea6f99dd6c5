package box

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// Kind classifies an error. The set is closed and small, and every kind
// survives every wire: an error that a box on a server reports has the same
// kind, operation, object and hint as one reported by a box on this machine.
type Kind string

// The kinds of error.
const (
	Invalid         Kind = "invalid"         // the request itself is wrong: a bad value, a contradiction
	NotFound        Kind = "not found"       // the box, image, exec or volume named does not exist
	Exists          Kind = "exists"          // the name is taken
	Conflict        Kind = "conflict"        // it exists, but its state does not allow this now
	Unavailable     Kind = "unavailable"     // it cannot be reached, or went away during the call
	Timeout         Kind = "timeout"         // the call's own time limit passed
	Canceled        Kind = "canceled"        // the caller gave up
	Exhausted       Kind = "exhausted"       // a limit is used up: memory, disk, processes, quota
	Permission      Kind = "permission"      // not allowed for this caller
	Unauthenticated Kind = "unauthenticated" // who is calling is not known
	Unsupported     Kind = "unsupported"     // this engine, host or server cannot do it
	Internal        Kind = "internal"        // a fault of Hutch
)

// Sentinels for errors.Is, one for each Kind.
var (
	ErrInvalid         error = sentinel(Invalid)
	ErrNotFound        error = sentinel(NotFound)
	ErrExists          error = sentinel(Exists)
	ErrConflict        error = sentinel(Conflict)
	ErrUnavailable     error = sentinel(Unavailable)
	ErrTimeout         error = sentinel(Timeout)
	ErrCanceled        error = sentinel(Canceled)
	ErrExhausted       error = sentinel(Exhausted)
	ErrPermission      error = sentinel(Permission)
	ErrUnauthenticated error = sentinel(Unauthenticated)
	ErrUnsupported     error = sentinel(Unsupported)
	ErrInternal        error = sentinel(Internal)
)

type sentinel Kind

func (s sentinel) Error() string { return string(s) }

// Error is the error type of this module. Every error that a Runtime, a Box or
// a Cmd returns either is an *Error, wraps one, is an *ExitError (the command
// ran and failed) or is an *fs.PathError (a file operation failed in the box).
type Error struct {
	Kind   Kind   // what class of failure
	Op     string // what was being done, for example "create" or "image pull"
	Object string // to what: a box name, an image reference, a field; may be empty
	Err    error  // the cause; may be nil
	Hint   string // what to do about it, for example a command; may be empty
}

// Error returns "op object: cause", and "; hint" where there is one, on one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Object != "" {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(e.Object)
	}
	msg := string(e.Kind)
	if e.Err != nil {
		msg = e.Err.Error()
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	b.WriteString(msg)
	if e.Hint != "" {
		b.WriteString("; ")
		b.WriteString(e.Hint)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the sentinel of e's kind. A Kind also matches
// the standard library's sentinel of the same meaning, so that code which does
// not know this package still understands it.
func (e *Error) Is(target error) bool {
	if s, ok := target.(sentinel); ok {
		return Kind(s) == e.Kind
	}
	switch e.Kind {
	case NotFound:
		return target == fs.ErrNotExist
	case Exists:
		return target == fs.ErrExist
	case Permission:
		return target == fs.ErrPermission
	case Unsupported:
		return target == errors.ErrUnsupported
	case Timeout:
		return target == context.DeadlineExceeded || target == os.ErrDeadlineExceeded
	case Canceled:
		return target == context.Canceled
	}
	return false
}

// KindOf returns the kind of err: that of the first *Error in its chain, else
// the kind of a context's end, of a kernel's error number (a full disk in an
// *fs.PathError is Exhausted) or of a standard-library error, else Internal. It
// returns "" for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	var exit *ExitError
	var errno syscall.Errno
	switch {
	case errors.As(err, &e):
		return e.Kind
	case errors.As(err, &exit) && exit.OutOfMemory:
		return Exhausted
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.As(err, &errno):
		return kindOfErrno(errno)
	case errors.Is(err, fs.ErrNotExist):
		return NotFound
	case errors.Is(err, fs.ErrExist):
		return Exists
	case errors.Is(err, fs.ErrPermission):
		return Permission
	case errors.Is(err, fs.ErrInvalid):
		return Invalid
	case errors.Is(err, errors.ErrUnsupported):
		return Unsupported
	}
	return Internal
}

// kindOfErrno is the kind of what a kernel refused with errno.
func kindOfErrno(errno syscall.Errno) Kind {
	switch errno {
	case syscall.ENOENT, syscall.ESRCH, syscall.ENXIO, syscall.ENODEV:
		return NotFound
	case syscall.EEXIST:
		return Exists
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return Permission
	case syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.EFBIG, syscall.EMLINK:
		return Exhausted
	case syscall.EINVAL, syscall.ENAMETOOLONG, syscall.EILSEQ:
		return Invalid
	case syscall.ENOTEMPTY, syscall.EISDIR, syscall.ENOTDIR, syscall.EBUSY, syscall.ELOOP, syscall.ETXTBSY, syscall.EXDEV:
		return Conflict
	case syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EPIPE:
		return Unavailable
	case syscall.ETIMEDOUT:
		return Timeout
	}
	if errors.Is(errno, errors.ErrUnsupported) { // how many numbers that has depends on the system
		return Unsupported
	}
	return Internal
}

// HintOf returns the hint of the first error in err's chain that has one.
func HintOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}
