package shell

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/pattern"
	"mvdan.cc/sh/v3/syntax"

	"github.com/hutch-sandbox/hutch/internal/userland/basic"
	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// stmts runs a list of statements.
func (s *Shell) stmts(list []*syntax.Stmt) {
	for _, st := range list {
		if s.flow != flowNone {
			return
		}
		s.stmt(st)
	}
}

// stmt runs one statement with its redirections, negation and set -e.
func (s *Shell) stmt(st *syntax.Stmt) {
	s.poll()
	if s.flow != flowNone || s.opt.noexec && !s.opt.interactive {
		return
	}
	if s.nesting++; s.nesting > maxNesting {
		s.fatal(statusUsage, "commands nested too deeply")
		s.nesting--
		return
	}
	defer func() { s.nesting-- }()
	if p := st.Pos(); p.IsValid() {
		s.line = p.Line()
	}
	if st.Background || st.Coprocess || st.Disown {
		s.background(st)
		return
	}
	if st.Negated {
		s.noErr++
	}
	call, isCall := st.Cmd.(*syntax.CallExpr)
	switch {
	case isCall:
		s.call(st, call)
	case len(st.Redirs) > 0:
		t := s.fds.dup()
		if err := s.redirect(t, st.Redirs); err != nil {
			t.release()
			if err != errQuiet {
				s.errorf("%v", err)
				s.status = statusUsage
			}
		} else {
			old := s.fds
			s.fds = t
			s.command(st)
			s.fds.release()
			s.fds = old
		}
	default:
		s.command(st)
	}
	s.dropSlots()
	s.poll() // also after the last command, which wait may have been
	if st.Negated {
		s.noErr--
		if s.flow == flowNone {
			s.status = b2i(s.status == 0)
		}
		return
	}
	if s.status != 0 && s.opt.errexit && s.noErr == 0 && s.flow == flowNone && checked(st.Cmd) {
		s.flow = flowExit
	}
}

func (s *Shell) dropSlots() {
	for _, slot := range s.slots {
		s.fds.adopt(slot, -1)
	}
	s.slots = s.slots[:0]
}

// checked reports whether set -e looks at the status of this kind of command
// itself; for the others it has looked at the commands inside.
func checked(c syntax.Command) bool {
	switch c := c.(type) {
	case *syntax.BinaryCmd:
		return c.Op == syntax.Pipe || c.Op == syntax.PipeAll
	case *syntax.CallExpr, *syntax.Subshell, *syntax.TestClause, *syntax.ArithmCmd, *syntax.LetClause, *syntax.DeclClause:
		return true
	}
	return false
}

// itoa is strconv.Itoa.
func itoa(n int) string { return strconv.Itoa(n) }

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// command runs a compound command; redirections are in place.
func (s *Shell) command(st *syntax.Stmt) {
	switch c := st.Cmd.(type) {
	case nil:
		s.status = 0
	case *syntax.Block:
		s.stmts(c.Stmts)
	case *syntax.Subshell:
		s.subshell(c)
	case *syntax.BinaryCmd:
		s.binary(c)
	case *syntax.IfClause:
		s.ifClause(c)
	case *syntax.WhileClause:
		s.while(c)
	case *syntax.ForClause:
		s.forClause(c)
	case *syntax.CaseClause:
		s.caseClause(c)
	case *syntax.FuncDecl:
		if c.Name != nil {
			s.funcs[c.Name.Value] = c
		}
		s.status = 0
	case *syntax.ArithmCmd:
		s.arith([]syntax.ArithmExpr{c.X})
	case *syntax.LetClause:
		s.arith(c.Exprs)
	case *syntax.TestClause:
		ok, err := s.testExpr(c.X)
		switch {
		case err == errQuiet:
			s.status = statusUsage
		case err != nil:
			s.errorf("%v", err)
			s.status = statusUsage
		default:
			s.status = b2i(!ok)
		}
	case *syntax.DeclClause:
		s.declare(c)
	case *syntax.TimeClause:
		s.time(c)
	default:
		s.errorf("this kind of command is not supported")
		s.status = statusUsage
	}
}

