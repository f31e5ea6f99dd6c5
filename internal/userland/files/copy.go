package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// copier is one run of cp, mv or install.
type copier struct {
	c                                      *tool.Context
	recursive, force, noClobber, ask       bool
	update, verbose, link, symlink         bool
	keepMode, keepOwner, keepTime, keepX   bool
	keepLinks, follow, followArgs, parents bool
	oneFS, attrsOnly, removeFirst          bool
	failed                                 bool
	moving                                 bool
	made                                   map[[2]uint64]string // copies of files with several names
	answers                                *answers
}

func (k *copier) fail(format string, args ...any) bool {
	k.c.Errorf(format, args...)
	k.failed = true
	return false
}

// Cp is the cp utility.
func Cp(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "rRafpidnuvlsLPHTt:xb", Long: []string{"recursive|r", "archive|a", "force|f", "interactive|i", "no-clobber|n", "update?|u", "verbose|v", "link|l", "symbolic-link|s", "dereference|L", "no-dereference|P", "preserve?", "no-preserve=", "no-target-directory|T", "target-directory=|t", "one-file-system|x", "parents", "attributes-only", "remove-destination", "reflink?", "sparse="}})
	if !ok {
		return code
	}
	k := &copier{c: c, made: map[[2]uint64]string{}}
	target, noDir := "", false
	deref := byte(0)
	for _, o := range opts {
		switch o.Name {
		case "r", "R":
			k.recursive = true
		case "a":
			k.recursive, k.keepMode, k.keepOwner, k.keepTime, k.keepLinks, k.keepX = true, true, true, true, true, true
			deref = 'P'
		case "d":
			k.keepLinks = true
			deref = 'P'
		case "f":
			k.force = true
		case "i":
			k.ask, k.noClobber = true, false
		case "n":
			k.noClobber, k.ask = true, false
		case "p":
			k.keepMode, k.keepOwner, k.keepTime = true, true, true
		case "preserve", "no-preserve":
			on := o.Name == "preserve"
			list := o.Arg
			if list == "" {
				list = "mode,ownership,timestamps"
			}
			for _, w := range strings.Split(list, ",") {
				switch w {
				case "mode":
					k.keepMode = on
				case "ownership":
					k.keepOwner = on
				case "timestamps":
					k.keepTime = on
				case "links":
					k.keepLinks = on
				case "xattr":
					k.keepX = on
				case "all":
					k.keepMode, k.keepOwner, k.keepTime, k.keepLinks, k.keepX = on, on, on, on, on
				default:
					return c.Fail(1, "invalid argument '%s' for '--%s'", w, o.Name)
				}
			}
		case "u":
			if o.Arg != "" && o.Arg != "older" {
				return c.Fail(1, "invalid argument '%s' for '--update'", o.Arg)
			}
			k.update = true
		case "v":
			k.verbose = true
		case "l":
			k.link = true
		case "s":
			k.symlink = true
		case "L", "P", "H":
			deref = o.Name[0]
		case "T":
			noDir = true
		case "t":
			target = o.Arg
		case "x":
			k.oneFS = true
		case "parents":
			k.parents = true
		case "attributes-only":
			k.attrsOnly = true
		case "remove-destination":
			k.removeFirst = true
		case "b":
			return c.Fail(1, "option -b is not supported")
		case "reflink":
			if o.Arg == "always" || o.Arg == "" {
				return c.Fail(1, "option --reflink is not supported")
			}
		case "sparse":
			if o.Arg != "auto" && o.Arg != "never" {
				return c.Fail(1, "option --sparse=%s is not supported", o.Arg)
			}
		}
	}
	switch deref {
	case 'L':
		k.follow, k.followArgs = true, true
	case 'H':
		k.followArgs = true
	case 0:
		// Without -r links are followed; with it they are copied.
		k.follow, k.followArgs = !k.recursive, !k.recursive
	}
	return k.run(ops, target, noDir)
}

