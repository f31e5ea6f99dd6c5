package text

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// odFormat is one -t of od.
type odFormat struct {
	kind  byte // a c d o u x f
	size  int
	chars bool // z: show characters at the end
	width int
}

func odFormats(s string) ([]odFormat, error) {
	var out []odFormat
	for i := 0; i < len(s); {
		f := odFormat{kind: s[i]}
		i++
		switch f.kind {
		case 'a', 'c':
			f.size = 1
		case 'd', 'o', 'u', 'x', 'f':
			f.size = 4
			if f.kind == 'f' {
				f.size = 8
			}
			j := i
			for i < len(s) && s[i] >= '0' && s[i] <= '9' {
				i++
			}
			if i > j {
				f.size, _ = strconv.Atoi(s[j:i])
			} else if i < len(s) {
				if k := strings.IndexByte("CSILFD", s[i]); k >= 0 {
					f.size = []int{1, 2, 4, 8, 4, 8}[k]
					i++
				}
			}
			if f.kind == 'f' && f.size != 4 && f.size != 8 || f.size != 1 && f.size != 2 && f.size != 4 && f.size != 8 {
				return nil, fmt.Errorf("invalid type string '%s'", s)
			}
		default:
			return nil, fmt.Errorf("invalid character '%c' in type string '%s'", f.kind, s)
		}
		if i < len(s) && s[i] == 'z' {
			f.chars = true
			i++
		}
		switch f.kind {
		case 'a', 'c':
			f.width = 3
		case 'o':
			f.width = []int{0, 3, 6, 0, 11, 0, 0, 0, 22}[f.size]
		case 'x':
			f.width = 2 * f.size
		case 'u':
			f.width = []int{0, 3, 5, 0, 10, 0, 0, 0, 20}[f.size]
		case 'd':
			f.width = []int{0, 4, 6, 0, 11, 0, 0, 0, 20}[f.size]
		case 'f':
			f.width = []int{0, 0, 0, 0, 15, 0, 0, 0, 24}[f.size]
		}
		out = append(out, f)
	}
	return out, nil
}

// Od dumps files in octal and other forms.
func Od(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Short: "A:t:vj:N:w::abcdosxiS:", Long: []string{"address-radix=|A", "format=|t", "output-duplicates|v", "skip-bytes=|j", "read-bytes=|N", "width?|w"}})
	if !ok {
		return code
	}
	radix, verbose, skip, limit, width := "o", false, int64(0), int64(-1), 16
	var formats []odFormat
	for _, o := range opts {
		var err error
		spec := ""
		switch o.Name {
		case "A":
			radix = o.Arg
			if len(radix) != 1 || !strings.Contains("doxn", radix) {
				return c.Fail(1, "invalid output address radix '%s'", o.Arg)
			}
		case "t":
			spec = o.Arg
		case "v":
			verbose = true
		case "j":
			skip, err = tool.ParseSize(o.Arg)
		case "N":
			limit, err = tool.ParseSize(o.Arg)
		case "w":
			width = 32
			if o.Arg != "" {
				width, err = strconv.Atoi(o.Arg)
			}
			if width < 1 || width > 4096 {
				return c.Fail(1, "invalid width '%s'", o.Arg)
			}
		case "S":
			return c.Fail(1, "option -S is not supported; use strings")
		default:
			spec = map[string]string{"a": "a", "b": "o1", "c": "c", "d": "u2", "o": "o2", "s": "d2", "x": "x2", "i": "d4"}[o.Name]
		}
		if err == nil && spec != "" {
			var fs []odFormat
			fs, err = odFormats(spec)
			formats = append(formats, fs...)
		}
		if err != nil {
			return c.Fail(1, "%v", err)
		}
	}
	if len(formats) == 0 {
		formats, _ = odFormats("o2")
	}
	// Columns of all formats line up on the widest byte.
	cell := 0
	for _, f := range formats {
		cell = max(cell, (f.width+1+f.size-1)/f.size)
	}
	d := &dumper{c: c, formats: formats, cell: cell, radix: radix, verbose: verbose, width: width, addr: skip, single: len(formats) == 1}
	var readers []io.Reader
	if len(files) == 0 {
		files = []string{"-"}
	}
	for _, name := range files {
		r, err := c.Open(name)
		if err != nil {
			c.Errorf("%s: %s", name, tool.Reason(err))
			code = 1
			continue
		}
		defer r.Close()
		readers = append(readers, r)
	}
	r := io.MultiReader(readers...)
	if n, err := io.CopyN(io.Discard, r, skip); err != nil && n < skip {
		return c.Fail(1, "cannot skip past end of combined input")
	}
	if limit >= 0 {
		r = io.LimitReader(r, limit)
	}
	if err := d.run(r); err != nil {
		return c.Fail(1, "read error: %s", tool.Reason(err))
	}
	return code
}

type dumper struct {
	c       *tool.Context
	formats []odFormat
	cell    int
	single  bool
	radix   string
	verbose bool
	width   int
	addr    int64
}

func (d *dumper) address() string {
	switch d.radix {
	case "d":
		return fmt.Sprintf("%07d", d.addr)
	case "x":
		return fmt.Sprintf("%06x", d.addr)
	case "n":
		return ""
	}
	return fmt.Sprintf("%07o", d.addr)
}

