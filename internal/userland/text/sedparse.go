package text

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/hutch-sandbox/hutch/internal/userland/regex"
)

// sedAddr is one address of a sed command.
type sedAddr struct {
	kind byte // 'n' line, '$', '/' regex, '~' first~step, '+' count, '%' multiple
	n    int
	step int
	re   *regex.Regexp // nil in a '/' address: the last one used
}

// sedCmd is one command of a sed script.
type sedCmd struct {
	a1, a2 *sedAddr
	not    bool
	name   byte
	text   string
	label  string
	jump   int // index of the command a branch goes to, or after a block
	n      int
	re     *regex.Regexp
	repl   []sedPiece
	global bool
	print  int
	nth    int
	out    *sedFile
	from   [256]byte
	active bool // inside its range
	until  int  // last line of a numeric range
}

// sedPiece is part of a replacement: literal text, a group (-1 for none), or
// a change of case.
type sedPiece struct {
	text  string
	group int
	mode  byte // 'L', 'U', 'l', 'u', 'E' or 0
}

// sedFile is a file that w writes to.
type sedFile struct {
	name string
	f    *os.File
}

type sedParser struct {
	src   string
	i     int
	ext   bool
	cmds  []*sedCmd
	files map[string]*sedFile
}

var errSedEnd = errors.New("unexpected end of script")

func (p *sedParser) errorf(format string, args ...any) error {
	return fmt.Errorf("-e expression #1, char %d: %s", p.i, fmt.Sprintf(format, args...))
}

func (p *sedParser) peek() byte {
	if p.i < len(p.src) {
		return p.src[p.i]
	}
	return 0
}

func (p *sedParser) blanks() {
	for p.i < len(p.src) && (p.src[p.i] == ' ' || p.src[p.i] == '\t') {
		p.i++
	}
}

func (p *sedParser) number() int {
	j := p.i
	for p.i < len(p.src) && p.src[p.i] >= '0' && p.src[p.i] <= '9' {
		p.i++
	}
	n, err := strconv.Atoi(p.src[j:p.i])
	if err != nil {
		return 0
	}
	return n
}

// parse reads the whole script and resolves its labels.
func (p *sedParser) parse() error {
	var blocks []int
	labels := map[string]int{}
	for {
		for p.i < len(p.src) && strings.IndexByte(" \t\n;", p.src[p.i]) >= 0 {
			p.i++
		}
		if p.i >= len(p.src) {
			break
		}
		if p.src[p.i] == '#' {
			p.line()
			continue
		}
		c := &sedCmd{}
		var err error
		if c.a1, err = p.address(); err != nil {
			return err
		}
		p.blanks()
		if c.a1 != nil && p.peek() == ',' {
			p.i++
			p.blanks()
			if c.a2, err = p.address(); err != nil {
				return err
			}
			if c.a2 == nil {
				return p.errorf("unexpected `,'")
			}
			p.blanks()
		}
		if c.a1 != nil && c.a1.kind == 'n' && c.a1.n == 0 && (c.a2 == nil || c.a2.kind != '/') {
			return p.errorf("invalid usage of line address 0")
		}
		for p.peek() == '!' {
			c.not = true
			p.i++
			p.blanks()
		}
		if p.i >= len(p.src) {
			return p.errorf("missing command")
		}
		c.name = p.src[p.i]
		p.i++
		if err := p.command(c, &blocks, labels); err != nil {
			return err
		}
		p.cmds = append(p.cmds, c)
	}
	if len(blocks) > 0 {
		return fmt.Errorf("-e expression #1, char 0: unmatched `{'")
	}
	for _, c := range p.cmds {
		if c.name == 'b' || c.name == 't' || c.name == 'T' {
			c.jump = len(p.cmds)
			if c.label != "" {
				at, ok := labels[c.label]
				if !ok {
					return fmt.Errorf("can't find label for jump to `%s'", c.label)
				}
				c.jump = at
			}
		}
	}
	return nil
}

// line consumes through the end of the line.
func (p *sedParser) line() string {
	rest := p.src[p.i:]
	l, _, _ := strings.Cut(rest, "\n")
	p.i += len(l)
	return l
}

func (p *sedParser) address() (*sedAddr, error) {
	switch c := p.peek(); {
	case c >= '0' && c <= '9':
		a := &sedAddr{kind: 'n', n: p.number()}
		if p.peek() == '~' {
			p.i++
			a.kind, a.step = '~', p.number()
		}
		return a, nil
	case c == '$':
		p.i++
		return &sedAddr{kind: '$'}, nil
	case c == '+' || c == '~':
		p.i++
		return &sedAddr{kind: map[byte]byte{'+': '+', '~': '%'}[c], n: p.number()}, nil
	case c == '/' || c == '\\':
		p.i++
		delim := c
		if c == '\\' {
			if p.i >= len(p.src) {
				return nil, p.errorf("unexpected end of address")
			}
			delim = p.src[p.i]
			p.i++
		}
		pat, err := p.delimited(delim, true)
		if err != nil {
			return nil, p.errorf("unterminated address regex")
		}
		f := regex.Flags{Extended: p.ext, Escapes: true}
		for p.peek() == 'I' || p.peek() == 'M' {
			if p.peek() == 'I' {
				f.Fold = true
			} else {
				f.Multiline = true
			}
			p.i++
		}
		a := &sedAddr{kind: '/'}
		if pat != "" {
			if a.re, err = regex.Compile(pat, f); err != nil {
				return nil, p.errorf("%v", err)
			}
		}
		return a, nil
	}
	return nil, nil
}

