package files

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// Stat is the stat utility.
func Stat(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "Lfc:t", Long: []string{"dereference|L", "file-system|f", "format=|c", "printf=", "terse|t"}})
	if !ok {
		return code
	}
	follow, fsys, format, raw := false, false, "", false
	for _, o := range opts {
		switch o.Name {
		case "L":
			follow = true
		case "f":
			fsys = true
		case "c":
			format, raw = o.Arg, false
		case "printf":
			format, raw = o.Arg, true
		case "t":
			return c.Fail(1, "option -t is not supported; use -c")
		}
	}
	if !c.Operands(ops, 1, -1) {
		return 1
	}
	var ids names
	for _, name := range ops {
		if fsys {
			var st unix.Statfs_t
			if err := unix.Statfs(name, &st); err != nil {
				c.Errorf("cannot read file system information for '%s': %s", name, tool.Reason(err))
				code = 1
				continue
			}
			f := format
			if f == "" {
				f = "  File: \"%n\"\n    ID: %i Namelen: %l     Type: %T\nBlock size: %s       Fundamental block size: %S\nBlocks: Total: %b Free: %f Available: %a\nInodes: Total: %c Free: %d"
			}
			c.Stdout.WriteString(expandStat(f, raw, func(k byte) (string, bool) { return fsField(k, name, &st) }))
			if !raw {
				c.Stdout.WriteByte('\n')
			}
			continue
		}
		var st unix.Stat_t
		var err error
		switch {
		case name == "-":
			err = unix.Fstat(0, &st)
		case follow:
			err = unix.Stat(name, &st)
		default:
			err = unix.Lstat(name, &st)
		}
		if err != nil {
			c.Errorf("cannot statx '%s': %s", name, tool.Reason(err))
			code = 1
			continue
		}
		f := format
		if f == "" {
			f = "  File: %N\n  Size: %-10s\tBlocks: %-10b IO Block: %-6o %F\nDevice: %Hd,%Ld\tInode: %-11i Links: %h"
			if k := st.Mode & unix.S_IFMT; k == unix.S_IFCHR || k == unix.S_IFBLK {
				f += "     Device type: %Hr,%Lr"
			}
			f += "\nAccess: (%04a/%A)  Uid: (%5u/%8U)   Gid: (%5g/%8G)\nAccess: %x\nModify: %y\nChange: %z\n Birth: %w"
			if st.Mode&unix.S_IFMT != unix.S_IFLNK {
				f = strings.Replace(f, "%N", "%n", 1)
			}
		}
		c.Stdout.WriteString(expandStat(f, raw, func(k byte) (string, bool) { return statField(k, name, &st, &ids) }))
		if !raw {
			c.Stdout.WriteByte('\n')
		}
	}
	return code
}

// expandStat expands a format. Two-letter fields (%Hd) come as the second
// letter with its high bit set: H as 0x80, L as 0x80 on the upper case.
func expandStat(f string, raw bool, field func(byte) (string, bool)) string {
	var b strings.Builder
	for i := 0; i < len(f); i++ {
		if raw && f[i] == '\\' && i+1 < len(f) {
			i++
			if k := strings.IndexByte("ntr\\\"0", f[i]); k >= 0 {
				b.WriteByte("\n\t\r\\\"\x00"[k])
			} else {
				b.WriteString(f[i-1 : i+1])
			}
			continue
		}
		if f[i] != '%' || i+1 >= len(f) {
			b.WriteByte(f[i])
			continue
		}
		j := i + 1
		for j < len(f) && strings.IndexByte("-+ #0123456789.'", f[j]) >= 0 {
			j++
		}
		flags := strings.Trim(f[i+1:j], "'")
		if j >= len(f) {
			b.WriteString(f[i:])
			break
		}
		k := f[j]
		if (k == 'H' || k == 'L') && j+1 < len(f) && (f[j+1] == 'd' || f[j+1] == 'r') {
			j++
			k = f[j] | 0x80
			if f[j-1] == 'L' {
				k = f[j] - 32 | 0x80
			}
		}
		if k == '%' {
			b.WriteByte('%')
			i = j
			continue
		}
		v, ok := field(k)
		if !ok {
			v = "?"
		}
		zero := strings.HasPrefix(flags, "0")
		if n, err := strconv.ParseUint(v, 10, 64); zero && err == nil {
			fmt.Fprintf(&b, "%"+flags+"d", n)
		} else {
			fmt.Fprintf(&b, "%"+strings.TrimLeft(flags, "0#+ ")+"s", v)
		}
		i = j
	}
	return b.String()
}

func fileKind(st *unix.Stat_t) string {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if st.Size == 0 {
			return "regular empty file"
		}
		return "regular file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "symbolic link"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFCHR:
		return "character special file"
	case unix.S_IFBLK:
		return "block special file"
	}
	return "unknown"
}

