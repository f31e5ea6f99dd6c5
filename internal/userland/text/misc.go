package text

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"math/big"
	"os"
	"strconv"
	"strings"

	"github.com/hutch-sandbox/hutch/internal/userland/regex"
	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// Yes writes a line for ever.
func Yes(c *tool.Context) int {
	line := "y\n"
	if len(c.Args) > 0 {
		line = strings.Join(c.Args, " ") + "\n"
	}
	block := strings.Repeat(line, max(1, 8192/len(line)))
	for c.Stdout.Err() == nil {
		c.Stdout.WriteString(block)
	}
	return 1
}

// Seq prints a sequence of numbers.
func Seq(c *tool.Context) int {
	width, sep, format := false, "\n", ""
	args := c.Args
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && strings.IndexByte("0123456789.", args[0][1]) < 0 {
		a := args[0]
		args = args[1:]
		need := func(short string) (string, bool) {
			if v := strings.TrimPrefix(a, short); v != "" {
				return strings.TrimPrefix(v, "="), true
			}
			if len(args) == 0 {
				c.Errorf("option requires an argument -- '%s'", short[1:])
				return "", false
			}
			v := args[0]
			args = args[1:]
			return v, true
		}
		var ok bool
		switch {
		case a == "--":
			goto done
		case a == "-w" || a == "--equal-width":
			width = true
		case strings.HasPrefix(a, "-s"):
			if sep, ok = need("-s"); !ok {
				return 1
			}
		case strings.HasPrefix(a, "--separator"):
			if sep, ok = need("--separator"); !ok {
				return 1
			}
		case strings.HasPrefix(a, "-f"):
			if format, ok = need("-f"); !ok {
				return 1
			}
		case a == "--help":
			c.Printf("Usage: seq %s\n", c.Usage)
			return 0
		default:
			return c.Fail(1, "invalid option -- '%s'", strings.TrimLeft(a, "-"))
		}
	}
done:
	if !c.Operands(args, 1, 3) {
		return 1
	}
	parse := func(s string) (*big.Rat, int, bool) {
		r, ok := new(big.Rat).SetString(s)
		if !ok || len(s) > 100 || strings.Contains(s, "/") {
			c.Errorf("invalid floating point argument: '%s'", s)
			return nil, 0, false
		}
		_, frac, _ := strings.Cut(s, ".")
		if strings.ContainsAny(s, "eE") {
			frac = ""
		}
		return r, len(frac), true
	}
	first, step := big.NewRat(1, 1), big.NewRat(1, 1)
	prec, p1, p2 := 0, 0, 0
	var ok bool
	last, _, ok := parse(args[len(args)-1])
	if !ok {
		return 1
	}
	if len(args) > 1 {
		if first, p1, ok = parse(args[0]); !ok {
			return 1
		}
	}
	if len(args) > 2 {
		if step, p2, ok = parse(args[1]); !ok {
			return 1
		}
	}
	if step.Sign() == 0 {
		return c.Fail(1, "invalid Zero increment value: '%s'", args[1])
	}
	prec = max(p1, p2)
	pad := 0
	if width {
		pad = max(len(first.FloatString(prec)), len(last.FloatString(prec)))
	}
	show := func(r *big.Rat) string {
		if format != "" {
			f, _ := r.Float64()
			return fmt.Sprintf(format, f)
		}
		s := r.FloatString(prec)
		if len(s) < pad {
			neg := strings.HasPrefix(s, "-")
			s = strings.Repeat("0", pad-len(s)) + strings.TrimPrefix(s, "-")
			if neg {
				s = "-" + s
			}
		}
		return s
	}
	if format != "" && (strings.Count(strings.ReplaceAll(format, "%%", ""), "%") != 1 || !strings.ContainsAny(format, "efgEFG")) {
		return c.Fail(1, "format '%s' has no %% directive", format)
	}
	some := false
	if first.IsInt() && step.IsInt() && last.IsInt() && prec == 0 && pad == 0 && format == "" && first.Num().IsInt64() && step.Num().IsInt64() && last.Num().IsInt64() {
		a, st, z := first.Num().Int64(), step.Num().Int64(), last.Num().Int64()
		var buf []byte
		for v := a; st > 0 && v <= z || st < 0 && v >= z; {
			buf = buf[:0]
			if some {
				buf = append(buf, sep...)
			}
			some = true
			c.Stdout.Write(strconv.AppendInt(buf, v, 10))
			next := v + st
			if c.Stdout.Err() != nil || (st > 0) != (next > v) {
				break
			}
			v = next
		}
	} else {
		for v := first; step.Sign() > 0 && v.Cmp(last) <= 0 || step.Sign() < 0 && v.Cmp(last) >= 0; v = new(big.Rat).Add(v, step) {
			if some {
				c.Stdout.WriteString(sep)
			}
			some = true
			c.Stdout.WriteString(show(v))
			if c.Stdout.Err() != nil {
				break
			}
		}
	}
	if some {
		c.Stdout.WriteByte('\n')
	}
	return 0
}

