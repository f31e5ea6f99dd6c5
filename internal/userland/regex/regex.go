// Package regex compiles POSIX basic and extended regular expressions, with
// the GNU extensions in common use, for grep, sed and expr.
//
// Expressions run on Go's linear-time engine with leftmost-longest matching.
// Only those with back-references, which that engine cannot do, use a
// backtracking one, whose alternatives match leftmost-first.
//
// A Regexp may be used by several goroutines.
package regex

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// Flags change how an expression is read and matched.
type Flags struct {
	// Extended reads the pattern as an ERE, otherwise a BRE.
	Extended bool
	// Fold ignores case.
	Fold bool
	// Multiline makes ^ and $ match at line breaks inside the text.
	Multiline bool
	// Line accepts only matches of the whole text.
	Line bool
	// Escapes resolves \n and \t, also in bracket expressions, as sed does.
	Escapes bool
}

// Regexp is a compiled expression.
type Regexp struct {
	re     *regexp.Regexp
	back   *regexp2.Regexp
	groups int
}

// maxGroups bounds how deeply a hostile pattern may nest.
const maxGroups = 1000

// Compile reads pattern.
func Compile(pattern string, f Flags) (*Regexp, error) {
	t := &translator{p: pattern, f: f}
	if err := t.run(); err != nil {
		return nil, err
	}
	expr := t.out.String()
	if f.Line {
		expr = `\A(?:` + expr + `)\z`
	}
	if t.backrefs {
		var opt regexp2.RegexOptions = regexp2.Singleline
		if f.Fold {
			opt |= regexp2.IgnoreCase
		}
		if f.Multiline {
			opt |= regexp2.Multiline
		}
		re, err := regexp2.Compile(expr, opt)
		if err != nil {
			return nil, fmt.Errorf("invalid regular expression: %s", pattern)
		}
		return &Regexp{back: re, groups: t.groups}, nil
	}
	mode := "(?s"
	if f.Fold {
		mode += "i"
	}
	if f.Multiline {
		mode += "m"
	}
	re, err := regexp.Compile(mode + ")" + expr)
	if err != nil {
		return nil, fmt.Errorf("invalid regular expression: %s", pattern)
	}
	re.Longest()
	return &Regexp{re: re, groups: t.groups}, nil
}

// CompilePerl reads a pattern in Perl syntax, as for grep -P.
func CompilePerl(pattern string, f Flags) (*Regexp, error) {
	var opt regexp2.RegexOptions
	if f.Fold {
		opt |= regexp2.IgnoreCase
	}
	if f.Line {
		pattern = `\A(?:` + pattern + `)\z`
	}
	if re, err := regexp.Compile("(?:" + pattern + ")"); err == nil {
		if f.Fold {
			re, err = regexp.Compile("(?i:" + pattern + ")")
		}
		if err == nil {
			return &Regexp{re: re, groups: re.NumSubexp()}, nil
		}
	}
	re, err := regexp2.Compile(latinText(pattern), opt)
	if err != nil {
		return nil, fmt.Errorf("invalid regular expression: %s", pattern)
	}
	return &Regexp{back: re, groups: len(re.GetGroupNumbers()) - 1}, nil
}

// latinText is latin for a pattern.
func latinText(s string) string { return latin([]byte(s)) }

// Groups is the number of parenthesised groups.
func (r *Regexp) Groups() int { return r.groups }

// Match reports whether text contains a match.
func (r *Regexp) Match(text []byte) bool {
	if r.re != nil {
		return r.re.Match(text)
	}
	m, err := r.back.MatchString(latin(text))
	return err == nil && m
}

// Find returns the offsets of the first match and its groups, in the form of
// regexp.FindSubmatchIndex; nil when there is none.
func (r *Regexp) Find(text []byte) []int {
	if r.re != nil {
		return r.re.FindSubmatchIndex(text)
	}
	if all := r.All(text, 1); len(all) > 0 {
		return all[0]
	}
	return nil
}