// Mv is the mv utility.
func Mv(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "finuvTt:b", Long: []string{"force|f", "interactive|i", "no-clobber|n", "update|u", "verbose|v", "no-target-directory|T", "target-directory=|t", "strip-trailing-slashes"}})
	if !ok {
		return code
	}
	k := &copier{c: c, moving: true, made: map[[2]uint64]string{}, recursive: true, keepMode: true, keepOwner: true, keepTime: true, keepLinks: true, keepX: true}
	target, noDir := "", false
	for _, o := range opts {
		switch o.Name {
		case "f":
			k.force, k.ask, k.noClobber = true, false, false
		case "i":
			k.ask, k.force, k.noClobber = true, false, false
		case "n":
			k.noClobber, k.ask, k.force = true, false, false
		case "u":
			k.update = true
		case "v":
			k.verbose = true
		case "T":
			noDir = true
		case "t":
			target = o.Arg
		case "b":
			return c.Fail(1, "option -b is not supported")
		case "strip-trailing-slashes":
			for i := range ops {
				ops[i] = strings.TrimRight(ops[i], "/")
			}
		}
	}
	return k.run(ops, target, noDir)
}

// run works out where each operand goes.
func (k *copier) run(ops []string, target string, noDir bool) int {
	c := k.c
	if len(ops) == 0 {
		return c.Fail(1, "missing file operand")
	}
	if target == "" {
		if len(ops) == 1 {
			return c.Fail(1, "missing destination file operand after '%s'", ops[0])
		}
		target, ops = ops[len(ops)-1], ops[:len(ops)-1]
		st, err := os.Stat(target)
		isDir := err == nil && st.IsDir() && !noDir
		if !isDir {
			if len(ops) > 1 {
				if noDir {
					return c.Fail(1, "extra operand '%s'", target)
				}
				return c.Fail(1, "target '%s' is not a directory", target)
			}
			if strings.HasSuffix(target, "/") && err != nil {
				if s, e := os.Stat(ops[0]); e != nil || !s.IsDir() {
					return c.Fail(1, "cannot create regular file '%s': Not a directory", target)
				}
			}
			k.one(ops[0], target)
			if k.failed {
				return 1
			}
			return 0
		}
	} else if st, err := os.Stat(target); err != nil || !st.IsDir() {
		return c.Fail(1, "target '%s' is not a directory", target)
	}
	for _, o := range ops {
		base := filepath.Base(o)
		if k.parents {
			base = strings.TrimLeft(filepath.Clean(o), "/")
			if err := os.MkdirAll(filepath.Join(target, filepath.Dir(base)), 0o777); err != nil {
				k.fail("cannot create directory '%s': %s", filepath.Join(target, filepath.Dir(base)), tool.Reason(err))
				continue
			}
		}
		if base == ".." || base == "." {
			base = ""
		}
		dst := strings.TrimSuffix(target, "/") + "/" + base
		if base == "" {
			dst = target
		}
		k.one(o, dst)
	}
	if k.failed {
		return 1
	}
	return 0
}

func (k *copier) one(src, dst string) {
	if k.moving {
		k.move(src, dst)
		return
	}
	k.copy(src, dst, 0, 0, true)
}