func (s *Shell) subshell(c *syntax.Subshell) {
	if s.proc.tty != nil && !s.inProcess() || needsProcess(c.Stmts) {
		s.status = s.foregroundChild(&syntax.Stmt{Cmd: &syntax.Block{Stmts: c.Stmts}}, nil)
		return
	}
	sub := s.clone()
	sub.loops = 0
	sub.stmts(c.Stmts)
	s.status = sub.end()
	if sub.flow == flowAbort {
		s.flow = flowAbort
	}
}

func (s *Shell) binary(c *syntax.BinaryCmd) {
	switch c.Op {
	case syntax.AndStmt, syntax.OrStmt:
		s.noErr++
		s.stmt(c.X)
		s.noErr--
		if s.flow == flowNone && (s.status == 0) == (c.Op == syntax.AndStmt) {
			s.stmt(c.Y)
		}
	default:
		s.pipeline(&syntax.Stmt{Cmd: c})
	}
}

func (s *Shell) condition(list []*syntax.Stmt) bool {
	s.noErr++
	s.stmts(list)
	s.noErr--
	return s.flow == flowNone && s.status == 0
}

func (s *Shell) ifClause(c *syntax.IfClause) {
	for ; c != nil; c = c.Else {
		if len(c.Cond) == 0 || s.condition(c.Cond) {
			s.status = 0
			s.stmts(c.Then)
			return
		}
		if s.flow != flowNone {
			return
		}
	}
	s.status = 0
}

// endRound handles break and continue after one round of a loop. It reports
// whether the loop is over.
func (s *Shell) endRound() bool {
	switch s.flow {
	case flowNone:
		return false
	case flowBreak, flowContinue:
		if s.flowN > 1 {
			s.flowN--
			return true
		}
		again := s.flow == flowContinue
		s.flow = flowNone
		return !again
	}
	return true
}

func (s *Shell) while(c *syntax.WhileClause) {
	s.loops++
	defer func() { s.loops-- }()
	status := 0
	for {
		s.noErr++
		s.stmts(c.Cond)
		s.noErr--
		if s.flow != flowNone {
			if s.endRound() {
				break
			}
			continue
		}
		if (s.status == 0) == c.Until {
			break
		}
		s.stmts(c.Do)
		status = s.status
		if s.endRound() {
			break
		}
	}
	if s.flow == flowNone {
		s.status = status
	}
}

func (s *Shell) forClause(c *syntax.ForClause) {
	if c.Select {
		s.errorf("select is not supported")
		s.status = statusUsage
		return
	}
	if l, ok := c.Loop.(*syntax.CStyleLoop); ok {
		s.cLoop(c, l)
		return
	}
	l := c.Loop.(*syntax.WordIter)
	items := s.params
	if l.InPos.IsValid() {
		var ok bool
		if items, ok = s.fields(l.Items); !ok {
			return
		}
	}
	s.loops++
	defer func() { s.loops-- }()
	s.status = 0
	for _, it := range items {
		if !s.set(l.Name.Value, it) {
			return
		}
		s.stmts(c.Do)
		if s.endRound() {
			return
		}
	}
}

func (s *Shell) cLoop(c *syntax.ForClause, l *syntax.CStyleLoop) {
	eval := func(x syntax.ArithmExpr, none int) (int, bool) {
		if x == nil {
			return none, true
		}
		n, err := expand.Arithm(&s.cfg, x)
		if err != nil {
			_ = s.expandError(err)
			return 0, false
		}
		return n, true
	}
	s.loops++
	defer func() { s.loops-- }()
	if _, ok := eval(l.Init, 0); !ok {
		return
	}
	s.status = 0
	for {
		n, ok := eval(l.Cond, 1)
		if !ok || n == 0 {
			return
		}
		s.stmts(c.Do)
		s.poll()
		if s.endRound() {
			return
		}
		if _, ok := eval(l.Post, 0); !ok {
			return
		}
	}
}

func (s *Shell) caseClause(c *syntax.CaseClause) {
	word, ok := s.literal(c.Word)
	if !ok {
		return
	}
	s.status = 0
	through := false
	for _, it := range c.Items {
		hit := through
		for _, w := range it.Patterns {
			if hit {
				break
			}
			if hit, ok = s.matches(w, word); !ok {
				return
			}
		}
		if !hit {
			continue
		}
		s.stmts(it.Stmts)
		switch it.Op {
		case syntax.Fallthrough:
			through = true
		case syntax.Resume, syntax.ResumeKorn:
			through = false
		default:
			return
		}
		if s.flow != flowNone {
			return
		}
	}
}