// Base64 encodes or decodes.
func Base64(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "diw:", Long: []string{"decode|d", "ignore-garbage|i", "wrap=|w"}})
	if !ok {
		return code
	}
	decode, garbage, wrap := false, false, 76
	for _, o := range opts {
		switch o.Name {
		case "d":
			decode = true
		case "i":
			garbage = true
		case "w":
			var err error
			if wrap, err = strconv.Atoi(o.Arg); err != nil || wrap < 0 {
				return c.Fail(1, "invalid wrap size: '%s'", o.Arg)
			}
		}
	}
	if !c.Operands(ops, 0, 1) {
		return 1
	}
	return c.Inputs(ops, func(_ string, r io.Reader) error {
		if decode {
			_, err := io.Copy(c.Stdout, base64.NewDecoder(base64.StdEncoding, &alphabetReader{r: r, lax: garbage}))
			if _, bad := err.(base64.CorruptInputError); bad || err == io.ErrUnexpectedEOF {
				c.Errorf("invalid input")
				code = 1
				return nil
			}
			return err
		}
		w := &wrapper{w: c.Stdout, width: wrap}
		enc := base64.NewEncoder(base64.StdEncoding, w)
		_, err := io.Copy(enc, r)
		enc.Close()
		if w.col > 0 && wrap > 0 {
			c.Stdout.WriteByte('\n')
		}
		return err
	}) | code
}

// alphabetReader drops newlines and, when lax, everything else that is not of
// the alphabet.
type alphabetReader struct {
	r   io.Reader
	lax bool
}

func (a *alphabetReader) Read(p []byte) (int, error) {
	for {
		n, err := a.r.Read(p)
		k := 0
		for _, b := range p[:n] {
			if b == '\n' || a.lax && !(b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z' || b == '+' || b == '/' || b == '=') {
				continue
			}
			p[k] = b
			k++
		}
		if k > 0 || err != nil {
			return k, err
		}
	}
}

type wrapper struct {
	w          io.Writer
	width, col int
}

func (w *wrapper) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		n := len(p)
		if w.width > 0 {
			n = min(n, w.width-w.col)
		}
		if _, err := w.w.Write(p[:n]); err != nil {
			return 0, err
		}
		w.col += n
		p = p[n:]
		if w.col == w.width {
			w.w.Write([]byte{'\n'})
			w.col = 0
		}
	}
	return total, nil
}

