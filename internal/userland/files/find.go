package files

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/pattern"

	"github.com/hutch-sandbox/hutch/internal/userland/regex"
	"github.com/hutch-sandbox/hutch/internal/userland/shell"
	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// found is the file an expression is evaluated on.
type found struct {
	path  string
	root  string
	depth int
	st    *syscall.Stat_t
	mode  fs.FileMode
	prune bool
}

// findExpr is one node of an expression.
type findExpr func(f *finder, e *found) bool

type finder struct {
	c          *tool.Context
	args       []string
	i          int
	minD, maxD int
	depthFirst bool
	follow     byte // P, L or H
	oneFS      bool
	acts       bool
	quit       bool
	code       int
	now        time.Time
	ids        names
	batches    []*batch
	outputs    map[string]*tool.Output
	files      []*os.File
	depth      int
}

// batch gathers arguments for -exec … +.
type batch struct {
	cmd   []string
	dir   string
	args  []string
	size  int
	inDir bool
}

// maxBatch bounds the bytes of arguments of one command.
const maxBatch = 128 << 10

// Find is the find utility.
func Find(c *tool.Context) int {
	f := &finder{c: c, args: c.Args, maxD: maxDepth, follow: 'P', now: time.Now(), outputs: map[string]*tool.Output{}}
	for f.i < len(f.args) && (f.args[f.i] == "-P" || f.args[f.i] == "-L" || f.args[f.i] == "-H") {
		f.follow = f.args[f.i][1]
		f.i++
	}
	if f.i < len(f.args) && f.args[f.i] == "--help" {
		c.Printf("Usage: find [PATH]... [EXPRESSION]\n")
		return 0
	}
	var roots []string
	for f.i < len(f.args) && !strings.HasPrefix(f.args[f.i], "-") && f.args[f.i] != "(" && f.args[f.i] != "!" {
		roots = append(roots, f.args[f.i])
		f.i++
	}
	if len(roots) == 0 {
		roots = []string{"."}
	}
	var expr findExpr
	if f.i < len(f.args) {
		var err error
		if expr, err = f.parseOr(); err == nil && f.i < len(f.args) {
			err = fmt.Errorf("paths must precede expression: '%s'", f.args[f.i])
			if f.args[f.i] == ")" {
				err = fmt.Errorf("invalid expression; you have too many ')'")
			}
		}
		if err != nil {
			return c.Fail(1, "%v", err)
		}
	}
	if expr == nil {
		expr = func(*finder, *found) bool { return true }
	}
	if !f.acts {
		inner := expr
		expr = func(f *finder, e *found) bool {
			if inner(f, e) {
				f.c.Printf("%s\n", e.path)
			}
			return true
		}
	}
	for _, r := range roots {
		f.visit(r, r, 0, 0, expr, nil)
		if f.quit {
			break
		}
	}
	for _, b := range f.batches {
		f.runBatch(b)
	}
	for _, o := range f.outputs {
		o.Flush()
	}
	for _, file := range f.files {
		file.Close()
	}
	return f.code
}

func (f *finder) problem(path string, err error) {
	f.c.Errorf("'%s': %s", path, tool.Reason(err))
	f.code = 1
}

func (f *finder) visit(path, root string, depth int, dev uint64, expr findExpr, above [][2]uint64) {
	if f.quit || f.c.Stdout.Err() != nil {
		return
	}
	st, err := os.Lstat(path)
	if err == nil && st.Mode()&fs.ModeSymlink != 0 && (f.follow == 'L' || f.follow == 'H' && depth == 0) {
		if t, e := os.Stat(path); e == nil {
			st = t
		}
	}
	if err != nil {
		f.problem(path, err)
		return
	}
	e := &found{path: path, root: root, depth: depth, mode: st.Mode()}
	e.st, _ = st.Sys().(*syscall.Stat_t)
	if e.st == nil {
		return
	}
	if depth == 0 {
		dev = e.st.Dev
	}
	in := depth >= f.minD
	if in && !f.depthFirst {
		expr(f, e)
	}
	if st.IsDir() && !e.prune && depth < f.maxD && !(f.oneFS && e.st.Dev != dev) && !f.quit {
		id := [2]uint64{e.st.Dev, e.st.Ino}
		if f.follow == 'L' && slices.Contains(above, id) {
			f.c.Errorf("File system loop detected; '%s' is part of the same file system loop", path)
			f.code = 1
			return
		}
		d, err := os.Open(path)
		if err != nil {
			f.problem(path, err)
		} else {
			list, err := d.Readdirnames(-1)
			d.Close()
			if err != nil {
				f.problem(path, err)
			}
			slices.Sort(list)
			sub := above
			if f.follow == 'L' {
				sub = append(slices.Clone(above), id)
			}
			for _, n := range list {
				p := path + "/" + n
				if strings.HasSuffix(path, "/") {
					p = path + n
				}
				f.visit(p, root, depth+1, dev, expr, sub)
			}
		}
	}
	if in && f.depthFirst && !f.quit {
		expr(f, e)
	}
}

