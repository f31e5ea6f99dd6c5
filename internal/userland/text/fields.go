package text

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// span is a range of field or byte numbers from 1; hi < 0 has no end.
type span struct{ lo, hi int }

func parseSpans(list string) ([]span, error) {
	var out []span
	for _, part := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		lo, hi, ranged := strings.Cut(part, "-")
		s := span{1, -1}
		var err error
		if lo != "" {
			if s.lo, err = strconv.Atoi(lo); err != nil {
				return nil, fmt.Errorf("invalid field value '%s'", lo)
			}
		}
		switch {
		case !ranged:
			s.hi = s.lo
		case hi != "":
			if s.hi, err = strconv.Atoi(hi); err != nil {
				return nil, fmt.Errorf("invalid field value '%s'", hi)
			}
			if s.hi < s.lo {
				return nil, fmt.Errorf("invalid decreasing range")
			}
		case lo == "":
			return nil, fmt.Errorf("invalid range with no endpoint: -")
		}
		if s.lo < 1 {
			return nil, fmt.Errorf("fields are numbered from 1")
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("you must specify a list of bytes, characters, or fields")
	}
	return out, nil
}

// Cut is the cut utility.
func Cut(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Short: "b:c:f:d:sznw", Long: []string{"bytes=|b", "characters=|c", "fields=|f", "delimiter=|d", "only-delimited|s", "zero-terminated|z", "complement", "output-delimiter="}})
	if !ok {
		return code
	}
	mode, list := byte(0), ""
	delim, only, eol, complement := "\t", false, byte('\n'), false
	var outDelim *string
	for _, o := range opts {
		switch o.Name {
		case "b", "c", "f":
			if mode != 0 {
				return c.Fail(1, "only one list may be specified")
			}
			mode, list = o.Name[0], o.Arg
		case "d":
			delim = o.Arg
			if delim == "" {
				delim = "\x00"
			}
			if len(delim) > 1 && utf8.RuneCountInString(delim) > 1 {
				return c.Fail(1, "the delimiter must be a single character")
			}
		case "s":
			only = true
		case "z":
			eol = 0
		case "complement":
			complement = true
		case "output-delimiter":
			outDelim = &o.Arg
		}
	}
	if mode == 0 {
		return c.Fail(1, "you must specify a list of bytes, characters, or fields")
	}
	spans, err := parseSpans(list)
	if err != nil {
		return c.Fail(1, "%v", err)
	}
	wanted := func(n int) bool {
		for _, s := range spans {
			if n >= s.lo && (s.hi < 0 || n <= s.hi) {
				return !complement
			}
		}
		return complement
	}
	sep := delim
	if outDelim != nil {
		sep = *outDelim
	}
	chars := mode == 'c' && UTF8()
	return c.Inputs(files, func(_ string, r io.Reader) error {
		return tool.Lines(r, eol, func(line []byte, _ bool) bool {
			if mode == 'f' {
				if !bytes.Contains(line, []byte(delim)) {
					if only {
						return true
					}
					c.Stdout.Write(line)
				} else {
					first := true
					for n := 1; ; n++ {
						f, rest, more := bytes.Cut(line, []byte(delim))
						if wanted(n) {
							if !first {
								c.Stdout.WriteString(sep)
							}
							first = false
							c.Stdout.Write(f)
						}
						if !more {
							break
						}
						line = rest
					}
				}
			} else {
				last := 0
				for n := 1; len(line) > 0; n++ {
					k := 1
					if chars {
						_, k = utf8.DecodeRune(line)
					}
					if wanted(n) {
						if outDelim != nil && last > 0 && last != n-1 {
							c.Stdout.WriteString(sep)
						}
						last = n
						c.Stdout.Write(line[:k])
					}
					line = line[k:]
				}
			}
			c.Stdout.WriteByte(eol)
			return c.Stdout.Err() == nil
		})
	})
}

