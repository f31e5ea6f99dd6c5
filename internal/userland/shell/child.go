package shell

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// childFlag is how a shell starts a copy of itself; the number after it is
// the descriptor with the state.
const childFlag = "--subshell-state="

// needsProcess reports whether a list changes things of the process that
// cannot be put back, so that it must not run inside this one.
func needsProcess(list []*syntax.Stmt) bool {
	found := false
	for _, st := range list {
		syntax.Walk(st, func(n syntax.Node) bool {
			if c, ok := n.(*syntax.CallExpr); ok && len(c.Args) > 0 && c.Args[0].Lit() == "ulimit" {
				found = true
			}
			return !found
		})
	}
	return found
}

// startChild runs st in a new process that is a copy of this shell.
func (s *Shell) startChild(st *syntax.Stmt, t *fdTable, j *job, fg bool) (int, error) {
	state, err := s.encodeState(st)
	if err != nil {
		return 0, err
	}
	f, err := unix.MemfdCreate("subshell", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer unix.Close(f)
	if err := writeAll(f, state); err != nil {
		return 0, err
	}
	if _, err := unix.Seek(f, 0, io.SeekStart); err != nil {
		return 0, err
	}
	files := t.files()
	slot := max(len(files), 10)
	for len(files) < slot {
		files = append(files, ^uintptr(0))
	}
	files = append(files, uintptr(f))
	attr := &syscall.ProcAttr{Env: s.execEnv(), Files: files}
	monitor := j != nil && s.opt.monitor && !s.inProcess()
	if monitor {
		attr.Sys = &syscall.SysProcAttr{Setpgid: true, Pgid: j.pgid}
	}
	pid, err := s.proc.forkExec(s.proc.self, []string{"sh", childFlag + strconv.Itoa(slot)}, attr)
	if err != nil {
		return 0, err
	}
	if monitor && j.pgid == 0 {
		j.pgid = pid
		if fg && s.proc.tty != nil {
			s.proc.tty.give(pid)
		}
	}
	return pid, nil
}

// foregroundChild runs st in a new process and waits for it.
func (s *Shell) foregroundChild(st *syntax.Stmt, j *job) int {
	if j == nil {
		j = &job{cmd: sourceOf(st)}
	}
	pid, err := s.startChild(st, s.fds, j, true)
	if err != nil {
		s.errorf("cannot start a subshell: %v", err)
		return statusNoExec
	}
	j.procs = append(j.procs, &child{pid: pid})
	return s.foreground(j)
}

// The state is a list of byte strings, each after its length.

type stateWriter struct{ bytes.Buffer }

func (w *stateWriter) str(s string) {
	w.Write(binary.AppendUvarint(nil, uint64(len(s))))
	w.WriteString(s)
}

func (w *stateWriter) num(n int) { w.str(strconv.Itoa(n)) }

func (w *stateWriter) list(l []string) {
	w.num(len(l))
	for _, s := range l {
		w.str(s)
	}
}

func (s *Shell) encodeState(st *syntax.Stmt) ([]byte, error) {
	w := &stateWriter{}
	w.str(s.arg0)
	w.num(s.proc.pid)
	w.num(s.status)
	w.num(s.lastBg)
	w.num(int(s.line))
	w.num(s.noErr)
	w.num(s.depth)
	w.list(s.params)
	w.list(s.foreign)
	for _, e := range s.opt.table() {
		w.num(b2i(*e.value))
	}
	names := s.names()
	w.num(len(names))
	for _, n := range names {
		v := s.vars[n]
		w.str(n)
		w.num(b2i(v.Set) | b2i(v.Exported)<<1 | b2i(v.ReadOnly)<<2 | b2i(v.Kind == expand.Indexed)<<3)
		if v.Kind == expand.Indexed {
			w.list(v.List)
		} else {
			w.str(v.Str)
		}
	}
	w.num(len(s.aliases))
	for n, v := range s.aliases {
		w.str(n)
		w.str(v)
	}
	var src bytes.Buffer
	pr := syntax.NewPrinter()
	for _, f := range s.funcs {
		if err := pr.Print(&src, &syntax.File{Stmts: []*syntax.Stmt{{Cmd: f}}}); err != nil {
			return nil, err
		}
	}
	w.str(src.String())
	src.Reset()
	plain := *st
	plain.Background, plain.Coprocess, plain.Disown = false, false, false
	if err := pr.Print(&src, &syntax.File{Stmts: []*syntax.Stmt{&plain}}); err != nil {
		return nil, err
	}
	w.str(src.String())
	return w.Bytes(), nil
}

var errState = errors.New("the state of the subshell is damaged")

type stateReader struct {
	b   []byte
	err error
}

func (r *stateReader) str() string {
	n, k := binary.Uvarint(r.b)
	if k <= 0 || n > uint64(len(r.b)-k) {
		r.err = errState
		r.b = nil
		return ""
	}
	s := string(r.b[k : k+int(n)])
	r.b = r.b[k+int(n):]
	return s
}

func (r *stateReader) num() int {
	n, err := strconv.Atoi(r.str())
	if err != nil {
		r.err = errState
	}
	return n
}

func (r *stateReader) list() []string {
	var l []string
	for n := r.num(); n > 0 && r.err == nil; n-- {
		l = append(l, r.str())
	}
	return l
}

// decodeState fills s and returns the source of its functions and its body.
func (s *Shell) decodeState(b []byte) (funcs, body string, err error) {
	r := &stateReader{b: b}
	s.arg0 = r.str()
	s.proc.pid = r.num()
	s.status = r.num()
	s.lastBg = r.num()
	s.line = uint(r.num())
	s.noErr = r.num()
	s.depth = r.num()
	s.params = r.list()
	s.foreign = r.list()
	for _, e := range s.opt.table() {
		*e.value = r.num() == 1
	}
	s.opt.interactive, s.opt.monitor = false, false
	for n := r.num(); n > 0 && r.err == nil; n-- {
		name := r.str()
		flags := r.num()
		v := expand.Variable{Set: flags&1 != 0, Exported: flags&2 != 0, ReadOnly: flags&4 != 0, Kind: expand.String}
		if flags&8 != 0 {
			v.Kind, v.List = expand.Indexed, r.list()
		} else {
			v.Str = r.str()
		}
		s.vars[name] = v
	}
	for n := r.num(); n > 0 && r.err == nil; n-- {
		name := r.str()
		s.aliases[name] = r.str()
	}
	return r.str(), r.str(), r.err
}

// runChild is the other side of startChild.
func runChild(flag string) int {
	slot, err := strconv.Atoi(strings.TrimPrefix(flag, childFlag))
	if err != nil || slot < 3 {
		fmt.Fprintln(os.Stderr, "sh: this option is for the shell's own use")
		return statusUsage
	}
	f := os.NewFile(uintptr(slot), "state")
	b, err := io.ReadAll(f)
	f.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sh: this option is for the shell's own use")
		return statusUsage
	}
	s := newShell()
	funcs, body, err := s.decodeState(b)
	if err != nil {
		fmt.Fprintf(os.Stderr, "sh: %v\n", err)
		return statusUsage
	}
	parse := func(src string) []*syntax.Stmt {
		file, err := newParser().Parse(strings.NewReader(src), "")
		if err != nil {
			fmt.Fprintf(os.Stderr, "sh: %v\n", err)
			return nil
		}
		return file.Stmts
	}
	for _, st := range parse(funcs) {
		if fd, ok := st.Cmd.(*syntax.FuncDecl); ok {
			s.funcs[fd.Name.Value] = fd
		}
	}
	list := parse(body)
	// A list in braces is ours alone: its last command may replace us.
	if len(list) == 1 && len(list[0].Redirs) == 0 && !list[0].Negated {
		switch c := list[0].Cmd.(type) {
		case *syntax.Block:
			list = c.Stmts
		case *syntax.Subshell:
			list = c.Stmts
		}
	}
	s.markTail(list)
	s.stmts(list)
	if s.flow != flowExit {
		s.flow = flowNone
	}
	s.runExitTrap()
	return s.status
}

// markTail remembers the plain command that ends a list, if it does.
func (s *Shell) markTail(list []*syntax.Stmt) {
	if len(list) == 0 {
		return
	}
	st := list[len(list)-1]
	for !st.Negated && !st.Background && !st.Coprocess && !st.Disown {
		switch c := st.Cmd.(type) {
		case *syntax.CallExpr:
			if s.noErr == 0 {
				s.tail = st
			}
			return
		case *syntax.BinaryCmd:
			if c.Op != syntax.AndStmt && c.Op != syntax.OrStmt || len(st.Redirs) > 0 {
				return
			}
			st = c.Y
		case *syntax.Block:
			if len(c.Stmts) == 0 || len(st.Redirs) > 0 {
				return
			}
			st = c.Stmts[len(c.Stmts)-1]
		default:
			return
		}
	}
}

// sortedAliases lists alias names.
func (s *Shell) sortedAliases() []string {
	var l []string
	for n := range s.aliases {
		l = append(l, n)
	}
	slices.Sort(l)
	return l
}
