package files

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// Pwd prints the working directory.
func Pwd(c *tool.Context) int {
	opts, _, code, ok := c.Parse(tool.Spec{Short: "LP", Long: []string{"logical|L", "physical|P"}})
	if !ok {
		return code
	}
	logical := false
	for _, o := range opts {
		logical = o.Name == "L"
	}
	if p := os.Getenv("PWD"); logical && filepath.IsAbs(p) {
		a, e1 := os.Stat(p)
		b, e2 := os.Stat(".")
		if e1 == nil && e2 == nil && os.SameFile(a, b) {
			c.Printf("%s\n", p)
			return 0
		}
	}
	var buf [unix.PathMax]byte
	n, err := unix.Getcwd(buf[:])
	if err != nil {
		return c.Fail(1, "%s", tool.Reason(err))
	}
	c.Printf("%s\n", buf[:n-1])
	return 0
}

// Basename strips directories and a suffix from names.
func Basename(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "as:z", InOrder: true, Long: []string{"multiple|a", "suffix=|s", "zero|z"}})
	if !ok {
		return code
	}
	multiple, suffix, end := false, "", "\n"
	for _, o := range opts {
		switch o.Name {
		case "a":
			multiple = true
		case "s":
			multiple, suffix = true, o.Arg
		case "z":
			end = "\x00"
		}
	}
	hi := -1
	if !multiple {
		hi = 2
	}
	if !c.Operands(ops, 1, hi) {
		return 1
	}
	if !multiple && len(ops) == 2 {
		suffix, ops = ops[1], ops[:1]
	}
	for _, o := range ops {
		b := o
		if t := strings.TrimRight(o, "/"); t != "" {
			b = t[strings.LastIndexByte(t, '/')+1:]
		} else if o != "" {
			b = "/"
		}
		if b != suffix {
			b = strings.TrimSuffix(b, suffix)
		}
		c.Printf("%s%s", b, end)
	}
	return 0
}

// Dirname strips the last part of names.
func Dirname(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "z", Long: []string{"zero|z"}})
	if !ok {
		return code
	}
	end := "\n"
	if len(opts) > 0 {
		end = "\x00"
	}
	if !c.Operands(ops, 1, -1) {
		return 1
	}
	for _, o := range ops {
		d := "."
		t := strings.TrimRight(o, "/")
		switch i := strings.LastIndexByte(t, '/'); {
		case t == "" && o != "":
			d = "/"
		case i >= 0:
			if d = strings.TrimRight(t[:i], "/"); d == "" {
				d = "/"
			}
		}
		c.Printf("%s%s", d, end)
	}
	return 0
}

// maxLinks bounds the links followed while a path is resolved.
const maxLinks = 40

// canonical resolves links, dots and double slashes. missing tells how many
// parts need not exist: 0 none, 1 the last, 2 any.
func canonical(path string, missing int) (string, error) {
	abs := path
	if !strings.HasPrefix(path, "/") {
		wd, err := os.Getwd()
		if err != nil {
			return "", err
		}
		abs = wd + "/" + path
	}
	if path == "" {
		return "", unix.ENOENT
	}
	out, rest, links := "", abs, 0
	trailing := strings.HasSuffix(path, "/")
	for {
		rest = strings.TrimLeft(rest, "/")
		if rest == "" {
			break
		}
		part, after, _ := strings.Cut(rest, "/")
		rest = after
		if part == "." {
			continue
		}
		if part == ".." {
			if i := strings.LastIndexByte(out, '/'); i >= 0 {
				out = out[:i]
			}
			continue
		}
		p := out + "/" + part
		last := strings.Trim(rest, "/") == ""
		st, err := os.Lstat(p)
		switch {
		case err != nil:
			gone := errors.Is(err, fs.ErrNotExist)
			if missing == 2 || missing == 1 && last && gone {
				out = p
				continue
			}
			return "", err
		case st.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return "", unix.ELOOP
			}
			to, err := os.Readlink(p)
			if err != nil {
				return "", err
			}
			if strings.HasPrefix(to, "/") {
				out = ""
			}
			rest = to + "/" + rest
			continue
		case !last && !st.IsDir() && missing < 2:
			return "", unix.ENOTDIR
		case last && trailing && !st.IsDir() && missing < 2:
			return "", unix.ENOTDIR
		}
		out = p
	}
	if out == "" {
		out = "/"
	}
	return out, nil
}