// matches reports whether text matches the pattern word.
func (s *Shell) matches(w *syntax.Word, text string) (match, ok bool) {
	pat, err := expand.Pattern(&s.cfg, w)
	if err != nil {
		_ = s.expandError(err)
		return false, false
	}
	expr, err := pattern.Regexp(pat, pattern.EntireString)
	if err != nil {
		return pat == text, true
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return pat == text, true
	}
	return re.MatchString(text), true
}

func (s *Shell) arith(exprs []syntax.ArithmExpr) {
	for _, x := range exprs {
		n, err := expand.Arithm(&s.cfg, x)
		if err != nil {
			s.errorf("%v", err)
			s.status = statusUsage
			return
		}
		s.status = b2i(n == 0)
	}
}

func (s *Shell) time(c *syntax.TimeClause) {
	var a, b, a0, b0 syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_CHILDREN, &a0)
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &b0)
	start := time.Now()
	if c.Stmt != nil {
		s.stmt(c.Stmt)
	}
	real := time.Since(start)
	_ = syscall.Getrusage(syscall.RUSAGE_CHILDREN, &a)
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &b)
	user := a.Utime.Nano() - a0.Utime.Nano() + b.Utime.Nano() - b0.Utime.Nano()
	sys := a.Stime.Nano() - a0.Stime.Nano() + b.Stime.Nano() - b0.Stime.Nano()
	for _, l := range []struct {
		name string
		d    time.Duration
	}{{"real", real}, {"user", time.Duration(user)}, {"sys", time.Duration(sys)}} {
		if c.PosixFormat {
			s.writeFd(2, fmt.Sprintf("%s %.2f\n", l.name, l.d.Seconds()))
		} else {
			s.writeFd(2, fmt.Sprintf("%s\t%dm%.3fs\n", l.name, int(l.d.Minutes()), l.d.Seconds()-60*float64(int(l.d.Minutes()))))
		}
	}
}

// call runs a simple command.
func (s *Shell) call(st *syntax.Stmt, c *syntax.CallExpr) {
	s.substStatus = -1
	args, ok := s.fields(s.expandAlias(c.Args))
	if !ok {
		return
	}
	t := s.fds
	if len(st.Redirs) > 0 {
		t = s.fds.dup()
		if err := s.redirect(t, st.Redirs); err != nil {
			t.release()
			if err == errQuiet {
				return
			}
			if len(args) > 0 && s.proc.table[args[0]].special && s.funcs[args[0]] == nil {
				s.fatal(statusUsage, "%v", err)
				return
			}
			s.errorf("%v", err)
			s.status = statusUsage
			return
		}
	}
	old := s.fds
	s.fds = t
	keep := false
	if len(args) == 0 {
		s.assignments(c)
	} else {
		keep = s.invoke(st, c.Assigns, args)
	}
	if t != old {
		if keep { // exec with redirections only
			old.release()
			return
		}
		// A nested exec may have replaced the table; give back ours.
		s.fds.release()
		s.fds = old
	}
}

// assignments runs a command that is only assignments.
func (s *Shell) assignments(c *syntax.CallExpr) {
	for _, a := range c.Assigns {
		if !s.assignOne(a, false) {
			return
		}
	}
	s.status = max(s.substStatus, 0)
}

// assignOne performs an assignment of the script.
func (s *Shell) assignOne(a *syntax.Assign, export bool) bool {
	name := a.Name.Value
	v, ok := s.assignValue(a)
	if !ok {
		return false
	}
	v.Exported = v.Exported || export
	if s.opt.xtrace && v.Kind == expand.String {
		s.trace(name + "=" + basic.Quote(v.Str))
	}
	if err := s.assign(name, v); err != nil {
		s.fatal(statusUsage, "%v", err)
		return false
	}
	return true
}

