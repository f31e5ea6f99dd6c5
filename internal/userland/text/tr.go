package text

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// Tr is the tr utility. As in coreutils it works on bytes.
func Tr(c *tool.Context) int {
	opts, sets, code, ok := c.Parse(tool.Spec{Short: "cCdst", InOrder: true, Long: []string{"complement|c", "delete|d", "squeeze-repeats|s", "truncate-set1|t"}})
	if !ok {
		return code
	}
	var complement, del, squeeze, truncate bool
	for _, o := range opts {
		switch o.Name {
		case "c", "C":
			complement = true
		case "d":
			del = true
		case "s":
			squeeze = true
		case "t":
			truncate = true
		}
	}
	need := 2
	if del != squeeze || del {
		need = 1
	}
	if del && squeeze {
		need = 2
	}
	limit := 2
	if del && !squeeze {
		limit = 1
	}
	if !c.Operands(sets, need, limit) {
		return 1
	}
	s1, err := trSet(sets[0], -1)
	if err != nil {
		return c.Fail(1, "%v", err)
	}
	if complement {
		var in [256]bool
		for _, b := range s1 {
			in[b] = true
		}
		s1 = nil
		for b := range 256 {
			if !in[b] {
				s1 = append(s1, byte(b))
			}
		}
	}
	var s2 []byte
	if len(sets) == 2 {
		if s2, err = trSet(sets[1], len(s1)); err != nil {
			return c.Fail(1, "%v", err)
		}
	}
	var table [256]byte
	var drop, squash [256]bool
	for b := range table {
		table[b] = byte(b)
	}
	switch {
	case del:
		for _, b := range s1 {
			drop[b] = true
		}
		if squeeze {
			for _, b := range s2 {
				squash[b] = true
			}
		}
	case len(sets) == 1:
		for _, b := range s1 {
			squash[b] = true
		}
	default:
		if len(s2) == 0 {
			return c.Fail(1, "when not truncating set1, string2 must be non-empty")
		}
		for i, b := range s1 {
			if i >= len(s2) {
				if truncate {
					break
				}
				table[b] = s2[len(s2)-1]
				continue
			}
			table[b] = s2[i]
		}
		if squeeze {
			for _, b := range s2 {
				squash[b] = true
			}
		}
	}
	buf := make([]byte, 64<<10)
	out := make([]byte, 0, len(buf))
	last := -1
	for {
		n, err := c.Stdin.Read(buf)
		out = out[:0]
		for _, b := range buf[:n] {
			if drop[b] {
				continue
			}
			b = table[b]
			if squash[b] && last == int(b) {
				continue
			}
			last = int(b)
			out = append(out, b)
		}
		c.Stdout.Write(out)
		if n < len(buf) {
			c.Stdout.Flush()
		}
		if err == io.EOF || c.Stdout.Err() != nil {
			return 0
		}
		if err != nil {
			return c.Fail(1, "read error: %s", tool.Reason(err))
		}
	}
}

// trSet expands a set: ranges, classes, escapes and, when length tells how
// long the first set is, repetitions [c*n].
func trSet(s string, length int) ([]byte, error) {
	var out []byte
	i := 0
	char := func() byte {
		c := s[i]
		i++
		if c != '\\' || i >= len(s) {
			return c
		}
		e := s[i]
		i++
		switch e {
		case 'a':
			return '\a'
		case 'b':
			return '\b'
		case 'f':
			return '\f'
		case 'n':
			return '\n'
		case 'r':
			return '\r'
		case 't':
			return '\t'
		case 'v':
			return '\v'
		}
		if e >= '0' && e <= '7' {
			v, k := int(e-'0'), 1
			for k < 3 && i < len(s) && s[i] >= '0' && s[i] <= '7' && v*8+int(s[i]-'0') < 256 {
				v = v*8 + int(s[i]-'0')
				i++
				k++
			}
			return byte(v)
		}
		return e
	}
	for i < len(s) {
		if s[i] == '[' && i+1 < len(s) {
			if s[i+1] == ':' {
				if end := strings.Index(s[i+2:], ":]"); end >= 0 {
					cls, ok := classBytes(s[i+2 : i+2+end])
					if !ok {
						return nil, fmt.Errorf("invalid character class '%s'", s[i+2:i+2+end])
					}
					out = append(out, cls...)
					i += end + 4
					continue
				}
			}
			if s[i+1] == '=' && i+4 < len(s) && s[i+3:i+5] == "=]" {
				out = append(out, s[i+2])
				i += 5
				continue
			}
			// [c*n]
			save := i
			i++
			c := char()
			if i < len(s) && s[i] == '*' {
				if end := strings.IndexByte(s[i:], ']'); end > 0 && length >= 0 {
					num := s[i+1 : i+end]
					n := 0
					var err error
					if num != "" {
						base := 10
						if num[0] == '0' {
							base = 8
						}
						var v int64
						v, err = strconv.ParseInt(num, base, 32)
						n = int(v)
					}
					if err == nil && n <= 1<<16 {
						if n == 0 {
							n = max(0, length-len(out))
						}
						for range n {
							out = append(out, c)
						}
						i += end + 1
						continue
					}
				}
			}
			i = save
		}
		lo := char()
		if i+1 < len(s) && s[i] == '-' {
			i++
			hi := char()
			if hi < lo {
				return nil, fmt.Errorf("range-endpoints of '%c-%c' are in reverse collating sequence order", lo, hi)
			}
			for b := int(lo); b <= int(hi); b++ {
				out = append(out, byte(b))
			}
			continue
		}
		out = append(out, lo)
	}
	return out, nil
}

func classBytes(name string) ([]byte, bool) {
	var is func(byte) bool
	lower := func(b byte) bool { return b >= 'a' && b <= 'z' }
	upper := func(b byte) bool { return b >= 'A' && b <= 'Z' }
	digit := func(b byte) bool { return b >= '0' && b <= '9' }
	graph := func(b byte) bool { return b > 32 && b < 127 }
	switch name {
	case "lower":
		is = lower
	case "upper":
		is = upper
	case "digit":
		is = digit
	case "alpha":
		is = func(b byte) bool { return lower(b) || upper(b) }
	case "alnum":
		is = func(b byte) bool { return lower(b) || upper(b) || digit(b) }
	case "space":
		is = func(b byte) bool { return b == ' ' || b >= 9 && b <= 13 }
	case "blank":
		is = func(b byte) bool { return b == ' ' || b == '\t' }
	case "punct":
		is = func(b byte) bool { return graph(b) && !lower(b) && !upper(b) && !digit(b) }
	case "cntrl":
		is = func(b byte) bool { return b < 32 || b == 127 }
	case "print":
		is = func(b byte) bool { return graph(b) || b == ' ' }
	case "graph":
		is = graph
	case "xdigit":
		is = func(b byte) bool { return digit(b) || b >= 'a' && b <= 'f' || b >= 'A' && b <= 'F' }
	default:
		return nil, false
	}
	var out []byte
	for b := range 256 {
		if is(byte(b)) {
			out = append(out, byte(b))
		}
	}
	return out, true
}
