package shell

import (
	"fmt"
	"os"
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

// builtin is a command the shell runs itself. The special ones of POSIX keep
// the assignments before them, are found before functions, and end a script
// on a usage error.
type builtin struct {
	special bool
	run     func(s *Shell, args []string) int
	// tool is set for those that are utilities of their own too.
	tool tool.Func
}

func builtinTable() map[string]builtin {
	sp := func(f func(*Shell, []string) int) builtin { return builtin{special: true, run: f} }
	reg := func(f func(*Shell, []string) int) builtin { return builtin{run: f} }
	util := func(name string, f tool.Func) builtin {
		return builtin{tool: f, run: func(s *Shell, args []string) int { return s.runTool(f, name, args) }}
	}
	status := func(n int) func(*Shell, []string) int { return func(*Shell, []string) int { return n } }
	return map[string]builtin{
		":": sp(status(0)), "true": reg(status(0)), "false": reg(status(1)),
		".": sp(biDot), "source": sp(biDot), "break": sp(biBreak), "continue": sp(biBreakContinue),
		"eval": sp(biEval), "exec": sp(biExec), "exit": sp(biExit), "return": sp(biReturn),
		"export": sp(biExport), "readonly": sp(biReadonly), "set": sp(biSet), "shift": sp(biShift),
		"times": sp(biTimes), "trap": sp(biTrap), "unset": sp(biUnset),
		"alias": reg(biAlias), "unalias": reg(biUnalias), "bg": reg(biBg), "fg": reg(biFg),
		"cd": reg(biCd), "chdir": reg(biCd), "pwd": reg(biPwd), "command": reg(biCommand), "type": reg(biType),
		"hash": reg(biHash), "getopts": reg(biGetopts), "jobs": reg(biJobs), "kill": reg(biKill), "history": reg(biHistory),
		"local": reg(biLocal), "read": reg(biRead), "umask": reg(biUmask), "ulimit": reg(biUlimit),
		"wait": reg(biWait), "let": reg(biLet), "disown": reg(biDisown), "builtin": reg(biBuiltin),
		"echo": util("echo", basic.Echo), "printf": util("printf", basic.Printf),
		"test": util("test", basic.Test), "[": util("[", basic.Test),
	}
}

// usage reports a usage error of a builtin.
func (s *Shell) usage(format string, args ...any) int {
	s.errorf(format, args...)
	return statusUsage
}

func biDot(s *Shell, args []string) int {
	if len(args) == 0 {
		return s.usage(".: filename argument required")
	}
	path := args[0]
	if !strings.Contains(path, "/") {
		for _, dir := range append(strings.Split(s.get("PATH"), ":"), ".") {
			if st, err := os.Stat(dir + "/" + path); err == nil && !st.IsDir() {
				path = dir + "/" + path
				break
			}
		}
	}
	if st, err := os.Stat(path); err != nil || st.IsDir() {
		why := "Is a directory"
		if err != nil {
			why = tool.Reason(err)
		}
		s.fatal(statusUsage, ".: cannot open %s: %s", args[0], why)
		return s.status
	}
	params := s.params
	if len(args) > 1 {
		s.params = args[1:]
	}
	s.status = 0
	if !s.source(path) {
		s.fatal(statusUsage, ".: cannot open %s", args[0])
	}
	if len(args) > 1 {
		s.params = params
	}
	return s.status
}

func loopCount(s *Shell, name string, args []string) (int, bool) {
	n := 1
	if len(args) > 0 {
		var err error
		if n, err = strconv.Atoi(args[0]); err != nil || n < 1 {
			s.fatal(statusUsage, "%s: Illegal number: %s", name, args[0])
			return 0, false
		}
	}
	return min(n, s.loops), s.loops > 0
}

func biBreak(s *Shell, args []string) int {
	if n, ok := loopCount(s, "break", args); ok {
		s.flow, s.flowN = flowBreak, n
	}
	return s.okStatus()
}

func biBreakContinue(s *Shell, args []string) int {
	if n, ok := loopCount(s, "continue", args); ok {
		s.flow, s.flowN = flowContinue, n
	}
	return s.okStatus()
}

// okStatus is 0, or the status of the fatal error just reported.
func (s *Shell) okStatus() int {
	if s.flow == flowExit || s.flow == flowAbort {
		return s.status
	}
	return 0
}

func biEval(s *Shell, args []string) int {
	s.status = 0
	line := s.line
	s.runString(strings.Join(args, " "), false)
	s.line = line
	return s.status
}

func biExec(s *Shell, args []string) int {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	argv0 := ""
	if len(args) > 1 && args[0] == "-a" {
		argv0, args = args[1], args[2:]
	}
	if len(args) == 0 {
		return 0
	}
	path, status, err := s.lookPath(args[0], nil)
	if err != nil {
		s.fatal(status, "exec: %s: %v", args[0], err)
		return s.status
	}
	argv := slices.Clone(args)
	if argv0 != "" {
		argv[0] = argv0
	}
	s.replace(path, argv, s.execEnv())
	return s.status
}

func exitNumber(s *Shell, name string, args []string) (int, bool) {
	if len(args) == 0 {
		return s.status, true
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 0 {
		s.fatal(statusUsage, "%s: Illegal number: %s", name, args[0])
		return s.status, false
	}
	return n & 255, true
}

func biExit(s *Shell, args []string) int {
	if s.opt.interactive && !s.inProcess() && s.proc.tty != nil && s.warnStoppedOnce() {
		return 0
	}
	n, ok := exitNumber(s, "exit", args)
	if ok {
		s.flow = flowExit
	}
	return n
}

// warnStoppedOnce warns about stopped jobs; a second exit in a row leaves.
func (s *Shell) warnStoppedOnce() bool {
	if s.warned {
		return false
	}
	s.warned = s.warnStopped()
	return s.warned
}

func biReturn(s *Shell, args []string) int {
	n, ok := exitNumber(s, "return", args)
	if ok {
		s.flow = flowReturn
		if s.depth == 0 {
			s.flow = flowExit
		}
	}
	return n
}

// declArgs splits NAME=VALUE words given to export and readonly when they
// are called by way of command or eval'd words.
func biExport(s *Shell, args []string) int {
	return s.attribute("export", args, func(v *expand.Variable, on bool) { v.Exported = on })
}

func biReadonly(s *Shell, args []string) int {
	return s.attribute("readonly", args, func(v *expand.Variable, on bool) { v.ReadOnly = on })
}

func (s *Shell) attribute(name string, args []string, change func(*expand.Variable, bool)) int {
	on := true
	print := len(args) == 0
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		switch args[0] {
		case "-p":
			print = len(args) == 1
		case "-n":
			on = false
		case "--":
		default:
			return s.usage("%s: Illegal option %s", name, args[0])
		}
		args = args[1:]
	}
	if print {
		w := s.context(name, nil).Stdout
		for _, n := range s.names() {
			v := s.vars[n]
			probe := v
			change(&probe, false)
			if probe.Exported == v.Exported && probe.ReadOnly == v.ReadOnly {
				continue
			}
			fmt.Fprintf(w, "%s %s", name, n)
			if v.Set {
				fmt.Fprintf(w, "=%s", quoteAlways(v.String()))
			}
			w.WriteByte('\n')
		}
		w.Flush()
		return 0
	}
	for _, a := range args {
		n, val, has := strings.Cut(a, "=")
		if !syntax.ValidName(n) {
			s.fatal(statusUsage, "%s: %s: bad variable name", name, n)
			return s.status
		}
		if has && !s.set(n, val) {
			return s.status
		}
		v := s.vars[n]
		change(&v, on)
		s.vars[n] = v
	}
	return 0
}

func quoteAlways(v string) string { return "'" + strings.ReplaceAll(v, "'", `'"'"'`) + "'" }

// declare runs export, readonly, local, declare and typeset as the parser
// gives them, with assignments that are not split into words.
func (s *Shell) declare(c *syntax.DeclClause) {
	s.substStatus = -1
	var words []string
	for _, a := range c.Args {
		switch {
		case a.Naked && a.Name == nil:
			f, ok := s.fields([]*syntax.Word{a.Value})
			if !ok {
				return
			}
			words = append(words, f...)
		case a.Naked:
			words = append(words, a.Name.Value)
		case a.Array != nil || a.Index != nil || a.Append:
			if c.Variant.Value == "local" && s.depth > 0 {
				s.makeLocal(a.Name.Value)
			}
			if !s.assignOne(a, c.Variant.Value == "export") {
				return
			}
			if c.Variant.Value == "readonly" {
				words = append(words, a.Name.Value)
			}
		default:
			v, ok := s.literal(a.Value)
			if !ok {
				return
			}
			words = append(words, a.Name.Value+"="+v)
		}
	}
	if s.opt.xtrace {
		q := []string{c.Variant.Value}
		for _, w := range words {
			q = append(q, basic.Quote(w))
		}
		s.trace(strings.Join(q, " "))
	}
	switch c.Variant.Value {
	case "export":
		s.status = biExport(s, words)
	case "readonly":
		s.status = biReadonly(s, words)
	case "local":
		s.status = biLocal(s, words)
	case "declare", "typeset":
		s.status = biDeclare(s, c.Variant.Value, words)
	default:
		s.status = s.usage("%s is not supported", c.Variant.Value)
	}
}

// biDeclare supports the attributes that this shell has: -x -r -a -g -p.
func biDeclare(s *Shell, name string, args []string) int {
	export, readonly, array, global := false, false, false, false
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		for _, l := range args[0][1:] {
			switch l {
			case 'x':
				export = true
			case 'r':
				readonly = true
			case 'a':
				array = true
			case 'g':
				global = true
			default:
				return s.usage("%s: Illegal option -%c", name, l)
			}
		}
		args = args[1:]
	}
	if len(args) == 0 {
		return biSet(s, nil)
	}
	if s.depth > 0 && !global && len(s.locals) > 0 {
		if st := biLocal(s, args); st != 0 {
			return st
		}
	}
	for _, a := range args {
		n, val, has := strings.Cut(a, "=")
		if !syntax.ValidName(n) {
			return s.usage("%s: %s: bad variable name", name, n)
		}
		if has && !s.set(n, val) {
			return s.status
		}
		v := s.vars[n]
		v.Exported = v.Exported || export
		v.ReadOnly = v.ReadOnly || readonly
		if array && !v.Set {
			v.Kind, v.Set = expand.Indexed, true
		}
		s.vars[n] = v
	}
	return 0
}

