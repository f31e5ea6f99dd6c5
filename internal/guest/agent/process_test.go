//go:build linux

package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

func TestExitStatus(t *testing.T) {
	r := newRig(t, Config{})
	write := func(name, content string, mode os.FileMode) string {
		path := r.dir + "/" + name
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("noexec", "#!/bin/sh\nexit 3\n", 0o644)
	write("script", "echo ran \"$0\" \"$@\"; exit 5\n", 0o755)
	write("badinterp", "#!/no/such/interpreter\n", 0o755)
	write("garbage", "\x7fELF\x00\x00\x00garbage", 0o755)
	const exited, failed = hutchv1.ExitReason_EXIT_REASON_EXITED, hutchv1.ExitReason_EXIT_REASON_START_FAILED
	for _, tt := range []struct {
		name   string
		args   []string
		dir    string
		code   int32
		signal int32
		reason hutchv1.ExitReason
		msg    string
	}{
		{"success", []string{"true"}, "", 0, 0, exited, ""},
		{"failure", []string{"sh", "-c", "exit 7"}, "", 7, 0, exited, ""},
		{"exit 255", []string{"sh", "-c", "exit 255"}, "", 255, 0, exited, ""},
		{"killed", []string{"sh", "-c", "kill -9 $$"}, "", 137, 9, exited, ""},
		{"terminated", []string{"sh", "-c", "kill -15 $$"}, "", 143, 15, exited, ""},
		{"not found", []string{"nosuch"}, "", 127, 0, failed, "nosuch: command not found"},
		{"no such path", []string{"/no/such"}, "", 127, 0, failed, "/no/such: no such file or directory"},
		{"odd name", []string{"no\xffsuch"}, "", 127, 0, failed, "no?such: command not found"},
		{"empty name", []string{""}, "", 127, 0, failed, "not found"},
		{"directory", []string{"/usr"}, "", 126, 0, failed, "/usr: is a directory"},
		{"not executable", []string{"./noexec"}, "", 126, 0, failed, "./noexec: permission denied"},
		{"no shebang", []string{"./script", "a b"}, "", 5, 0, exited, ""},
		{"bad interpreter", []string{"./badinterp"}, "", 127, 0, failed, "interpreter"},
		{"no program", []string{"./garbage"}, "", 126, 0, failed, "exec format error"},
		{"no directory", []string{"true"}, "/no/such", 126, 0, failed, "working directory /no/such does not exist"},
		{"file as directory", []string{"true"}, "/etc/passwd", 126, 0, failed, "is not a directory"},
		{"relative directory", []string{"pwd"}, "nosuchsub", 126, 0, failed, "does not exist"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.t = t
			o := r.run(&hutchv1.StartRequest{Args: argv(tt.args...), Dir: []byte(tt.dir)})
			if o.exit.GetCode() != tt.code || o.exit.GetSignal() != tt.signal || o.exit.GetReason() != tt.reason {
				t.Errorf("exit %v", o.exit)
			}
			if !strings.Contains(o.exit.GetMessage(), tt.msg) {
				t.Errorf("message %q, want %q in it", o.exit.GetMessage(), tt.msg)
			}
			if (o.pid > 0) != (tt.reason == exited) {
				t.Errorf("pid %d", o.pid)
			}
		})
	}
	r.t = t
	if o := r.run(&hutchv1.StartRequest{Args: argv("./script", "a b")}); string(o.out) != "ran "+r.dir+"/./script a b\n" {
		t.Errorf("script without #!: %q", o.out)
	}
}

func TestStreamsApart(t *testing.T) {
	r := newRig(t, Config{})
	o := r.sh(`printf '\377\000\376'; printf 'err\n' >&2; exit 7`)
	if string(o.out) != "\xff\x00\xfe" || string(o.err) != "err\n" || o.exit.GetCode() != 7 {
		t.Errorf("out %q, err %q, exit %v", o.out, o.err, o.exit)
	}
}

func TestBadRequests(t *testing.T) {
	r := newRig(t, Config{})
	for name, req := range map[string]*hutchv1.StartRequest{
		"no args":       {},
		"zero byte":     {Args: argv("a\x00b")},
		"bad env":       {Args: argv("true"), Env: argv("novalue")},
		"empty env key": {Args: argv("true"), Env: argv("=x")},
		"bad id":        {Args: argv("true"), Id: "a/b"},
		"long id":       {Args: argv("true"), Id: strings.Repeat("a", 65)},
		"no such user":  {Args: argv("true"), User: "nobody-of-that-name"},
		"no such group": {Args: argv("true"), User: "0:nogroup-of-that-name"},
		"huge terminal": {Args: argv("true"), Tty: true, Rows: 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			_, err := r.tryRun(req)
			wantKind(t, err, box.Invalid)
		})
	}
	r.t = t
	if _, err := r.tryRun(&hutchv1.StartRequest{Args: argv("true"), User: "nobody-of-that-name"}); !strings.Contains(fmt.Sprint(err), "nobody-of-that-name") {
		t.Errorf("the error does not name the user: %v", err)
	}
}

