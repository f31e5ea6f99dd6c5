package text

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hutch-sandbox/hutch/internal/userland/regex"
	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// grepper is one run of grep.
type grepper struct {
	c        *tool.Context
	fixed    bool
	flags    regex.Flags
	word     bool
	invert   bool
	count    bool
	list     byte // 'l' or 'L'
	only     bool
	number   bool
	offset   bool
	quiet    bool
	silent   bool
	names    bool
	color    bool
	maxCount int
	before   int
	after    int
	binary   byte // 0 (say so), 'a' (as text), 'I' (skip)
	nul      bool // after file names
	eol      byte
	flush    bool

	matchers []*regex.Regexp
	literals [][]byte
	include  []string
	exclude  []string
	exclDir  []string

	matched bool
	failed  bool
	printed bool // something was printed, for the separator between groups
}

// Grep is grep, and egrep and fgrep by their names.
func Grep(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Fail: 2, Digits: true, Short: "EFGPe:f:ivwxcLlm:oqsbHhnTZA:B:C:aIrRyzU", Long: []string{
		"extended-regexp|E", "fixed-strings|F", "basic-regexp|G", "perl-regexp|P", "regexp=|e", "file=|f", "ignore-case|i", "no-ignore-case", "invert-match|v",
		"word-regexp|w", "line-regexp|x", "count|c", "files-without-match|L", "files-with-matches|l", "max-count=|m", "only-matching|o",
		"quiet|q", "silent|q", "no-messages|s", "byte-offset|b", "with-filename|H", "no-filename|h", "line-number|n", "initial-tab|T", "null|Z",
		"after-context=|A", "before-context=|B", "context=|C", "text|a", "recursive|r", "dereference-recursive|R", "null-data|z", "binary|U",
		"include=", "exclude=", "exclude-dir=", "exclude-from=", "color?", "colour?|color", "line-buffered", "label=", "binary-files="}})
	if !ok {
		return code
	}
	g := &grepper{c: c, maxCount: -1, eol: '\n'}
	g.flags.Extended = c.Name == "egrep"
	g.fixed = c.Name == "fgrep"
	var patterns []string
	given, recurse, deref, nameSet, perl := false, false, false, false, false
	label := "(standard input)"
	for _, o := range opts {
		var err error
		switch o.Name {
		case "E":
			g.flags.Extended, g.fixed, perl = true, false, false
		case "F":
			g.fixed, perl = true, false
		case "G":
			g.flags.Extended, g.fixed, perl = false, false, false
		case "P":
			perl = true
		case "e":
			patterns, given = append(patterns, strings.Split(o.Arg, "\n")...), true
		case "f":
			var list []string
			if list, err = readPatterns(c, o.Arg); err != nil {
				return c.Fail(2, "%s: %s", o.Arg, tool.Reason(err))
			}
			patterns, given = append(patterns, list...), true
		case "i", "y":
			g.flags.Fold = true
		case "no-ignore-case":
			g.flags.Fold = false
		case "v":
			g.invert = true
		case "w":
			g.word = true
		case "x":
			g.flags.Line = true
		case "c":
			g.count = true
		case "l", "L":
			g.list = o.Name[0]
		case "m":
			g.maxCount, err = strconv.Atoi(o.Arg)
		case "o":
			g.only = true
		case "q":
			g.quiet = true
		case "s":
			g.silent = true
		case "b":
			g.offset = true
		case "H":
			g.names, nameSet = true, true
		case "h":
			g.names, nameSet = false, true
		case "n":
			g.number = true
		case "T":
			return c.Fail(2, "option -T is not supported")
		case "Z":
			g.nul = true
		case "A":
			g.after, err = strconv.Atoi(o.Arg)
		case "B":
			g.before, err = strconv.Atoi(o.Arg)
		case "C", "NUM":
			g.after, err = strconv.Atoi(o.Arg)
			g.before = g.after
		case "a":
			g.binary = 'a'
		case "I":
			g.binary = 'I'
		case "binary-files":
			switch o.Arg {
			case "text":
				g.binary = 'a'
			case "without-match":
				g.binary = 'I'
			case "binary":
				g.binary = 0
			default:
				return c.Fail(2, "unknown binary-files type: %s", o.Arg)
			}
		case "U": // there is no other mode than binary
		case "r":
			recurse = true
		case "R":
			recurse, deref = true, true
		case "z":
			g.eol = 0
		case "include":
			g.include = append(g.include, o.Arg)
		case "exclude":
			g.exclude = append(g.exclude, o.Arg)
		case "exclude-dir":
			g.exclDir = append(g.exclDir, strings.TrimSuffix(o.Arg, "/"))
		case "exclude-from":
			list, e := readPatterns(c, o.Arg)
			if e != nil {
				return c.Fail(2, "%s: %s", o.Arg, tool.Reason(e))
			}
			g.exclude = append(g.exclude, list...)
		case "color":
			g.color = o.Arg == "always" || o.Arg != "never" && c.Stdout.File() != nil && isTTY(c.Stdout.File())
		case "line-buffered":
			g.flush = true
		case "label":
			label = o.Arg
		}
		if err != nil || g.before < 0 || g.after < 0 {
			return c.Fail(2, "%s: invalid number", o.Arg)
		}
	}
	if !given {
		if len(ops) == 0 {
			return c.Fail(2, "a pattern is needed: grep [OPTION]... PATTERN [FILE]...")
		}
		patterns, ops = strings.Split(ops[0], "\n"), ops[1:]
	}
	if err := g.compile(patterns, perl); err != nil {
		return c.Fail(2, "%v", err)
	}
	if len(ops) == 0 {
		if recurse {
			ops = []string{""}
		} else {
			ops = []string{"-"}
		}
	}
	if !nameSet {
		g.names = len(ops) > 1 || recurse
		if recurse && len(ops) == 1 && ops[0] != "" {
			if st, err := os.Stat(ops[0]); err == nil && !st.IsDir() {
				g.names = false
			}
		}
	}
	for _, name := range ops {
		if recurse && name != "-" {
			g.walk(name, deref)
			continue
		}
		g.file(name, label)
		if g.stop() {
			break
		}
	}
	switch {
	case g.quiet && g.matched:
		return 0
	case g.failed:
		return 2
	case g.matched:
		return 0
	}
	return 1
}