func (f *finder) peek() string {
	if f.i < len(f.args) {
		return f.args[f.i]
	}
	return ""
}

func (f *finder) parseOr() (findExpr, error) {
	l, err := f.parseAnd()
	for err == nil && (f.peek() == "-o" || f.peek() == "-or" || f.peek() == ",") {
		op := f.peek()
		f.i++
		var r findExpr
		if r, err = f.parseAnd(); err != nil {
			break
		}
		a := l
		if op == "," {
			l = func(f *finder, e *found) bool { a(f, e); return r(f, e) }
		} else {
			l = func(f *finder, e *found) bool { return a(f, e) || r(f, e) }
		}
	}
	return l, err
}

func (f *finder) parseAnd() (findExpr, error) {
	l, err := f.parseNot()
	for err == nil && f.i < len(f.args) {
		p := f.peek()
		if p == "-o" || p == "-or" || p == ")" || p == "," {
			break
		}
		if p == "-a" || p == "-and" {
			f.i++
		}
		var r findExpr
		if r, err = f.parseNot(); err != nil {
			break
		}
		a := l
		l = func(f *finder, e *found) bool { return a(f, e) && r(f, e) }
	}
	return l, err
}

func (f *finder) parseNot() (findExpr, error) {
	if f.depth++; f.depth > 1000 {
		return nil, fmt.Errorf("expression nested too deeply")
	}
	defer func() { f.depth-- }()
	switch f.peek() {
	case "!", "-not":
		f.i++
		if f.i >= len(f.args) {
			return nil, fmt.Errorf("expected an expression after '!'")
		}
		x, err := f.parseNot()
		return func(f *finder, e *found) bool { return !x(f, e) }, err
	case "(":
		f.i++
		x, err := f.parseOr()
		if err == nil && f.peek() != ")" {
			err = fmt.Errorf("invalid expression; I was expecting to find a ')' somewhere but did not see one")
		}
		f.i++
		return x, err
	case "":
		if f.i >= len(f.args) {
			return nil, fmt.Errorf("an expression is missing")
		}
	}
	return f.primary()
}

func globRegexp(glob string, fold bool) (*regexp.Regexp, error) {
	expr, err := pattern.Regexp(glob, pattern.EntireString)
	if err != nil {
		expr = "^" + regexp.QuoteMeta(glob) + "$"
	}
	flags := "(?s"
	if fold {
		flags += "i"
	}
	return regexp.Compile(flags + ")" + expr)
}

// number reads +N, -N or N and returns a comparison.
func number(s string) (func(int64) bool, error) {
	sign := byte(0)
	n := s
	if n != "" && (n[0] == '+' || n[0] == '-') {
		sign, n = n[0], n[1:]
	}
	v, err := strconv.ParseInt(n, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("invalid number '%s'", s)
	}
	return func(x int64) bool {
		switch sign {
		case '+':
			return x > v
		case '-':
			return x < v
		}
		return x == v
	}, nil
}

func fileType(m fs.FileMode) byte {
	switch {
	case m.IsRegular():
		return 'f'
	case m.IsDir():
		return 'd'
	case m&fs.ModeSymlink != 0:
		return 'l'
	case m&fs.ModeNamedPipe != 0:
		return 'p'
	case m&fs.ModeSocket != 0:
		return 's'
	case m&fs.ModeCharDevice != 0:
		return 'c'
	}
	return 'b'
}

