package shell

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/hutch-sandbox/hutch/internal/userland/basic"
	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

func biGetopts(s *Shell, args []string) int {
	if len(args) < 2 {
		return s.usage("usage: getopts optstring var [arg...]")
	}
	spec, name, list := args[0], args[1], s.params
	if len(args) > 2 {
		list = args[2:]
	}
	quiet := strings.HasPrefix(spec, ":")
	ind, err := strconv.Atoi(s.get("OPTIND"))
	if err != nil || ind < 1 {
		ind = 1
	}
	pos := s.getoptPos
	finish := func(opt string, ind, pos int) {
		_ = s.assign("OPTIND", expand.Variable{Set: true, Kind: expand.String, Str: strconv.Itoa(ind)})
		s.getoptPos = pos
		s.set(name, opt)
	}
	if pos == 0 {
		if ind > len(list) || len(list[ind-1]) < 2 || list[ind-1][0] != '-' {
			finish("?", ind, 0)
			return 1
		}
		if list[ind-1] == "--" {
			finish("?", ind+1, 0)
			return 1
		}
		pos = 1
	}
	if ind > len(list) || pos >= len(list[ind-1]) {
		finish("?", ind, 0)
		return 1
	}
	word := list[ind-1]
	c := word[pos]
	pos++
	nextInd, nextPos := ind, pos
	if pos >= len(word) {
		nextInd, nextPos = ind+1, 0
	}
	k := strings.IndexByte(strings.TrimPrefix(spec, ":"), c)
	spec = strings.TrimPrefix(spec, ":")
	if c == ':' || k < 0 {
		if quiet {
			s.set("OPTARG", string(rune(c)))
		} else {
			s.writeFd(2, s.arg0+": Illegal option -"+string(rune(c))+"\n")
			_ = s.assign("OPTARG", expand.Variable{})
		}
		finish("?", nextInd, nextPos)
		return 0
	}
	if k+1 < len(spec) && spec[k+1] == ':' {
		switch {
		case pos < len(word):
			s.set("OPTARG", word[pos:])
			nextInd, nextPos = ind+1, 0
		case ind < len(list):
			s.set("OPTARG", list[ind])
			nextInd, nextPos = ind+2, 0
		case quiet:
			s.set("OPTARG", string(rune(c)))
			finish(":", ind+1, 0)
			return 0
		default:
			s.writeFd(2, s.arg0+": No arg for -"+string(rune(c))+" option\n")
			_ = s.assign("OPTARG", expand.Variable{})
			finish("?", ind+1, 0)
			return 0
		}
	} else {
		_ = s.assign("OPTARG", expand.Variable{})
	}
	finish(string(rune(c)), nextInd, nextPos)
	return 0
}

func biJobs(s *Shell, args []string) int {
	pids, long := false, false
	var specs []string
	for _, a := range args {
		switch a {
		case "-p":
			pids = true
		case "-l":
			long = true
		default:
			if strings.HasPrefix(a, "-") {
				return s.usage("jobs: Illegal option %s", a)
			}
			specs = append(specs, a)
		}
	}
	s.reap()
	list := append([]*job(nil), s.jobs...)
	if len(specs) > 0 {
		list = nil
		for _, sp := range specs {
			j, err := s.findJob(sp)
			if err != nil {
				return s.usage("jobs: %v", err)
			}
			list = append(list, j)
		}
	}
	for _, j := range list {
		switch {
		case pids:
			s.writeFd(1, itoa(j.procs[0].pid)+"\n")
		case long:
			l := s.jobLine(j)
			i := strings.Index(l, "] ") + 4
			s.writeFd(1, l[:i]+itoa(j.procs[0].pid)+" "+l[i:]+"\n")
		default:
			s.writeFd(1, s.jobLine(j)+"\n")
		}
		if j.done() && !pids {
			s.dropJob(j)
		}
	}
	return 0
}