func (s *Shell) makeLocal(name string) {
	if len(s.locals) == 0 {
		return
	}
	frame := s.locals[len(s.locals)-1]
	if frame == nil {
		frame = map[string]*expand.Variable{}
		s.locals[len(s.locals)-1] = frame
	}
	if _, dup := frame[name]; dup {
		return
	}
	if v, ok := s.vars[name]; ok {
		frame[name] = &v
	} else {
		frame[name] = nil
	}
}

func biLocal(s *Shell, args []string) int {
	if len(s.locals) == 0 {
		s.fatal(statusUsage, "local: not in a function")
		return s.status
	}
	for _, a := range args {
		if a == "-" || a == "--" {
			continue
		}
		n, val, has := strings.Cut(a, "=")
		if !syntax.ValidName(n) {
			s.fatal(statusUsage, "local: %s: bad variable name", n)
			return s.status
		}
		s.makeLocal(n)
		if has && !s.set(n, val) {
			return s.status
		}
	}
	return 0
}

func biSet(s *Shell, args []string) int {
	if len(args) == 0 {
		w := s.context("set", nil).Stdout
		for _, n := range s.names() {
			if v := s.vars[n]; v.Set {
				fmt.Fprintf(w, "%s=%s\n", n, quoteAlways(v.String()))
			}
		}
		w.Flush()
		return 0
	}
	for len(args) > 0 {
		a := args[0]
		if a == "--" {
			s.params = slices.Clone(args[1:])
			s.getoptPos = 0
			return 0
		}
		if a == "-" {
			s.opt.xtrace, s.opt.verbose = false, false
			args = args[1:]
			break
		}
		if len(a) < 2 || a[0] != '-' && a[0] != '+' {
			break
		}
		args = args[1:]
		for _, l := range []byte(a[1:]) {
			if l == 'o' {
				if len(args) == 0 {
					s.printOptions(a[0] == '+')
					continue
				}
				if !s.setNamed(args[0], a[0] == '-') {
					s.fatal(statusUsage, "set: illegal option %co %s", a[0], args[0])
					return s.status
				}
				args = args[1:]
				continue
			}
			if l == 'i' || l == 's' || !s.setLetter(l, a[0] == '-') {
				s.fatal(statusUsage, "set: illegal option %c%c", a[0], l)
				return s.status
			}
			if l == 'm' && a[0] == '-' && s.proc.tty == nil && s.opt.interactive {
				s.startJobControl()
			}
		}
		if len(args) == 0 {
			return 0
		}
	}
	s.params = slices.Clone(args)
	return 0
}