// collectAsync follows a stream in the background.
func collectAsync(s *connect.ServerStreamForClient[hutchv1.ProcessEvent]) <-chan outcome {
	ch := make(chan outcome, 1)
	go func() {
		o, err := collect(s)
		if err != nil {
			o.err = []byte("stream: " + err.Error())
		}
		ch <- o
	}()
	return ch
}

func (r *rig) attach(id string, offset uint64, noFollow bool) *connect.ServerStreamForClient[hutchv1.ProcessEvent] {
	r.t.Helper()
	s, err := r.process.Attach(testContext(r.t), connect.NewRequest(&hutchv1.AttachRequest{Id: id, Offset: offset, NoFollow: noFollow}))
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// until reads events until cond holds of the output so far.
func until(t *testing.T, s *connect.ServerStreamForClient[hutchv1.ProcessEvent], want string) string {
	t.Helper()
	var got strings.Builder
	for !strings.Contains(got.String(), want) {
		if !s.Receive() {
			t.Fatalf("the stream ended (%v) before %q, after %q", s.Err(), want, got.String())
		}
		got.Write(s.Msg().GetOutput().GetData())
	}
	return got.String()
}

// Two readers of one command, of which one does nothing until the other has
// waited for it, both get every byte of both streams.
func TestStalledReaderLosesNothing(t *testing.T) {
	// Much more than what is under way when a reader stalls: 1 MiB of log, 4 MiB
	// of HTTP/2's window, and sockets.
	const size = 16 << 20
	r := newRig(t, Config{})
	path := r.dir + "/random"
	data := make([]byte, size)
	rand.New(rand.NewSource(1)).Read(data)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	want := sha256.Sum256(data)
	s := r.start(testContext(t), &hutchv1.StartRequest{
		Id: "both", Args: argv("sh", "-c", "cat random & cat random >&2; wait"), Readers: 2,
	})
	stalled := r.attach("both", 0, false)
	if !stalled.Receive() {
		t.Fatal(stalled.Err())
	}
	fast := collectAsync(s)
	// The log is at its limit, and stays there.
	x, err := r.agent.execs.get("both")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command waits for the stalled reader", func() bool {
		x.log.mu.Lock()
		defer x.log.mu.Unlock()
		return x.log.waiting
	})
	// Meanwhile others are not slowed.
	if o := r.sh("echo quick"); string(o.out) != "quick\n" {
		t.Errorf("another command: %q", o.out)
	}
	var o outcome
	for stalled.Receive() {
		switch ev := stalled.Msg().GetEvent().(type) {
		case *hutchv1.ProcessEvent_Output:
			if ev.Output.GetStream() == hutchv1.Stream_STREAM_STDERR {
				o.err = append(o.err, ev.Output.GetData()...)
			} else {
				o.out = append(o.out, ev.Output.GetData()...)
			}
		case *hutchv1.ProcessEvent_Skipped:
			t.Error("a stream that followed from the start was told of a gap")
		case *hutchv1.ProcessEvent_Exited:
			o.exit = ev.Exited
		}
	}
	stalled.Close()
	for name, o := range map[string]outcome{"stalled": o, "fast": <-fast} {
		if o.exit.GetCode() != 0 || o.exit.GetReason() != hutchv1.ExitReason_EXIT_REASON_EXITED {
			t.Errorf("%s: exit %v", name, o.exit)
		}
		if sha256.Sum256(o.out) != want || sha256.Sum256(o.err) != want {
			t.Errorf("%s: %d and %d bytes, want %d of each, and the same", name, len(o.out), len(o.err), size)
		}
	}
}

// Characters written one byte at a time arrive as they are.
func TestBytesOneByOne(t *testing.T) {
	r := newRig(t, Config{})
	text := strings.Repeat("€𝄞", 3000)
	if err := os.WriteFile(r.dir+"/text", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	o := r.sh("dd if=text bs=1 2>/dev/null; dd if=text bs=1 >&2 2>/dev/null")
	if string(o.out) != text || string(o.err) != text {
		t.Errorf("%d and %d bytes, want %d", len(o.out), len(o.err), len(text))
	}
}

// A consumer that never reads does not slow the others.
func TestNeverReadingConsumer(t *testing.T) {
	r := newRig(t, Config{})
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	for range 5 {
		s := r.start(ctx, &hutchv1.StartRequest{Args: argv("sh", "-c", "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done")})
		defer s.Close()
		defer cancel()
	}
	for range 20 {
		if o := r.sh("echo still"); string(o.out) != "still\n" {
			t.Fatalf("output %q", o.out)
		}
	}
}

func TestParallel(t *testing.T) {
	r := newRig(t, Config{})
	for range 3 {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				o, err := r.tryRun(&hutchv1.StartRequest{Args: argv("sh", "-c", fmt.Sprintf("echo out%d; echo err%d >&2; exit %d", i, i, i))})
				if err != nil || string(o.out) != fmt.Sprintf("out%d\n", i) || string(o.err) != fmt.Sprintf("err%d\n", i) || o.exit.GetCode() != int32(i) {
					t.Errorf("command %d: %q, %q, %v, %v", i, o.out, o.err, o.exit, err)
				}
			})
		}
		wg.Wait()
	}
}