func biDisown(s *Shell, args []string) int {
	if len(args) == 0 {
		args = []string{"%%"}
	}
	for _, a := range args {
		j, err := s.findJob(a)
		if err != nil {
			return s.usage("disown: %v", err)
		}
		for _, p := range j.procs {
			if !p.done {
				s.proc.orphans = append(s.proc.orphans, p.pid)
			}
		}
		s.dropJob(j)
	}
	return 0
}

func jobArg(args []string) string {
	if len(args) == 0 {
		return "%%"
	}
	if !strings.HasPrefix(args[0], "%") {
		return "%" + args[0]
	}
	return args[0]
}

func biFg(s *Shell, args []string) int {
	if s.proc.tty == nil || s.inProcess() {
		return s.usage("fg: job control is not enabled")
	}
	j, err := s.findJob(jobArg(args))
	if err != nil {
		return s.usage("fg: %v", err)
	}
	s.writeFd(1, j.cmd+"\n")
	s.proc.tty.give(j.pgid)
	for _, p := range j.procs {
		p.stopped = false
		if !p.done {
			p.signal = 0
		}
	}
	_ = syscall.Kill(-j.pgid, syscall.SIGCONT)
	st := s.foreground(j)
	if j.done() {
		s.dropJob(j)
	}
	return st
}

func biBg(s *Shell, args []string) int {
	if s.proc.tty == nil || s.inProcess() {
		return s.usage("bg: job control is not enabled")
	}
	j, err := s.findJob(jobArg(args))
	if err != nil {
		return s.usage("bg: %v", err)
	}
	for _, p := range j.procs {
		p.stopped = false
		if !p.done {
			p.signal = 0
		}
	}
	_ = syscall.Kill(-j.pgid, syscall.SIGCONT)
	s.writeFd(1, fmt.Sprintf("[%d] %s\n", j.id, j.cmd))
	return 0
}

func biKill(s *Shell, args []string) int {
	job := func(spec string) (int, error) {
		j, err := s.findJob(spec)
		if err != nil {
			return 0, err
		}
		if j.pgid > 0 {
			return -j.pgid, nil
		}
		return j.procs[len(j.procs)-1].pid, nil
	}
	send := func(pid int, sig syscall.Signal) error {
		if pid == os.Getpid() && sig != 0 {
			if action, ok := s.traps[sig]; ok {
				if action != "" {
					s.proc.pending[sig]++
				}
				return nil
			}
			if !s.opt.interactive && sig != syscall.SIGCHLD && sig != syscall.SIGCONT && sig != syscall.SIGWINCH && sig != syscall.SIGURG && !signal.Ignored(sig) && !s.ancestorTraps(sig) {
				basic.DieBySignal(sig)
				return nil
			}
		}
		err := syscall.Kill(pid, sig)
		if err == nil && s.proc.tty != nil && pid < 0 && sig != syscall.SIGCONT {
			// A stopped job must run to be ended.
			for _, j := range s.jobs {
				if j.pgid == -pid && j.stopped() && (sig == syscall.SIGTERM || sig == syscall.SIGHUP) {
					_ = syscall.Kill(pid, syscall.SIGCONT)
				}
			}
		}
		return err
	}
	return s.runTool(func(c *tool.Context) int { return basic.KillWith(c, job, send) }, "kill", args)
}

