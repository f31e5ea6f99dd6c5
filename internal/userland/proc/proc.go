// Package proc holds the utilities about processes, users and the system.
package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/userland/basic"
	"github.com/hutch-sandbox/hutch/internal/userland/shell"
	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// Statuses of utilities that run another command.
const (
	statusFail    = 125
	statusNoExec  = 126
	statusMissing = 127
)

// execute replaces this process by a command. It returns only on failure,
// with the status for it.
func execute(c *tool.Context, argv []string, env []string) int {
	path, err := exec.LookPath(argv[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		status := statusMissing
		if errors.Is(err, fs.ErrPermission) {
			status = statusNoExec
		}
		why := tool.Reason(err)
		if errors.Is(err, exec.ErrNotFound) {
			why = "No such file or directory"
		}
		return c.Fail(status, "'%s': %s", argv[0], why)
	}
	if path == "" {
		path = argv[0]
	}
	c.Stdout.Flush()
	env = shell.IgnoredEnv(env)
	err = syscall.Exec(path, argv, env)
	if err == syscall.ENOEXEC {
		err = syscall.Exec("/proc/self/exe", append([]string{"sh", path}, argv[1:]...), env)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return c.Fail(statusMissing, "'%s': %s", argv[0], tool.Reason(err))
	}
	return c.Fail(statusNoExec, "'%s': %s", argv[0], tool.Reason(err))
}

// True succeeds.
func True(*tool.Context) int { return 0 }

// False fails.
func False(*tool.Context) int { return 1 }

// Env is the env utility.
func Env(c *tool.Context) int {
	// "env -S" and "-" aside, options end at the first operand.
	args := c.Args
	clear := false
	if len(args) > 0 && args[0] == "-" {
		clear, c.Args = true, args[1:]
	}
	opts, ops, code, ok := c.Parse(tool.Spec{Fail: statusFail, Short: "iu:C:0S:", InOrder: true, Long: []string{"ignore-environment|i", "unset=|u", "chdir=|C", "null|0", "split-string=|S"}})
	if !ok {
		return code
	}
	env := os.Environ()
	end, dir := "\n", ""
	unset := func(name string) {
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	}
	for _, o := range opts {
		switch o.Name {
		case "i":
			clear = true
		case "C":
			dir = o.Arg
		case "0":
			end = "\x00"
		case "S":
			ops = append(strings.Fields(o.Arg), ops...)
		}
	}
	if clear {
		env = nil
	}
	for _, o := range opts {
		if o.Name == "u" {
			if o.Arg == "" || strings.Contains(o.Arg, "=") {
				return c.Fail(statusFail, "cannot unset '%s': Invalid argument", o.Arg)
			}
			unset(o.Arg)
		}
	}
	for len(ops) > 0 && strings.Contains(ops[0], "=") {
		name, val, _ := strings.Cut(ops[0], "=")
		unset(name)
		env = append(env, ops[0])
		if name == "PATH" {
			if err := os.Setenv("PATH", val); err != nil {
				return c.Fail(statusFail, "cannot set 'PATH': %s", tool.Reason(err))
			}
		}
		ops = ops[1:]
	}
	if len(ops) == 0 {
		if dir != "" {
			return c.Fail(statusFail, "must specify command with --chdir (-C)")
		}
		for _, kv := range env {
			c.Printf("%s%s", kv, end)
		}
		return 0
	}
	if end != "\n" {
		return c.Fail(statusFail, "cannot specify --null (-0) with command")
	}
	if dir != "" {
		if err := os.Chdir(dir); err != nil {
			return c.Fail(statusFail, "cannot change directory to '%s': %s", dir, tool.Reason(err))
		}
	}
	return execute(c, ops, env)
}

// Printenv prints variables of the environment.
func Printenv(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Fail: 2, Short: "0", Long: []string{"null|0"}})
	if !ok {
		return code
	}
	end := "\n"
	if len(opts) > 0 {
		end = "\x00"
	}
	if len(ops) == 0 {
		for _, kv := range os.Environ() {
			c.Printf("%s%s", kv, end)
		}
		return 0
	}
	for _, n := range ops {
		v, ok := os.LookupEnv(n)
		if !ok {
			code = 1
			continue
		}
		c.Printf("%s%s", v, end)
	}
	return code
}

