package files

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/userland/text"
	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// lsEntry is one file of a listing.
type lsEntry struct {
	name string
	st   unix.Stat_t
	link string
	to   uint32 // mode of what a link points to, 0 when it is broken
}

type lister struct {
	c                                                       *tool.Context
	all, almost, long, one, columns, across, commas         bool
	recursive, human, inode, blocks, dirs, reverse, numeric bool
	classify, slash, noOwner, noGroup, deref, derefArgs     bool
	quote, color, escape, groupDirs                         bool
	sort                                                    byte // 0 name, t S X U v
	when                                                    byte // m, a or c
	style                                                   string
	ids                                                     names
	failed                                                  int
	first                                                   bool
	width                                                   int
	now                                                     time.Time
}

// Ls is the ls utility.
func Ls(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Fail: 2, Short: "aAlh1CxmRtSXUvrdiFpngGosLHucQbqNkw:B", Long: []string{
		"all|a", "almost-all|A", "human-readable|h", "recursive|R", "reverse|r", "directory|d", "inode|i", "classify?|F", "numeric-uid-gid|n",
		"size|s", "dereference|L", "dereference-command-line|H", "quote-name|Q", "escape|b", "sort=", "time=", "time-style=", "full-time", "color?", "group-directories-first", "no-group|G",
		"indicator-style=", "format=", "width=|w", "si", "file-type", "ignore-backups|B"}})
	if !ok {
		return code
	}
	l := &lister{c: c, when: 'm', first: true, width: 80, now: time.Now()}
	tty := false
	if f := c.Stdout.File(); f != nil {
		if ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			tty = true
			if ws.Col > 0 {
				l.width = int(ws.Col)
			}
		}
	}
	l.columns = tty
	l.quote = false
	for _, o := range opts {
		switch o.Name {
		case "a":
			l.all = true
		case "A":
			l.almost = true
		case "l":
			l.long = true
		case "1":
			l.one, l.columns, l.across, l.commas = true, false, false, false
		case "C":
			l.columns, l.long, l.one = true, false, false
		case "x":
			l.across, l.columns, l.long = true, true, false
		case "m":
			l.commas, l.columns = true, false
		case "R":
			l.recursive = true
		case "t", "S", "X", "U", "v":
			l.sort = o.Name[0]
		case "sort":
			s, ok := map[string]byte{"none": 'U', "size": 'S', "time": 't', "version": 'v', "extension": 'X', "name": 0}[o.Arg]
			if !ok {
				return c.Fail(2, "invalid argument '%s' for '--sort'", o.Arg)
			}
			l.sort = s
		case "h":
			l.human = true
		case "si":
			return c.Fail(2, "option --si is not supported; use -h")
		case "r":
			l.reverse = true
		case "d":
			l.dirs = true
		case "i":
			l.inode = true
		case "F":
			l.classify = o.Arg != "never" && (o.Arg != "auto" || tty)
		case "file-type":
			return c.Fail(2, "option --file-type is not supported; use -F or -p")
		case "indicator-style":
			switch o.Arg {
			case "none":
				l.classify, l.slash = false, false
			case "slash":
				l.slash = true
			case "classify":
				l.classify = true
			default:
				return c.Fail(2, "invalid argument '%s' for '--indicator-style'", o.Arg)
			}
		case "p":
			l.slash = true
		case "n":
			l.numeric, l.long = true, true
		case "g":
			l.noOwner, l.long = true, true
		case "o":
			l.noGroup, l.long = true, true
		case "G":
			l.noGroup = true
		case "s":
			l.blocks = true
		case "k": // sizes of blocks are in KiB already
		case "L":
			l.deref = true
		case "H":
			l.derefArgs = true
		case "u":
			l.when = 'a'
		case "c":
			l.when = 'c'
		case "time":
			w, ok := map[string]byte{"atime": 'a', "access": 'a', "use": 'a', "ctime": 'c', "status": 'c', "mtime": 'm', "modification": 'm'}[o.Arg]
			if !ok {
				return c.Fail(2, "invalid argument '%s' for '--time'", o.Arg)
			}
			l.when = w
		case "Q":
			l.quote = true
		case "b":
			l.escape = true
		case "q":
			return c.Fail(2, "option -q is not supported; use -b")
		case "N":
			l.quote, l.escape = false, false
		case "B":
			return c.Fail(2, "option -B is not supported")
		case "time-style":
			l.style = o.Arg
			switch {
			case strings.HasPrefix(o.Arg, "+"), o.Arg == "full-iso", o.Arg == "long-iso", o.Arg == "iso", o.Arg == "locale":
			default:
				return c.Fail(2, "invalid argument '%s' for '--time-style'", o.Arg)
			}
		case "full-time":
			l.style, l.long = "full-iso", true
		case "color":
			l.color = o.Arg == "" || o.Arg == "always" || o.Arg == "auto" && tty
		case "group-directories-first":
			l.groupDirs = true
		case "format":
			switch o.Arg {
			case "long", "verbose":
				l.long = true
			case "single-column":
				l.columns = false
			case "vertical":
				l.columns = true
			case "across", "horizontal":
				l.across, l.columns = true, true
			case "commas":
				l.commas = true
			default:
				return c.Fail(2, "invalid argument '%s' for '--format'", o.Arg)
			}
		case "w":
			n, err := strconv.Atoi(o.Arg)
			if err != nil || n < 0 {
				return c.Fail(2, "invalid line width: '%s'", o.Arg)
			}
			l.width = n
		}
	}
	if len(ops) == 0 {
		ops = []string{"."}
	}
	var filesL, dirs []lsEntry
	for _, name := range ops {
		e, err := l.stat(name, name, true)
		if err != nil {
			c.Errorf("cannot access '%s': %s", name, tool.Reason(err))
			l.failed = 2
			continue
		}
		if e.st.Mode&unix.S_IFMT == unix.S_IFDIR && !l.dirs {
			dirs = append(dirs, e)
		} else {
			filesL = append(filesL, e)
		}
	}
	l.order(filesL)
	l.order(dirs)
	if len(filesL) > 0 {
		l.print(filesL)
		l.first = false
	}
	for _, d := range dirs {
		l.dir(d.name, len(ops) > 1 || l.recursive, 0)
	}
	return l.failed
}

