package basic

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// Echo writes its arguments. As in bash, busybox and coreutils (and unlike
// dash) backslashes are plain text unless -e is given.
func Echo(c *tool.Context) int {
	args := c.Args
	nl, esc := true, false
	for len(args) > 0 {
		a := args[0]
		if len(a) < 2 || a[0] != '-' || strings.Trim(a[1:], "neE") != "" {
			break
		}
		for _, f := range a[1:] {
			switch f {
			case 'n':
				nl = false
			case 'e':
				esc = true
			case 'E':
				esc = false
			}
		}
		args = args[1:]
	}
	for i, a := range args {
		if i > 0 {
			c.Stdout.WriteByte(' ')
		}
		if esc {
			s, stop := unescape(a, true)
			c.Stdout.WriteString(s)
			if stop {
				return 0
			}
			continue
		}
		c.Stdout.WriteString(a)
	}
	if nl {
		c.Stdout.WriteByte('\n')
	}
	return 0
}

// escape resolves one backslash sequence at the start of s (which begins
// after the backslash). zero tells whether octal needs a leading 0 and may
// then have three more digits, as in echo -e and printf %b.
func escape(s string, zero bool) (out string, n int, stop bool) {
	if s == "" {
		return "\\", 0, false
	}
	switch s[0] {
	case 'a':
		return "\a", 1, false
	case 'b':
		return "\b", 1, false
	case 'c':
		return "", 1, true
	case 'e', 'E':
		return "\x1b", 1, false
	case 'f':
		return "\f", 1, false
	case 'n':
		return "\n", 1, false
	case 'r':
		return "\r", 1, false
	case 't':
		return "\t", 1, false
	case 'v':
		return "\v", 1, false
	case '\\':
		return "\\", 1, false
	case 'x':
		v, k := digits(s[1:], 16, 2)
		if k == 0 {
			return "\\x", 1, false
		}
		return string([]byte{byte(v)}), 1 + k, false
	case 'u', 'U':
		max := 4
		if s[0] == 'U' {
			max = 8
		}
		v, k := digits(s[1:], 16, max)
		if k == 0 {
			return "\\" + s[:1], 1, false
		}
		return string(utf8.AppendRune(nil, rune(v))), 1 + k, false
	case '0', '1', '2', '3', '4', '5', '6', '7':
		if zero && s[0] == '0' {
			v, k := digits(s[1:], 8, 3)
			return string([]byte{byte(v)}), 1 + k, false
		}
		v, k := digits(s, 8, 3)
		return string([]byte{byte(v)}), k, false
	}
	return "\\" + s[:1], 1, false
}

func digits(s string, base, max int) (v, n int) {
	for n < max && n < len(s) {
		d := strings.IndexByte("0123456789abcdef", s[n])
		if d < 0 && s[n] >= 'A' && s[n] <= 'F' {
			d = int(s[n]-'A') + 10
		}
		if d < 0 || d >= base {
			break
		}
		v = v*base + d
		n++
	}
	return v, n
}

func unescape(s string, zero bool) (out string, stop bool) {
	if strings.IndexByte(s, '\\') < 0 {
		return s, false
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			i++
			continue
		}
		o, n, st := escape(s[i+1:], zero)
		b.WriteString(o)
		if st {
			return b.String(), true
		}
		i += 1 + n
	}
	return b.String(), false
}

// Printf is the printf utility. The format is used again while arguments are
// left; a missing argument counts as an empty string or zero.
func Printf(c *tool.Context) int {
	args := c.Args
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return c.Fail(2, "usage: printf format [arg ...]")
	}
	p := &printer{c: c, args: args[1:]}
	for {
		before := len(p.args)
		if stop := p.once(args[0]); stop || p.fatal {
			break
		}
		if len(p.args) == 0 || len(p.args) == before {
			break
		}
	}
	return p.code
}

type printer struct {
	c     *tool.Context
	args  []string
	code  int
	fatal bool
}

func (p *printer) next() (string, bool) {
	if len(p.args) == 0 {
		return "", false
	}
	a := p.args[0]
	p.args = p.args[1:]
	return a, true
}

func (p *printer) once(f string) (stop bool) {
	w := p.c.Stdout
	for i := 0; i < len(f); {
		switch {
		case f[i] == '\\':
			if i+1 < len(f) && (f[i+1] == '"' || f[i+1] == '\'') {
				w.WriteByte(f[i+1])
				i += 2
				continue
			}
			o, n, st := escape(f[i+1:], false)
			w.WriteString(o)
			if st {
				return true
			}
			i += 1 + n
		case f[i] != '%':
			j := strings.IndexAny(f[i:], "\\%")
			if j < 0 {
				j = len(f) - i
			}
			w.WriteString(f[i : i+j])
			i += j
		case i+1 < len(f) && f[i+1] == '%':
			w.WriteByte('%')
			i += 2
		default:
			n, st := p.directive(f[i:])
			if p.fatal || st {
				return true
			}
			i += n
		}
	}
	return false
}

