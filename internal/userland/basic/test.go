// Package basic holds the utilities that are both programs and parts of the
// shell: echo, printf, test, kill, and the names of signals.
package basic

import (
	"fmt"
	"math/big"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// Test is the test and [ utility: status 0 for true, 1 for false, 2 for an
// expression it cannot read.
func Test(c *tool.Context) int {
	args := c.Args
	if c.Name == "[" {
		if len(args) == 0 || args[len(args)-1] != "]" {
			return c.Fail(2, "missing ']'")
		}
		args = args[:len(args)-1]
	}
	ok, err := EvalTest(args)
	if err != nil {
		return c.Fail(2, "%v", err)
	}
	if ok {
		return 0
	}
	return 1
}

// EvalTest evaluates the arguments of test by the POSIX rules for up to four
// arguments and by precedence (! -a -o and parentheses) for more.
func EvalTest(args []string) (bool, error) {
	switch len(args) {
	case 0:
		return false, nil
	case 1:
		return args[0] != "", nil
	case 2:
		if args[0] == "!" {
			return args[1] == "", nil
		}
	case 3:
		if isBinary(args[1]) {
			return TestBinary(args[0], args[1], args[2])
		}
		if args[0] == "!" {
			r, err := EvalTest(args[1:])
			return !r, err
		}
		if args[0] == "(" && args[2] == ")" {
			return EvalTest(args[1:2])
		}
	case 4:
		if args[0] == "!" {
			r, err := EvalTest(args[1:])
			return !r, err
		}
		if args[0] == "(" && args[3] == ")" {
			return EvalTest(args[1:3])
		}
	}
	p := &testParser{args: args}
	r, err := p.or()
	if err == nil && p.i < len(args) {
		err = fmt.Errorf("%s: unexpected operator", args[p.i])
	}
	return r, err
}

type testParser struct {
	args  []string
	i     int
	depth int
}

func (p *testParser) peek() string {
	if p.i < len(p.args) {
		return p.args[p.i]
	}
	return ""
}

func (p *testParser) or() (bool, error) {
	l, err := p.and()
	for err == nil && p.peek() == "-o" {
		p.i++
		var r bool
		r, err = p.and()
		l = l || r
	}
	return l, err
}

func (p *testParser) and() (bool, error) {
	l, err := p.primary()
	for err == nil && p.peek() == "-a" {
		p.i++
		var r bool
		r, err = p.primary()
		l = l && r
	}
	return l, err
}

func (p *testParser) primary() (bool, error) {
	if p.depth++; p.depth > 1000 {
		return false, fmt.Errorf("expression nested too deeply")
	}
	defer func() { p.depth-- }()
	left := len(p.args) - p.i
	if left == 0 {
		return false, fmt.Errorf("argument expected")
	}
	a := p.args[p.i]
	if left >= 3 && isBinary(p.args[p.i+1]) {
		op, b := p.args[p.i+1], p.args[p.i+2]
		p.i += 3
		return TestBinary(a, op, b)
	}
	switch {
	case a == "!":
		p.i++
		r, err := p.primary()
		return !r, err
	case a == "(":
		p.i++
		r, err := p.or()
		if err == nil && p.peek() != ")" {
			err = fmt.Errorf("closing paren expected")
		}
		p.i++
		return r, err
	case left >= 2 && len(a) == 2 && a[0] == '-' && strings.IndexByte(unaryOps, a[1]) >= 0:
		p.i += 2
		return TestUnary(a, p.args[p.i-1])
	}
	p.i++
	return a != "", nil
}

const unaryOps = "bcdefghknprstuwxzLOGNS"

func isBinary(op string) bool {
	switch op {
	case "=", "==", "!=", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef":
		return true
	}
	return false
}

// TestUnary evaluates a one-operand primary such as -f FILE.
func TestUnary(op, a string) (bool, error) {
	if len(op) != 2 || op[0] != '-' || strings.IndexByte(unaryOps, op[1]) < 0 {
		return false, fmt.Errorf("%s: unexpected operator", op)
	}
	switch op[1] {
	case 'n':
		return a != "", nil
	case 'z':
		return a == "", nil
	case 't':
		n, err := testInt(a)
		if err != nil {
			return false, err
		}
		return n.IsInt64() && term.IsTerminal(int(n.Int64())), nil
	case 'r':
		return unix.Faccessat(unix.AT_FDCWD, a, unix.R_OK, unix.AT_EACCESS) == nil, nil
	case 'w':
		return unix.Faccessat(unix.AT_FDCWD, a, unix.W_OK, unix.AT_EACCESS) == nil, nil
	case 'x':
		return unix.Faccessat(unix.AT_FDCWD, a, unix.X_OK, unix.AT_EACCESS) == nil, nil
	}
	var st os.FileInfo
	var err error
	if op[1] == 'h' || op[1] == 'L' {
		st, err = os.Lstat(a)
	} else {
		st, err = os.Stat(a)
	}
	if err != nil {
		return false, nil
	}
	m := st.Mode()
	sys, _ := st.Sys().(*syscall.Stat_t)
	switch op[1] {
	case 'b':
		return m&os.ModeDevice != 0 && m&os.ModeCharDevice == 0, nil
	case 'c':
		return m&os.ModeCharDevice != 0, nil
	case 'd':
		return m.IsDir(), nil
	case 'f':
		return m.IsRegular(), nil
	case 'g':
		return m&os.ModeSetgid != 0, nil
	case 'h', 'L':
		return m&os.ModeSymlink != 0, nil
	case 'k':
		return m&os.ModeSticky != 0, nil
	case 'p':
		return m&os.ModeNamedPipe != 0, nil
	case 's':
		return st.Size() > 0, nil
	case 'u':
		return m&os.ModeSetuid != 0, nil
	case 'S':
		return m&os.ModeSocket != 0, nil
	case 'O':
		return sys != nil && int(sys.Uid) == os.Geteuid(), nil
	case 'G':
		return sys != nil && int(sys.Gid) == os.Getegid(), nil
	case 'N':
		return sys != nil && (sys.Mtim.Sec > sys.Atim.Sec || sys.Mtim.Sec == sys.Atim.Sec && sys.Mtim.Nsec > sys.Atim.Nsec), nil
	}
	return true, nil // -e
}

func testInt(s string) (*big.Int, error) {
	n, ok := new(big.Int).SetString(strings.TrimPrefix(strings.TrimSpace(s), "+"), 10)
	if !ok {
		return nil, fmt.Errorf("Illegal number: %s", s) //nolint:staticcheck // the shell's customary words
	}
	return n, nil
}

// TestBinary evaluates a two-operand primary such as A -eq B.
func TestBinary(a, op, b string) (bool, error) {
	switch op {
	case "=", "==":
		return a == b, nil
	case "!=":
		return a != b, nil
	case "<":
		return a < b, nil
	case ">":
		return a > b, nil
	case "-nt", "-ot", "-ef":
		sa, ea := os.Stat(a)
		sb, eb := os.Stat(b)
		switch op {
		case "-nt":
			return ea == nil && (eb != nil || sa.ModTime().After(sb.ModTime())), nil
		case "-ot":
			return eb == nil && (ea != nil || sa.ModTime().Before(sb.ModTime())), nil
		}
		return ea == nil && eb == nil && os.SameFile(sa, sb), nil
	}
	x, err := testInt(a)
	if err != nil {
		return false, err
	}
	y, err := testInt(b)
	if err != nil {
		return false, err
	}
	n := x.Cmp(y)
	switch op {
	case "-eq":
		return n == 0, nil
	case "-ne":
		return n != 0, nil
	case "-lt":
		return n < 0, nil
	case "-le":
		return n <= 0, nil
	case "-gt":
		return n > 0, nil
	case "-ge":
		return n >= 0, nil
	}
	return false, fmt.Errorf("%s: unexpected operator", op)
}