func (s *Shell) assignValue(a *syntax.Assign) (expand.Variable, bool) {
	old := environ{s}.Get(a.Name.Value)
	v := expand.Variable{Set: true, Kind: expand.String}
	switch {
	case a.Array != nil:
		v.Kind = expand.Indexed
		if a.Append {
			v.List = slices.Clone(old.List)
		}
		for _, e := range a.Array.Elems {
			if e.Index != nil {
				s.errorf("%s: arrays with explicit indices are not supported", a.Name.Value)
				s.status = statusUsage
				return v, false
			}
			f, ok := s.fields([]*syntax.Word{e.Value})
			if !ok {
				return v, false
			}
			v.List = append(v.List, f...)
		}
		return v, true
	case a.Index != nil:
		val, ok := s.literal(a.Value)
		if !ok {
			return v, false
		}
		n, err := expand.Arithm(&s.cfg, a.Index)
		if err != nil || n < 0 || n > 1<<20 {
			s.fatal(statusUsage, "%s: bad array subscript", a.Name.Value)
			return v, false
		}
		v.Kind = expand.Indexed
		v.List = slices.Clone(old.List)
		if old.Kind == expand.String && old.Set {
			v.List = []string{old.Str}
		}
		for len(v.List) <= n {
			v.List = append(v.List, "")
		}
		if a.Append {
			val = v.List[n] + val
		}
		v.List[n] = val
		return v, true
	}
	val, ok := s.literal(a.Value)
	if !ok {
		return v, false
	}
	if a.Append {
		val = old.String() + val
	}
	v.Str = val
	return v, true
}

func (s *Shell) trace(line string) {
	ps4 := s.get("PS4")
	if strings.ContainsAny(ps4, "$`") {
		ps4 = s.expandString(ps4)
	}
	s.writeFd(2, ps4+line+"\n")
}

// expandString expands parameters in text, as for prompts.
func (s *Shell) expandString(text string) string {
	w, err := syntax.NewParser().Document(strings.NewReader(text))
	if err != nil {
		return text
	}
	out, err := expand.Document(&s.cfg, w)
	if err != nil {
		return text
	}
	return out
}

// expandAlias replaces the command word by its alias.
func (s *Shell) expandAlias(words []*syntax.Word) []*syntax.Word {
	if len(s.aliases) == 0 {
		return words
	}
	seen := map[string]bool{}
	for len(words) > 0 {
		name := words[0].Lit()
		val, ok := s.aliases[name]
		if !ok || seen[name] {
			break
		}
		seen[name] = true
		var repl []*syntax.Word
		for w, err := range syntax.NewParser().WordsSeq(strings.NewReader(val)) {
			if err != nil {
				return words
			}
			repl = append(repl, w)
		}
		words = append(repl, words[1:]...)
	}
	return words
}

// invoke runs a command with its arguments expanded and redirections applied.
// keep is true when the redirections shall stay (exec without a command).
func (s *Shell) invoke(st *syntax.Stmt, assigns []*syntax.Assign, args []string) (keep bool) {
	name := args[0]
	if s.opt.xtrace {
		q := make([]string, len(args))
		for i, a := range args {
			q[i] = basic.Quote(a)
		}
		s.trace(strings.Join(q, " "))
	}
	fn := s.funcs[name]
	b, isBuiltin := s.proc.table[name]
	if isBuiltin && b.special {
		fn = nil
	}
	if fn == nil && !isBuiltin {
		extra, ok := s.prefix(assigns)
		if !ok {
			return false
		}
		s.external(st, args, extra)
		return false
	}
	if isBuiltin && b.special && fn == nil && name != "exec" {
		for _, a := range assigns {
			if !s.assignOne(a, false) {
				return false
			}
		}
		s.status = b.run(s, args[1:])
		return false
	}
	// The assignments hold while the function or builtin runs.
	saved := map[string]expand.Variable{}
	for _, a := range assigns {
		n := a.Name.Value
		if _, dup := saved[n]; !dup {
			saved[n] = s.vars[n]
		}
		if !s.assignOne(a, true) {
			return false
		}
	}
	switch {
	case fn != nil:
		s.callFunc(fn, args)
	case name == "exec" && len(args) == 1:
		keep = true
		s.status = 0
	default:
		s.status = b.run(s, args[1:])
	}
	for n, v := range saved {
		if v.Set {
			s.vars[n] = v
		} else {
			delete(s.vars, n)
		}
	}
	return keep
}