func (f *finder) primary() (findExpr, error) {
	name := f.args[f.i]
	f.i++
	arg := func() (string, error) {
		if f.i >= len(f.args) {
			return "", fmt.Errorf("missing argument to '%s'", name)
		}
		f.i++
		return f.args[f.i-1], nil
	}
	yes := func(*finder, *found) bool { return true }
	switch name {
	case "-true", "-noleaf", "-warn", "-nowarn":
		return yes, nil
	case "-false":
		return func(*finder, *found) bool { return false }, nil
	case "-depth", "-d":
		f.depthFirst = true
		return yes, nil
	case "-xdev", "-mount":
		f.oneFS = true
		return yes, nil
	case "-follow":
		f.follow = 'L'
		return yes, nil
	case "-daystart":
		y, m, d := f.now.Date()
		f.now = time.Date(y, m, d+1, 0, 0, 0, 0, f.now.Location())
		return yes, nil
	case "-print":
		f.acts = true
		return func(f *finder, e *found) bool { f.c.Printf("%s\n", e.path); return true }, nil
	case "-print0":
		f.acts = true
		return func(f *finder, e *found) bool { f.c.Printf("%s\x00", e.path); return true }, nil
	case "-ls":
		f.acts = true
		return func(f *finder, e *found) bool {
			l := &lister{c: f.c, long: true, inode: true, blocks: true, now: time.Now(), when: 'm'}
			if en, err := l.stat(e.path, e.path, false); err == nil {
				l.printLong([]lsEntry{en})
			}
			return true
		}, nil
	case "-prune":
		return func(_ *finder, e *found) bool { e.prune = true; return true }, nil
	case "-quit":
		f.acts = true
		return func(f *finder, _ *found) bool { f.quit = true; return true }, nil
	case "-delete":
		f.acts, f.depthFirst = true, true
		return func(f *finder, e *found) bool {
			if e.path == "." {
				return true
			}
			var err error
			if e.mode.IsDir() {
				err = unix.Rmdir(e.path)
			} else {
				err = unix.Unlink(e.path)
			}
			if err != nil {
				f.c.Errorf("cannot delete '%s': %s", e.path, tool.Reason(err))
				f.code = 1
			}
			return err == nil
		}, nil
	case "-empty":
		return func(_ *finder, e *found) bool {
			if e.mode.IsRegular() {
				return e.st.Size == 0
			}
			if !e.mode.IsDir() {
				return false
			}
			d, err := os.Open(e.path)
			if err != nil {
				return false
			}
			defer d.Close()
			l, _ := d.Readdirnames(1)
			return len(l) == 0
		}, nil
	case "-readable", "-writable", "-executable":
		mode := map[string]uint32{"-readable": unix.R_OK, "-writable": unix.W_OK, "-executable": unix.X_OK}[name]
		return func(_ *finder, e *found) bool {
			return unix.Faccessat(unix.AT_FDCWD, e.path, mode, unix.AT_EACCESS) == nil
		}, nil
	case "-nouser", "-nogroup":
		return func(f *finder, e *found) bool {
			id, n := int(e.st.Uid), f.ids.user(int(e.st.Uid))
			if name == "-nogroup" {
				id, n = int(e.st.Gid), f.ids.group(int(e.st.Gid))
			}
			return n == strconv.Itoa(id)
		}, nil
	case "-exec", "-execdir", "-ok", "-okdir":
		return f.exec(name)
	}
	switch name {
	case "-name", "-iname", "-path", "-ipath", "-wholename", "-iwholename", "-lname", "-ilname", "-regex", "-iregex", "-regextype",
		"-type", "-xtype", "-maxdepth", "-mindepth", "-size", "-mtime", "-atime", "-ctime", "-mmin", "-amin", "-cmin",
		"-newer", "-anewer", "-cnewer", "-newermt", "-newerat", "-newerct", "-perm", "-user", "-group", "-uid", "-gid", "-links", "-inum", "-samefile", "-printf", "-fprint", "-fprint0":
	default:
		return nil, fmt.Errorf("unknown predicate '%s'", name)
	}
	v, err := arg()
	if err != nil {
		return nil, err
	}
	return f.test(name, v)
}