// stat looks at a file; args tells that it was named on the command line.
func (l *lister) stat(name, path string, arg bool) (lsEntry, error) {
	e := lsEntry{name: name}
	err := unix.Lstat(path, &e.st)
	if err != nil {
		return e, err
	}
	if e.st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return e, nil
	}
	var to unix.Stat_t
	terr := unix.Stat(path, &to)
	follow := l.deref || arg && (l.derefArgs || !l.long && !l.dirs && !l.classify && terr == nil && to.Mode&unix.S_IFMT == unix.S_IFDIR)
	if follow && (terr == nil || l.deref) {
		if terr != nil {
			return e, terr
		}
		e.st = to
		return e, nil
	}
	if l.long || l.classify || l.color {
		e.link, _ = os.Readlink(path)
		if terr == nil {
			e.to = to.Mode
		}
	}
	return e, nil
}

func (l *lister) time(e *lsEntry) unix.Timespec {
	switch l.when {
	case 'a':
		return e.st.Atim
	case 'c':
		return e.st.Ctim
	}
	return e.st.Mtim
}

func (l *lister) order(list []lsEntry) {
	if l.sort == 'U' {
		return
	}
	byTime := l.sort == 't' || l.sort == 0 && l.when != 'm' && !l.long
	slices.SortStableFunc(list, func(a, b lsEntry) int {
		if l.groupDirs {
			da, db := a.st.Mode&unix.S_IFMT == unix.S_IFDIR, b.st.Mode&unix.S_IFMT == unix.S_IFDIR
			if da != db {
				if da {
					return -1
				}
				return 1
			}
		}
		n := 0
		switch {
		case byTime:
			ta, tb := l.time(&a), l.time(&b)
			n = int(min(max(tb.Sec-ta.Sec, -1), 1))
			if n == 0 {
				n = int(min(max(tb.Nsec-ta.Nsec, -1), 1))
			}
		case l.sort == 'S':
			n = int(min(max(b.st.Size-a.st.Size, -1), 1))
		case l.sort == 'X':
			n = strings.Compare(filepath.Ext(a.name), filepath.Ext(b.name))
		case l.sort == 'v':
			n = text.CompareVersions(a.name, b.name)
		}
		if n == 0 {
			n = strings.Compare(a.name, b.name)
		}
		if l.reverse {
			return -n
		}
		return n
	})
}

