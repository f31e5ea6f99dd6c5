package shell

import (
	"bytes"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/syntax"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// child is one process of a job. A pid of 0 is a stage that never became a
// process (or has been run here); its status is set from the start.
type child struct {
	pid     int
	done    bool
	stopped bool
	status  int
	signal  syscall.Signal
	core    bool
}

// job is a pipeline that the shell can wait for. id is 0 until it is in the
// background or stopped; pgid is 0 without job control.
type job struct {
	id    int
	pgid  int
	procs []*child
	cmd   string
	seq   int
}

func (j *job) done() bool {
	for _, p := range j.procs {
		if !p.done {
			return false
		}
	}
	return true
}

func (j *job) stopped() bool {
	any := false
	for _, p := range j.procs {
		if p.stopped {
			any = true
		} else if !p.done {
			return false
		}
	}
	return any
}

// status is the exit status of the job; with pipefail that of the last
// process that failed.
func (j *job) status(pipefail bool) int {
	st := j.procs[len(j.procs)-1].status
	if pipefail {
		for i := len(j.procs) - 1; i >= 0; i-- {
			if j.procs[i].status != 0 {
				return j.procs[i].status
			}
		}
	}
	return st
}

func (p *child) record(ws syscall.WaitStatus) {
	switch {
	case ws.Exited():
		p.done, p.stopped, p.status = true, false, ws.ExitStatus()
	case ws.Signaled():
		p.done, p.stopped, p.status = true, false, 128+int(ws.Signal())
		p.signal, p.core = ws.Signal(), ws.CoreDump()
	case ws.Stopped():
		p.stopped, p.status, p.signal = true, 128+int(ws.StopSignal()), ws.StopSignal()
	case ws.Continued():
		p.stopped = false
	}
}

// spawn starts a program with the descriptors of t as part of j.
func (s *Shell) spawn(path string, args, env []string, t *fdTable, j *job, fg bool) (int, error) {
	attr := &syscall.ProcAttr{Env: env, Files: t.files()}
	if s.opt.monitor && !s.inProcess() {
		attr.Sys = &syscall.SysProcAttr{Setpgid: true, Pgid: j.pgid}
	}
	pid, err := s.proc.forkExec(path, args, attr)
	if err == syscall.ENOEXEC {
		pid, err = s.proc.forkExec(s.proc.self, append([]string{"sh", path}, args[1:]...), attr)
	}
	if err != nil {
		return 0, err
	}
	if attr.Sys != nil && j.pgid == 0 {
		j.pgid = pid
		if fg && s.proc.tty != nil {
			s.proc.tty.give(pid)
		}
	}
	return pid, nil
}

// foreground waits for j until it ends or stops, and returns its status.
func (s *Shell) foreground(j *job) int {
	tty := s.proc.tty
	if s.inProcess() {
		tty = nil
	}
	for _, p := range j.procs {
		for !p.done && !p.stopped {
			var ws syscall.WaitStatus
			flags := 0
			if s.opt.monitor {
				flags = syscall.WUNTRACED
			}
			_, err := syscall.Wait4(p.pid, &ws, flags, nil)
			if err == syscall.EINTR {
				continue
			}
			if err != nil {
				p.done, p.status = true, statusMissing
				break
			}
			if tty != nil && ws.Stopped() && (ws.StopSignal() == syscall.SIGTTIN || ws.StopSignal() == syscall.SIGTTOU) && tty.owner() == j.pgid {
				// It touched the terminal before we had handed it over.
				_ = syscall.Kill(-j.pgid, syscall.SIGCONT)
				continue
			}
			p.record(ws)
		}
	}
	last := j.procs[len(j.procs)-1]
	status := j.status(s.opt.pipefail)
	if tty != nil {
		tty.give(tty.pgid)
		if last.signal != 0 {
			tty.restore()
		}
		switch {
		case j.stopped():
			s.addJob(j)
			s.writeFd(2, "\n"+s.jobLine(j)+"\n")
		case last.signal == syscall.SIGINT:
			s.writeFd(2, "\n")
			s.flow = flowAbort
		}
	}
	if last.done && last.signal != 0 && last.signal != syscall.SIGINT && last.signal != syscall.SIGPIPE {
		s.writeFd(2, signalText(last)+"\n")
	}
	if last.signal == syscall.SIGINT && s.opt.interactive && tty == nil {
		s.flow = flowAbort
	}
	s.syncSignals()
	return status
}

func signalText(p *child) string {
	t := p.signal.String()
	if t != "" {
		t = strings.ToUpper(t[:1]) + t[1:]
	}
	if p.core {
		t += " (core dumped)"
	}
	return t
}

// addJob gives j an id and makes it the current job.
func (s *Shell) addJob(j *job) {
	next, seq := 1, 0
	present := false
	for _, o := range s.jobs {
		next = max(next, o.id+1)
		seq = max(seq, o.seq)
		present = present || o == j
	}
	j.seq = seq + 1
	if j.id == 0 {
		j.id = next
	}
	if !present {
		s.jobs = append(s.jobs, j)
	}
}

// reap notes, without waiting, what has happened to background jobs.
func (s *Shell) reap() {
	poll := func(p *child) {
		for !p.done && p.pid > 0 {
			var ws syscall.WaitStatus
			n, err := syscall.Wait4(p.pid, &ws, syscall.WNOHANG|syscall.WUNTRACED|syscall.WCONTINUED, nil)
			if err == syscall.EINTR {
				continue
			}
			if err != nil {
				p.done, p.status = true, statusMissing
			}
			if n <= 0 {
				return
			}
			p.record(ws)
		}
	}
	for _, j := range s.jobs {
		for _, p := range j.procs {
			poll(p)
		}
	}
	left := s.proc.orphans[:0]
	for _, pid := range s.proc.orphans {
		if n, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); n == 0 && err == nil {
			left = append(left, pid)
		}
	}
	s.proc.orphans = left
}

