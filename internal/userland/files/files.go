// Package files holds the utilities that list, copy, change and find files.
//
// They follow symbolic links only where POSIX says so, and go down a tree
// with bounded depth. Names are bytes: nothing assumes that they are UTF-8.
package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// maxDepth bounds recursion into directories.
const maxDepth = 4096

// names caches the names of users and groups for one run.
type names struct{ users, groups map[int]string }

func (n *names) user(id int) string  { return lookup(&n.users, "/etc/passwd", id) }
func (n *names) group(id int) string { return lookup(&n.groups, "/etc/group", id) }

func lookup(cache *map[int]string, file string, id int) string {
	if *cache == nil {
		*cache = map[int]string{}
		for _, e := range tool.Accounts(file) {
			if _, dup := (*cache)[e.ID]; !dup {
				(*cache)[e.ID] = e.Name
			}
		}
	}
	if s, ok := (*cache)[id]; ok {
		return s
	}
	return strconv.Itoa(id)
}

// unixMode is the permission bits of a file as chmod counts them.
func unixMode(m fs.FileMode) uint32 {
	v := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		v |= 0o4000
	}
	if m&fs.ModeSetgid != 0 {
		v |= 0o2000
	}
	if m&fs.ModeSticky != 0 {
		v |= 0o1000
	}
	return v
}

// modeString is the mode as ls -l shows it.
func modeString(mode uint32) string {
	b := []byte("?rwxrwxrwx")
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		b[0] = '-'
	case unix.S_IFDIR:
		b[0] = 'd'
	case unix.S_IFLNK:
		b[0] = 'l'
	case unix.S_IFCHR:
		b[0] = 'c'
	case unix.S_IFBLK:
		b[0] = 'b'
	case unix.S_IFIFO:
		b[0] = 'p'
	case unix.S_IFSOCK:
		b[0] = 's'
	}
	for i := range 9 {
		if mode&(0o400>>i) == 0 {
			b[i+1] = '-'
		}
	}
	special := func(bit uint32, at int, set, unset byte) {
		if mode&bit != 0 {
			if b[at] == '-' {
				b[at] = unset
			} else {
				b[at] = set
			}
		}
	}
	special(0o4000, 3, 's', 'S')
	special(0o2000, 6, 's', 'S')
	special(0o1000, 9, 't', 'T')
	return string(b)
}

func umask() uint32 {
	m := unix.Umask(0)
	unix.Umask(m)
	return uint32(m)
}

// Mkdir is the mkdir utility.
func Mkdir(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "pm:v", Long: []string{"parents|p", "mode=|m", "verbose|v"}})
	if !ok {
		return code
	}
	parents, verbose, spec := false, false, ""
	for _, o := range opts {
		switch o.Name {
		case "p":
			parents = true
		case "m":
			spec = o.Arg
		case "v":
			verbose = true
		}
	}
	if !c.Operands(ops, 1, -1) {
		return 1
	}
	mode := uint32(0o777)
	if spec != "" {
		var err error
		if mode, err = tool.ParseMode(spec, 0o777, true, umask()); err != nil {
			return c.Fail(1, "%v", err)
		}
	}
	for _, dir := range ops {
		made, err := makeDir(dir, parents)
		for _, m := range made {
			if verbose {
				c.Printf("%s: created directory '%s'\n", c.Name, m)
			}
		}
		if err == nil && spec != "" && len(made) > 0 {
			err = unix.Chmod(dir, mode)
		}
		if err != nil {
			c.Errorf("cannot create directory '%s': %s", dir, tool.Reason(err))
			code = 1
		}
	}
	return code
}

