// Package shell gives an agent tools to run commands in its workspace.
//
//	a := agent.New(m, sandbox.New(rt, …), shell.New(shell.Options{}))
//
// There are two sets. run_command, start_command, check_command and
// stop_command are for agents in general; shell is one tool that does most of
// what they do, for coding agents, and is offered when Options name it.
//
// # Output
//
// Of each command the model gets the end of the output, since that is where
// results and errors are, within a bound. What did not fit is kept in a file
// in the workspace, whose name the model gets, so that nothing has to be run
// again to see it. A command that writes more than MaxOutputBytes is stopped.
//
// # Background commands
//
// A background command belongs to the workspace and not to the run: it goes on
// when the run ends. Its files are in .hutch/shell/ID, below the working
// directory. IDs are derived from the run's id and the tool call's, so that a
// start which is repeated, after a crash for example, does not start a second
// command.
//
// # What it refuses
//
// Lists of programs that are allowed or denied look at the first word of a
// command only, and operators at its text. They guard against accidents, and
// not against a model that means harm: the boundary is the workspace.
package shell

import (
	"context"
	"crypto/sha256"
	_ "embed" // the tools' descriptions
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/workspace"
)

// Defaults and limits.
const (
	DefaultTimeout   = 30 * time.Second  // of run_command
	DefaultMaxOutput = 50_000            // characters of output that one call returns
	ShellOutput      = 16_000            // the same for the tool shell, in bytes
	ShellTimeout     = 270 * time.Second // longest and default time of the tool shell
	MaxTimeout       = time.Hour         // longest time that a model may ask run_command for
	MaxOutputBytes   = 64 << 20          // output of a foreground command, after which it is stopped
	MaxEventBytes    = 16_000            // output of a command that goes into events
	EventChunk       = 4 << 10           // bytes of output in one event
	ControlTimeout   = 30 * time.Second  // of the scripts that start, check and stop
	StopGrace        = 2 * time.Second   // between TERM and KILL
)

// stateDir is where background commands and long outputs are, below the
// working directory.
const stateDir = ".hutch/shell"

// Options say which tools there are and what they refuse. The zero value is
// the default.
type Options struct {
	// Tools are the names of the tools to offer; nil means the four.
	Tools []string
	// Allow are the only programs that may be run, by name. It excludes Deny.
	Allow []string
	// Deny are programs that must not be run; nil means DefaultDenied, unless
	// Allow is set, and an empty list none.
	Deny []string
	// DenyOperators are texts that must not be in a command, such as "|",
	// ">" or "$(".
	DenyOperators []string
	// Timeout is how long run_command waits where the model does not say;
	// 0 means DefaultTimeout.
	Timeout time.Duration
	// ShellTimeout is the most and the default for shell; 0 means the constant.
	ShellTimeout time.Duration
	// MaxOutput bounds what a call returns, in characters; 0 means
	// DefaultMaxOutput, and ShellOutput for the tool shell.
	MaxOutput int
	// PersistDir starts each foreground command where the one before, when it
	// succeeded, ended up.
	PersistDir bool
	// Interactive allows programs that wait for a person, such as editors and
	// pagers, which are refused otherwise.
	Interactive bool
	// Env is added to the environment of each command.
	Env map[string]string
	// DenyEnv are patterns, with * and ?, of variables that are taken out of
	// the environment of each command.
	DenyEnv []string
	// MaxFileBytes is the largest file that a command may write; 0 means any.
	MaxFileBytes int64
	// Retries is the tools' budget, as agent.Tool.Retries.
	Retries int
}

// DefaultDenied are the programs that are denied when Options do not say.
func DefaultDenied() []string {
	return []string{"rm", "rmdir", "mkfs", "dd", "format", "shutdown", "reboot", "halt", "poweroff", "init"}
}

// interactive are programs that wait for a person.
func interactive() []string {
	return []string{"vi", "vim", "nvim", "nano", "emacs", "pico", "less", "more", "most", "top", "htop", "man", "ssh", "telnet", "ftp", "screen", "tmux"}
}

// The events of commands.
type (
	// Started is a command that begins.
	Started struct {
		Call    string // id of the tool call
		Command string
		ID      string // of a background command; empty in the foreground
	}
	// Output is a piece of a foreground command's output. Of each command only
	// the first MaxEventBytes come.
	Output struct {
		Call   string
		Stream string // "stdout" or "stderr"
		Data   string
	}
	// Finished is a foreground command that has ended.
	Finished struct {
		Call      string
		ExitCode  int  // -1 when it was stopped
		Truncated bool // the model did not get all output
	}
)

// EventName returns "command_started".
func (Started) EventName() string { return "command_started" }

// EventName returns "command_output".
func (Output) EventName() string { return "command_output" }

// EventName returns "command_finished".
func (Finished) EventName() string { return "command_finished" }

// Shell is the capability. It is safe for concurrent use.
type Shell struct {
	opt Options
	err error
}

var (
	_ agent.ToolProvider    = (*Shell)(nil)
	_ agent.WorkspaceNeeder = (*Shell)(nil)
)

// envPattern keeps what goes into a script harmless.
var envPattern = regexp.MustCompile(`^[A-Za-z0-9_*?]+$`)