// All returns up to n successive matches (all when n < 0). An empty match
// next to the match before it does not count.
func (r *Regexp) All(text []byte, n int) [][]int {
	if r.re != nil {
		return r.re.FindAllSubmatchIndex(text, n)
	}
	runes := []rune(latin(text))
	var out [][]int
	prevEnd := -1
	m, err := r.back.FindRunesMatch(runes)
	for err == nil && m != nil && (n < 0 || len(out) < n) {
		if m.Length > 0 || m.Index != prevEnd {
			loc := make([]int, 0, 2*(r.groups+1))
			for g := 0; g <= r.groups; g++ {
				grp := m.GroupByNumber(g)
				if grp == nil || len(grp.Captures) == 0 {
					loc = append(loc, -1, -1)
				} else {
					loc = append(loc, grp.Index, grp.Index+grp.Length)
				}
			}
			out = append(out, loc)
			prevEnd = m.Index + m.Length
		}
		m, err = r.back.FindNextMatch(m)
	}
	return out
}

// latin maps each byte to the character of that number, so that offsets are
// those of bytes and no byte is invalid.
func latin(b []byte) string {
	r := make([]rune, len(b))
	for i, c := range b {
		r[i] = rune(c)
	}
	return string(r)
}

// translator rewrites a POSIX expression in the syntax of package regexp.
type translator struct {
	p        string
	i        int
	f        Flags
	out      strings.Builder
	groups   int
	open     []int
	closed   map[int]bool
	backrefs bool
}

func (t *translator) run() error {
	// Whether there is a back-reference decides how characters above ASCII
	// are written, so look first.
	for i := 0; i+1 < len(t.p); i++ {
		if t.p[i] == '\\' {
			if t.p[i+1] >= '1' && t.p[i+1] <= '9' {
				t.backrefs = true
			}
			i++
		}
	}
	t.closed = map[int]bool{}
	start := true // at the start of an expression, group or alternative
	atom := false // something that a repetition may follow
	for t.i < len(t.p) {
		c := t.p[t.i]
		t.i++
		wasStart := start
		start = false
		switch {
		case c == '\\':
			if t.i >= len(t.p) {
				return fmt.Errorf("trailing backslash")
			}
			e := t.p[t.i]
			t.i++
			var err error
			start, atom, err = t.escaped(e, wasStart, atom)
			if err != nil {
				return err
			}
		case c == '[':
			if err := t.bracket(); err != nil {
				return err
			}
			atom = true
		case c == '.':
			t.out.WriteByte('.')
			atom = true
		case c == '*':
			if !atom || wasStart {
				t.out.WriteString(`\*`)
				atom = true
				break
			}
			t.repeat("*")
		case c == '^':
			if t.f.Extended || wasStart {
				t.out.WriteByte('^')
				start, atom = true, false
				break
			}
			t.out.WriteString(`\^`)
			atom = true
		case c == '$':
			if t.f.Extended || t.atEnd() {
				if t.f.Multiline {
					t.out.WriteString(`$`)
				} else {
					t.out.WriteString(`\z`)
				}
				atom = false
				break
			}
			t.out.WriteString(`\$`)
			atom = true
		case t.f.Extended && (c == '+' || c == '?'):
			if !atom {
				t.out.WriteByte('\\')
				t.out.WriteByte(c)
				atom = true
				break
			}
			t.repeat(string(c))
		case t.f.Extended && c == '{':
			if ok, err := t.interval("}"); err != nil {
				return err
			} else if ok && atom {
				break
			}
			t.out.WriteString(`\{`)
			atom = true
		case t.f.Extended && c == '(':
			if err := t.begin(); err != nil {
				return err
			}
			start, atom = true, false
		case t.f.Extended && c == ')':
			if len(t.open) == 0 {
				t.out.WriteString(`\)`)
				atom = true
				break
			}
			t.end()
			atom = true
		case t.f.Extended && c == '|':
			t.out.WriteByte('|')
			start, atom = true, false
		default:
			t.i--
			t.literal()
			atom = true
		}
	}
	if len(t.open) > 0 {
		return fmt.Errorf("Unmatched ( or \\(") //nolint:staticcheck // grep's words
	}
	return nil
}

// atEnd reports whether a $ in a BRE is an anchor.
func (t *translator) atEnd() bool {
	rest := t.p[t.i:]
	return rest == "" || strings.HasPrefix(rest, `\)`) || strings.HasPrefix(rest, `\|`)
}

func (t *translator) begin() error {
	if t.groups++; t.groups > maxGroups {
		return fmt.Errorf("too many groups")
	}
	t.open = append(t.open, t.groups)
	t.out.WriteByte('(')
	return nil
}

