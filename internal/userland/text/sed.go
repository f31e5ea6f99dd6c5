package text

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/hutch-sandbox/hutch/internal/userland/regex"
	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// maxSedSpace bounds the pattern and hold space of sed.
const maxSedSpace = 1 << 30

// sed is one run of sed.
type sed struct {
	c        *tool.Context
	cmds     []*sedCmd
	files    map[string]*sedFile
	quiet    bool
	separate bool
	inPlace  bool
	suffix   string
	flush    bool
	eol      byte

	inputs []string
	cur    *bufio.Reader
	curF   io.Closer
	name   string
	ahead  []byte // the line after the current one
	hasAhd bool
	ahdNL  bool

	line    int
	space   []byte
	hold    []byte
	nl      bool // the current line had a newline
	append  []appended
	lastRE  *regex.Regexp
	subst   bool
	out     *tool.Output
	tmp     *os.File
	readers map[string]*lineReader
	code    int
	missing bool // a newline is owed to the output
	fail    error
}

// appended is output that waits for the end of the cycle.
type appended struct {
	text string
	file string
}

// Sed is the sed utility.
func Sed(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "nEre:f:si::zul:", Long: []string{"quiet|n", "silent|n", "regexp-extended|E", "expression=|e", "file=|f", "separate|s", "in-place?|i", "null-data|z", "zero-terminated|z", "unbuffered|u", "posix", "line-length=|l"}})
	if !ok {
		return code
	}
	s := &sed{c: c, files: map[string]*sedFile{}, eol: '\n', out: c.Stdout, readers: map[string]*lineReader{}}
	p := &sedParser{files: s.files}
	var script []string
	given := false
	for _, o := range opts {
		switch o.Name {
		case "n":
			s.quiet = true
		case "E", "r":
			p.ext = true
		case "e":
			script, given = append(script, o.Arg), true
		case "f":
			r, err := c.Open(o.Arg)
			if err != nil {
				return c.Fail(1, "couldn't open file %s: %s", o.Arg, tool.Reason(err))
			}
			b, err := io.ReadAll(io.LimitReader(r, 64<<20))
			r.Close()
			if err != nil {
				return c.Fail(1, "couldn't read file %s: %s", o.Arg, tool.Reason(err))
			}
			script, given = append(script, strings.TrimSuffix(string(b), "\n")), true
		case "s":
			s.separate = true
		case "i":
			s.inPlace, s.separate, s.suffix = true, true, o.Arg
		case "z":
			s.eol = 0
		case "u":
			s.flush = true
		case "posix", "l":
			return c.Fail(1, "option -%s is not supported", o.Name)
		}
	}
	if !given {
		if len(ops) == 0 {
			return c.Fail(1, "a script is needed: sed [OPTION]... SCRIPT [FILE]...")
		}
		script, ops = []string{ops[0]}, ops[1:]
	}
	p.src = strings.Join(script, "\n")
	if strings.HasPrefix(p.src, "#n\n") || p.src == "#n" {
		s.quiet = true
	}
	if err := p.parse(); err != nil {
		return c.Fail(1, "%v", err)
	}
	s.cmds = p.cmds
	for _, f := range s.files {
		switch f.name {
		case "/dev/stdout", "/dev/stderr":
			continue
		}
		var err error
		if f.f, err = os.Create(f.name); err != nil {
			return c.Fail(4, "couldn't open file %s: %s", f.name, tool.Reason(err))
		}
		defer f.f.Close()
	}
	s.inputs = ops
	if len(ops) == 0 {
		s.inputs = []string{"-"}
	}
	s.run()
	s.closeCurrent(true)
	if s.fail != nil {
		return c.Fail(4, "%v", s.fail)
	}
	return s.code
}

// nextFile opens the next input; false when there is none.
func (s *sed) nextFile() bool {
	s.closeCurrent(true)
	for len(s.inputs) > 0 {
		s.name = s.inputs[0]
		s.inputs = s.inputs[1:]
		if s.inPlace && s.name == "-" {
			s.c.Errorf("couldn't edit -: not a regular file")
			s.code = 4
			continue
		}
		r, err := s.c.Open(s.name)
		if err != nil {
			verb := "can't read"
			if errors.Is(err, os.ErrInvalid) {
				verb = "couldn't read"
			}
			s.c.Errorf("%s %s: %s", verb, s.name, tool.Reason(err))
			s.code = 2
			continue
		}
		if s.inPlace {
			if err := s.startInPlace(r.(*os.File)); err != nil {
				r.Close()
				s.c.Errorf("couldn't edit %s: %s", s.name, tool.Reason(err))
				s.code = 4
				continue
			}
		}
		s.cur, s.curF = bufio.NewReaderSize(r, 64<<10), r
		return true
	}
	return false
}