func (s *Shell) printOptions(asCommands bool) {
	w := s.context("set", nil).Stdout
	for _, e := range s.opt.table() {
		switch {
		case asCommands && *e.value:
			fmt.Fprintf(w, "set -o %s\n", e.name)
		case asCommands:
			fmt.Fprintf(w, "set +o %s\n", e.name)
		case *e.value:
			fmt.Fprintf(w, "%-15s on\n", e.name)
		default:
			fmt.Fprintf(w, "%-15s off\n", e.name)
		}
	}
	w.Flush()
}

func biShift(s *Shell, args []string) int {
	n := 1
	if len(args) > 0 {
		var err error
		if n, err = strconv.Atoi(args[0]); err != nil || n < 0 {
			s.fatal(statusUsage, "shift: Illegal number: %s", args[0])
			return s.status
		}
	}
	if n > len(s.params) {
		s.fatal(statusUsage, "shift: can't shift that many")
		return s.status
	}
	s.params = s.params[n:]
	return 0
}

func biTimes(s *Shell, _ []string) int {
	var self, kids syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	_ = syscall.Getrusage(syscall.RUSAGE_CHILDREN, &kids)
	f := func(t syscall.Timeval) string {
		sec := float64(t.Nano()) / 1e9
		return fmt.Sprintf("%dm%.6fs", int(sec)/60, sec-float64(int(sec)/60*60))
	}
	s.writeFd(1, f(self.Utime)+" "+f(self.Stime)+"\n"+f(kids.Utime)+" "+f(kids.Stime)+"\n")
	return 0
}