// directive handles one % conversion at the start of f and returns its length.
func (p *printer) directive(f string) (n int, stop bool) {
	i := 1
	for i < len(f) && strings.IndexByte("-+ #0'", f[i]) >= 0 {
		i++
	}
	flags := strings.ReplaceAll(f[1:i], "'", "")
	num := func() string {
		if i < len(f) && f[i] == '*' {
			i++
			a, _ := p.next()
			return strconv.FormatInt(p.integer(a), 10)
		}
		j := i
		for i < len(f) && f[i] >= '0' && f[i] <= '9' {
			i++
		}
		return f[j:i]
	}
	width := num()
	if strings.HasPrefix(width, "-") {
		flags, width = flags+"-", width[1:]
	}
	prec, hasPrec := "", false
	if i < len(f) && f[i] == '.' {
		i++
		hasPrec = true
		prec = num()
		if strings.HasPrefix(prec, "-") {
			hasPrec, prec = false, ""
		}
	}
	for i < len(f) && strings.IndexByte("lhLjzt", f[i]) >= 0 {
		i++
	}
	if i >= len(f) {
		p.c.Errorf("%s: missing format character", f)
		p.code, p.fatal = 1, true
		return i, true
	}
	verb := f[i]
	i++
	// Go's formatter refuses absurd widths; so do we, to bound memory.
	if len(width) > 6 || len(prec) > 6 {
		p.c.Errorf("%s: width or precision too large", f[:i])
		p.code, p.fatal = 1, true
		return i, true
	}
	spec := "%" + flags + width
	if hasPrec {
		spec += "." + prec
	}
	arg, given := p.next()
	w := p.c.Stdout
	switch verb {
	case 's', 'b', 'q', 'c':
		switch verb {
		case 'b':
			arg, stop = unescape(arg, true)
		case 'q':
			arg = shellQuote(arg)
		case 'c':
			if arg != "" {
				arg = arg[:1]
			}
			hasPrec = false
		}
		wd, _ := strconv.Atoi(width)
		if hasPrec {
			pn, _ := strconv.Atoi(prec)
			if pn < len(arg) {
				arg = arg[:pn]
			}
		}
		pad := strings.Repeat(" ", max(0, wd-len(arg)))
		if strings.Contains(flags, "-") {
			w.WriteString(arg + pad)
		} else {
			w.WriteString(pad + arg)
		}
	case 'd', 'i':
		p.int(spec, hasPrec, flags, p.integer(arg))
	case 'u', 'o', 'x', 'X':
		v := uint64(p.integer(arg))
		g := verb
		if g == 'u' {
			g = 'd'
		}
		if hasPrec {
			spec = "%" + strings.ReplaceAll(flags, "0", "") + width + "." + prec
		}
		if v == 0 {
			spec = strings.Replace(spec, "#", "", 1)
		}
		fmt.Fprintf(w, spec+string(rune(g)), v)
	case 'e', 'E', 'f', 'F', 'g', 'G', 'a', 'A':
		p.float(spec, verb, arg, given)
	default:
		p.c.Errorf("%%%c: invalid directive", verb)
		p.code, p.fatal = 1, true
	}
	return i, stop
}

func (p *printer) int(spec string, hasPrec bool, flags string, v int64) {
	if hasPrec && strings.Contains(flags, "0") {
		// A precision turns zero padding of the width off.
		head := strings.ReplaceAll(flags, "0", "")
		spec = "%" + head + spec[1+len(flags):]
	}
	fmt.Fprintf(p.c.Stdout, spec+"d", v)
}

func (p *printer) integer(s string) int64 {
	if s == "" {
		return 0
	}
	if s[0] == '"' || s[0] == '\'' {
		r, _ := utf8.DecodeRuneInString(s[1:])
		if r == utf8.RuneError && len(s) > 1 {
			return int64(s[1])
		}
		if len(s) == 1 {
			return 0
		}
		return int64(r)
	}
	t := strings.TrimSpace(s)
	body, neg := strings.CutPrefix(t, "-")
	body = strings.TrimPrefix(body, "+")
	base, digs := 10, "0123456789"
	switch {
	case strings.HasPrefix(body, "0x"), strings.HasPrefix(body, "0X"):
		base, digs, body = 16, "0123456789abcdefABCDEF", body[2:]
	case len(body) > 1 && body[0] == '0':
		base, digs = 8, "01234567"
	}
	end := 0
	for end < len(body) && strings.IndexByte(digs, body[end]) >= 0 {
		end++
	}
	if end == 0 {
		p.c.Errorf("%s: expected numeric value", s)
		p.code = 1
		return 0
	}
	if end < len(body) {
		p.c.Errorf("%s: not completely converted", s)
		p.code = 1
	}
	v, err := strconv.ParseUint(body[:end], base, 64)
	if errors.Is(err, strconv.ErrRange) {
		p.c.Errorf("%s: Numerical result out of range", s)
		p.code = 1
		if neg {
			return math.MinInt64
		}
		return math.MaxInt64
	}
	if neg {
		return -int64(v)
	}
	return int64(v)
}

func (p *printer) float(spec string, verb byte, s string, given bool) {
	var v float64
	if given && s != "" {
		if s[0] == '"' || s[0] == '\'' {
			v = float64(p.integer(s))
		} else {
			var err error
			if v, err = strconv.ParseFloat(strings.TrimSpace(s), 64); err != nil && !errors.Is(err, strconv.ErrRange) {
				if n, e2 := strconv.ParseInt(s, 0, 64); e2 == nil {
					v = float64(n)
				} else {
					p.c.Errorf("%s: expected numeric value", s)
					p.code = 1
				}
			}
		}
	}
	if verb == 'a' || verb == 'A' {
		verb += 'x' - 'a'
	}
	if math.IsInf(v, 0) || math.IsNaN(v) {
		name := "inf"
		if math.IsNaN(v) {
			name = "nan"
		} else if v < 0 {
			name = "-inf"
		}
		if verb < 'a' {
			name = strings.ToUpper(name)
		}
		io.WriteString(p.c.Stdout, name)
		return
	}
	if (verb == 'g' || verb == 'G') && !strings.Contains(spec, ".") {
		spec += ".6"
	}
	fmt.Fprintf(p.c.Stdout, spec+string(rune(verb)), v)
}

func shellQuote(s string) string {
	if s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_./:=@%+,-", r))
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Quote returns s as one shell word, in single quotes when it needs any.
func Quote(s string) string { return shellQuote(s) }
