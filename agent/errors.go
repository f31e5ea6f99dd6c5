package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/workspace"
)

// Sentinels for errors.Is.
var (
	// ErrUsage: the agent was put together or called in a way that cannot
	// work. The run fails before it asks the model.
	ErrUsage = errors.New("agent misused")
	// ErrLimit: one of the Limits was reached; the error is a *LimitError.
	ErrLimit = errors.New("limit reached")
	// ErrModel: the model did something that the loop cannot go on from, such
	// as failing a tool's or the output's validation time after time.
	ErrModel = errors.New("unexpected model behaviour")
)

func usageErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrUsage}, args...)...)
}

func modelErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrModel}, args...)...)
}

// LimitError says which limit ended a run.
type LimitError struct {
	Limit string // the field of Limits, for example "requests"
	Most  int64  // its value; for time, in milliseconds
	Got   int64  // what would have been, or was, reached; 0 for time
}

// Error names the limit.
func (e *LimitError) Error() string {
	if e.Limit == "time" {
		return fmt.Sprintf("limit reached: the run took longer than %d ms", e.Most)
	}
	return fmt.Sprintf("limit reached: %s: %d of %d", e.Limit, e.Got, e.Most)
}

// Is reports whether the target is ErrLimit.
func (e *LimitError) Is(target error) bool { return target == ErrLimit }

// RetryError is a tool's failure that the model may mend by calling it again
// with other arguments.
type RetryError struct {
	Message string // for the model
	Err     error  // the cause; may be nil
}

// Error returns the message.
func (e *RetryError) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *RetryError) Unwrap() error { return e.Err }

// Retryf returns a *RetryError. With %w it wraps a cause.
func Retryf(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &RetryError{Message: err.Error(), Err: err}
}

// FailedError is a tool's failure that the model is told of and that is final.
type FailedError struct {
	Message string        // for the model
	Outcome model.Outcome // model.Failure when empty; model.Denied for a refusal
	Err     error         // the cause; may be nil
}

// Error returns the message.
func (e *FailedError) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *FailedError) Unwrap() error { return e.Err }

// Failedf returns a *FailedError. With %w it wraps a cause.
func Failedf(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &FailedError{Message: err.Error(), Err: err}
}

// Deniedf returns a *FailedError for a call that somebody refused.
func Deniedf(format string, args ...any) error {
	return &FailedError{Message: fmt.Sprintf(format, args...), Outcome: model.Denied}
}

// DeferredError makes a call wait for an answer from outside of the run. The
// run ends with the call in Result.Deferred, and goes on when a later run is
// given the history and, by WithAnswers, the answer.
type DeferredError struct {
	Reason string // for whoever answers
}

// Error returns the reason.
func (e *DeferredError) Error() string { return "deferred: " + e.Reason }

// Deferf returns a *DeferredError. It is for hooks around a tool call, and for
// tools that have done nothing yet.
func Deferf(format string, args ...any) error {
	return &DeferredError{Reason: fmt.Sprintf(format, args...)}
}

// correctable are path faults that a model can do something about. Others,
// such as a full disk, are not the tool's to explain.
var correctable = []syscall.Errno{
	syscall.ENOENT, syscall.EEXIST, syscall.ENOTDIR, syscall.EISDIR, syscall.EACCES, syscall.EPERM,
	syscall.EINVAL, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.ENOTEMPTY, syscall.EROFS,
}

// Correctable reports whether err is a failure of a workspace operation that
// the model can react to: a path that is missing, exists, is forbidden or of
// the wrong kind, or an answer of the workspace layer other than "it is gone".
// Tools use it to decide what to tell the model and what to return as it is.
func Correctable(err error) bool {
	if err == nil || errors.Is(err, workspace.ErrUnavailable) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	if errors.Is(err, workspace.ErrWorkspace) || errors.Is(err, workspace.ErrInvalid) {
		return true
	}
	var path *fs.PathError
	if !errors.As(err, &path) {
		return false
	}
	var errno syscall.Errno
	if errors.As(path.Err, &errno) {
		return slices.Contains(correctable, errno)
	}
	return errors.Is(path.Err, fs.ErrNotExist) || errors.Is(path.Err, fs.ErrExist) || errors.Is(path.Err, fs.ErrPermission)
}

// ending says, for a history, why a run ended early: a word for programs, a
// sentence for the model, and how its response counts.
func ending(err error) (reason, text string, finish model.FinishReason) {
	var limit *LimitError
	switch {
	case errors.As(err, &limit) && limit.Limit == "time":
		return "timeout", "The previous run was stopped because its time was up. It was not finished.", model.Cancelled
	case errors.As(err, &limit):
		return "limit", fmt.Sprintf("The previous run was stopped because it reached its limit of %s. It was not finished.", limit.Limit), model.Failed
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout", "The previous run was stopped because its time was up. It was not finished.", model.Cancelled
	case errors.Is(err, context.Canceled):
		return "cancelled", "The previous run was cancelled by the user before it was finished.", model.Cancelled
	case errors.Is(err, workspace.ErrUnavailable):
		return "workspace_unavailable", "The previous run ended because its workspace is no longer available. Files and processes in it may be lost.", model.Failed
	}
	return "error", "The previous run ended early because of an error. It was not finished.", model.Failed
}
