package cli

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/hutch-sandbox/hutch/box"
)

// Exit statuses of the hutch command that are not a box command's own.
const (
	ExitOK           = 0   // success
	ExitFailure      = 1   // the command failed
	ExitUsage        = 2   // an unknown command, a bad flag or argument
	ExitTimeout      = 124 // a --timeout passed, as timeout(1) says it
	ExitHutch        = 125 // run, create, exec: Hutch failed, not the command
	ExitCannotInvoke = 126 // run, exec: the command was found but cannot be invoked
	ExitNotFound     = 127 // run, exec: the command was not found
	ExitPipe         = 141 // nobody reads standard output any more: 128+SIGPIPE
)

// exitError ends hutch with a status. A nil err prints nothing.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is a mistake in the arguments; its text names the field and ends
// in what to do.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

// usagef makes a usageError.
func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// outputError is a failed write to standard output. It has a type of its own
// so that a broken pipe there is not mistaken for one between Hutch and a box.
type outputError struct{ err error }

func (e *outputError) Error() string { return "write standard output: " + e.err.Error() }
func (e *outputError) Unwrap() error { return e.err }

// signalError is the cancellation cause when a signal ended hutch.
type signalError struct{ sig syscall.Signal }

func (e *signalError) Error() string { return "ended by signal: " + e.sig.String() }

// errForced is the cancellation cause of the third signal.
var errForced = errors.New("got 3 SIGTERM/SIGINTs, forcefully exiting; see 'hutch ps' for boxes that still run")

// errDetached says that the user typed the detach keys.
var errDetached = errors.New("detached")

// statusError turns the end of a command in a box into what hutch ends with:
// nil, or an exitError with the command's status and, where the status alone
// would not tell, a line that does. what names the command for that line.
func statusError(what string, s box.ExitStatus) error {
	switch s.Reason {
	case box.NotStarted:
		code := s.Code
		hint := "see what the box has with 'ls /bin' in it, or name another image"
		if code == ExitCannotInvoke {
			hint = "check that it is an executable file made for the box's platform"
		} else {
			code = ExitNotFound
		}
		msg := s.Message
		if msg == "" {
			msg = "cannot be started"
		}
		// The message often begins with the command, which what ends in.
		if i := strings.LastIndex(what, ": "); i >= 0 && strings.HasPrefix(msg, what[i+2:]+": ") {
			what = what[:i]
		}
		return &exitError{code, fmt.Errorf("%s: %s; %s", what, msg, hint)}
	case box.TimedOut:
		return &exitError{ExitTimeout, fmt.Errorf("%s: timed out and was killed; give it longer with --timeout", what)}
	case box.OutOfMemory:
		return &exitError{nonZero(s.Code, 137), fmt.Errorf("%s: killed, the box is out of memory; create it with a larger --memory", what)}
	case box.Killed:
		return &exitError{nonZero(s.Code, 137), nil}
	}
	if s.Code == 0 && s.Signal == 0 {
		return nil
	}
	return &exitError{nonZero(s.Code, 128+int(s.Signal)), nil}
}

func nonZero(code, otherwise int) int {
	if code != 0 {
		return code
	}
	return otherwise
}
