package proc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/userland/shell"
	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// xargs is one run of xargs.
type xargs struct {
	c       *tool.Context
	cmd     []string
	delim   int // -1: blanks and quotes
	byLine  int // -L
	maxArgs int
	replace string
	par     int
	skip    bool // -r
	trace   bool
	limit   int
	exit    bool // -x
	eof     string

	mu   sync.Mutex
	code int
	stop bool
}

// Xargs builds and runs commands from its input.
func Xargs(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{InOrder: true, Short: "0n:I:i::P:rtd:L:s:xE:a:p", Long: []string{"null|0", "max-args=|n", "replace?|i", "max-procs=|P", "no-run-if-empty|r", "verbose|t", "delimiter=|d", "max-lines=|L", "max-chars=|s", "exit|x", "arg-file=|a", "eof=|E"}})
	if !ok {
		return code
	}
	x := &xargs{c: c, delim: -1, par: 1, limit: 128 << 10}
	in := c.Stdin
	for _, o := range opts {
		num := func(least int) int {
			n, err := strconv.Atoi(o.Arg)
			if err != nil || n < least {
				c.Errorf("invalid number \"%s\" for -%s option", o.Arg, o.Name)
				ok = false
			}
			return n
		}
		switch o.Name {
		case "0":
			x.delim = 0
		case "d":
			s := o.Arg
			switch s {
			case `\n`:
				s = "\n"
			case `\t`:
				s = "\t"
			case `\0`:
				s = "\x00"
			}
			if len(s) != 1 {
				return c.Fail(1, "invalid input delimiter specification %s", o.Arg)
			}
			x.delim = int(s[0])
		case "n":
			x.maxArgs = num(1)
		case "I", "i":
			if x.replace = o.Arg; x.replace == "" {
				x.replace = "{}"
			}
		case "P":
			if x.par = num(0); x.par == 0 {
				x.par = 1 << 10
			}
		case "r":
			x.skip = true
		case "t":
			x.trace = true
		case "L":
			x.byLine = num(1)
		case "s":
			x.limit = num(1)
		case "x":
			x.exit = true
		case "E":
			x.eof = o.Arg
		case "p":
			return c.Fail(1, "option -p is not supported")
		case "a":
			f, err := os.Open(o.Arg)
			if err != nil {
				return c.Fail(1, "cannot open '%s': %s", o.Arg, tool.Reason(err))
			}
			defer f.Close()
			in = f
		}
		if !ok {
			return 1
		}
	}
	x.cmd = ops
	if len(x.cmd) == 0 {
		x.cmd = []string{"echo"}
	}
	if err := x.run(bufio.NewReaderSize(in, 64<<10)); err != nil {
		c.Errorf("%v", err)
		return 1
	}
	return x.code
}

// item is one input argument; eol tells that its line ended after it.
type item struct {
	text string
	eol  bool
}

// next reads one argument.
func (x *xargs) next(r *bufio.Reader) (item, bool, error) {
	if x.delim >= 0 {
		s, err := r.ReadString(byte(x.delim))
		if err == io.EOF && s == "" {
			return item{}, false, nil
		}
		if err != nil && err != io.EOF {
			return item{}, false, err
		}
		return item{strings.TrimSuffix(s, string(rune(x.delim))), true}, true, nil
	}
	if x.replace != "" {
		for {
			s, err := r.ReadString('\n')
			if err != nil && err != io.EOF {
				return item{}, false, err
			}
			t := strings.TrimLeft(strings.TrimSuffix(s, "\n"), " \t")
			if t != "" {
				text, e := unquote(t)
				return item{text, true}, e == nil, e
			}
			if err == io.EOF {
				return item{}, false, nil
			}
		}
	}
	var b strings.Builder
	some, quote := false, byte(0)
	for {
		ch, err := r.ReadByte()
		if err == io.EOF {
			if quote != 0 {
				return item{}, false, unmatched(quote)
			}
			return item{b.String(), true}, some, nil
		}
		if err != nil {
			return item{}, false, err
		}
		switch {
		case quote != 0 && ch == quote:
			quote = 0
		case quote != 0:
			if ch == '\n' {
				return item{}, false, unmatched(quote)
			}
			b.WriteByte(ch)
		case ch == '\'' || ch == '"':
			quote, some = ch, true
		case ch == '\\':
			if ch, err = r.ReadByte(); err == nil {
				b.WriteByte(ch)
				some = true
			}
		case ch == ' ' || ch == '\t' || ch == '\n':
			if !some {
				continue
			}
			for ch == ' ' || ch == '\t' {
				// The line ends here if nothing but blanks follow.
				nx, err := r.Peek(1)
				if err != nil || nx[0] != ' ' && nx[0] != '\t' && nx[0] != '\n' {
					break
				}
				ch, _ = r.ReadByte()
			}
			return item{b.String(), ch == '\n'}, true, nil
		default:
			b.WriteByte(ch)
			some = true
		}
	}
}