// jobLine describes j as the jobs builtin does.
func (s *Shell) jobLine(j *job) string {
	mark := " "
	cur, prev := s.current()
	switch j {
	case cur:
		mark = "+"
	case prev:
		mark = "-"
	}
	state := "Running"
	switch {
	case j.done():
		last := j.procs[len(j.procs)-1]
		state = "Done"
		if last.signal != 0 {
			state = signalText(last)
		} else if last.status != 0 {
			state = fmt.Sprintf("Done(%d)", last.status)
		}
	case j.stopped():
		state = "Stopped"
	}
	return fmt.Sprintf("[%d] %s %-26s %s", j.id, mark, state, j.cmd)
}

// current returns the jobs %+ and %-.
func (s *Shell) current() (cur, prev *job) {
	better := func(a, b *job) bool {
		if b == nil || a.stopped() != b.stopped() {
			return b == nil || a.stopped()
		}
		return a.seq > b.seq
	}
	for _, j := range s.jobs {
		if better(j, cur) {
			prev, cur = cur, j
		} else if better(j, prev) {
			prev = j
		}
	}
	return cur, prev
}

// findJob resolves %N, %+, %-, %%, %name and %?text.
func (s *Shell) findJob(spec string) (*job, error) {
	s.reap()
	cur, prev := s.current()
	name := strings.TrimPrefix(spec, "%")
	var hit *job
	switch {
	case name == "" || name == "+" || name == "%":
		hit = cur
	case name == "-":
		hit = prev
	default:
		n, err := strconv.Atoi(name)
		for _, j := range s.jobs {
			if err == nil && j.id == n ||
				err != nil && (strings.HasPrefix(j.cmd, name) || name[0] == '?' && strings.Contains(j.cmd, name[1:])) {
				hit = j
			}
		}
	}
	if hit == nil {
		return nil, fmt.Errorf("no such job: %s", spec)
	}
	return hit, nil
}

func (s *Shell) dropJob(j *job) {
	for i, o := range s.jobs {
		if o == j {
			s.jobs = append(s.jobs[:i:i], s.jobs[i+1:]...)
			return
		}
	}
}

