package text

import (
	"bufio"
	"bytes"
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// sortChunk is how many bytes of lines are sorted in memory; beyond it sorted
// runs go to temporary files.
const sortChunk = 256 << 20

// key is one -k of sort.
type key struct {
	fromField, fromChar int
	toField, toChar     int // toField 0: to the end of the line
	set                 bool
	mods                modifiers
}

type modifiers struct {
	numeric, general, human, version, month, fold, reverse, dict, print, blankFrom, blankTo bool
}

func (m *modifiers) letter(c byte, to bool) bool {
	switch c {
	case 'n':
		m.numeric = true
	case 'g':
		m.general = true
	case 'h':
		m.human = true
	case 'V':
		m.version = true
	case 'M':
		m.month = true
	case 'f':
		m.fold = true
	case 'r':
		m.reverse = true
	case 'd':
		m.dict = true
	case 'i':
		m.print = true
	case 'b':
		if to {
			m.blankTo = true
		} else {
			m.blankFrom = true
		}
	default:
		return false
	}
	return true
}

type sorter struct {
	c       *tool.Context
	keys    []key
	global  modifiers
	sep     []byte
	unique  bool
	stable  bool
	delim   byte
	tmp     string
	runs    []*os.File
	keyless bool
}

func parseKey(s string) (key, error) {
	bad := fmt.Errorf("invalid number at field start: invalid count at start of '%s'", s)
	var k key
	from, to, hasTo := strings.Cut(s, ",")
	part := func(p string, to bool) (f, ch int, err error) {
		i := 0
		num := func() (int, error) {
			j := i
			for i < len(p) && p[i] >= '0' && p[i] <= '9' {
				i++
			}
			return strconv.Atoi(p[j:i])
		}
		if f, err = num(); err != nil || f < 1 {
			return 0, 0, bad
		}
		if i < len(p) && p[i] == '.' {
			i++
			if ch, err = num(); err != nil {
				return 0, 0, bad
			}
		}
		for ; i < len(p); i++ {
			if !k.mods.letter(p[i], to) {
				return 0, 0, fmt.Errorf("stray character in field spec: invalid field specification '%s'", s)
			}
			k.set = true
		}
		return f, ch, nil
	}
	var err error
	if k.fromField, k.fromChar, err = part(from, false); err != nil {
		return k, err
	}
	k.fromChar = max(k.fromChar, 1)
	if hasTo {
		if k.toField, k.toChar, err = part(to, true); err != nil {
			return k, err
		}
	}
	return k, nil
}

// Sort is the sort utility. Lines compare by bytes, as in the C locale.
func Sort(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Fail: 2, Short: "bcCdfgiMhnrVk:o:sS:t:T:uzm", Long: []string{
		"ignore-leading-blanks|b", "check|c", "dictionary-order|d", "ignore-case|f", "general-numeric-sort|g", "ignore-nonprinting|i",
		"month-sort|M", "human-numeric-sort|h", "numeric-sort|n", "reverse|r", "version-sort|V", "key=|k", "output=|o", "stable|s",
		"field-separator=|t", "temporary-directory=|T", "unique|u", "zero-terminated|z", "merge|m", "buffer-size=|S"}})
	if !ok {
		return code
	}
	s := &sorter{c: c, delim: '\n', tmp: os.TempDir()}
	check, output, limit := byte(0), "", int64(sortChunk)
	for _, o := range opts {
		switch o.Name {
		case "k":
			k, err := parseKey(o.Arg)
			if err != nil {
				return c.Fail(2, "%v", err)
			}
			s.keys = append(s.keys, k)
		case "c", "C":
			check = o.Name[0]
		case "o":
			output = o.Arg
		case "s":
			s.stable = true
		case "m": // merging is sorting what is sorted
		case "S":
			n, err := tool.ParseSize(strings.TrimSuffix(o.Arg, "b"))
			if err != nil || n < 1 {
				return c.Fail(2, "invalid -S argument '%s'", o.Arg)
			}
			limit = max(n, 1<<20)
		case "t":
			s.sep = []byte(o.Arg)
			if o.Arg == "\\0" {
				s.sep = []byte{0}
			}
			if len(s.sep) != 1 {
				return c.Fail(2, "multi-character tab '%s'", o.Arg)
			}
		case "T":
			s.tmp = o.Arg
		case "u":
			s.unique = true
		case "z":
			s.delim = 0
		default:
			s.global.letter(o.Name[0], false)
			if o.Name == "b" {
				s.global.blankTo = true
			}
		}
	}
	s.keyless = len(s.keys) == 0
	if s.keyless {
		s.keys = []key{{fromField: 1, fromChar: 1, mods: s.global}}
	}
	for i := range s.keys {
		if !s.keys[i].set {
			s.keys[i].mods = s.global
		}
	}
	if check != 0 {
		return s.check(files, check == 'c')
	}
	defer func() {
		for _, f := range s.runs {
			f.Close()
		}
	}()
	var lines [][]byte
	var size int64
	var fail error
	code = c.Inputs(files, func(_ string, r io.Reader) error {
		err := tool.Lines(r, s.delim, func(line []byte, _ bool) bool {
			lines = append(lines, append([]byte(nil), line...))
			if size += int64(len(line)) + 24; size > limit {
				if fail = s.spill(lines); fail != nil {
					return false
				}
				lines, size = lines[:0], 0
			}
			return true
		})
		return err
	})
	if fail != nil {
		return c.Fail(2, "cannot write a temporary file: %s", tool.Reason(fail))
	}
	if code != 0 {
		return 2
	}
	s.order(lines)
	w := c.Stdout
	var of *os.File
	if output != "" {
		var err error
		if of, err = os.Create(output); err != nil {
			return c.Fail(2, "open failed: %s: %s", output, tool.Reason(err))
		}
		w = tool.NewOutput(of)
	}
	err := s.emit(w, lines)
	if of != nil {
		w.Flush()
		if e := errors.Join(w.Err(), of.Close()); e != nil && err == nil {
			err = e
		}
	}
	if err != nil {
		return c.Fail(2, "%s", tool.Reason(err))
	}
	return 0
}