func (f *finder) test(name, v string) (findExpr, error) {
	switch name {
	case "-name", "-iname", "-path", "-ipath", "-wholename", "-iwholename", "-lname", "-ilname":
		re, err := globRegexp(v, strings.HasPrefix(name, "-i"))
		if err != nil {
			return nil, err
		}
		return func(_ *finder, e *found) bool {
			switch {
			case strings.HasSuffix(name, "lname"):
				l, err := os.Readlink(e.path)
				return err == nil && re.MatchString(l)
			case strings.HasSuffix(name, "name") && !strings.HasSuffix(name, "wholename"):
				base := filepath.Base(e.path)
				return re.MatchString(base)
			}
			return re.MatchString(e.path)
		}, nil
	case "-regex", "-iregex":
		re, err := regex.Compile(v, regex.Flags{Extended: true, Fold: name == "-iregex", Line: true})
		if err != nil {
			return nil, err
		}
		return func(_ *finder, e *found) bool { return re.Match([]byte(e.path)) }, nil
	case "-regextype":
		if !strings.Contains(v, "extended") && v != "egrep" && v != "posix-awk" {
			return nil, fmt.Errorf("expressions of type '%s' are not supported; use posix-extended", v)
		}
		return func(*finder, *found) bool { return true }, nil
	case "-type", "-xtype":
		return func(_ *finder, e *found) bool {
			m := e.mode
			if name == "-xtype" {
				if st, err := os.Stat(e.path); err == nil {
					m = st.Mode()
				}
			}
			return strings.IndexByte(v, fileType(m)) >= 0
		}, f.checkType(v)
	case "-maxdepth", "-mindepth":
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("expected a positive decimal integer argument to %s, but got '%s'", name, v)
		}
		if name == "-maxdepth" {
			f.maxD = min(n, maxDepth)
		} else {
			f.minD = n
		}
		return func(*finder, *found) bool { return true }, nil
	case "-size":
		unit := int64(512)
		num := v
		if v != "" {
			if k := strings.IndexByte("cwbkMG", v[len(v)-1]); k >= 0 {
				unit = []int64{1, 2, 512, 1 << 10, 1 << 20, 1 << 30}[k]
				num = v[:len(v)-1]
			}
		}
		is, err := number(num)
		if err != nil {
			return nil, fmt.Errorf("invalid -size '%s'", v)
		}
		return func(_ *finder, e *found) bool { return is((e.st.Size + unit - 1) / unit) }, nil
	case "-mtime", "-atime", "-ctime", "-mmin", "-amin", "-cmin":
		is, err := number(v)
		if err != nil {
			return nil, fmt.Errorf("invalid argument '%s' to '%s'", v, name)
		}
		unit := int64(86400)
		if strings.HasSuffix(name, "min") {
			unit = 60
		}
		return func(f *finder, e *found) bool {
			age := f.now.Unix() - stamp(e.st, name[1]).Sec
			n := age / unit
			if unit == 60 && age%60 != 0 {
				n++ // minutes count as begun
			}
			return is(n)
		}, nil
	case "-newer", "-anewer", "-cnewer":
		st, err := os.Stat(v)
		if err != nil {
			return nil, fmt.Errorf("'%s': %s", v, tool.Reason(err))
		}
		which := byte('m')
		if name != "-newer" {
			which = name[1]
		}
		return func(_ *finder, e *found) bool {
			t := stamp(e.st, which)
			return time.Unix(t.Sec, t.Nsec).After(st.ModTime())
		}, nil
	case "-newermt", "-newerat", "-newerct":
		t0, err := tool.ParseDate(v, time.Now(), time.Local)
		if err != nil {
			return nil, fmt.Errorf("cannot understand '%s' as a date or time", v)
		}
		return func(_ *finder, e *found) bool {
			t := stamp(e.st, name[6])
			return time.Unix(t.Sec, t.Nsec).After(t0)
		}, nil
	case "-perm":
		mode, spec := byte(0), v
		if spec != "" && (spec[0] == '-' || spec[0] == '/') {
			mode, spec = spec[0], spec[1:]
		}
		want, err := tool.ParseMode(spec, 0, false, 0)
		if err != nil {
			return nil, fmt.Errorf("invalid mode '%s'", v)
		}
		return func(_ *finder, e *found) bool {
			have := e.st.Mode & 0o7777
			switch mode {
			case '-':
				return have&want == want
			case '/':
				return want == 0 || have&want != 0
			}
			return have == want
		}, nil
	case "-user", "-group", "-uid", "-gid":
		user := name == "-user" || name == "-uid"
		if name == "-uid" || name == "-gid" {
			is, err := number(v)
			return func(_ *finder, e *found) bool {
				if user {
					return is(int64(e.st.Uid))
				}
				return is(int64(e.st.Gid))
			}, err
		}
		var id int
		var err error
		if user {
			id, _, err = userID(v)
		} else {
			id, err = groupID(v)
		}
		return func(_ *finder, e *found) bool {
			if user {
				return int(e.st.Uid) == id
			}
			return int(e.st.Gid) == id
		}, err
	case "-links":
		is, err := number(v)
		return func(_ *finder, e *found) bool { return is(int64(e.st.Nlink)) }, err
	case "-inum":
		is, err := number(v)
		return func(_ *finder, e *found) bool { return is(int64(e.st.Ino)) }, err
	case "-samefile":
		var st unix.Stat_t
		if err := unix.Stat(v, &st); err != nil {
			return nil, fmt.Errorf("'%s': %s", v, tool.Reason(err))
		}
		return func(_ *finder, e *found) bool { return e.st.Ino == st.Ino && e.st.Dev == st.Dev }, nil
	case "-printf":
		f.acts = true
		return func(f *finder, e *found) bool { f.c.Stdout.WriteString(f.format(v, e)); return true }, nil
	case "-fprint", "-fprint0":
		f.acts = true
		out, ok := f.outputs[v]
		if !ok {
			file, err := os.Create(v)
			if err != nil {
				return nil, fmt.Errorf("'%s': %s", v, tool.Reason(err))
			}
			f.files = append(f.files, file)
			out = tool.NewOutput(file)
			f.outputs[v] = out
		}
		end := "\n"
		if name == "-fprint0" {
			end = "\x00"
		}
		return func(_ *finder, e *found) bool { out.WriteString(e.path + end); return true }, nil
	}
	return nil, fmt.Errorf("unknown predicate '%s'", name)
}