func (t *translator) end() {
	t.closed[t.open[len(t.open)-1]] = true
	t.open = t.open[:len(t.open)-1]
	t.out.WriteByte(')')
}

// repeat writes a repetition; a second one in a row applies to the first.
func (t *translator) repeat(op string) {
	s := t.out.String()
	if n := len(s); n > 0 && (s[n-1] == '*' || s[n-1] == '+' || s[n-1] == '?') && (n < 2 || s[n-2] != '\\' || n > 2 && s[n-3] == '\\') {
		// "a**" is "a*"; any mixture that allows none and many is "*".
		if s[n-1] != '*' {
			t.out.Reset()
			if s[n-1] == op[0] {
				t.out.WriteString(s)
			} else {
				t.out.WriteString(s[:n-1] + "*")
			}
		}
		return
	}
	t.out.WriteString(op)
}

// interval reads "m,n" up to the closing text and writes the repetition.
func (t *translator) interval(closing string) (bool, error) {
	end := strings.Index(t.p[t.i:], closing)
	if end < 0 {
		return false, nil
	}
	body := t.p[t.i : t.i+end]
	lo, hi, ranged := strings.Cut(body, ",")
	a, err1 := strconv.Atoi(lo)
	if lo == "" && ranged {
		a, err1 = 0, nil
	}
	b, err2 := strconv.Atoi(hi)
	if hi == "" {
		b, err2 = a, nil
	}
	if err1 != nil || err2 != nil || a < 0 || strings.ContainsAny(body, "+- ") {
		return false, nil
	}
	if b < a || b > 1000 {
		return false, fmt.Errorf("Invalid content of \\{\\}") //nolint:staticcheck // grep's words
	}
	t.i += end + len(closing)
	switch {
	case !ranged:
		fmt.Fprintf(&t.out, "{%d}", a)
	case hi == "":
		fmt.Fprintf(&t.out, "{%d,}", a)
	default:
		fmt.Fprintf(&t.out, "{%d,%d}", a, b)
	}
	return true, nil
}