// New makes the capability.
func New(opt Options) *Shell {
	s := &Shell{opt: opt}
	if opt.Allow != nil && opt.Deny != nil {
		s.err = errors.New("the options Allow and Deny contradict each other: give one")
	}
	if opt.Deny == nil && opt.Allow == nil {
		s.opt.Deny = DefaultDenied()
	}
	if opt.Timeout <= 0 {
		s.opt.Timeout = DefaultTimeout
	}
	if opt.ShellTimeout <= 0 {
		s.opt.ShellTimeout = ShellTimeout
	}
	for name, value := range opt.Env {
		if err := workspace.CheckEnv(name, value); err != nil {
			s.err = err
		}
	}
	for _, p := range opt.DenyEnv {
		if !envPattern.MatchString(p) {
			s.err = fmt.Errorf("DenyEnv: %q is no pattern for a variable: use letters, digits, _, * and ?", p)
		}
	}
	return s
}

// NeedsWorkspace returns the capability's name.
func (s *Shell) NeedsWorkspace() string { return "shell" }

//go:embed run_command.md
var runCommandDoc string

//go:embed start_command.md
var startCommandDoc string

//go:embed check_command.md
var checkCommandDoc string

//go:embed stop_command.md
var stopCommandDoc string

//go:embed shell.md
var shellDoc string

// Tools returns the tools: none in a workspace that is read-only.
func (s *Shell) Tools(_ context.Context, run *agent.Run) ([]agent.Tool, error) {
	if s.err != nil {
		return nil, fmt.Errorf("%w: shell: %w", agent.ErrUsage, s.err)
	}
	ws := run.Workspace()
	if ws.ReadOnly() {
		return nil, nil
	}
	if !ws.Supports(workspace.Commands) {
		return nil, fmt.Errorf("%w: shell: this workspace runs no commands (%T)", agent.ErrUsage, ws.Backend())
	}
	r := &session{Options: s.opt, ws: ws, run: run}
	retries := agent.Retries(s.opt.Retries)
	all := []agent.Tool{
		agent.NewTool("run_command", runCommandDoc, r.runCommand, retries),
		agent.NewTool("start_command", startCommandDoc, r.startCommand, retries),
		agent.NewTool("check_command", checkCommandDoc, r.checkCommand, retries),
		agent.NewTool("stop_command", stopCommandDoc, r.stopCommand, retries),
		agent.NewTool("shell", shellDoc, r.shell, retries),
	}
	wanted := s.opt.Tools
	if wanted == nil {
		wanted = []string{"run_command", "start_command", "check_command", "stop_command"}
	}
	var out []agent.Tool
	for _, name := range wanted {
		i := slices.IndexFunc(all, func(t agent.Tool) bool { return t.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("%w: shell has no tool %q", agent.ErrUsage, name)
		}
		out = append(out, all[i])
	}
	return out, nil
}

// session is the capability in one run.
type session struct {
	Options
	ws  *workspace.Workspace
	run *agent.Run

	mu  sync.Mutex
	dir string // where the last successful command ended up, with PersistDir
}

// check refuses commands that the options do not allow.
func (s *session) check(command string) error {
	if strings.TrimSpace(command) == "" {
		return agent.Retryf("the command is empty")
	}
	if strings.IndexByte(command, 0) >= 0 {
		return agent.Retryf("the command has a NUL byte in it")
	}
	program := firstWord(command)
	if s.Allow != nil && !slices.Contains(s.Allow, program) {
		return agent.Retryf("%s is not allowed; these programs are: %s", program, strings.Join(s.Allow, ", "))
	}
	if slices.Contains(s.Deny, program) {
		return agent.Retryf("%s is denied", program)
	}
	if !s.Interactive && slices.Contains(interactive(), program) {
		return agent.Retryf("%s waits for a person, and there is none", program)
	}
	for _, op := range s.DenyOperators {
		if op != "" && strings.Contains(command, op) {
			return agent.Retryf("%q is denied in commands", op)
		}
	}
	return nil
}

// firstWord is the program that a command begins with, as far as that can be
// told without running it.
func firstWord(command string) string {
	for _, w := range strings.Fields(command) {
		name, _, assignment := strings.Cut(w, "=")
		if assignment && regexpName.MatchString(name) {
			continue
		}
		return path.Base(strings.Trim(w, `"'(){};&|`))
	}
	return ""
}

var regexpName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// prelude is what goes before each command in its script.
func (s *session) prelude() string {
	var b strings.Builder
	if len(s.DenyEnv) > 0 {
		b.WriteString("for hutch_v in $(env | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p'); do case $hutch_v in " +
			strings.Join(s.DenyEnv, "|") + ") unset \"$hutch_v\";; esac; done; unset hutch_v\n")
	}
	if s.MaxFileBytes > 0 {
		fmt.Fprintf(&b, "ulimit -f %d || exit 126\n", (s.MaxFileBytes+511)/512)
	}
	return b.String()
}

// id is the name of what belongs to a tool call: the same each time.
func (s *session) id(call *agent.Call) string {
	sum := sha256.Sum256([]byte(s.run.ID() + "\x00" + call.CallID))
	return hex.EncodeToString(sum[:16])
}

var idForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// tell turns an error of the workspace into what the loop should do with it.
func tell(err error) error {
	if agent.Correctable(err) {
		return agent.Retryf("%w", err)
	}
	return err
}