func (f *finder) checkType(v string) error {
	for _, t := range strings.Split(v, ",") {
		if len(t) != 1 || !strings.Contains("fdlpscb", t) {
			return fmt.Errorf("Unknown argument to -type: %s", v) //nolint:staticcheck // find's words
		}
	}
	return nil
}

func stamp(st *syscall.Stat_t, which byte) syscall.Timespec {
	switch which {
	case 'a':
		return st.Atim
	case 'c':
		return st.Ctim
	}
	return st.Mtim
}

// exec parses -exec and its relatives.
func (f *finder) exec(name string) (findExpr, error) {
	f.acts = true
	start := f.i
	for f.i < len(f.args) {
		a := f.args[f.i]
		if a == ";" || a == "+" && f.i > start && f.args[f.i-1] == "{}" && (name == "-exec" || name == "-execdir") {
			break
		}
		f.i++
	}
	if f.i >= len(f.args) || f.i == start {
		return nil, fmt.Errorf("missing argument to '%s'", name)
	}
	cmd := f.args[start:f.i]
	plus := f.args[f.i] == "+"
	f.i++
	inDir := strings.HasSuffix(name, "dir")
	if plus {
		b := &batch{cmd: cmd[:len(cmd)-1], inDir: inDir}
		f.batches = append(f.batches, b)
		return func(f *finder, e *found) bool {
			p, dir := e.path, ""
			if inDir {
				dir, p = filepath.Dir(p), "./"+filepath.Base(p)
			}
			if b.size+len(p) > maxBatch || inDir && b.dir != dir && len(b.args) > 0 {
				f.runBatch(b)
			}
			b.dir = dir
			b.args = append(b.args, p)
			b.size += len(p) + 9
			return true
		}, nil
	}
	return func(f *finder, e *found) bool {
		p, dir := e.path, ""
		if inDir {
			dir, p = filepath.Dir(p), "./"+filepath.Base(p)
		}
		args := make([]string, len(cmd))
		for i, a := range cmd {
			args[i] = strings.ReplaceAll(a, "{}", p)
		}
		if strings.HasPrefix(name, "-ok") {
			a := &answers{c: f.c}
			if !a.yes("%s ? ", strings.Join(args, " ")) {
				return false
			}
		}
		return f.command(args, dir)
	}, nil
}