func (g *grepper) stop() bool {
	return g.quiet && g.matched || g.c.Stdout.Err() != nil
}

func isTTY(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

func (g *grepper) compile(patterns []string, perl bool) error {
	for _, p := range patterns {
		if g.fixed {
			if !g.flags.Fold && !g.word && !g.flags.Line {
				g.literals = append(g.literals, []byte(p))
				continue
			}
			p = regex.Quote(p, g.flags)
		}
		var re *regex.Regexp
		var err error
		if perl {
			re, err = regex.CompilePerl(p, g.flags)
		} else {
			re, err = regex.Compile(p, g.flags)
		}
		if err != nil {
			return err
		}
		g.matchers = append(g.matchers, re)
	}
	return nil
}

// find returns the leftmost (then longest) match in line at or after from.
func (g *grepper) find(line []byte, from int) (lo, hi int, ok bool) {
	lo = -1
	better := func(a, b int) {
		if lo < 0 || a < lo || a == lo && b > hi {
			lo, hi = a, b
		}
	}
	for _, l := range g.literals {
		if i := bytes.Index(line[from:], l); i >= 0 {
			better(from+i, from+i+len(l))
		}
	}
	for _, re := range g.matchers {
		if from == 0 && !g.word {
			if m := re.Find(line); m != nil {
				better(m[0], m[1])
			}
			continue
		}
		for _, m := range re.All(line, -1) {
			if m[0] < from {
				continue
			}
			if g.word {
				a, b, ok := wordMatch(re, line, m[0], m[1])
				if !ok {
					continue
				}
				m[0], m[1] = a, b
			}
			better(m[0], m[1])
			break
		}
	}
	return lo, hi, lo >= 0
}

// wordMatch accepts a match that no word character adjoins, trying shorter
// ones at the same place as grep does.
func wordMatch(re *regex.Regexp, line []byte, lo, hi int) (int, int, bool) {
	for {
		if lo > 0 && wordByte(line[lo-1]) {
			return 0, 0, false
		}
		if hi == len(line) || !wordByte(line[hi]) {
			return lo, hi, true
		}
		if hi <= lo {
			return 0, 0, false
		}
		m := re.Find(line[lo : hi-1])
		if m == nil || m[0] != 0 {
			return 0, 0, false
		}
		hi = lo + m[1]
	}
}

func wordByte(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z' || b >= utf8.RuneSelf
}

// readPatterns reads the lines of a file, as for -f.
func readPatterns(c *tool.Context, name string) ([]string, error) {
	r, err := c.Open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var list []string
	err = tool.Lines(r, '\n', func(l []byte, _ bool) bool {
		list = append(list, string(l))
		return true
	})
	return list, err
}

func (g *grepper) walk(root string, deref bool) {
	start := root
	if start == "" {
		start = "."
	}
	st, err := os.Stat(start)
	if err != nil {
		g.problem(start, err)
		return
	}
	if !st.IsDir() {
		if g.wanted(start) {
			g.file(start, "")
		}
		return
	}
	var visit func(dir string, info fs.FileInfo, depth int)
	visit = func(dir string, info fs.FileInfo, depth int) {
		if depth > 1000 {
			g.problem(dir, errors.New("directories nested too deeply"))
			return
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			g.problem(dir, err)
			return
		}
		for _, e := range entries {
			if g.stop() {
				return
			}
			p := filepath.Join(dir, e.Name())
			if dir != "." && strings.HasPrefix(root, "./") || root == "." {
				p = strings.TrimSuffix(dir, "/") + "/" + e.Name()
			}
			isDir := e.IsDir()
			if e.Type()&fs.ModeSymlink != 0 {
				if !deref {
					continue
				}
				t, err := os.Stat(p)
				if err != nil {
					g.problem(p, err)
					continue
				}
				isDir = t.IsDir()
			}
			if isDir {
				if matchAny(g.exclDir, e.Name(), p) {
					continue
				}
				visit(p, info, depth+1)
				continue
			}
			if e.Type()&(fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 {
				continue
			}
			if g.wanted(p) {
				g.file(p, "")
			}
		}
	}
	visit(start, st, 0)
}

func matchAny(globs []string, base, full string) bool {
	for _, p := range globs {
		if ok, _ := path.Match(p, base); ok {
			return true
		}
		if ok, _ := path.Match(p, full); ok {
			return true
		}
	}
	return false
}

func (g *grepper) wanted(p string) bool {
	base := filepath.Base(p)
	if matchAny(g.exclude, base, p) {
		return false
	}
	return len(g.include) == 0 || matchAny(g.include, base, p)
}

func (g *grepper) problem(name string, err error) {
	g.failed = true
	if !g.silent {
		g.c.Errorf("%s: %s", name, tool.Reason(err))
	}
}

// heldLine is a line kept because it may be context of a match to come.
type heldLine struct {
	text   []byte
	number int
	offset int64
}

func (g *grepper) file(name, label string) {
	var r io.Reader = g.c.Stdin
	shown := label
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			g.problem(name, err)
			return
		}
		defer f.Close()
		if st, err := f.Stat(); err == nil && st.IsDir() {
			if !g.silent {
				g.c.Errorf("%s: Is a directory", name)
			}
			return
		}
		r, shown = f, name
		if name == "" {
			shown = "."
		}
	}
	br := bufio.NewReaderSize(r, 64<<10)
	binary := false
	if g.binary != 'a' && g.eol == '\n' {
		_, _ = br.Peek(1) // fills the buffer
		head, _ := br.Peek(br.Buffered())
		binary = bytes.IndexByte(head, 0) >= 0
		if binary && g.binary == 'I' {
			return
		}
	}
	quietly := g.quiet || g.list != 0 || g.count
	lines, hits, pending := 0, 0, 0
	var offset int64
	var held []heldLine
	lastShown := 0
	err := tool.Lines(br, g.eol, func(line []byte, _ bool) bool {
		lines++
		start := offset
		offset += int64(len(line)) + 1
		_, _, ok := g.find(line, 0)
		if ok != g.invert {
			hits++
			g.matched = true
			switch {
			case g.quiet || g.list != 0:
				return false
			case g.count:
			case binary:
				g.c.Errorf("%s: binary file matches", shown)
				return false
			default:
				if lastShown > 0 || g.printed {
					if first := lines - len(held); (g.before > 0 || g.after > 0) && (lastShown == 0 || first > lastShown+1) {
						g.c.Stdout.WriteString("--\n")
					}
				}
				for _, h := range held {
					g.put(shown, '-', h.number, h.offset, h.text)
				}
				held = held[:0]
				g.hit(shown, lines, start, line)
				lastShown, g.printed = lines, true
				pending = g.after
			}
			return !(g.maxCount >= 0 && hits >= g.maxCount && pending == 0) && g.c.Stdout.Err() == nil
		}
		if quietly || binary {
			return true
		}
		switch {
		case pending > 0:
			pending--
			g.put(shown, '-', lines, start, line)
			lastShown = lines
			if pending == 0 && g.maxCount >= 0 && hits >= g.maxCount {
				return false
			}
		case g.before > 0:
			if len(held) == g.before {
				held = append(held[:0], held[1:]...)
			}
			held = append(held, heldLine{append([]byte(nil), line...), lines, start})
		}
		return true
	})
	if err != nil {
		g.problem(shown, err)
		return
	}
	if g.count && !g.quiet && g.list == 0 {
		if g.names {
			g.c.Printf("%s%s", shown, g.afterName(":"))
		}
		g.c.Printf("%d\n", hits)
	}
	if g.list == 'l' && hits > 0 || g.list == 'L' && hits == 0 {
		g.c.Printf("%s%s", shown, g.afterName("\n"))
	}
	if g.list == 'L' {
		g.matched = g.matched && hits > 0 || hits == 0
	}
}