// Date is the date utility.
func Date(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "d:uI::Rr:s:f:", Long: []string{"date=|d", "utc|u", "universal|u", "iso-8601?|I", "rfc-2822|R", "rfc-email|R", "rfc-3339=", "reference=|r", "set=|s"}})
	if !ok {
		return code
	}
	now, loc := time.Now(), time.Local
	format, text, given, ref := "", "", false, ""
	for _, o := range opts {
		switch o.Name {
		case "u":
			loc = time.UTC
		case "d":
			text, given = o.Arg, true
		case "I":
			f, ok := map[string]string{"": "%Y-%m-%d", "date": "%Y-%m-%d", "hours": "%Y-%m-%dT%H%:z", "minutes": "%Y-%m-%dT%H:%M%:z", "seconds": "%Y-%m-%dT%H:%M:%S%:z", "ns": "%Y-%m-%dT%H:%M:%S,%N%:z"}[o.Arg]
			if !ok {
				return c.Fail(1, "invalid argument '%s' for '--iso-8601'", o.Arg)
			}
			format = f
		case "R":
			format = "%a, %d %b %Y %H:%M:%S %z"
		case "rfc-3339":
			f, ok := map[string]string{"date": "%Y-%m-%d", "seconds": "%Y-%m-%d %H:%M:%S%:z", "ns": "%Y-%m-%d %H:%M:%S.%N%:z"}[o.Arg]
			if !ok {
				return c.Fail(1, "invalid argument '%s' for '--rfc-3339'", o.Arg)
			}
			format = f
		case "r":
			ref = o.Arg
		case "s", "f":
			return c.Fail(1, "option -%s is not supported: the clock of the box is the host's", o.Name)
		}
	}
	for _, o := range ops {
		if !strings.HasPrefix(o, "+") {
			return c.Fail(1, "invalid date '%s'", o)
		}
		if format != "" {
			return c.Fail(1, "multiple output formats specified")
		}
		format = o[1:]
		if format == "" {
			c.Stdout.WriteByte('\n')
			return 0
		}
	}
	if ref != "" {
		st, err := os.Stat(ref)
		if err != nil {
			return c.Fail(1, "%s: %s", ref, tool.Reason(err))
		}
		now = st.ModTime()
	}
	if given {
		var err error
		if now, err = tool.ParseDate(text, now, loc); err != nil {
			return c.Fail(1, "%v", err)
		}
	}
	if format == "" {
		format = "%a %b %e %H:%M:%S %Z %Y"
	}
	c.Printf("%s\n", tool.FormatDate(format, now.In(loc)))
	return 0
}