func (k *copier) move(src, dst string) {
	st, err := os.Lstat(src)
	if err != nil {
		k.fail("cannot stat '%s': %s", src, tool.Reason(err))
		return
	}
	d, derr := os.Lstat(dst)
	if derr == nil {
		if os.SameFile(st, d) && filepath.Clean(src) == filepath.Clean(dst) {
			k.fail("'%s' and '%s' are the same file", src, dst)
			return
		}
		switch {
		case d.IsDir() && !st.IsDir():
			k.fail("cannot overwrite directory '%s' with non-directory", dst)
			return
		case st.IsDir() && !d.IsDir():
			k.fail("cannot overwrite non-directory '%s' with directory '%s'", dst, src)
			return
		}
		if !k.mayReplace(dst, st, d) {
			return
		}
	}
	if st.IsDir() && within(dst, src) {
		k.fail("cannot move '%s' to a subdirectory of itself, '%s'", src, dst)
		return
	}
	err = unix.Rename(src, dst)
	if err == unix.EXDEV {
		if derr == nil && !d.IsDir() {
			if err := os.Remove(dst); err != nil {
				k.fail("cannot remove '%s': %s", dst, tool.Reason(err))
				return
			}
		}
		before := k.failed
		k.failed = false
		verbose := k.verbose
		k.verbose = false
		k.copy(src, dst, 0, 0, true)
		k.verbose = verbose
		if k.failed {
			return
		}
		k.failed = before
		r := &remover{c: k.c, recursive: true, force: true}
		if !r.remove(src, 0, 0) {
			k.failed = true
			return
		}
		err = nil
	}
	if err != nil {
		k.fail("cannot move '%s' to '%s': %s", src, dst, tool.Reason(err))
		return
	}
	if k.verbose {
		k.c.Printf("renamed '%s' -> '%s'\n", src, dst)
	}
}

// within reports whether path is inside dir.
func within(path, dir string) bool {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	up, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return false
	}
	a, e1 := filepath.Abs(real)
	b, e2 := filepath.Abs(filepath.Join(up, filepath.Base(path)))
	return e1 == nil && e2 == nil && (b == a || strings.HasPrefix(b, strings.TrimSuffix(a, "/")+"/"))
}

// mayReplace asks and checks before an existing file is replaced.
func (k *copier) mayReplace(dst string, st, d fs.FileInfo) bool {
	if k.noClobber {
		return false
	}
	if k.update && !st.ModTime().After(d.ModTime()) {
		return false
	}
	ask := k.ask
	if k.moving && !k.force && !ask && d.Mode()&fs.ModeSymlink == 0 && isTerminal(k.c) && unix.Access(dst, unix.W_OK) != nil {
		ask = true
	}
	if !ask {
		return true
	}
	if k.answers == nil {
		k.answers = &answers{c: k.c}
	}
	return k.answers.yes("overwrite '%s'? ", dst)
}

// copy copies src to dst; arg tells that src was named on the command line.
func (k *copier) copy(src, dst string, depth int, dev uint64, arg bool) bool {
	stat := os.Lstat
	if k.follow || arg && k.followArgs {
		stat = os.Stat
	}
	st, err := stat(src)
	if err != nil {
		return k.fail("cannot stat '%s': %s", src, tool.Reason(err))
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return k.fail("cannot stat '%s'", src)
	}
	if depth == 0 {
		dev = sys.Dev
	} else if k.oneFS && sys.Dev != dev {
		return true
	}
	if depth > maxDepth {
		return k.fail("cannot copy '%s': directories nested too deeply", src)
	}
	d, derr := os.Lstat(dst)
	if derr == nil && d.Mode()&fs.ModeSymlink != 0 && st.Mode().IsRegular() && !k.moving {
		// A copy is written through a link, as long as it leads somewhere.
		if t, err := os.Stat(dst); err == nil {
			d = t
		} else if !k.force && !k.removeFirst {
			return k.fail("not writing through dangling symlink '%s'", dst)
		}
	}
	if st.IsDir() {
		if !k.recursive {
			return k.fail("-r not specified; omitting directory '%s'", src)
		}
		return k.copyDir(src, dst, st, sys, d, depth, dev)
	}
	if derr == nil {
		switch {
		case os.SameFile(st, d) && !(k.link || k.symlink):
			if st.Mode()&fs.ModeSymlink != 0 && d.Mode()&fs.ModeSymlink == 0 {
				break
			}
			return k.fail("'%s' and '%s' are the same file", src, dst)
		case d.IsDir():
			return k.fail("cannot overwrite directory '%s' with non-directory '%s'", dst, src)
		}
		if !k.mayReplace(dst, st, d) {
			return true
		}
		if k.removeFirst || !st.Mode().IsRegular() || k.link || k.symlink {
			if err := os.Remove(dst); err != nil {
				return k.fail("cannot remove '%s': %s", dst, tool.Reason(err))
			}
			derr = fs.ErrNotExist
		}
	}
	if k.keepLinks && sys.Nlink > 1 {
		id := [2]uint64{sys.Dev, sys.Ino}
		if first, ok := k.made[id]; ok {
			os.Remove(dst)
			if err := os.Link(first, dst); err != nil {
				return k.fail("cannot create hard link '%s' to '%s': %s", dst, first, tool.Reason(err))
			}
			return true
		}
		k.made[id] = dst
	}
	switch {
	case k.link:
		err = os.Link(src, dst)
	case k.symlink:
		err = os.Symlink(src, dst)
	case st.Mode().IsRegular() || arg && k.followArgs && !k.recursive && st.Mode()&fs.ModeSymlink == 0:
		err = k.copyData(src, dst, st, derr == nil)
	case st.Mode()&fs.ModeSymlink != 0:
		var to string
		if to, err = os.Readlink(src); err == nil {
			err = os.Symlink(to, dst)
		}
	default:
		err = unix.Mknod(dst, sys.Mode, int(sys.Rdev))
	}
	if err != nil {
		if errors.Is(err, errReported) {
			return false
		}
		return k.fail("cannot create '%s': %s", dst, tool.Reason(err))
	}
	if k.verbose {
		k.c.Printf("'%s' -> '%s'\n", src, dst)
	}
	if k.link || k.symlink {
		return true
	}
	return k.attributes(src, dst, st, sys)
}