func (g *grepper) afterName(sep string) string {
	if g.nul {
		return "\x00"
	}
	return sep
}

func (g *grepper) prefix(name string, sep byte, number int, offset int64) {
	if g.names {
		if g.color {
			g.c.Printf("\x1b[35m%s\x1b[m\x1b[36m%s\x1b[m", name, g.afterName(string(sep)))
		} else {
			g.c.Stdout.WriteString(name + g.afterName(string(sep)))
		}
	}
	if g.number {
		if g.color {
			g.c.Printf("\x1b[32m%d\x1b[m\x1b[36m%c\x1b[m", number, sep)
		} else {
			g.c.Printf("%d%c", number, sep)
		}
	}
	if g.offset {
		g.c.Printf("%d%c", offset, sep)
	}
}

func (g *grepper) put(name string, sep byte, number int, offset int64, line []byte) {
	if g.only {
		return
	}
	g.prefix(name, sep, number, offset)
	g.c.Stdout.Write(line)
	g.c.Stdout.WriteByte(g.eol)
}

// hit prints a selected line, or its matching parts.
func (g *grepper) hit(name string, number int, offset int64, line []byte) {
	switch {
	case g.only && !g.invert && len(g.matchers) == 1 && len(g.literals) == 0 && !g.word:
		// All at once: searching again from each match would look at a long
		// line once per match.
		for _, m := range g.matchers[0].All(line, -1) {
			if m[0] < m[1] {
				g.part(name, number, offset, line, m[0], m[1])
			}
		}
	case g.only && !g.invert:
		for from := 0; from <= len(line); {
			lo, hi, ok := g.find(line, from)
			if !ok {
				break
			}
			if hi == lo {
				from = hi + 1
				continue
			}
			g.part(name, number, offset, line, lo, hi)
			from = hi
		}
	case g.only:
	case g.color && !g.invert:
		g.prefix(name, ':', number, offset)
		from := 0
		for from < len(line) {
			lo, hi, ok := g.find(line, from)
			if !ok || hi == lo {
				break
			}
			g.c.Printf("%s\x1b[01;31m%s\x1b[m", line[from:lo], line[lo:hi])
			from = hi
		}
		g.c.Stdout.Write(line[from:])
		g.c.Stdout.WriteByte(g.eol)
	default:
		g.prefix(name, ':', number, offset)
		g.c.Stdout.Write(line)
		g.c.Stdout.WriteByte(g.eol)
	}
	if g.flush {
		g.c.Stdout.Flush()
	}
}

// part prints one match of a line, for -o.
func (g *grepper) part(name string, number int, offset int64, line []byte, lo, hi int) {
	g.prefix(name, ':', number, offset+int64(lo))
	if g.color {
		g.c.Printf("\x1b[01;31m%s\x1b[m", line[lo:hi])
	} else {
		g.c.Stdout.Write(line[lo:hi])
	}
	g.c.Stdout.WriteByte(g.eol)
}