// ID is the id utility.
func ID(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "ugGnrz", Long: []string{"user|u", "group|g", "groups|G", "name|n", "real|r", "zero|z"}})
	if !ok {
		return code
	}
	mode, name, real, end := byte(0), false, false, "\n"
	for _, o := range opts {
		switch o.Name {
		case "u", "g", "G":
			if mode != 0 && mode != o.Name[0] {
				return c.Fail(1, "cannot print \"only\" of more than one choice")
			}
			mode = o.Name[0]
		case "n":
			name = true
		case "r":
			real = true
		case "z":
			end = "\x00"
		}
	}
	if (name || real) && mode == 0 {
		return c.Fail(1, "cannot print only names or real IDs in default format")
	}
	if !c.Operands(ops, 0, 1) {
		return 1
	}
	users, groups := tool.Accounts("/etc/passwd"), tool.Accounts("/etc/group")
	nameOf := func(list []tool.Account, id int) string {
		for _, a := range list {
			if a.ID == id {
				return a.Name
			}
		}
		return ""
	}
	uid, gid := os.Geteuid(), os.Getegid()
	if real {
		uid, gid = os.Getuid(), os.Getgid()
	}
	list, _ := os.Getgroups()
	if len(ops) == 1 {
		found := false
		for _, u := range users {
			if u.Name == ops[0] || strconv.Itoa(u.ID) == ops[0] {
				uid, gid, found = u.ID, u.Group, true
				list = nil
				for _, g := range groups {
					if slices.Contains(g.Members, u.Name) {
						list = append(list, g.ID)
					}
				}
				break
			}
		}
		if !found {
			return c.Fail(1, "'%s': no such user", ops[0])
		}
	}
	all := []int{gid}
	for _, g := range list {
		if !slices.Contains(all, g) {
			all = append(all, g)
		}
	}
	show := func(accounts []tool.Account, id int) string {
		if n := nameOf(accounts, id); name && n != "" {
			return n
		}
		return strconv.Itoa(id)
	}
	switch mode {
	case 'u':
		c.Printf("%s%s", show(users, uid), end)
	case 'g':
		c.Printf("%s%s", show(groups, gid), end)
	case 'G':
		sep := " "
		if end != "\n" {
			sep = end
		}
		for i, g := range all {
			if i > 0 {
				c.Stdout.WriteString(sep)
			}
			c.Stdout.WriteString(show(groups, g))
		}
		c.Stdout.WriteString(end)
	default:
		full := func(accounts []tool.Account, id int) string {
			if n := nameOf(accounts, id); n != "" {
				return fmt.Sprintf("%d(%s)", id, n)
			}
			return strconv.Itoa(id)
		}
		var gs []string
		for _, g := range all {
			gs = append(gs, full(groups, g))
		}
		c.Printf("uid=%s gid=%s groups=%s\n", full(users, uid), full(groups, gid), strings.Join(gs, ","))
	}
	return 0
}

// Whoami prints the name of the effective user; logname is the same here.
func Whoami(c *tool.Context) int {
	if _, _, code, ok := c.Parse(tool.Spec{}); !ok {
		return code
	}
	for _, u := range tool.Accounts("/etc/passwd") {
		if u.ID == os.Geteuid() {
			c.Printf("%s\n", u.Name)
			return 0
		}
	}
	return c.Fail(1, "cannot find name for user ID %d", os.Geteuid())
}

// Groups prints the groups of a user.
func Groups(c *tool.Context) int {
	c.Args = append([]string{"-G", "-n"}, c.Args...)
	return ID(c)
}

// Sleep is the sleep utility.
func Sleep(c *tool.Context) int {
	_, ops, code, ok := c.Parse(tool.Spec{})
	if !ok {
		return code
	}
	if !c.Operands(ops, 1, -1) {
		return 1
	}
	var total time.Duration
	for _, o := range ops {
		d, err := tool.ParseInterval(o)
		if err != nil {
			return c.Fail(1, "%v", err)
		}
		if total += d; total < 0 {
			total = 1<<63 - 1
		}
	}
	time.Sleep(total)
	return 0
}

// Uname is the uname utility, and arch by its name.
func Uname(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "asnrvmpio", Long: []string{"all|a", "kernel-name|s", "nodename|n", "kernel-release|r", "kernel-version|v", "machine|m", "processor|p", "hardware-platform|i", "operating-system|o"}})
	if !ok {
		return code
	}
	if !c.Operands(ops, 0, 0) {
		return 1
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return c.Fail(1, "%s", tool.Reason(err))
	}
	str := unix.ByteSliceToString
	want := ""
	if c.Name == "arch" {
		want = "m"
	}
	for _, o := range opts {
		if o.Name == "a" {
			want += "snrvmo"
		} else {
			want += o.Name
		}
	}
	if want == "" {
		want = "s"
	}
	var out []string
	for _, k := range "snrvmpio" {
		if !strings.ContainsRune(want, k) {
			continue
		}
		out = append(out, map[rune]string{'s': str(u.Sysname[:]), 'n': str(u.Nodename[:]), 'r': str(u.Release[:]), 'v': str(u.Version[:]), 'm': str(u.Machine[:]), 'p': "unknown", 'i': "unknown", 'o': "GNU/Linux"}[k])
	}
	c.Printf("%s\n", strings.Join(out, " "))
	return 0
}

