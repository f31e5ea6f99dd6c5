package proc

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/userland/basic"
	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// process is what /proc tells about one.
type process struct {
	pid, ppid, pgrp, session, tty, uid, gid, threads, nice int
	state, comm, args                                      string
	cpu, start                                             uint64 // ticks
	vsz, rss                                               uint64 // KiB
	euser                                                  string
}

// ticks is the unit of times in /proc.
const ticks = 100

func readAll() ([]process, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	list, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return nil, err
	}
	users := map[int]string{}
	for _, u := range tool.Accounts("/etc/passwd") {
		users[u.ID] = u.Name
	}
	var out []process
	for _, n := range list {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if p, ok := readOne(pid); ok {
			if p.euser = users[p.uid]; p.euser == "" {
				p.euser = strconv.Itoa(p.uid)
			}
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b process) int { return a.pid - b.pid })
	return out, nil
}

// readOne reads a process; false when it has gone meanwhile.
func readOne(pid int) (process, bool) {
	dir := fmt.Sprintf("/proc/%d", pid)
	p := process{pid: pid}
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return p, false
	}
	s := string(b)
	i, j := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if i < 0 || j < i {
		return p, false
	}
	p.comm = s[i+1 : j]
	f := strings.Fields(s[j+1:])
	num := func(k int) int {
		if k < len(f) {
			n, _ := strconv.Atoi(f[k])
			return n
		}
		return 0
	}
	if len(f) > 0 {
		p.state = f[0]
	}
	p.ppid, p.pgrp, p.session, p.tty = num(1), num(2), num(3), num(4)
	p.cpu = uint64(num(11) + num(12))
	p.nice, p.threads, p.start = num(16), num(17), uint64(num(19))
	p.vsz = uint64(num(20)) / 1024
	p.rss = uint64(num(21)) * uint64(os.Getpagesize()) / 1024
	var st unix.Stat_t
	if unix.Stat(dir, &st) == nil {
		p.uid, p.gid = int(st.Uid), int(st.Gid)
	}
	if b, err := os.ReadFile(dir + "/cmdline"); err == nil && len(b) > 0 {
		p.args = strings.TrimRight(strings.ReplaceAll(string(b), "\x00", " "), " ")
	} else {
		p.args = "[" + p.comm + "]"
	}
	return p, true
}

func bootTime() time.Time {
	b, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return time.Now()
	}
	sec, _ := strconv.ParseFloat(strings.Fields(string(b) + " 0")[0], 64)
	return time.Now().Add(-time.Duration(sec * float64(time.Second)))
}

func ttyName(dev int) string {
	if dev == 0 {
		return "?"
	}
	major, minor := dev>>8&0xfff, dev&0xff|dev>>12&0xfff00
	switch {
	case major >= 136 && major <= 143:
		return fmt.Sprintf("pts/%d", (major-136)*256+minor)
	case major == 4:
		return fmt.Sprintf("tty%d", minor)
	}
	return "?"
}

// column is one output field of ps.
type column struct {
	head  string
	right bool
	value func(p *process) string
}

func clock(sec uint64) string {
	return fmt.Sprintf("%02d:%02d:%02d", sec/3600, sec/60%60, sec%60)
}