// prefix expands the assignments before an external command.
func (s *Shell) prefix(assigns []*syntax.Assign) (map[string]string, bool) {
	if len(assigns) == 0 {
		return nil, true
	}
	extra := map[string]string{}
	for _, a := range assigns {
		v, ok := s.assignValue(a)
		if !ok {
			return nil, false
		}
		extra[a.Name.Value] = v.String()
		if s.vars[a.Name.Value].ReadOnly {
			s.fatal(statusUsage, "%s: is read only", a.Name.Value)
			return nil, false
		}
	}
	return extra, true
}

// callFunc calls a function of the script.
func (s *Shell) callFunc(fn *syntax.FuncDecl, args []string) {
	params, loops := s.params, s.loops
	s.params, s.loops = args[1:], 0
	s.locals = append(s.locals, nil)
	s.depth++
	s.stmt(fn.Body)
	s.depth--
	if s.flow == flowReturn {
		s.flow = flowNone
	}
	frame := s.locals[len(s.locals)-1]
	s.locals = s.locals[:len(s.locals)-1]
	for n, v := range frame {
		if v == nil {
			delete(s.vars, n)
		} else {
			s.vars[n] = *v
		}
	}
	s.params, s.loops = params, loops
}

// mergeEnv adds the assignments before a command to the environment.
func mergeEnv(env []string, extra map[string]string) []string {
	if len(extra) == 0 {
		return env
	}
	env = slices.DeleteFunc(env, func(kv string) bool {
		n, _, _ := strings.Cut(kv, "=")
		_, dup := extra[n]
		return dup
	})
	for _, n := range slices.Sorted(maps.Keys(extra)) {
		env = append(env, n+"="+extra[n])
	}
	return env
}

// external runs a program in the foreground.
func (s *Shell) external(st *syntax.Stmt, args []string, extra map[string]string) {
	path, status, err := s.lookPath(args[0], extra)
	if err != nil {
		s.errorf("%s: %v", args[0], err)
		s.status = status
		return
	}
	env := mergeEnv(s.execEnv(), extra)
	if st != nil && st == s.tail && s.mayReplace() {
		s.replace(path, args, env)
		return
	}
	j := &job{cmd: strings.Join(args, " ")}
	pid, err := s.spawn(path, args, env, s.fds, j, true)
	if err != nil {
		s.errorf("%s: %s", args[0], tool.Reason(err))
		s.status = execStatus(err)
		return
	}
	j.procs = append(j.procs, &child{pid: pid})
	s.status = s.foreground(j)
}

func execStatus(err error) int {
	if errors.Is(err, fs.ErrNotExist) {
		return statusMissing
	}
	return statusNoExec
}

var errNotFound = errors.New("not found")

// lookPath finds a program by PATH, or by itself when it has a slash.
func (s *Shell) lookPath(name string, extra map[string]string) (path string, status int, err error) {
	if strings.Contains(name, "/") {
		st, err := os.Stat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			return "", statusMissing, errNotFound
		case err != nil:
			return "", statusNoExec, errors.New(tool.Reason(err))
		case st.IsDir():
			return "", statusNoExec, errors.New("Permission denied")
		case unix.Faccessat(unix.AT_FDCWD, name, unix.X_OK, unix.AT_EACCESS) != nil:
			return "", statusNoExec, errors.New("Permission denied")
		}
		return name, 0, nil
	}
	dirs, ok := extra["PATH"]
	if !ok {
		dirs = s.get("PATH")
	}
	denied := false
	if name != "" {
		for _, dir := range strings.Split(dirs, ":") {
			if dir == "" {
				dir = "."
			}
			p := dir + "/" + name
			var st unix.Stat_t
			if unix.Stat(p, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
				continue
			}
			if unix.Faccessat(unix.AT_FDCWD, p, unix.X_OK, unix.AT_EACCESS) != nil {
				denied = true
				continue
			}
			return p, 0, nil
		}
	}
	if denied {
		return "", statusNoExec, errors.New("Permission denied")
	}
	return "", statusMissing, errNotFound
}

// mayReplace reports whether the last command may take this process over.
func (s *Shell) mayReplace() bool {
	if s.inProcess() || s.opt.interactive {
		return false
	}
	for _, action := range s.traps {
		if action != "" {
			return false
		}
	}
	return true
}