func statField(k byte, name string, st *unix.Stat_t, ids *names) (string, bool) {
	u := func(n uint64) (string, bool) { return strconv.FormatUint(n, 10), true }
	when := func(ts unix.Timespec) (string, bool) {
		return time.Unix(ts.Sec, ts.Nsec).Format("2006-01-02 15:04:05.000000000 -0700"), true
	}
	switch k {
	case 'n':
		return name, true
	case 'N':
		q := "'" + name + "'"
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			to, _ := os.Readlink(name)
			q += " -> '" + to + "'"
		}
		return q, true
	case 's':
		return strconv.FormatInt(st.Size, 10), true
	case 'b':
		return strconv.FormatInt(st.Blocks, 10), true
	case 'B':
		return "512", true
	case 'o':
		return strconv.FormatInt(int64(st.Blksize), 10), true
	case 'f':
		return strconv.FormatUint(uint64(st.Mode), 16), true
	case 'F':
		return fileKind(st), true
	case 'a':
		return strconv.FormatUint(uint64(st.Mode&0o7777), 8), true
	case 'A':
		return modeString(st.Mode), true
	case 'u':
		return u(uint64(st.Uid))
	case 'U':
		return ids.user(int(st.Uid)), true
	case 'g':
		return u(uint64(st.Gid))
	case 'G':
		return ids.group(int(st.Gid)), true
	case 'i':
		return u(st.Ino)
	case 'h':
		return u(uint64(st.Nlink))
	case 'd':
		return u(st.Dev)
	case 'D':
		return strconv.FormatUint(st.Dev, 16), true
	case 't':
		return strconv.FormatUint(uint64(unix.Major(st.Rdev)), 16), true
	case 'T':
		return strconv.FormatUint(uint64(unix.Minor(st.Rdev)), 16), true
	case 'r':
		return u(st.Rdev)
	case 'R':
		return strconv.FormatUint(st.Rdev, 16), true
	case 'd' | 0x80:
		return u(uint64(unix.Major(st.Dev)))
	case 'D' | 0x80:
		return u(uint64(unix.Minor(st.Dev)))
	case 'r' | 0x80:
		return u(uint64(unix.Major(st.Rdev)))
	case 'R' | 0x80:
		return u(uint64(unix.Minor(st.Rdev)))
	case 'x':
		return when(st.Atim)
	case 'y':
		return when(st.Mtim)
	case 'z':
		return when(st.Ctim)
	case 'X':
		return strconv.FormatInt(st.Atim.Sec, 10), true
	case 'Y':
		return strconv.FormatInt(st.Mtim.Sec, 10), true
	case 'Z':
		return strconv.FormatInt(st.Ctim.Sec, 10), true
	case 'w':
		return "-", true
	case 'W':
		return "0", true
	case 'm':
		return mountOf(name), true
	}
	return "", false
}

func fsField(k byte, name string, st *unix.Statfs_t) (string, bool) {
	u := func(n uint64) (string, bool) { return strconv.FormatUint(n, 10), true }
	switch k {
	case 'n':
		return name, true
	case 'i':
		return fmt.Sprintf("%x%08x", uint32(st.Fsid.Val[0]), uint32(st.Fsid.Val[1])), true
	case 'l':
		return strconv.FormatInt(int64(st.Namelen), 10), true
	case 't':
		return strconv.FormatUint(uint64(uint32(st.Type)), 16), true
	case 'T':
		if t, ok := map[int64]string{0xef53: "ext2/ext3", 0x01021994: "tmpfs", 0x794c7630: "overlayfs", 0x9fa0: "proc", 0x62656572: "sysfs", 0x58465342: "xfs", 0x9123683e: "btrfs", 0x01021997: "v9fs"}[int64(uint32(st.Type))]; ok {
			return t, true
		}
		return fmt.Sprintf("UNKNOWN (0x%x)", uint32(st.Type)), true
	case 's', 'S':
		return strconv.FormatInt(int64(st.Bsize), 10), true
	case 'b':
		return u(st.Blocks)
	case 'f':
		return u(st.Bfree)
	case 'a':
		return u(st.Bavail)
	case 'c':
		return u(st.Files)
	case 'd':
		return u(st.Ffree)
	}
	return "", false
}

// mountEntry is a line of the table of mounts.
type mountEntry struct{ source, target, kind, options string }

func mounts() ([]mountEntry, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []mountEntry
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	s := bufio.NewScanner(f)
	for s.Scan() {
		p := strings.Fields(s.Text())
		if len(p) >= 4 {
			out = append(out, mountEntry{unescape.Replace(p[0]), unescape.Replace(p[1]), p[2], p[3]})
		}
	}
	return out, s.Err()
}