func unmatched(q byte) error {
	name := "single"
	if q == '"' {
		name = "double"
	}
	return fmt.Errorf("unmatched %s quote; by default quotes are special to xargs unless you use the -0 option", name)
}

func unquote(s string) (string, error) {
	var b strings.Builder
	quote := byte(0)
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			b.WriteByte(c)
		case c == '\'' || c == '"':
			quote = c
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		default:
			b.WriteByte(c)
		}
	}
	if quote != 0 {
		return "", unmatched(quote)
	}
	return b.String(), nil
}

func (x *xargs) run(r *bufio.Reader) error {
	sem := make(chan struct{}, x.par)
	var wg sync.WaitGroup
	defer wg.Wait()
	start := func(args []string) {
		sem <- struct{}{}
		x.mu.Lock()
		stop := x.stop
		x.mu.Unlock()
		if stop {
			<-sem
			return
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			x.command(args)
			<-sem
		}()
	}
	base := 0
	for _, a := range x.cmd {
		base += len(a) + 1
	}
	var args []string
	size, lines, ran := base, 0, false
	flush := func() {
		if len(args) == 0 {
			return
		}
		start(append(slices.Clone(x.cmd), args...))
		args, size, lines, ran = nil, base, 0, true
	}
	for {
		x.mu.Lock()
		stop := x.stop
		x.mu.Unlock()
		if stop {
			return nil
		}
		it, more, err := x.next(r)
		if err != nil {
			flush()
			return err
		}
		if !more || x.eof != "" && it.text == x.eof && x.delim < 0 {
			break
		}
		if x.replace != "" {
			ran = true
			cmd := make([]string, len(x.cmd))
			for i, a := range x.cmd {
				if i == 0 {
					cmd[i] = a
					continue
				}
				cmd[i] = strings.ReplaceAll(a, x.replace, it.text)
			}
			start(cmd)
			continue
		}
		n := len(it.text) + 1
		if size+n > x.limit {
			if len(args) == 0 {
				return errors.New("argument line too long")
			}
			flush()
		}
		args = append(args, it.text)
		size += n
		if it.eol {
			lines++
		}
		if x.maxArgs > 0 && len(args) >= x.maxArgs || x.byLine > 0 && lines >= x.byLine {
			flush()
		}
	}
	flush()
	if !ran && !x.skip && x.replace == "" {
		start(x.cmd)
	}
	return nil
}

// command runs one command and folds its status into that of xargs.
func (x *xargs) command(args []string) {
	if x.trace {
		x.mu.Lock()
		fmt.Fprintln(x.c.Stderr, strings.Join(args, " "))
		x.mu.Unlock()
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = shell.IgnoredEnv(os.Environ())
	cmd.Stderr = x.c.Stderr
	cmd.Stdout = x.c.Stdout
	if f := x.c.Stdout.File(); f != nil {
		cmd.Stdout = f
	}
	err := cmd.Run()
	x.mu.Lock()
	defer x.mu.Unlock()
	if err == nil {
		return
	}
	var ee *exec.ExitError
	if !errors.As(err, &ee) {
		x.c.Errorf("%s: %s", args[0], reasonExec(err))
		x.code, x.stop = statusNoExec, true
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			x.code = statusMissing
		}
		return
	}
	switch st := ee.ExitCode(); {
	case st == 255:
		x.c.Errorf("%s: exited with status 255; aborting", args[0])
		x.code, x.stop = 124, true
	case st < 0:
		x.c.Errorf("%s: terminated by signal", args[0])
		x.code, x.stop = 125, true
	default:
		x.code = max(x.code, 123)
	}
}

func reasonExec(err error) string {
	if errors.Is(err, exec.ErrNotFound) {
		return "No such file or directory"
	}
	return tool.Reason(err)
}

