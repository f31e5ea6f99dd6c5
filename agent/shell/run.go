package shell

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/workspace"
)

type runArgs struct {
	Command        string  `json:"command" jsonschema:"the command, for a POSIX shell"`
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty" jsonschema:"seconds after which it is killed; 30 when left out"`
}

func (s *session) runCommand(ctx context.Context, call *agent.Call, a runArgs) (string, error) {
	timeout := s.Timeout
	if a.TimeoutSeconds != 0 {
		if a.TimeoutSeconds < 0 || a.TimeoutSeconds > MaxTimeout.Seconds() {
			return "", agent.Retryf("timeout_seconds has to be more than 0 and at most %.0f", MaxTimeout.Seconds())
		}
		timeout = time.Duration(a.TimeoutSeconds * float64(time.Second))
	}
	chars := s.MaxOutput
	if chars <= 0 {
		chars = DefaultMaxOutput
	}
	return s.foreground(ctx, call, a.Command, timeout, chars)
}

// foreground runs a command to its end.
func (s *session) foreground(ctx context.Context, call *agent.Call, command string, timeout time.Duration, chars int) (string, error) {
	if err := s.check(command); err != nil {
		return "", err
	}
	script := s.prelude()
	id := s.id(call)
	record := stateDir + "/" + id + ".cwd"
	if s.PersistDir {
		var err error
		if script, err = s.inDir(ctx, script, record); err != nil {
			return "", err
		}
	}
	c := s.capture(ctx, call, id, chars)
	call.Emit(Started{Call: call.CallID, Command: command})
	res, err := s.ws.Run(ctx, workspace.Command{Shell: script + command, Env: s.Env, Timeout: timeout, Stdout: c.out, Stderr: c.err})
	room := chars - 1000 // the notes have their share
	body, notes, truncated := c.render(room)
	fin := Finished{Call: call.CallID, ExitCode: res.ExitCode, Truncated: truncated}
	switch {
	case errors.Is(err, errTooMuch):
		notes = append(notes, fmt.Sprintf("[stopped: the command wrote more than %d bytes; redirect its output to a file]", MaxOutputBytes))
		fin.ExitCode = -1
	case errors.Is(err, workspace.ErrTimeout):
		notes = append(notes, fmt.Sprintf("[Command timed out after %gs]", timeout.Seconds()))
		fin.ExitCode = -1
	case err != nil:
		return "", tell(err)
	case res.ExitCode != 0:
		notes = append(notes, fmt.Sprintf("[exit code: %d]", res.ExitCode))
	}
	if s.PersistDir && err == nil && res.OK() {
		if err := s.leftAt(ctx, record); err != nil {
			return "", err
		}
	}
	call.Emit(fin)
	if len(notes) == 0 {
		return strings.TrimSuffix(body, "\n"), nil
	}
	return body + strings.Join(notes, "\n"), nil
}

// inDir makes the script begin where the last command ended, and record where
// it ends itself, when it succeeds. The record is a file: what a command
// prints cannot be taken for it.
func (s *session) inDir(ctx context.Context, script, record string) (string, error) {
	s.mu.Lock()
	dir := s.dir
	s.mu.Unlock()
	if dir != "" {
		info, err := s.ws.Stat(ctx, dir)
		if err != nil || !info.Dir {
			if err != nil && !agent.Correctable(err) {
				return "", err
			}
			s.mu.Lock()
			s.dir = ""
			s.mu.Unlock()
			return "", agent.Retryf("the directory %s, where the last command ended, is gone; commands start in the working directory again", dir)
		}
	}
	file, err := s.ws.Resolve(ctx, record)
	if err != nil {
		return "", tell(err)
	}
	if err := ignored(ctx, s.ws); err != nil {
		return "", tell(err)
	}
	if err := s.ws.MkdirAll(ctx, stateDir); err != nil {
		return "", tell(err)
	}
	q := workspace.Quote
	script += "trap 'hutch_s=$?; if [ \"$hutch_s\" -eq 0 ]; then pwd -P >" + strings.ReplaceAll(q(file), "'", `'\''`) + "; fi; exit \"$hutch_s\"' EXIT\n"
	if dir != "" {
		script += "cd " + q(dir) + " || exit 126\n"
	}
	return script, nil
}

func (s *session) leftAt(ctx context.Context, record string) error {
	text, err := s.ws.ReadText(ctx, record)
	if err != nil {
		if agent.Correctable(err) {
			return nil // the command replaced the trap, or was killed by it
		}
		return err
	}
	if err := s.ws.Remove(ctx, record); err != nil && !agent.Correctable(err) {
		return err
	}
	dir := strings.TrimSuffix(text, "\n")
	if !strings.HasPrefix(dir, "/") {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dir = dir
	return nil
}

type shellArgs struct {
	Command string  `json:"command" jsonschema:"the command, for a POSIX shell"`
	Mode    string  `json:"mode,omitempty" jsonschema:"foreground, the default, or background"`
	Timeout float64 `json:"timeout,omitempty" jsonschema:"seconds to wait in the foreground, more than 0 and at most 270, the default"`
}

func (s *session) shell(ctx context.Context, call *agent.Call, a shellArgs) (string, error) {
	timeout := s.ShellTimeout
	if a.Timeout != 0 {
		if a.Timeout < 0 || a.Timeout > s.ShellTimeout.Seconds() {
			return "", agent.Retryf("timeout has to be more than 0 and at most %.0f; for longer commands use the background", s.ShellTimeout.Seconds())
		}
		timeout = time.Duration(a.Timeout * float64(time.Second))
	}
	switch a.Mode {
	case "", "foreground":
		chars := s.MaxOutput
		if chars <= 0 {
			chars = ShellOutput
		}
		return s.foreground(ctx, call, a.Command, timeout, chars)
	case "background":
		j, err := s.start(ctx, call, a.Command, true)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("[started in the background]\npid: %d\noutput: %s/output.log\nstatus: %s/status.json", j.pid, j.dir, j.dir), nil
	}
	return "", agent.Retryf("mode is %q, and has to be foreground or background", a.Mode)
}