// Hostname prints, or as root sets, the name of the host.
func Hostname(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "sfi", Long: []string{"short|s", "fqdn|f", "long|f"}})
	if !ok {
		return code
	}
	if !c.Operands(ops, 0, 1) {
		return 1
	}
	if len(ops) == 1 {
		if err := unix.Sethostname([]byte(ops[0])); err != nil {
			return c.Fail(1, "sethostname: %s", tool.Reason(err))
		}
		return 0
	}
	h, err := os.Hostname()
	if err != nil {
		return c.Fail(1, "%s", tool.Reason(err))
	}
	for _, o := range opts {
		switch o.Name {
		case "s":
			h, _, _ = strings.Cut(h, ".")
		case "i":
			return c.Fail(1, "option -i is not supported")
		}
	}
	c.Printf("%s\n", h)
	return 0
}

// Which finds programs by PATH.
func Which(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "as"})
	if !ok {
		return code
	}
	all, silent := false, false
	for _, o := range opts {
		all = all || o.Name == "a"
		silent = silent || o.Name == "s"
	}
	if len(ops) == 0 {
		return 1
	}
	for _, name := range ops {
		found := false
		dirs := strings.Split(os.Getenv("PATH"), ":")
		if strings.Contains(name, "/") {
			dirs = []string{""}
		}
		for _, d := range dirs {
			p := name
			if !strings.Contains(name, "/") {
				if d == "" {
					d = "."
				}
				p = d + "/" + name
			}
			st, err := os.Stat(p)
			if err != nil || st.IsDir() || unix.Faccessat(unix.AT_FDCWD, p, unix.X_OK, unix.AT_EACCESS) != nil {
				continue
			}
			found = true
			if !silent {
				c.Printf("%s\n", p)
			}
			if !all {
				break
			}
		}
		if !found {
			code = 1
		}
	}
	return code
}

// Nproc prints the number of processors this process may use.
func Nproc(c *tool.Context) int {
	opts, _, code, ok := c.Parse(tool.Spec{Long: []string{"all", "ignore="}})
	if !ok {
		return code
	}
	n := runtime.NumCPU()
	for _, o := range opts {
		if o.Name == "ignore" {
			k, err := strconv.Atoi(o.Arg)
			if err != nil || k < 0 {
				return c.Fail(1, "invalid number: '%s'", o.Arg)
			}
			n = max(1, n-k)
		}
	}
	c.Printf("%d\n", n)
	return 0
}

// Setsid runs a command in a session of its own.
func Setsid(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "cfw", InOrder: true, Long: []string{"ctty|c", "fork|f", "wait|w"}})
	if !ok {
		return code
	}
	ctty, fork, wait := false, false, false
	for _, o := range opts {
		switch o.Name {
		case "c":
			ctty = true
		case "f":
			fork = true
		case "w":
			wait = true
		}
	}
	if len(ops) == 0 {
		return c.Fail(1, "no command specified")
	}
	if fork || unix.Getpgrp() == os.Getpid() {
		// A group leader cannot make a session: a child does.
		path, err := exec.LookPath(ops[0])
		if err != nil {
			return c.Fail(statusMissing, "failed to execute %s: No such file or directory", ops[0])
		}
		attr := &syscall.ProcAttr{Env: shell.IgnoredEnv(os.Environ()), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: ctty}}
		pid, err := syscall.ForkExec(path, ops, attr)
		if err != nil {
			return c.Fail(statusNoExec, "failed to execute %s: %s", ops[0], tool.Reason(err))
		}
		if !wait {
			return 0
		}
		return waitStatus(pid)
	}
	if _, err := unix.Setsid(); err != nil {
		return c.Fail(1, "setsid failed: %s", tool.Reason(err))
	}
	if ctty {
		if err := unix.IoctlSetInt(0, unix.TIOCSCTTY, 1); err != nil {
			return c.Fail(1, "failed to set the controlling terminal: %s", tool.Reason(err))
		}
	}
	return execute(c, ops, os.Environ())
}