func (s *sed) startInPlace(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	s.tmp, err = os.CreateTemp(filepath.Dir(s.name), "sed")
	if err != nil {
		return err
	}
	_ = s.tmp.Chmod(st.Mode().Perm())
	tool.KeepOwner(s.tmp, st)
	s.out = tool.NewOutput(s.tmp)
	s.missing = false
	return nil
}

// closeCurrent finishes the current file; with -i the edited copy takes its
// place when commit is set.
func (s *sed) closeCurrent(commit bool) {
	if s.curF == nil {
		return
	}
	s.curF.Close()
	s.curF = nil
	if s.tmp == nil {
		return
	}
	s.out.Flush()
	err := errors.Join(s.out.Err(), s.tmp.Close())
	if err == nil && commit && s.fail == nil {
		if s.suffix != "" {
			backup := s.name + s.suffix
			if strings.Contains(s.suffix, "*") {
				backup = filepath.Join(filepath.Dir(s.name), strings.ReplaceAll(s.suffix, "*", filepath.Base(s.name)))
			}
			os.Remove(backup)
			err = os.Link(s.name, backup)
		}
		if err == nil {
			err = os.Rename(s.tmp.Name(), s.name)
		}
	}
	if err != nil {
		os.Remove(s.tmp.Name())
		s.c.Errorf("couldn't edit %s: %s", s.name, tool.Reason(err))
		s.code = 4
	}
	s.tmp = nil
	s.out = s.c.Stdout
}

// fetch reads a line from the current file.
func (s *sed) fetch() (line []byte, nl, ok bool) {
	l, err := s.cur.ReadBytes(s.eol)
	if err != nil && err != io.EOF {
		s.c.Errorf("read error on %s: %s", s.name, tool.Reason(err))
		s.code = 2
	}
	if len(l) == 0 {
		return nil, false, false
	}
	if l[len(l)-1] == s.eol && err == nil {
		return l[:len(l)-1], true, true
	}
	return l, false, true
}

// next moves to the next line; false at the end of all input.
func (s *sed) next() bool {
	if s.hasAhd {
		s.space, s.nl, s.hasAhd = s.ahead, s.ahdNL, false
		s.line++
		return true
	}
	for {
		if s.curF != nil {
			if l, nl, ok := s.fetch(); ok {
				s.space, s.nl = l, nl
				s.line++
				return true
			}
		}
		if !s.nextFile() {
			return false
		}
		if s.separate {
			s.line = 0
		}
	}
}

// isLast reports whether the current line is the last, looking one ahead.
func (s *sed) isLast() bool {
	if s.hasAhd {
		return false
	}
	for {
		if s.curF != nil {
			if l, nl, ok := s.fetch(); ok {
				s.ahead, s.ahdNL, s.hasAhd = l, nl, true
				return false
			}
		}
		if s.separate {
			return true
		}
		if !s.nextFile() {
			return true
		}
	}
}

func (s *sed) run() {
	for s.fail == nil && s.out.Err() == nil && s.next() {
		restart := true
		for restart {
			var quit bool
			restart, quit = s.cycle()
			if quit {
				// The rest of a file edited in place stays as it is.
				s.copyRest()
				return
			}
			if s.fail != nil {
				return
			}
		}
	}
}

func (s *sed) copyRest() {
	if s.tmp == nil {
		return
	}
	if s.hasAhd {
		s.emit(s.ahead, s.ahdNL)
		s.hasAhd = false
	}
	for {
		l, nl, ok := s.fetch()
		if !ok {
			return
		}
		s.emit(l, nl)
	}
}

// emit writes a line. A last line without newline stays without, unless more
// output follows.
func (s *sed) emit(line []byte, nl bool) {
	s.owed()
	s.out.Write(line)
	if nl {
		s.out.WriteByte(s.eol)
	} else {
		s.missing = true
	}
	if s.flush {
		s.out.Flush()
	}
}

func (s *sed) owed() {
	if s.missing {
		s.out.WriteByte(s.eol)
		s.missing = false
	}
}

// endCycle prints the pattern space and what a, r and R have queued.
func (s *sed) endCycle() {
	if !s.quiet {
		s.emit(s.space, s.nl)
	}
	s.flushAppends()
}

func (s *sed) flushAppends() {
	for _, a := range s.append {
		s.owed()
		if a.file == "" {
			s.out.WriteString(a.text)
			continue
		}
		var r io.Reader = s.c.Stdin
		if a.file != "/dev/stdin" {
			f, err := tool.OpenFile(a.file)
			if err != nil {
				continue
			}
			r = f
			_, _ = io.Copy(s.out, r)
			f.Close()
			continue
		}
		_, _ = io.Copy(s.out, r)
	}
	s.append = s.append[:0]
}

