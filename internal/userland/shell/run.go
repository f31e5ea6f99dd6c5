package shell

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/syntax"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// newParser returns a parser for what the shell accepts: POSIX and the
// extensions of bash that scripts for sh use in practice.
func newParser() *syntax.Parser { return syntax.NewParser(syntax.Variant(syntax.LangBash)) }

// syntaxError reports a parse error and ends a script.
func (s *Shell) syntaxError(err error) {
	var pe syntax.ParseError
	if errors.As(err, &pe) {
		s.line = pe.Pos.Line()
		s.fatal(statusUsage, "syntax error: %s", pe.Text)
		return
	}
	s.fatal(statusUsage, "syntax error: %v", err)
}

// runString runs a script given as text. With last, its final command may
// replace this process.
func (s *Shell) runString(src string, last bool) {
	// A line is run only when all of it has been parsed.
	var group []*syntax.Stmt
	var line uint
	for st, err := range newParser().StmtsSeq(strings.NewReader(src)) {
		if err != nil {
			var pe syntax.ParseError
			if !errors.As(err, &pe) || pe.Pos.Line() > line {
				s.stmts(group)
			}
			if s.flow == flowNone {
				s.syntaxError(err)
			}
			return
		}
		if st.Pos().Line() > line {
			s.stmts(group)
			group = group[:0]
			if s.flow != flowNone {
				return
			}
		}
		group = append(group, st)
		line = max(line, st.End().Line())
	}
	if last {
		s.markTail(group)
	}
	s.stmts(group)
}

// runFile runs a script file and reports whether it could be opened.
func (s *Shell) runFile(name string) bool {
	f, err := os.Open(name)
	if err == nil {
		if st, e := f.Stat(); e == nil && st.IsDir() {
			f.Close()
			err = unix.EISDIR
		}
	}
	if err != nil {
		s.line = 0
		s.errorf("cannot open %s: %s", name, tool.Reason(err))
		s.status = statusMissing
		if !errors.Is(err, os.ErrNotExist) {
			s.status = statusNoExec
		}
		return false
	}
	defer f.Close()
	s.runReader(f)
	return true
}

// runReader runs a script as it is parsed, so that an error further down, or
// data after an exit, does not matter before it is reached.
func (s *Shell) runReader(r io.Reader) {
	br := bufio.NewReaderSize(r, 32<<10)
	if head, _ := br.Peek(4); bytes.HasPrefix(head, []byte("\x7fELF")) {
		s.fatal(statusNoExec, "%s: cannot execute binary file", s.arg0)
		return
	}
	var src io.Reader = br
	if s.opt.verbose {
		src = io.TeeReader(br, &fdWriter{2})
	}
	for st, err := range newParser().StmtsSeq(src) {
		if err != nil {
			s.syntaxError(err)
			return
		}
		s.stmt(st)
		if s.flow != flowNone {
			return
		}
	}
}

// source runs a file in this shell, as the dot builtin does.
func (s *Shell) source(name string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	s.depth++
	loops := s.loops
	s.loops = 0
	s.runReader(f)
	s.loops = loops
	s.depth--
	if s.flow == flowReturn {
		s.flow = flowNone
	}
	return true
}

func (s *Shell) sourceIfExists(name string) {
	if _, err := os.Stat(name); err == nil {
		s.source(name)
		if s.flow == flowAbort {
			s.flow = flowNone
		}
	}
}

// lineSource yields the lines of a script, each with its newline.
type lineSource interface {
	// line reads one line; more tells that it continues a command.
	line(more bool) (string, error)
}

// errInterrupt is returned by a line source for Ctrl-C at the prompt.
var errInterrupt = errors.New("interrupted")

// runStdin runs commands from standard input, taking no byte of it that does
// not belong to the script: a command can read what follows.
func (s *Shell) runStdin() {
	var src lineSource = &plainLines{s: s, r: fdReader(0)}
	if s.opt.interactive {
		src = s.prompter()
	}
	s.runLines(src)
}