func biTrap(s *Shell, args []string) int {
	if len(args) > 0 && (args[0] == "--" || args[0] == "-p" && len(args) == 1) {
		args = args[1:]
	}
	if len(args) == 0 {
		w := s.context("trap", nil).Stdout
		for n := syscall.Signal(0); n <= 64; n++ {
			if action, ok := s.traps[n]; ok {
				fmt.Fprintf(w, "trap -- %s %s\n", quoteAlways(action), basic.SignalName(n))
			}
		}
		w.Flush()
		return 0
	}
	if args[0] == "-l" {
		return s.runTool(func(c *tool.Context) int { c.Args = []string{"-l"}; return basic.Kill(c) }, "trap", nil)
	}
	action, names := args[0], args[1:]
	reset := action == "-"
	if _, err := strconv.Atoi(action); len(names) == 0 || err == nil {
		names, reset = args, true
	}
	code := 0
	for _, n := range names {
		sig, ok := basic.ParseSignal(n)
		if !ok {
			s.errorf("trap: %s: bad trap", n)
			code = 1
			continue
		}
		if reset {
			delete(s.traps, sig)
		} else {
			s.traps[sig] = action
		}
		if sig == 0 || sig == syscall.SIGKILL || sig == syscall.SIGSTOP {
			continue
		}
		s.touchedSig = true
		s.applySignal(sig)
	}
	return code
}

