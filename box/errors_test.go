package box_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"

	"github.com/hutch-sandbox/hutch/box"
)

func TestKindOf(t *testing.T) {
	path := func(errno syscall.Errno) error { return &fs.PathError{Op: "write", Path: "/f", Err: errno} }
	for _, tc := range []struct {
		err  error
		want box.Kind
	}{
		{nil, ""},
		{errors.New("odd"), box.Internal},
		{fmt.Errorf("around: %w", &box.Error{Kind: box.Conflict, Err: syscall.ENOENT}), box.Conflict},
		{&box.ExitError{ExitStatus: box.ExitStatus{Code: 1}}, box.Internal},
		{&box.ExitError{OutOfMemory: true}, box.Exhausted},
		{context.Canceled, box.Canceled},
		{context.DeadlineExceeded, box.Timeout},
		{os.ErrDeadlineExceeded, box.Timeout},
		{fs.ErrNotExist, box.NotFound},
		{fs.ErrExist, box.Exists},
		{fs.ErrPermission, box.Permission},
		{fs.ErrInvalid, box.Invalid},
		{errors.ErrUnsupported, box.Unsupported},
		{path(syscall.ENOENT), box.NotFound},
		{path(syscall.EEXIST), box.Exists},
		{path(syscall.ENOTEMPTY), box.Conflict}, // though it also is fs.ErrExist
		{path(syscall.EISDIR), box.Conflict},
		{path(syscall.ENOTDIR), box.Conflict},
		{path(syscall.EACCES), box.Permission},
		{path(syscall.EROFS), box.Permission},
		{path(syscall.ENOSPC), box.Exhausted},
		{path(syscall.EDQUOT), box.Exhausted},
		{path(syscall.EMFILE), box.Exhausted},
		{path(syscall.EINVAL), box.Invalid},
		{path(syscall.ENAMETOOLONG), box.Invalid},
		{path(syscall.ENOSYS), box.Unsupported},
		{path(syscall.EOPNOTSUPP), box.Unsupported},
		{path(syscall.ECONNREFUSED), box.Unavailable},
		{path(syscall.ETIMEDOUT), box.Timeout},
		{path(syscall.EIO), box.Internal},
		{&os.LinkError{Op: "rename", Old: "/a", New: "/b", Err: syscall.EXDEV}, box.Conflict},
	} {
		if got := box.KindOf(tc.err); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.err, got, tc.want)
		}
	}
}