var errReported = errors.New("reported")

func (k *copier) copyDir(src, dst string, st fs.FileInfo, sys *syscall.Stat_t, d fs.FileInfo, depth int, dev uint64) bool {
	if depth == 0 && within(dst, src) {
		return k.fail("cannot copy a directory, '%s', into itself, '%s'", src, dst)
	}
	if d != nil && d.Mode()&fs.ModeSymlink != 0 {
		if t, err := os.Stat(dst); err == nil {
			d = t
		}
	}
	made := false
	switch {
	case d == nil:
		// Writable for us until the contents are there.
		if err := os.Mkdir(dst, st.Mode().Perm()|0o700); err != nil {
			return k.fail("cannot create directory '%s': %s", dst, tool.Reason(err))
		}
		made = true
		if k.verbose {
			k.c.Printf("'%s' -> '%s'\n", src, dst)
		}
	case !d.IsDir():
		return k.fail("cannot overwrite non-directory '%s' with directory '%s'", dst, src)
	}
	f, err := os.Open(src)
	if err != nil {
		return k.fail("cannot access '%s': %s", src, tool.Reason(err))
	}
	list, err := f.Readdirnames(-1)
	f.Close()
	if err != nil {
		k.fail("error reading directory '%s': %s", src, tool.Reason(err))
	}
	ok := true
	for _, n := range list {
		ok = k.copy(strings.TrimSuffix(src, "/")+"/"+n, strings.TrimSuffix(dst, "/")+"/"+n, depth+1, dev, false) && ok
	}
	if made && !k.keepMode {
		_ = unix.Chmod(dst, unixMode(st.Mode())&^umask())
	}
	return k.attributes(src, dst, st, sys) && ok
}