func (t *translator) escaped(e byte, wasStart, atom bool) (start, atomOut bool, err error) {
	switch {
	case e >= '1' && e <= '9':
		n := int(e - '0')
		if !t.closed[n] {
			return false, false, fmt.Errorf("Invalid back reference") //nolint:staticcheck // grep's words
		}
		fmt.Fprintf(&t.out, `(?:\%d)`, n)
		return false, true, nil
	case e == 'w' || e == 'W' || e == 's' || e == 'S':
		t.out.WriteString(map[byte]string{'w': `[0-9A-Za-z_]`, 'W': `[^0-9A-Za-z_]`, 's': `[ \t\n\v\f\r]`, 'S': `[^ \t\n\v\f\r]`}[e])
		return false, true, nil
	case e == 'b' || e == '<' || e == '>':
		t.out.WriteString(`\b`)
		return false, false, nil
	case e == 'B':
		t.out.WriteString(`\B`)
		return false, false, nil
	case e == '`':
		t.out.WriteString(`\A`)
		return false, false, nil
	case e == '\'':
		t.out.WriteString(`\z`)
		return false, false, nil
	case t.f.Escapes && strings.IndexByte("ntfvra", e) >= 0:
		t.out.WriteString(`\` + string(rune(e)))
		return false, true, nil
	}
	if !t.f.Extended {
		switch e {
		case '(':
			return true, false, t.begin()
		case ')':
			if len(t.open) == 0 {
				return false, false, fmt.Errorf("Unmatched ) or \\)") //nolint:staticcheck // grep's words
			}
			t.end()
			return false, true, nil
		case '{':
			if wasStart || !atom {
				t.out.WriteString(`\{`)
				return false, true, nil
			}
			ok, err := t.interval(`\}`)
			if err == nil && !ok {
				err = fmt.Errorf("Invalid content of \\{\\}") //nolint:staticcheck // grep's words
			}
			return false, true, err
		case '|':
			t.out.WriteByte('|')
			return true, false, nil
		case '+', '?':
			if atom {
				t.repeat(string(rune(e)))
				return false, true, nil
			}
		}
	}
	t.i--
	t.literal()
	return false, true, nil
}

// literal writes the next character of the pattern as itself.
func (t *translator) literal() {
	r, n := utf8.DecodeRuneInString(t.p[t.i:])
	if t.backrefs {
		n = 1
		t.out.WriteString(regexp.QuoteMeta(string(rune(t.p[t.i]))))
	} else if r == utf8.RuneError && n == 1 {
		// Go matches an invalid byte only as U+FFFD.
		t.out.WriteString(`\x{FFFD}`)
	} else {
		t.out.WriteString(regexp.QuoteMeta(string(r)))
	}
	t.i += n
}

// bracket translates a bracket expression; the [ has been read.
func (t *translator) bracket() error {
	bad := fmt.Errorf("Unmatched [, [^, [:, [., or [=") //nolint:staticcheck // grep's words
	t.out.WriteByte('[')
	if t.i < len(t.p) && t.p[t.i] == '^' {
		t.out.WriteByte('^')
		t.i++
	}
	first := true
	char := func(c string) string {
		if strings.ContainsAny(c, `\]^-[&~`) {
			return `\` + c
		}
		return c
	}
	next := func() string {
		n := 1
		if !t.backrefs {
			_, n = utf8.DecodeRuneInString(t.p[t.i:])
		}
		c := t.p[t.i : t.i+n]
		t.i += n
		if t.backrefs {
			return string(rune(c[0]))
		}
		if c[0] == '\\' && t.f.Escapes && t.i < len(t.p) && strings.IndexByte("nt", t.p[t.i]) >= 0 {
			t.i++
			return map[byte]string{'n': "\n", 't': "\t"}[t.p[t.i-1]]
		}
		if !utf8.ValidString(c) {
			return "\uFFFD"
		}
		return c
	}
	for {
		if t.i >= len(t.p) {
			return bad
		}
		if t.p[t.i] == ']' && !first {
			t.i++
			t.out.WriteByte(']')
			return nil
		}
		first = false
		if t.p[t.i] == '[' && t.i+1 < len(t.p) && strings.IndexByte(":.=", t.p[t.i+1]) >= 0 {
			kind := t.p[t.i+1]
			end := strings.Index(t.p[t.i+2:], string(kind)+"]")
			if end < 0 {
				return bad
			}
			name := t.p[t.i+2 : t.i+2+end]
			t.i += 2 + end + 2
			if kind != ':' {
				t.out.WriteString(char(name))
				continue
			}
			cls, ok := Classes()[name]
			if !ok {
				return fmt.Errorf("Invalid character class name") //nolint:staticcheck // grep's words
			}
			t.out.WriteString(cls)
			continue
		}
		lo := next()
		if t.i+1 < len(t.p) && t.p[t.i] == '-' && t.p[t.i+1] != ']' {
			t.i++
			hi := next()
			if hi == "[" && t.i+1 < len(t.p) && strings.IndexByte(".=", t.p[t.i]) >= 0 {
				end := strings.IndexByte(t.p[t.i:], ']')
				if end < 3 {
					return bad
				}
				hi = t.p[t.i+1 : t.i+end-1]
				t.i += end + 1
			}
			if lo > hi {
				return fmt.Errorf("Invalid range end") //nolint:staticcheck // grep's words
			}
			t.out.WriteString(char(lo) + "-" + char(hi))
			continue
		}
		t.out.WriteString(char(lo))
	}
}

// Classes maps the names of character classes to the inside of a bracket
// expression of package regexp.
func Classes() map[string]string {
	return map[string]string{
		"alpha": "A-Za-z", "digit": "0-9", "alnum": "0-9A-Za-z", "upper": "A-Z", "lower": "a-z",
		"space": ` \t\n\v\f\r`, "blank": ` \t`, "punct": "!-/:-@\\[-`{-~", "cntrl": `\x00-\x1f\x7f`,
		"print": ` -~`, "graph": `!-~`, "xdigit": "0-9A-Fa-f",
	}
}

// Quote returns a pattern that matches text itself, for flags f.
func Quote(text string, f Flags) string {
	special := `.[]*^$\`
	if f.Extended {
		special += `+?(){}|`
	}
	var b strings.Builder
	for i := range len(text) {
		if strings.IndexByte(special, text[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(text[i])
	}
	return b.String()
}