// alive counts processes by a unique argument, so that tests may run at once.
func alive(t *testing.T, arg string) int {
	t.Helper()
	n := 0
	for _, pid := range listPids() {
		cmd, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !slices.Contains(strings.Split(string(cmd), "\x00"), arg) {
			continue
		}
		if p, ok := readProc(pid); ok && p.state != 'Z' {
			n++
		}
	}
	return n
}

func unique() string { return fmt.Sprintf("3600.%d", time.Now().UnixNano()%1e9) }

func TestTimeoutKillsTree(t *testing.T) {
	r := newRig(t, Config{})
	arg := unique()
	script := fmt.Sprintf(`trap "" TERM; sleep %s & setsid sleep %s & (setsid sh -c 'sleep %s & sleep %s' &) ; sleep %s`, arg, arg, arg, arg, arg)
	start := time.Now()
	o := r.run(&hutchv1.StartRequest{Args: argv("sh", "-c", script), Timeout: durationpb.New(300 * time.Millisecond)})
	if o.exit.GetReason() != hutchv1.ExitReason_EXIT_REASON_TIMEOUT || o.exit.GetSignal() != 9 {
		t.Errorf("exit %v", o.exit)
	}
	if d := time.Since(start); d < 300*time.Millisecond {
		t.Errorf("ended after %v, before its time", d)
	}
	if n := alive(t, arg); n != 0 {
		t.Errorf("%d sleeps are left", n)
	}
	// TERM is tried first, and reported as it came out.
	o = r.run(&hutchv1.StartRequest{Args: argv("sh", "-c", "trap 'echo cleanup; exit 9' TERM; sleep 60 & wait"), Timeout: durationpb.New(200 * time.Millisecond)})
	if string(o.out) != "cleanup\n" || o.exit.GetCode() != 9 || o.exit.GetReason() != hutchv1.ExitReason_EXIT_REASON_TIMEOUT {
		t.Errorf("polite end: %q, %v", o.out, o.exit)
	}
	// Time that is not used does no harm.
	o = r.run(&hutchv1.StartRequest{Args: argv("true"), Timeout: durationpb.New(time.Hour)})
	if o.exit.GetReason() != hutchv1.ExitReason_EXIT_REASON_EXITED {
		t.Errorf("exit %v", o.exit)
	}
}

func TestOwnerGone(t *testing.T) {
	r := newRig(t, Config{})
	arg := unique()
	ctx, cancel := context.WithCancel(testContext(t))
	s := r.start(ctx, &hutchv1.StartRequest{Id: "owned", Args: argv("sh", "-c", fmt.Sprintf(`trap "" TERM HUP; setsid sleep %s & echo up; sleep %s`, arg, arg))})
	until(t, s, "up")
	follower := collectAsync(r.attach("owned", 0, false))
	cancel()
	s.Close()
	o := <-follower
	if o.exit.GetReason() != hutchv1.ExitReason_EXIT_REASON_CANCELED || o.exit.GetSignal() != 9 {
		t.Errorf("exit %v %s", o.exit, o.err)
	}
	if n := alive(t, arg); n != 0 {
		t.Errorf("%d processes are left", n)
	}

	// A follower's end means nothing.
	s = r.start(testContext(t), &hutchv1.StartRequest{Id: "followed", Args: argv("sh", "-c", "echo up; read x; echo got $x"), Stdin: true})
	until(t, s, "up")
	f := r.attach("followed", 0, false)
	f.Receive()
	f.Close()
	if _, err := r.process.WriteInput(testContext(t), connect.NewRequest(&hutchv1.WriteInputRequest{Id: "followed", Data: []byte("line\n")})); err != nil {
		t.Fatal(err)
	}
	if got := until(t, s, "got line"); got == "" {
		t.Error("the command died with its follower")
	}
	s.Close()
}