// Readlink is the readlink utility.
func Readlink(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "femnqsvz", Long: []string{"canonicalize|f", "canonicalize-existing|e", "canonicalize-missing|m", "no-newline|n", "quiet|q", "silent|s", "verbose|v", "zero|z"}})
	if !ok {
		return code
	}
	mode, end, verbose := byte(0), "\n", false
	for _, o := range opts {
		switch o.Name {
		case "f", "e", "m":
			mode = o.Name[0]
		case "n":
			end = ""
		case "z":
			end = "\x00"
		case "v":
			verbose = true
		case "q", "s":
			verbose = false
		}
	}
	if !c.Operands(ops, 1, -1) {
		return 1
	}
	if len(ops) > 1 && end == "" {
		end = "\n"
	}
	for _, o := range ops {
		var s string
		var err error
		if mode == 0 {
			s, err = os.Readlink(o)
		} else {
			s, err = canonical(o, strings.IndexByte("efm", mode))
		}
		if err != nil {
			if verbose {
				c.Errorf("%s: %s", o, tool.Reason(err))
			}
			code = 1
			continue
		}
		c.Printf("%s%s", s, end)
	}
	return code
}

// Realpath is the realpath utility.
func Realpath(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "emsqz", Long: []string{"canonicalize-existing|e", "canonicalize-missing|m", "strip|s", "no-symlinks|s", "quiet|q", "zero|z", "relative-to="}})
	if !ok {
		return code
	}
	missing, strip, quiet, end, base := 1, false, false, "\n", ""
	for _, o := range opts {
		switch o.Name {
		case "e":
			missing = 0
		case "m":
			missing = 2
		case "s":
			strip = true
		case "q":
			quiet = true
		case "z":
			end = "\x00"
		case "relative-to":
			base = o.Arg
		}
	}
	if !c.Operands(ops, 1, -1) {
		return 1
	}
	resolve := func(p string) (string, error) {
		if strip {
			return filepath.Abs(p)
		}
		return canonical(p, missing)
	}
	for _, o := range ops {
		s, err := resolve(o)
		if err == nil && base != "" {
			var b string
			if b, err = resolve(base); err == nil {
				s, err = filepath.Rel(b, s)
			}
		}
		if err != nil {
			if !quiet {
				c.Errorf("%s: %s", o, tool.Reason(err))
			}
			code = 1
			continue
		}
		c.Printf("%s%s", s, end)
	}
	return code
}

// Mktemp makes a temporary file or directory.
func Mktemp(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "dqp:ut", Long: []string{"directory|d", "quiet|q", "tmpdir?|p", "dry-run|u", "suffix="}})
	if !ok {
		return code
	}
	dir, isDir, quiet, dry, suffix := "", false, false, false, ""
	tmp := os.Getenv("TMPDIR")
	if tmp == "" {
		tmp = "/tmp"
	}
	for _, o := range opts {
		switch o.Name {
		case "d":
			isDir = true
		case "q":
			quiet = true
		case "p":
			if dir = o.Arg; dir == "" {
				dir = tmp
			}
		case "u":
			dry = true
		case "t":
			dir = tmp
		case "suffix":
			suffix = o.Arg
		}
	}
	if !c.Operands(ops, 0, 1) {
		return 1
	}
	template := "tmp.XXXXXXXXXX"
	if len(ops) == 1 {
		template = ops[0]
	} else if dir == "" {
		dir = tmp
	}
	end := strings.LastIndexByte(template, 'X') + 1
	if suffix == "" {
		suffix, template = template[end:], template[:end]
	}
	n := len(template) - len(strings.TrimRight(template, "X"))
	if n < 3 {
		return c.Fail(1, "too few X's in template '%s'", template)
	}
	prefix := template[:len(template)-n]
	if dir != "" {
		prefix = strings.TrimSuffix(dir, "/") + "/" + prefix
	}
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	var name string
	var err error
	for range 100 {
		b := make([]byte, n)
		_, _ = rand.Read(b)
		for i := range b {
			b[i] = letters[int(b[i])%len(letters)]
		}
		name = prefix + string(b) + suffix
		switch {
		case dry:
			if _, err = os.Lstat(name); err == nil {
				err = fs.ErrExist
			} else {
				err = nil
			}
		case isDir:
			err = os.Mkdir(name, 0o700)
		default:
			var f *os.File
			if f, err = os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err == nil {
				f.Close()
			}
		}
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err != nil {
		if !quiet {
			what := "file"
			if isDir {
				what = "directory"
			}
			c.Errorf("failed to create %s via template '%s': %s", what, prefix+strings.Repeat("X", n)+suffix, tool.Reason(err))
		}
		return 1
	}
	c.Printf("%s\n", name)
	return 0
}