// Stty shows and sets modes of the terminal on standard input.
func Stty(c *tool.Context) int {
	args := c.Args
	fd := 0
	if len(args) >= 2 && args[0] == "-F" {
		f, err := os.OpenFile(args[1], os.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			return c.Fail(1, "%s: %s", args[1], tool.Reason(err))
		}
		defer f.Close()
		fd, args = int(f.Fd()), args[2:]
	}
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return c.Fail(1, "standard input: %s", tool.Reason(err))
	}
	ws, _ := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
	if ws == nil {
		ws = &unix.Winsize{}
	}
	if len(args) == 0 || args[0] == "-a" {
		c.Printf("rows %d; columns %d;\n", ws.Row, ws.Col)
		var flags []string
		for _, m := range sttyModes() {
			s := "-"
			if *m.field(t)&m.bit != 0 {
				s = ""
			}
			flags = append(flags, s+m.name)
		}
		c.Printf("%s\n", strings.Join(flags, " "))
		return 0
	}
	if args[0] == "-g" {
		c.Printf("%x:%x:%x:%x", t.Iflag, t.Oflag, t.Cflag, t.Lflag)
		for _, b := range t.Cc {
			c.Printf(":%x", b)
		}
		c.Stdout.WriteByte('\n')
		return 0
	}
	size := false
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "size":
			c.Printf("%d %d\n", ws.Row, ws.Col)
		case a == "rows" || a == "cols" || a == "columns" || a == "min" || a == "time":
			if i+1 >= len(args) {
				return c.Fail(1, "missing argument to '%s'", a)
			}
			i++
			n, err := strconv.ParseUint(args[i], 10, 16)
			if err != nil {
				return c.Fail(1, "invalid integer argument: '%s'", args[i])
			}
			switch a {
			case "rows":
				ws.Row, size = uint16(n), true
			case "min":
				t.Cc[unix.VMIN] = byte(n)
			case "time":
				t.Cc[unix.VTIME] = byte(n)
			default:
				ws.Col, size = uint16(n), true
			}
		case a == "raw" || a == "cbreak" || a == "-cooked":
			t.Lflag &^= unix.ICANON
			if a != "cbreak" {
				t.Lflag &^= unix.ISIG
				t.Iflag &^= unix.BRKINT | unix.ICRNL | unix.IGNBRK | unix.IGNCR | unix.INLCR | unix.INPCK | unix.ISTRIP | unix.IXON | unix.PARMRK
				t.Oflag &^= unix.OPOST
			}
			t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
		case a == "sane" || a == "cooked" || a == "-raw" || a == "-cbreak":
			t.Iflag = t.Iflag&^(unix.IGNBRK|unix.INLCR|unix.IGNCR|unix.IXOFF|unix.ISTRIP) | unix.BRKINT | unix.ICRNL | unix.IXON | unix.IMAXBEL
			t.Oflag |= unix.OPOST | unix.ONLCR
			t.Lflag = t.Lflag&^(unix.ECHONL|unix.NOFLSH|unix.TOSTOP) | unix.ISIG | unix.ICANON | unix.IEXTEN | unix.ECHO | unix.ECHOE | unix.ECHOK | unix.ECHOCTL | unix.ECHOKE
			t.Cflag |= unix.CREAD
			for k, v := range map[int]byte{unix.VINTR: 3, unix.VQUIT: 28, unix.VERASE: 127, unix.VKILL: 21, unix.VEOF: 4, unix.VSTART: 17, unix.VSTOP: 19, unix.VSUSP: 26, unix.VWERASE: 23, unix.VLNEXT: 22, unix.VREPRINT: 18} {
				t.Cc[k] = v
			}
		case strings.Contains(a, ":"):
			if !restoreModes(t, a) {
				return c.Fail(1, "invalid argument '%s'", a)
			}
		default:
			ok := false
			for _, m := range sttyModes() {
				switch a {
				case m.name:
					*m.field(t) |= m.bit
					ok = true
				case "-" + m.name:
					*m.field(t) &^= m.bit
					ok = true
				}
			}
			if !ok {
				return c.Fail(1, "invalid argument '%s'", a)
			}
		}
	}
	if size {
		if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, ws); err != nil {
			return c.Fail(1, "%s", tool.Reason(err))
		}
	}
	if err := unix.IoctlSetTermios(fd, unix.TCSETSW, t); err != nil {
		return c.Fail(1, "%s", tool.Reason(err))
	}
	return 0
}

func restoreModes(t *unix.Termios, s string) bool {
	f := strings.Split(s, ":")
	if len(f) != 4+len(t.Cc) {
		return false
	}
	for i, x := range f {
		n, err := strconv.ParseUint(x, 16, 32)
		if err != nil {
			return false
		}
		switch i {
		case 0:
			t.Iflag = uint32(n)
		case 1:
			t.Oflag = uint32(n)
		case 2:
			t.Cflag = uint32(n)
		case 3:
			t.Lflag = uint32(n)
		default:
			t.Cc[i-4] = byte(n)
		}
	}
	return true
}

type sttyMode struct {
	name  string
	field func(*unix.Termios) *uint32
	bit   uint32
}

func sttyModes() []sttyMode {
	i := func(t *unix.Termios) *uint32 { return &t.Iflag }
	o := func(t *unix.Termios) *uint32 { return &t.Oflag }
	l := func(t *unix.Termios) *uint32 { return &t.Lflag }
	return []sttyMode{
		{"brkint", i, unix.BRKINT}, {"icrnl", i, unix.ICRNL}, {"igncr", i, unix.IGNCR}, {"inlcr", i, unix.INLCR}, {"ixon", i, unix.IXON}, {"ixoff", i, unix.IXOFF}, {"istrip", i, unix.ISTRIP},
		{"opost", o, unix.OPOST}, {"onlcr", o, unix.ONLCR},
		{"isig", l, unix.ISIG}, {"icanon", l, unix.ICANON}, {"iexten", l, unix.IEXTEN}, {"echo", l, unix.ECHO}, {"echoe", l, unix.ECHOE}, {"echok", l, unix.ECHOK}, {"echonl", l, unix.ECHONL}, {"noflsh", l, unix.NOFLSH}, {"tostop", l, unix.TOSTOP},
	}
}
