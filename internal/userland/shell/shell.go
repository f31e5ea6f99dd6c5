// Package shell is the POSIX shell of the builtin userland.
//
// Parsing and word expansion come from mvdan.cc/sh; running commands is done
// here, because the interpreter of that module keeps the whole shell inside
// one process (goroutines for background jobs, a virtual working directory,
// no signals), while people expect $! to be a process they can kill, exec to
// keep the process id, and Ctrl-Z to stop a job.
//
// How commands become processes:
//
//   - an external command is one fork and exec, in its own process group when
//     job control is on;
//   - "( list )" and "$( list )", which the shell waits for anyway, run inside
//     this process on a copy of the shell's state (Shell.clone), and the
//     working directory and umask are put back afterwards;
//   - what must run beside the shell (a background list, a stage of a
//     pipeline that is not a plain command) is a new process of this program
//     that gets the state over an inherited descriptor (see child.go).
//
// Descriptors are never moved inside the shell: fdTable maps the numbers that
// a script uses to real ones, and only a child sees them in place.
//
// A Shell is used by one goroutine.
package shell

import (
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/hutch-sandbox/hutch/internal/userland/basic"
	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// flow says why statements are being skipped.
type flow uint8

const (
	flowNone     flow = iota
	flowBreak         // leave flowN loops
	flowContinue      // next round of the flowN-th loop
	flowReturn        // leave the function or sourced file
	flowExit          // end this shell (or in-process subshell)
	flowAbort         // back to the prompt
)

// Exit statuses the shell itself produces.
const (
	statusUsage   = 2
	statusNoExec  = 126
	statusMissing = 127
)

// options are the single-letter options of set.
type options struct {
	allexport, noclobber, errexit, noglob, monitor, noexec,
	nounset, verbose, xtrace, ignoreeof, pipefail, stdin, interactive bool
}

// optionTable lists the options with their letter (0 for none) and name.
func (o *options) table() []optionEntry {
	return []optionEntry{
		{'e', "errexit", &o.errexit},
		{'f', "noglob", &o.noglob},
		{'I', "ignoreeof", &o.ignoreeof},
		{'i', "interactive", &o.interactive},
		{'m', "monitor", &o.monitor},
		{'n', "noexec", &o.noexec},
		{'s', "stdin", &o.stdin},
		{'x', "xtrace", &o.xtrace},
		{'v', "verbose", &o.verbose},
		{'C', "noclobber", &o.noclobber},
		{'a', "allexport", &o.allexport},
		{'u', "nounset", &o.nounset},
		{0, "pipefail", &o.pipefail},
	}
}

type optionEntry struct {
	letter byte
	name   string
	value  *bool
}

// Shell is one shell environment: the main one, or the copy an in-process
// subshell works on.
type Shell struct {
	proc *process
	// parent is the shell an in-process subshell was copied from.
	parent *Shell

	vars    map[string]expand.Variable
	foreign []string // environment entries whose names are no shell names
	locals  []map[string]*expand.Variable
	funcs   map[string]*syntax.FuncDecl
	aliases map[string]string
	params  []string
	arg0    string
	opt     options
	fds     *fdTable
	cfg     expand.Config

	status      int
	substStatus int // of the last command substitution, -1 for none
	lastBg      int
	line        uint
	jobs        []*job
	traps       map[syscall.Signal]string
	inTrap      bool

	flow    flow
	flowN   int
	noErr   int // greater than 0 while set -e is suspended
	loops   int
	depth   int // functions and sourced files being run
	nesting int // evaluation depth, to stop runaway recursion

	texts []string // see splittable
	slots []int    // descriptors of process substitutions in the current command

	tail *syntax.Stmt // a plain command that may replace this process

	// What an in-process subshell must put back.
	savedDir   int // descriptor of the old directory, -1 for none
	savedMask  int // old umask, -1 for none
	touchedSig bool

	warned bool // about stopped jobs, on exit

	getoptPos int // position inside a cluster of options, for getopts
}

// maxNesting bounds recursion of functions and nested commands.
const maxNesting = 5000

// process is what all shells of this process share.
type process struct {
	pid     int // $$, kept in subshells
	self    string
	sig     chan os.Signal
	pending map[syscall.Signal]int
	refs    map[int]int // references to each real descriptor
	orphans []int       // children nobody waits for by name
	tty     *terminal   // nil unless job control is on
	ignored map[syscall.Signal]bool
	table   map[string]builtin
}

func newShell() *Shell {
	p := &process{
		pid:     os.Getpid(),
		self:    "/proc/self/exe",
		sig:     make(chan os.Signal, 128),
		pending: map[syscall.Signal]int{},
		refs:    map[int]int{},
		ignored: map[syscall.Signal]bool{},
		table:   builtinTable(),
	}
	s := &Shell{
		proc:        p,
		vars:        map[string]expand.Variable{},
		funcs:       map[string]*syntax.FuncDecl{},
		aliases:     map[string]string{},
		traps:       map[syscall.Signal]string{},
		substStatus: -1,
		savedDir:    -1,
		savedMask:   -1,
		arg0:        "sh",
	}
	s.fds = inheritedFds(p)
	s.prepare()
	return s
}

// clone is the copy of s that an in-process subshell changes freely.
func (s *Shell) clone() *Shell {
	c := &Shell{
		proc: s.proc, parent: s,
		vars: maps.Clone(s.vars), foreign: s.foreign, funcs: maps.Clone(s.funcs),
		aliases: maps.Clone(s.aliases), params: s.params, arg0: s.arg0, opt: s.opt,
		fds: s.fds.dup(), status: s.status, lastBg: s.lastBg, line: s.line,
		jobs: nil, traps: map[syscall.Signal]string{}, noErr: s.noErr,
		depth: s.depth, loops: s.loops, nesting: s.nesting, substStatus: -1, savedDir: -1, savedMask: -1,
	}
	for _, l := range s.locals {
		c.locals = append(c.locals, maps.Clone(l))
	}
	for sig, action := range s.traps {
		if action == "" {
			c.traps[sig] = ""
		}
	}
	c.opt.monitor = false
	c.prepare()
	return c
}

// end runs the EXIT trap of an in-process subshell and undoes what it did to
// the process. It returns the subshell's exit status.
func (s *Shell) end() int {
	s.runExitTrap()
	s.fds.release()
	for _, j := range s.jobs {
		for _, p := range j.procs {
			if !p.done && p.pid > 0 {
				s.proc.orphans = append(s.proc.orphans, p.pid)
			}
		}
	}
	if s.savedDir >= 0 {
		_ = unix.Fchdir(s.savedDir)
		unix.Close(s.savedDir)
	}
	if s.savedMask >= 0 {
		unix.Umask(s.savedMask)
	}
	if s.touchedSig {
		s.parent.restoreSignals()
	}
	return s.status
}

// inProcess reports whether s is a subshell inside its parent's process.
func (s *Shell) inProcess() bool { return s.parent != nil }

// errorf writes "sh: message" to the script's standard error.
func (s *Shell) errorf(format string, args ...any) {
	name := s.arg0
	if s.line > 0 && !s.opt.interactive {
		name += ": " + strconv.FormatUint(uint64(s.line), 10)
	}
	s.writeFd(2, name+": "+fmt.Sprintf(format, args...)+"\n")
}

// fatal reports an error that ends a non-interactive shell, and takes an
// interactive one back to its prompt.
func (s *Shell) fatal(status int, format string, args ...any) {
	s.errorf(format, args...)
	s.status = status
	if s.opt.interactive && !s.inProcess() {
		s.flow = flowAbort
	} else {
		s.flow = flowExit
	}
}

// writeFd writes to a descriptor of the script, best effort.
func (s *Shell) writeFd(fd int, text string) {
	if r := s.fds.get(fd); r >= 0 {
		_ = writeAll(r, []byte(text))
	}
}

// context is the Context in which a builtin utility runs inside the shell.
func (s *Shell) context(name string, args []string) *tool.Context {
	return &tool.Context{
		Name:   name,
		Args:   args,
		Stdin:  fdReader(s.fds.get(0)),
		Stdout: tool.NewOutput(&fdWriter{s.fds.get(1)}),
		Stderr: &fdWriter{s.fds.get(2)},
	}
}

// runTool runs a utility as a builtin. A closed pipe ends the shell as the
// signal would have.
func (s *Shell) runTool(f tool.Func, name string, args []string) int {
	c := s.context(name, args)
	code := f(c)
	c.Stdout.Flush()
	if err := c.Stdout.Err(); err != nil {
		if err == syscall.EPIPE {
			return s.brokenPipe()
		}
		c.Errorf("write error: %s", tool.Reason(err))
		if code == 0 {
			code = 1
		}
	}
	return code
}

// brokenPipe does what SIGPIPE does to a shell whose builtin writes to a pipe
// nobody reads.
func (s *Shell) brokenPipe() int {
	if action, ok := s.traps[syscall.SIGPIPE]; ok && action == "" || signal.Ignored(syscall.SIGPIPE) {
		return 1
	}
	if !s.inProcess() && !s.opt.interactive {
		basic.DieBySignal(syscall.SIGPIPE)
	}
	s.flow = flowExit
	if s.opt.interactive && !s.inProcess() {
		s.flow = flowAbort
	}
	s.status = 128 + int(syscall.SIGPIPE)
	return s.status
}

// Main is the sh utility. It uses the process's real descriptors, working
// directory and signals, so only one may run in a process.
func Main(c *tool.Context) int {
	if len(c.Args) == 1 && strings.HasPrefix(c.Args[0], childFlag) {
		return runChild(c.Args[0])
	}
	s := newShell()
	s.importEnv(os.Environ())
	login := strings.HasPrefix(c.Name, "-")
	args := c.Args
	var command *string
	if len(args) > 0 && args[0] == "--help" {
		c.Printf("Usage: sh [-aCefimnsuvx] [-o OPTION] [-c COMMAND [NAME [ARG]...] | FILE [ARG]... | -s [ARG]...]\n")
		return 0
	}
	wantC := false
	for len(args) > 0 {
		a := args[0]
		if a == "-" || a == "--" {
			args = args[1:]
			break
		}
		if len(a) < 2 || a[0] != '-' && a[0] != '+' {
			break
		}
		if a == "--login" {
			login = true
			args = args[1:]
			continue
		}
		on := a[0] == '-'
		args = args[1:]
		for _, l := range []byte(a[1:]) {
			switch l {
			case 'c':
				wantC = on
			case 'l':
				login = on
			case 'o':
				if len(args) == 0 || !s.setNamed(args[0], on) {
					fmt.Fprintf(os.Stderr, "sh: illegal option -o %s\n", strings.Join(args[:min(1, len(args))], ""))
					return statusUsage
				}
				args = args[1:]
			default:
				if !s.setLetter(l, on) {
					fmt.Fprintf(os.Stderr, "sh: illegal option -%c\n", l)
					return statusUsage
				}
			}
		}
	}
	if wantC {
		if len(args) == 0 {
			fmt.Fprintln(os.Stderr, "sh: -c requires an argument")
			return statusUsage
		}
		command, args = &args[0], args[1:]
		if len(args) > 0 {
			s.arg0, args = args[0], args[1:]
		}
		s.params = args
	} else if len(args) > 0 && !s.opt.stdin {
		s.arg0 = args[0]
		s.params = args[1:]
	} else {
		s.opt.stdin = true
		s.params = args
	}
	if s.opt.stdin && command == nil && isTerminal(0) && isTerminal(2) {
		s.opt.interactive = true
	}
	if s.opt.interactive {
		s.startInteractive()
	}
	if login {
		s.sourceIfExists("/etc/profile")
		if home := s.get("HOME"); home != "" {
			s.sourceIfExists(home + "/.profile")
		}
	}
	if s.opt.interactive {
		if env := s.get("ENV"); env != "" {
			s.sourceIfExists(env)
		}
	}
	switch {
	case s.flow == flowExit:
	case command != nil:
		s.runString(*command, true)
	case s.opt.stdin:
		s.runStdin()
	default:
		if !s.runFile(s.arg0) {
			return s.status
		}
	}
	if s.flow != flowExit {
		s.flow = flowNone
	}
	s.runExitTrap()
	if s.proc.tty != nil {
		s.hangupStopped()
	}
	return s.status
}

// setLetter sets an option by its letter; false when there is none.
func (s *Shell) setLetter(l byte, on bool) bool {
	for _, e := range s.opt.table() {
		if e.letter == l && l != 0 {
			*e.value = on
			return true
		}
	}
	return false
}

// setNamed sets an option by its long name; false when there is none.
func (s *Shell) setNamed(name string, on bool) bool {
	for _, e := range s.opt.table() {
		if e.name == name {
			*e.value = on
			return true
		}
	}
	return false
}

// flags is the value of $-.
func (s *Shell) flags() string {
	var b []byte
	for _, e := range s.opt.table() {
		if *e.value && e.letter != 0 {
			b = append(b, e.letter)
		}
	}
	return string(b)
}

// commands lists, sorted, the names that Tab can complete besides files.
func (s *Shell) commandNames() []string {
	names := slices.Collect(maps.Keys(s.funcs))
	for name := range s.proc.table {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
