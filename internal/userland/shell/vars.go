package shell

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// environ shows a Shell's variables and special parameters to the expander.
type environ struct{ s *Shell }

// Get implements expand.Environ.
func (e environ) Get(name string) expand.Variable {
	s := e.s
	str := func(v string) expand.Variable {
		return expand.Variable{Set: true, Kind: expand.String, Str: v}
	}
	switch name {
	case "#":
		return str(strconv.Itoa(len(s.params)))
	case "@", "*":
		list := s.params
		if list == nil {
			list = []string{}
		}
		return expand.Variable{Set: true, Kind: expand.Indexed, List: list}
	case "?":
		return str(strconv.Itoa(s.status))
	case "$":
		return str(strconv.Itoa(s.proc.pid))
	case "!":
		if s.lastBg == 0 {
			return expand.Variable{}
		}
		return str(strconv.Itoa(s.lastBg))
	case "-":
		return str(s.flags())
	case "0":
		return str(s.arg0)
	case "LINENO":
		return str(strconv.FormatUint(uint64(s.line), 10))
	case "RANDOM":
		if _, ok := s.vars[name]; !ok {
			return str(strconv.Itoa(rand.IntN(32768)))
		}
	}
	if n, ok := strings.CutPrefix(name, textPrefix); ok {
		i, _ := strconv.Atoi(n)
		return str(s.texts[i])
	}
	if name != "" && name[0] >= '1' && name[0] <= '9' {
		if n, err := strconv.Atoi(name); err == nil {
			if n <= len(s.params) {
				return str(s.params[n-1])
			}
			return expand.Variable{}
		}
	}
	return s.vars[name]
}

// Each implements expand.Environ.
func (e environ) Each(f func(string, expand.Variable) bool) {
	for n, v := range e.s.vars {
		if !f(n, v) {
			return
		}
	}
}

// Set implements expand.WriteEnviron.
func (e environ) Set(name string, v expand.Variable) error { return e.s.assign(name, v) }

var errReadonly = errors.New("is read only")

// assign sets a variable and keeps its attributes.
func (s *Shell) assign(name string, v expand.Variable) error {
	old := s.vars[name]
	if old.ReadOnly {
		return fmt.Errorf("%s: %w", name, errReadonly)
	}
	if !v.Set && v.Kind != expand.KeepValue {
		delete(s.vars, name)
		return nil
	}
	v.Exported = v.Exported || old.Exported || s.opt.allexport
	v.ReadOnly = v.ReadOnly || old.ReadOnly
	s.vars[name] = v
	if name == "OPTIND" {
		s.getoptPos = 0
	}
	return nil
}

// set assigns a plain string and reports failure as a fatal error.
func (s *Shell) set(name, value string) bool {
	if err := s.assign(name, expand.Variable{Set: true, Kind: expand.String, Str: value}); err != nil {
		s.fatal(statusUsage, "%v", err)
		return false
	}
	return true
}

func (s *Shell) get(name string) string { return environ{s}.Get(name).String() }

