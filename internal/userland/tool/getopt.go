package tool

import (
	"fmt"
	"strings"
)

// Opt is one parsed option. Name is its short letter or, for an option that
// has none, its long name.
type Opt struct {
	Name string
	Arg  string
}

// Spec describes the options of a utility.
type Spec struct {
	// Short is a getopt string: letters, each followed by ":" when it needs
	// an argument or "::" when it may have one attached.
	Short string
	// Long lists long options as "name", "name=" (argument needed) or
	// "name?" (argument optional), optionally with "|x" naming the short
	// option it stands for: "recursive|r", "lines=|n".
	Long []string
	// InOrder stops at the first operand, for utilities such as env whose
	// operands are another command.
	InOrder bool
	// Digits lets -NUM stand for option "NUM" with the number as argument.
	Digits bool
	// Fail is the exit status of a usage error; 0 means 1.
	Fail int
}

// Parse splits c.Args into options and operands. When ok is false a message
// (or the help text) has been written and code is the exit status.
func (c *Context) Parse(s Spec) (opts []Opt, operands []string, code int, ok bool) {
	fail := s.Fail
	if fail == 0 {
		fail = 1
	}
	bad := func(format string, a ...any) ([]Opt, []string, int, bool) {
		c.Errorf(format, a...)
		fmt.Fprintf(c.Stderr, "Try '%s --help' for more information.\n", c.Name)
		return nil, nil, fail, false
	}
	args := c.Args
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			operands = append(operands, args[i+1:]...)
			return opts, operands, 0, true
		case strings.HasPrefix(a, "--"):
			name, val, hasVal := strings.Cut(a[2:], "=")
			if name == "help" {
				fmt.Fprintf(c.Stdout, "Usage: %s %s\n", c.Name, c.Usage)
				return nil, nil, 0, false
			}
			long, kind, short, n := s.findLong(name)
			if n == 0 {
				return bad("unrecognized option '%s'", a)
			}
			if n > 1 {
				return bad("option '%s' is ambiguous", a)
			}
			switch {
			case kind == 0 && hasVal:
				return bad("option '--%s' doesn't allow an argument", long)
			case kind == '=' && !hasVal:
				if i+1 >= len(args) {
					return bad("option '--%s' requires an argument", long)
				}
				i++
				val = args[i]
			}
			if short == "" {
				short = long
			}
			opts = append(opts, Opt{short, val})
		case len(a) > 1 && a[0] == '-':
			if s.Digits && a[1] >= '0' && a[1] <= '9' {
				j := 1
				for j < len(a) && a[j] >= '0' && a[j] <= '9' {
					j++
				}
				opts = append(opts, Opt{"NUM", a[1:j]})
				if j == len(a) {
					continue
				}
				a = "-" + a[j:]
			}
			for j := 1; j < len(a); j++ {
				k := strings.IndexByte(s.Short, a[j])
				if k < 0 || a[j] == ':' {
					return bad("invalid option -- '%c'", a[j])
				}
				rest := s.Short[k+1:]
				if strings.HasPrefix(rest, "::") {
					opts = append(opts, Opt{a[j : j+1], a[j+1:]})
					break
				}
				if strings.HasPrefix(rest, ":") {
					val := a[j+1:]
					if val == "" {
						if i+1 >= len(args) {
							return bad("option requires an argument -- '%c'", a[j])
						}
						i++
						val = args[i]
					}
					opts = append(opts, Opt{a[j : j+1], val})
					break
				}
				opts = append(opts, Opt{a[j : j+1], ""})
			}
		default:
			if s.InOrder {
				operands = append(operands, args[i:]...)
				return opts, operands, 0, true
			}
			operands = append(operands, a)
		}
	}
	return opts, operands, 0, true
}

// findLong looks a long option up, exactly or by a unique prefix.
func (s Spec) findLong(name string) (long string, kind byte, short string, matches int) {
	for _, l := range s.Long {
		n, sh, _ := strings.Cut(l, "|")
		var k byte
		if m := len(n) - 1; n[m] == '=' || n[m] == '?' {
			k, n = n[m], n[:m]
		}
		if n == name {
			return n, k, sh, 1
		}
		if name != "" && strings.HasPrefix(n, name) {
			long, kind, short = n, k, sh
			matches++
		}
	}
	return long, kind, short, matches
}

// Operands checks that there are at least lo and at most hi operands (hi < 0
// means any number) and otherwise writes the customary message.
func (c *Context) Operands(ops []string, lo, hi int) bool {
	switch {
	case len(ops) < lo && len(ops) == 0:
		c.Errorf("missing operand")
	case len(ops) < lo:
		c.Errorf("missing operand after '%s'", ops[len(ops)-1])
	case hi >= 0 && len(ops) > hi:
		c.Errorf("extra operand '%s'", ops[hi])
	default:
		return true
	}
	fmt.Fprintf(c.Stderr, "Try '%s --help' for more information.\n", c.Name)
	return false
}