func (s *sed) match(re *regex.Regexp) bool {
	if re == nil {
		if re = s.lastRE; re == nil {
			s.fail = errors.New("no previous regular expression")
			return false
		}
	}
	s.lastRE = re
	return re.Match(s.space)
}

func (s *sed) addr(a *sedAddr) bool {
	switch a.kind {
	case 'n':
		return s.line == a.n
	case '$':
		return s.isLast()
	case '/':
		return s.match(a.re)
	case '~':
		if a.step <= 0 {
			return s.line == a.n
		}
		return s.line >= a.n && (s.line-a.n)%a.step == 0
	}
	return false
}

func (s *sed) selected(c *sedCmd) bool {
	if c.a1 == nil {
		return true
	}
	if c.a2 == nil {
		return s.addr(c.a1)
	}
	if c.a1.kind == 'n' && c.a1.n == 0 && !c.active && s.line == 1 && c.until == 0 {
		c.active, c.until = true, -1
	}
	if c.active {
		switch c.a2.kind {
		case 'n', '+', '%':
			if s.line >= c.until {
				c.active = false
			}
			// A range whose end has passed selects only its first line.
			return s.line <= c.until
		}
		if s.addr(c.a2) {
			c.active = false
		}
		return true
	}
	if !s.addr(c.a1) {
		return false
	}
	switch c.a2.kind {
	case 'n':
		c.until = c.a2.n
	case '+':
		c.until = s.line + c.a2.n
	case '%':
		c.until = s.line
		if c.a2.n > 0 {
			c.until = (s.line + c.a2.n - 1) / c.a2.n * c.a2.n
		}
	case '$':
		c.active = !s.isLast()
		return true
	default:
		c.active = true
		return true
	}
	c.active = c.until > s.line
	return true
}

// cycle runs the script on the pattern space. restart means that it shall run
// again without reading a line (D), quit that sed ends.
func (s *sed) cycle() (restart, quit bool) {
	s.subst = false
	for i := 0; i < len(s.cmds); i++ {
		c := s.cmds[i]
		if c.name == '}' || c.name == ':' {
			continue
		}
		if s.selected(c) == c.not {
			if c.name == '{' {
				i = c.jump
			}
			continue
		}
		if s.fail != nil || s.out.Err() != nil {
			return false, true
		}
		switch c.name {
		case '{':
		case '=':
			s.owed()
			fmt.Fprintf(s.out, "%d\n", s.line)
		case 'F':
			s.owed()
			fmt.Fprintf(s.out, "%s\n", s.name)
		case 'a':
			s.append = append(s.append, appended{text: c.text})
		case 'i':
			s.owed()
			s.out.WriteString(c.text)
		case 'c':
			if c.a2 == nil || !c.active || c.not {
				s.owed()
				s.out.WriteString(c.text)
			}
			s.flushAppends()
			return false, false
		case 'b':
			i = c.jump - 1
		case 't':
			if s.subst {
				s.subst = false
				i = c.jump - 1
			}
		case 'T':
			if !s.subst {
				i = c.jump - 1
			}
			s.subst = false
		case 'd':
			s.flushAppends()
			return false, false
		case 'D':
			j := bytes.IndexByte(s.space, s.eol)
			s.flushAppends()
			if j < 0 {
				return false, false
			}
			s.space = s.space[j+1:]
			return true, false
		case 'g':
			s.space = append(s.space[:0:0], s.hold...)
		case 'G':
			s.join(&s.space, s.hold)
		case 'h':
			s.hold = append(s.hold[:0], s.space...)
		case 'H':
			s.join(&s.hold, s.space)
		case 'x':
			s.space, s.hold = s.hold, s.space
		case 'l':
			s.owed()
			s.list()
		case 'n':
			if s.isLast() && len(s.inputs) == 0 {
				s.endCycle()
				return false, true
			}
			s.endCycle()
			if !s.next() {
				return false, true
			}
		case 'N':
			old := s.space
			if s.isLast() && (len(s.inputs) == 0 || !s.separate) {
				s.endCycle()
				return false, true
			}
			s.flushAppends()
			keep := append([]byte(nil), old...)
			if !s.next() {
				s.space = keep
				s.endCycle()
				return false, true
			}
			add := s.space
			s.space = keep
			s.join(&s.space, add)
		case 'p':
			s.emit(s.space, true)
		case 'P':
			l, _, _ := bytes.Cut(s.space, []byte{s.eol})
			s.emit(l, true)
		case 'q':
			s.endCycle()
			s.code = max(c.n, 0)
			return false, true
		case 'Q':
			s.code = max(c.n, 0)
			return false, true
		case 'r':
			s.append = append(s.append, appended{file: c.text})
		case 'R':
			s.readLine(c.text)
		case 's':
			s.substitute(c)
		case 'w':
			s.toFile(c.out, s.space)
		case 'W':
			l, _, _ := bytes.Cut(s.space, []byte{s.eol})
			s.toFile(c.out, l)
		case 'y':
			for k, b := range s.space {
				s.space[k] = c.from[b]
			}
		case 'z':
			s.space = s.space[:0]
		default:
			s.fail = fmt.Errorf("command `%c' is not supported", c.name)
		}
	}
	s.endCycle()
	return false, false
}

