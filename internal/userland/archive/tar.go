package archive

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"mvdan.cc/sh/v3/pattern"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// tarRun is one run of tar.
type tarRun struct {
	c        *tool.Context
	mode     byte // c, x, t or r
	file     string
	format   byte // 'z' gzip, 'Z' zstd, 'j' bzip2, 0 none
	verbose  int
	keepMode bool
	keepOld  bool
	stdout   bool
	noTime   bool
	owner    bool // restore owners
	numeric  bool
	deref    bool
	absolute bool
	strip    int
	exclude  []*regexp.Regexp
	uid, gid int
	uname    string
	gname    string
	sortName bool
	mtime    *time.Time
	perm     string
	unlink   bool
	noRec    bool
	layout   tar.Format

	failed bool
	seen   map[[2]uint64]string
	users  map[int]string
	groups map[int]string
	warned bool
	self   os.FileInfo
}

type tarOperand struct {
	name string
	dir  string // -C in force, "" for none
}

// Tar is the tar utility.
func Tar(c *tool.Context) int {
	t := &tarRun{c: c, file: "-", layout: tar.FormatGNU, seen: map[[2]uint64]string{}, uid: -1, gid: -1, owner: os.Geteuid() == 0, keepMode: os.Geteuid() == 0}
	args := c.Args
	// The old style: letters without a dash, their values in order.
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		letters := args[0]
		rest := args[1:]
		var out []string
		for i := range len(letters) {
			out = append(out, "-"+letters[i:i+1])
			if strings.IndexByte("fCTX", letters[i]) >= 0 {
				if len(rest) == 0 {
					return c.Fail(2, "option requires an argument -- '%c'", letters[i])
				}
				out = append(out, rest[0])
				rest = rest[1:]
			}
		}
		args = append(out, rest...)
	}
	// -C matters for the operands after it, so mark its places.
	c.Args = args
	opts, _, code, ok := c.Parse(tarSpec())
	if !ok {
		return code
	}
	operands := tarOperands(args)
	var err error
	var lists []string
	for _, o := range opts {
		switch o.Name {
		case "c", "x", "t", "r", "u":
			if t.mode != 0 && t.mode != o.Name[0] {
				return c.Fail(2, "you may not specify more than one '-Acdtrux' option")
			}
			if t.mode = o.Name[0]; t.mode == 'u' {
				return c.Fail(2, "option -u is not supported; use -r")
			}
		case "f":
			t.file = o.Arg
		case "z", "j":
			t.format = o.Name[0]
		case "zstd":
			t.format = 'Z'
		case "J":
			return c.Fail(2, "xz is not supported")
		case "a":
			switch {
			case strings.HasSuffix(t.file, "gz"):
				t.format = 'z'
			case strings.HasSuffix(t.file, "zst"):
				t.format = 'Z'
			}
		case "v":
			t.verbose++
		case "p":
			t.keepMode = true
		case "no-same-permissions":
			t.keepMode = false
		case "k":
			t.keepOld = true
		case "overwrite", "C", "wildcards": // the default, or handled with the operands
		case "unlink-first":
			t.unlink = true
		case "O":
			t.stdout = true
		case "m":
			t.noTime = true
		case "no-same-owner":
			t.owner = false
		case "same-owner":
			t.owner = true
		case "numeric-owner":
			t.numeric = true
		case "h":
			t.deref = true
		case "P":
			t.absolute = true
		case "strip-components":
			if t.strip, err = strconv.Atoi(o.Arg); err != nil || t.strip < 0 {
				return c.Fail(2, "%s: invalid number of elements", o.Arg)
			}
		case "exclude", "X":
			pats := []string{o.Arg}
			if o.Name == "X" {
				b, err := os.ReadFile(o.Arg)
				if err != nil {
					return c.Fail(2, "%s: %s", o.Arg, tool.Reason(err))
				}
				pats = strings.Split(strings.TrimRight(string(b), "\n"), "\n")
			}
			for _, p := range pats {
				re, err := excludePattern(p)
				if err != nil {
					return c.Fail(2, "invalid pattern '%s'", p)
				}
				t.exclude = append(t.exclude, re)
			}
		case "T":
			lists = append(lists, o.Arg)
		case "owner", "group":
			n, id, _ := strings.Cut(o.Arg, ":")
			if id == "" {
				id = n
			}
			v, err := strconv.Atoi(id)
			if err != nil {
				file := "/etc/passwd"
				if o.Name == "group" {
					file = "/etc/group"
				}
				err = fmt.Errorf("%s: invalid %s", o.Arg, o.Name)
				for _, a := range tool.Accounts(file) {
					if a.Name == n {
						v, err = a.ID, nil
					}
				}
				if err != nil {
					return c.Fail(2, "%v", err)
				}
			}
			if n == id {
				n = ""
			}
			if o.Name == "owner" {
				t.uid, t.uname = v, n
			} else {
				t.gid, t.gname = v, n
			}
		case "sort":
			if o.Arg != "name" && o.Arg != "none" {
				return c.Fail(2, "invalid argument '%s' for '--sort'", o.Arg)
			}
			t.sortName = o.Arg == "name"
		case "mtime":
			m, err := tool.ParseDate(o.Arg, time.Now(), time.Local)
			if err != nil {
				return c.Fail(2, "%v", err)
			}
			t.mtime = &m
		case "mode":
			t.perm = o.Arg
		case "no-recursion":
			t.noRec = true
		case "format":
			f, ok := map[string]tar.Format{"gnu": tar.FormatGNU, "pax": tar.FormatPAX, "posix": tar.FormatPAX, "ustar": tar.FormatUSTAR}[o.Arg]
			if !ok {
				return c.Fail(2, "%s: invalid archive format", o.Arg)
			}
			t.layout = f
		}
	}
	dir := ""
	if n := len(operands); n > 0 {
		dir = operands[n-1].dir
	}
	for _, l := range lists {
		r, err := c.Open(l)
		if err != nil {
			return c.Fail(2, "%s: %s", l, tool.Reason(err))
		}
		delim := byte('\n')
		for _, o := range opts {
			if o.Name == "null" {
				delim = 0
			}
		}
		err = tool.Lines(r, delim, func(line []byte, _ bool) bool {
			if len(line) > 0 {
				operands = append(operands, tarOperand{string(line), dir})
			}
			return true
		})
		r.Close()
		if err != nil {
			return c.Fail(2, "%s: %s", l, tool.Reason(err))
		}
	}
	switch t.mode {
	case 'c', 'r':
		err = t.create(operands, len(lists) > 0)
	case 'x', 't':
		err = t.extract(operands)
	default:
		return c.Fail(2, "you must specify one of the '-ctrx' options")
	}
	if err != nil {
		c.Errorf("%v", err)
		c.Errorf("error is not recoverable: exiting now")
		return 2
	}
	if t.failed {
		c.Errorf("exiting with failure status due to previous errors")
		return 2
	}
	return 0
}