func TestDetach(t *testing.T) {
	r := newRig(t, Config{})
	ctx, cancel := context.WithCancel(testContext(t))
	s := r.start(ctx, &hutchv1.StartRequest{Id: "job", Args: argv("sh", "-c", "echo one; read x; echo two; exit 3"), Stdin: true, Detach: true})
	until(t, s, "one")
	cancel()
	s.Close()
	f := r.attach("job", 0, false)
	until(t, f, "one")
	if _, err := r.process.WriteInput(testContext(t), connect.NewRequest(&hutchv1.WriteInputRequest{Id: "job", Data: []byte("\n"), Eof: true})); err != nil {
		t.Fatal(err)
	}
	until(t, f, "two")
	f.Close()
	// A late attach gets it all, and the status.
	o, err := collect(r.attach("job", 0, false))
	if err != nil || string(o.out) != "one\ntwo\n" || o.exit.GetCode() != 3 || o.skipped != 0 {
		t.Errorf("late attach: %q, %v, %v", o.out, o.exit, err)
	}
	o, err = collect(r.attach("job", 4, true))
	if err != nil || string(o.out) != "two\n" || o.exit.GetCode() != 3 {
		t.Errorf("attach at 4: %q, %v, %v", o.out, o.exit, err)
	}
	res, err := r.process.List(testContext(t), connect.NewRequest(&hutchv1.ListProcessesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	p := res.Msg.GetProcesses()[0]
	if p.GetId() != "job" || !p.GetDetached() || p.GetRunning() || p.GetExited().GetCode() != 3 || p.GetOutputBytes() != 8 || p.GetEnded() == nil {
		t.Errorf("list: %v", p)
	}
}

// With no reader a command runs on, and the oldest output is lost; a late
// reader is told how much.
func TestReplayIsBounded(t *testing.T) {
	r := newRig(t, Config{})
	s := r.start(testContext(t), &hutchv1.StartRequest{Id: "loud", Args: argv("sh", "-c", "read x; head -c 3000000 /dev/zero | tr '\\0' a; echo end"), Stdin: true, Detach: true})
	s.Receive()
	s.Close()
	x, err := r.agent.execs.get("loud")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the owner is gone", func() bool {
		x.log.mu.Lock()
		defer x.log.mu.Unlock()
		return len(x.log.readers) == 0
	})
	if _, err := r.process.WriteInput(testContext(t), connect.NewRequest(&hutchv1.WriteInputRequest{Id: "loud", Eof: true})); err != nil {
		t.Fatal(err)
	}
	<-x.done
	o, err := collect(r.attach("loud", 0, false))
	if err != nil {
		t.Fatal(err)
	}
	if len(o.out) != logMax || o.skipped != 3000004-logMax || !strings.HasSuffix(string(o.out), "aend\n") {
		t.Errorf("%d bytes and %d skipped, want %d and %d", len(o.out), o.skipped, logMax, 3000004-logMax)
	}
	o, err = collect(r.attach("loud", 3000000, false))
	if err != nil || string(o.out) != "end\n" || o.skipped != 0 {
		t.Errorf("at the end: %q, %d skipped, %v", o.out, o.skipped, err)
	}
	f := r.attach("loud", 99999999, false)
	f.Receive()
	wantKind(t, f.Err(), box.Invalid)
	f.Close()
	f = r.attach("nosuch", 0, false)
	f.Receive()
	wantKind(t, f.Err(), box.NotFound)
	f.Close()
}

func TestNoFollow(t *testing.T) {
	r := newRig(t, Config{})
	s := r.start(testContext(t), &hutchv1.StartRequest{Id: "running", Args: argv("sh", "-c", "echo sofar; read x"), Stdin: true})
	defer s.Close()
	until(t, s, "sofar")
	o, err := collect(r.attach("running", 0, true))
	if err != nil || string(o.out) != "sofar\n" || o.exit != nil {
		t.Errorf("%q, %v, %v", o.out, o.exit, err)
	}
}

// A command waits for the number of readers it was started with.
func TestReaders(t *testing.T) {
	r := newRig(t, Config{})
	s := r.start(testContext(t), &hutchv1.StartRequest{Id: "three", Args: argv("sh", "-c", "cat; echo done"), Readers: 3, Stdin: true})
	if !s.Receive() || s.Msg().GetStarted().GetPid() != 0 {
		t.Fatalf("first event: %v %v", s.Msg(), s.Err())
	}
	// Input may come before the start.
	if _, err := r.process.WriteInput(testContext(t), connect.NewRequest(&hutchv1.WriteInputRequest{Id: "three", Data: []byte("early "), Eof: true})); err != nil {
		t.Fatal(err)
	}
	second := collectAsync(r.attach("three", 0, false))
	third := collectAsync(r.attach("three", 0, false))
	until(t, s, "early done\n")
	for _, o := range []outcome{<-second, <-third} {
		if string(o.out) != "early done\n" || o.exit.GetCode() != 0 {
			t.Errorf("%q %s %v", o.out, o.err, o.exit)
		}
	}
	s.Close()

	// Who gives up before the start leaves nothing.
	ctx, cancel := context.WithCancel(testContext(t))
	s = r.start(ctx, &hutchv1.StartRequest{Id: "never", Args: argv("touch", "ran"), Readers: 2, Detach: true})
	s.Receive()
	cancel()
	s.Close()
	// Until the agent has noticed, a second reader would make the start complete.
	eventually(t, "the command is given up", func() bool {
		x, err := r.agent.execs.get("never")
		if err != nil {
			return true
		}
		select {
		case <-x.started: // or never to be started
			return true
		default:
			return false
		}
	})
	f := r.attach("never", 0, false)
	for f.Receive() {
	}
	if k := box.KindOf(wire.Decode(f.Err())); k != box.Canceled && k != box.NotFound {
		t.Errorf("attach to a command given up: %v", f.Err())
	}
	f.Close()
	if _, err := os.Stat(r.dir + "/ran"); err == nil {
		t.Error("the command ran")
	}
}