// mountOf is the mount point that a path is on.
func mountOf(name string) string {
	p, err := filepath.Abs(name)
	if err != nil {
		return "?"
	}
	if r, err := filepath.EvalSymlinks(p); err == nil {
		p = r
	}
	best := "/"
	list, _ := mounts()
	for _, m := range list {
		if (p == m.target || strings.HasPrefix(p, strings.TrimSuffix(m.target, "/")+"/")) && len(m.target) >= len(best) {
			best = m.target
		}
	}
	return best
}

// Mount prints the mounts; making them is the box's owner's business.
func Mount(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "t:l"})
	if !ok {
		return code
	}
	kind := ""
	for _, o := range opts {
		if o.Name == "t" {
			kind = o.Arg
		}
	}
	if len(ops) > 0 {
		return c.Fail(1, "mounting is not supported: volumes are given to the box when it is created")
	}
	list, err := mounts()
	if err != nil {
		return c.Fail(1, "%s", tool.Reason(err))
	}
	for _, m := range list {
		if kind == "" || m.kind == kind {
			c.Printf("%s on %s type %s (%s)\n", m.source, m.target, m.kind, m.options)
		}
	}
	return 0
}

// Df shows the space of file systems.
func Df(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "haiPTkmt:B:", Long: []string{"human-readable|h", "all|a", "inodes|i", "portability|P", "print-type|T", "type=|t", "block-size=|B"}})
	if !ok {
		return code
	}
	human, all, inodes, portable, types, unit, kind := false, false, false, false, false, uint64(1024), ""
	for _, o := range opts {
		switch o.Name {
		case "h":
			human = true
		case "a":
			all = true
		case "i":
			inodes = true
		case "P":
			portable = true
		case "T":
			types = true
		case "k":
			unit = 1024
		case "m":
			unit = 1 << 20
		case "t":
			kind = o.Arg
		case "B":
			n, err := tool.ParseSize(o.Arg)
			if err != nil || n < 1 {
				return c.Fail(1, "invalid -B argument '%s'", o.Arg)
			}
			unit = uint64(n)
		}
	}
	list, err := mounts()
	if err != nil {
		return c.Fail(1, "cannot read table of mounted file systems: %s", tool.Reason(err))
	}
	if len(ops) > 0 {
		byTarget := map[string]mountEntry{}
		for _, m := range list {
			byTarget[m.target] = m
		}
		list = nil
		for _, o := range ops {
			if _, err := os.Stat(o); err != nil {
				c.Errorf("%s: %s", o, tool.Reason(err))
				code = 1
				continue
			}
			target := mountOf(o)
			m, ok := byTarget[target]
			if !ok {
				m = mountEntry{"-", target, "-", ""}
			}
			list = append(list, m)
		}
		if len(list) == 0 {
			return code
		}
		all = true
	}
	size := func(blocks uint64, bs int64) string {
		if human {
			return tool.HumanSize(blocks * uint64(bs))
		}
		return strconv.FormatUint((blocks*uint64(bs)+unit-1)/unit, 10)
	}
	head := []string{"Filesystem", "1K-blocks", "Used", "Available", "Use%", "Mounted on"}
	switch {
	case inodes:
		head = []string{"Filesystem", "Inodes", "IUsed", "IFree", "IUse%", "Mounted on"}
	case human:
		head[1], head[3] = "Size", "Avail"
	case portable:
		head[1], head[4] = fmt.Sprintf("%d-blocks", unit), "Capacity"
	case unit == 1<<20:
		head[1] = "1M-blocks"
	case unit != 1024:
		head[1] = fmt.Sprintf("%dB-blocks", unit)
	}
	if types {
		head = append([]string{head[0], "Type"}, head[1:]...)
	}
	rows := [][]string{head}
	seen := map[string]bool{}
	for _, m := range list {
		var st unix.Statfs_t
		if (kind != "" && m.kind != kind) || unix.Statfs(m.target, &st) != nil {
			continue
		}
		if !all && (st.Blocks == 0 || seen[m.source+m.kind] && strings.HasPrefix(m.source, "/")) {
			continue
		}
		seen[m.source+m.kind] = true
		total, free, avail := st.Blocks, st.Bfree, st.Bavail
		if inodes {
			total, free, avail = st.Files, st.Ffree, st.Ffree
		}
		used := total - min(free, total)
		pct := "-"
		if used+avail > 0 {
			pct = fmt.Sprintf("%d%%", (used*100+used+avail-1)/(used+avail))
		}
		row := []string{m.source, size(total, int64(st.Bsize)), size(used, int64(st.Bsize)), size(avail, int64(st.Bsize)), pct, m.target}
		if inodes {
			row = []string{m.source, fmt.Sprint(total), fmt.Sprint(used), fmt.Sprint(avail), pct, m.target}
		}
		if types {
			row = append([]string{row[0], m.kind}, row[1:]...)
		}
		rows = append(rows, row)
	}
	w := make([]int, len(head))
	w[0] = 14
	for _, r := range rows {
		for i, s := range r {
			w[i] = max(w[i], len(s))
		}
	}
	for _, r := range rows {
		for i, s := range r {
			switch {
			case i == len(r)-1:
				c.Printf("%s\n", s)
			case i == 0 || types && i == 1:
				c.Printf("%-*s ", w[i], s)
			default:
				c.Printf("%*s ", w[i], s)
			}
		}
	}
	return code
}