// Sum is md5sum, sha1sum, sha256sum and sha512sum by their names.
func Sum(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "bctwz", Long: []string{"binary|b", "check|c", "text|t", "warn|w", "quiet", "status", "tag", "zero|z", "ignore-missing", "strict"}})
	if !ok {
		return code
	}
	var check, quiet, status, tag, zero, skip, binary bool
	for _, o := range opts {
		switch o.Name {
		case "c":
			check = true
		case "quiet":
			quiet = true
		case "status":
			status = true
		case "tag":
			tag = true
		case "z":
			zero = true
		case "ignore-missing":
			skip = true
		case "b":
			binary = true
		}
	}
	newHash := map[string]func() hash.Hash{"md5sum": md5.New, "sha1sum": sha1.New, "sha224sum": sha256.New224, "sha256sum": sha256.New, "sha384sum": sha512.New384, "sha512sum": sha512.New}[c.Name]
	if newHash == nil {
		return c.Fail(1, "no such digest")
	}
	digest := func(r io.Reader) (string, error) {
		h := newHash()
		_, err := io.Copy(h, r)
		return hex.EncodeToString(h.Sum(nil)), err
	}
	if !check {
		return c.Inputs(ops, func(name string, r io.Reader) error {
			sum, err := digest(r)
			if err != nil {
				return err
			}
			end := "\n"
			esc := ""
			if zero {
				end = "\x00"
			} else if strings.ContainsAny(name, "\\\n") {
				esc = "\\"
				name = strings.NewReplacer("\\", "\\\\", "\n", "\\n").Replace(name)
			}
			mode := " "
			if binary {
				mode = "*"
			}
			if tag {
				c.Printf("%s%s (%s) = %s%s", esc, strings.ToUpper(strings.TrimSuffix(c.Name, "sum")), name, sum, end)
			} else {
				c.Printf("%s%s %s%s%s", esc, sum, mode, name, end)
			}
			return nil
		})
	}
	bad, missing, formatted, malformed := 0, 0, 0, 0
	code = c.Inputs(ops, func(list string, r io.Reader) error {
		return tool.Lines(r, '\n', func(line []byte, _ bool) bool {
			want, name, ok := parseSum(string(line), newHash().Size())
			if !ok {
				if len(line) > 0 {
					malformed++
				}
				return true
			}
			formatted++
			f, err := c.Open(name)
			if err != nil {
				if skip && os.IsNotExist(err) {
					return true
				}
				c.Errorf("%s: %s", name, tool.Reason(err))
				if !status {
					c.Printf("%s: FAILED open or read\n", name)
				}
				missing++
				return true
			}
			got, err := digest(f)
			f.Close()
			switch {
			case err != nil:
				c.Errorf("%s: %s", name, tool.Reason(err))
				missing++
			case !strings.EqualFold(got, want):
				bad++
				if !status {
					c.Printf("%s: FAILED\n", name)
				}
			case !quiet && !status:
				c.Printf("%s: OK\n", name)
			}
			return true
		})
	})
	if formatted == 0 && code == 0 {
		name := "standard input"
		if len(ops) > 0 {
			name = ops[0]
		}
		return c.Fail(1, "%s: no properly formatted checksum lines found", name)
	}
	if !status {
		warn := func(n int, one, many string) {
			if n == 1 {
				c.Errorf("WARNING: 1 %s", one)
			} else if n > 1 {
				c.Errorf("WARNING: %d %s", n, many)
			}
		}
		warn(malformed, "line is improperly formatted", "lines are improperly formatted")
		warn(missing, "listed file could not be read", "listed files could not be read")
		warn(bad, "computed checksum did NOT match", "computed checksums did NOT match")
	}
	if bad+missing > 0 {
		return 1
	}
	return code
}

func parseSum(line string, size int) (sum, name string, ok bool) {
	esc := strings.HasPrefix(line, "\\")
	line = strings.TrimPrefix(line, "\\")
	if i := strings.Index(line, " ("); i > 0 {
		if j := strings.LastIndex(line, ") = "); j > i {
			return line[j+4:], line[i+2 : j], len(line[j+4:]) == 2*size
		}
	}
	if len(line) < 2*size+3 || line[2*size] != ' ' || line[2*size+1] != ' ' && line[2*size+1] != '*' {
		return "", "", false
	}
	sum, name = line[:2*size], line[2*size+2:]
	if _, err := hex.DecodeString(sum); err != nil {
		return "", "", false
	}
	if esc {
		name = strings.NewReplacer("\\\\", "\\", "\\n", "\n").Replace(name)
	}
	return sum, name, true
}