func columns(boot time.Time, total uint64) map[string]column {
	started := func(p *process) time.Time { return boot.Add(time.Duration(p.start) * time.Second / ticks) }
	elapsed := func(p *process) uint64 { return uint64(max(0, time.Since(started(p)).Seconds())) }
	num := func(f func(*process) int) func(*process) string {
		return func(p *process) string { return strconv.Itoa(f(p)) }
	}
	pcpu := func(p *process) string {
		e := max(time.Since(started(p)).Seconds(), 0.01)
		return fmt.Sprintf("%.1f", min(float64(p.cpu)/ticks/e*100, 9999))
	}
	m := map[string]column{
		"pid":   {"PID", true, num(func(p *process) int { return p.pid })},
		"ppid":  {"PPID", true, num(func(p *process) int { return p.ppid })},
		"pgid":  {"PGID", true, num(func(p *process) int { return p.pgrp })},
		"sid":   {"SID", true, num(func(p *process) int { return p.session })},
		"uid":   {"UID", true, num(func(p *process) int { return p.uid })},
		"gid":   {"GID", true, num(func(p *process) int { return p.gid })},
		"ni":    {"NI", true, num(func(p *process) int { return p.nice })},
		"nlwp":  {"NLWP", true, num(func(p *process) int { return p.threads })},
		"user":  {"USER", false, func(p *process) string { return p.euser }},
		"tty":   {"TT", false, func(p *process) string { return ttyName(p.tty) }},
		"stat":  {"STAT", false, stateOf},
		"s":     {"S", false, func(p *process) string { return p.state }},
		"comm":  {"COMMAND", false, func(p *process) string { return p.comm }},
		"args":  {"COMMAND", false, func(p *process) string { return p.args }},
		"vsz":   {"VSZ", true, func(p *process) string { return strconv.FormatUint(p.vsz, 10) }},
		"rss":   {"RSS", true, func(p *process) string { return strconv.FormatUint(p.rss, 10) }},
		"time":  {"TIME", true, func(p *process) string { return clock(p.cpu / ticks) }},
		"bsdt":  {"TIME", true, func(p *process) string { return fmt.Sprintf("%d:%02d", p.cpu/ticks/60, p.cpu/ticks%60) }},
		"%cpu":  {"%CPU", true, pcpu},
		"c":     {"C", true, func(p *process) string { v := pcpu(p); i, _, _ := strings.Cut(v, "."); return i }},
		"%mem":  {"%MEM", true, func(p *process) string { return fmt.Sprintf("%.1f", float64(p.rss)*102400/float64(max(total, 1))) }},
		"start": {"START", true, func(p *process) string { return shortTime(started(p)) }},
		"stime": {"STIME", true, func(p *process) string { return shortTime(started(p)) }},
		"lstart": {"STARTED", true, func(p *process) string {
			return started(p).Format("Mon Jan _2 15:04:05 2006")
		}},
		"etimes": {"ELAPSED", true, func(p *process) string { return strconv.FormatUint(elapsed(p), 10) }},
		"etime": {"ELAPSED", true, func(p *process) string {
			e := elapsed(p)
			switch {
			case e >= 86400:
				return fmt.Sprintf("%d-%s", e/86400, clock(e%86400))
			case e >= 3600:
				return clock(e)
			}
			return fmt.Sprintf("%02d:%02d", e/60, e%60)
		}},
	}
	for alias, name := range map[string]string{"cmd": "args", "command": "args", "ucmd": "comm", "pcpu": "%cpu", "pmem": "%mem", "pgrp": "pgid", "sess": "sid", "session": "sid",
		"euser": "user", "uname": "user", "ruser": "user", "tt": "tty", "tname": "tty", "state": "s", "nice": "ni", "vsize": "vsz", "rssize": "rss", "cputime": "time", "euid": "uid", "egid": "gid", "thcount": "nlwp"} {
		m[alias] = m[name]
	}
	cmd := m["cmd"]
	cmd.head = "CMD"
	m["cmd"] = cmd
	return m
}

func shortTime(t time.Time) string {
	if time.Since(t) > 24*time.Hour {
		return t.Format("Jan02")
	}
	return t.Format("15:04")
}

func stateOf(p *process) string {
	s := p.state
	if p.nice < 0 {
		s += "<"
	} else if p.nice > 0 {
		s += "N"
	}
	if p.session == p.pid {
		s += "s"
	}
	if p.threads > 1 {
		s += "l"
	}
	return s
}

