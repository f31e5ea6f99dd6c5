package helper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

// The test program is also the helper that the tests start.
func TestMain(m *testing.M) {
	if mode := Dispatch(os.Args); mode != "" {
		os.Exit(beHelper())
	}
	os.Exit(m.Run())
}

// task is the request of a test's helper.
type task struct {
	Do  string // what it does; see beHelper
	Arg string
}

// surroundings is what a helper finds.
type surroundings struct {
	Pid, Uid int
	Dir      string
	Env      []string
	Files    []string // what is open beyond the answer's descriptor
	Arg      string
}

func beHelper() int {
	var do task
	if err := Request(&do); err != nil {
		_ = Respond(nil, err)
		return 1
	}
	switch do.Do {
	case "look":
		s := surroundings{Pid: os.Getpid(), Uid: os.Getuid(), Env: os.Environ(), Arg: do.Arg}
		s.Dir, _ = os.Getwd()
		for fd := answerFD + 1; fd < 64; fd++ {
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
				s.Files = append(s.Files, strconv.Itoa(fd))
			}
		}
		if err := Respond(s, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	case "refuse":
		err := &box.Error{Kind: box.Exhausted, Op: "mount", Object: "/disk", Err: errors.New("it is full"), Hint: "make room"}
		_ = Respond(nil, fmt.Errorf("boot: %w", err))
		return 1
	case "die":
		fmt.Fprintln(os.Stderr, do.Arg)
		return 3
	case "stay":
		CloseOnExec()
		child := exec.Command("sleep", do.Arg)
		child.SysProcAttr = &unix.SysProcAttr{Setsid: true}
		err := child.Start()
		_ = Respond(nil, err)
		_ = child.Wait()
	case "mute":
		time.Sleep(time.Hour)
	}
	return 0
}

// start starts this program as a helper.
func start(t *testing.T, ctx context.Context, mode Mode, do task, answer any) (*Process, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(ctx, mode, Options{Path: self, Request: do, Answer: answer})
	if errors.Is(err, unix.EPERM) {
		t.Skipf("no namespaces here: %v", err)
	}
	return p, err
}

// running counts processes with an argument.
func running(t *testing.T, arg string) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && slices.Contains(strings.Split(string(data), "\x00"), arg) {
			n++
		}
	}
	return n
}

// A helper is alone: the first process of its namespace, with none of this
// program's environment and open files.
func TestSurroundings(t *testing.T) {
	t.Setenv("HUTCH_TEST_CANARY", "secret")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	leak, err := unix.Dup(int(w.Fd())) // open in every child, as a careless library leaves it
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	for _, mode := range []Mode{Keeper, Unpack, Probe} {
		var got surroundings
		arg := "ü \x00 \n"
		p, err := start(t, t.Context(), mode, task{Do: "look", Arg: arg}, &got)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
		want := surroundings{Pid: 1, Dir: "/", Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Arg: arg}
		got.Env = slices.DeleteFunc(got.Env, func(kv string) bool {
			return strings.HasPrefix(kv, "HUTCH_DEBUG=") || strings.HasPrefix(kv, "GOCOVERDIR=")
		})
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got)\n%s", mode, d)
		}
	}
}

// What a helper refuses arrives with kind, object and hint; one that dies is
// described by what it said.
func TestFailures(t *testing.T) {
	_, err := start(t, t.Context(), Unpack, task{Do: "refuse"}, nil)
	var e *box.Error
	if !errors.As(err, &e) || e.Kind != box.Exhausted || e.Hint != "make room" || !strings.Contains(err.Error(), "boot: mount /disk: it is full") {
		t.Errorf("refused: %v", err)
	}
	_, err = start(t, t.Context(), Unpack, task{Do: "die", Arg: "no such luck"}, nil)
	if box.KindOf(err) != box.Internal || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("died: %v", err)
	}
	_, err = Start(t.Context(), Probe, Options{Path: filepath.Join(t.TempDir(), "missing")})
	if box.KindOf(err) != box.Unsupported {
		t.Errorf("missing program: %v", err)
	}
}