// Strings prints the printable parts of files.
func Strings(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Short: "an:t:f", Digits: true, Long: []string{"all|a", "bytes=|n", "radix=|t", "print-file-name|f"}})
	if !ok {
		return code
	}
	least, radix, names := 4, "", false
	for _, o := range opts {
		switch o.Name {
		case "n", "NUM":
			var err error
			if least, err = strconv.Atoi(o.Arg); err != nil || least < 1 || least > 1<<20 {
				return c.Fail(1, "invalid minimum string length %s", o.Arg)
			}
		case "t":
			radix = o.Arg
			if radix != "d" && radix != "o" && radix != "x" {
				return c.Fail(1, "invalid radix %s", o.Arg)
			}
		case "f":
			names = true
		}
	}
	return c.Inputs(files, func(name string, r io.Reader) error {
		br := bufio.NewReaderSize(r, 64<<10)
		var run []byte
		long := false
		for off := int64(0); ; off++ {
			b, err := br.ReadByte()
			if err == nil && (b >= 32 && b < 127 || b == '\t') {
				if long {
					c.Stdout.WriteByte(b)
					continue
				}
				if run = append(run, b); len(run) == least {
					if names {
						c.Printf("%s: ", name)
					}
					if radix != "" {
						c.Printf("%7"+radix+" ", off-int64(least)+1)
					}
					c.Stdout.Write(run)
					long = true
				}
				continue
			}
			if long {
				c.Stdout.WriteByte('\n')
			}
			run, long = run[:0], false
			if err == io.EOF || c.Stdout.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
}

// Split cuts a file into pieces.
func Split(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "l:b:a:dn:", Digits: true, Long: []string{"lines=|l", "bytes=|b", "suffix-length=|a", "numeric-suffixes|d", "additional-suffix="}})
	if !ok {
		return code
	}
	lines, size, width, numeric, extra := int64(1000), int64(0), 2, false, ""
	for _, o := range opts {
		var err error
		switch o.Name {
		case "l", "NUM":
			lines, err = strconv.ParseInt(o.Arg, 10, 64)
			if lines < 1 {
				err = strconv.ErrRange
			}
		case "b":
			size, err = tool.ParseSize(o.Arg)
			if size < 1 {
				err = strconv.ErrRange
			}
		case "a":
			width, err = strconv.Atoi(o.Arg)
			if width < 1 || width > 20 {
				err = strconv.ErrRange
			}
		case "d":
			numeric = true
		case "n":
			return c.Fail(1, "option -n is not supported; use -l or -b")
		case "additional-suffix":
			extra = o.Arg
		}
		if err != nil {
			return c.Fail(1, "invalid number: '%s'", o.Arg)
		}
	}
	if !c.Operands(ops, 0, 2) {
		return 1
	}
	prefix := "x"
	if len(ops) == 2 {
		prefix = ops[1]
	}
	if len(ops) > 0 {
		ops = ops[:1]
	}
	piece := 0
	suffix := func() (string, bool) {
		n, base, digits := piece, 26, "abcdefghijklmnopqrstuvwxyz"
		if numeric {
			base, digits = 10, "0123456789"
		}
		b := make([]byte, width)
		for i := width - 1; i >= 0; i-- {
			b[i] = digits[n%base]
			n /= base
		}
		return string(b), n == 0
	}
	var out *os.File
	open := func() error {
		s, ok := suffix()
		if !ok {
			return fmt.Errorf("output file suffixes exhausted")
		}
		piece++
		var err error
		out, err = os.Create(prefix + s + extra)
		return err
	}
	return c.Inputs(ops, func(_ string, r io.Reader) error {
		br := bufio.NewReaderSize(r, 64<<10)
		for {
			if _, err := br.Peek(1); err != nil {
				if err == io.EOF {
					return nil
				}
				return err
			}
			if err := open(); err != nil {
				return err
			}
			var err error
			if size > 0 {
				_, err = io.CopyN(out, br, size)
			} else {
				w := bufio.NewWriter(out)
				for n := int64(0); n < lines && err == nil; {
					var l []byte
					l, err = br.ReadSlice('\n')
					w.Write(l)
					if err == nil {
						n++
					} else if err == bufio.ErrBufferFull {
						err = nil
					}
				}
				if e := w.Flush(); e != nil {
					err = e
				}
			}
			if e := out.Close(); e != nil && (err == nil || err == io.EOF) {
				err = e
			}
			if err != nil && err != io.EOF {
				return err
			}
		}
	})
}