func tarSpec() tool.Spec {
	return tool.Spec{Fail: 2, Short: "cxtruf:zjJavpkOmC:hPT:X:", Long: []string{"create|c", "extract|x", "get|x", "list|t", "append|r", "update|u", "file=|f", "gzip|z", "gunzip|z", "bzip2|j", "xz|J", "zstd", "auto-compress|a", "verbose|v",
		"preserve-permissions|p", "same-permissions|p", "no-same-permissions", "keep-old-files|k", "overwrite", "unlink-first", "to-stdout|O", "touch|m", "directory=|C", "no-same-owner", "same-owner", "numeric-owner",
		"dereference|h", "absolute-names|P", "strip-components=", "exclude=", "exclude-from=|X", "files-from=|T", "owner=", "group=", "sort=", "mtime=", "mode=", "format=", "null", "no-recursion", "wildcards"}}
}

// tarOperands walks the arguments again to find which -C each operand is
// under.
func tarOperands(args []string) []tarOperand {
	var out []tarOperand
	dir := ""
	chdir := func(d string) {
		if dir != "" && !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		dir = d
	}
	takes := func(long string) bool {
		for _, l := range tarSpec().Long {
			n, _, _ := strings.Cut(l, "|")
			if strings.HasSuffix(n, "=") && strings.HasPrefix(n, long) {
				return true
			}
		}
		return false
	}
	only := false
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case only || a == "-" || !strings.HasPrefix(a, "-"):
			out = append(out, tarOperand{a, dir})
		case a == "--":
			only = true
		case strings.HasPrefix(a, "--"):
			name, val, has := strings.Cut(a[2:], "=")
			if !has && takes(name) {
				if i++; i < len(args) {
					val = args[i]
				}
			}
			if strings.HasPrefix("directory", name) && len(name) > 1 {
				chdir(val)
			}
		default:
			for j := 1; j < len(a); j++ {
				if strings.IndexByte("fCTX", a[j]) < 0 {
					continue
				}
				val := a[j+1:]
				if val == "" {
					if i++; i < len(args) {
						val = args[i]
					}
				}
				if a[j] == 'C' {
					chdir(val)
				}
				break
			}
		}
	}
	if len(out) == 0 && dir != "" {
		out = append(out, tarOperand{"", dir})
	}
	return out
}