// replace is exec: the program takes the place of this process. It returns
// only in an in-process subshell, or on failure.
func (s *Shell) replace(path string, args, env []string) {
	if s.inProcess() {
		j := &job{cmd: strings.Join(args, " ")}
		pid, err := s.spawn(path, args, env, s.fds, j, true)
		if err != nil {
			s.errorf("%s: %s", args[0], tool.Reason(err))
			s.status = execStatus(err)
		} else {
			j.procs = append(j.procs, &child{pid: pid})
			s.status = s.foreground(j)
		}
		s.flow = flowExit
		return
	}
	s.leaveTerminal()
	// First move everything out of the way, then into place.
	n := max(len(s.fds.m), 3)
	tmp := make([]int, n)
	for i := range tmp {
		tmp[i] = -1
		if r := s.fds.get(i); r >= 0 {
			tmp[i], _ = unix.FcntlInt(uintptr(r), unix.F_DUPFD_CLOEXEC, maxFd)
			if tmp[i] < 0 {
				tmp[i], _ = unix.FcntlInt(uintptr(r), unix.F_DUPFD_CLOEXEC, n)
			}
		}
	}
	for i, r := range tmp {
		if r >= 0 {
			_ = unix.Dup3(r, i, 0)
		} else {
			unix.Close(i)
		}
	}
	err := syscall.Exec(path, args, env)
	if err == syscall.ENOEXEC {
		err = syscall.Exec(s.proc.self, append([]string{"sh", path}, args[1:]...), env)
	}
	msg := s.arg0 + ": " + args[0] + ": " + tool.Reason(err) + "\n"
	_, _ = unix.Write(2, []byte(msg))
	os.Exit(execStatus(err))
}

// testExpr evaluates [[ ]].
func (s *Shell) testExpr(x syntax.TestExpr) (bool, error) {
	lit := func(w syntax.TestExpr) (string, error) {
		word, ok := w.(*syntax.Word)
		if !ok {
			return "", errors.New("[[: unexpected expression")
		}
		v, ok := s.literal(word)
		if !ok {
			return "", errQuiet
		}
		return v, nil
	}
	switch x := x.(type) {
	case *syntax.Word:
		v, err := lit(x)
		return v != "", err
	case *syntax.ParenTest:
		return s.testExpr(x.X)
	case *syntax.UnaryTest:
		if x.Op == syntax.TsNot {
			r, err := s.testExpr(x.X)
			return !r, err
		}
		v, err := lit(x.X)
		if err != nil {
			return false, err
		}
		switch x.Op {
		case syntax.TsVarSet:
			return environ{s}.Get(v).IsSet(), nil
		case syntax.TsExists:
			return basic.TestUnary("-e", v)
		case syntax.TsSmbLink:
			return basic.TestUnary("-h", v)
		}
		return basic.TestUnary(x.Op.String(), v)
	case *syntax.BinaryTest:
		switch x.Op {
		case syntax.AndTest, syntax.OrTest:
			l, err := s.testExpr(x.X)
			if err != nil || l == (x.Op == syntax.OrTest) {
				return l, err
			}
			return s.testExpr(x.Y)
		}
		l, err := lit(x.X)
		if err != nil {
			return false, err
		}
		switch x.Op {
		case syntax.TsMatch, syntax.TsMatchShort, syntax.TsNoMatch:
			m, ok := s.matches(x.Y.(*syntax.Word), l)
			if !ok {
				return false, errQuiet
			}
			return m == (x.Op != syntax.TsNoMatch), nil
		case syntax.TsReMatch:
			r, err := lit(x.Y)
			if err != nil {
				return false, err
			}
			return s.regexMatch(l, r)
		}
		r, err := lit(x.Y)
		if err != nil {
			return false, err
		}
		switch x.Op {
		case syntax.TsEql, syntax.TsNeq, syntax.TsLeq, syntax.TsGeq, syntax.TsLss, syntax.TsGtr:
			// The operands are arithmetic expressions.
			a, b := s.number(l), s.number(r)
			return basic.TestBinary(strconv.Itoa(a), x.Op.String(), strconv.Itoa(b))
		}
		return basic.TestBinary(l, x.Op.String(), r)
	}
	return false, errors.New("[[: unexpected expression")
}

func (s *Shell) number(text string) int {
	x, err := syntax.NewParser().Arithmetic(strings.NewReader(text))
	if err != nil || x == nil {
		return 0
	}
	n, err := expand.Arithm(&s.cfg, x)
	if err != nil {
		return 0
	}
	return n
}