func biUnset(s *Shell, args []string) int {
	funcs, vars := false, false
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		switch args[0] {
		case "-f":
			funcs = true
		case "-v":
			vars = true
		case "--":
		default:
			return s.usage("unset: Illegal option %s", args[0])
		}
		args = args[1:]
	}
	for _, a := range args {
		if funcs {
			delete(s.funcs, a)
			continue
		}
		if !syntax.ValidName(a) {
			s.fatal(statusUsage, "unset: %s: bad variable name", a)
			return s.status
		}
		if _, ok := s.vars[a]; !ok && !vars {
			delete(s.funcs, a)
		}
		if err := s.assign(a, expand.Variable{}); err != nil {
			s.fatal(statusUsage, "unset: %v", err)
			return s.status
		}
	}
	return 0
}

func biCd(s *Shell, args []string) int {
	physical := false
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		switch args[0] {
		case "-P":
			physical = true
		case "-L":
			physical = false
		case "--":
		default:
			return s.usage("cd: Illegal option %s", args[0])
		}
		args = args[1:]
	}
	if len(args) > 1 {
		return s.usage("cd: too many arguments")
	}
	var dir string
	show := false
	switch {
	case len(args) == 0:
		if dir = s.get("HOME"); dir == "" {
			return s.usage("cd: HOME not set")
		}
	case args[0] == "-":
		if dir = s.get("OLDPWD"); dir == "" {
			return s.usage("cd: OLDPWD not set")
		}
		show = true
	default:
		dir = args[0]
	}
	target := dir
	if cdpath := s.get("CDPATH"); cdpath != "" && len(args) > 0 && !strings.HasPrefix(dir, "/") && !strings.HasPrefix(dir, ".") {
		for _, p := range strings.Split(cdpath, ":") {
			if st, err := os.Stat(p + "/" + dir); err == nil && st.IsDir() && p != "" {
				target, show = p+"/"+dir, true
				break
			}
		}
	}
	logical := target
	if !strings.HasPrefix(logical, "/") {
		logical = s.get("PWD") + "/" + logical
	}
	old := s.get("PWD")
	if s.inProcess() && s.savedDir < 0 {
		fd, err := unix.Open(".", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err == nil {
			s.savedDir = fd
		}
	}
	var pwd string
	var err error
	if !physical {
		pwd = cleanLogical(logical)
		err = os.Chdir(pwd)
	}
	if physical || err != nil {
		if e := os.Chdir(target); e != nil {
			s.errorf("cd: can't cd to %s: %s", dir, tool.Reason(e))
			return statusUsage
		}
		pwd, _ = syscallGetwd()
	}
	if !s.set("OLDPWD", old) || !s.set("PWD", pwd) {
		return s.status
	}
	if show {
		s.writeFd(1, pwd+"\n")
	}
	return 0
}

// cleanLogical resolves . and .. by the text of a path.
func cleanLogical(p string) string {
	var out []string
	for _, c := range strings.Split(p, "/") {
		switch c {
		case "", ".":
		case "..":
			if len(out) > 0 {
				out = out[:len(out)-1]
			}
		default:
			out = append(out, c)
		}
	}
	return "/" + strings.Join(out, "/")
}

func syscallGetwd() (string, error) {
	var buf [unix.PathMax]byte
	n, err := unix.Getcwd(buf[:])
	if err != nil || n < 1 {
		return "", err
	}
	return string(buf[:n-1]), nil
}

func biPwd(s *Shell, args []string) int {
	physical := false
	for _, a := range args {
		switch a {
		case "-P":
			physical = true
		case "-L":
			physical = false
		default:
			return s.usage("pwd: Illegal option %s", a)
		}
	}
	pwd := s.get("PWD")
	if physical || pwd == "" {
		var err error
		if pwd, err = syscallGetwd(); err != nil {
			s.errorf("pwd: %s", tool.Reason(err))
			return 1
		}
	}
	return s.runTool(func(c *tool.Context) int { c.Stdout.WriteString(pwd + "\n"); return 0 }, "pwd", nil)
}

