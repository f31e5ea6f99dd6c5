package boxfake

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/environ"
)

// proc is a running program.
type proc struct {
	exec        *exec
	ctx         context.Context
	pid, parent int
	args, env   []string
	dir         string
	in          io.Reader
	out, err    io.Writer
}

func (p *proc) abs(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return strings.TrimSuffix(p.dir, "/") + "/" + name
}

func (p *proc) fs() *memFS { return p.exec.m.fs }

// fail prints a message as programs do.
func (p *proc) fail(code int, format string, args ...any) int {
	fmt.Fprintf(p.err, "%s: %s\n", baseName(p.args[0]), fmt.Sprintf(format, args...))
	return code
}

// cause is the errno's text alone.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

func (p *proc) readFile(name string) ([]byte, error) {
	o, err := p.fs().open(p.abs(name), os.O_RDONLY, 0, p.exec.account)
	if err != nil {
		return nil, err
	}
	defer func() { _ = o.Close() }()
	return io.ReadAll(struct{ io.Reader }{o})
}

// flags splits off the options, which are single letters; those in values take
// one. "--" ends them.
func (p *proc) flags(values string) (opts map[rune]string, rest []string, ok bool) {
	opts = make(map[rune]string)
	args := p.args[1:]
	for len(args) > 0 {
		a := args[0]
		if a == "--" {
			return opts, args[1:], true
		}
		if len(a) < 2 || a[0] != '-' {
			break
		}
		args = args[1:]
		for i, c := range a[1:] {
			if strings.ContainsRune(values, c) {
				v := a[1+i+len(string(c)):]
				if v == "" {
					if len(args) == 0 {
						p.fail(2, "option requires an argument -- '%c'", c)
						return nil, nil, false
					}
					v, args = args[0], args[1:]
				}
				opts[c] = v
				break
			}
			opts[c] = "1"
		}
	}
	return opts, args, true
}

// programs is what /bin holds.
func programs() map[string]func(*proc) int {
	return map[string]func(*proc) int{
		"sh": shell, "bash": shell,
		"true": func(*proc) int { return 0 }, "false": func(*proc) int { return 1 },
		"echo": builtin, "printf": builtin, "test": builtin, "[": builtin,
		"cat": cat, "ls": ls, "sleep": sleep, "env": env, "pwd": pwd, "mkdir": mkdir, "rm": rm, "rmdir": rmdir,
		"cp": cp, "mv": mv, "ln": ln, "touch": touch, "chmod": chmod, "head": head, "tail": tail, "wc": wc, "tee": tee, "seq": seq,
		"kill": kill, "id": id, "yes": yes, "ps": ps, "setsid": nested, "nohup": nested, "readlink": readlink, "hostname": hostname,
		"uname": uname, "stty": stty, "tty": tty, "stat": stat, "fake-oom": oom, "dd": dd, "sha256sum": sha256sum, "sync": func(*proc) int { return 0 },
	}
}

func programNames() []string { return slices.Sorted(maps.Keys(programs())) }