// excludePattern matches a name, or its part after any slash, and what is
// below it. A * matches slashes too, as in GNU tar.
func excludePattern(p string) (*regexp.Regexp, error) {
	expr, err := pattern.Regexp(strings.TrimSuffix(p, "/"), 0)
	if err != nil {
		return nil, err
	}
	return regexp.Compile(`(?s)(?:^|/)(?:` + strings.TrimPrefix(expr, "(?s)") + `)(?:/|$)`)
}

func (t *tarRun) excluded(name string) bool {
	for _, re := range t.exclude {
		if re.MatchString(name) {
			return true
		}
	}
	return false
}

func (t *tarRun) fail(format string, args ...any) {
	t.c.Errorf(format, args...)
	t.failed = true
}

// create writes an archive, or appends to one.
func (t *tarRun) create(ops []tarOperand, listed bool) error {
	var names []tarOperand
	for _, o := range ops {
		if o.name != "" {
			names = append(names, o)
		}
	}
	if len(names) == 0 && !listed {
		return errors.New("cowardly refusing to create an empty archive")
	}
	t.users, t.groups = map[int]string{}, map[int]string{}
	for _, a := range tool.Accounts("/etc/passwd") {
		t.users[a.ID] = a.Name
	}
	for _, a := range tool.Accounts("/etc/group") {
		t.groups[a.ID] = a.Name
	}
	var w io.Writer = t.c.Stdout
	var file *os.File
	switch {
	case t.mode == 'r':
		f, err := openAppend(t.file)
		if err != nil {
			return fmt.Errorf("%s: cannot open: %s", t.file, tool.Reason(err))
		}
		if t.format != 0 {
			f.Close()
			return errors.New("cannot update compressed archives")
		}
		file, w = f, f
	case t.file != "-":
		f, err := os.Create(t.file)
		if err != nil {
			return fmt.Errorf("%s: cannot open: %s", t.file, tool.Reason(err))
		}
		file, w = f, f
	case t.c.Stdout.File() != nil && isTTY(t.c.Stdout.File()):
		return errors.New("refusing to write archive contents to terminal (missing -f option?)")
	}
	if file != nil {
		t.self, _ = file.Stat()
	}
	bw := bufio.NewWriterSize(w, 64<<10)
	var out io.Writer = bw
	closeZ := func() error { return nil }
	switch t.format {
	case 'z':
		z := gzip.NewWriter(bw)
		out, closeZ = z, z.Close
	case 'Z':
		z, err := zstd.NewWriter(bw, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		out, closeZ = z, z.Close
	case 'j':
		return errors.New("bzip2 can only be read")
	}
	tw := tar.NewWriter(out)
	for _, o := range names {
		t.add(tw, o.dir, o.name, 0)
		if t.c.Stdout.Err() != nil {
			return t.c.Stdout.Err()
		}
	}
	err := errors.Join(tw.Close(), closeZ(), bw.Flush())
	if file != nil {
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return fmt.Errorf("%s: cannot write: %s", t.file, tool.Reason(err))
	}
	return nil
}

// openAppend opens an archive for appending, positioned at its end mark.
func openAppend(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	tr := tar.NewReader(f)
	end := int64(0)
	for {
		_, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			if _, err = io.Copy(io.Discard, tr); err == nil {
				end, err = f.Seek(0, io.SeekCurrent)
				end = (end + 511) / 512 * 512
			}
		}
		if err != nil {
			f.Close()
			return nil, err
		}
	}
	if err := f.Truncate(end); err != nil {
		f.Close()
		return nil, err
	}
	_, err = f.Seek(end, io.SeekStart)
	return f, err
}

// maxDepth bounds recursion into directories.
const maxDepth = 4096