func biCommand(s *Shell, args []string) int {
	mode := byte(0)
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		switch args[0] {
		case "-v", "-V":
			mode = args[0][1]
		case "-p":
		case "--":
			args = args[1:]
			goto done
		default:
			return s.usage("command: Illegal option %s", args[0])
		}
		args = args[1:]
	}
done:
	if len(args) == 0 {
		return 0
	}
	if mode != 0 {
		return s.describe(args, mode == 'V')
	}
	if b, ok := s.proc.table[args[0]]; ok {
		interactive := s.opt.interactive
		st := b.run(s, args[1:])
		s.opt.interactive = interactive
		return st
	}
	s.external(nil, args, nil)
	return s.status
}

func biBuiltin(s *Shell, args []string) int {
	if len(args) == 0 {
		return 0
	}
	b, ok := s.proc.table[args[0]]
	if !ok {
		return s.usage("builtin: %s: not a shell builtin", args[0])
	}
	return b.run(s, args[1:])
}

func biType(s *Shell, args []string) int { return s.describe(args, true) }

// describe says what each name means as a command.
func (s *Shell) describe(names []string, long bool) int {
	code := 0
	w := s.context("type", nil).Stdout
	say := func(name, short, text string) {
		if long {
			fmt.Fprintf(w, "%s %s\n", name, text)
		} else {
			fmt.Fprintln(w, short)
		}
	}
	for _, n := range names {
		b, isBuiltin := s.proc.table[n]
		switch {
		case keyword(n):
			say(n, n, "is a shell keyword")
		case s.aliases[n] != "":
			say(n, "alias "+n+"="+quoteAlways(s.aliases[n]), "is an alias for "+s.aliases[n])
		case isBuiltin && b.special:
			say(n, n, "is a special shell builtin")
		case s.funcs[n] != nil:
			say(n, n, "is a shell function")
		case isBuiltin:
			say(n, n, "is a shell builtin")
		default:
			path, _, err := s.lookPath(n, nil)
			if err != nil {
				if long {
					s.errorf("%s: not found", n)
				}
				code = statusMissing
				continue
			}
			say(n, path, "is "+path)
		}
	}
	w.Flush()
	return code
}

func keyword(n string) bool {
	switch n {
	case "if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "while", "until", "for", "in", "{", "}", "!", "[[", "]]", "function", "time":
		return true
	}
	return false
}

// biHash has nothing to remember: programs are looked up each time.
func biHash(s *Shell, args []string) int {
	for _, a := range args {
		if a == "-r" {
			continue
		}
		if _, _, err := s.lookPath(a, nil); err != nil {
			s.errorf("hash: %s: not found", a)
			return 1
		}
	}
	return 0
}

func biAlias(s *Shell, args []string) int {
	if len(args) == 0 {
		args = s.sortedAliases()
	}
	code := 0
	for _, a := range args {
		if n, v, ok := strings.Cut(a, "="); ok {
			s.aliases[n] = v
			continue
		}
		v, ok := s.aliases[a]
		if !ok {
			s.errorf("alias: %s not found", a)
			code = 1
			continue
		}
		s.writeFd(1, a+"="+quoteAlways(v)+"\n")
	}
	return code
}

func biUnalias(s *Shell, args []string) int {
	code := 0
	for _, a := range args {
		if a == "-a" {
			clear(s.aliases)
			continue
		}
		if _, ok := s.aliases[a]; !ok {
			s.errorf("unalias: %s not found", a)
			code = 1
		}
		delete(s.aliases, a)
	}
	return code
}

func biLet(s *Shell, args []string) int {
	code := 1
	for _, a := range args {
		code = b2i(s.number(a) == 0)
	}
	return code
}

func biHistory(s *Shell, args []string) int {
	if len(args) > 0 {
		return s.usage("history: Illegal option %s", args[0])
	}
	e := &editor{s: s}
	e.load(s.historyFile())
	w := s.context("history", nil).Stdout
	for i, l := range e.history {
		fmt.Fprintf(w, "%5d  %s\n", i+1, l)
	}
	w.Flush()
	return 0
}