func (l *lister) dir(path string, head bool, depth int) {
	entries, err := os.ReadDir(path)
	if err != nil {
		l.c.Errorf("cannot open directory '%s': %s", path, tool.Reason(err))
		l.failed = max(l.failed, 2-min(depth, 1))
		if len(entries) == 0 {
			return
		}
	}
	var list []lsEntry
	add := func(name string) {
		e, err := l.stat(name, strings.TrimSuffix(path, "/")+"/"+name, false)
		if err != nil {
			l.c.Errorf("cannot access '%s/%s': %s", path, name, tool.Reason(err))
			l.failed = max(l.failed, 1)
			return
		}
		list = append(list, e)
	}
	if l.all {
		add(".")
		add("..")
	}
	for _, e := range entries {
		if !l.all && !l.almost && e.Name()[0] == '.' {
			continue
		}
		add(e.Name())
	}
	l.order(list)
	if !l.first {
		l.c.Stdout.WriteByte('\n')
	}
	l.first = false
	if head {
		l.c.Printf("%s:\n", path)
	}
	if l.long || l.blocks {
		var blocks int64
		for i := range list {
			blocks += list[i].st.Blocks
		}
		if l.human {
			l.c.Printf("total %s\n", tool.HumanSize(uint64(blocks)*512))
		} else {
			l.c.Printf("total %d\n", (blocks+1)/2)
		}
	}
	l.print(list)
	if !l.recursive {
		return
	}
	if depth > maxDepth {
		l.c.Errorf("%s: directories nested too deeply", path)
		l.failed = 1
		return
	}
	for _, e := range list {
		if e.name != "." && e.name != ".." && e.st.Mode&unix.S_IFMT == unix.S_IFDIR {
			l.dir(strings.TrimSuffix(path, "/")+"/"+e.name, true, depth+1)
		}
	}
}