// Expr evaluates an expression given as arguments.
func Expr(c *tool.Context) int {
	args := c.Args
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return c.Fail(2, "missing operand")
	}
	e := &expr{args: args}
	v, err := e.or(true)
	if err == nil && e.i < len(args) {
		err = fmt.Errorf("syntax error: unexpected argument '%s'", args[e.i])
	}
	if err != nil {
		return c.Fail(2, "%v", err)
	}
	c.Printf("%s\n", v)
	if isZero(v) {
		return 1
	}
	return 0
}

type expr struct {
	args  []string
	i     int
	depth int
}

func isZero(v string) bool {
	n, ok := new(big.Int).SetString(v, 10)
	return v == "" || ok && n.Sign() == 0
}

func (e *expr) take(ops ...string) string {
	if e.i < len(e.args) {
		for _, o := range ops {
			if e.args[e.i] == o {
				e.i++
				return o
			}
		}
	}
	return ""
}

func (e *expr) or(live bool) (string, error) {
	l, err := e.and(live)
	for err == nil && e.take("|") != "" {
		var r string
		r, err = e.and(live && isZero(l))
		if isZero(l) {
			if l = r; isZero(r) {
				l = "0"
			}
		}
	}
	return l, err
}

func (e *expr) and(live bool) (string, error) {
	l, err := e.compare(live)
	for err == nil && e.take("&") != "" {
		var r string
		r, err = e.compare(live && !isZero(l))
		if isZero(l) || isZero(r) {
			l = "0"
		}
	}
	return l, err
}

func (e *expr) compare(live bool) (string, error) {
	l, err := e.sum(live)
	for err == nil {
		op := e.take("=", "==", "!=", "<", "<=", ">", ">=")
		if op == "" {
			break
		}
		var r string
		if r, err = e.sum(live); err != nil {
			break
		}
		a, okA := new(big.Int).SetString(l, 10)
		b, okB := new(big.Int).SetString(r, 10)
		cmp := strings.Compare(l, r)
		if okA && okB {
			cmp = a.Cmp(b)
		}
		res := false
		switch op {
		case "=", "==":
			res = cmp == 0
		case "!=":
			res = cmp != 0
		case "<":
			res = cmp < 0
		case "<=":
			res = cmp <= 0
		case ">":
			res = cmp > 0
		case ">=":
			res = cmp >= 0
		}
		l = "0"
		if res {
			l = "1"
		}
	}
	return l, err
}

func (e *expr) arith(next func(bool) (string, error), live bool, ops ...string) (string, error) {
	l, err := next(live)
	for err == nil {
		op := e.take(ops...)
		if op == "" {
			break
		}
		var r string
		if r, err = next(live); err != nil || !live {
			continue
		}
		a, okA := new(big.Int).SetString(l, 10)
		b, okB := new(big.Int).SetString(r, 10)
		if !okA || !okB {
			return "", fmt.Errorf("non-integer argument")
		}
		if (op == "/" || op == "%") && b.Sign() == 0 {
			return "", fmt.Errorf("division by zero")
		}
		switch op {
		case "+":
			a.Add(a, b)
		case "-":
			a.Sub(a, b)
		case "*":
			a.Mul(a, b)
		case "/":
			a.Quo(a, b)
		case "%":
			a.Rem(a, b)
		}
		l = a.String()
	}
	return l, err
}

func (e *expr) sum(live bool) (string, error) { return e.arith(e.product, live, "+", "-") }

func (e *expr) product(live bool) (string, error) { return e.arith(e.match, live, "*", "/", "%") }