func (s *sorter) order(lines [][]byte) { slices.SortStableFunc(lines, s.compare) }

func (s *sorter) spill(lines [][]byte) error {
	s.order(lines)
	f, err := os.CreateTemp(s.tmp, "sort")
	if err != nil {
		return err
	}
	os.Remove(f.Name())
	s.runs = append(s.runs, f)
	w := bufio.NewWriterSize(f, 1<<20)
	for _, l := range lines {
		w.Write(l)
		w.WriteByte(s.delim)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// emit merges the runs on disk with the lines in memory.
func (s *sorter) emit(w *tool.Output, lines [][]byte) error {
	var last []byte
	some := false
	put := func(l []byte) {
		if s.unique && some && s.compareKeys(last, l) == 0 {
			return
		}
		last, some = l, true
		w.Write(l)
		w.WriteByte(s.delim)
	}
	if len(s.runs) == 0 {
		for _, l := range lines {
			put(l)
			if w.Err() != nil {
				break
			}
		}
		return nil
	}
	h := &mergeHeap{s: s}
	for i, f := range s.runs {
		r := newLineReader(f, s.delim)
		if l, ok := r.next(); ok {
			h.items = append(h.items, mergeItem{l, i, r})
		}
	}
	if len(lines) > 0 {
		h.items = append(h.items, mergeItem{lines[0], len(s.runs), nil})
		lines = lines[1:]
	}
	heap.Init(h)
	for len(h.items) > 0 && w.Err() == nil {
		it := &h.items[0]
		put(it.line)
		var ok bool
		if it.r != nil {
			it.line, ok = it.r.next()
			if it.r.err != nil {
				return it.r.err
			}
		} else if ok = len(lines) > 0; ok {
			it.line, lines = lines[0], lines[1:]
		}
		if ok {
			heap.Fix(h, 0)
		} else {
			heap.Pop(h)
		}
	}
	return nil
}

type mergeItem struct {
	line []byte
	run  int
	r    *lineReader
}

type mergeHeap struct {
	s     *sorter
	items []mergeItem
}

func (h *mergeHeap) Len() int { return len(h.items) }
func (h *mergeHeap) Less(i, j int) bool {
	if n := h.s.compare(h.items[i].line, h.items[j].line); n != 0 {
		return n < 0
	}
	return h.items[i].run < h.items[j].run
}
func (h *mergeHeap) Swap(i, j int) { h.items[i], h.items[j] = h.items[j], h.items[i] }
func (h *mergeHeap) Push(x any)    { h.items = append(h.items, x.(mergeItem)) }
func (h *mergeHeap) Pop() any {
	n := len(h.items) - 1
	x := h.items[n]
	h.items = h.items[:n]
	return x
}

func (s *sorter) check(files []string, say bool) int {
	name := "-"
	if len(files) > 1 {
		return s.c.Fail(2, "extra operand '%s' not allowed with -c", files[1])
	}
	if len(files) == 1 {
		name = files[0]
	}
	r, err := s.c.Open(name)
	if err != nil {
		return s.c.Fail(2, "%s: %s", name, tool.Reason(err))
	}
	defer r.Close()
	lr := newLineReader(r, s.delim)
	var prev []byte
	for n := 1; ; n++ {
		l, ok := lr.next()
		if !ok {
			if lr.err != nil {
				return s.c.Fail(2, "%s: %s", name, tool.Reason(lr.err))
			}
			return 0
		}
		if n > 1 {
			cmp := s.compare(prev, l)
			if cmp > 0 || s.unique && s.compareKeys(prev, l) == 0 {
				if say {
					s.c.Errorf("%s:%d: disorder: %s", name, n, l)
				}
				return 1
			}
		}
		prev = l
	}
}

func (s *sorter) compare(a, b []byte) int {
	if n := s.compareKeys(a, b); n != 0 || s.unique || s.stable {
		return n
	}
	n := bytes.Compare(a, b)
	if s.global.reverse {
		return -n
	}
	return n
}

func (s *sorter) compareKeys(a, b []byte) int {
	for i := range s.keys {
		k := &s.keys[i]
		n := k.mods.compare(s.extract(a, k), s.extract(b, k))
		if n != 0 {
			if k.mods.reverse {
				return -n
			}
			return n
		}
	}
	return 0
}

// extract returns the part of a line that k names.
func (s *sorter) extract(line []byte, k *key) []byte {
	if k.fromField == 1 && k.fromChar == 1 && k.toField == 0 && !k.mods.blankFrom {
		return line
	}
	start := s.fieldStart(line, k.fromField)
	if k.mods.blankFrom {
		start = skipBlank(line, start)
	}
	start = min(start+k.fromChar-1, len(line))
	end := len(line)
	if k.toField > 0 {
		if k.toChar == 0 {
			end = s.fieldEnd(line, k.toField)
		} else {
			e := s.fieldStart(line, k.toField)
			if k.mods.blankTo {
				e = skipBlank(line, e)
			}
			end = min(e+k.toChar, len(line))
		}
	}
	if end < start {
		return nil
	}
	return line[start:end]
}

func blank(b byte) bool { return b == ' ' || b == '\t' }

func skipBlank(line []byte, i int) int {
	for i < len(line) && blank(line[i]) {
		i++
	}
	return i
}

func (s *sorter) fieldStart(line []byte, n int) int {
	i := 0
	for ; n > 1 && i < len(line); n-- {
		if s.sep != nil {
			j := bytes.IndexByte(line[i:], s.sep[0])
			if j < 0 {
				return len(line)
			}
			i += j + 1
			continue
		}
		i = skipBlank(line, i)
		for i < len(line) && !blank(line[i]) {
			i++
		}
	}
	if n > 1 {
		return len(line)
	}
	return i
}

func (s *sorter) fieldEnd(line []byte, n int) int {
	i := s.fieldStart(line, n)
	if s.sep != nil {
		if j := bytes.IndexByte(line[i:], s.sep[0]); j >= 0 {
			return i + j
		}
		return len(line)
	}
	i = skipBlank(line, i)
	for i < len(line) && !blank(line[i]) {
		i++
	}
	return i
}

func (m *modifiers) compare(a, b []byte) int {
	switch {
	case m.numeric:
		return compareNumeric(a, b)
	case m.general:
		return cmp.Compare(generalValue(a), generalValue(b))
	case m.human:
		return compareHuman(a, b)
	case m.month:
		return cmp.Compare(monthOf(a), monthOf(b))
	}
	if m.fold || m.dict || m.print {
		a, b = m.filter(a), m.filter(b)
	}
	if m.version {
		return CompareVersions(string(a), string(b))
	}
	return bytes.Compare(a, b)
}

func (m *modifiers) filter(s []byte) []byte {
	out := make([]byte, 0, len(s))
	for _, c := range s {
		alnum := c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
		if m.dict && !alnum && !blank(c) || m.print && (c < 32 || c > 126) {
			continue
		}
		if m.fold && c >= 'a' && c <= 'z' {
			c -= 32
		}
		out = append(out, c)
	}
	return out
}

// number splits a decimal number without converting it, so that any length
// compares exactly.
func number(s []byte) (neg bool, whole, frac []byte, rest []byte) {
	i := skipBlank(s, 0)
	if i < len(s) && s[i] == '-' {
		neg = true
		i++
	}
	j := i
	for j < len(s) && s[j] >= '0' && s[j] <= '9' {
		j++
	}
	whole = bytes.TrimLeft(s[i:j], "0")
	if j < len(s) && s[j] == '.' {
		k := j + 1
		for k < len(s) && s[k] >= '0' && s[k] <= '9' {
			k++
		}
		frac = bytes.TrimRight(s[j+1:k], "0")
		j = k
	}
	if len(whole) == 0 && len(frac) == 0 {
		neg = false
	}
	return neg, whole, frac, s[j:]
}

func compareNumeric(a, b []byte) int {
	na, wa, fa, _ := number(a)
	nb, wb, fb, _ := number(b)
	if na != nb {
		if na {
			return -1
		}
		return 1
	}
	n := cmp.Compare(len(wa), len(wb))
	if n == 0 {
		n = bytes.Compare(wa, wb)
	}
	if n == 0 {
		n = bytes.Compare(fa, fb)
	}
	if na {
		return -n
	}
	return n
}

func compareHuman(a, b []byte) int {
	unit := func(s []byte) int {
		neg, w, f, rest := number(s)
		if len(w) == 0 && len(f) == 0 || len(rest) == 0 {
			return 0
		}
		u := strings.IndexByte("KMGTPEZY", rest[0]&^0x20) + 1
		if neg {
			return -u
		}
		return u
	}
	sign := func(s []byte) int {
		neg, w, f, _ := number(s)
		switch {
		case neg:
			return -1
		case len(w) == 0 && len(f) == 0:
			return 0
		}
		return 1
	}
	if n := cmp.Compare(sign(a), sign(b)); n != 0 {
		return n
	}
	if n := cmp.Compare(unit(a), unit(b)); n != 0 {
		return n
	}
	return compareNumeric(a, b)
}

func generalValue(s []byte) float64 {
	t := strings.TrimSpace(string(s))
	for end := len(t); end > 0; end-- {
		if v, err := strconv.ParseFloat(t[:end], 64); err == nil {
			return v
		}
		if end > 40 {
			end = 40
		}
	}
	return math.Inf(-1)
}

func monthOf(s []byte) int {
	t := strings.ToUpper(strings.TrimLeft(string(s), " \t"))
	if len(t) < 3 {
		return 0
	}
	i := strings.Index("JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC", t[:3])
	if i < 0 || i%3 != 0 {
		return 0
	}
	return i/3 + 1
}

// CompareVersions orders names the way versions count: runs of digits as
// numbers, ~ before everything, letters before other characters.
func CompareVersions(a, b string) int {
	order := func(s string, i int) int {
		if i >= len(s) {
			return 0
		}
		c := s[i]
		switch {
		case c >= '0' && c <= '9':
			return 0
		case c|0x20 >= 'a' && c|0x20 <= 'z':
			return int(c)
		case c == '~':
			return -1
		}
		return int(c) + 256
	}
	digit := func(s string, i int) bool { return i < len(s) && s[i] >= '0' && s[i] <= '9' }
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		for i < len(a) && !digit(a, i) || j < len(b) && !digit(b, j) {
			if n := cmp.Compare(order(a, i), order(b, j)); n != 0 {
				return n
			}
			i++
			j++
		}
		for digit(a, i) && a[i] == '0' {
			i++
		}
		for digit(b, j) && b[j] == '0' {
			j++
		}
		first := 0
		for digit(a, i) && digit(b, j) {
			if first == 0 {
				first = cmp.Compare(a[i], b[j])
			}
			i++
			j++
		}
		if digit(a, i) {
			return 1
		}
		if digit(b, j) {
			return -1
		}
		if first != 0 {
			return first
		}
	}
	return 0
}

// Uniq is the uniq utility.
func Uniq(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Short: "cdDuif:s:w:z", Long: []string{"count|c", "repeated|d", "all-repeated|D", "unique|u", "ignore-case|i", "skip-fields=|f", "skip-chars=|s", "check-chars=|w", "zero-terminated|z"}})
	if !ok {
		return code
	}
	var counts, dup, all, uniq, fold bool
	skipF, skipC, width, eol := 0, 0, -1, byte('\n')
	for _, o := range opts {
		var err error
		switch o.Name {
		case "c":
			counts = true
		case "d":
			dup = true
		case "D":
			all = true
		case "u":
			uniq = true
		case "i":
			fold = true
		case "z":
			eol = 0
		case "f":
			skipF, err = strconv.Atoi(o.Arg)
		case "s":
			skipC, err = strconv.Atoi(o.Arg)
		case "w":
			width, err = strconv.Atoi(o.Arg)
		}
		if err != nil {
			return c.Fail(1, "%s: invalid number", o.Arg)
		}
	}
	if !c.Operands(files, 0, 2) {
		return 1
	}
	name := "-"
	if len(files) > 0 {
		name = files[0]
	}
	r, err := c.Open(name)
	if err != nil {
		return c.Fail(1, "%s: %s", name, tool.Reason(err))
	}
	defer r.Close()
	w := c.Stdout
	if len(files) == 2 && files[1] != "-" {
		f, err := os.Create(files[1])
		if err != nil {
			return c.Fail(1, "%s: %s", files[1], tool.Reason(err))
		}
		defer f.Close()
		w = tool.NewOutput(f)
		defer w.Flush()
	}
	part := func(l []byte) []byte {
		for range skipF {
			l = l[skipBlank(l, 0):]
			i := 0
			for i < len(l) && !blank(l[i]) {
				i++
			}
			l = l[i:]
		}
		l = l[min(skipC, len(l)):]
		if width >= 0 {
			l = l[:min(width, len(l))]
		}
		return l
	}
	var prev []byte
	n := 0
	flush := func() {
		if n == 0 || dup && n < 2 || uniq && n > 1 || all {
			return
		}
		if counts {
			fmt.Fprintf(w, "%7d ", n)
		}
		w.Write(prev)
		w.WriteByte(eol)
	}
	err = tool.Lines(r, eol, func(line []byte, _ bool) bool {
		same := n > 0
		if same {
			a, b := part(prev), part(line)
			same = bytes.Equal(a, b) || fold && bytes.EqualFold(a, b)
		}
		if same {
			if all {
				if n == 1 {
					w.Write(prev)
					w.WriteByte(eol)
				}
				w.Write(line)
				w.WriteByte(eol)
			}
			n++
			return w.Err() == nil
		}
		flush()
		prev, n = append(prev[:0], line...), 1
		return w.Err() == nil
	})
	flush()
	if err != nil {
		return c.Fail(1, "%s: %s", name, tool.Reason(err))
	}
	return 0
}