// Wc counts lines, words, characters and bytes.
func Wc(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Short: "lwcmL", Long: []string{"lines|l", "words|w", "bytes|c", "chars|m", "max-line-length|L"}})
	if !ok {
		return code
	}
	var want [5]bool // lines, words, chars, bytes, longest
	for _, o := range opts {
		want[strings.Index("lwmcL", o.Name)] = true
	}
	if len(opts) == 0 {
		want[0], want[1], want[3] = true, true, true
	}
	type result struct {
		name string
		n    [5]int64
	}
	var results []result
	var total [5]int64
	var sizes int64
	regular := true
	utf := UTF8()
	code = c.Inputs(files, func(name string, r io.Reader) error {
		if f, ok := r.(*os.File); ok {
			if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
				sizes += st.Size()
			} else {
				regular = false
			}
		} else {
			regular = false
		}
		var n [5]int64
		err := countInto(r, &n, utf, want)
		if len(files) == 0 {
			name = ""
		}
		results = append(results, result{name, n})
		for i := range n {
			if i == 4 {
				total[i] = max(total[i], n[i])
			} else {
				total[i] += n[i]
			}
		}
		return err
	})
	if len(files) > 1 {
		results = append(results, result{"total", total})
	}
	columns := 0
	for _, w := range want {
		if w {
			columns++
		}
	}
	width := 1
	if columns > 1 || len(results) > 1 {
		width = len(strconv.FormatInt(max(sizes, total[3]), 10))
		if !regular && columns > 1 {
			width = max(width, 7)
		}
	}
	for _, r := range results {
		sep := ""
		for i, w := range want {
			if w {
				c.Printf("%s%*d", sep, width, r.n[i])
				sep = " "
			}
		}
		if r.name != "" {
			c.Printf(" %s", r.name)
		}
		c.Stdout.WriteByte('\n')
	}
	return code
}

func countInto(r io.Reader, n *[5]int64, utf bool, want [5]bool) error {
	buf := make([]byte, 64<<10)
	inWord := false
	detail := want[1] || want[2] || want[4]
	var col int64
	keep := 0 // bytes of an unfinished character at the start of buf
	for {
		k, err := r.Read(buf[keep:])
		n[3] += int64(k)
		data := buf[:keep+k]
		n[0] += int64(bytes.Count(data[keep:], []byte{'\n'}))
		keep = 0
		for i := 0; detail && i < len(data); {
			b := data[i]
			size := 1
			if utf && b >= utf8.RuneSelf {
				if !utf8.FullRune(data[i:]) && err == nil {
					keep = copy(buf, data[i:])
					break
				}
				var ru rune
				ru, size = utf8.DecodeRune(data[i:])
				if ru == utf8.RuneError && size == 1 {
					i++
					continue
				}
			}
			n[2]++
			switch b {
			case '\n', '\r', '\f':
				n[4] = max(n[4], col)
				col, inWord = 0, false
			case '\t':
				col += 8 - col%8
				inWord = false
			case ' ', '\v':
				col++
				inWord = false
			default:
				col++
				if !inWord {
					n[1]++
				}
				inWord = true
			}
			i += size
		}
		if err != nil {
			n[4] = max(n[4], col)
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}

// Paste joins lines of files.
func Paste(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Short: "d:sz", Long: []string{"delimiters=|d", "serial|s", "zero-terminated|z"}})
	if !ok {
		return code
	}
	delims, serial, eol := []string{"\t"}, false, byte('\n')
	for _, o := range opts {
		switch o.Name {
		case "d":
			delims = pasteDelims(o.Arg)
		case "s":
			serial = true
		case "z":
			eol = 0
		}
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	if serial {
		return c.Inputs(files, func(_ string, r io.Reader) error {
			n := 0
			err := tool.Lines(r, eol, func(line []byte, _ bool) bool {
				if n > 0 {
					c.Stdout.WriteString(delims[(n-1)%len(delims)])
				}
				n++
				c.Stdout.Write(line)
				return c.Stdout.Err() == nil
			})
			c.Stdout.WriteByte(eol)
			return err
		})
	}
	var in []*lineReader
	shared := newLineReader(c.Stdin, eol)
	for _, name := range files {
		if name == "-" {
			in = append(in, shared)
			continue
		}
		f, err := tool.OpenFile(name)
		if err != nil {
			return c.Fail(1, "%s: %s", name, tool.Reason(err))
		}
		defer f.Close()
		in = append(in, newLineReader(f, eol))
	}
	for c.Stdout.Err() == nil {
		var row []byte
		any := false
		for i, r := range in {
			line, ok := r.next()
			any = any || ok
			if i > 0 {
				row = append(row, delims[(i-1)%len(delims)]...)
			}
			row = append(row, line...)
		}
		if !any {
			break
		}
		c.Stdout.Write(append(row, eol))
	}
	for i, r := range in {
		if r.err != nil {
			c.Errorf("%s: %s", files[i], tool.Reason(r.err))
			code = 1
		}
	}
	return code
}

func pasteDelims(s string) []string {
	if s == "" {
		return []string{""}
	}
	var out []string
	for i := 0; i < len(s); {
		if s[i] == '\\' && i+1 < len(s) {
			switch s[i+1] {
			case 'n':
				out = append(out, "\n")
			case 't':
				out = append(out, "\t")
			case '0':
				out = append(out, "")
			default:
				out = append(out, s[i+1:i+2])
			}
			i += 2
			continue
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		out = append(out, s[i:i+n])
		i += n
	}
	return out
}

// Comm compares two sorted files line by line.
func Comm(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Short: "123z", Long: []string{"zero-terminated|z", "output-delimiter="}})
	if !ok {
		return code
	}
	var hide [4]bool
	sep, eol := "\t", byte('\n')
	for _, o := range opts {
		switch o.Name {
		case "z":
			eol = 0
		case "output-delimiter":
			sep = o.Arg
		default:
			hide[o.Name[0]-'0'] = true
		}
	}
	if !c.Operands(files, 2, 2) {
		return 1
	}
	var in [2]*lineReader
	for i, name := range files {
		r, err := c.Open(name)
		if err != nil {
			return c.Fail(1, "%s: %s", name, tool.Reason(err))
		}
		defer r.Close()
		in[i] = newLineReader(r, eol)
	}
	put := func(col int, line []byte) {
		if hide[col] {
			return
		}
		for i := 1; i < col; i++ {
			if !hide[i] {
				c.Stdout.WriteString(sep)
			}
		}
		c.Stdout.Write(line)
		c.Stdout.WriteByte(eol)
	}
	a, okA := in[0].next()
	b, okB := in[1].next()
	for (okA || okB) && c.Stdout.Err() == nil {
		var cmp int
		switch {
		case !okA:
			cmp = 1
		case !okB:
			cmp = -1
		default:
			cmp = bytes.Compare(a, b)
		}
		switch {
		case cmp < 0:
			put(1, a)
			a, okA = in[0].next()
		case cmp > 0:
			put(2, b)
			b, okB = in[1].next()
		default:
			put(3, a)
			a, okA = in[0].next()
			b, okB = in[1].next()
		}
	}
	for i, r := range in {
		if r.err != nil {
			return c.Fail(1, "%s: %s", files[i], tool.Reason(r.err))
		}
	}
	return 0
}