// Sync writes caches to disk: of all file systems, or of the named files.
func Sync(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "df", Long: []string{"data|d", "file-system|f"}})
	if !ok {
		return code
	}
	if len(ops) == 0 {
		unix.Sync()
		return 0
	}
	for _, name := range ops {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			switch {
			case len(opts) > 0 && opts[0].Name == "f":
				err = unix.Syncfs(fd)
			case len(opts) > 0:
				err = unix.Fdatasync(fd)
			default:
				err = unix.Fsync(fd)
			}
			unix.Close(fd)
		}
		if err != nil {
			c.Errorf("error syncing '%s': %s", name, tool.Reason(err))
			code = 1
		}
	}
	return code
}

// Mkfifo makes named pipes.
func Mkfifo(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "m:", Long: []string{"mode=|m"}})
	if !ok {
		return code
	}
	mode := uint32(0o666)
	for _, o := range opts {
		var err error
		if mode, err = tool.ParseMode(o.Arg, 0o666, false, umask()); err != nil {
			return c.Fail(1, "%v", err)
		}
	}
	if !c.Operands(ops, 1, -1) {
		return 1
	}
	for _, name := range ops {
		err := unix.Mkfifo(name, mode)
		if err == nil && len(opts) > 0 {
			err = unix.Chmod(name, mode)
		}
		if err != nil {
			c.Errorf("cannot create fifo '%s': %s", name, tool.Reason(err))
			code = 1
		}
	}
	return code
}

