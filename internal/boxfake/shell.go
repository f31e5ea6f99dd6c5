package boxfake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/environ"
)

// pidVariable carries $$, which the interpreter would take from this process.
const pidVariable = "__boxfake_pid"

// shell is the program /bin/sh: sh [-e] [-c SCRIPT [NAME ARG...]] [FILE ARG...].
func shell(p *proc) int {
	args := p.args[1:]
	var flags []string
	var script, name string
	var params []string
	inline := false
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && len(args[0]) > 1 {
		for _, c := range args[0][1:] {
			switch c {
			case 'c':
				inline = true
			case 'l', 'i':
			default:
				flags = append(flags, "-"+string(c))
			}
		}
		args = args[1:]
	}
	switch {
	case inline:
		if len(args) == 0 {
			fmt.Fprintln(p.err, "sh: -c requires an argument")
			return 2
		}
		script, name = args[0], "sh"
		if len(args) > 1 {
			name, params = args[1], args[2:]
		}
	case len(args) > 0:
		data, err := p.readFile(args[0])
		if err != nil {
			return p.fail(127, "%s: %v", args[0], cause(err))
		}
		script, name, params = string(data), args[0], args[1:]
	default:
		data, err := io.ReadAll(p.in)
		if err != nil && p.ctx.Err() == nil {
			return p.fail(2, "%v", err)
		}
		script, name = string(data), "sh"
	}
	return p.runScript(script, name, flags, params)
}

func (p *proc) runScript(script, name string, flags, params []string) int {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(script), name)
	if err != nil {
		fmt.Fprintln(p.err, err)
		return 2
	}
	rewrite(file)
	env := append(append([]string(nil), p.env...), pidVariable+"="+strconv.Itoa(p.pid))
	r, err := interp.New(
		interp.Env(expand.ListEnviron(env...)),
		interp.StdIO(p.in, p.out, p.err),
		interp.Params(append(append(flags, "--"), params...)...),
		interp.CallHandler(p.beforeCall),
		interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc { return p.child }),
		interp.OpenHandler(p.open),
		interp.StatHandler(p.statFor),
		interp.ReadDirHandler2(p.readDirFor),
		interp.AccessHandler(p.accessFor),
	)
	if err != nil {
		return p.fail(2, "%v", err)
	}
	r.Dir = p.dir
	err = r.Run(p.ctx, file)
	if status, ok := errors.AsType[interp.ExitStatus](err); ok {
		return int(status)
	}
	if err != nil && p.ctx.Err() == nil {
		fmt.Fprintln(p.err, err)
		return 1
	}
	return 0
}

// Commands that rewrite puts into scripts, to count background jobs.
const (
	jobStarts = "__boxfake_job_starts"
	jobEnds   = "__boxfake_job_ends"
)

// rewrite adapts a script to the fake. $$ becomes a variable. A background job
// S & becomes { jobStarts; { (S); jobEnds; } & }, so that how many there are is
// known before the shell goes on.
func rewrite(file *syntax.File) {
	made := make(map[*syntax.Stmt]bool)
	call := func(name string) *syntax.Stmt {
		word := &syntax.Word{Parts: []syntax.WordPart{&syntax.Lit{Value: name}}}
		return &syntax.Stmt{Cmd: &syntax.CallExpr{Args: []*syntax.Word{word}}}
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		switch x := n.(type) {
		case *syntax.ParamExp:
			if x.Param != nil && x.Param.Value == "$" {
				x.Param.Value = pidVariable
			}
		case *syntax.Stmt:
			if !x.Background || made[x] {
				break
			}
			job := *x
			job.Background = false
			sub := &syntax.Stmt{Cmd: &syntax.Subshell{Stmts: []*syntax.Stmt{&job}}}
			bg := &syntax.Stmt{Background: true, Cmd: &syntax.Block{Stmts: []*syntax.Stmt{sub, call(jobEnds)}}}
			made[bg] = true
			x.Background, x.Negated, x.Redirs = false, false, nil
			x.Cmd = &syntax.Block{Stmts: []*syntax.Stmt{call(jobStarts), bg}}
		}
		return true
	})
}

// beforeCall takes what the interpreter has no notion of away from it.
func (p *proc) beforeCall(_ context.Context, args []string) ([]string, error) {
	switch args[0] {
	case "kill":
		return append([]string{"/bin/kill"}, args[1:]...), nil
	case "trap":
		return p.setTrap(args), nil
	}
	return args, nil
}

// setTrap takes the signals for itself and leaves EXIT and ERR to the
// interpreter.
func (p *proc) setTrap(args []string) []string {
	if len(args) < 3 {
		return args
	}
	action := args[1]
	rest := []string{"trap", action}
	for _, name := range args[2:] {
		sig, ok := signalNumber(name)
		if !ok || sig == 0 {
			rest = append(rest, name)
			continue
		}
		p.exec.mu.Lock()
		if action == "-" {
			delete(p.exec.traps, sig)
		} else {
			p.exec.traps[sig] = action
		}
		p.exec.mu.Unlock()
	}
	if len(rest) == 2 {
		return []string{"true"}
	}
	return rest
}