func (k *copier) copyData(src, dst string, st fs.FileInfo, exists bool) error {
	in, err := os.Open(src)
	if err != nil {
		k.fail("cannot open '%s' for reading: %s", src, tool.Reason(err))
		return errReported
	}
	defer in.Close()
	mode := st.Mode().Perm()
	if k.keepMode {
		mode &= 0o700 // until owner and mode are set
		mode |= 0o200
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if k.attrsOnly {
		flags = os.O_WRONLY | os.O_CREATE
	}
	out, err := os.OpenFile(dst, flags, mode)
	if err != nil && k.force && exists {
		if os.Remove(dst) == nil {
			out, err = os.OpenFile(dst, flags, mode)
		}
	}
	if err != nil {
		k.fail("cannot create regular file '%s': %s", dst, tool.Reason(err))
		return errReported
	}
	if !k.attrsOnly {
		_, err = io.Copy(out, in)
	}
	if e := out.Close(); err == nil {
		err = e
	}
	if err != nil {
		k.fail("error writing '%s': %s", dst, tool.Reason(err))
		return errReported
	}
	return nil
}

// attributes gives the copy what is to be kept of the original.
func (k *copier) attributes(src, dst string, st fs.FileInfo, sys *syscall.Stat_t) bool {
	ok := true
	link := st.Mode()&fs.ModeSymlink != 0
	if k.keepX && !link {
		copyXattrs(src, dst)
	}
	if k.keepOwner {
		if err := unix.Lchown(dst, int(sys.Uid), int(sys.Gid)); err != nil && os.Geteuid() == 0 {
			ok = k.fail("failed to preserve ownership for '%s': %s", dst, tool.Reason(err))
		}
	}
	if k.keepMode && !link {
		mode := unixMode(st.Mode())
		if k.keepOwner && os.Geteuid() != 0 && int(sys.Uid) != os.Geteuid() {
			mode &= 0o777 // setuid of another owner must not become ours
		}
		if err := unix.Chmod(dst, mode); err != nil {
			ok = k.fail("preserving permissions for '%s': %s", dst, tool.Reason(err))
		}
	}
	if k.keepTime {
		ts := []unix.Timespec{{Sec: sys.Atim.Sec, Nsec: sys.Atim.Nsec}, {Sec: sys.Mtim.Sec, Nsec: sys.Mtim.Nsec}}
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, dst, ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			ok = k.fail("preserving times for '%s': %s", dst, tool.Reason(err))
		}
	}
	return ok
}

// copyXattrs copies extended attributes as far as the file system lets it.
func copyXattrs(src, dst string) {
	n, err := unix.Listxattr(src, nil)
	if err != nil || n == 0 {
		return
	}
	list := make([]byte, n)
	if n, err = unix.Listxattr(src, list); err != nil {
		return
	}
	for _, name := range strings.Split(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		size, err := unix.Getxattr(src, name, nil)
		if err != nil {
			continue
		}
		val := make([]byte, size)
		if size, err = unix.Getxattr(src, name, val); err == nil {
			_ = unix.Setxattr(dst, name, val[:size], 0)
		}
	}
}