// The end of the context ends the start, and the helper with it.
func TestStartCanceled(t *testing.T) {
	arg := "3600." + strconv.Itoa(os.Getpid())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := start(t, ctx, Keeper, task{Do: "mute", Arg: arg}, nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

// With a helper ends everything that it started.
func TestKillTakesAll(t *testing.T) {
	arg := "3601." + strconv.Itoa(os.Getpid())
	p, err := start(t, t.Context(), Keeper, task{Do: "stay", Arg: arg}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := running(t, arg); n != 1 {
		t.Errorf("%d children run, want one", n)
	}
	if p.Pid() <= 1 {
		t.Errorf("process id %d", p.Pid())
	}
	p.Kill()
	if n := running(t, arg); n != 0 {
		t.Errorf("%d children run after the kill", n)
	}
	if err := p.Wait(); err == nil {
		t.Error("a killed helper ended well")
	}
}

// A helper of another version says so, whatever it is asked.
func TestOtherProtocol(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := &exec.Cmd{Path: self, Args: []string{string(Probe), "0"}, Stdin: strings.NewReader(`{"what":["ever"]}`), ExtraFiles: []*os.File{w}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	err = readAnswer(t.Context(), r, nil)
	_ = cmd.Wait()
	if box.KindOf(err) != box.Unsupported || box.HintOf(err) == "" {
		t.Errorf("error %v", err)
	}
}

func TestDispatchOfOthers(t *testing.T) {
	for _, args := range [][]string{nil, {"hutch"}, {"/usr/bin/hutch-keeper"}, {"hutch", "hutch-keeper"}} {
		if mode := Dispatch(args); mode != "" {
			t.Errorf("%q is taken for mode %s", args, mode)
		}
	}
}

func TestErrorOverJSON(t *testing.T) {
	inner := &box.Error{Kind: box.NotFound, Op: "open", Object: "/f", Err: errors.New("gone"), Hint: "look elsewhere"}
	for _, tc := range []struct {
		in   error
		kind box.Kind
		says string
	}{
		{errors.New("plain"), box.Internal, "plain"},
		{os.ErrNotExist, box.NotFound, "file does not exist"},
		{inner, box.NotFound, "open /f: gone; look elsewhere"},
		{fmt.Errorf("boot: %w", inner), box.NotFound, "boot: open /f: gone; look elsewhere"},
		{&box.Error{Kind: box.Conflict, Op: "start", Object: "b"}, box.Conflict, "start b: conflict"},
	} {
		data, err := json.Marshal(newError(tc.in))
		if err != nil {
			t.Fatal(err)
		}
		var e Error
		if err := json.Unmarshal(data, &e); err != nil {
			t.Fatal(err)
		}
		if out := e.box(); box.KindOf(out) != tc.kind || strings.TrimPrefix(out.Error(), ": ") != tc.says {
			t.Errorf("%v became %v of kind %s", tc.in, out, box.KindOf(out))
		}
	}
}

func TestSubRange(t *testing.T) {
	uid := strconv.Itoa(os.Geteuid())
	for _, tc := range []struct {
		text         string
		start, count int
	}{
		{"", 0, 0},
		{"other:100000:65536\n", 0, 0},
		{"me:100000:65536\n", 100000, 65536},
		{uid + ":200000:65536\n", 200000, 65536},
		{"me:1000:10\nme:300000:65536\nme:5:5\n", 300000, 65536}, // the largest
		{"me:x:65536\nme:1\n\nme:1:2:3\n#me:1:99999\n  me:7:8  \n", 7, 8},
	} {
		file := filepath.Join(t.TempDir(), "subuid")
		if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if start, count := subRange(file, "me"); start != tc.start || count != tc.count {
			t.Errorf("%q: %d, %d; want %d, %d", tc.text, start, count, tc.start, tc.count)
		}
	}
	if _, count := subRange(filepath.Join(t.TempDir(), "missing"), "me"); count != 0 {
		t.Errorf("a missing file has %d ids", count)
	}
}

func TestTailBuffer(t *testing.T) {
	var b tailBuffer
	var all bytes.Buffer
	for i := range 5000 {
		fmt.Fprintf(&b, "line %d\n", i)
		fmt.Fprintf(&all, "line %d\n", i)
	}
	if got := b.String(); len(got) != 8<<10 || !strings.HasSuffix(all.String(), got) {
		t.Errorf("%d bytes are kept; want the last 8 KiB", len(got))
	}
}