func waitStatus(pid int) int {
	var ws syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &ws, 0, nil)
		if err != syscall.EINTR {
			break
		}
	}
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// Nohup runs a command that a hangup does not end.
func Nohup(c *tool.Context) int {
	_, ops, code, ok := c.Parse(tool.Spec{Fail: statusFail, InOrder: true})
	if !ok {
		return code
	}
	if len(ops) == 0 {
		return c.Fail(statusFail, "missing operand")
	}
	isTTY := func(fd int) bool { _, err := unix.IoctlGetTermios(fd, unix.TCGETS); return err == nil }
	if isTTY(0) {
		if fd, err := unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
			_ = unix.Dup3(fd, 0, 0)
		}
	}
	errTTY := isTTY(2)
	if isTTY(1) {
		name := "nohup.out"
		fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_CLOEXEC, 0o600)
		if err != nil {
			name = os.Getenv("HOME") + "/nohup.out"
			if fd, err = unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_CLOEXEC, 0o600); err != nil {
				return c.Fail(statusFail, "failed to open '%s': %s", name, tool.Reason(err))
			}
		}
		c.Errorf("ignoring input and appending output to '%s'", name)
		_ = unix.Dup3(fd, 1, 0)
	}
	if errTTY {
		_ = unix.Dup3(1, 2, 0)
	}
	signal.Ignore(syscall.SIGHUP)
	return execute(c, ops, os.Environ())
}

// Nice runs a command with another priority.
func Nice(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Fail: statusFail, Short: "n:", InOrder: true, Long: []string{"adjustment=|n"}})
	if !ok {
		return code
	}
	step := 10
	for _, o := range opts {
		var err error
		if step, err = strconv.Atoi(o.Arg); err != nil {
			return c.Fail(statusFail, "invalid adjustment '%s'", o.Arg)
		}
	}
	// Linux keeps a priority for each thread: the one that sets it must be the
	// one that executes the command.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	cur := 20 - raw // the system call returns 20 minus the value
	if err != nil {
		return c.Fail(statusFail, "%s", tool.Reason(err))
	}
	if len(ops) == 0 {
		c.Printf("%d\n", cur)
		return 0
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, cur+step); err != nil {
		c.Errorf("cannot set niceness: %s", tool.Reason(err))
	}
	return execute(c, ops, os.Environ())
}