// pipeStage is one command of a pipeline; both tells whether its standard
// error goes into the pipe as well (|&).
type pipeStage struct {
	st   *syntax.Stmt
	both bool
}

// stages flattens nested pipelines.
func stages(st *syntax.Stmt) []pipeStage {
	b, ok := st.Cmd.(*syntax.BinaryCmd)
	if !ok || b.Op != syntax.Pipe && b.Op != syntax.PipeAll || len(st.Redirs) > 0 || st.Negated {
		return []pipeStage{{st: st}}
	}
	left := stages(b.X)
	left[len(left)-1].both = b.Op == syntax.PipeAll
	return append(left, stages(b.Y)...)
}

// pipeline runs a pipeline in the foreground.
func (s *Shell) pipeline(st *syntax.Stmt) {
	list := stages(st)
	// The last stage needs no process of its own: nothing runs beside it that
	// this process does. With job control it must be in the job's group.
	inline := !(s.opt.monitor && !s.inProcess()) && !needsProcess([]*syntax.Stmt{list[len(list)-1].st})
	j := &job{cmd: sourceOf(st)}
	in, ok := s.startStages(list, j, inline, true)
	if !ok {
		s.status = 1
		return
	}
	if inline {
		sub := s.clone()
		sub.loops = 0
		sub.noErr = s.noErr
		sub.fds.adopt(0, in)
		sub.stmt(list[len(list)-1].st)
		c := &child{done: true, status: sub.end()}
		j.procs = append(j.procs, c)
		if sub.flow == flowAbort {
			s.flow = flowAbort
		}
	}
	s.status = s.foreground(j)
}

// startStages starts the stages of a pipeline. With inline the last one is
// left to the caller, who gets the descriptor of its input.
func (s *Shell) startStages(list []pipeStage, j *job, inline, fg bool) (in int, ok bool) {
	in = -1
	for i, stage := range list {
		t := s.fds.dup()
		if in >= 0 {
			t.adopt(0, in)
			in = -1
		}
		if i == len(list)-1 {
			if inline {
				in = t.get(0)
				// The caller's table takes this reference over.
				s.proc.refs[in]++
				t.release()
				s.proc.refs[in]--
				return in, true
			}
		} else {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				s.errorf("cannot make a pipe: %s", tool.Reason(err))
				t.release()
				return -1, false
			}
			in = p[0]
			t.adopt(1, p[1])
			if stage.both {
				t.adopt(2, p[1])
			}
		}
		j.procs = append(j.procs, s.startStage(stage.st, t, j, fg))
		t.release()
	}
	return in, true
}

// startStage starts one command of a pipeline.
func (s *Shell) startStage(st *syntax.Stmt, t *fdTable, j *job, fg bool) *child {
	call, ok := st.Cmd.(*syntax.CallExpr)
	if ok && !st.Negated && !st.Background && len(call.Args) > 0 {
		name := call.Args[0].Lit()
		_, isBuiltin := s.proc.table[name]
		plain := name != "" && s.funcs[name] == nil && s.aliases[name] == ""
		switch {
		case plain && !isBuiltin && !s.opt.xtrace:
			return s.startSimple(st, call, t, j, fg)
		case plain && (name == "echo" || name == "printf") && len(st.Redirs) == 0 && len(call.Assigns) == 0 && !s.opt.xtrace:
			return s.startPrinter(call, t)
		}
	}
	pid, err := s.startChild(st, t, j, fg)
	if err != nil {
		s.errorf("cannot start a subshell: %s", tool.Reason(err))
		return &child{done: true, status: statusNoExec}
	}
	return &child{pid: pid}
}