// makeDir makes dir and, with parents, what is missing above it. It returns
// the directories made.
func makeDir(dir string, parents bool) ([]string, error) {
	err := unix.Mkdir(dir, 0o777)
	switch {
	case err == nil:
		return []string{dir}, nil
	case !parents:
		return nil, err
	case err == unix.EEXIST:
		if st, e := os.Stat(dir); e == nil && st.IsDir() {
			return nil, nil
		}
		return nil, err
	case err != unix.ENOENT:
		return nil, err
	}
	up := filepath.Dir(strings.TrimRight(dir, "/"))
	if up == dir || up == "." {
		return nil, err
	}
	made, err := makeDir(up, true)
	if err != nil {
		return made, err
	}
	if err := unix.Mkdir(dir, 0o777); err != nil && err != unix.EEXIST {
		return made, err
	}
	return append(made, dir), nil
}

// Rmdir is the rmdir utility.
func Rmdir(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "pv", Long: []string{"parents|p", "verbose|v", "ignore-fail-on-non-empty"}})
	if !ok {
		return code
	}
	parents, verbose, lenient := false, false, false
	for _, o := range opts {
		switch o.Name {
		case "p":
			parents = true
		case "v":
			verbose = true
		default:
			lenient = true
		}
	}
	if !c.Operands(ops, 1, -1) {
		return 1
	}
	for _, dir := range ops {
		for d := dir; ; {
			if verbose {
				c.Printf("rmdir: removing directory, '%s'\n", d)
			}
			if err := unix.Rmdir(d); err != nil {
				if lenient && (err == unix.ENOTEMPTY || err == unix.EEXIST) {
					break
				}
				c.Errorf("failed to remove '%s': %s", d, tool.Reason(err))
				code = 1
				break
			}
			d = filepath.Dir(strings.TrimRight(d, "/"))
			if !parents || d == "." || d == "/" {
				break
			}
		}
	}
	return code
}

// Rm is the rm utility.
func Rm(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "rRfidvI", Long: []string{"recursive|r", "force|f", "dir|d", "verbose|v", "interactive?|i", "preserve-root?", "no-preserve-root", "one-file-system"}})
	if !ok {
		return code
	}
	r := &remover{c: c, preserve: true}
	for _, o := range opts {
		switch o.Name {
		case "r", "R":
			r.recursive = true
		case "f":
			r.force, r.ask = true, false
		case "i":
			if o.Arg != "never" {
				r.ask, r.force = true, false
			}
		case "I":
			return c.Fail(1, "option -I is not supported; use -i")
		case "d":
			r.dirs = true
		case "v":
			r.verbose = true
		case "no-preserve-root":
			r.preserve = false
		case "one-file-system":
			r.oneFS = true
		}
	}
	if len(ops) == 0 {
		if r.force {
			return 0
		}
		c.Operands(ops, 1, -1)
		return 1
	}
	for _, name := range ops {
		base := filepath.Base(strings.TrimRight(name, "/"))
		if b := name[strings.LastIndexByte(strings.TrimRight(name, "/"), '/')+1:]; strings.TrimRight(b, "/") == "." || strings.TrimRight(b, "/") == ".." || base == ".." {
			c.Errorf("refusing to remove '.' or '..' directory: skipping '%s'", name)
			r.failed = true
			continue
		}
		if r.recursive && r.preserve && filepath.Clean(name) == "/" {
			c.Errorf("it is dangerous to operate recursively on '/'")
			c.Errorf("use --no-preserve-root to override this failsafe")
			r.failed = true
			continue
		}
		r.remove(name, 0, 0)
	}
	if r.failed {
		return 1
	}
	return code
}

type remover struct {
	c                                              *tool.Context
	recursive, force, dirs, verbose, ask, preserve bool
	oneFS, failed                                  bool
	answers                                        *answers
}

func (r *remover) fail(name string, err error) bool {
	r.c.Errorf("cannot remove '%s': %s", name, tool.Reason(err))
	r.failed = true
	return false
}

