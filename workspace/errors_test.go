package workspace_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/workspace"
)

// Who is what: agents decide by this whether a run goes on.
func TestErrorKinds(t *testing.T) {
	all := []error{
		workspace.ErrWorkspace, workspace.ErrUnavailable, workspace.ErrTimeout, workspace.ErrOutputLimit, workspace.ErrReadOnly, workspace.ErrUnsupported,
		workspace.ErrDamaged, workspace.ErrNotText, workspace.ErrInvalid, workspace.ErrUnknownRef,
		fs.ErrPermission, fs.ErrInvalid, fs.ErrNotExist, errors.ErrUnsupported, os.ErrDeadlineExceeded, context.DeadlineExceeded, context.Canceled,
	}
	for kind, want := range map[error][]error{
		workspace.ErrWorkspace:   {workspace.ErrWorkspace},
		workspace.ErrUnavailable: {workspace.ErrWorkspace, workspace.ErrUnavailable},
		workspace.ErrTimeout:     {workspace.ErrWorkspace, workspace.ErrTimeout, os.ErrDeadlineExceeded},
		workspace.ErrOutputLimit: {workspace.ErrWorkspace, workspace.ErrOutputLimit},
		workspace.ErrReadOnly:    {workspace.ErrWorkspace, workspace.ErrReadOnly, fs.ErrPermission},
		workspace.ErrUnsupported: {workspace.ErrWorkspace, workspace.ErrUnsupported, errors.ErrUnsupported},
		workspace.ErrDamaged:     {workspace.ErrWorkspace, workspace.ErrDamaged},
		workspace.ErrNotText:     {workspace.ErrWorkspace, workspace.ErrNotText},
		workspace.ErrInvalid:     {workspace.ErrInvalid, fs.ErrInvalid},
		workspace.ErrUnknownRef:  {workspace.ErrInvalid, workspace.ErrUnknownRef, fs.ErrInvalid},
	} {
		for form, err := range map[string]error{
			"Error": &workspace.Error{Kind: kind, Op: "op", Err: errors.New("cause")}, "CommandError": &workspace.CommandError{Kind: kind},
		} {
			for _, target := range all {
				is := slices.Contains(want, target)
				if errors.Is(err, target) != is {
					t.Errorf("%s of kind %q is %q: %v, want %v", form, kind, target, !is, is)
				}
			}
		}
	}
}

func TestErrorText(t *testing.T) {
	for want, err := range map[string]error{
		"attach hutch:x: workspace unavailable: no such box; make one": &workspace.Error{Kind: workspace.ErrUnavailable, Op: "attach", Object: "hutch:x", Err: errors.New("no such box"), Hint: "make one"},
		"run: no command":                             &workspace.Error{Kind: workspace.ErrInvalid, Op: "run", Err: errors.New("no command")},
		"fork: not supported":                         &workspace.Error{Kind: workspace.ErrUnsupported, Op: "fork"},
		"read f: the disk is odd":                     &workspace.Error{Kind: workspace.ErrWorkspace, Op: "read", Object: "f", Err: errors.New("the disk is odd")},
		"run: the command did not end within 2s":      &workspace.CommandError{Kind: workspace.ErrTimeout, Timeout: 2 * time.Second, Stdout: "secret"},
		"run: context canceled":                       &workspace.CommandError{Kind: context.Canceled, Err: context.Canceled},
		"run: context canceled: ctrl-c":               &workspace.CommandError{Kind: context.Canceled, Err: errors.New("ctrl-c")},
		"run: workspace unavailable: the box is gone": &workspace.CommandError{Kind: workspace.ErrUnavailable, Err: errors.New("the box is gone")},
		"run: the command wrote more than 7 bytes of output; redirect it to a file": &workspace.CommandError{Kind: workspace.ErrOutputLimit, Limit: 7},
	} {
		if got := err.Error(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestContextError(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := workspace.ContextError(ctx, "op"); err != nil {
		t.Errorf("while it lasts: %v", err)
	}
	why := errors.New("ctrl-c")
	cancel(why)
	err := workspace.ContextError(ctx, "op")
	if !errors.Is(err, context.Canceled) || !errors.Is(err, why) || errors.Is(err, workspace.ErrWorkspace) {
		t.Errorf("error is %v", err)
	}
}

func TestRefValidate(t *testing.T) {
	for _, ref := range []workspace.Ref{{}, {Provider: "p"}, {ID: "i"}, {Provider: "p\n", ID: "i"}, {Provider: "p", ID: "i\x00"}, {Provider: strings.Repeat("p", 129), ID: "i"}, {Provider: "p", ID: strings.Repeat("i", 4097)}} {
		if err := ref.Validate(); !errors.Is(err, workspace.ErrInvalid) {
			t.Errorf("%.40q: %v", ref, err)
		}
	}
	if err := (workspace.Ref{Provider: "p", ID: "/some where/ä"}).Validate(); err != nil {
		t.Error(err)
	}
}