// Ps is the ps utility, with the option styles of Unix and BSD.
func Ps(c *tool.Context) int {
	var all, full, bsd, user, extended, noHead bool
	var fields, pids, sortBy []string
	var users, names, parents []string
	args := c.Args
	value := func(i *int, rest string) (string, bool) {
		if rest != "" {
			return rest, true
		}
		if *i+1 >= len(args) {
			c.Errorf("a value is needed after '%s'", args[*i])
			return "", false
		}
		*i++
		return args[*i], true
	}
	split := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
	}
	for i := 0; i < len(args); i++ { //nolint:intrange // value moves i on
		a := args[i]
		if a == "--help" {
			c.Printf("Usage: ps %s\n", c.Usage)
			return 0
		}
		if v, ok := strings.CutPrefix(a, "--sort="); ok {
			sortBy = split(v)
			continue
		}
		if a == "--no-headers" || a == "--no-heading" {
			noHead = true
			continue
		}
		if v, ok := strings.CutPrefix(a, "--ppid="); ok {
			parents = append(parents, split(v)...)
			continue
		}
		if a == "--ppid" || a == "--sort" || a == "--pid" {
			v, ok := value(&i, "")
			if !ok {
				return 1
			}
			switch a {
			case "--ppid":
				parents = append(parents, split(v)...)
			case "--pid":
				pids = append(pids, split(v)...)
			default:
				sortBy = split(v)
			}
			continue
		}
		dash := strings.HasPrefix(a, "-")
		letters := strings.TrimPrefix(a, "-")
		if !dash {
			if _, err := strconv.Atoi(a); err == nil {
				pids = append(pids, a)
				continue
			}
		}
		for j := range len(letters) {
			rest := letters[j+1:]
			var v string
			var ok bool
			switch l := letters[j]; {
			case l == 'o':
				if v, ok = value(&i, rest); ok {
					fields = append(fields, v)
				}
			case l == 'p' || l == 'q':
				if v, ok = value(&i, rest); ok {
					pids = append(pids, split(v)...)
				}
			case dash && (l == 'u' || l == 'U'):
				if v, ok = value(&i, rest); ok {
					users = append(users, split(v)...)
				}
			case dash && l == 'C':
				if v, ok = value(&i, rest); ok {
					names = append(names, split(v)...)
				}
			case dash && (l == 'e' || l == 'A'):
				all = true
				continue
			case dash && (l == 'f' || l == 'F'):
				full = true
				continue
			case dash && (l == 'a' || l == 'd'):
				all = true
				continue
			case !dash && l == 'a':
				all, bsd = true, true
				continue
			case !dash && l == 'x':
				extended, bsd = true, true
				continue
			case !dash && l == 'u':
				user, bsd = true, true
				continue
			case l == 'w' || !dash && l == 'f':
				bsd = bsd || !dash
				continue
			case l == 'h' && !dash:
				noHead = true
				continue
			default:
				return c.Fail(1, "unsupported option '%c' in '%s'", l, a)
			}
			if !ok {
				return 1
			}
			break
		}
	}
	list, err := readAll()
	if err != nil {
		return c.Fail(1, "%s", tool.Reason(err))
	}
	self, _ := readOne(os.Getpid())
	keep := func(p *process) bool {
		switch {
		case len(pids)+len(users)+len(names)+len(parents) > 0:
			return slices.Contains(pids, strconv.Itoa(p.pid)) || slices.Contains(parents, strconv.Itoa(p.ppid)) ||
				slices.Contains(users, p.euser) || slices.Contains(users, strconv.Itoa(p.uid)) || slices.Contains(names, p.comm)
		case all && (!bsd || extended):
			return true
		case all:
			return p.tty != 0
		case extended:
			return p.uid == os.Geteuid()
		case bsd:
			return p.uid == os.Geteuid() && p.tty != 0
		}
		return p.uid == os.Geteuid() && p.tty == self.tty && p.session == self.session
	}
	var shown []process
	for i := range list {
		if keep(&list[i]) {
			shown = append(shown, list[i])
		}
	}
	var info unix.Sysinfo_t
	total := uint64(1)
	if unix.Sysinfo(&info) == nil {
		total = uint64(info.Totalram) * uint64(info.Unit)
	}
	cols := columns(bootTime(), total)
	spec := "pid,tty=TTY,time,ucmd=CMD"
	switch {
	case len(fields) > 0:
		spec = strings.Join(fields, ",")
	case user:
		spec = "user,pid,%cpu,%mem,vsz,rss,tty=TTY,stat,start,bsdt,command"
	case full:
		spec = "user=UID,pid,ppid,c,stime,tty=TTY,time,cmd"
	case bsd:
		spec = "pid,tty=TTY,stat,bsdt,command"
	}
	out, err := parseColumns(spec, cols)
	if err != nil {
		return c.Fail(1, "%v", err)
	}
	for _, k := range slices.Backward(sortBy) {
		desc := strings.HasPrefix(k, "-")
		col, ok := cols[strings.TrimLeft(k, "+-")]
		if !ok {
			return c.Fail(1, "unknown sort specifier '%s'", k)
		}
		slices.SortStableFunc(shown, func(a, b process) int {
			x, y := col.value(&a), col.value(&b)
			fx, ex := strconv.ParseFloat(x, 64)
			fy, ey := strconv.ParseFloat(y, 64)
			n := strings.Compare(x, y)
			if ex == nil && ey == nil {
				n = 0
				if fx < fy {
					n = -1
				} else if fx > fy {
					n = 1
				}
			}
			if desc {
				return -n
			}
			return n
		})
	}
	printTable(c, out, shown, noHead)
	if len(shown) == 0 {
		return 1
	}
	return 0
}

func parseColumns(spec string, cols map[string]column) ([]column, error) {
	var out []column
	for spec != "" {
		var f string
		f, spec, _ = strings.Cut(spec, ",")
		for _, w := range strings.Fields(f) {
			name, head, renamed := strings.Cut(w, "=")
			col, ok := cols[strings.ToLower(name)]
			if !ok {
				return nil, fmt.Errorf("unknown user-defined format specifier \"%s\"", name)
			}
			if renamed {
				col.head = head
			}
			out = append(out, col)
		}
	}
	return out, nil
}