// Timeout runs a command and signals it when the time is over.
func Timeout(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Fail: statusFail, Short: "s:k:v", InOrder: true, Long: []string{"signal=|s", "kill-after=|k", "preserve-status", "foreground", "verbose|v"}})
	if !ok {
		return code
	}
	sig, kill, preserve, foreground, verbose := syscall.SIGTERM, time.Duration(0), false, false, false
	for _, o := range opts {
		switch o.Name {
		case "s":
			s, ok := basic.ParseSignal(o.Arg)
			if !ok {
				return c.Fail(statusFail, "'%s': invalid signal", o.Arg)
			}
			sig = s
		case "k":
			d, err := tool.ParseInterval(o.Arg)
			if err != nil {
				return c.Fail(statusFail, "%v", err)
			}
			kill = d
		case "preserve-status":
			preserve = true
		case "foreground":
			foreground = true
		case "v":
			verbose = true
		}
	}
	if len(ops) < 2 {
		return c.Fail(statusFail, "a duration and a command are needed: timeout [OPTION] DURATION COMMAND [ARG]...")
	}
	limit, err := tool.ParseInterval(ops[0])
	if err != nil {
		return c.Fail(statusFail, "%v", err)
	}
	path, err := exec.LookPath(ops[1])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return c.Fail(statusMissing, "failed to run command '%s': No such file or directory", ops[1])
	}
	if !foreground {
		_ = unix.Setpgid(0, 0)
	}
	sigs := make(chan os.Signal, 8)
	signal.Notify(sigs, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGTTIN, syscall.SIGTTOU, sig)
	pid, err := syscall.ForkExec(path, ops[1:], &syscall.ProcAttr{Env: shell.IgnoredEnv(os.Environ()), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return c.Fail(statusNoExec, "failed to run command '%s': %s", ops[1], tool.Reason(err))
	}
	done := make(chan int, 1)
	go func() { done <- waitStatus(pid) }()
	var timer, killer <-chan time.Time
	if limit > 0 {
		timer = time.After(limit)
	}
	send := func(s syscall.Signal) {
		if verbose {
			c.Errorf("sending signal %s to command '%s'", basic.SignalName(s), ops[1])
		}
		_ = syscall.Kill(pid, s)
		if !foreground {
			// The whole group, this process aside, which catches or cannot be
			// meant by it.
			if s == syscall.SIGKILL {
				killGroup(pid)
			} else {
				_ = syscall.Kill(0, s)
			}
		}
		if s != syscall.SIGKILL && s != syscall.SIGCONT {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	timedOut, killed := false, false
	for {
		select {
		case st := <-done:
			switch {
			case killed && !preserve:
				return 128 + int(syscall.SIGKILL)
			case timedOut && !preserve:
				if sig == syscall.SIGKILL {
					return 128 + int(syscall.SIGKILL)
				}
				return 124
			}
			return st
		case <-timer:
			timedOut = true
			send(sig)
			if kill > 0 {
				killer = time.After(kill)
			}
		case <-killer:
			killed = true
			send(syscall.SIGKILL)
		case s := <-sigs:
			if n, ok := s.(syscall.Signal); ok && n != syscall.SIGTTIN && n != syscall.SIGTTOU && !timedOut {
				_ = syscall.Kill(pid, n)
			}
		}
	}
}

// killGroup kills the members of our process group except this process.
func killGroup(child int) {
	list, err := readAll()
	if err != nil {
		return
	}
	for _, p := range list {
		if p.pgrp == unix.Getpgrp() && p.pid != os.Getpid() && p.pid != child {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
}

// Chroot runs a command in another root directory.
func Chroot(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Fail: statusFail, InOrder: true, Long: []string{"userspec=", "skip-chdir"}})
	if !ok {
		return code
	}
	if len(ops) == 0 {
		return c.Fail(statusFail, "missing operand")
	}
	uid, gid, chdir := -1, -1, true
	for _, o := range opts {
		switch o.Name {
		case "skip-chdir":
			chdir = false
		case "userspec":
			u, g, _ := strings.Cut(o.Arg, ":")
			var e1, e2 error
			if u != "" {
				uid, e1 = strconv.Atoi(u)
			}
			if g != "" {
				gid, e2 = strconv.Atoi(g)
			}
			if e1 != nil || e2 != nil {
				return c.Fail(statusFail, "invalid user '%s': use numbers", o.Arg)
			}
		}
	}
	if err := unix.Chroot(ops[0]); err != nil {
		return c.Fail(statusFail, "cannot change root directory to '%s': %s", ops[0], tool.Reason(err))
	}
	if chdir {
		if err := os.Chdir("/"); err != nil {
			return c.Fail(statusFail, "cannot chdir to root directory: %s", tool.Reason(err))
		}
	}
	if gid >= 0 {
		_ = syscall.Setgroups([]int{gid})
		if err := syscall.Setgid(gid); err != nil {
			return c.Fail(statusFail, "failed to set group-ID: %s", tool.Reason(err))
		}
	}
	if uid >= 0 {
		if err := syscall.Setuid(uid); err != nil {
			return c.Fail(statusFail, "failed to set user-ID: %s", tool.Reason(err))
		}
	}
	cmd := ops[1:]
	if len(cmd) == 0 {
		cmd = []string{"/bin/sh", "-i"}
	}
	return execute(c, cmd, os.Environ())
}

// Umount takes a mount away.
func Umount(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Short: "lf", Long: []string{"lazy|l", "force|f"}})
	if !ok {
		return code
	}
	flags := 0
	for _, o := range opts {
		if o.Name == "l" {
			flags |= unix.MNT_DETACH
		} else {
			flags |= unix.MNT_FORCE
		}
	}
	if !c.Operands(ops, 1, -1) {
		return 1
	}
	for _, o := range ops {
		if err := unix.Unmount(o, flags); err != nil {
			c.Errorf("%s: %s", o, tool.Reason(err))
			code = 1
		}
	}
	return code
}