func (d *dumper) run(r io.Reader) error {
	buf := make([]byte, d.width)
	last, starred := "", false
	for d.c.Stdout.Err() == nil {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			row := string(buf[:n])
			if row == last && n == d.width && !d.verbose {
				if !starred {
					d.c.Stdout.WriteString("*\n")
				}
				starred = true
			} else {
				starred = false
				for i, f := range d.formats {
					if i == 0 {
						d.c.Stdout.WriteString(d.address())
					} else {
						d.c.Stdout.WriteString(strings.Repeat(" ", len(d.address())))
					}
					d.row(f, buf[:n])
				}
			}
			last = row
			d.addr += int64(n)
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if d.radix != "n" {
		d.c.Stdout.WriteString(d.address() + "\n")
	}
	return nil
}

func (d *dumper) row(f odFormat, data []byte) {
	for i := 0; i < len(data); i += f.size {
		var b [8]byte
		copy(b[:], data[i:min(len(data), i+f.size)])
		v := binary.LittleEndian.Uint64(b[:])
		var s string
		switch f.kind {
		case 'x':
			s = fmt.Sprintf("%0*x", 2*f.size, v)
		case 'o':
			s = fmt.Sprintf("%0*o", f.width, v)
		case 'u':
			s = strconv.FormatUint(v, 10)
		case 'd':
			shift := 64 - 8*f.size
			s = strconv.FormatInt(int64(v<<shift)>>shift, 10)
		case 'f':
			if f.size == 4 {
				s = strconv.FormatFloat(float64(math.Float32frombits(uint32(v))), 'g', 8, 32)
			} else {
				s = strconv.FormatFloat(math.Float64frombits(v), 'g', 17, 64)
			}
		case 'c':
			s = charName(b[0], false)
		case 'a':
			s = charName(b[0]&127, true)
		}
		cell := d.cell * f.size
		if d.single {
			cell = f.width + 1
		}
		d.c.Printf("%*s", cell, s)
	}
	if f.chars {
		for range d.width - len(data) {
			d.c.Stdout.WriteString(strings.Repeat(" ", d.cell))
		}
		d.c.Stdout.WriteString("  >")
		for _, b := range data {
			if b < 32 || b > 126 {
				b = '.'
			}
			d.c.Stdout.WriteByte(b)
		}
		d.c.Stdout.WriteByte('<')
	}
	d.c.Stdout.WriteByte('\n')
}

func charName(b byte, ascii bool) string {
	if ascii {
		names := strings.Fields("nul soh stx etx eot enq ack bel bs ht nl vt ff cr so si dle dc1 dc2 dc3 dc4 nak syn etb can em sub esc fs gs rs us sp")
		if int(b) < len(names) {
			return names[b]
		}
		if b == 127 {
			return "del"
		}
		return string(rune(b))
	}
	switch b {
	case 0:
		return `\0`
	case 7, 8, 9, 10, 11, 12, 13:
		return `\` + string("abtnvfr"[b-7])
	}
	if b < 32 || b > 126 {
		return fmt.Sprintf("%03o", b)
	}
	return string(rune(b))
}

// Hexdump is hexdump in its default and -C forms.
func Hexdump(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Short: "Cvn:s:", Long: []string{"canonical|C", "no-squeezing|v", "length=|n", "skip=|s"}})
	if !ok {
		return code
	}
	canon, verbose, limit, skip := false, false, int64(-1), int64(0)
	for _, o := range opts {
		var err error
		switch o.Name {
		case "C":
			canon = true
		case "v":
			verbose = true
		case "n":
			limit, err = tool.ParseSize(o.Arg)
		case "s":
			skip, err = tool.ParseSize(o.Arg)
		}
		if err != nil {
			return c.Fail(1, "%v", err)
		}
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	var readers []io.Reader
	for _, name := range files {
		r, err := c.Open(name)
		if err != nil {
			c.Errorf("%s: %s", name, tool.Reason(err))
			code = 1
			continue
		}
		defer r.Close()
		readers = append(readers, r)
	}
	r := io.MultiReader(readers...)
	if n, err := io.CopyN(io.Discard, r, skip); err != nil && n < skip {
		return code
	}
	if limit >= 0 {
		r = io.LimitReader(r, limit)
	}
	buf := make([]byte, 16)
	addr, last, starred := skip, "", false
	digits := 7
	if canon {
		digits = 8
	}
	for c.Stdout.Err() == nil {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			row := string(buf[:n])
			if row == last && n == 16 && !verbose {
				if !starred {
					c.Stdout.WriteString("*\n")
				}
				starred = true
			} else {
				starred = false
				c.Printf("%0*x", digits, addr)
				hexRow(c, buf[:n], canon)
			}
			last = row
			addr += int64(n)
		}
		if err != nil {
			if err != io.EOF && err != io.ErrUnexpectedEOF {
				return c.Fail(1, "read error: %s", tool.Reason(err))
			}
			break
		}
	}
	if addr > skip {
		c.Printf("%0*x\n", digits, addr)
	}
	return code
}

func hexRow(c *tool.Context, data []byte, canon bool) {
	if !canon {
		line := ""
		for i := 0; i < len(data); i += 2 {
			v := uint16(data[i])
			if i+1 < len(data) {
				v |= uint16(data[i+1]) << 8
			}
			line += fmt.Sprintf(" %04x", v)
		}
		c.Printf("%-40s\n", line)
		return
	}
	for i := range 16 {
		if i%8 == 0 {
			c.Stdout.WriteByte(' ')
		}
		if i < len(data) {
			c.Printf(" %02x", data[i])
		} else {
			c.Stdout.WriteString("   ")
		}
	}
	c.Stdout.WriteString("  |")
	for _, b := range data {
		if b < 32 || b > 126 {
			b = '.'
		}
		c.Stdout.WriteByte(b)
	}
	c.Stdout.WriteString("|\n")
}