func printTable(c *tool.Context, cols []column, list []process, noHead bool) {
	w := make([]int, len(cols))
	rows := make([][]string, len(list))
	heads := false
	for i, col := range cols {
		w[i] = len(col.head)
		heads = heads || col.head != ""
	}
	for k := range list {
		for i, col := range cols {
			v := col.value(&list[k])
			rows[k] = append(rows[k], v)
			w[i] = max(w[i], len(v))
		}
	}
	line := func(cells []string) {
		for i, s := range cells {
			if i > 0 {
				c.Stdout.WriteByte(' ')
			}
			switch {
			case cols[i].right:
				c.Printf("%*s", w[i], s)
			case i == len(cells)-1:
				c.Stdout.WriteString(s)
			default:
				c.Printf("%-*s", w[i], s)
			}
		}
		c.Stdout.WriteByte('\n')
	}
	if heads && !noHead {
		var h []string
		for _, col := range cols {
			h = append(h, col.head)
		}
		line(h)
	}
	for _, r := range rows {
		line(r)
	}
}

// Pgrep is pgrep, and pkill by its name.
func Pgrep(c *tool.Context) int {
	kill := c.Name == "pkill"
	sig := syscall.SIGTERM
	if kill && len(c.Args) > 0 && len(c.Args[0]) > 1 && c.Args[0][0] == '-' {
		if s, ok := basic.ParseSignal(c.Args[0][1:]); ok {
			sig = s
			c.Args = c.Args[1:]
		}
	}
	opts, ops, code, ok := c.Parse(tool.Spec{Fail: 2, Short: "flanxoviu:P:g:s:d:ceq", Long: []string{"full|f", "list-name|l", "list-full|a", "newest|n", "oldest|o", "exact|x", "inverse|v", "ignore-case|i", "euid=|u", "parent=|P", "pgroup=|g", "session=|s", "delimiter=|d", "count|c", "signal=", "echo|e"}})
	if !ok {
		return code
	}
	var full, list, long, exact, invert, fold, newest, oldest, count, echo bool
	delim := "\n"
	want := map[string][]string{}
	for _, o := range opts {
		switch o.Name {
		case "f":
			full = true
		case "l":
			list = true
		case "a":
			long = true
		case "x":
			exact = true
		case "v":
			invert = true
		case "i":
			fold = true
		case "n":
			newest = true
		case "o":
			oldest = true
		case "c":
			count = true
		case "e":
			echo = true
		case "q":
			return c.Fail(2, "option -q is not supported")
		case "d":
			delim = o.Arg
		case "signal":
			s, ok := basic.ParseSignal(o.Arg)
			if !ok {
				return c.Fail(2, "unknown signal '%s'", o.Arg)
			}
			sig = s
		default:
			want[o.Name] = append(want[o.Name], strings.Split(o.Arg, ",")...)
		}
	}
	if len(ops) > 1 || len(ops) == 0 && len(want) == 0 {
		return c.Fail(2, "one pattern is needed")
	}
	expr := ""
	if len(ops) == 1 {
		expr = ops[0]
	}
	if exact {
		expr = "^(?:" + expr + ")$"
	}
	if fold {
		expr = "(?i)" + expr
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return c.Fail(2, "invalid pattern '%s'", expr)
	}
	procs, err := readAll()
	if err != nil {
		return c.Fail(3, "%s", tool.Reason(err))
	}
	var hits []process
	for _, p := range procs {
		if p.pid == os.Getpid() {
			continue
		}
		text := p.comm
		if full {
			text = p.args
		}
		ok := re.MatchString(text)
		for k, vals := range want {
			id := map[string]int{"u": p.uid, "P": p.ppid, "g": p.pgrp, "s": p.session}[k]
			ok = ok && (slices.Contains(vals, strconv.Itoa(id)) || k == "u" && slices.Contains(vals, p.euser))
		}
		if ok != invert {
			hits = append(hits, p)
		}
	}
	if len(hits) > 0 && (newest || oldest) {
		best := hits[0]
		for _, p := range hits[1:] {
			if newest && p.start >= best.start || oldest && p.start < best.start {
				best = p
			}
		}
		hits = []process{best}
	}
	if count {
		c.Printf("%d\n", len(hits))
	}
	for i, p := range hits {
		switch {
		case kill:
			if err := syscall.Kill(p.pid, sig); err != nil {
				c.Errorf("killing pid %d failed: %s", p.pid, tool.Reason(err))
				code = 1
			} else if echo {
				c.Printf("%s killed (pid %d)\n", p.comm, p.pid)
			}
		case count:
		default:
			if i > 0 {
				c.Stdout.WriteString(delim)
			}
			c.Printf("%d", p.pid)
			if long {
				c.Printf(" %s", p.args)
			} else if list {
				c.Printf(" %s", p.comm)
			}
		}
	}
	if len(hits) == 0 {
		return 1
	}
	if !kill && !count {
		c.Stdout.WriteByte('\n')
	}
	return code
}
