package text

import (
	"io"
	"os"
	"strings"

	"github.com/benhoyt/goawk/interp"
	"github.com/benhoyt/goawk/parser"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// Awk is the awk utility: POSIX awk as package goawk runs it.
func Awk(c *tool.Context) int {
	opts, ops, code, ok := c.Parse(tool.Spec{Fail: 2, Short: "F:v:f:e:", InOrder: true, Long: []string{"field-separator=|F", "assign=|v", "file=|f", "source=|e"}})
	if !ok {
		return code
	}
	var vars, src []string
	for _, o := range opts {
		switch o.Name {
		case "F":
			fs := o.Arg
			if fs == "t" {
				fs = "\t"
			}
			vars = append(vars, "FS", awkUnescape(fs))
		case "v":
			n, v, ok := strings.Cut(o.Arg, "=")
			if !ok {
				return c.Fail(2, "%s: a variable is set as NAME=VALUE", o.Arg)
			}
			vars = append(vars, n, awkUnescape(v))
		case "f":
			r, err := c.Open(o.Arg)
			if err != nil {
				return c.Fail(2, "cannot open %s: %s", o.Arg, tool.Reason(err))
			}
			b, err := io.ReadAll(io.LimitReader(r, 64<<20))
			r.Close()
			if err != nil {
				return c.Fail(2, "cannot read %s: %s", o.Arg, tool.Reason(err))
			}
			src = append(src, string(b))
		case "e":
			src = append(src, o.Arg)
		}
	}
	if len(src) == 0 {
		if len(ops) == 0 {
			return c.Fail(2, "a program is needed: awk [-F SEP] [-v NAME=VALUE] PROGRAM [FILE]...")
		}
		src, ops = ops[:1], ops[1:]
	}
	prog, err := parser.ParseProgram([]byte(strings.Join(src, "\n")), nil)
	if err != nil {
		return c.Fail(2, "%v", err)
	}
	var env []string
	for _, kv := range os.Environ() {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env = append(env, k, v)
		}
	}
	status, err := interp.ExecProgram(prog, &interp.Config{
		Stdin: c.Stdin, Output: c.Stdout, Error: c.Stderr,
		Argv0: "awk", Args: ops, Vars: vars, Environ: env, Chars: UTF8(),
	})
	if err != nil {
		if c.Stdout.Err() != nil {
			return 2
		}
		return c.Fail(2, "%v", err)
	}
	return status
}

// awkUnescape resolves the escapes of awk strings in -v and -F values.
func awkUnescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\t`, "\t", `\r`, "\r", `\"`, `"`, `\/`, "/").Replace(s)
}