// remove deletes name and reports whether it is gone.
func (r *remover) remove(name string, depth int, dev uint64) bool {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		if r.force && (err == unix.ENOENT || err == unix.ENOTDIR) {
			return true
		}
		return r.fail(name, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if depth == 0 {
			dev = st.Dev
		}
		return r.removeDir(name, depth, dev, st.Dev)
	}
	if r.ask && !r.confirm("remove file '%s'? ", name) {
		return false
	}
	if !r.ask && !r.force && st.Mode&unix.S_IFMT != unix.S_IFLNK && isTerminal(r.c) && unix.Access(name, unix.W_OK) != nil {
		if !r.confirm("remove write-protected file '%s'? ", name) {
			return false
		}
	}
	if err := unix.Unlink(name); err != nil {
		return r.fail(name, err)
	}
	if r.verbose {
		r.c.Printf("removed '%s'\n", name)
	}
	return true
}

func (r *remover) removeDir(name string, depth int, dev, own uint64) bool {
	if !r.recursive && !r.dirs {
		return r.fail(name, unix.EISDIR)
	}
	if depth > maxDepth {
		return r.fail(name, unix.ELOOP)
	}
	if r.oneFS && dev != own {
		r.c.Errorf("skipping '%s', since it's on a different device", name)
		r.failed = true
		return false
	}
	if r.recursive {
		if r.ask && !r.confirm("descend into directory '%s'? ", name) {
			return false
		}
		d, err := os.Open(name)
		if err == nil {
			list, e := d.Readdirnames(-1)
			d.Close()
			err = e
			for _, n := range list {
				r.remove(strings.TrimRight(name, "/")+"/"+n, depth+1, dev)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return r.fail(name, err)
		}
	}
	if r.ask && !r.confirm("remove directory '%s'? ", name) {
		return false
	}
	if err := unix.Rmdir(name); err != nil {
		if r.failed && err == unix.ENOTEMPTY {
			return false
		}
		return r.fail(name, err)
	}
	if r.verbose {
		r.c.Printf("removed directory '%s'\n", name)
	}
	return true
}

func (r *remover) confirm(format, name string) bool {
	if r.answers == nil {
		r.answers = &answers{c: r.c}
	}
	return r.answers.yes(format, name)
}

// answers asks yes-or-no questions on standard error and input.
type answers struct{ c *tool.Context }

func (a *answers) yes(format, name string) bool {
	a.c.Stdout.Flush()
	fmt.Fprintf(a.c.Stderr, "%s: "+format, a.c.Name, name)
	first := byte(0)
	for n := 0; ; n++ {
		var b [1]byte
		if k, err := a.c.Stdin.Read(b[:]); k == 0 || err != nil || b[0] == '\n' {
			break
		}
		if n == 0 {
			first = b[0]
		}
	}
	return first == 'y' || first == 'Y'
}

func isTerminal(c *tool.Context) bool {
	f, ok := c.Stdin.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Ln is the ln utility.
func Ln(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "sfnvTt:rLPi", Long: []string{"symbolic|s", "force|f", "no-dereference|n", "verbose|v", "no-target-directory|T", "target-directory=|t", "relative|r", "logical|L", "physical|P"}})
	if !ok {
		return code
	}
	var soft, force, noDeref, verbose, noDir, relative, follow bool
	target := ""
	for _, o := range opts {
		switch o.Name {
		case "s":
			soft = true
		case "f":
			force = true
		case "n":
			noDeref = true
		case "v":
			verbose = true
		case "T":
			noDir = true
		case "t":
			target = o.Arg
		case "r":
			relative = true
		case "L":
			follow = true
		case "P":
			follow = false
		case "i":
			return c.Fail(1, "option -i is not supported")
		}
	}
	if !c.Operands(ops, 1, -1) {
		return 1
	}
	into := func(dir string) bool {
		st, err := os.Stat(dir)
		if err != nil || !st.IsDir() {
			return false
		}
		if noDeref {
			if l, err := os.Lstat(dir); err == nil && l.Mode()&fs.ModeSymlink != 0 {
				return false
			}
		}
		return !noDir
	}
	if target == "" {
		if len(ops) == 1 {
			target = "."
		} else {
			target, ops = ops[len(ops)-1], ops[:len(ops)-1]
			if !into(target) {
				if len(ops) > 1 {
					return c.Fail(1, "target '%s' is not a directory", target)
				}
				return makeLink(c, ops[0], target, soft, force, relative, follow, verbose)
			}
		}
	}
	for _, o := range ops {
		if makeLink(c, o, filepath.Join(target, filepath.Base(o)), soft, force, relative, follow, verbose) != 0 {
			code = 1
		}
	}
	return code
}