// runTrap runs the script of a trap. One that exits ends the command.
func (m *machineState) runTrap(e *exec, action string) {
	p := &proc{exec: e, ctx: e.ctx, args: []string{"trap"}, env: e.environment(), dir: "/", in: e.stdin, out: e.writer(false), err: e.writer(true), pid: 0}
	const stay = 255
	code := p.runScript(action+"\nexit "+strconv.Itoa(stay), "trap", nil, nil)
	if code != stay {
		e.end(box.ExitStatus{Code: code, Reason: box.Exited})
	}
}

// child runs a program for the shell.
func (p *proc) child(ctx context.Context, args []string) error {
	hc := interp.HandlerCtx(ctx)
	switch args[0] {
	case jobStarts:
		p.exec.countJobs(1)
		return nil
	case jobEnds:
		p.exec.countJobs(-1)
		if hc.LastExitStatus != 0 {
			return interp.ExitStatus(hc.LastExitStatus)
		}
		return nil
	}
	var env []string
	hc.Env.Each(func(name string, v expand.Variable) bool {
		if v.Exported && v.Kind == expand.String && name != pidVariable {
			env = append(env, name+"="+v.Str)
		}
		return true
	})
	// The context is the command's, not the shell's: what runs in the
	// background outlives the shell.
	c := &proc{exec: p.exec, ctx: p.exec.ctx, parent: p.pid, args: args, env: environ.Merge(env), dir: hc.Dir, in: hc.Stdin, out: hc.Stdout, err: hc.Stderr}
	run, code, err := p.exec.m.resolve(c)
	if err != nil {
		fmt.Fprintf(hc.Stderr, "sh: %s: %v\n", args[0], shellMessage(code, err))
		return interp.ExitStatus(code)
	}
	if code := p.exec.m.process(c, run); code != 0 {
		return interp.ExitStatus(code)
	}
	return nil
}

func shellMessage(code int, err error) error {
	if code == 127 && errors.Is(err, fs.ErrNotExist) {
		return errors.New("not found")
	}
	return cause(err)
}

// resolve finds the program of p by its environment's PATH.
func (m *machineState) resolve(p *proc) (run func(*proc) int, code int, err error) {
	name := p.args[0]
	if strings.Contains(name, "/") {
		return m.load(p, p.abs(name))
	}
	code, err = 127, error(pathError("exec", name, syscall.ENOENT))
	for _, dir := range strings.Split(getenv(p.env, "PATH"), ":") {
		if dir == "" {
			dir = p.dir
		}
		run, c, e := m.load(p, strings.TrimSuffix(dir, "/")+"/"+name)
		if e == nil {
			return run, 0, nil
		}
		if c == 126 {
			code, err = c, e
		}
	}
	return nil, code, err
}

// load makes an executable file of the box into something to run.
func (m *machineState) load(p *proc, file string) (func(*proc) int, int, error) {
	m.fs.mu.Lock()
	defer m.fs.mu.Unlock()
	at, err := m.fs.find(file, true)
	switch {
	case err != nil:
		return nil, 127, pathError("exec", file, err)
	case at.node.mode.IsDir(), at.node.mode&0o111 == 0:
		return nil, 126, pathError("exec", file, syscall.EACCES)
	case at.node.program != "":
		if run := programs()[at.node.program]; run != nil {
			return run, 0, nil
		}
	case bytes.HasPrefix(at.node.data, []byte("#!")):
		line, _, _ := bytes.Cut(at.node.data[2:], []byte("\n"))
		words := strings.Fields(string(line))
		if len(words) > 0 && path.Base(words[0]) == "sh" || len(words) > 1 && path.Base(words[1]) == "sh" {
			script, args := string(at.node.data), p.args[1:]
			return func(p *proc) int { return p.runScript(script, file, nil, args) }, 0, nil
		}
		return nil, 127, pathError("exec", file, syscall.ENOENT)
	}
	return nil, 126, pathError("exec", file, syscall.ENOEXEC)
}

func (p *proc) open(ctx context.Context, name string, flag int, perm os.FileMode) (io.ReadWriteCloser, error) {
	o, err := p.exec.m.fs.open(handlerAbs(ctx, name), flag, perm&^0o022, p.exec.account)
	if err != nil {
		return nil, err
	}
	return o, nil
}

func (p *proc) statFor(ctx context.Context, name string, follow bool) (fs.FileInfo, error) {
	info, err := p.exec.m.fs.stat(handlerAbs(ctx, name), follow)
	if err != nil {
		return nil, err
	}
	return info, nil
}

func (p *proc) readDirFor(ctx context.Context, name string) ([]fs.DirEntry, error) {
	infos, err := p.exec.m.fs.readDir(handlerAbs(ctx, name))
	entries := make([]fs.DirEntry, len(infos))
	for i, info := range infos {
		entries[i] = info
	}
	return entries, err
}

func (p *proc) accessFor(ctx context.Context, name string, mode interp.AccessMode) error {
	info, err := p.exec.m.fs.stat(handlerAbs(ctx, name), true)
	if err == nil && mode&0b001 != 0 && info.FileMode&0o111 == 0 {
		err = pathError("access", name, syscall.EACCES)
	}
	return err
}

func handlerAbs(ctx context.Context, name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return strings.TrimSuffix(interp.HandlerCtx(ctx).Dir, "/") + "/" + name
}

func getenv(env []string, key string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], key+"="); ok {
			return v
		}
	}
	return ""
}