// delimited reads up to an unescaped delim. In a regex an escaped delimiter
// stands for itself, and delimiters inside brackets do not count.
func (p *sedParser) delimited(delim byte, isRegex bool) (string, error) {
	var b strings.Builder
	for p.i < len(p.src) {
		c := p.src[p.i]
		p.i++
		switch {
		case c == delim:
			return b.String(), nil
		case c == '\n' && isRegex:
			return "", errSedEnd
		case c == '\\':
			if p.i >= len(p.src) {
				return "", errSedEnd
			}
			e := p.src[p.i]
			p.i++
			switch {
			case e == delim && isRegex:
				// An escaped delimiter is that character, unescaped, unless
				// that would be special.
				if strings.IndexByte(".*[]^$+?(){}|", e) >= 0 {
					b.WriteByte('[')
					b.WriteByte(e)
					b.WriteByte(']')
					if e == '^' {
						s := b.String()
						b.Reset()
						b.WriteString(s[:len(s)-3] + `\^`)
					}
				} else {
					b.WriteByte(e)
				}
			case e == delim && e != '&':
				b.WriteByte(e)
			default:
				b.WriteByte('\\')
				b.WriteByte(e)
			}
		case c == '[' && isRegex:
			b.WriteByte(c)
			// Copy a bracket expression whole.
			start := p.i
			j := p.i
			if j < len(p.src) && p.src[j] == '^' {
				j++
			}
			if j < len(p.src) && p.src[j] == ']' {
				j++
			}
			for j < len(p.src) && p.src[j] != ']' && p.src[j] != '\n' {
				if p.src[j] == '[' && j+1 < len(p.src) && strings.IndexByte(":.=", p.src[j+1]) >= 0 {
					if end := strings.Index(p.src[j+2:], string(p.src[j+1])+"]"); end >= 0 {
						j += end + 4
						continue
					}
				}
				j++
			}
			if j < len(p.src) && p.src[j] == ']' {
				b.WriteString(p.src[start : j+1])
				p.i = j + 1
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", errSedEnd
}

// ends checks that nothing but the end of the command follows.
func (p *sedParser) ends() error {
	p.blanks()
	switch p.peek() {
	case 0, '\n', ';':
		return nil
	case '}', '#':
		return nil
	}
	return p.errorf("extra characters after command")
}

func (p *sedParser) command(c *sedCmd, blocks *[]int, labels map[string]int) error {
	switch c.name {
	case '{':
		*blocks = append(*blocks, len(p.cmds))
		return nil
	case '}':
		n := len(*blocks)
		if n == 0 {
			return p.errorf("unexpected `}'")
		}
		if c.a1 != nil {
			return p.errorf("} doesn't want any addresses")
		}
		p.cmds[(*blocks)[n-1]].jump = len(p.cmds)
		*blocks = (*blocks)[:n-1]
		return p.ends()
	case ':':
		if c.a1 != nil {
			return p.errorf(": doesn't want any addresses")
		}
		p.blanks()
		label := p.word()
		if label == "" {
			return p.errorf("\":\" lacks a label")
		}
		labels[label] = len(p.cmds)
		return nil
	case 'b', 't', 'T':
		p.blanks()
		c.label = p.word()
		return p.ends()
	case 'a', 'i', 'c':
		return p.text(c)
	case 'd', 'D', 'g', 'G', 'h', 'H', 'n', 'N', 'p', 'P', 'x', 'z', '=', 'F':
		return p.ends()
	case 'l', 'q', 'Q', 'L':
		p.blanks()
		c.n = -1
		if b := p.peek(); b >= '0' && b <= '9' {
			c.n = p.number()
		}
		return p.ends()
	case 'r', 'R', 'w', 'W':
		p.blanks()
		name := p.line()
		if name == "" {
			return p.errorf("missing filename in r/R/w/W commands")
		}
		c.text = name
		if c.name == 'w' || c.name == 'W' {
			c.out = p.file(name)
		}
		return nil
	case 's':
		return p.substitute(c)
	case 'y':
		return p.transliterate(c)
	}
	return p.errorf("unknown command: `%c'", c.name)
}

func (p *sedParser) file(name string) *sedFile {
	f, ok := p.files[name]
	if !ok {
		f = &sedFile{name: name}
		p.files[name] = f
	}
	return f
}

func (p *sedParser) word() string {
	j := p.i
	for p.i < len(p.src) && strings.IndexByte(" \t\n;}", p.src[p.i]) < 0 {
		p.i++
	}
	return p.src[j:p.i]
}

// text reads the argument of a, i and c: "a\" and a line, or "a text".
func (p *sedParser) text(c *sedCmd) error {
	p.blanks()
	oneLine := true
	if p.peek() == '\\' {
		j := p.i + 1
		for j < len(p.src) && (p.src[j] == ' ' || p.src[j] == '\t') {
			j++
		}
		if j < len(p.src) && p.src[j] == '\n' {
			p.i = j + 1
			oneLine = false
		} else if j < len(p.src) {
			p.i++ // "a\text": the backslash keeps leading blanks
		}
	}
	if p.i >= len(p.src) && oneLine {
		return p.errorf("expected \\ after `a', `c' or `i'")
	}
	var b strings.Builder
	for p.i < len(p.src) && p.src[p.i] != '\n' {
		if p.src[p.i] == '\\' && p.i+1 < len(p.src) {
			p.i++
			if p.src[p.i] == 't' && oneLine {
				b.WriteByte('\t')
				p.i++
				continue
			}
		}
		b.WriteByte(p.src[p.i])
		p.i++
	}
	c.text = b.String() + "\n"
	return nil
}

func (p *sedParser) substitute(c *sedCmd) error {
	if p.i >= len(p.src) {
		return p.errorf("unterminated `s' command")
	}
	delim := p.src[p.i]
	p.i++
	if delim == '\n' || delim == '\\' {
		return p.errorf("invalid delimiter of `s' command")
	}
	pat, err := p.delimited(delim, true)
	if err != nil {
		return p.errorf("unterminated `s' command")
	}
	rep, err := p.delimited(delim, false)
	if err != nil {
		return p.errorf("unterminated `s' command")
	}
	f := regex.Flags{Extended: p.ext, Escapes: true}
	c.nth = 1
flags:
	for {
		switch b := p.peek(); {
		case b == 'g':
			c.global = true
		case b == 'p':
			c.print++
		case b == 'i' || b == 'I':
			f.Fold = true
		case b == 'm' || b == 'M':
			f.Multiline = true
		case b >= '1' && b <= '9':
			c.nth = p.number()
			continue
		case b == 'w':
			p.i++
			p.blanks()
			c.out = p.file(p.line())
			break flags
		case b == 'e':
			return p.errorf("the `e' flag is not supported")
		default:
			if err := p.ends(); err != nil {
				return p.errorf("unknown option to `s'")
			}
			break flags
		}
		p.i++
	}
	if pat != "" {
		if c.re, err = regex.Compile(pat, f); err != nil {
			return p.errorf("%v", err)
		}
	}
	c.repl, err = p.replacement(rep, c.re)
	return err
}

func (p *sedParser) replacement(rep string, re *regex.Regexp) ([]sedPiece, error) {
	var out []sedPiece
	var lit strings.Builder
	flush := func() {
		if lit.Len() > 0 {
			out = append(out, sedPiece{text: lit.String(), group: -1})
			lit.Reset()
		}
	}
	for i := 0; i < len(rep); i++ {
		c := rep[i]
		if c == '&' {
			flush()
			out = append(out, sedPiece{group: 0})
			continue
		}
		if c != '\\' || i+1 >= len(rep) {
			lit.WriteByte(c)
			continue
		}
		i++
		switch e := rep[i]; {
		case e >= '0' && e <= '9':
			n := int(e - '0')
			if re != nil && n > re.Groups() {
				return nil, p.errorf("invalid reference \\%d on `s' command's RHS", n)
			}
			flush()
			out = append(out, sedPiece{group: n})
		case strings.IndexByte("LUluE", e) >= 0:
			flush()
			out = append(out, sedPiece{group: -1, mode: e})
		case e == 'n':
			lit.WriteByte('\n')
		case e == 't':
			lit.WriteByte('\t')
		case e == 'r':
			lit.WriteByte('\r')
		case e == 'a':
			lit.WriteByte('\a')
		case e == 'f':
			lit.WriteByte('\f')
		case e == 'v':
			lit.WriteByte('\v')
		case e == 'x' && i+2 < len(rep):
			n, err := strconv.ParseUint(rep[i+1:i+3], 16, 8)
			if err != nil {
				lit.WriteByte(e)
				break
			}
			lit.WriteByte(byte(n))
			i += 2
		default:
			lit.WriteByte(e)
		}
	}
	flush()
	return out, nil
}

func (p *sedParser) transliterate(c *sedCmd) error {
	if p.i >= len(p.src) {
		return p.errorf("unterminated `y' command")
	}
	delim := p.src[p.i]
	p.i++
	from, err1 := p.delimited(delim, false)
	to, err2 := p.delimited(delim, false)
	if err1 != nil || err2 != nil {
		return p.errorf("unterminated `y' command")
	}
	plain := func(s string) string {
		return strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\t`, "\t").Replace(s)
	}
	from, to = plain(from), plain(to)
	if len(from) != len(to) {
		return p.errorf("strings for `y' command are different lengths")
	}
	for i := range c.from {
		c.from[i] = byte(i)
	}
	for i := range len(from) {
		c.from[from[i]] = to[i]
	}
	return p.ends()
}