func TestKnownID(t *testing.T) {
	r := newRig(t, Config{})
	if o := r.run(&hutchv1.StartRequest{Id: "same", Args: argv("true")}); o.id != "same" {
		t.Errorf("id %q", o.id)
	}
	_, err := r.tryRun(&hutchv1.StartRequest{Id: "same", Args: argv("true")})
	wantKind(t, err, box.Exists)
	a, b := r.sh("true"), r.sh("true")
	if len(a.id) != 32 || a.id == b.id {
		t.Errorf("chosen ids %q and %q", a.id, b.id)
	}
}

func TestInput(t *testing.T) {
	r := newRig(t, Config{})
	ctx := testContext(t)
	put := func(id string, offset uint64, data string, eof bool) (uint64, error) {
		res, err := r.process.WriteInput(ctx, connect.NewRequest(&hutchv1.WriteInputRequest{Id: id, Offset: offset, Data: []byte(data), Eof: eof}))
		if err != nil {
			return 0, err
		}
		return res.Msg.GetOffset(), nil
	}
	s := r.start(ctx, &hutchv1.StartRequest{Id: "cat", Args: argv("cat"), Stdin: true})
	out := collectAsync(s)
	eventually(t, "cat runs", func() bool { _, err := r.agent.execs.get("cat"); return err == nil })
	for _, step := range []struct {
		offset uint64
		data   string
		want   uint64
	}{
		{0, "hello ", 6},
		{0, "hello ", 6},       // repeated whole
		{2, "llo world\n", 12}, // repeated in part
		{12, "", 12},
	} {
		if got, err := put("cat", step.offset, step.data, false); err != nil || got != step.want {
			t.Errorf("input %q at %d: %d, %v", step.data, step.offset, got, err)
		}
	}
	_, err := put("cat", 100, "gap", false)
	wantKind(t, err, box.Invalid)
	if got, err := put("cat", 12, "\xff\x00end", true); err != nil || got != 17 {
		t.Errorf("last input: %d, %v", got, err)
	}
	if got, err := put("cat", 12, "\xff\x00end", true); err != nil || got != 17 {
		t.Errorf("last input again: %d, %v", got, err)
	}
	_, err = put("cat", 17, "more", false)
	wantKind(t, err, box.Conflict)
	if o := <-out; string(o.out) != "hello world\n\xff\x00end" || o.exit.GetCode() != 0 {
		t.Errorf("output %q, %v", o.out, o.exit)
	}
	_, err = put("cat", 17, "more", false)
	wantKind(t, err, box.Conflict)
	_, err = put("nosuch", 0, "x", false)
	wantKind(t, err, box.NotFound)
	r.run(&hutchv1.StartRequest{Id: "deaf", Args: argv("true")})
	_, err = put("deaf", 0, "x", false)
	wantKind(t, err, box.Conflict)

	// To its end, wherever that is; a repeated call cannot be told from the next.
	s = r.start(ctx, &hutchv1.StartRequest{Id: "append", Args: argv("cat"), Stdin: true})
	out = collectAsync(s)
	eventually(t, "cat runs", func() bool { _, err := r.agent.execs.get("append"); return err == nil })
	appendInput := func(offset uint64, data string, eof bool) (uint64, error) {
		res, err := r.process.WriteInput(ctx, connect.NewRequest(&hutchv1.WriteInputRequest{
			Id: "append", Append: true, Offset: offset, Data: []byte(data), Eof: eof,
		}))
		if err != nil {
			return 0, err
		}
		return res.Msg.GetOffset(), nil
	}
	for i := range uint64(2) {
		if got, err := appendInput(0, "twice ", false); err != nil || got != 6*(i+1) {
			t.Errorf("appended input: %d, %v", got, err)
		}
	}
	_, err = appendInput(6, "x", false)
	wantKind(t, err, box.Invalid)
	if got, err := appendInput(0, "", true); err != nil || got != 12 {
		t.Errorf("end of appended input: %d, %v", got, err)
	}
	if o := <-out; string(o.out) != "twice twice " {
		t.Errorf("appended: output %q", o.out)
	}

	// Without stdin it is /dev/null, not what the agent has.
	if o := r.sh("readlink /proc/self/fd/0; cat"); string(o.out) != "/dev/null\n" {
		t.Errorf("standard input: %q", o.out)
	}

	// Who does not read blocks the writer, and only until its time is up.
	s = r.start(ctx, &hutchv1.StartRequest{Id: "asleep", Args: argv("sleep", "60"), Stdin: true})
	s.Receive()
	big := strings.Repeat("x", 1<<20)
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	_, err = r.process.WriteInput(short, connect.NewRequest(&hutchv1.WriteInputRequest{Id: "asleep", Data: []byte(big)}))
	cancel()
	wantKind(t, err, box.Timeout)
	if o := r.sh("echo ok"); string(o.out) != "ok\n" {
		t.Errorf("meanwhile: %q", o.out)
	}
	s.Close()
	// What was taken is counted, so that the caller can go on.
	s = r.start(ctx, &hutchv1.StartRequest{Id: "slow", Args: argv("sh", "-c", "sleep 0.5; sha256sum"), Stdin: true})
	o := collectAsync(s)
	eventually(t, "slow is known", func() bool { _, err := r.agent.execs.get("slow"); return err == nil })
	short, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
	_, err = r.process.WriteInput(short, connect.NewRequest(&hutchv1.WriteInputRequest{Id: "slow", Data: []byte(big)}))
	cancel()
	wantKind(t, err, box.Timeout)
	if got, err := put("slow", 0, big, true); err != nil || got != 1<<20 {
		t.Errorf("input again: %d, %v", got, err)
	}
	if got, want := string((<-o).out), fmt.Sprintf("%x  -\n", sha256.Sum256([]byte(big))); got != want {
		t.Errorf("sum %q, want %q", got, want)
	}
}

