// Package wire converts between the types of package box and the messages of
// hutch.v1. Both ends of the guest protocol use it: the agent in a box, and
// every client or proxy of it, so that an error keeps its kind, operation,
// object, errno and hint on every hop.
package wire

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
)

// Stopping is what the agent says when it refuses a command because the box is
// being stopped. Such a call did nothing and may be made again once the box
// has stopped; no other Unavailable promises that.
const Stopping = "the box is shutting down"

// kindCodes pairs every kind with its Connect code. The pairing is one to one.
var kindCodes = map[box.Kind]connect.Code{
	box.Invalid:         connect.CodeInvalidArgument,
	box.NotFound:        connect.CodeNotFound,
	box.Exists:          connect.CodeAlreadyExists,
	box.Conflict:        connect.CodeFailedPrecondition,
	box.Unavailable:     connect.CodeUnavailable,
	box.Timeout:         connect.CodeDeadlineExceeded,
	box.Canceled:        connect.CodeCanceled,
	box.Exhausted:       connect.CodeResourceExhausted,
	box.Permission:      connect.CodePermissionDenied,
	box.Unauthenticated: connect.CodeUnauthenticated,
	box.Unsupported:     connect.CodeUnimplemented,
	box.Internal:        connect.CodeInternal,
}

// CodeOf is the Connect code of a kind; an unknown kind is Internal.
func CodeOf(k box.Kind) connect.Code {
	if c, ok := kindCodes[k]; ok {
		return c
	}
	return connect.CodeInternal
}

// KindOfCode is the kind of a Connect code.
func KindOfCode(c connect.Code) box.Kind {
	for kind, code := range kindCodes {
		if code == c {
			return kind
		}
	}
	switch c {
	case connect.CodeAborted:
		return box.Conflict
	case connect.CodeOutOfRange:
		return box.Invalid
	}
	return box.Internal
}

// Encode makes err fit for the wire: a *connect.Error that carries a
// hutch.v1.Error. Nil stays nil, and what already is a *connect.Error stays as
// it is, so that a proxy may pass an error on.
func Encode(err error) error {
	if err == nil {
		return nil
	}
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		return ce
	}
	d := Detail(err)
	ce := connect.NewError(CodeOf(box.Kind(d.Kind)), err)
	if detail, derr := connect.NewErrorDetail(d); derr == nil {
		ce.AddDetail(detail)
	}
	return ce
}

// Detail describes err as a message.
func Detail(err error) *hutchv1.Error {
	d := describe(err)
	// Errors quote names, which may be any bytes; strings of a message may not.
	for _, s := range []*string{&d.Op, &d.Message, &d.Hint} {
		*s = strings.ToValidUTF8(*s, "\ufffd")
	}
	return d
}

func describe(err error) *hutchv1.Error {
	d := &hutchv1.Error{Kind: string(box.KindOf(err)), Message: err.Error()}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		d.Errno = unix.ErrnoName(errno)
	}
	if e, ok := errors.AsType[*box.Error](err); ok {
		d.Op, d.Object, d.Hint, d.Message = e.Op, []byte(e.Object), box.HintOf(e), ""
		if e.Err != nil {
			d.Message = e.Err.Error()
		}
		return d
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		d.Op, d.Object, d.Message = e.Op, []byte(e.Path), e.Err.Error()
	} else if e, ok := errors.AsType[*os.LinkError](err); ok {
		d.Op, d.Object, d.Message = e.Op, []byte(e.New), e.Err.Error()
		if errors.Is(e.Err, syscall.ENOENT) { // almost always the old name
			d.Object = []byte(e.Old)
		}
	}
	return d
}

// Decode turns an error of a Connect client into one of package box: an
// *fs.PathError for a file operation that the kernel refused, else a
// *box.Error. Failures of the connection itself are Unavailable. Nil stays
// nil.
func Decode(err error) error {
	if err == nil {
		return nil
	}
	ce, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return err
	}
	for _, detail := range ce.Details() {
		v, verr := detail.Value()
		if verr != nil {
			continue
		}
		if d, ok := v.(*hutchv1.Error); ok {
			return FromDetail(d)
		}
	}
	kind := KindOfCode(ce.Code())
	if !connect.IsWireError(err) {
		// The error was made on this side: the connection failed or broke, unless
		// the caller gave up or sent something that does not fit.
		switch kind {
		case box.Canceled, box.Timeout, box.Invalid, box.Exhausted, box.Unauthenticated:
		default:
			kind = box.Unavailable
		}
	}
	cause := ce.Unwrap()
	if cause == nil || len(cause.Error()) > maxText {
		cause = errors.New(Clip(ce.Message()))
	}
	return &box.Error{Kind: kind, Err: cause}
}

// maxText bounds each text that comes from the other side and ends in records,
// logs and errors. It holds a path of any length that Linux has.
const maxText = 8 << 10

// Clip bounds a text of the other side's.
func Clip(s string) string {
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}

// FromDetail is the error that Detail described.
func FromDetail(d *hutchv1.Error) error {
	d = &hutchv1.Error{
		Kind: d.GetKind(), Op: Clip(d.GetOp()), Object: d.GetObject()[:min(len(d.GetObject()), maxText)],
		Errno: d.GetErrno(), Message: Clip(d.GetMessage()), Hint: Clip(d.GetHint()),
	}
	kind := box.Kind(d.GetKind())
	if _, ok := kindCodes[kind]; !ok {
		kind = box.Internal
	}
	var cause error
	if name := d.GetErrno(); name != "" {
		errno, known := errnos()[name]
		// A *fs.PathError has no kind of its own. Where the kind says more than
		// the errno (a refused connection is Unavailable), it is kept.
		switch {
		case known && d.GetHint() == "" && len(d.GetObject()) > 0 && kind == box.KindOf(errno) && kind != box.Unavailable:
			return &fs.PathError{Op: d.GetOp(), Path: string(d.GetObject()), Err: errno}
		case known && d.GetMessage() == errno.Error():
			cause = errno
		case known:
			cause = &errnoError{msg: d.GetMessage(), errno: errno}
		}
	}
	if cause == nil && d.GetMessage() != "" {
		cause = errors.New(d.GetMessage())
	}
	return &box.Error{Kind: kind, Op: d.GetOp(), Object: string(d.GetObject()), Err: cause, Hint: d.GetHint()}
}

// errnoError keeps the other side's words and the errno beneath them.
type errnoError struct {
	msg   string
	errno syscall.Errno
}

func (e *errnoError) Error() string { return e.msg }
func (e *errnoError) Unwrap() error { return e.errno }

// errnos maps names to this system's numbers.
var errnos = sync.OnceValue(func() map[string]syscall.Errno {
	m := make(map[string]syscall.Errno)
	for i := syscall.Errno(1); i < 256; i++ {
		if name := unix.ErrnoName(i); name != "" {
			if _, dup := m[name]; !dup {
				m[name] = i
			}
		}
	}
	m["EOPNOTSUPP"], m["EWOULDBLOCK"] = syscall.EOPNOTSUPP, syscall.EWOULDBLOCK
	return m
})
