package wire

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
)

var allKinds = []box.Kind{
	box.Invalid, box.NotFound, box.Exists, box.Conflict, box.Unavailable, box.Timeout, box.Canceled,
	box.Exhausted, box.Permission, box.Unauthenticated, box.Unsupported, box.Internal,
}

// overTheWire sends err through a real handler and client.
func overTheWire(t *testing.T, err error) error {
	t.Helper()
	h := connect.NewUnaryHandler("/test", func(context.Context, *connect.Request[emptypb.Empty]) (*connect.Response[emptypb.Empty], error) {
		return nil, Encode(err)
	})
	s := httptest.NewServer(h)
	defer s.Close()
	c := connect.NewClient[emptypb.Empty, emptypb.Empty](http.DefaultClient, s.URL+"/test")
	_, got := c.CallUnary(context.Background(), connect.NewRequest(&emptypb.Empty{}))
	if got == nil {
		t.Fatal("no error came back")
	}
	return Decode(got)
}

func TestEveryKindSurvives(t *testing.T) {
	for _, kind := range allKinds {
		in := &box.Error{Kind: kind, Op: "op", Object: "object \xff", Err: errors.New("the cause"), Hint: "do this"}
		out := overTheWire(t, fmt.Errorf("wrapped: %w", in))
		e, ok := errors.AsType[*box.Error](out)
		if !ok || e.Kind != kind || e.Op != in.Op || e.Object != in.Object || e.Hint != in.Hint || e.Error() != in.Error() {
			t.Errorf("%s became %#v (%v)", kind, out, out)
		}
		if KindOfCode(CodeOf(kind)) != kind {
			t.Errorf("%s: code %v means %s", kind, CodeOf(kind), KindOfCode(CodeOf(kind)))
		}
	}
	// Words need not be UTF-8, and must not cost the rest.
	out := overTheWire(t, &box.Error{Kind: box.Exists, Op: "op\xff", Object: "o\xff", Err: errors.New("m\xff"), Hint: "h\xff"})
	if e, ok := errors.AsType[*box.Error](out); !ok || e.Kind != box.Exists || e.Object != "o\xff" || e.Hint != "h\ufffd" {
		t.Errorf("odd words became %#v", out)
	}
	// Without a cause too.
	out = overTheWire(t, &box.Error{Kind: box.Exists, Op: "create"})
	if out.Error() != "create: exists" || !errors.Is(out, fs.ErrExist) {
		t.Errorf("%v", out)
	}
}

func TestErrnoSurvives(t *testing.T) {
	for _, errno := range []syscall.Errno{
		syscall.ENOENT, syscall.EEXIST, syscall.EACCES, syscall.EPERM, syscall.ENOSPC, syscall.EISDIR, syscall.ENOTDIR,
		syscall.ENOTEMPTY, syscall.ELOOP, syscall.EINVAL, syscall.ENAMETOOLONG, syscall.EROFS, syscall.EXDEV, syscall.EIO, syscall.EDQUOT,
	} {
		in := &fs.PathError{Op: "open", Path: "/a\n\xff", Err: errno}
		out := overTheWire(t, in)
		pe, ok := errors.AsType[*fs.PathError](out)
		if !ok || *pe != *in {
			t.Errorf("%v became %#v", in, out)
		}
		if errors.Is(out, fs.ErrNotExist) != (errno == syscall.ENOENT) || errors.Is(out, fs.ErrExist) != (errno == syscall.EEXIST || errno == syscall.ENOTEMPTY) {
			t.Errorf("%v: wrong standard error", out)
		}
	}
	out := overTheWire(t, &os.LinkError{Op: "rename", Old: "/old", New: "/new", Err: syscall.EXDEV})
	if pe, ok := errors.AsType[*fs.PathError](out); !ok || pe.Path != "/new" || !errors.Is(pe.Err, syscall.EXDEV) {
		t.Errorf("link error became %#v", out)
	}
	// An errno below an error of ours stays visible.
	out = overTheWire(t, &box.Error{Kind: box.Unavailable, Op: "dial", Object: "localhost:1", Err: syscall.ECONNREFUSED})
	if e, ok := errors.AsType[*box.Error](out); !ok || e.Kind != box.Unavailable || !errors.Is(out, syscall.ECONNREFUSED) {
		t.Errorf("refused connection became %#v", out)
	}
	out = overTheWire(t, &box.Error{Kind: box.Exhausted, Op: "exec", Err: fmt.Errorf("fork: %w", syscall.EAGAIN), Hint: "h"})
	if e, ok := errors.AsType[*box.Error](out); !ok || e.Kind != box.Exhausted || !errors.Is(out, syscall.EAGAIN) || e.Error() != "exec: fork: resource temporarily unavailable; h" {
		t.Errorf("fork failure became %#v (%v)", out, out)
	}
}