// Install copies files and sets their modes and owners.
func Install(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "dDm:o:g:vt:Tpcs", Long: []string{"directory|d", "mode=|m", "owner=|o", "group=|g", "verbose|v", "target-directory=|t", "no-target-directory|T", "preserve-timestamps|p"}})
	if !ok {
		return code
	}
	k := &copier{c: c, followArgs: true, follow: true, removeFirst: true, made: map[[2]uint64]string{}}
	dirs, parents, noDir, target, spec, uid, gid := false, false, false, "", "755", -1, -1
	for _, o := range opts {
		var err error
		switch o.Name {
		case "d":
			dirs = true
		case "D":
			parents = true
		case "m":
			spec = o.Arg
		case "o":
			uid, _, err = userID(o.Arg)
		case "g":
			gid, err = groupID(o.Arg)
		case "v":
			k.verbose = true
		case "t":
			target = o.Arg
		case "T":
			noDir = true
		case "p":
			k.keepTime = true
		case "c": // what install always does
		case "s":
			return c.Fail(1, "option -s is not supported")
		}
		if err != nil {
			return c.Fail(1, "%v", err)
		}
	}
	mode, err := tool.ParseMode(spec, 0, dirs, 0)
	if err != nil {
		return c.Fail(1, "%v", err)
	}
	finish := func(name string) {
		if uid >= 0 || gid >= 0 {
			if err := unix.Chown(name, uid, gid); err != nil {
				k.fail("cannot change ownership of '%s': %s", name, tool.Reason(err))
			}
		}
		if err := unix.Chmod(name, mode); err != nil {
			k.fail("cannot change permissions of '%s': %s", name, tool.Reason(err))
		}
	}
	if dirs {
		for _, d := range ops {
			if _, err := makeDir(d, true); err != nil {
				k.fail("cannot create directory '%s': %s", d, tool.Reason(err))
				continue
			}
			finish(d)
		}
	} else {
		if target == "" {
			if len(ops) < 2 {
				return c.Fail(1, "missing file operand")
			}
			target, ops = ops[len(ops)-1], ops[:len(ops)-1]
			st, err := os.Stat(target)
			if (err != nil || !st.IsDir()) || noDir {
				if len(ops) > 1 {
					return c.Fail(1, "target '%s' is not a directory", target)
				}
				if parents {
					if _, err := makeDir(filepath.Dir(target), true); err != nil {
						return c.Fail(1, "cannot create directory '%s': %s", filepath.Dir(target), tool.Reason(err))
					}
				}
				if k.copy(ops[0], target, 0, 0, true) {
					finish(target)
				}
				return min(1, btoi(k.failed))
			}
		} else if parents {
			if _, err := makeDir(target, true); err != nil {
				return c.Fail(1, "cannot create directory '%s': %s", target, tool.Reason(err))
			}
		}
		for _, o := range ops {
			dst := filepath.Join(target, filepath.Base(o))
			if k.copy(o, dst, 0, 0, true) {
				finish(dst)
			}
		}
	}
	return btoi(k.failed)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Truncate sets the sizes of files.
func Truncate(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "s:cr:", Long: []string{"size=|s", "no-create|c", "reference=|r"}})
	if !ok {
		return code
	}
	spec, noCreate := "", false
	for _, o := range opts {
		switch o.Name {
		case "s":
			spec = o.Arg
		case "c":
			noCreate = true
		case "r":
			st, err := os.Stat(o.Arg)
			if err != nil {
				return c.Fail(1, "cannot stat '%s': %s", o.Arg, tool.Reason(err))
			}
			spec = fmt.Sprint(st.Size())
		}
	}
	if spec == "" {
		return c.Fail(1, "you must specify either '--size' or '--reference'")
	}
	op := byte(0)
	if strings.IndexByte("+-<>/%", spec[0]) >= 0 {
		op, spec = spec[0], spec[1:]
	}
	n, err := tool.ParseSize(spec)
	if err != nil {
		return c.Fail(1, "%v", err)
	}
	if (op == '/' || op == '%') && n == 0 {
		return c.Fail(1, "division by zero")
	}
	if !c.Operands(ops, 1, -1) {
		return 1
	}
	for _, name := range ops {
		flags := os.O_WRONLY | os.O_CREATE
		if noCreate {
			flags = os.O_WRONLY
		}
		f, err := os.OpenFile(name, flags, 0o666)
		if err != nil {
			if noCreate && os.IsNotExist(err) {
				continue
			}
			c.Errorf("cannot open '%s' for writing: %s", name, tool.Reason(err))
			code = 1
			continue
		}
		size := n
		if st, err := f.Stat(); err == nil {
			switch op {
			case '+':
				size = st.Size() + n
			case '-':
				size = max(0, st.Size()-n)
			case '<':
				size = min(st.Size(), n)
			case '>':
				size = max(st.Size(), n)
			case '/':
				size = st.Size() / n * n
			case '%':
				size = (st.Size() + n - 1) / n * n
			}
		}
		if err := f.Truncate(size); err != nil {
			c.Errorf("failed to truncate '%s': %s", name, tool.Reason(err))
			code = 1
		}
		f.Close()
	}
	return code
}