// biWait waits for jobs and processes; a trapped signal ends the wait.
func biWait(s *Shell, args []string) int {
	any := false
	if len(args) > 0 && args[0] == "-n" {
		any, args = true, args[1:]
	}
	var targets []*job
	if len(args) == 0 {
		targets = append(targets, s.jobs...)
	}
	code := 0
	for _, a := range args {
		if strings.HasPrefix(a, "%") {
			j, err := s.findJob(a)
			if err != nil {
				s.errorf("wait: %v", err)
				code = statusMissing
				continue
			}
			targets = append(targets, j)
			code = 0
			continue
		}
		pid, err := strconv.Atoi(a)
		if err != nil {
			return s.usage("wait: Illegal number: %s", a)
		}
		code = statusMissing
		for _, j := range s.jobs {
			for _, p := range j.procs {
				if p.pid == pid {
					targets = append(targets, &job{procs: []*child{p}, id: -1})
					code = 0
				}
			}
		}
	}
	if len(targets) == 0 {
		if any {
			return statusMissing
		}
		return code
	}
	signal.Notify(s.proc.sig, syscall.SIGCHLD)
	defer signal.Reset(syscall.SIGCHLD)
	for {
		s.reap()
		waiting := 0
		for _, j := range targets {
			switch {
			case !j.done():
				waiting++
			case any:
				st := j.status(false)
				s.dropJob(j)
				return st
			}
		}
		if waiting == 0 {
			break
		}
		sig := <-s.proc.sig
		if n, ok := sig.(syscall.Signal); ok && n != syscall.SIGCHLD && n != marker {
			s.proc.note(n)
			if action, ok := s.traps[n]; ok && action != "" {
				return 128 + int(n)
			}
			if n == syscall.SIGINT && s.opt.interactive {
				return 130
			}
		}
	}
	if len(args) > 0 && code == 0 {
		code = targets[len(targets)-1].status(false)
	}
	for _, j := range targets {
		s.dropJob(j)
	}
	if !s.opt.interactive {
		for _, j := range append([]*job(nil), s.jobs...) {
			if j.done() && len(args) == 0 {
				s.dropJob(j)
			}
		}
	}
	return code
}

func biRead(s *Shell, args []string) int {
	raw, silent := false, false
	prompt, delim, limit := "", byte('\n'), -1
	fd := 0
	array := ""
	timeout := time.Duration(-1)
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		a := args[0]
		args = args[1:]
		if a == "--" {
			break
		}
		for i := 1; i < len(a); i++ {
			c := a[i]
			switch c {
			case 'r':
				raw = true
				continue
			case 's':
				silent = true
				continue
			case 'p', 't', 'n', 'd', 'u', 'a', 'N':
			default:
				return s.usage("read: Illegal option -%c", c)
			}
			val := a[i+1:]
			if val == "" {
				if len(args) == 0 {
					return s.usage("read: No arg for -%c option", c)
				}
				val, args = args[0], args[1:]
			}
			var err error
			switch c {
			case 'p':
				prompt = val
			case 't':
				timeout, err = tool.ParseInterval(val)
			case 'n', 'N':
				limit, err = strconv.Atoi(val)
			case 'u':
				fd, err = strconv.Atoi(val)
			case 'a':
				array = val
			case 'd':
				delim = 0
				if val != "" {
					delim = val[0]
				}
			}
			if err != nil {
				return s.usage("read: Illegal number: %s", val)
			}
			break
		}
	}
	if len(args) == 0 && array == "" {
		args = []string{"REPLY"}
	}
	for _, n := range args {
		if !syntax.ValidName(n) {
			return s.usage("read: %s: bad variable name", n)
		}
	}
	real := s.fds.get(fd)
	if real < 0 {
		return s.usage("read: %d: Bad file descriptor", fd)
	}
	if prompt != "" && isTerminal(real) {
		s.writeFd(2, prompt)
	}
	if silent && isTerminal(real) {
		if old, err := unix.IoctlGetTermios(real, unix.TCGETS); err == nil {
			quiet := *old
			quiet.Lflag &^= unix.ECHO
			quietly(func() { _ = unix.IoctlSetTermios(real, unix.TCSETSW, &quiet) })
			defer quietly(func() { _ = unix.IoctlSetTermios(real, unix.TCSETSW, old) })
		}
	}
	line, status := s.readLine(real, delim, limit, raw, timeout)
	if array != "" {
		list := expand.ReadFields(&s.cfg, line, -1, raw)
		if err := s.assign(array, expand.Variable{Set: true, Kind: expand.Indexed, List: list}); err != nil {
			s.fatal(statusUsage, "read: %v", err)
		}
		return status
	}
	s.syncConfig()
	vals := expand.ReadFields(&s.cfg, line, len(args), raw)
	for i, n := range args {
		v := ""
		if i < len(vals) {
			v = vals[i]
		}
		if !s.set(n, v) {
			return s.status
		}
	}
	return status
}