func makeLink(c *tool.Context, from, to string, soft, force, relative, follow, verbose bool) int {
	kind := "hard"
	if soft {
		kind = "symbolic"
	}
	if soft && relative {
		dir, e1 := filepath.EvalSymlinks(filepath.Dir(to))
		abs, e2 := filepath.Abs(from)
		if e1 == nil && e2 == nil {
			dir, _ = filepath.Abs(dir)
			if r, err := filepath.Rel(dir, abs); err == nil {
				from = r
			}
		}
	}
	link := func() error {
		if soft {
			return unix.Symlink(from, to)
		}
		flags := 0
		if follow {
			flags = unix.AT_SYMLINK_FOLLOW
		}
		return unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags)
	}
	err := link()
	if err == unix.EEXIST && force {
		a, e1 := os.Lstat(from)
		b, e2 := os.Lstat(to)
		if !soft && e1 == nil && e2 == nil && os.SameFile(a, b) {
			if filepath.Clean(from) == filepath.Clean(to) {
				return c.Fail(1, "'%s' and '%s' are the same file", from, to)
			}
			return 0
		}
		if err = unix.Unlink(to); err == nil {
			err = link()
		}
	}
	if err != nil {
		if !soft {
			return c.Fail(1, "failed to create %s link '%s' => '%s': %s", kind, to, from, tool.Reason(err))
		}
		return c.Fail(1, "failed to create %s link '%s': %s", kind, to, tool.Reason(err))
	}
	if verbose {
		arrow := "->"
		if !soft {
			arrow = "=>"
		}
		c.Printf("'%s' %s '%s'\n", to, arrow, from)
	}
	return 0
}

// Touch is the touch utility.
func Touch(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "acmhd:t:r:", Long: []string{"no-create|c", "no-dereference|h", "date=|d", "reference=|r", "time="}})
	if !ok {
		return code
	}
	var onlyA, onlyM, noCreate, noDeref bool
	at := unix.Timespec{Nsec: unix.UTIME_NOW}
	mt := at
	for _, o := range opts {
		switch o.Name {
		case "a":
			onlyA = true
		case "m":
			onlyM = true
		case "c":
			noCreate = true
		case "h":
			noDeref, noCreate = true, true
		case "d", "t":
			var t time.Time
			var err error
			if o.Name == "d" {
				t, err = tool.ParseDate(o.Arg, time.Now(), time.Local)
			} else {
				t, err = tool.ParseStamp(o.Arg, time.Now())
			}
			if err != nil {
				return c.Fail(1, "invalid date format '%s'", o.Arg)
			}
			at, _ = unix.TimeToTimespec(t)
			mt = at
		case "r":
			var st unix.Stat_t
			if err := unix.Stat(o.Arg, &st); err != nil {
				return c.Fail(1, "failed to get attributes of '%s': %s", o.Arg, tool.Reason(err))
			}
			at, mt = st.Atim, st.Mtim
		case "time":
			switch o.Arg {
			case "access", "atime", "use":
				onlyA = true
			case "modify", "mtime":
				onlyM = true
			default:
				return c.Fail(1, "invalid argument '%s' for '--time'", o.Arg)
			}
		}
	}
	if !c.Operands(ops, 1, -1) {
		return 1
	}
	if onlyA && !onlyM {
		mt = unix.Timespec{Nsec: unix.UTIME_OMIT}
	}
	if onlyM && !onlyA {
		at = unix.Timespec{Nsec: unix.UTIME_OMIT}
	}
	flags := 0
	if noDeref {
		flags = unix.AT_SYMLINK_NOFOLLOW
	}
	for _, name := range ops {
		ts := []unix.Timespec{at, mt}
		err := unix.UtimesNanoAt(unix.AT_FDCWD, name, ts, flags)
		if err == unix.ENOENT {
			if noCreate {
				continue
			}
			var fd int
			if fd, err = unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0o666); err == nil {
				unix.Close(fd)
				err = unix.UtimesNanoAt(unix.AT_FDCWD, name, ts, flags)
			}
		}
		if err != nil {
			c.Errorf("cannot touch '%s': %s", name, tool.Reason(err))
			code = 1
		}
	}
	return code
}