// Fold breaks long lines.
func Fold(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Short: "w:sb", Digits: true, Long: []string{"width=|w", "spaces|s", "bytes|b"}})
	if !ok {
		return code
	}
	width, spaces, byBytes := 80, false, false
	for _, o := range opts {
		switch o.Name {
		case "w", "NUM":
			var err error
			if width, err = strconv.Atoi(o.Arg); err != nil || width < 1 {
				return c.Fail(1, "invalid number of columns: '%s'", o.Arg)
			}
		case "s":
			spaces = true
		case "b":
			byBytes = true
		}
	}
	return c.Inputs(files, func(_ string, r io.Reader) error {
		return tool.Lines(r, '\n', func(line []byte, terminated bool) bool {
			for len(line) > 0 {
				end, col, brk := 0, 0, 0
				for end < len(line) {
					n := 1
					if !byBytes {
						_, n = utf8.DecodeRune(line[end:])
					}
					w := 1
					if line[end] == '\t' && !byBytes {
						w = 8 - col%8
					}
					if col+w > width && end > 0 {
						break
					}
					col += w
					end += n
					if line[end-1] == ' ' || line[end-1] == '\t' {
						brk = end
					}
				}
				if end < len(line) && spaces && brk > 0 {
					end = brk
				}
				c.Stdout.Write(line[:end])
				line = line[end:]
				if len(line) > 0 {
					c.Stdout.WriteByte('\n')
				}
			}
			if terminated {
				c.Stdout.WriteByte('\n')
			}
			return c.Stdout.Err() == nil
		})
	})
}
