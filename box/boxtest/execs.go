package boxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

func execs(s *suite) {
	b := s.box()
	s.rule("Streams", "standard output and standard error are kept apart, and the status is the command's", func(t *T) {
		r, err := b.Exec(t.ctx, "sh", "-c", "echo out; echo err >&2; exit 7")
		t.ok(err, "Exec")
		if string(r.Stdout) != "out\n" || string(r.Stderr) != "err\n" || r.Code != 7 || r.Reason != box.Exited {
			t.Errorf("got %+v", r)
		}
		_, err = b.Shell(t.ctx, "echo why >&2; exit 7").Output()
		if e := t.exit(err); e.ExitCode() != 7 || string(e.Stderr) != "why\n" {
			t.Errorf("got %v with %q", e, e.Stderr)
		}
	})
	s.rule("Combined", "with one writer for both, output comes in order", func(t *T) {
		out, err := b.Shell(t.ctx, "echo 1; echo 2 >&2; echo 3").CombinedOutput()
		t.ok(err, "CombinedOutput")
		for _, part := range []string{"1\n", "2\n", "3\n"} {
			if !bytes.Contains(out, []byte(part)) {
				t.Errorf("got %q", out)
			}
		}
	})
	s.rule("Codes", "missing is 127, not executable 126, killed by signal N 128+N with the signal", func(t *T) {
		t.sh(b, "echo text > /plain; chmod 644 /plain")
		for _, c := range []struct {
			args   []string
			code   int
			sig    syscall.Signal
			reason box.ExitReason
		}{
			{[]string{"true"}, 0, 0, box.Exited},
			{[]string{"false"}, 1, 0, box.Exited},
			{[]string{"sh", "-c", "exit 255"}, 255, 0, box.Exited},
			{[]string{"no-such-program"}, 127, 0, box.NotStarted},
			{[]string{"/no/such/program"}, 127, 0, box.NotStarted},
			{[]string{"/plain"}, 126, 0, box.NotStarted},
			{[]string{"/tmp"}, 126, 0, box.NotStarted},
			{[]string{"sh", "-c", "kill -9 $$"}, 137, syscall.SIGKILL, box.Exited},
			{[]string{"sh", "-c", "kill -TERM $$; sleep 5"}, 143, syscall.SIGTERM, box.Exited},
		} {
			r, err := b.Exec(t.ctx, c.args[0], c.args[1:]...)
			t.ok(err, strings.Join(c.args, " "))
			if r.Code != c.code || r.Signal != c.sig || r.Reason != c.reason {
				t.Errorf("%q: %+v, want code %d, signal %d, %s", c.args, r.ExitStatus, c.code, c.sig, c.reason)
			}
		}
	})
	s.rule("Args", "arguments arrive as they are: empty, with spaces, quotes, newlines, dashes, and bytes that are no UTF-8", func(t *T) {
		args := []string{"", "a b", `"'\`, "new\nline", "-n", "--", "*", "$HOME", "\xff\xfe", strings.Repeat("x", 100_000)}
		out, err := b.Command(t.ctx, "sh", append([]string{"-c", `for a; do printf '<%s>' "$a"; done`, "sh"}, args...)...).Output()
		t.ok(err, "Output")
		t.same("arguments", out, []byte("<"+strings.Join(args, "><")+">"))
	})
	s.rule("Env", "1000 variables of 200 KiB, with newlines and quotes, arrive exactly, and none of the host's do", func(t *T) {
		t.Setenv("HUTCH_TEST_CANARY", "secret of the host")
		want := make(map[string]string)
		var env []string
		for i := range 1000 {
			k, v := fmt.Sprintf("VAR_%03d", i), fmt.Sprintf("%d\n\"quoted\" 'too' $x `y` \\ =", i)+strings.Repeat("é", 80)
			want[k] = v
			env = append(env, k+"="+v)
		}
		args := []string{"env", "-0"}
		if t.suite.h.RealProcesses {
			args = []string{"cat", "/proc/self/environ"}
		}
		c := b.Command(t.ctx, args[0], args[1:]...)
		c.Env = env
		out, err := c.Output()
		t.ok(err, "Output")
		got := make(map[string]string)
		for _, kv := range strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			k, v, _ := strings.Cut(kv, "=")
			got[k] = v
		}
		for k, v := range want {
			if got[k] != v {
				t.Fatalf("%s is %q, want %q", k, got[k], v)
			}
		}
		if got["PATH"] == "" {
			t.Error("there is no PATH")
		}
		if _, found := got["HUTCH_TEST_CANARY"]; found {
			t.Error("a variable of the host is in the box")
		}
	})
	s.rule("ClearEnv", "with ClearEnv, the environment is Env alone", func(t *T) {
		args := []string{"/bin/env"}
		if t.suite.h.RealProcesses {
			args = []string{"/bin/cat", "/proc/self/environ"}
		}
		c := b.Command(t.ctx, args[0], args[1:]...)
		c.ClearEnv, c.Env = true, []string{"ONLY=this"}
		out, err := c.Output()
		t.ok(err, "Output")
		if got := strings.TrimRight(string(out), "\x00\n"); got != "ONLY=this" {
			t.Errorf("environment %q", got)
		}
	})
	s.rule("Dir", "Dir is where the command runs; a missing one keeps it from starting", func(t *T) {
		t.sh(b, "mkdir -p '/odd dir/sub'")
		for dir, want := range map[string]string{"/odd dir": "/odd dir\n", "odd dir/sub": "/odd dir/sub\n", "": "/\n"} {
			c := b.Command(t.ctx, "pwd")
			c.Dir = dir
			out, err := c.Output()
			t.ok(err, "pwd in "+dir)
			if string(out) != want {
				t.Errorf("Dir %q: %q, want %q", dir, out, want)
			}
		}
		c := b.Command(t.ctx, "pwd")
		c.Dir = "/no/such/dir"
		if err := c.Run(); err == nil {
			t.Error("a command ran in a directory that is not there")
		}
	})
	s.rule("User", "a command runs as the user named; an unknown one is an error", func(t *T) {
		c := b.Shell(t.ctx, "id -u; id -g")
		c.User = "1234:5678"
		out, err := c.Output()
		t.ok(err, "Output")
		if string(out) != "1234\n5678\n" {
			t.Errorf("ids %q", out)
		}
		c = b.Command(t.ctx, "true")
		c.User = "no-such-user"
		if err := c.Run(); err == nil {
			t.Error("an unknown user was taken")
		}
		if t.suite.h.RealProcesses {
			c := b.Shell(t.ctx, "echo x > /not-allowed")
			c.User = "1234"
			if e := t.exit(c.Run()); e.Code == 0 {
				t.Error("another user wrote to root's directory")
			}
		}
	})
	s.rule("Misuse", "a Cmd is used once, and in order", func(t *T) {
		c := b.Command(t.ctx, "true")
		t.is(c.Wait(), box.ErrInvalid, "Wait before Start")
		t.ok(c.Run(), "Run")
		t.is(c.Run(), box.ErrInvalid, "second Run")
		t.is(c.Wait(), box.ErrInvalid, "second Wait")
		if c.Kill() == nil {
			t.Error("Kill of an ended command")
		}
		c = b.Command(t.ctx, "true")
		c.Stdout = io.Discard
		_, err := c.Output()
		t.is(err, box.ErrInvalid, "Output with Stdout set")
		t.is(b.Command(t.ctx, "").Run(), box.ErrInvalid, "no program")
		t.is(b.Command(t.ctx, "true", "a\x00b").Run(), box.ErrInvalid, "NUL in an argument")
	})
}

// box returns one that all rules of a group share.
func (s *suite) box() *box.Box {
	ctx, cancel := context.WithTimeout(context.Background(), s.h.Patience)
	defer cancel()
	b, err := s.rt.Create(ctx, box.Spec{Image: s.h.Image})
	if err != nil {
		s.Fatalf("Create: %v", err)
	}
	return b
}

func streams(s *suite) {
	b := s.box()
	s.rule("Binary", "bytes that are no text arrive as they are", func(t *T) {
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		t.ok(b.WriteFile(t.ctx, "/all", all, 0), "WriteFile")
		out, err := b.Shell(t.ctx, `printf '\377\000\376'; cat /all`).Output()
		t.ok(err, "Output")
		t.same("output", out, append([]byte("\xff\x00\xfe"), all...))
	})
	s.rule("Bulk", "much random output on both streams at once arrives exactly, when only one of them is read at first", func(t *T) {
		one, two := noise(1, t.suite.h.Bulk), noise(2, t.suite.h.Bulk)
		t.ok(b.WriteFile(t.ctx, "/one", one, 0), "WriteFile")
		t.ok(b.WriteFile(t.ctx, "/two", two, 0), "WriteFile")
		c := b.Shell(t.ctx, "cat /one & cat /two >&2; wait")
		stdout, err := c.StdoutPipe()
		t.ok(err, "StdoutPipe")
		stderr, err := c.StderrPipe()
		t.ok(err, "StderrPipe")
		t.ok(c.Start(), "Start")
		got, err := io.ReadAll(stderr)
		t.ok(err, "reading standard error")
		t.same("standard error", got, two)
		got, err = io.ReadAll(stdout)
		t.ok(err, "reading standard output")
		t.same("standard output", got, one)
		t.ok(c.Wait(), "Wait")
		t.ok(b.RemoveAll(t.ctx, "/one"), "RemoveAll")
		t.ok(b.RemoveAll(t.ctx, "/two"), "RemoveAll")
	})
	s.rule("ByteByByte", "a megabyte of 3- and 4-byte characters, written one byte at a time, arrives exactly", func(t *T) {
		n := 1 << 20
		if t.suite.h.Bulk < n {
			n = t.suite.h.Bulk
		}
		var text []byte
		for len(text) < n {
			text = append(text, "水の箱🦊🧊"...)
		}
		t.ok(b.WriteFile(t.ctx, "/text", text, 0), "WriteFile")
		// Read in bulk: it is the writing that matters, and each system call costs.
		out, err := b.Shell(t.ctx, "dd if=/text ibs=64k obs=1 2>/dev/null").Output()
		t.ok(err, "Output")
		t.same("text", out, text)
	})
	s.rule("Stdin", "input arrives exactly and ends; without it, it is at its end", func(t *T) {
		in := noise(3, 3<<20)
		c := b.Command(t.ctx, "cat")
		c.Stdin = bytes.NewReader(in)
		out, err := c.Output()
		t.ok(err, "cat")
		t.same("input", out, in)
		out, err = b.Command(t.ctx, "cat").Output()
		t.ok(err, "cat without input")
		if len(out) != 0 {
			t.Errorf("read %q", out)
		}
	})
	s.rule("StdinUnread", "a command that does not read its input is no error", func(t *T) {
		c := b.Command(t.ctx, "true")
		c.Stdin = bytes.NewReader(noise(4, 2<<20))
		t.ok(c.Run(), "Run")
		// A reader that never ends does not keep Wait.
		pr, pw := io.Pipe()
		defer pw.Close()
		c = b.Command(t.ctx, "true")
		c.Stdin = pr
		t.ok(c.Run(), "Run with a reader that blocks")
	})
	s.rule("StdinPipe", "a conversation through pipes works", func(t *T) {
		c := b.Command(t.ctx, "cat")
		in, err := c.StdinPipe()
		t.ok(err, "StdinPipe")
		out, err := c.StdoutPipe()
		t.ok(err, "StdoutPipe")
		t.ok(c.Start(), "Start")
		for _, line := range []string{"one\n", "two\n"} {
			_, err := io.WriteString(in, line)
			t.ok(err, "Write")
			buf := make([]byte, len(line))
			_, err = io.ReadFull(out, buf)
			t.ok(err, "Read")
			if string(buf) != line {
				t.Errorf("got %q", buf)
			}
		}
		t.ok(in.Close(), "Close")
		t.ok(c.Wait(), "Wait")
	})
	s.rule("ClosedPipe", "a command whose output nobody wants any more gets SIGPIPE and ends", func(t *T) {
		c := b.Command(t.ctx, "yes")
		out, err := c.StdoutPipe()
		t.ok(err, "StdoutPipe")
		t.ok(c.Start(), "Start")
		_, err = io.ReadFull(out, make([]byte, 10))
		t.ok(err, "Read")
		t.ok(out.Close(), "Close")
		if e := t.exit(c.Wait()); e.Signal != syscall.SIGPIPE {
			t.Errorf("ended with %v", e)
		}
	})
	s.rule("Stalled", "a reader that never reads does not slow other commands", func(t *T) {
		m := t.suite.driver.Machine(b.ID())
		defer m.Close()
		stalled, err := m.StartProcess(t.ctx, box.ProcessSpec{Args: []string{"yes"}})
		t.ok(err, "StartProcess")
		defer stalled.Close()
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				out, err := b.Command(t.ctx, "echo", fmt.Sprint(i)).Output()
				if err != nil || string(out) != fmt.Sprintln(i) {
					t.Errorf("command %d: %q, %v", i, out, err)
				}
			})
		}
		wg.Wait()
	})
}

func ends(s *suite) {
	b := s.box()
	const stubborn = `trap "" TERM; sleep 273 & setsid sleep 273 & sleep 273`
	noneLeft := func(t *T) {
		t.eventually("no process of the command is left", func() bool { return t.processes(b, "sleep 273") == 0 })
		t.sh(b, "true")
	}
	s.rule("Timeout", "a timeout kills the whole tree, children in their own sessions too, is reported as Timeout, and the box goes on", func(t *T) {
		c := b.Shell(t.ctx, stubborn)
		c.Timeout = 500 * time.Millisecond
		err := c.Run()
		t.is(err, box.ErrTimeout, "Run")
		if errors.As(err, new(*box.ExitError)) {
			t.Errorf("a timeout is reported as an exit status: %v", err)
		}
		noneLeft(t)
	})
	s.rule("TimeoutOutput", "what a command wrote before its timeout is delivered", func(t *T) {
		c := b.Shell(t.ctx, "echo before; sleep 274")
		c.Timeout = 700 * time.Millisecond
		out, err := c.Output()
		t.is(err, box.ErrTimeout, "Output")
		if string(out) != "before\n" {
			t.Errorf("output %q", out)
		}
	})
	s.rule("Cancel", "the end of the context kills the whole tree and is reported as Canceled", func(t *T) {
		ctx, cancel := context.WithCancel(t.ctx)
		defer cancel()
		c := b.Shell(ctx, "echo started; "+stubborn)
		out, err := c.StdoutPipe()
		t.ok(err, "StdoutPipe")
		t.ok(c.Start(), "Start")
		_, err = io.ReadFull(out, make([]byte, 8))
		t.ok(err, "Read")
		cancel()
		err = c.Wait()
		t.is(err, box.ErrCanceled, "Wait")
		t.is(err, context.Canceled, "Wait")
		noneLeft(t)
	})
	s.rule("Deadline", "the context's deadline is a Timeout", func(t *T) {
		ctx, cancel := context.WithTimeout(t.ctx, 500*time.Millisecond)
		defer cancel()
		err := b.Shell(ctx, stubborn).Run()
		t.is(err, box.ErrTimeout, "Run")
		t.is(err, context.DeadlineExceeded, "Run")
		noneLeft(t)
	})
	s.rule("CanceledBefore", "a context that ended before starts nothing", func(t *T) {
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		t.is(b.Command(ctx, "touch", "/must-not-be").Run(), box.ErrCanceled, "Run")
		_, err := b.Stat(t.ctx, "/must-not-be")
		if err == nil {
			t.Error("the command ran")
		}
	})
	s.rule("Kill", "Kill ends the tree and is reported as SIGKILL", func(t *T) {
		c := b.Shell(t.ctx, "echo started; "+stubborn)
		out, err := c.StdoutPipe()
		t.ok(err, "StdoutPipe")
		t.ok(c.Start(), "Start")
		_, err = io.ReadFull(out, make([]byte, 8))
		t.ok(err, "Read")
		t.ok(c.Kill(), "Kill")
		if e := t.exit(c.Wait()); e.Code != 137 || e.Signal != syscall.SIGKILL {
			t.Errorf("ended with %+v", e.ExitStatus)
		}
		noneLeft(t)
	})
	s.rule("Signal", "a signal reaches the command, which may handle it", func(t *T) {
		c := b.Shell(t.ctx, `trap 'echo got it; exit 9' USR1; echo ready; while :; do sleep 0.05; done`)
		out, err := c.StdoutPipe()
		t.ok(err, "StdoutPipe")
		t.ok(c.Start(), "Start")
		_, err = io.ReadFull(out, make([]byte, 6))
		t.ok(err, "Read")
		t.ok(c.Signal(syscall.SIGUSR1), "Signal")
		rest, err := io.ReadAll(out)
		t.ok(err, "ReadAll")
		if e := t.exit(c.Wait()); e.Code != 9 || string(rest) != "got it\n" {
			t.Errorf("ended with %+v, output %q", e.ExitStatus, rest)
		}
	})
	s.rule("Background", "what a command leaves in the background with its output open does not keep Wait", func(t *T) {
		c := b.Shell(t.ctx, "sleep 275 & echo done")
		out, err := c.Output()
		t.ok(err, "Output")
		if string(out) != "done\n" {
			t.Errorf("output %q", out)
		}
		if n := t.processes(b, "sleep 275"); n != 1 {
			t.Errorf("%d of what was left in the background run", n)
		}
	})
}

func attach(s *suite) {
	b := s.box()
	s.rule("Replay", "who attaches to a detached command gets its output from the start, what follows, and its status", func(t *T) {
		c := b.Shell(t.ctx, "echo one; echo err >&2; while [ ! -e /replay ]; do sleep 0.05; done; echo two; exit 6")
		c.Detach = true
		t.ok(c.Start(), "Start")
		a, err := b.Attach(t.ctx, c.ID(), box.AttachOptions{})
		t.ok(err, "Attach")
		t.ok(b.WriteFile(t.ctx, "/replay", nil, 0), "WriteFile")
		r, err := a.Result()
		t.ok(err, "Result")
		if string(r.Stdout) != "one\ntwo\n" || string(r.Stderr) != "err\n" || r.Code != 6 {
			t.Errorf("got %+v", r)
		}
		t.exit(c.Wait())
		// And once more, after its end.
		a, err = b.Attach(t.ctx, c.ID(), box.AttachOptions{Offset: 4})
		t.ok(err, "Attach after the end")
		r, err = a.Result()
		t.ok(err, "Result")
		if got := string(r.Stdout) + string(r.Stderr); len(got) != 8 || !strings.HasPrefix(string(r.Stdout), "one\ntwo\n"[8-len(r.Stdout):]) || r.Code != 6 {
			t.Errorf("from offset 4: %q and %q, %v", r.Stdout, r.Stderr, r.ExitStatus)
		}
	})
	s.rule("Detach", "a detached command outlives the stream and the context that started it", func(t *T) {
		ctx, cancel := context.WithCancel(t.ctx)
		defer cancel()
		c := b.Shell(ctx, "while [ ! -e /detach ]; do sleep 0.05; done; echo survived")
		c.Detach = true
		t.ok(c.Start(), "Start")
		cancel()
		t.is(c.Wait(), box.ErrCanceled, "Wait")
		a, err := b.Attach(t.ctx, c.ID(), box.AttachOptions{})
		t.ok(err, "Attach")
		t.ok(b.WriteFile(t.ctx, "/detach", nil, 0), "WriteFile")
		out, err := a.Output()
		t.ok(err, "Output")
		if string(out) != "survived\n" {
			t.Errorf("output %q", out)
		}
	})
	s.rule("Follower", "the end of an attached caller's context leaves the command alone", func(t *T) {
		c := b.Shell(t.ctx, "while [ ! -e /follower ]; do sleep 0.05; done")
		t.ok(c.Start(), "Start")
		ctx, cancel := context.WithCancel(t.ctx)
		defer cancel()
		a, err := b.Attach(ctx, c.ID(), box.AttachOptions{})
		t.ok(err, "Attach")
		t.ok(a.Start(), "Start")
		cancel()
		t.is(a.Wait(), box.ErrCanceled, "Wait of the attached")
		t.ok(b.WriteFile(t.ctx, "/follower", nil, 0), "WriteFile")
		t.ok(c.Wait(), "Wait of the owner")
	})
	s.rule("Skipped", "output that is no longer kept is counted", func(t *T) {
		size := 32 << 20
		c := b.Shell(t.ctx, fmt.Sprintf("head -c %d /dev/zero; while [ ! -e /skipped ]; do sleep 0.05; done", size))
		c.Detach = true
		out, err := c.StdoutPipe()
		t.ok(err, "StdoutPipe")
		t.ok(c.Start(), "Start")
		_, err = io.CopyN(io.Discard, out, int64(size))
		t.ok(err, "CopyN")
		a, err := b.Attach(t.ctx, c.ID(), box.AttachOptions{})
		t.ok(err, "Attach")
		t.ok(b.WriteFile(t.ctx, "/skipped", nil, 0), "WriteFile")
		got, err := a.Output()
		t.ok(err, "Output")
		if a.Skipped()+int64(len(got)) != int64(size) {
			t.Errorf("skipped %d and got %d, want %d together", a.Skipped(), len(got), size)
		}
		t.ok(c.Wait(), "Wait")
	})
	s.rule("Unknown", "attaching to a command that is not known is NotFound", func(t *T) {
		_, err := b.Attach(t.ctx, "no-such-command", box.AttachOptions{})
		t.is(err, box.ErrNotFound, "Attach")
		t.is(b.SignalProcess(t.ctx, "no-such-command", 15, false), box.ErrNotFound, "SignalProcess")
	})
	s.rule("Input", "an attached caller can write to a command's input", func(t *T) {
		c := b.Command(t.ctx, "cat")
		in, err := c.StdinPipe()
		t.ok(err, "StdinPipe")
		var out bytes.Buffer
		c.Stdout = &out
		t.ok(c.Start(), "Start")
		_, err = io.WriteString(in, "owner\n")
		t.ok(err, "Write")
		a, err := b.Attach(t.ctx, c.ID(), box.AttachOptions{})
		t.ok(err, "Attach")
		a.Stdin = strings.NewReader("other\n")
		t.ok(a.Run(), "Run")
		t.ok(c.Wait(), "Wait")
		if out.String() != "owner\nother\n" {
			t.Errorf("output %q", out.String())
		}
	})
	s.rule("Inputs", "what several callers write to one command arrives whole, each caller's in its order", func(t *T) {
		c := b.Command(t.ctx, "cat")
		in, err := c.StdinPipe()
		t.ok(err, "StdinPipe")
		var out bytes.Buffer
		c.Stdout = &out
		t.ok(c.Start(), "Start")
		pipes := []io.WriteCloser{in}
		for range 2 {
			a, err := b.Attach(t.ctx, c.ID(), box.AttachOptions{})
			t.ok(err, "Attach")
			pipe, err := a.StdinPipe()
			t.ok(err, "StdinPipe")
			t.ok(a.Start(), "Start")
			defer func() { t.ok(a.Wait(), "Wait") }()
			pipes = append(pipes, pipe)
		}
		const lines = 50
		var wg sync.WaitGroup
		errs := make([]error, len(pipes))
		for i, p := range pipes {
			wg.Go(func() {
				for n := range lines {
					if _, err := fmt.Fprintf(p, "%d %d\n", i, n); err != nil {
						errs[i] = err
						return
					}
				}
			})
		}
		wg.Wait()
		t.ok(errors.Join(errs...), "Write")
		t.ok(in.Close(), "Close")
		t.ok(c.Wait(), "Wait")
		next := make([]int, len(pipes))
		for line := range strings.Lines(out.String()) {
			var i, n int
			if _, err := fmt.Sscanf(line, "%d %d\n", &i, &n); err != nil || i >= len(next) || next[i] != n {
				t.Fatalf("line %q: %v, after %v of each", line, err, next)
			}
			next[i]++
		}
		for i, n := range next {
			if n != lines {
				t.Errorf("caller %d: %d lines, want %d", i, n, lines)
			}
		}
	})
}

func terminal(s *suite) {
	if !s.h.TTY {
		s.Skip("this driver's commands have no terminal")
	}
	b := s.box()
	s.rule("CtrlC", "Ctrl-C typed on a terminal interrupts the command", func(t *T) {
		c := b.Command(t.ctx, "sleep", "276")
		c.TTY = true
		in, err := c.StdinPipe()
		t.ok(err, "StdinPipe")
		t.ok(c.Start(), "Start")
		t.eventually("sleep runs", func() bool { return t.processes(b, "sleep 276") > 0 })
		_, err = in.Write([]byte{3})
		t.ok(err, "Write")
		if e := t.exit(c.Wait()); e.Signal != syscall.SIGINT {
			t.Errorf("ended with %+v", e.ExitStatus)
		}
	})
	s.rule("OneStream", "a terminal has one stream, with carriage returns", func(t *T) {
		c := b.Shell(t.ctx, "echo out; echo err >&2")
		c.TTY = true
		r, err := c.Result()
		t.ok(err, "Result")
		if string(r.Stdout) != "out\r\nerr\r\n" || len(r.Stderr) != 0 {
			t.Errorf("got %q and %q", r.Stdout, r.Stderr)
		}
	})
	s.rule("NoTTY", "resizing a command without terminal is an error", func(t *T) {
		c := b.Command(t.ctx, "sleep", "277")
		t.ok(c.Start(), "Start")
		if err := c.Resize(10, 10); err == nil {
			t.Error("no error")
		}
		t.ok(c.Kill(), "Kill")
		t.exit(c.Wait())
	})
	if s.h.TTYSize == nil {
		return
	}
	s.rule("Size", "the terminal has the size asked for, and Resize changes it", func(t *T) {
		quoted := "'" + strings.Join(t.suite.h.TTYSize, "' '") + "'"
		c := b.Shell(t.ctx, quoted+"; while [ ! -e /resized ]; do sleep 0.05; done; "+quoted)
		c.TTY, c.Rows, c.Cols = true, 31, 101
		out, err := c.StdoutPipe()
		t.ok(err, "StdoutPipe")
		t.ok(c.Start(), "Start")
		first := make([]byte, len("31 101\r\n"))
		_, err = io.ReadFull(out, first)
		t.ok(err, "Read")
		t.ok(c.Resize(17, 55), "Resize")
		t.ok(b.WriteFile(t.ctx, "/resized", nil, 0), "WriteFile")
		rest, err := io.ReadAll(out)
		t.ok(err, "ReadAll")
		if got := strings.Fields(string(first) + string(rest)); !slices.Equal(got, []string{"31", "101", "17", "55"}) {
			t.Errorf("sizes %q", got)
		}
		t.ok(c.Wait(), "Wait")
	})
}

func parallel(s *suite) {
	b := s.box()
	s.rule("Fifty", "fifty commands at once, round after round, each get their own input, output and status", func(t *T) {
		for round := range t.suite.h.Rounds {
			var wg sync.WaitGroup
			for i := range 50 {
				wg.Go(func() {
					c := b.Shell(t.ctx, fmt.Sprintf("cat; echo err-%d >&2; exit %d", i, i))
					c.Stdin = strings.NewReader(fmt.Sprintf("in-%d-%d", round, i))
					r, err := c.Result()
					if err != nil {
						t.Errorf("command %d: %v", i, err)
						return
					}
					if string(r.Stdout) != fmt.Sprintf("in-%d-%d", round, i) || string(r.Stderr) != fmt.Sprintf("err-%d\n", i) || r.Code != i {
						t.Errorf("command %d: %+v", i, r)
					}
				})
			}
			wg.Wait()
			if t.Failed() {
				return
			}
		}
	})
	s.rule("Boxes", "several boxes at once do not disturb each other", func(t *T) {
		var wg sync.WaitGroup
		boxes := make([]*box.Box, 5)
		for i := range boxes {
			boxes[i] = t.create(box.Spec{})
		}
		for i, b := range boxes {
			wg.Go(func() {
				if err := b.WriteFile(t.ctx, "/mine", fmt.Append(nil, i), 0); err != nil {
					t.Errorf("box %d: %v", i, err)
					return
				}
				out, err := b.Shell(t.ctx, "sleep 0.1; cat /mine").Output()
				if err != nil || string(out) != fmt.Sprint(i) {
					t.Errorf("box %d: %q, %v", i, out, err)
				}
			})
		}
		wg.Wait()
	})
	s.rule("WriteRace", "of many whole writes of one file at once, one remains whole", func(t *T) {
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				if err := b.WriteFile(t.ctx, "/contested", bytes.Repeat([]byte{byte('a' + i)}, 300_000), 0); err != nil {
					t.Errorf("WriteFile: %v", err)
				}
			})
		}
		wg.Wait()
		data, err := b.ReadFile(t.ctx, "/contested")
		t.ok(err, "ReadFile")
		if len(data) != 300_000 || len(bytes.Trim(data, string(data[:1]))) != 0 {
			t.Errorf("%d bytes, of more than one write", len(data))
		}
		entries, err := b.ReadDir(t.ctx, "/")
		t.ok(err, "ReadDir")
		for _, e := range entries {
			if strings.Contains(e.FileName, "contested") && e.FileName != "contested" {
				t.Errorf("%q was left behind", e.FileName)
			}
		}
	})
}