// builtin leaves the work to the shell.
func builtin(p *proc) int {
	quoted := make([]string, len(p.args))
	quoted[0] = baseName(p.args[0])
	for i, a := range p.args[1:] {
		quoted[i+1] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return p.runScript(strings.Join(quoted, " "), quoted[0], nil, nil)
}

// inputs opens the files named, or standard input, one after another.
func (p *proc) inputs(names []string, do func(name string, r io.Reader) error) int {
	if len(names) == 0 {
		names = []string{"-"}
	}
	code := 0
	for _, name := range names {
		var err error
		if name == "-" {
			err = do(name, p.in)
		} else {
			var o *openFile
			if o, err = p.fs().open(p.abs(name), os.O_RDONLY, 0, p.exec.account); err == nil {
				err = do(name, struct{ io.Reader }{o})
				_ = o.Close()
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, syscall.EPIPE):
			return 141
		case p.ctx.Err() != nil:
			return 143
		default:
			code = p.fail(1, "%s: %v", name, cause(err))
		}
	}
	return code
}

func cat(p *proc) int {
	_, names, ok := p.flags("")
	if !ok {
		return 2
	}
	return p.inputs(names, func(_ string, r io.Reader) error {
		_, err := io.Copy(p.out, r)
		return err
	})
}

func ls(p *proc) int {
	opts, names, ok := p.flags("")
	if !ok {
		return 2
	}
	if len(names) == 0 {
		names = []string{"."}
	}
	code := 0
	for _, name := range names {
		info, err := p.fs().stat(p.abs(name), opts['d'] == "")
		if err != nil {
			code = p.fail(2, "%s: %v", name, cause(err))
			continue
		}
		infos := []box.FileInfo{info}
		infos[0].FileName = name
		if info.IsDir() && opts['d'] == "" {
			if infos, err = p.fs().readDir(p.abs(name)); err != nil {
				code = p.fail(2, "%s: %v", name, cause(err))
				continue
			}
		}
		for _, i := range infos {
			if strings.HasPrefix(i.FileName, ".") && opts['a'] == "" && opts['A'] == "" && opts['d'] == "" {
				continue
			}
			if opts['l'] != "" {
				fmt.Fprintf(p.out, "%s %d %d %d %d ", i.FileMode, i.Links, i.UID, i.GID, i.FileSize)
			}
			fmt.Fprintln(p.out, i.FileName)
		}
	}
	return code
}

func sleep(p *proc) int {
	var total time.Duration
	for _, a := range p.args[1:] {
		s, err := strconv.ParseFloat(strings.TrimSuffix(a, "s"), 64)
		if err != nil || s < 0 {
			return p.fail(1, "invalid time interval '%s'", a)
		}
		total += time.Duration(s * float64(time.Second))
	}
	t := time.NewTimer(total)
	defer t.Stop()
	select {
	case <-t.C:
		return 0
	case <-p.ctx.Done():
		return 143
	}
}

func env(p *proc) int {
	args := p.args[1:]
	list := p.env
	null := false
	for len(args) > 0 {
		switch a := args[0]; {
		case a == "-i":
			list = nil
		case a == "-0":
			null = true
		case a == "-u" && len(args) > 1:
			list = slices.DeleteFunc(slices.Clone(list), func(kv string) bool { return strings.HasPrefix(kv, args[1]+"=") })
			args = args[1:]
		case strings.Contains(a, "="):
			list = environ.Merge(list, []string{a})
		default:
			return p.nested(args, list)
		}
		args = args[1:]
	}
	w := bufio.NewWriter(p.out)
	for _, kv := range list {
		end := "\n"
		if null {
			end = "\x00"
		}
		fmt.Fprint(w, kv, end)
	}
	if w.Flush() != nil {
		return 141
	}
	return 0
}

// nested runs another program in the place of this one.
func (p *proc) nested(args, env []string) int {
	c := *p
	c.args, c.env, c.parent = args, env, p.pid
	run, code, err := p.exec.m.resolve(&c)
	if err != nil {
		return p.fail(code, "%s: %v", args[0], cause(err))
	}
	return p.exec.m.process(&c, run)
}

func nested(p *proc) int {
	_, args, ok := p.flags("")
	if !ok || len(args) == 0 {
		return p.fail(2, "no command")
	}
	return p.nested(args, p.env)
}

func pwd(p *proc) int {
	dir, err := p.fs().realpath(p.dir)
	if err != nil {
		return p.fail(1, "%v", cause(err))
	}
	fmt.Fprintln(p.out, dir)
	return 0
}

func (p *proc) each(names []string, do func(name string) error) int {
	if len(names) == 0 {
		return p.fail(1, "missing operand")
	}
	code := 0
	for _, name := range names {
		if err := do(name); err != nil {
			code = p.fail(1, "%s: %v", name, cause(err))
		}
	}
	return code
}

func mkdir(p *proc) int {
	opts, names, ok := p.flags("m")
	if !ok {
		return 2
	}
	return p.each(names, func(name string) error {
		return p.fs().mkdir(p.abs(name), 0o755, opts['p'] != "", p.exec.account)
	})
}

func rm(p *proc) int {
	opts, names, ok := p.flags("")
	if !ok {
		return 2
	}
	force, recursive := opts['f'] != "", opts['r'] != "" || opts['R'] != ""
	if force && len(names) == 0 {
		return 0
	}
	return p.each(names, func(name string) error {
		info, err := p.fs().stat(p.abs(name), false)
		if err != nil {
			if force {
				return nil
			}
			return err
		}
		if info.IsDir() && !recursive {
			return syscall.EISDIR
		}
		return p.fs().remove(p.abs(name), recursive)
	})
}

func rmdir(p *proc) int {
	return p.each(p.args[1:], func(name string) error { return p.fs().remove(p.abs(name), false) })
}

func (p *proc) into(target, name string) string {
	if info, err := p.fs().stat(p.abs(target), true); err == nil && info.IsDir() {
		return strings.TrimSuffix(p.abs(target), "/") + "/" + baseName(name)
	}
	return p.abs(target)
}

func cp(p *proc) int {
	_, names, ok := p.flags("")
	if !ok || len(names) < 2 {
		return p.fail(1, "missing operand")
	}
	target := names[len(names)-1]
	return p.each(names[:len(names)-1], func(name string) error {
		info, err := p.fs().stat(p.abs(name), true)
		if err != nil {
			return err
		}
		if info.IsDir() {
			return syscall.EISDIR
		}
		data, err := p.readFile(name)
		if err != nil {
			return err
		}
		_, err = p.fs().writeFile(p.into(target, name), strings.NewReader(string(data)), box.WriteOptions{Perm: info.FileMode.Perm()}, p.exec.account)
		return err
	})
}

func mv(p *proc) int {
	_, names, ok := p.flags("")
	if !ok || len(names) < 2 {
		return p.fail(1, "missing operand")
	}
	target := names[len(names)-1]
	return p.each(names[:len(names)-1], func(name string) error { return p.fs().rename(p.abs(name), p.into(target, name)) })
}

func ln(p *proc) int {
	opts, names, ok := p.flags("")
	if !ok || len(names) != 2 {
		return p.fail(1, "missing operand")
	}
	to := p.into(names[1], names[0])
	if opts['f'] != "" {
		_ = p.fs().remove(to, false)
	}
	var err error
	if opts['s'] != "" {
		err = p.fs().symlink(names[0], to, p.exec.account)
	} else {
		err = p.fs().link(p.abs(names[0]), to)
	}
	if err != nil {
		return p.fail(1, "%v", cause(err))
	}
	return 0
}

func touch(p *proc) int {
	_, names, ok := p.flags("dt")
	if !ok {
		return 2
	}
	return p.each(names, func(name string) error {
		o, err := p.fs().open(p.abs(name), os.O_WRONLY|os.O_CREATE, 0o644, p.exec.account)
		if err != nil {
			return err
		}
		_ = o.Close()
		return p.fs().change("touch", p.abs(name), true, func(n *node) { n.mtime = time.Now() })
	})
}

func chmod(p *proc) int {
	args := p.args[1:]
	if len(args) < 2 {
		return p.fail(1, "missing operand")
	}
	bits, err := strconv.ParseUint(args[0], 8, 12)
	return p.each(args[1:], func(name string) error {
		return p.fs().change("chmod", p.abs(name), true, func(n *node) {
			switch {
			case err == nil:
				n.mode = n.mode.Type() | modeOf(int64(bits))
			case strings.HasSuffix(args[0], "+x"):
				n.mode |= 0o111
			}
		})
	})
}

func count(p *proc, values string) (n int64, unit rune, names []string, ok bool) {
	// The old form: head -5.
	if len(p.args) > 1 && len(p.args[1]) > 1 && p.args[1][0] == '-' {
		if _, err := strconv.Atoi(p.args[1][1:]); err == nil {
			p.args = slices.Concat(p.args[:1], []string{"-n", p.args[1][1:]}, p.args[2:])
		}
	}
	opts, names, ok := p.flags(values)
	if !ok {
		return 0, 0, nil, false
	}
	n, unit = 10, 'n'
	for _, u := range "nc" {
		if v := opts[u]; v != "" {
			x, err := strconv.ParseInt(v, 10, 64)
			if err != nil {
				p.fail(1, "invalid number '%s'", v)
				return 0, 0, nil, false
			}
			n, unit = x, u
		}
	}
	return n, unit, names, true
}

func head(p *proc) int {
	n, unit, names, ok := count(p, "nc")
	if !ok {
		return 1
	}
	return p.inputs(names, func(_ string, r io.Reader) error {
		if unit == 'c' {
			_, err := io.CopyN(p.out, r, n)
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		br := bufio.NewReader(r)
		for range n {
			line, err := br.ReadBytes('\n')
			if _, werr := p.out.Write(line); werr != nil {
				return werr
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func tail(p *proc) int {
	n, unit, names, ok := count(p, "nc")
	if !ok {
		return 1
	}
	return p.inputs(names, func(_ string, r io.Reader) error {
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if unit == 'c' {
			data = data[max(0, int64(len(data))-n):]
		} else {
			lines := strings.SplitAfter(string(data), "\n")
			if lines[len(lines)-1] == "" {
				lines = lines[:len(lines)-1]
			}
			data = []byte(strings.Join(lines[max(0, int64(len(lines))-n):], ""))
		}
		_, err = p.out.Write(data)
		return err
	})
}

func wc(p *proc) int {
	opts, names, ok := p.flags("")
	if !ok {
		return 2
	}
	return p.inputs(names, func(name string, r io.Reader) error {
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		var cols []string
		all := len(opts) == 0
		if all || opts['l'] != "" {
			cols = append(cols, strconv.Itoa(strings.Count(string(data), "\n")))
		}
		if all || opts['w'] != "" {
			cols = append(cols, strconv.Itoa(len(strings.Fields(string(data)))))
		}
		if all || opts['c'] != "" {
			cols = append(cols, strconv.Itoa(len(data)))
		}
		if name != "-" {
			cols = append(cols, name)
		}
		_, err = fmt.Fprintln(p.out, strings.Join(cols, " "))
		return err
	})
}

func tee(p *proc) int {
	opts, names, ok := p.flags("")
	if !ok {
		return 2
	}
	writers := []io.Writer{p.out}
	for _, name := range names {
		flag := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
		if opts['a'] != "" {
			flag = os.O_WRONLY | os.O_CREATE | os.O_APPEND
		}
		o, err := p.fs().open(p.abs(name), flag, 0o644, p.exec.account)
		if err != nil {
			return p.fail(1, "%s: %v", name, cause(err))
		}
		defer func() { _ = o.Close() }()
		writers = append(writers, o)
	}
	_, err := io.Copy(io.MultiWriter(writers...), p.in)
	if err != nil {
		return p.fail(1, "%v", err)
	}
	return 0
}

func seq(p *proc) int {
	var nums []int64
	for _, a := range p.args[1:] {
		n, err := strconv.ParseInt(a, 10, 64)
		if err != nil {
			return p.fail(1, "invalid number '%s'", a)
		}
		nums = append(nums, n)
	}
	first, step := int64(1), int64(1)
	var last int64
	switch len(nums) {
	case 1:
		last = nums[0]
	case 2:
		first, last = nums[0], nums[1]
	case 3:
		first, step, last = nums[0], nums[1], nums[2]
	default:
		return p.fail(1, "missing operand")
	}
	w := bufio.NewWriter(p.out)
	for i := first; step > 0 && i <= last || step < 0 && i >= last; i += step {
		if p.ctx.Err() != nil {
			return 143
		}
		if _, err := fmt.Fprintln(w, i); err != nil {
			return 141
		}
	}
	if w.Flush() != nil {
		return 141
	}
	return 0
}

var signalNames = map[string]syscall.Signal{
	"EXIT": 0, "HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "USR1": 10, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "CHLD": 17, "CONT": 18, "STOP": 19, "WINCH": 28,
}

func signalNumber(s string) (syscall.Signal, bool) {
	if n, err := strconv.Atoi(s); err == nil {
		return syscall.Signal(n), n >= 0 && n <= 64
	}
	sig, ok := signalNames[strings.TrimPrefix(strings.ToUpper(s), "SIG")]
	return sig, ok
}

func kill(p *proc) int {
	args := p.args[1:]
	sig := syscall.SIGTERM
	if len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "--" {
		name := args[0][1:]
		if name == "s" && len(args) > 1 {
			name, args = args[1], args[1:]
		}
		s, ok := signalNumber(name)
		if !ok {
			return p.fail(1, "%s: invalid signal", name)
		}
		sig, args = s, args[1:]
	}
	return p.each(args, func(a string) error {
		pid, err := strconv.Atoi(a)
		if err != nil {
			return errors.New("arguments must be process ids")
		}
		return p.exec.m.signalPid(pid, sig)
	})
}

func id(p *proc) int {
	a := p.exec.account
	opts, _, ok := p.flags("")
	switch {
	case !ok:
		return 2
	case opts['u'] != "" && opts['n'] != "":
		fmt.Fprintln(p.out, a.name)
	case opts['u'] != "":
		fmt.Fprintln(p.out, a.uid)
	case opts['g'] != "":
		fmt.Fprintln(p.out, a.gid)
	default:
		fmt.Fprintf(p.out, "uid=%d(%s) gid=%d(%s)\n", a.uid, a.name, a.gid, userName(a.gid))
	}
	return 0
}

func yes(p *proc) int {
	word := "y"
	if len(p.args) > 1 {
		word = strings.Join(p.args[1:], " ")
	}
	block := []byte(strings.Repeat(word+"\n", 1+8192/(len(word)+1)))
	for p.ctx.Err() == nil {
		if _, err := p.out.Write(block); err != nil {
			return 141
		}
	}
	return 143
}

func ps(p *proc) int {
	for _, o := range p.exec.m.top() {
		fmt.Fprintln(p.out, o.Pid, o.PPid, o.Command)
	}
	return 0
}

func readlink(p *proc) int {
	opts, names, ok := p.flags("")
	if !ok {
		return 2
	}
	return p.each(names, func(name string) error {
		get := p.fs().readlink
		if opts['f'] != "" {
			get = p.fs().realpath
		}
		target, err := get(p.abs(name))
		if err == nil {
			fmt.Fprintln(p.out, target)
		}
		return err
	})
}

func stat(p *proc) int {
	_, names, ok := p.flags("c")
	if !ok {
		return 2
	}
	return p.each(names, func(name string) error {
		info, err := p.fs().stat(p.abs(name), false)
		if err == nil {
			fmt.Fprintf(p.out, "%s %s %d\n", name, info.FileMode, info.FileSize)
		}
		return err
	})
}

func hostname(p *proc) int {
	fmt.Fprintln(p.out, p.exec.m.hostname())
	return 0
}

func uname(p *proc) int {
	fmt.Fprintln(p.out, "Linux")
	return 0
}

func stty(p *proc) int {
	if !p.exec.spec.TTY {
		return p.fail(1, "standard input: Not a tty")
	}
	p.exec.mu.Lock()
	defer p.exec.mu.Unlock()
	fmt.Fprintln(p.out, p.exec.rows, p.exec.cols)
	return 0
}

func tty(p *proc) int {
	if !p.exec.spec.TTY {
		fmt.Fprintln(p.out, "not a tty")
		return 1
	}
	fmt.Fprintln(p.out, "/dev/pts/0")
	return 0
}

// dd knows if=, of=, bs= and count=.
func dd(p *proc) int {
	opts := map[string]string{"ibs": "512", "obs": "512", "count": "-1"}
	for _, a := range p.args[1:] {
		if k, v, ok := strings.Cut(a, "="); ok {
			opts[k] = v
		}
	}
	number := func(s string) (int, error) {
		digits, kilo := strings.CutSuffix(s, "k")
		n, err := strconv.Atoi(digits)
		if kilo {
			n <<= 10
		}
		return n, err
	}
	if bs := opts["bs"]; bs != "" {
		opts["ibs"], opts["obs"] = bs, bs
	}
	ibs, err1 := number(opts["ibs"])
	obs, err2 := number(opts["obs"])
	count, err3 := number(opts["count"])
	if errors.Join(err1, err2, err3) != nil || ibs <= 0 || obs <= 0 {
		return p.fail(1, "invalid number")
	}
	var in io.Reader = p.in
	if name := opts["if"]; name != "" {
		o, err := p.fs().open(p.abs(name), os.O_RDONLY, 0, p.exec.account)
		if err != nil {
			return p.fail(1, "%s: %v", name, cause(err))
		}
		defer func() { _ = o.Close() }()
		in = o
	}
	out := p.out
	if name := opts["of"]; name != "" {
		o, err := p.fs().open(p.abs(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644, p.exec.account)
		if err != nil {
			return p.fail(1, "%s: %v", name, cause(err))
		}
		defer func() { _ = o.Close() }()
		out = o
	}
	buf := make([]byte, ibs)
	for i := 0; i != count; i++ {
		n, err := io.ReadFull(in, buf)
		for block := range slices.Chunk(buf[:n], obs) {
			if _, err := out.Write(block); err != nil {
				return 141
			}
		}
		if err != nil {
			break
		}
	}
	return 0
}

func sha256sum(p *proc) int {
	return p.inputs(p.args[1:], func(name string, r io.Reader) error {
		h := sha256.New()
		if _, err := io.Copy(h, r); err != nil {
			return err
		}
		_, err := fmt.Fprintf(p.out, "%x  %s\n", h.Sum(nil), name)
		return err
	})
}

// oom is a command that uses up the box's memory.
func oom(p *proc) int {
	p.exec.end(box.ExitStatus{Code: 137, Signal: syscall.SIGKILL, Reason: box.OutOfMemory})
	return 137
}