// readLine reads what read assigns. The status is 1 at the end of input and
// above 128 when the time is over or a signal came.
func (s *Shell) readLine(fd int, delim byte, limit int, raw bool, timeout time.Duration) (string, int) {
	var out []byte
	deadline := time.Time{}
	if timeout >= 0 {
		deadline = time.Now().Add(timeout)
	}
	watch := s.opt.interactive || timeout >= 0
	for sig, action := range s.traps {
		watch = watch || sig != 0 && action != ""
	}
	for {
		if watch {
			if st := s.awaitInput(fd, deadline); st != 0 {
				return string(out), st
			}
		}
		n := limit
		if limit >= 0 {
			n = limit - len(out)
		}
		if watch {
			n = 1
		}
		part, err := readUntil(fd, delim, n)
		out = append(out, part...)
		done := bytes.HasSuffix(part, []byte{delim})
		if err != nil {
			if err != io.EOF {
				s.errorf("read: %s", tool.Reason(err))
			}
			return string(out), 1
		}
		if limit >= 0 && len(out) >= limit {
			return strings.TrimSuffix(string(out), string(delim)), 0
		}
		if !done {
			continue
		}
		out = out[:len(out)-1]
		if !raw && delim == '\n' {
			k := 0
			for k < len(out) && out[len(out)-1-k] == '\\' {
				k++
			}
			if k%2 == 1 { // an escaped newline joins the next line
				out = out[:len(out)-1]
				if s.opt.interactive && isTerminal(fd) {
					s.writeFd(2, s.prompt("PS2"))
				}
				continue
			}
		}
		return string(out), 0
	}
}

// awaitInput waits until fd can be read. It returns a status for read when a
// trapped signal or the deadline comes first.
func (s *Shell) awaitInput(fd int, deadline time.Time) int {
	for {
		wait := 50
		if !deadline.IsZero() {
			left := time.Until(deadline)
			if left < 0 {
				left = 0
			}
			wait = min(wait, int(left.Milliseconds()))
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, wait)
		if n > 0 || err != nil && err != unix.EINTR {
			return 0
		}
		s.proc.drain()
		for sig := range s.proc.pending {
			if action, ok := s.traps[sig]; ok && action != "" || sig == syscall.SIGINT && s.opt.interactive {
				return 128 + int(sig)
			}
		}
		if !deadline.IsZero() && !time.Now().Before(deadline) {
			return 142
		}
	}
}

func biUmask(s *Shell, args []string) int {
	cur := unix.Umask(0)
	unix.Umask(cur)
	symbolic := false
	if len(args) > 0 && args[0] == "-S" {
		symbolic, args = true, args[1:]
	}
	if len(args) == 0 {
		if symbolic {
			out := ""
			for i, who := range []string{"u", "g", "o"} {
				bits := ^cur >> (6 - 3*i) & 7
				out += "," + who + "="
				for j, c := range []string{"r", "w", "x"} {
					if bits&(4>>j) != 0 {
						out += c
					}
				}
			}
			s.writeFd(1, out[1:]+"\n")
			return 0
		}
		s.writeFd(1, fmt.Sprintf("%04o\n", cur))
		return 0
	}
	var mask int
	if n, err := strconv.ParseUint(args[0], 8, 32); err == nil && n <= 0o777 {
		mask = int(n)
	} else {
		perm, err := tool.ParseMode(args[0], uint32(^cur&0o777), false, 0)
		if err != nil || args[0] != "" && args[0][0] >= '0' && args[0][0] <= '9' {
			return s.usage("umask: Illegal mode: %s", args[0])
		}
		mask = int(^perm & 0o777)
	}
	if s.inProcess() && s.savedMask < 0 {
		s.savedMask = cur
	}
	unix.Umask(mask)
	return 0
}