func TestEnvironment(t *testing.T) {
	r := newRig(t, Config{Env: argv("FROM_IMAGE=image", "PATH=/usr/bin:/bin", "LAYER=image", "RAW=\xff\n\"'", "LAYER=spec")})
	env := func(req *hutchv1.StartRequest) []string {
		req.Args = argv("/usr/bin/env", "-0")
		return strings.Split(strings.TrimSuffix(string(r.run(req).out), "\x00"), "\x00")
	}
	host, _ := os.Hostname()
	got := env(&hutchv1.StartRequest{Env: argv("LAYER=request", "EMPTY=", "NEW=a=b", "LAYER=last")})
	slices.Sort(got)
	want := []string{"EMPTY=", "FROM_IMAGE=image", "HOME=/root", "HOSTNAME=" + host, "LAYER=last", "NEW=a=b", "PATH=/usr/bin:/bin", "RAW=\xff\n\"'"}
	if os.Geteuid() == 0 {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("environment (-want +got):\n%s", diff)
		}
	}
	if got := env(&hutchv1.StartRequest{ClearEnv: true, Env: argv("ONLY=this")}); !slices.Equal(got, []string{"ONLY=this"}) {
		t.Errorf("cleared environment: %q", got)
	}
	if got := env(&hutchv1.StartRequest{Tty: true}); !slices.Contains(got, "TERM=xterm") {
		t.Errorf("no TERM on a terminal: %q", got)
	}
	// A thousand variables of 200 KiB in all.
	var many [][]byte
	for i := range 1000 {
		many = append(many, fmt.Appendf(nil, "VAR_%d=%d\n'\"%s", i, i, strings.Repeat("é", 95)))
	}
	got = env(&hutchv1.StartRequest{ClearEnv: true, Env: many})
	for i, kv := range many {
		if i >= len(got) || got[i] != string(kv) {
			t.Fatalf("variable %d of %d: differs", i, len(got))
		}
	}
	if len(got) != 1000 {
		t.Errorf("%d variables", len(got))
	}
	_, err := r.tryRun(&hutchv1.StartRequest{Args: argv("true", strings.Repeat("x", 1<<20))})
	wantKind(t, err, box.Invalid)

	// The command is looked up in its own PATH, relative to its directory.
	if err := os.MkdirAll(r.dir+"/sub/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.dir+"/sub/bin/mine", []byte("#!/bin/sh\necho mine in $PWD\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	o := r.run(&hutchv1.StartRequest{Args: argv("mine"), Env: argv("PATH=bin"), Dir: []byte("sub")})
	if string(o.out) != "mine in "+r.dir+"/sub\n" {
		t.Errorf("relative PATH: %q %v", o.out, o.exit)
	}
}