// Dd copies blocks.
func Dd(c *tool.Context) int {
	in, out := "", ""
	ibs, obs, count, skip, seek := int64(512), int64(512), int64(-1), int64(0), int64(0)
	conv := map[string]bool{}
	flags := map[string]bool{}
	status := ""
	for _, a := range c.Args {
		k, v, ok := strings.Cut(a, "=")
		if !ok {
			if a == "--help" {
				c.Printf("Usage: dd [if=FILE] [of=FILE] [bs=N] [ibs=N] [obs=N] [count=N] [skip=N] [seek=N] [conv=LIST] [iflag=LIST] [oflag=LIST] [status=none|noxfer]\n")
				return 0
			}
			return c.Fail(1, "unrecognized operand '%s'", a)
		}
		var err error
		num := func(p *int64) {
			total := int64(1)
			for _, f := range strings.Split(v, "x") {
				var n int64
				if n, err = tool.ParseSize(f); err != nil {
					return
				}
				if n != 0 && total > (1<<62)/n {
					err = errors.New("value too large")
					return
				}
				total *= n
			}
			*p = total
		}
		switch k {
		case "if":
			in = v
		case "of":
			out = v
		case "bs":
			num(&ibs)
			obs = ibs
		case "ibs":
			num(&ibs)
		case "obs":
			num(&obs)
		case "count":
			if strings.HasSuffix(v, "B") {
				v = strings.TrimSuffix(v, "B")
				flags["count_bytes"] = true
			}
			num(&count)
		case "skip", "iseek":
			num(&skip)
		case "seek", "oseek":
			num(&seek)
		case "status":
			if v != "none" && v != "noxfer" && v != "progress" {
				return c.Fail(1, "invalid status level: '%s'", v)
			}
			status = v
		case "conv", "iflag", "oflag":
			for _, f := range strings.Split(v, ",") {
				switch f {
				case "notrunc", "nocreat", "excl", "noerror", "sync", "fsync", "fdatasync", "ucase", "lcase", "swab", "sparse":
					if k != "conv" && f != "sync" {
						return c.Fail(1, "invalid flag: '%s'", f)
					}
					conv[f] = true
				case "append", "fullblock", "count_bytes", "skip_bytes", "seek_bytes", "nofollow":
					if k == "conv" {
						return c.Fail(1, "invalid conversion: '%s'", f)
					}
					flags[f] = true
				default:
					return c.Fail(1, "%s=%s is not supported", k, f)
				}
			}
		default:
			return c.Fail(1, "unrecognized operand '%s'", a)
		}
		if err != nil {
			return c.Fail(1, "invalid number: '%s'", v)
		}
	}
	if ibs < 1 || obs < 1 || ibs > 1<<30 || obs > 1<<30 {
		return c.Fail(1, "invalid block size")
	}
	var r io.Reader = c.Stdin
	if in != "" {
		f, err := os.Open(in)
		if err != nil {
			return c.Fail(1, "failed to open '%s': %s", in, tool.Reason(err))
		}
		defer f.Close()
		r = f
	}
	skipBytes := skip * ibs
	if flags["skip_bytes"] {
		skipBytes = skip
	}
	if skipBytes > 0 {
		skipped := false
		if s, ok := r.(io.Seeker); ok {
			_, err := s.Seek(skipBytes, io.SeekCurrent)
			skipped = err == nil
		}
		if !skipped {
			if _, err := io.CopyN(io.Discard, r, skipBytes); err != nil && err != io.EOF {
				return c.Fail(1, "cannot skip: %s", tool.Reason(err))
			}
		}
	}
	seekBytes := seek * obs
	if flags["seek_bytes"] {
		seekBytes = seek
	}
	var w io.Writer = c.Stdout
	var file *os.File
	if out != "" {
		mode := os.O_WRONLY | os.O_CREATE
		if conv["nocreat"] {
			mode = os.O_WRONLY
		}
		if conv["excl"] {
			mode |= os.O_EXCL
		}
		if flags["append"] {
			mode |= os.O_APPEND
		}
		if !conv["notrunc"] && seekBytes == 0 && !flags["append"] {
			mode |= os.O_TRUNC
		}
		f, err := os.OpenFile(out, mode, 0o666)
		if err != nil {
			return c.Fail(1, "failed to open '%s': %s", out, tool.Reason(err))
		}
		defer f.Close()
		if seekBytes > 0 {
			if !conv["notrunc"] {
				if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
					if err := f.Truncate(seekBytes); err != nil {
						return c.Fail(1, "failed to truncate '%s': %s", out, tool.Reason(err))
					}
				}
			}
			if _, err := f.Seek(seekBytes, io.SeekStart); err != nil {
				return c.Fail(1, "cannot seek '%s': %s", out, tool.Reason(err))
			}
		}
		w, file = f, f
	} else if f := c.Stdout.File(); f != nil {
		w = f
		if seekBytes > 0 {
			if _, err := f.Seek(seekBytes, io.SeekCurrent); err != nil {
				return c.Fail(1, "cannot seek standard output: %s", tool.Reason(err))
			}
		}
	}
	d := &ddRun{r: r, w: w, file: file, obs: int(obs), conv: conv}
	start := time.Now()
	code := 0
	if err := d.run(int(ibs), count, flags["fullblock"], flags["count_bytes"]); err != nil {
		c.Errorf("%s", err)
		code = 1
	}
	if file != nil {
		var err error
		switch {
		case conv["fsync"]:
			err = file.Sync()
		case conv["fdatasync"]:
			err = unix.Fdatasync(int(file.Fd()))
		}
		if err != nil {
			code = c.Fail(1, "sync failed: %s", tool.Reason(err))
		}
	}
	if status != "none" {
		say := func(format string, args ...any) { _, _ = io.WriteString(c.Stderr, sprintf(format, args...)) }
		say("%d+%d records in\n%d+%d records out\n", d.inFull, d.inPart, d.outFull, d.outPart)
		if status != "noxfer" {
			el := time.Since(start).Seconds()
			say("%d bytes copied, %s s, %s/s\n", d.total, strconv.FormatFloat(el, 'f', 6, 64), tool.HumanSize(uint64(float64(d.total)/max(el, 1e-9))))
		}
	}
	return code
}