func (e *expr) match(live bool) (string, error) {
	l, err := e.primary(live)
	for err == nil && e.take(":") != "" {
		var r string
		if r, err = e.primary(live); err == nil {
			l, err = exprMatch(l, r)
		}
	}
	return l, err
}

func exprMatch(text, pattern string) (string, error) {
	re, err := regex.Compile("^"+strings.TrimPrefix(pattern, "^"), regex.Flags{})
	if err != nil {
		return "", err
	}
	m := re.Find([]byte(text))
	switch {
	case re.Groups() > 0 && (m == nil || m[2] < 0):
		return "", nil
	case re.Groups() > 0:
		return text[m[2]:m[3]], nil
	case m == nil:
		return "0", nil
	}
	return strconv.Itoa(len([]rune(text[m[0]:m[1]]))), nil
}

func (e *expr) primary(live bool) (string, error) {
	if e.i >= len(e.args) {
		return "", fmt.Errorf("syntax error: missing argument after '%s'", e.args[len(e.args)-1])
	}
	if e.depth++; e.depth > 1000 {
		return "", fmt.Errorf("expression nested too deeply")
	}
	defer func() { e.depth-- }()
	a := e.args[e.i]
	e.i++
	switch a {
	case "(":
		v, err := e.or(live)
		if err == nil && e.take(")") == "" {
			err = fmt.Errorf("syntax error: expecting ')'")
		}
		return v, err
	case ")":
		return "", fmt.Errorf("syntax error: unexpected ')'")
	case "+":
		if e.i < len(e.args) {
			e.i++
			return e.args[e.i-1], nil
		}
	case "length", "match", "index", "substr":
		need := map[string]int{"length": 1, "match": 2, "index": 2, "substr": 3}[a]
		var v [3]string
		for k := range need {
			var err error
			if v[k], err = e.primary(live); err != nil {
				return "", err
			}
		}
		switch a {
		case "length":
			return strconv.Itoa(len([]rune(v[0]))), nil
		case "match":
			return exprMatch(v[0], v[1])
		case "index":
			return strconv.Itoa(strings.IndexAny(v[0], v[1]) + 1), nil
		}
		pos, e1 := strconv.Atoi(v[1])
		n, e2 := strconv.Atoi(v[2])
		r := []rune(v[0])
		if e1 != nil || e2 != nil || pos < 1 || n < 1 || pos > len(r) {
			return "", nil
		}
		return string(r[pos-1 : min(len(r), pos-1+n)]), nil
	}
	return a, nil
}

// Shuf prints lines in random order.
func Shuf(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "n:ei:", Long: []string{"head-count=|n", "echo|e", "input-range=|i"}})
	if !ok {
		return code
	}
	limit, echo := -1, false
	var lines [][]byte
	ranged := false
	for _, o := range opts {
		switch o.Name {
		case "n":
			var err error
			if limit, err = strconv.Atoi(o.Arg); err != nil || limit < 0 {
				return c.Fail(1, "invalid line count: '%s'", o.Arg)
			}
		case "e":
			echo = true
		case "i":
			lo, hi, _ := strings.Cut(o.Arg, "-")
			a, e1 := strconv.Atoi(lo)
			b, e2 := strconv.Atoi(hi)
			if e1 != nil || e2 != nil || b < a || b-a > 1<<24 {
				return c.Fail(1, "invalid input range: '%s'", o.Arg)
			}
			ranged = true
			for v := a; v <= b; v++ {
				lines = append(lines, strconv.AppendInt(nil, int64(v), 10))
			}
		}
	}
	switch {
	case ranged:
	case echo:
		for _, o := range ops {
			lines = append(lines, []byte(o))
		}
	default:
		code = c.Inputs(ops, func(_ string, r io.Reader) error {
			return tool.Lines(r, '\n', func(l []byte, _ bool) bool {
				lines = append(lines, bytes.Clone(l))
				return true
			})
		})
	}
	shuffle(lines)
	for i, l := range lines {
		if limit >= 0 && i >= limit {
			break
		}
		c.Stdout.Write(l)
		c.Stdout.WriteByte('\n')
	}
	return code
}