func (s *sed) join(dst *[]byte, add []byte) {
	if len(*dst)+len(add) > maxSedSpace {
		s.fail = errors.New("the pattern space has grown too large")
		return
	}
	*dst = append(append(*dst, s.eol), add...)
}

func (s *sed) readLine(name string) {
	r, ok := s.readers[name]
	if !ok {
		f, err := tool.OpenFile(name)
		if err == nil {
			r = newLineReader(f, s.eol)
		}
		s.readers[name] = r
	}
	if r == nil {
		return
	}
	if l, ok := r.next(); ok {
		s.append = append(s.append, appended{text: string(l) + string(rune(s.eol))})
	}
}

func (s *sed) toFile(f *sedFile, line []byte) {
	switch f.name {
	case "/dev/stdout":
		s.emit(line, true)
		return
	case "/dev/stderr":
		fmt.Fprintf(s.c.Stderr, "%s\n", line)
		return
	}
	if _, err := f.f.Write(append(bytes.Clone(line), s.eol)); err != nil {
		s.fail = fmt.Errorf("couldn't write to %s: %s", f.name, tool.Reason(err))
	}
}

func (s *sed) substitute(c *sedCmd) {
	re := c.re
	if re == nil {
		if re = s.lastRE; re == nil {
			s.fail = errors.New("no previous regular expression")
			return
		}
	}
	s.lastRE = re
	limit := -1
	if !c.global {
		limit = c.nth
	}
	all := re.All(s.space, limit)
	if len(all) < c.nth {
		return
	}
	var out []byte
	end := 0
	for n, m := range all {
		if n+1 < c.nth {
			continue
		}
		out = append(out, s.space[end:m[0]]...)
		out = s.expand(out, c.repl, m)
		end = m[1]
		if len(out) > maxSedSpace {
			s.fail = errors.New("the pattern space has grown too large")
			return
		}
	}
	s.space = append(out, s.space[end:]...)
	s.subst = true
	for range c.print {
		s.emit(s.space, true)
	}
	if c.out != nil {
		s.toFile(c.out, s.space)
	}
}

// expand appends the replacement for match m.
func (s *sed) expand(out []byte, repl []sedPiece, m []int) []byte {
	var mode, once byte
	for _, p := range repl {
		if p.mode != 0 {
			switch p.mode {
			case 'l', 'u':
				once = p.mode
			case 'E':
				mode = 0
			default:
				mode = p.mode
			}
			continue
		}
		text := []byte(p.text)
		if p.group >= 0 {
			text = nil
			if 2*p.group+1 < len(m) && m[2*p.group] >= 0 {
				text = s.space[m[2*p.group]:m[2*p.group+1]]
			}
		}
		if mode == 0 && once == 0 {
			out = append(out, text...)
			continue
		}
		switch mode {
		case 'L':
			text = bytes.ToLower(text)
		case 'U':
			text = bytes.ToUpper(text)
		}
		if once != 0 && len(text) > 0 {
			head := text[:1]
			if once == 'u' {
				head = bytes.ToUpper(head)
			} else {
				head = bytes.ToLower(head)
			}
			out = append(append(out, head...), text[1:]...)
			once = 0
			continue
		}
		out = append(out, text...)
	}
	return out
}

// list prints the pattern space unambiguously.
func (s *sed) list() {
	col := 0
	for _, b := range s.space {
		var e string
		switch {
		case b == '\\':
			e = `\\`
		case b == '\n':
			e = `\n`
		case b >= 7 && b <= 13:
			e = `\` + string("abtnvfr"[b-7])
		case b < 32 || b > 126:
			e = fmt.Sprintf(`\%03o`, b)
		default:
			e = string(rune(b))
		}
		if col+len(e) > 69 {
			s.out.WriteString("\\\n")
			col = 0
		}
		s.out.WriteString(e)
		col += len(e)
	}
	s.out.WriteString("$\n")
}
