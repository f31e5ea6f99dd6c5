package box

import (
	"fmt"
	"syscall"
)

// ExitReason says why a command ended.
type ExitReason string

// The reasons.
const (
	Exited      ExitReason = "exited"        // by itself, or by somebody's signal
	TimedOut    ExitReason = "timeout"       // its own time limit passed; its process tree was killed
	Killed      ExitReason = "canceled"      // its owner went away or asked for the kill
	OutOfMemory ExitReason = "out of memory" // killed because the box used up its memory
	NotStarted  ExitReason = "not started"   // could not be started: Code is 127 (not found) or 126 (not runnable)
)

// ExitStatus is how a command ended.
type ExitStatus struct {
	// Code is the exit status as a shell reports it: 128+N for signal N.
	Code int `json:"code"`
	// Signal that ended it, or zero.
	Signal syscall.Signal `json:"signal,omitempty"`
	Reason ExitReason     `json:"reason"`
	// Message explains NotStarted.
	Message string `json:"message,omitempty"`
}

// Success reports whether the command exited with status zero.
func (s ExitStatus) Success() bool { return s.Code == 0 && s.Signal == 0 && s.Reason == Exited }

// String is "exit status 3", "signal: killed", "out of memory" and so on.
func (s ExitStatus) String() string {
	switch s.Reason {
	case OutOfMemory, TimedOut, Killed:
		return string(s.Reason)
	case NotStarted:
		if s.Message != "" {
			return s.Message
		}
	}
	if s.Signal != 0 {
		return "signal: " + s.Signal.String()
	}
	return fmt.Sprintf("exit status %d", s.Code)
}

// ExitError is a command that ran and did not succeed. It is not used for a
// command whose timeout passed, whose context ended or whose box went away:
// those are an *Error of kind Timeout, Canceled or Unavailable.
type ExitError struct {
	ExitStatus
	// OutOfMemory says that the box was at its memory limit and killed the
	// command. Such an error also is ErrExhausted.
	OutOfMemory bool
	// Stderr holds the beginning and the end of what Cmd.Output did not pass
	// on, as in os/exec.
	Stderr []byte
}

// Error describes the status.
func (e *ExitError) Error() string { return e.ExitStatus.String() }

// ExitCode is the exit status as a shell reports it.
func (e *ExitError) ExitCode() int { return e.Code }

// Is makes an out-of-memory kill match ErrExhausted.
func (e *ExitError) Is(target error) bool { return e.OutOfMemory && target == ErrExhausted }