func (s *Shell) runLines(src lineSource) {
	var acc strings.Builder
	var first uint = 1
	var lines uint
	var wait func(string) bool // tells whether a line can end what is open
	eofs := 0
	for {
		text, err := src.line(acc.Len() > 0)
		switch {
		case err == errInterrupt:
			acc.Reset()
			wait = nil
			s.status = 130
			continue
		case err != nil && err != io.EOF:
			s.errorf("cannot read the script: %v", err)
			return
		}
		if err == nil {
			lines++
			eofs = 0
		}
		if s.opt.verbose {
			s.writeFd(2, text)
		}
		acc.WriteString(text)
		if err == nil && (wait != nil && !wait(text) || continued(acc.String())) {
			continue
		}
		src2 := acc.String()
		file, perr := newParser().Parse(io.MultiReader(strings.NewReader(strings.Repeat("\n", int(min(first-1, 1<<16)))), strings.NewReader(src2)), "")
		if perr != nil && incomplete(perr) && err == nil {
			wait = waitFor(perr)
			continue
		}
		acc.Reset()
		wait = nil
		first = lines + 1
		if perr != nil {
			s.syntaxError(perr)
		} else {
			s.stmts(file.Stmts)
		}
		if s.flow == flowAbort || s.opt.interactive && s.flow != flowExit {
			s.flow = flowNone
		}
		if s.flow != flowNone {
			return
		}
		if err == io.EOF {
			if s.opt.interactive {
				eofs++
				if s.opt.ignoreeof && eofs < 10 {
					s.writeFd(2, "Use \"exit\" to leave the shell.\n")
					continue
				}
				if s.warnStopped() && eofs < 2 {
					continue
				}
			}
			return
		}
	}
}

// incomplete reports whether more input could mend a parse error.
func incomplete(err error) bool {
	var pe syntax.ParseError
	return syntax.IsIncomplete(err) || errors.As(err, &pe) && strings.HasPrefix(pe.Text, "unclosed here-document")
}

// continued reports whether text ends in an escaped newline.
func continued(text string) bool {
	t := strings.TrimSuffix(text, "\n")
	if t == text {
		return false
	}
	n := 0
	for n < len(t) && t[len(t)-1-n] == '\\' {
		n++
	}
	return n%2 == 1
}

// waitFor returns a cheap test for the lines that can close what err says is
// open, so that a long here-document or string is not parsed once per line.
func waitFor(err error) func(string) bool {
	var pe syntax.ParseError
	if !errors.As(err, &pe) {
		return nil
	}
	if strings.Contains(pe.Text, "here-document") {
		i := strings.IndexByte(pe.Text, '`')
		j := strings.LastIndexAny(pe.Text, "`'")
		if i >= 0 && j > i+1 {
			delim := pe.Text[i+1 : j]
			return func(l string) bool { return strings.Contains(l, delim) }
		}
	}
	if strings.Contains(pe.Text, "without closing quote") {
		if i := strings.LastIndexAny(pe.Text, `'"`); i >= 0 && strings.Contains(pe.Text, "quote `") {
			return func(l string) bool { return strings.ContainsAny(l, `'"`) }
		}
	}
	return nil
}

// plainLines reads lines without taking more than each line from the input.
type plainLines struct {
	s *Shell
	r fdReader
}

func (p *plainLines) line(bool) (string, error) {
	b, err := readUntil(int(p.r), '\n', -1)
	if err == nil && len(b) > 0 {
		return string(b), nil
	}
	if len(b) > 0 {
		return string(b), io.EOF
	}
	if err == nil {
		err = io.EOF
	}
	return "", err
}

// readUntil reads through the first delim, or limit bytes when that is not
// negative. It takes exactly those bytes: a seekable input is read in blocks
// and set back, others byte by byte. At the end of input the bytes so far are
// returned with io.EOF.
func readUntil(fd int, delim byte, limit int) ([]byte, error) {
	var out []byte
	if _, err := unix.Seek(fd, 0, io.SeekCurrent); err == nil {
		buf := make([]byte, 4096)
		for {
			n, err := fdReader(fd).Read(buf)
			if n <= 0 {
				return out, err
			}
			take := bytes.IndexByte(buf[:n], delim) + 1
			done := take > 0
			if take == 0 {
				take = n
			}
			if limit >= 0 && len(out)+take >= limit {
				take, done = limit-len(out), true
			}
			out = append(out, buf[:take]...)
			if take < n {
				if _, err := unix.Seek(fd, int64(take-n), io.SeekCurrent); err != nil {
					return out, err
				}
			}
			if done {
				return out, nil
			}
		}
	}
	var one [1]byte
	for limit < 0 || len(out) < limit {
		if _, err := fdReader(fd).Read(one[:]); err != nil {
			return out, err
		}
		out = append(out, one[0])
		if one[0] == delim {
			break
		}
	}
	return out, nil
}