type usage struct {
	c                                    *tool.Context
	all, human, sum, total, apparent, lk bool
	oneFS                                bool
	unit                                 uint64
	depth                                int
	end                                  string
	seen                                 map[[2]uint64]bool
	exclude                              []string
	code                                 int
}

// Du shows the space that trees use.
func Du(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "ahscd:kmbxLlB:0HDP", Long: []string{"all|a", "human-readable|h", "summarize|s", "total|c", "max-depth=|d", "bytes|b", "apparent-size", "one-file-system|x", "dereference|L", "count-links|l", "block-size=|B", "null|0", "exclude="}})
	if !ok {
		return code
	}
	u := &usage{c: c, unit: 1024, depth: maxDepth, end: "\n", seen: map[[2]uint64]bool{}}
	follow := false
	for _, o := range opts {
		var err error
		switch o.Name {
		case "a":
			u.all = true
		case "h":
			u.human = true
		case "s":
			u.sum = true
		case "c":
			u.total = true
		case "d":
			u.depth, err = strconv.Atoi(o.Arg)
		case "k":
			u.unit = 1024
		case "m":
			u.unit = 1 << 20
		case "b":
			u.apparent, u.unit = true, 1
		case "apparent-size":
			u.apparent = true
		case "x":
			u.oneFS = true
		case "L":
			return c.Fail(1, "option -L is not supported; use -D for the named files")
		case "H", "D":
			follow = true
		case "P":
			follow = false
		case "l":
			u.lk = true
		case "0":
			u.end = "\x00"
		case "exclude":
			u.exclude = append(u.exclude, o.Arg)
		case "B":
			var n int64
			n, err = tool.ParseSize(o.Arg)
			u.unit = uint64(max(n, 1))
		}
		if err != nil {
			return c.Fail(1, "invalid argument '%s'", o.Arg)
		}
	}
	if u.sum {
		if u.all {
			return c.Fail(1, "cannot both summarize and show all entries")
		}
		u.depth = 0
	}
	if len(ops) == 0 {
		ops = []string{"."}
	}
	var sum uint64
	for _, o := range ops {
		n, ok := u.tree(o, 0, 0, follow)
		if ok {
			sum += n
		}
	}
	if u.total {
		u.print(sum, "total")
	}
	return u.code
}

func (u *usage) print(n uint64, name string) {
	s := strconv.FormatUint((n+u.unit-1)/u.unit, 10)
	if u.human {
		s = tool.HumanSize(n)
	}
	u.c.Printf("%s\t%s%s", s, name, u.end)
}

func (u *usage) tree(path string, depth int, dev uint64, follow bool) (uint64, bool) {
	for _, p := range u.exclude {
		if ok, _ := filepath.Match(p, filepath.Base(path)); ok {
			return 0, false
		}
	}
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if follow {
		err = unix.Stat(path, &st)
	}
	if err != nil {
		u.c.Errorf("cannot access '%s': %s", path, tool.Reason(err))
		u.code = 1
		return 0, false
	}
	if depth == 0 {
		dev = st.Dev
	} else if u.oneFS && st.Dev != dev || depth > maxDepth {
		return 0, false
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	id := [2]uint64{st.Dev, st.Ino}
	if !u.lk && (st.Nlink > 1 || isDir) {
		if u.seen[id] {
			return 0, false
		}
		u.seen[id] = true
	}
	n := uint64(st.Blocks) * 512
	if u.apparent {
		n = uint64(st.Size)
		if isDir && u.unit == 1 {
			n = uint64(st.Size)
		}
	}
	if isDir {
		d, err := os.Open(path)
		if err != nil {
			u.c.Errorf("cannot read directory '%s': %s", path, tool.Reason(err))
			u.code = 1
		} else {
			list, err := d.Readdirnames(-1)
			d.Close()
			if err != nil {
				u.code = 1
			}
			for _, name := range list {
				k, ok := u.tree(strings.TrimSuffix(path, "/")+"/"+name, depth+1, dev, false)
				if ok {
					n += k
				}
			}
		}
	}
	if depth == 0 || depth <= u.depth && (isDir || u.all) {
		u.print(n, path)
	}
	return n, true
}