func TestContextErrors(t *testing.T) {
	if k := box.KindOf(overTheWire(t, context.Canceled)); k != box.Canceled {
		t.Errorf("canceled: %s", k)
	}
	if k := box.KindOf(overTheWire(t, context.DeadlineExceeded)); k != box.Timeout {
		t.Errorf("deadline: %s", k)
	}
	if k := box.KindOf(overTheWire(t, errors.New("odd"))); k != box.Internal {
		t.Errorf("other: %s", k)
	}
	if Encode(nil) != nil || Decode(nil) != nil {
		t.Error("nil is no error")
	}
}

// Who cannot be reached is unavailable, not missing and not internal.
func TestBrokenConnections(t *testing.T) {
	c := connect.NewClient[emptypb.Empty, emptypb.Empty](http.DefaultClient, "http://127.0.0.1:1/test")
	_, err := c.CallUnary(context.Background(), connect.NewRequest(&emptypb.Empty{}))
	if k := box.KindOf(Decode(err)); k != box.Unavailable {
		t.Errorf("refused: %s (%v)", k, err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }))
	defer s.Close()
	c = connect.NewClient[emptypb.Empty, emptypb.Empty](http.DefaultClient, s.URL)
	_, err = c.CallUnary(context.Background(), connect.NewRequest(&emptypb.Empty{}))
	if k := box.KindOf(Decode(err)); k != box.Unavailable {
		t.Errorf("broken: %s (%v)", k, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = c.CallUnary(ctx, connect.NewRequest(&emptypb.Empty{}))
	if k := box.KindOf(Decode(err)); k != box.Canceled {
		t.Errorf("canceled: %s (%v)", k, err)
	}
}

// What an old or broken peer sends must not be trusted.
func TestOddDetails(t *testing.T) {
	for _, d := range []*hutchv1.Error{
		{},
		{Kind: "no such kind", Message: "m"},
		{Kind: "not found", Errno: "ENOSUCHERRNO", Object: []byte("/x"), Message: "m"},
		{Kind: "internal", Errno: "ENOENT", Object: []byte("/x")},
	} {
		err := FromDetail(d)
		if err == nil || err.Error() == "" {
			t.Errorf("%v became %v", d, err)
		}
		if k := box.KindOf(err); k != box.Internal && k != box.NotFound {
			t.Errorf("%v is of kind %s", d, k)
		}
	}
}

func TestModes(t *testing.T) {
	for unixMode, want := range map[uint32]fs.FileMode{
		0o100644: 0o644,
		0o104755: 0o755 | fs.ModeSetuid,
		0o102755: 0o755 | fs.ModeSetgid,
		0o041777: 0o777 | fs.ModeDir | fs.ModeSticky,
		0o120777: 0o777 | fs.ModeSymlink,
		0o010600: 0o600 | fs.ModeNamedPipe,
		0o140600: 0o600 | fs.ModeSocket,
		0o060660: 0o660 | fs.ModeDevice,
		0o020666: 0o666 | fs.ModeDevice | fs.ModeCharDevice,
	} {
		if got := FileMode(unixMode); got != want {
			t.Errorf("%o: %v, want %v", unixMode, got, want)
		}
		if got := UnixMode(want); got != unixMode {
			t.Errorf("%v: %o, want %o", want, got, unixMode)
		}
		if got := PermBits(want); got != unixMode&0o7777 {
			t.Errorf("%v: %o", want, got)
		}
	}
}

func TestConversions(t *testing.T) {
	fi := box.FileInfo{
		FileName: "n\xff", FileSize: 12, FileMode: 0o750 | fs.ModeDir, Modified: time.Unix(1, 2).UTC(),
		UID: 1, GID: 2, User: "u", Group: "g", Inode: 3, Links: 4, Target: "t", RealPath: "/r\xff",
	}
	if diff := cmp.Diff(fi, FileInfo(FileInfoMessage(fi))); diff != "" {
		t.Errorf("file info (-want +got):\n%s", diff)
	}
	for _, reason := range []box.ExitReason{box.Exited, box.TimedOut, box.Killed, box.OutOfMemory, box.NotStarted} {
		st := box.ExitStatus{Code: 137, Signal: syscall.SIGKILL, Reason: reason, Message: "m"}
		if got := ExitStatus(ExitedMessage(st)); got != st {
			t.Errorf("%v became %v", st, got)
		}
	}
	if got := ExitStatus(&hutchv1.Exited{Reason: 99}); got.Reason != box.Exited {
		t.Errorf("unknown reason: %v", got)
	}
}
