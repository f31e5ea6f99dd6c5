package text

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// Cmp compares two files byte by byte.
func Cmp(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Fail: 2, Short: "lsn:bi:", Long: []string{"verbose|l", "silent|s", "quiet|s", "bytes=|n", "print-bytes|b", "ignore-initial=|i"}})
	if !ok {
		return code
	}
	var list, silent bool
	limit, skip := int64(-1), int64(0)
	for _, o := range opts {
		var err error
		switch o.Name {
		case "l":
			list = true
		case "s":
			silent = true
		case "n":
			limit, err = tool.ParseSize(o.Arg)
		case "i":
			skip, err = tool.ParseSize(o.Arg)
		case "b":
			return c.Fail(2, "option -b is not supported")
		}
		if err != nil {
			return c.Fail(2, "%v", err)
		}
	}
	if len(ops) == 1 {
		ops = append(ops, "-")
	}
	if !c.Operands(ops, 2, 2) {
		return 2
	}
	var in [2]*bufio.Reader
	for i, name := range ops {
		r, err := c.Open(name)
		if err != nil {
			if !silent {
				c.Errorf("%s: %s", name, tool.Reason(err))
			}
			return 2
		}
		defer r.Close()
		in[i] = bufio.NewReaderSize(r, 64<<10)
		if _, err := io.CopyN(io.Discard, in[i], skip); err != nil && err != io.EOF {
			return c.Fail(2, "%s: %s", name, tool.Reason(err))
		}
	}
	lines := int64(1)
	for n := int64(1); limit < 0 || n <= limit; n++ {
		a, ea := in[0].ReadByte()
		b, eb := in[1].ReadByte()
		if ea != nil || eb != nil {
			for i, e := range []error{ea, eb} {
				if e != nil && e != io.EOF {
					return c.Fail(2, "%s: %s", ops[i], tool.Reason(e))
				}
			}
			if ea != nil && eb != nil {
				return code
			}
			short := ops[0]
			if ea == nil {
				short = ops[1]
			}
			if !silent {
				if n == 1 {
					fmt.Fprintf(c.Stderr, "cmp: EOF on %s which is empty\n", short)
				} else {
					c.Stdout.Flush()
					fmt.Fprintf(c.Stderr, "cmp: EOF on %s after byte %d, in line %d\n", short, n-1, lines)
				}
			}
			return 1
		}
		if a != b {
			if silent {
				return 1
			}
			if !list {
				unit := "char"
				if UTF8() {
					unit = "byte"
				}
				c.Printf("%s %s differ: %s %d, line %d\n", ops[0], ops[1], unit, n, lines)
				return 1
			}
			c.Printf("%d %3o %3o\n", n, a, b)
			code = 1
		}
		if a == '\n' {
			lines++
		}
	}
	return code
}

// differ is one run of diff.
type differ struct {
	c         *tool.Context
	unified   bool
	context   int
	brief     bool
	same      bool
	recursive bool
	newFile   bool
	text      bool
	fold      bool
	space     byte // 0, 'b' or 'w'
	labels    []string
	options   string
}

// maxDiffWork bounds the search for a small difference; beyond it the middle
// parts are shown as replaced.
const maxDiffWork = 1 << 26

// Diff is the diff utility, with normal and unified output.
func Diff(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Fail: 2, Short: "uU:qsrNaibwB", Long: []string{"unified?|u", "brief|q", "report-identical-files|s", "recursive|r", "new-file|N", "text|a", "ignore-case|i", "ignore-space-change|b", "ignore-all-space|w", "ignore-blank-lines|B", "label=", "normal", "color?"}})
	if !ok {
		return code
	}
	d := &differ{c: c, context: 3}
	for _, o := range opts {
		switch o.Name {
		case "u", "U":
			d.unified = true
			if o.Arg != "" {
				n, err := strconv.Atoi(o.Arg)
				if err != nil || n < 0 {
					return c.Fail(2, "invalid context length '%s'", o.Arg)
				}
				d.context = n
			}
			d.options = " -u"
		case "q":
			d.brief = true
		case "s":
			d.same = true
		case "r":
			d.recursive = true
		case "N":
			d.newFile = true
		case "a":
			d.text = true
		case "i":
			d.fold = true
		case "b", "w":
			d.space = o.Name[0]
		case "B":
			return c.Fail(2, "option -B is not supported")
		case "label":
			d.labels = append(d.labels, o.Arg)
		case "normal":
			d.unified = false
		case "color":
			if o.Arg != "never" && o.Arg != "auto" {
				return c.Fail(2, "coloured output is not supported")
			}
		}
	}
	if d.recursive {
		d.options = " -r" + d.options
	}
	if d.newFile {
		d.options += " -N"
	}
	if !c.Operands(ops, 2, 2) {
		return 2
	}
	return d.paths(ops[0], ops[1], true)
}