// Free shows memory.
func Free(c *tool.Context) int {
	opts, _, code, ok := c.Parse(tool.Spec{Short: "bkmgh", Long: []string{"human|h", "bytes|b", "kibi|k", "mebi|m", "gibi|g"}})
	if !ok {
		return code
	}
	unit, human := uint64(1024), false
	for _, o := range opts {
		switch o.Name {
		case "h":
			human = true
		default:
			unit = map[string]uint64{"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[o.Name]
		}
	}
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return c.Fail(1, "%s", tool.Reason(err))
	}
	m := map[string]uint64{}
	for _, l := range strings.Split(string(b), "\n") {
		f := strings.Fields(l)
		if len(f) >= 2 {
			n, _ := strconv.ParseUint(f[1], 10, 64)
			m[strings.TrimSuffix(f[0], ":")] = n * 1024
		}
	}
	show := func(n uint64) string {
		if human {
			return tool.HumanSize(n) + "i"
		}
		return strconv.FormatUint(n/unit, 10)
	}
	cache := m["Buffers"] + m["Cached"] + m["SReclaimable"]
	avail, has := m["MemAvailable"]
	if !has {
		avail = m["MemFree"] + cache
	}
	c.Printf("%15s %11s %11s %11s %11s %11s\n", "total", "used", "free", "shared", "buff/cache", "available")
	c.Printf("Mem:  %11s %11s %11s %11s %11s %11s\n", show(m["MemTotal"]), show(m["MemTotal"]-min(avail, m["MemTotal"])), show(m["MemFree"]), show(m["Shmem"]), show(cache), show(avail))
	c.Printf("Swap: %11s %11s %11s\n", show(m["SwapTotal"]), show(m["SwapTotal"]-m["SwapFree"]), show(m["SwapFree"]))
	return 0
}

// Uptime shows how long the system has run.
func Uptime(c *tool.Context) int {
	if _, _, code, ok := c.Parse(tool.Spec{}); !ok {
		return code
	}
	b, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return c.Fail(1, "%s", tool.Reason(err))
	}
	sec, _ := strconv.ParseFloat(strings.Fields(string(b) + " 0")[0], 64)
	d := int(sec)
	up := fmt.Sprintf("%d:%02d", d/3600%24, d/60%60)
	if d < 3600 {
		up = fmt.Sprintf("%d min", d/60)
	}
	if n := d / 86400; n > 0 {
		up = fmt.Sprintf("%d day%s, %s", n, map[bool]string{true: "s"}[n > 1], up)
	}
	load := "0.00, 0.00, 0.00"
	if l, err := os.ReadFile("/proc/loadavg"); err == nil {
		if f := strings.Fields(string(l)); len(f) > 2 {
			load = strings.Join(f[:3], ", ")
		}
	}
	c.Printf(" %s up %s,  load average: %s\n", time.Now().Format("15:04:05"), up, load)
	return 0
}

// Tty prints the name of the terminal on standard input.
func Tty(c *tool.Context) int {
	opts, _, code, ok := c.Parse(tool.Spec{Fail: 2, Short: "s", Long: []string{"silent|s", "quiet|s"}})
	if !ok {
		return code
	}
	silent := len(opts) > 0
	if _, err := unix.IoctlGetTermios(0, unix.TCGETS); err != nil {
		if !silent {
			c.Printf("not a tty\n")
		}
		return 1
	}
	name, err := os.Readlink("/proc/self/fd/0")
	if err != nil {
		name = "/dev/tty"
	}
	if !silent {
		c.Printf("%s\n", filepath.Clean(name))
	}
	return 0
}

// Clear clears the terminal.
func Clear(c *tool.Context) int {
	c.Stdout.WriteString("\x1b[H\x1b[2J\x1b[3J")
	return 0
}