// importEnv takes the variables of a new shell from its environment.
func (s *Shell) importEnv(env []string) {
	for _, kv := range env {
		name, val, ok := strings.Cut(kv, "=")
		if !ok {
			continue
		}
		if !syntax.ValidName(name) {
			s.foreign = append(s.foreign, kv)
			continue
		}
		s.vars[name] = expand.Variable{Set: true, Exported: true, Kind: expand.String, Str: val}
	}
	plain := func(name, value string) {
		v := s.vars[name]
		s.vars[name] = expand.Variable{Set: true, Exported: v.Exported, Kind: expand.String, Str: value}
	}
	plain("IFS", " \t\n")
	plain("OPTIND", "1")
	plain("PPID", strconv.Itoa(os.Getppid()))
	if !s.vars["PS4"].Set {
		plain("PS4", "+ ")
	}
	if !s.vars["PS2"].Set {
		plain("PS2", "> ")
	}
	if !s.vars["PATH"].Set {
		plain("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	// PWD is kept only while it names the directory we are in.
	wd, _ := os.Getwd()
	if p := s.vars["PWD"].Str; p == "" || !strings.HasPrefix(p, "/") || !sameDir(p, ".") {
		plain("PWD", wd)
	}
}

func sameDir(a, b string) bool {
	sa, ea := os.Stat(a)
	sb, eb := os.Stat(b)
	return ea == nil && eb == nil && os.SameFile(sa, sb)
}

// execEnv is the environment of a child.
func (s *Shell) execEnv() []string {
	env := slices.Clone(s.foreign)
	for n, v := range s.vars {
		if v.Exported && v.Set && v.Kind == expand.String {
			env = append(env, n+"="+v.Str)
		}
	}
	slices.Sort(env)
	return s.proc.markIgnored(env)
}

// prepare connects the expander to s.
func (s *Shell) prepare() {
	s.cfg = expand.Config{
		Env:       environ{s},
		CmdSubst:  func(w io.Writer, cs *syntax.CmdSubst) error { return s.substitute(w, cs) },
		ProcSubst: s.procSubst,
		ReadDir2: func(dir string) ([]os.DirEntry, error) {
			if dir == "" {
				dir = "."
			}
			return os.ReadDir(dir)
		},
	}
}

func (s *Shell) syncConfig() {
	s.cfg.NoUnset = s.opt.nounset
	if s.opt.noglob {
		s.cfg.ReadDir2 = nil
	} else if s.cfg.ReadDir2 == nil {
		s.prepare()
		s.cfg.NoUnset = s.opt.nounset
	}
}

// fields expands the words of a command. ok is false when an error was
// reported.
func (s *Shell) fields(words []*syntax.Word) (out []string, ok bool) {
	s.syncConfig()
	ws := make([]*syntax.Word, len(words))
	for i, w := range words {
		var err error
		if ws[i], err = s.resolveDefaults(w, 0); err != nil {
			_ = s.expandError(err)
			return nil, false
		}
	}
	if ifs := s.vars["IFS"]; ifs.Set && strings.Trim(ifs.Str, " \t\n") != "" {
		var split []*syntax.Word
		for _, w := range ws {
			list, err := s.splitWord(w, ifs.Str)
			if err != nil {
				_ = s.expandError(err)
				return nil, false
			}
			split = append(split, list...)
		}
		ws = split
	}
	out, err := expand.Fields(&s.cfg, ws...)
	s.texts = s.texts[:0]
	if err != nil {
		_ = s.expandError(err)
		return nil, false
	}
	return out, s.flow == flowNone
}

// resolveDefaults replaces unquoted ${x-word} and ${x+word} by the words they
// stand for, because the expander would split quoted parts of them.
func (s *Shell) resolveDefaults(w *syntax.Word, depth int) (*syntax.Word, error) {
	hit := false
	for _, p := range w.Parts {
		if pe, ok := p.(*syntax.ParamExp); ok && isDefault(pe) {
			hit = true
		}
	}
	if !hit || depth > 100 {
		return w, nil
	}
	nw := &syntax.Word{}
	for _, p := range w.Parts {
		pe, ok := p.(*syntax.ParamExp)
		if !ok || !isDefault(pe) {
			nw.Parts = append(nw.Parts, p)
			continue
		}
		v := environ{s}.Get(pe.Param.Value)
		set, null := v.IsSet(), v.String() == ""
		if v.Kind == expand.Indexed {
			set = len(v.List) > 0
			null = strings.Join(v.List, "") == ""
		}
		alternate := false
		use := false
		switch pe.Exp.Op {
		case syntax.AlternateUnset:
			alternate, use = true, set
		case syntax.AlternateUnsetOrNull:
			alternate, use = true, set && !null
		case syntax.DefaultUnset:
			use = !set
		case syntax.DefaultUnsetOrNull:
			use = !set || null
		}
		switch {
		case use && pe.Exp.Word != nil:
			inner, err := s.resolveDefaults(pe.Exp.Word, depth+1)
			if err != nil {
				return nil, err
			}
			for _, part := range inner.Parts {
				nw.Parts = append(nw.Parts, s.splittable(part))
			}
		case use || alternate:
			// An empty word: contributes nothing.
		default:
			plain := *pe
			plain.Exp = nil
			nw.Parts = append(nw.Parts, &plain)
		}
	}
	return nw, nil
}

// splitWord splits the unquoted expansions of a word by an IFS that has other
// characters than blanks: the expander would drop the empty fields between
// two of those.
func (s *Shell) splitWord(w *syntax.Word, ifs string) ([]*syntax.Word, error) {
	var out []*syntax.Word
	cur := &syntax.Word{}
	emit := func() {
		out = append(out, cur)
		cur = &syntax.Word{}
	}
	some := false
	for _, p := range w.Parts {
		switch x := p.(type) {
		case *syntax.ParamExp:
			if n := x.Param; n == nil || n.Value == "@" || n.Value == "*" || x.Index != nil || x.Excl {
				cur.Parts = append(cur.Parts, p)
				continue
			}
		case *syntax.CmdSubst, *syntax.ArithmExp:
		default:
			cur.Parts = append(cur.Parts, p)
			continue
		}
		some = true
		v, err := expand.Literal(&s.cfg, &syntax.Word{Parts: []syntax.WordPart{p}})
		if err != nil {
			return nil, err
		}
		delim := func(i int) bool { return i < len(v) && strings.IndexByte(ifs, v[i]) >= 0 }
		space := func(i int) bool { return delim(i) && strings.IndexByte(" \t\n", v[i]) >= 0 }
		for i := 0; i < len(v); {
			j := i
			for j < len(v) && !delim(j) {
				j++
			}
			if j > i {
				s.texts = append(s.texts, v[i:j])
				cur.Parts = append(cur.Parts, &syntax.ParamExp{Short: true, Param: &syntax.Lit{Value: textPrefix + strconv.Itoa(len(s.texts)-1)}})
			}
			if j == len(v) {
				break
			}
			hard := false
			for space(j) {
				j++
			}
			if delim(j) {
				hard = true
				j++
				for space(j) {
					j++
				}
			}
			if len(cur.Parts) == 0 && hard {
				cur.Parts = append(cur.Parts, &syntax.SglQuoted{})
			}
			if len(cur.Parts) > 0 {
				emit()
			}
			i = j
		}
	}
	if !some {
		return []*syntax.Word{w}, nil
	}
	if len(cur.Parts) > 0 {
		emit()
	}
	return out, nil
}

// splittable turns unquoted text from inside ${x-text} into a parameter, as
// only expansions are split into fields.
func (s *Shell) splittable(p syntax.WordPart) syntax.WordPart {
	l, ok := p.(*syntax.Lit)
	if !ok || strings.Contains(l.Value, `\`) || !strings.ContainsAny(l.Value, s.get("IFS")) {
		return p
	}
	s.texts = append(s.texts, l.Value)
	return &syntax.ParamExp{Short: true, Param: &syntax.Lit{Value: textPrefix + strconv.Itoa(len(s.texts)-1)}}
}

// textPrefix starts the names of the parameters made by splittable.
const textPrefix = " text "

func isDefault(pe *syntax.ParamExp) bool {
	if pe.Exp == nil || pe.Param == nil || pe.Index != nil || pe.Excl || pe.Length {
		return false
	}
	switch pe.Exp.Op {
	case syntax.AlternateUnset, syntax.AlternateUnsetOrNull, syntax.DefaultUnset, syntax.DefaultUnsetOrNull:
		return true
	}
	return false
}

// literal expands one word without splitting it.
func (s *Shell) literal(w *syntax.Word) (string, bool) {
	if w == nil {
		return "", true
	}
	s.syncConfig()
	v, err := expand.Literal(&s.cfg, w)
	if err != nil {
		_ = s.expandError(err)
		return "", false
	}
	return v, s.flow == flowNone
}

// expandError reports an expansion error, which ends a script.
func (s *Shell) expandError(err error) error {
	if errors.Is(err, errQuiet) {
		return errQuiet
	}
	var u expand.UnsetParameterError
	if errors.As(err, &u) {
		msg := u.Message
		if msg == "" || msg == "unbound variable" {
			msg = "parameter not set"
		}
		s.fatal(statusUsage, "%s: %s", u.Node.Param.Value, msg)
		return errQuiet
	}
	s.fatal(statusUsage, "%v", err)
	return errQuiet
}

// substitute runs a command substitution and writes its output to w.
func (s *Shell) substitute(w io.Writer, cs *syntax.CmdSubst) error {
	if s.flow != flowNone {
		return errQuiet
	}
	if len(cs.Stmts) == 0 {
		s.substStatus = 0
		return nil
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(w, readOnly{fdReader(p[0])})
		unix.Close(p[0])
		done <- err
	}()
	sub := s.clone()
	sub.fds.adopt(1, p[1])
	switch {
	case readsFile(cs.Stmts):
		sub.catFile(cs.Stmts[0].Redirs[0])
	case needsProcess(cs.Stmts):
		sub.status = sub.foregroundChild(&syntax.Stmt{Cmd: &syntax.Block{Stmts: cs.Stmts}}, nil)
	default:
		sub.stmts(cs.Stmts)
	}
	s.substStatus = sub.end()
	if err := <-done; err != nil {
		return err
	}
	if sub.flow == flowAbort {
		s.flow = flowAbort
		return errQuiet
	}
	return nil
}

type readOnly struct{ io.Reader }

// readsFile recognises $(<file).
func readsFile(stmts []*syntax.Stmt) bool {
	return len(stmts) == 1 && stmts[0].Cmd == nil && len(stmts[0].Redirs) == 1 && stmts[0].Redirs[0].Op == syntax.RdrIn
}

func (s *Shell) catFile(r *syntax.Redirect) {
	if err := s.redirectOne(s.fds, r); err != nil {
		if err != errQuiet {
			s.errorf("%v", err)
		}
		s.status = 1
		return
	}
	s.status = 0
	if _, err := io.Copy(&fdWriter{s.fds.get(1)}, readOnly{fdReader(s.fds.get(0))}); err != nil {
		s.status = 1
	}
}

// procSubst starts the list of a process substitution and returns a name
// for its end of the pipe.
func (s *Shell) procSubst(ps *syntax.ProcSubst) (string, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return "", err
	}
	mine, theirs, fd := p[0], p[1], 1
	if ps.Op == syntax.CmdOut {
		mine, theirs, fd = p[1], p[0], 0
	}
	t := s.fds.dup()
	t.adopt(fd, theirs)
	pid, err := s.startChild(&syntax.Stmt{Cmd: &syntax.Block{Stmts: ps.Stmts}}, t, nil, false)
	t.release()
	if err != nil {
		unix.Close(mine)
		return "", err
	}
	s.proc.orphans = append(s.proc.orphans, pid)
	slot := 10
	for s.fds.get(slot) >= 0 {
		slot++
	}
	s.fds.adopt(slot, mine)
	s.slots = append(s.slots, slot)
	return "/dev/fd/" + strconv.Itoa(slot), nil
}

// names returns the sorted names of all variables.
func (s *Shell) names() []string { return slices.Sorted(maps.Keys(s.vars)) }