func TestBackgroundJobHoldsPipe(t *testing.T) {
	r := newRig(t, Config{})
	arg := unique()
	start := time.Now()
	o := r.run(&hutchv1.StartRequest{Id: "parent", Args: argv("sh", "-c", fmt.Sprintf("echo before; (sleep %s; echo never) & exit 6", arg))})
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
	if string(o.out) != "before\n" || o.exit.GetCode() != 6 || o.exit.GetReason() != hutchv1.ExitReason_EXIT_REASON_EXITED {
		t.Errorf("%q %v", o.out, o.exit)
	}
	if n := alive(t, arg); n != 1 {
		t.Errorf("%d background jobs, want 1", n)
	}
	// It can still be ended, and writing to the pipe does not end it.
	if _, err := r.process.Signal(testContext(t), connect.NewRequest(&hutchv1.SignalRequest{Id: "parent", Signal: 15, Tree: true})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the job is gone", func() bool { return alive(t, arg) == 0 })
	_, err := r.process.Signal(testContext(t), connect.NewRequest(&hutchv1.SignalRequest{Id: "parent", Signal: 15}))
	wantKind(t, err, box.Conflict)
}

func TestSignal(t *testing.T) {
	r := newRig(t, Config{})
	ctx := testContext(t)
	signal := func(id string, sig int32, tree bool) error {
		_, err := r.process.Signal(ctx, connect.NewRequest(&hutchv1.SignalRequest{Id: id, Signal: sig, Tree: tree}))
		return err
	}
	s := r.start(ctx, &hutchv1.StartRequest{Id: "trap", Args: argv("sh", "-c", "trap 'echo usr1; exit 4' USR1; echo up; while :; do sleep 0.05; done")})
	until(t, s, "up")
	if err := signal("trap", int32(syscall.SIGUSR1), false); err != nil {
		t.Fatal(err)
	}
	until(t, s, "usr1")
	if o, err := collectRest(s); err != nil || o.GetCode() != 4 {
		t.Errorf("exit %v, %v", o, err)
	}
	for _, tt := range []struct {
		tree   bool
		reason hutchv1.ExitReason
	}{{false, hutchv1.ExitReason_EXIT_REASON_EXITED}, {true, hutchv1.ExitReason_EXIT_REASON_CANCELED}} {
		id := fmt.Sprintf("kill-%t", tt.tree)
		s := r.start(ctx, &hutchv1.StartRequest{Id: id, Args: argv("sleep", "60")})
		s.Receive()
		if err := signal(id, 9, tt.tree); err != nil {
			t.Fatal(err)
		}
		if e, err := collectRest(s); err != nil || e.GetCode() != 137 || e.GetReason() != tt.reason {
			t.Errorf("killed (tree %t): %v, %v", tt.tree, e, err)
		}
	}
	wantKind(t, signal("trap", 0, false), box.Invalid)
	wantKind(t, signal("trap", 65, false), box.Invalid)
	wantKind(t, signal("nosuch", 15, false), box.NotFound)
}

// collectRest reads a stream from the middle to its exit.
func collectRest(s *connect.ServerStreamForClient[hutchv1.ProcessEvent]) (*hutchv1.Exited, error) {
	defer s.Close()
	for s.Receive() {
		if e := s.Msg().GetExited(); e != nil {
			return e, nil
		}
	}
	return nil, s.Err()
}

func TestTerminal(t *testing.T) {
	r := newRig(t, Config{})
	ctx := testContext(t)
	var at uint64
	s := r.start(ctx, &hutchv1.StartRequest{Id: "tty", Args: argv("sh", "-i"), Env: argv("PS1=$ ", "ENV="), Tty: true, Rows: 40, Cols: 100})
	typed := func(text string) {
		t.Helper()
		res, err := r.process.WriteInput(ctx, connect.NewRequest(&hutchv1.WriteInputRequest{Id: "tty", Offset: at, Data: []byte(text)}))
		if err != nil {
			t.Fatal(err)
		}
		at = res.Msg.GetOffset()
	}
	until(t, s, "$ ")
	typed("stty size\n")
	until(t, s, "40 100")
	if _, err := r.process.Resize(ctx, connect.NewRequest(&hutchv1.ResizeRequest{Id: "tty", Rows: 50, Cols: 120})); err != nil {
		t.Fatal(err)
	}
	typed("stty size\n")
	until(t, s, "50 120")
	// Ctrl-C reaches the foreground job, not the shell.
	typed("sleep 100\n")
	until(t, s, "sleep 100")
	eventually(t, "sleep is in the foreground", func() bool {
		x, err := r.agent.execs.get("tty")
		if err != nil {
			return false
		}
		g, shell, _ := x.live()
		for _, pid := range g.pids() {
			if p, ok := readProc(pid); ok && pid != shell && p.comm == "sleep" && p.pgrp == pid {
				return true
			}
		}
		return false
	})
	typed("\x03")
	typed("echo rc=$?\n")
	until(t, s, "rc=130")
	// Job control: stop, continue in the background, bring back.
	typed("sleep 101\n")
	until(t, s, "sleep 101")
	eventually(t, "sleep runs", func() bool { return alive(t, "101") > 0 })
	typed("\x1a")
	until(t, s, "topped")
	typed("bg; jobs\n")
	until(t, s, "unning")
	typed("kill %1; wait; echo a$((1+1))b\n")
	until(t, s, "a2b")
	typed("exit 5\n")
	if e, err := collectRest(s); err != nil || e.GetCode() != 5 {
		t.Errorf("exit %v, %v", e, err)
	}
	_, err := r.process.Resize(ctx, connect.NewRequest(&hutchv1.ResizeRequest{Id: "tty", Rows: 0, Cols: 0}))
	wantKind(t, err, box.Invalid)

	// The end of input is Ctrl-D.
	s = r.start(ctx, &hutchv1.StartRequest{Id: "cat-tty", Args: argv("sh", "-c", "stty -echo; echo up; cat"), Tty: true})
	until(t, s, "up")
	if _, err := r.process.WriteInput(ctx, connect.NewRequest(&hutchv1.WriteInputRequest{Id: "cat-tty", Data: []byte("bye\n"), Eof: true})); err != nil {
		t.Fatal(err)
	}
	until(t, s, "bye")
	if e, err := collectRest(s); err != nil || e.GetCode() != 0 {
		t.Errorf("exit %v, %v", e, err)
	}

	// Who waits to write to a terminal that nobody reads is told when the
	// command has ended, though another process has the terminal open.
	s = r.start(ctx, &hutchv1.StartRequest{Id: "full", Args: argv("sh", "-c", "stty raw -echo; setsid sleep 60 & echo up; exec sleep 61"), Tty: true})
	until(t, s, "up")
	wrote := make(chan error, 1)
	go func() {
		_, err := r.process.WriteInput(ctx, connect.NewRequest(&hutchv1.WriteInputRequest{Id: "full", Data: bytes.Repeat([]byte("x"), 1<<20)}))
		wrote <- err
	}()
	x, err := r.agent.execs.get("full")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the input is under way", func() bool { return len(x.input.turn) == 0 })
	if _, err := r.process.Signal(ctx, connect.NewRequest(&hutchv1.SignalRequest{Id: "full", Signal: 9})); err != nil {
		t.Fatal(err)
	}
	wantKind(t, <-wrote, box.Conflict)
	s.Close()

	// Hangup when the owner goes.
	arg := unique()
	octx, cancel := context.WithCancel(ctx)
	s = r.start(octx, &hutchv1.StartRequest{Id: "hup", Args: argv("sh", "-c", "sleep "+arg), Tty: true})
	s.Receive()
	eventually(t, "it runs", func() bool { return alive(t, arg) > 0 })
	cancel()
	s.Close()
	eventually(t, "it is gone", func() bool { return alive(t, arg) == 0 })
	r.run(&hutchv1.StartRequest{Id: "plain", Args: argv("true")})
	_, err = r.process.Resize(ctx, connect.NewRequest(&hutchv1.ResizeRequest{Id: "plain", Rows: 1, Cols: 1}))
	wantKind(t, err, box.Conflict)
}

// Much output and an early end: a terminal loses nothing either.
func TestTerminalOutputIsWhole(t *testing.T) {
	r := newRig(t, Config{})
	for range 5 {
		o := r.run(&hutchv1.StartRequest{Args: argv("sh", "-c", "seq 1 20000"), Tty: true})
		lines := strings.Split(strings.TrimSuffix(string(o.out), "\r\n"), "\r\n")
		if len(lines) != 20000 || lines[19999] != "20000" {
			t.Fatalf("%d lines, the last %q", len(lines), lines[len(lines)-1])
		}
	}
}

func TestShutdown(t *testing.T) {
	r := newRig(t, Config{})
	arg := unique()
	s := r.start(testContext(t), &hutchv1.StartRequest{Args: argv("sh", "-c", "trap 'echo bye; exit 2' TERM; echo up; sleep "+arg+" & wait")})
	stubborn := r.start(testContext(t), &hutchv1.StartRequest{Args: argv("sh", "-c", "trap '' TERM; echo up; sleep "+arg+"; sleep "+arg)})
	until(t, s, "up")
	until(t, stubborn, "up")
	if _, err := r.system.Shutdown(testContext(t), connect.NewRequest(&hutchv1.ShutdownRequest{GraceMsec: 300})); err != nil {
		t.Fatal(err)
	}
	// The box may be gone from here on: everybody has been told.
	if r.agent.telling() {
		t.Error("a stream was not told of its command's end")
	}
	until(t, s, "bye")
	if e, err := collectRest(s); err != nil || e.GetCode() != 2 {
		t.Errorf("exit %v, %v", e, err)
	}
	if e, err := collectRest(stubborn); err != nil || e.GetCode() != 137 {
		t.Errorf("exit %v, %v", e, err)
	}
	if n := alive(t, arg); n != 0 {
		t.Errorf("%d processes are left", n)
	}
	_, err := r.tryRun(&hutchv1.StartRequest{Args: argv("true")})
	wantKind(t, err, box.Unavailable)
}

func TestStatsAndTop(t *testing.T) {
	r := newRig(t, Config{})
	s := r.start(testContext(t), &hutchv1.StartRequest{Id: "seen", Args: argv("sh", "-c", "echo up; sleep 60 & wait")})
	defer s.Close()
	until(t, s, "up")
	st, err := r.system.Stats(testContext(t), connect.NewRequest(&hutchv1.SystemStatsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	m := st.Msg
	if m.GetExecs() != 1 || m.GetProcesses() < 2 || m.GetMemoryTotal() == 0 || m.GetMemoryUsed() == 0 || m.GetMemoryUsed() > m.GetMemoryTotal() ||
		m.GetDiskTotal() == 0 || m.GetDiskUsed() > m.GetDiskTotal() || m.GetUptimeUsec() == 0 {
		t.Errorf("stats: %v", m)
	}
	eventually(t, "both processes show", func() bool {
		res, err := r.system.Top(testContext(t), connect.NewRequest(&hutchv1.TopRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, p := range res.Msg.GetProcesses() {
			if p.GetExecId() == "seen" {
				n++
			}
		}
		return n == 2
	})
}