// walkTree calls f for root and, when recursive, all below it. Directories
// come before what is in them.
func walkTree(root string, recursive bool, depth int, f func(name string, st fs.FileInfo, err error)) {
	st, err := os.Lstat(root)
	f(root, st, err)
	if err != nil || !recursive || !st.IsDir() {
		return
	}
	if depth > maxDepth {
		f(root, st, syscall.ELOOP)
		return
	}
	d, err := os.Open(root)
	if err != nil {
		f(root, nil, err)
		return
	}
	list, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		f(root, nil, err)
	}
	for _, n := range list {
		walkTree(strings.TrimSuffix(root, "/")+"/"+n, true, depth+1, f)
	}
}

// Chmod is the chmod utility.
func Chmod(c *tool.Context) int {
	// A mode such as -x or -rwx looks like options.
	for i, a := range c.Args {
		if len(a) > 1 && a[0] == '-' && strings.Trim(a[1:], "rwxXstugoa,+=-") == "" && !strings.HasPrefix(a, "--") {
			c.Args = append(append(append([]string{}, c.Args[:i]...), "--", a), c.Args[i+1:]...)
			break
		}
		if !strings.HasPrefix(a, "-") {
			break
		}
	}
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "Rvcf", Long: []string{"recursive|R", "verbose|v", "changes|c", "silent|f", "quiet|f", "reference="}})
	if !ok {
		return code
	}
	var recursive, verbose, changes, silent bool
	ref := ""
	for _, o := range opts {
		switch o.Name {
		case "R":
			recursive = true
		case "v":
			verbose = true
		case "c":
			changes = true
		case "f":
			silent = true
		case "reference":
			ref = o.Arg
		}
	}
	spec := ""
	if ref != "" {
		st, err := os.Stat(ref)
		if err != nil {
			return c.Fail(1, "failed to get attributes of '%s': %s", ref, tool.Reason(err))
		}
		spec = fmt.Sprintf("%05o", unixMode(st.Mode()))
	} else {
		if !c.Operands(ops, 2, -1) {
			return 1
		}
		spec, ops = ops[0], ops[1:]
	}
	if !c.Operands(ops, 1, -1) {
		return 1
	}
	if _, err := tool.ParseMode(spec, 0, false, 0); err != nil {
		return c.Fail(1, "%v", err)
	}
	mask := umask()
	for _, name := range ops {
		walkTree(name, recursive, 0, func(p string, st fs.FileInfo, err error) {
			if err == nil && st.Mode()&fs.ModeSymlink != 0 {
				if p != name {
					return
				}
				if st, err = os.Stat(p); err != nil && !silent {
					c.Errorf("cannot operate on dangling symlink '%s'", p)
					code = 1
					return
				}
			}
			var old, mode uint32
			if err == nil {
				old = unixMode(st.Mode())
				mode, err = tool.ParseMode(spec, old, st.IsDir(), mask)
				if err == nil {
					err = unix.Chmod(p, mode)
				}
			}
			if err != nil {
				code = 1
				if !silent {
					what := "cannot access"
					if st != nil {
						what = "changing permissions of"
					}
					c.Errorf("%s '%s': %s", what, p, tool.Reason(err))
				}
				return
			}
			if verbose && old == mode {
				c.Printf("mode of '%s' retained as %04o (%s)\n", p, mode, modeString(mode)[1:])
			} else if verbose || changes && old != mode {
				c.Printf("mode of '%s' changed from %04o (%s) to %04o (%s)\n", p, old, modeString(old)[1:], mode, modeString(mode)[1:])
			}
		})
	}
	return code
}