// shown is the name with quoting, colour and indicator, and its width.
func (l *lister) shown(e *lsEntry, name string) (string, int) {
	switch {
	case l.quote:
		name = strconv.Quote(name)
	case l.escape:
		q := strconv.Quote(name)
		name = strings.ReplaceAll(strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`), " ", `\ `)
	case l.columns && strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 127 }):
		// Control characters could take the terminal over.
		name = strings.Map(func(r rune) rune {
			if r < ' ' || r == 127 {
				return '?'
			}
			return r
		}, name)
	}
	mark := ""
	if l.classify || l.slash {
		mark = indicator(e.st.Mode, l.classify && !(l.long && e.link != ""))
	}
	width := utf8.RuneCountInString(name) + len(mark)
	if l.color {
		if code := colorOf(e); code != "" {
			name = "\x1b[" + code + "m" + name + "\x1b[0m"
		}
	}
	return name + mark, width
}

func indicator(mode uint32, full bool) string {
	if mode&unix.S_IFMT == unix.S_IFDIR {
		return "/"
	}
	if !full {
		return ""
	}
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return "@"
	case unix.S_IFIFO:
		return "|"
	case unix.S_IFSOCK:
		return "="
	case unix.S_IFREG:
		if mode&0o111 != 0 {
			return "*"
		}
	}
	return ""
}

func colorOf(e *lsEntry) string {
	switch e.st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "01;34"
	case unix.S_IFLNK:
		if e.to == 0 {
			return "01;31"
		}
		return "01;36"
	case unix.S_IFIFO:
		return "33"
	case unix.S_IFSOCK:
		return "01;35"
	case unix.S_IFBLK, unix.S_IFCHR:
		return "01;33"
	}
	if e.st.Mode&0o111 != 0 {
		return "01;32"
	}
	return ""
}

func (l *lister) print(list []lsEntry) {
	if l.long {
		l.printLong(list)
		return
	}
	prefix := make([]string, len(list))
	wide := 0
	for i := range list {
		if l.inode {
			prefix[i] += strconv.FormatUint(list[i].st.Ino, 10) + " "
		}
		if l.blocks {
			prefix[i] += l.size(uint64(list[i].st.Blocks)*512, 1024) + " "
		}
		wide = max(wide, len(prefix[i]))
	}
	namesOut := make([]string, len(list))
	widths := make([]int, len(list))
	for i := range list {
		n, w := l.shown(&list[i], list[i].name)
		namesOut[i] = strings.Repeat(" ", wide-len(prefix[i])) + prefix[i] + n
		widths[i] = w + wide
	}
	switch {
	case l.commas:
		if len(list) > 0 {
			l.c.Printf("%s\n", strings.Join(namesOut, ", "))
		}
	case l.columns && !l.one:
		l.grid(namesOut, widths)
	default:
		for _, n := range namesOut {
			l.c.Printf("%s\n", n)
		}
	}
}

// grid prints names in as many columns as fit, down first or across.
func (l *lister) grid(list []string, widths []int) {
	n := len(list)
	if n == 0 {
		return
	}
	rows := 1
	var cols []int
	at := func(r, c, nc int) int {
		if l.across {
			return r*nc + c
		}
		return c*rows + r
	}
	for ; ; rows++ {
		nc := (n + rows - 1) / rows
		cols = make([]int, nc)
		total := 0
		for c := range nc {
			for r := range rows {
				if i := at(r, c, nc); i < n {
					cols[c] = max(cols[c], widths[i])
				}
			}
			total += cols[c] + 2
		}
		if total-2 <= l.width || rows >= n {
			break
		}
	}
	for r := range rows {
		for c := range cols {
			i := at(r, c, len(cols))
			if i >= n {
				break
			}
			l.c.Stdout.WriteString(list[i])
			if c+1 < len(cols) && at(r, c+1, len(cols)) < n {
				l.c.Stdout.WriteString(strings.Repeat(" ", cols[c]+2-widths[i]))
			}
		}
		l.c.Stdout.WriteByte('\n')
	}
}

func (l *lister) size(n, unit uint64) string {
	if l.human {
		return tool.HumanSize(n)
	}
	return strconv.FormatUint((n+unit-1)/unit, 10)
}

func (l *lister) stamp(ts unix.Timespec) string {
	t := time.Unix(ts.Sec, ts.Nsec)
	switch {
	case strings.HasPrefix(l.style, "+"):
		return tool.FormatDate(l.style[1:], t)
	case l.style == "full-iso":
		return t.Format("2006-01-02 15:04:05.000000000 -0700")
	case l.style == "long-iso":
		return t.Format("2006-01-02 15:04")
	case l.style == "iso":
		if l.recent(t) {
			return t.Format("01-02 15:04")
		}
		return t.Format("2006-01-02 ")
	case l.recent(t):
		return t.Format("Jan _2 15:04")
	}
	return t.Format("Jan _2  2006")
}

func (l *lister) recent(t time.Time) bool {
	age := l.now.Sub(t)
	return age >= 0 && age < 31556952/2*time.Second
}

func (l *lister) printLong(list []lsEntry) {
	rows := make([][]string, len(list))
	var w [7]int
	for i := range list {
		e := &list[i]
		user, group := l.ids.user(int(e.st.Uid)), l.ids.group(int(e.st.Gid))
		if l.numeric {
			user, group = strconv.Itoa(int(e.st.Uid)), strconv.Itoa(int(e.st.Gid))
		}
		size := l.size(uint64(e.st.Size), 1)
		if k := e.st.Mode & unix.S_IFMT; k == unix.S_IFCHR || k == unix.S_IFBLK {
			size = fmt.Sprintf("%d, %d", unix.Major(e.st.Rdev), unix.Minor(e.st.Rdev))
		}
		ino, blk := "", ""
		if l.inode {
			ino = strconv.FormatUint(e.st.Ino, 10)
		}
		if l.blocks {
			blk = l.size(uint64(e.st.Blocks)*512, 1024)
		}
		rows[i] = []string{ino, blk, strconv.FormatUint(uint64(e.st.Nlink), 10), user, group, size, l.stamp(l.time(e))}
		for k, s := range rows[i] {
			w[k] = max(w[k], len(s))
		}
	}
	for i := range list {
		e, r := &list[i], rows[i]
		var b strings.Builder
		if l.inode {
			fmt.Fprintf(&b, "%*s ", w[0], r[0])
		}
		if l.blocks {
			fmt.Fprintf(&b, "%*s ", w[1], r[1])
		}
		fmt.Fprintf(&b, "%s %*s ", modeString(e.st.Mode), w[2], r[2])
		if !l.noOwner {
			fmt.Fprintf(&b, "%-*s ", w[3], r[3])
		}
		if !l.noGroup {
			fmt.Fprintf(&b, "%-*s ", w[4], r[4])
		}
		name, _ := l.shown(e, e.name)
		fmt.Fprintf(&b, "%*s %*s %s", w[5], r[5], w[6], r[6], name)
		if e.link != "" {
			b.WriteString(" -> " + e.link)
			if l.classify && e.to != 0 {
				b.WriteString(indicator(e.to, true))
			}
		}
		b.WriteByte('\n')
		l.c.Stdout.WriteString(b.String())
	}
}