func (f *finder) runBatch(b *batch) {
	if len(b.args) == 0 {
		return
	}
	if !f.command(append(slices.Clone(b.cmd), b.args...), b.dir) {
		f.code = 1
	}
	b.args, b.size = nil, 0
}

func (f *finder) command(args []string, dir string) bool {
	f.c.Stdout.Flush()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Stdin, cmd.Stderr, cmd.Stdout = f.c.Stdin, f.c.Stderr, f.c.Stdout
	if file := f.c.Stdout.File(); file != nil {
		cmd.Stdout = file
	}
	cmd.Env = shell.IgnoredEnv(os.Environ())
	err := cmd.Run()
	if err != nil {
		if _, ran := err.(*exec.ExitError); !ran {
			f.c.Errorf("'%s': %s", args[0], tool.Reason(err))
			f.code = 1
		}
	}
	return err == nil
}

// format expands a -printf format.
func (f *finder) format(spec string, e *found) string {
	var b bytes.Buffer
	for i := 0; i < len(spec); i++ {
		switch {
		case spec[i] == '\\' && i+1 < len(spec):
			i++
			switch spec[i] {
			case 'n':
				b.WriteByte('\n')
			case 't':
				b.WriteByte('\t')
			case '0':
				b.WriteByte(0)
			case 'r':
				b.WriteByte('\r')
			case '\\':
				b.WriteByte('\\')
			default:
				b.WriteString(spec[i-1 : i+1])
			}
			continue
		case spec[i] != '%' || i+1 >= len(spec):
			b.WriteByte(spec[i])
			continue
		}
		j := i + 1
		for j < len(spec) && strings.IndexByte("-+ #0123456789.", spec[j]) >= 0 {
			j++
		}
		flags := spec[i:j]
		if j >= len(spec) {
			b.WriteString(spec[i:])
			break
		}
		st := e.st
		var v string
		switch spec[j] {
		case '%':
			v = "%"
		case 'p':
			v = e.path
		case 'f':
			v = filepath.Base(e.path)
		case 'h':
			if k := strings.LastIndexByte(e.path, '/'); k > 0 {
				v = e.path[:k]
			} else if k < 0 {
				v = "."
			}
		case 'P':
			v = strings.TrimPrefix(strings.TrimPrefix(e.path, e.root), "/")
		case 'H':
			v = e.root
		case 's':
			v = strconv.FormatInt(st.Size, 10)
		case 'k':
			v = strconv.FormatInt((st.Blocks+1)/2, 10)
		case 'b':
			v = strconv.FormatInt(st.Blocks, 10)
		case 'm':
			v = strconv.FormatUint(uint64(st.Mode&0o7777), 8)
		case 'M':
			v = modeString(st.Mode)
		case 'u':
			v = f.ids.user(int(st.Uid))
		case 'g':
			v = f.ids.group(int(st.Gid))
		case 'U':
			v = strconv.Itoa(int(st.Uid))
		case 'G':
			v = strconv.Itoa(int(st.Gid))
		case 'i':
			v = strconv.FormatUint(st.Ino, 10)
		case 'n':
			v = strconv.FormatUint(uint64(st.Nlink), 10)
		case 'd':
			v = strconv.Itoa(e.depth)
		case 'y':
			v = string(fileType(e.mode))
		case 'l':
			v, _ = os.Readlink(e.path)
		case 't', 'a', 'c':
			which := spec[j]
			ts := stamp(st, which)
			v = time.Unix(ts.Sec, ts.Nsec).Format("Mon Jan _2 15:04:05.0000000000 2006")
		case 'T', 'A', 'C':
			if j+1 >= len(spec) {
				break
			}
			ts := stamp(st, spec[j]|0x20)
			t := time.Unix(ts.Sec, ts.Nsec)
			j++
			switch spec[j] {
			case '@':
				v = fmt.Sprintf("%d.%09d0", t.Unix(), t.Nanosecond())
			case '+':
				v = t.Format("2006-01-02+15:04:05.0000000000")
			case 'S', 'T', 'X':
				v = tool.FormatDate("%"+spec[j:j+1], t) + fmt.Sprintf(".%09d0", t.Nanosecond())
			default:
				v = tool.FormatDate("%"+spec[j:j+1], t)
			}
		default:
			v = spec[i : j+1]
			flags = "%"
		}
		fmt.Fprintf(&b, flags+"s", v)
		i = j
	}
	return b.String()
}