// Chown is chown, and chgrp by its name.
func Chown(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "RhvcfHLP", Long: []string{"recursive|R", "no-dereference|h", "dereference", "verbose|v", "changes|c", "silent|f", "quiet|f", "reference="}})
	if !ok {
		return code
	}
	var recursive, noDeref, verbose, changes, silent bool
	ref := ""
	for _, o := range opts {
		switch o.Name {
		case "R":
			recursive = true
		case "h":
			noDeref = true
		case "dereference":
			noDeref = false
		case "v":
			verbose = true
		case "c":
			changes = true
		case "f":
			silent = true
		case "reference":
			ref = o.Arg
		case "H", "L":
			return c.Fail(1, "option -%s is not supported: links are not followed below a directory", o.Name)
		}
	}
	uid, gid := -1, -1
	spec := ""
	if ref != "" {
		var st unix.Stat_t
		if err := unix.Stat(ref, &st); err != nil {
			return c.Fail(1, "failed to get attributes of '%s': %s", ref, tool.Reason(err))
		}
		uid, gid = int(st.Uid), int(st.Gid)
	} else {
		if !c.Operands(ops, 2, -1) {
			return 1
		}
		spec, ops = ops[0], ops[1:]
		var err error
		if c.Name == "chgrp" {
			gid, err = groupID(spec)
		} else {
			uid, gid, err = owner(spec)
		}
		if err != nil {
			return c.Fail(1, "%v", err)
		}
	}
	if !c.Operands(ops, 1, -1) {
		return 1
	}
	for _, name := range ops {
		walkTree(name, recursive, 0, func(p string, st fs.FileInfo, err error) {
			change := false
			if err == nil {
				if sys, ok := st.Sys().(*syscall.Stat_t); ok {
					change = uid >= 0 && int(sys.Uid) != uid || gid >= 0 && int(sys.Gid) != gid
				}
				link := noDeref || recursive && p != name
				if link {
					err = unix.Lchown(p, uid, gid)
				} else {
					err = unix.Chown(p, uid, gid)
				}
			}
			if err != nil {
				code = 1
				if !silent {
					what := "cannot access"
					if st != nil {
						what = "changing ownership of"
						if c.Name == "chgrp" {
							what = "changing group of"
						}
					}
					c.Errorf("%s '%s': %s", what, p, tool.Reason(err))
				}
				return
			}
			if verbose || changes && change {
				c.Printf("changed ownership of '%s' to %s\n", p, spec)
			}
		})
	}
	return code
}

func userID(s string) (id, gid int, err error) {
	for _, e := range tool.Accounts("/etc/passwd") {
		if e.Name == s {
			return e.ID, e.Group, nil
		}
	}
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return int(n), -1, nil
	}
	return 0, 0, fmt.Errorf("invalid user: '%s'", s)
}

func groupID(s string) (int, error) {
	for _, e := range tool.Accounts("/etc/group") {
		if e.Name == s {
			return e.ID, nil
		}
	}
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return int(n), nil
	}
	return 0, fmt.Errorf("invalid group: '%s'", s)
}

// owner reads USER[:GROUP], with an empty group meaning the user's own.
func owner(spec string) (uid, gid int, err error) {
	user, group, has := strings.Cut(spec, ":")
	if !has {
		if u, g, ok := strings.Cut(spec, "."); ok {
			if _, _, err := userID(spec); err != nil {
				user, group, has = u, g, true
			}
		}
	}
	uid, gid = -1, -1
	if user != "" {
		var own int
		if uid, own, err = userID(user); err != nil {
			return 0, 0, fmt.Errorf("invalid user: '%s'", spec)
		}
		if has && group == "" {
			gid = own
		}
	}
	if group != "" {
		if gid, err = groupID(group); err != nil {
			return 0, 0, fmt.Errorf("invalid group: '%s'", spec)
		}
	}
	return uid, gid, nil
}