func isDir(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.IsDir()
}

func (d *differ) paths(a, b string, top bool) int {
	da, db := a != "-" && isDir(a), b != "-" && isDir(b)
	switch {
	case da && db:
		return d.dirs(a, b, top)
	case da && top:
		a = filepath.Join(a, filepath.Base(b))
	case db && top:
		b = filepath.Join(b, filepath.Base(a))
	case da || db:
		kind := func(dir bool) string {
			if dir {
				return "directory"
			}
			return "regular file"
		}
		d.c.Printf("File %s is a %s while file %s is a %s\n", a, kind(da), b, kind(db))
		return 1
	}
	return d.files(a, b)
}

func (d *differ) dirs(a, b string, top bool) int {
	if !top && !d.recursive {
		d.c.Printf("Common subdirectories: %s and %s\n", a, b)
		return 0
	}
	list := func(dir string) map[string]bool {
		m := map[string]bool{}
		entries, err := os.ReadDir(dir)
		if err != nil {
			d.c.Errorf("%s: %s", dir, tool.Reason(err))
		}
		for _, e := range entries {
			m[e.Name()] = true
		}
		return m
	}
	la, lb := list(a), list(b)
	var names []string
	for n := range la {
		names = append(names, n)
	}
	for n := range lb {
		if !la[n] {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	code := 0
	for _, n := range names {
		pa, pb := filepath.Join(a, n), filepath.Join(b, n)
		switch {
		case la[n] && lb[n]:
		case d.newFile && !isDir(pa) && !isDir(pb):
			if !la[n] {
				pa = os.DevNull
			} else {
				pb = os.DevNull
			}
		case la[n]:
			d.c.Printf("Only in %s: %s\n", a, n)
			code = max(code, 1)
			continue
		default:
			d.c.Printf("Only in %s: %s\n", b, n)
			code = max(code, 1)
			continue
		}
		if !isDir(pa) && !isDir(pb) && !d.brief {
			var out bytes.Buffer
			save := d.c.Stdout
			d.c.Stdout = tool.NewOutput(&out)
			st := d.paths(pa, pb, false)
			d.c.Stdout.Flush()
			d.c.Stdout = save
			if st == 1 && !bytes.HasPrefix(out.Bytes(), []byte("Binary ")) {
				d.c.Printf("diff%s %s %s\n", d.options, pa, pb)
			}
			d.c.Stdout.Write(out.Bytes())
			code = max(code, st)
			continue
		}
		code = max(code, d.paths(pa, pb, false))
	}
	return code
}

func (d *differ) read(name string) ([]byte, error) {
	if d.newFile && name != "-" {
		if _, err := os.Stat(name); os.IsNotExist(err) {
			return nil, nil
		}
	}
	r, err := d.c.Open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func (d *differ) files(a, b string) int {
	da, err := d.read(a)
	if err != nil {
		return d.c.Fail(2, "%s: %s", a, tool.Reason(err))
	}
	db, err := d.read(b)
	if err != nil {
		return d.c.Fail(2, "%s: %s", b, tool.Reason(err))
	}
	if bytes.Equal(da, db) {
		if d.same {
			d.c.Printf("Files %s and %s are identical\n", a, b)
		}
		return 0
	}
	if d.brief {
		if d.fold || d.space != 0 {
			if len(d.compare(splitLines(da), splitLines(db))) == 0 {
				return 0
			}
		}
		d.c.Printf("Files %s and %s differ\n", a, b)
		return 1
	}
	if !d.text && (bytes.IndexByte(da, 0) >= 0 || bytes.IndexByte(db, 0) >= 0) {
		d.c.Printf("Binary files %s and %s differ\n", a, b)
		return 1
	}
	la, lb := splitLines(da), splitLines(db)
	edits := d.compare(la, lb)
	if len(edits) == 0 {
		return 0
	}
	if d.unified {
		d.printUnified(a, b, la, lb, edits)
	} else {
		d.printNormal(la, lb, edits)
	}
	return 1
}

// splitLines keeps the newline of each line, so that a missing last one is a
// difference.
func splitLines(b []byte) [][]byte { return bytes.SplitAfter(b, []byte("\n"))[:lineCount(b)] }

func lineCount(b []byte) int {
	n := bytes.Count(b, []byte("\n"))
	if len(b) > 0 && b[len(b)-1] != '\n' {
		n++
	}
	return n
}

// edit replaces lines [a0,a1) of the old file by [b0,b1) of the new one.
type edit struct{ a0, a1, b0, b1 int }

func (d *differ) normal(l []byte) string {
	if d.space != 0 {
		var out []byte
		gap := false
		for _, c := range bytes.TrimRight(l, " \t\r\n") {
			if c == ' ' || c == '\t' {
				gap = true
				continue
			}
			if gap && d.space == 'b' {
				out = append(out, ' ')
			}
			gap = false
			out = append(out, c)
		}
		l = out
	}
	if d.fold {
		l = bytes.ToLower(l)
	}
	return string(l)
}

// compare finds a small set of edits: Myers' greedy algorithm between the
// common ends of the files.
func (d *differ) compare(la, lb [][]byte) []edit {
	ids := map[string]int{}
	intern := func(lines [][]byte) []int {
		out := make([]int, len(lines))
		for i, l := range lines {
			k := d.normal(l)
			id, ok := ids[k]
			if !ok {
				id = len(ids)
				ids[k] = id
			}
			out[i] = id
		}
		return out
	}
	a, b := intern(la), intern(lb)
	pre := 0
	for pre < len(a) && pre < len(b) && a[pre] == b[pre] {
		pre++
	}
	post := 0
	for post < len(a)-pre && post < len(b)-pre && a[len(a)-1-post] == b[len(b)-1-post] {
		post++
	}
	edits := myers(a[pre:len(a)-post], b[pre:len(b)-post])
	for i := range edits {
		edits[i].a0 += pre
		edits[i].a1 += pre
		edits[i].b0 += pre
		edits[i].b1 += pre
	}
	return slide(a, b, edits)
}

// slide moves pure insertions and deletions as far down as they go, as diff
// does, so that output is the customary one.
func slide(a, b []int, edits []edit) []edit {
	for i := range edits {
		e := &edits[i]
		limA, limB := len(a), len(b)
		if i+1 < len(edits) {
			limA, limB = edits[i+1].a0, edits[i+1].b0
		}
		switch {
		case e.a0 == e.a1:
			for e.b1 < limB && e.a1 < limA && b[e.b0] == b[e.b1] {
				e.a0, e.a1, e.b0, e.b1 = e.a0+1, e.a1+1, e.b0+1, e.b1+1
			}
		case e.b0 == e.b1:
			for e.a1 < limA && e.b1 < limB && a[e.a0] == a[e.a1] {
				e.a0, e.a1, e.b0, e.b1 = e.a0+1, e.a1+1, e.b0+1, e.b1+1
			}
		}
	}
	var out []edit
	for _, e := range edits {
		if n := len(out); n > 0 && out[n-1].a1 == e.a0 && out[n-1].b1 == e.b0 {
			out[n-1].a1, out[n-1].b1 = e.a1, e.b1
			continue
		}
		out = append(out, e)
	}
	return out
}

func myers(a, b []int) []edit {
	n, m := len(a), len(b)
	if n == 0 && m == 0 {
		return nil
	}
	if n == 0 || m == 0 {
		return []edit{{0, n, 0, m}}
	}
	var trace [][]int
	cur := make([]int, 2*(n+m)+3)
	off := n + m + 1
	work := 0
	for depth := 0; depth <= n+m; depth++ {
		work += 2*depth + 1
		if work > maxDiffWork {
			return []edit{{0, n, 0, m}}
		}
		snap := make([]int, 2*depth+3)
		copy(snap, cur[off-depth-1:off+depth+2])
		trace = append(trace, snap)
		for k := -depth; k <= depth; k += 2 {
			var x int
			if k == -depth || k != depth && cur[off+k-1] < cur[off+k+1] {
				x = cur[off+k+1]
			} else {
				x = cur[off+k-1] + 1
			}
			y := x - k
			for x < n && y < m && a[x] == b[y] {
				x, y = x+1, y+1
			}
			cur[off+k] = x
			if x >= n && y >= m {
				return backtrack(trace, n, m)
			}
		}
	}
	return nil
}

func backtrack(trace [][]int, x, y int) []edit {
	var rev []edit
	for depth := len(trace) - 1; depth > 0; depth-- {
		snap := trace[depth]
		at := func(k int) int { return snap[k+depth+1] }
		k := x - y
		var pk int
		if k == -depth || k != depth && at(k-1) < at(k+1) {
			pk = k + 1
		} else {
			pk = k - 1
		}
		px := at(pk)
		py := px - pk
		if pk == k+1 { // an insertion of b[py]
			rev = append(rev, edit{px, px, py, py + 1})
		} else {
			rev = append(rev, edit{px, px + 1, py, py})
		}
		x, y = px, py
	}
	slices.Reverse(rev)
	var out []edit
	for _, e := range rev {
		if n := len(out); n > 0 && out[n-1].a1 == e.a0 && out[n-1].b1 == e.b0 {
			out[n-1].a1, out[n-1].b1 = e.a1, e.b1
			continue
		}
		out = append(out, e)
	}
	return out
}

func (d *differ) put(mark string, l []byte) {
	d.c.Stdout.WriteString(mark)
	d.c.Stdout.Write(l)
	if len(l) == 0 || l[len(l)-1] != '\n' {
		d.c.Stdout.WriteString("\n\\ No newline at end of file\n")
	}
}

func (d *differ) printNormal(a, b [][]byte, edits []edit) {
	span := func(lo, hi int) string {
		if hi-lo <= 1 {
			return strconv.Itoa(hi)
		}
		return fmt.Sprintf("%d,%d", lo+1, hi)
	}
	for _, e := range edits {
		op := "c"
		switch {
		case e.a0 == e.a1:
			op = "a"
		case e.b0 == e.b1:
			op = "d"
		}
		d.c.Printf("%s%s%s\n", span(e.a0, e.a1), op, span(e.b0, e.b1))
		for _, l := range a[e.a0:e.a1] {
			d.put("< ", l)
		}
		if op == "c" {
			d.c.Stdout.WriteString("---\n")
		}
		for _, l := range b[e.b0:e.b1] {
			d.put("> ", l)
		}
	}
}

func (d *differ) printUnified(na, nb string, a, b [][]byte, edits []edit) {
	head := func(i int, mark, name string) {
		if i < len(d.labels) {
			d.c.Printf("%s %s\n", mark, d.labels[i])
			return
		}
		when := "1970-01-01 00:00:00.000000000 +0000"
		if st, err := os.Stat(name); err == nil {
			when = st.ModTime().Format("2006-01-02 15:04:05.000000000 -0700")
		}
		d.c.Printf("%s %s\t%s\n", mark, name, when)
	}
	head(0, "---", na)
	head(1, "+++", nb)
	for i := 0; i < len(edits); {
		j := i
		for j+1 < len(edits) && edits[j+1].a0-edits[j].a1 <= 2*d.context {
			j++
		}
		a0 := max(0, edits[i].a0-d.context)
		b0 := edits[i].b0 - (edits[i].a0 - a0)
		a1 := min(len(a), edits[j].a1+d.context)
		b1 := edits[j].b1 + (a1 - edits[j].a1)
		span := func(lo, hi int) string {
			switch hi - lo {
			case 0:
				return fmt.Sprintf("%d,0", lo)
			case 1:
				return strconv.Itoa(hi)
			}
			return fmt.Sprintf("%d,%d", lo+1, hi-lo)
		}
		d.c.Printf("@@ -%s +%s @@\n", span(a0, a1), span(b0, b1))
		at := a0
		for _, e := range edits[i : j+1] {
			for _, l := range a[at:e.a0] {
				d.put(" ", l)
			}
			for _, l := range a[e.a0:e.a1] {
				d.put("-", l)
			}
			for _, l := range b[e.b0:e.b1] {
				d.put("+", l)
			}
			at = e.a1
		}
		for _, l := range a[at:a1] {
			d.put(" ", l)
		}
		i = j + 1
	}
}