// limit is one resource of ulimit; unit is what its numbers count.
type limit struct {
	letter byte
	res    int
	unit   uint64
	name   string
}

func limits() []limit {
	return []limit{
		{'t', unix.RLIMIT_CPU, 1, "time(seconds)"},
		{'f', unix.RLIMIT_FSIZE, 512, "file(blocks)"},
		{'d', unix.RLIMIT_DATA, 1024, "data(kbytes)"},
		{'s', unix.RLIMIT_STACK, 1024, "stack(kbytes)"},
		{'c', unix.RLIMIT_CORE, 512, "coredump(blocks)"},
		{'m', unix.RLIMIT_RSS, 1024, "memory(kbytes)"},
		{'l', unix.RLIMIT_MEMLOCK, 1024, "locked memory(kbytes)"},
		{'p', unix.RLIMIT_NPROC, 1, "process"},
		{'n', unix.RLIMIT_NOFILE, 1, "nofiles"},
		{'v', unix.RLIMIT_AS, 1024, "vmemory(kbytes)"},
		{'w', unix.RLIMIT_LOCKS, 1, "locks"},
		{'r', unix.RLIMIT_RTPRIO, 1, "rtprio"},
	}
}

func biUlimit(s *Shell, args []string) int {
	hard, soft, all := false, false, false
	which := byte('f')
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		for i := 1; i < len(args[0]); i++ {
			switch c := args[0][i]; c {
			case 'H':
				hard = true
			case 'S':
				soft = true
			case 'a':
				all = true
			default:
				which = c
			}
		}
		args = args[1:]
	}
	show := func(l limit) string {
		var r unix.Rlimit
		_ = unix.Getrlimit(l.res, &r)
		v := r.Cur
		if hard {
			v = r.Max
		}
		if v == unix.RLIM_INFINITY {
			return "unlimited"
		}
		return strconv.FormatUint(v/l.unit, 10)
	}
	if all {
		for _, l := range limits() {
			s.writeFd(1, fmt.Sprintf("%-21s %s\n", l.name, show(l)))
		}
		return 0
	}
	for _, l := range limits() {
		if l.letter != which {
			continue
		}
		if len(args) == 0 {
			s.writeFd(1, show(l)+"\n")
			return 0
		}
		v := uint64(unix.RLIM_INFINITY)
		if args[0] != "unlimited" {
			n, err := strconv.ParseUint(args[0], 10, 63)
			if err != nil || n > unix.RLIM_INFINITY/l.unit {
				return s.usage("ulimit: bad number")
			}
			v = n * l.unit
		}
		var r syscall.Rlimit
		err := syscall.Getrlimit(l.res, &r)
		if err == nil {
			if soft || !hard {
				r.Cur = v
			}
			if hard || !soft {
				r.Max = v
			}
			// By way of the syscall package, which then stops restoring the
			// limit on open files that the Go runtime had raised.
			err = syscall.Setrlimit(l.res, &r)
		}
		if err != nil {
			return s.usage("ulimit: error setting limit (%s)", tool.Reason(err))
		}
		return 0
	}
	return s.usage("ulimit: Illegal option -%c", which)
}

// regexMatch is the =~ of [[ ]]; it sets BASH_REMATCH.
func (s *Shell) regexMatch(text, expr string) (bool, error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return false, fmt.Errorf("[[: bad regular expression: %s", expr)
	}
	m := re.FindStringSubmatch(text)
	if err := s.assign("BASH_REMATCH", expand.Variable{Set: true, Kind: expand.Indexed, List: append([]string{}, m...)}); err != nil {
		return false, err
	}
	return m != nil, nil
}