func (t *tarRun) add(tw *tar.Writer, dir, name string, depth int) {
	if t.excluded(strings.TrimSuffix(name, "/")) {
		return
	}
	real := name
	if dir != "" && !filepath.IsAbs(name) {
		real = dir + "/" + name
	}
	stat := os.Lstat
	if t.deref {
		stat = os.Stat
	}
	st, err := stat(real)
	if err != nil {
		t.fail("%s: cannot stat: %s", name, tool.Reason(err))
		return
	}
	if depth > maxDepth {
		t.fail("%s: directories nested too deeply", name)
		return
	}
	if t.self != nil && os.SameFile(st, t.self) {
		t.c.Errorf("%s: file is the archive; not dumped", name)
		return
	}
	stored := name
	if !t.absolute {
		for strings.HasPrefix(stored, "/") || strings.HasPrefix(stored, "../") {
			if !t.warned {
				t.warned = true
				prefix := "/"
				if stored[0] != '/' {
					prefix = "../"
				}
				t.c.Errorf("removing leading `%s' from member names", prefix)
			}
			stored = strings.TrimPrefix(strings.TrimLeft(stored, "/"), "../")
		}
		if stored == "" {
			stored = "."
		}
	}
	link := ""
	if st.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(real); err != nil {
			t.fail("%s: cannot readlink: %s", name, tool.Reason(err))
			return
		}
	}
	if st.Mode()&fs.ModeSocket != 0 {
		t.c.Errorf("%s: socket ignored", name)
		return
	}
	h, err := tar.FileInfoHeader(st, link)
	if err != nil {
		t.fail("%s: %v", name, err)
		return
	}
	h.Name = stored
	if st.IsDir() && !strings.HasSuffix(stored, "/") {
		h.Name += "/"
	}
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	h.ModTime = h.ModTime.Truncate(time.Second)
	h.Format = t.layout
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		h.Uname, h.Gname = t.users[int(sys.Uid)], t.groups[int(sys.Gid)]
		if sys.Nlink > 1 && st.Mode().IsRegular() {
			id := [2]uint64{sys.Dev, sys.Ino}
			if first, dup := t.seen[id]; dup {
				h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			} else {
				t.seen[id] = h.Name
			}
		}
	}
	if t.uid >= 0 {
		h.Uid, h.Uname = t.uid, t.uname
	}
	if t.gid >= 0 {
		h.Gid, h.Gname = t.gid, t.gname
	}
	if t.numeric {
		h.Uname, h.Gname = "", ""
	}
	if t.mtime != nil {
		h.ModTime = *t.mtime
	}
	if t.perm != "" {
		m, err := tool.ParseMode(t.perm, uint32(h.Mode), st.IsDir(), 0)
		if err != nil {
			t.fail("%v", err)
			return
		}
		h.Mode = int64(m)
	}
	var f *os.File
	if h.Typeflag == tar.TypeReg {
		if f, err = os.Open(real); err != nil {
			t.fail("%s: cannot open: %s", name, tool.Reason(err))
			return
		}
		defer f.Close()
	}
	if err := tw.WriteHeader(h); err != nil {
		t.fail("%s: %v", name, err)
		return
	}
	t.show(h, t.mode != 'x' && t.file == "-")
	if f != nil {
		n, err := io.Copy(tw, io.LimitReader(f, h.Size))
		if err == nil && n < h.Size {
			t.fail("%s: file shrank by %d bytes; padding with zeros", name, h.Size-n)
			_, err = io.CopyN(tw, zeros{}, h.Size-n)
		}
		if err != nil {
			t.fail("%s: %s", name, tool.Reason(err))
		}
	}
	if !st.IsDir() || t.noRec {
		return
	}
	list, err := os.ReadDir(real)
	if err != nil {
		t.fail("%s: cannot open: %s", name, tool.Reason(err))
	}
	for _, e := range list {
		t.add(tw, dir, strings.TrimSuffix(name, "/")+"/"+e.Name(), depth+1)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// show prints a member for -v and -t; to standard error when the archive goes
// to standard output.
func (t *tarRun) show(h *tar.Header, toErr bool) {
	level := t.verbose
	if t.mode == 't' {
		level++
	}
	if level == 0 {
		return
	}
	line := h.Name
	if level > 1 {
		user, group := h.Uname, h.Gname
		if user == "" || t.numeric {
			user = strconv.Itoa(h.Uid)
		}
		if group == "" || t.numeric {
			group = strconv.Itoa(h.Gid)
		}
		size := strconv.FormatInt(h.Size, 10)
		if h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock {
			size = fmt.Sprintf("%d,%d", h.Devmajor, h.Devminor)
		}
		who := user + "/" + group
		line = fmt.Sprintf("%s %s %*s %s %s", memberMode(h), who, max(len(size), 19-len(who)-1), size, h.ModTime.Local().Format("2006-01-02 15:04"), h.Name)
		switch h.Typeflag {
		case tar.TypeSymlink:
			line += " -> " + h.Linkname
		case tar.TypeLink:
			line += " link to " + h.Linkname
		}
	}
	if toErr || t.stdout {
		fmt.Fprintln(t.c.Stderr, line)
		return
	}
	t.c.Printf("%s\n", line)
}

func memberMode(h *tar.Header) string {
	kind := map[byte]byte{tar.TypeDir: 'd', tar.TypeSymlink: 'l', tar.TypeLink: 'h', tar.TypeChar: 'c', tar.TypeBlock: 'b', tar.TypeFifo: 'p'}[h.Typeflag]
	if kind == 0 {
		kind = '-'
	}
	b := []byte("?rwxrwxrwx")
	b[0] = kind
	for i := range 9 {
		if h.Mode&(0o400>>i) == 0 {
			b[i+1] = '-'
		}
	}
	for i, s := range []struct {
		bit  int64
		at   int
		c, n byte
	}{{0o4000, 3, 's', 'S'}, {0o2000, 6, 's', 'S'}, {0o1000, 9, 't', 'T'}} {
		_ = i
		if h.Mode&s.bit != 0 {
			if b[s.at] == 'x' {
				b[s.at] = s.c
			} else {
				b[s.at] = s.n
			}
		}
	}
	return string(b)
}

// selected reports whether a member was asked for.
func selected(name string, ops []tarOperand, hit []bool) bool {
	any, ok := false, false
	n := strings.TrimSuffix(name, "/")
	for i, o := range ops {
		if o.name == "" {
			continue
		}
		any = true
		want := strings.TrimSuffix(o.name, "/")
		m := n == want || strings.HasPrefix(n, want+"/")
		if !m && strings.ContainsAny(want, "*?[") {
			m, _ = path.Match(want, n)
		}
		if m {
			hit[i], ok = true, true
		}
	}
	return ok || !any
}

// pendingDir is a directory whose attributes are set when all is there.
type pendingDir struct {
	name string
	h    *tar.Header
}

func (t *tarRun) extract(ops []tarOperand) error {
	var in io.Reader = t.c.Stdin
	if t.file != "-" {
		f, err := os.Open(t.file)
		if err != nil {
			return fmt.Errorf("%s: cannot open: %s", t.file, tool.Reason(err))
		}
		defer f.Close()
		in = f
	} else if f, ok := in.(*os.File); ok && isTTY(f) {
		return errors.New("refusing to read archive contents from terminal (missing -f option?)")
	}
	r, closeR, err := decompress(in)
	if err != nil {
		return errors.New(reason(err))
	}
	defer closeR()
	dir := "."
	for _, o := range ops {
		if o.dir != "" {
			dir = o.dir
		}
	}
	var x *extractor
	if t.mode == 'x' && !t.stdout {
		if x, err = newExtractor(t, dir); err != nil {
			return fmt.Errorf("%s: cannot open: %s", dir, tool.Reason(err))
		}
		defer x.close()
	}
	hit := make([]bool, len(ops))
	tr := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			if n == 0 && errors.Is(err, tar.ErrHeader) {
				return errors.New("this does not look like a tar archive")
			}
			return errors.New(reason(err))
		}
		if h.Typeflag == tar.TypeXGlobalHeader || !selected(h.Name, ops, hit) || t.excluded(strings.TrimSuffix(h.Name, "/")) {
			continue
		}
		if t.mode == 't' {
			t.show(h, false)
		} else if t.stdout {
			if h.Typeflag == tar.TypeReg {
				t.show(h, true)
				if _, err := io.Copy(t.c.Stdout, tr); err != nil {
					return errors.New(reason(err))
				}
			}
		} else {
			if t.strip > 0 {
				name, ok := stripName(h.Name, t.strip)
				if !ok {
					continue
				}
				h.Name = name
				if h.Typeflag == tar.TypeLink {
					if h.Linkname, ok = stripName(h.Linkname, t.strip); !ok {
						continue
					}
				}
			}
			t.show(h, false)
			if err := x.member(h, tr); err != nil {
				if errors.Is(err, errArchive) {
					return err
				}
				t.fail("%s: %s", h.Name, tool.Reason(err))
			}
		}
		if t.c.Stdout.Err() != nil {
			return t.c.Stdout.Err()
		}
	}
	// Read on, so that whoever writes the archive can finish.
	_, _ = io.Copy(io.Discard, r)
	if x != nil {
		x.finish()
	}
	for i, o := range ops {
		if o.name != "" && !hit[i] {
			t.fail("%s: not found in archive", o.name)
		}
	}
	return nil
}

func stripName(name string, n int) (string, bool) {
	parts := slices.DeleteFunc(strings.Split(name, "/"), func(s string) bool { return s == "" || s == "." })
	if len(parts) <= n {
		return "", false
	}
	return strings.Join(parts[n:], "/"), true
}

var errArchive = errors.New("damaged archive")