// startSimple starts an external command; its words are expanded on a copy of
// the shell, as in the subshell it would otherwise be.
func (s *Shell) startSimple(st *syntax.Stmt, call *syntax.CallExpr, t *fdTable, j *job, fg bool) *child {
	sub := s.clone()
	sub.fds.release()
	sub.fds = t.dup()
	defer sub.end()
	failed := func(status int) *child { return &child{done: true, status: status} }
	args, ok := sub.fields(call.Args)
	if !ok {
		return failed(sub.status)
	}
	if err := sub.redirect(sub.fds, st.Redirs); err != nil {
		if err != errQuiet {
			sub.errorf("%v", err)
			return failed(1)
		}
		return failed(sub.status)
	}
	extra, ok := sub.prefix(call.Assigns)
	if !ok {
		return failed(sub.status)
	}
	path, status, err := sub.lookPath(args[0], extra)
	if err != nil {
		sub.errorf("%s: %v", args[0], err)
		return failed(status)
	}
	pid, err := s.spawn(path, args, mergeEnv(sub.execEnv(), extra), sub.fds, j, fg)
	if err != nil {
		sub.errorf("%s: %s", args[0], tool.Reason(err))
		return failed(execStatus(err))
	}
	return &child{pid: pid}
}

// startPrinter runs echo or printf into a pipe without a process: when the
// text fits the pipe at once, otherwise through a goroutine that ends when
// everything is written or the reader has gone.
func (s *Shell) startPrinter(call *syntax.CallExpr, t *fdTable) *child {
	sub := s.clone()
	sub.fds.release()
	sub.fds = t.dup()
	defer sub.end()
	args, ok := sub.fields(call.Args)
	if !ok {
		return &child{done: true, status: sub.status}
	}
	var out bytes.Buffer
	c := sub.context(args[0], args[1:])
	c.Stdout = tool.NewOutput(&out)
	status := tool.Run(s.proc.table[args[0]].tool, c)
	real := t.get(1)
	if out.Len() > 32<<10 {
		if dup, err := unix.FcntlInt(uintptr(real), unix.F_DUPFD_CLOEXEC, 10); err == nil {
			go func() {
				_ = writeAll(dup, out.Bytes())
				unix.Close(dup)
			}()
			return &child{done: true, status: status}
		}
	}
	_ = writeAll(real, out.Bytes())
	return &child{done: true, status: status}
}

// background starts a statement without waiting for it.
func (s *Shell) background(st *syntax.Stmt) {
	plain := *st
	plain.Background, plain.Coprocess, plain.Disown = false, false, false
	j := &job{cmd: sourceOf(&plain)}
	base := s.fds
	monitor := s.opt.monitor && !s.inProcess()
	if !monitor {
		// Without job control a background list must not take our input, nor
		// be ended by the Ctrl-C meant for the foreground.
		t := s.fds.dup()
		if null, err := openRetry("/dev/null", unix.O_RDONLY); err == nil {
			t.adopt(0, null)
		}
		s.fds = t
		signal.Ignore(syscall.SIGINT)
	}
	list := stages(&plain)
	_, ok := s.startStages(list, j, false, false)
	if !monitor {
		s.applySignal(syscall.SIGINT)
		s.fds.release()
		s.fds = base
	}
	if !ok {
		s.status = 1
		return
	}
	s.lastBg = j.procs[len(j.procs)-1].pid
	s.reap()
	if !s.opt.interactive {
		s.forgetDone()
	}
	s.addJob(j)
	if s.opt.interactive && !s.inProcess() {
		s.writeFd(2, fmt.Sprintf("[%d] %d\n", j.id, s.lastBg))
	}
	s.status = 0
}

// forgetDone keeps a script that starts endless jobs from remembering them
// all: only the newest finished ones can still be waited for.
func (s *Shell) forgetDone() {
	const keep = 1024
	for i := 0; i < len(s.jobs) && len(s.jobs) > keep; {
		if s.jobs[i].done() {
			s.jobs = append(s.jobs[:i:i], s.jobs[i+1:]...)
			continue
		}
		i++
	}
}

// sourceOf prints a statement on one line where its syntax allows.
func sourceOf(st *syntax.Stmt) string {
	var b bytes.Buffer
	_ = syntax.NewPrinter(syntax.SingleLine(true)).Print(&b, st)
	return strings.TrimSpace(b.String())
}
