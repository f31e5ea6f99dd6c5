package cli

import (
	"context"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

func openPTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Skipf("this machine has no pseudo terminals: %v", err)
	}
	t.Cleanup(func() { _ = master.Close(); _ = slave.Close() })
	return master, slave
}

func mode(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

// screen is a hutch that runs on a terminal.
type screen struct {
	t             *testing.T
	world         *scriptWorld
	master, slave *os.File
	before        unix.Termios
	done          <-chan int
	shown         safeBuffer
	signals       chan os.Signal // to the process
	resized       chan os.Signal
}

func onTerminal(t *testing.T, world *scriptWorld, args ...string) *screen {
	t.Helper()
	master, slave := openPTY(t)
	s := &screen{t: t, world: world, master: master, slave: slave, before: mode(t, slave),
		signals: make(chan os.Signal, 16), resized: make(chan os.Signal, 1)}
	if err := pty.Setsize(master, &pty.Winsize{Rows: 33, Cols: 101}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			_, _ = s.shown.Write(buf[:n])
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		_ = slave.Close()
		_ = master.Close()
		wg.Wait()
	})
	s.done = finishes(t, App{
		Args: args, Dir: "/", Stdin: slave, Stdout: slave, Stderr: slave,
		Open: func(context.Context, OpenOptions) (*box.Runtime, error) {
			return box.New(&recordingDriver{Driver: world.fake.Another(), rec: world.rec}), nil
		},
		Notify: func(sigs ...os.Signal) (<-chan os.Signal, func()) {
			if len(sigs) == 1 && sigs[0] == syscall.SIGWINCH {
				return s.resized, func() {}
			}
			return s.signals, func() {}
		},
	})
	return s
}

func (s *screen) await(what string) {
	s.t.Helper()
	poll(s.t.Fatalf, what+" on the screen", func() bool { return strings.Contains(s.shown.String(), what) })
}

// awaitCall waits for a call of the driver.
func (s *screen) awaitCall(what string) {
	s.t.Helper()
	var all []string
	poll(func(format string, args ...any) {
		s.t.Fatalf(format+"; the calls are %q", append(args, all)...)
	}, what, func() bool {
		all = append(all, s.world.rec.take()...)
		for _, c := range all {
			if strings.HasPrefix(c, what) {
				return true
			}
		}
		return false
	})
}

func (s *screen) awaitRaw() {
	s.t.Helper()
	poll(s.t.Fatalf, "raw mode", func() bool { return mode(s.t, s.slave) != s.before })
}

func (s *screen) typeIn(keys string) {
	s.t.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// ends waits for the end and checks that the terminal is as it was.
func (s *screen) ends(code int) {
	s.t.Helper()
	want(s.t, s.done, code)
	if mode(s.t, s.slave) != s.before {
		s.t.Error("the terminal was not given back as it was")
	}
}

func (s *screen) state(name string) box.State {
	info, err := s.world.fake.Get(context.Background(), name)
	if err != nil {
		return box.Removed
	}
	return info.State
}

func newTestWorld(t *testing.T) *scriptWorld {
	w := newWorld()
	t.Cleanup(w.close)
	return w
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	s := onTerminal(t, newTestWorld(t), "run", "-it", "--rm", "--", "sh", "-c", "echo ready; read x; echo got $x; exit 4")
	s.await("ready")
	s.awaitRaw()
	// The size at first, and after a change.
	s.awaitCall("resize 33 101")
	if err := pty.Setsize(s.master, &pty.Winsize{Rows: 40, Cols: 90}); err != nil {
		t.Fatal(err)
	}
	s.resized <- syscall.SIGWINCH
	s.awaitCall("resize 40 90")
	s.typeIn("hello\n")
	s.await("got hello")
	s.ends(4)
	if got := s.state("fake-1"); got != box.Removed {
		t.Errorf("the box is %s", got)
	}
}

func TestCtrlCIsAKeyOnATerminal(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t)
	s := onTerminal(t, w, "run", "-it", "--name", "b", "--", "sh", "-c", "trap 'echo caught; exit 9' INT; echo ready; while true; do sleep 0.01; done")
	s.await("ready")
	s.awaitRaw()
	s.typeIn("\x03")
	// It is the terminal in the box that makes a signal of it.
	s.await("caught")
	s.ends(9)
	for _, c := range w.rec.take() {
		if strings.HasPrefix(c, "signal") {
			t.Errorf("the key became a call: %s", c)
		}
	}
}

func TestDetachKeysLeaveTheBoxRunning(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t)
	s := onTerminal(t, w, "run", "-it", "--name", "b", "--", "sh", "-c", "echo ready; read x; echo got $x")
	s.await("ready")
	s.awaitRaw()
	s.typeIn("a\x10\x11")
	s.ends(0)
	if got := s.state("b"); got != box.Running {
		t.Fatalf("the box is %s", got)
	}
	// Joined again, with keys of its own.
	s = onTerminal(t, w, "attach", "--detach-keys", "ctrl-x,z", "b")
	s.awaitRaw()
	s.typeIn("\x10\x18z")
	s.ends(0)
	s = onTerminal(t, w, "attach", "b")
	s.awaitRaw()
	s.typeIn("b\n")
	s.await("got a\x10b")
	s.ends(0)
}

func TestDetachKeysLeaveAnExecRunning(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t)
	app := App{Args: []string{"create", "--name", "b", "--idle"}, Open: func(context.Context, OpenOptions) (*box.Runtime, error) {
		return box.New(w.fake.Another()), nil
	}}
	if code := Main(t.Context(), app); code != 0 {
		t.Fatal(code)
	}
	s := onTerminal(t, w, "exec", "-it", "b", "sh", "-c", "echo ready; read x; echo got $x; exit 3")
	s.await("ready")
	s.awaitRaw()
	s.typeIn("\x10\x11")
	s.ends(0)
	s = onTerminal(t, w, "attach", "b", "exec1")
	s.await("ready")
	s.awaitRaw()
	s.typeIn("y\n")
	s.await("got y")
	s.ends(3)

	// Without detach keys the command ends with its client.
	s = onTerminal(t, w, "exec", "-it", "--detach-keys=", "b", "sh", "-c", "echo ready; sleep 60")
	s.await("ready")
	s.awaitRaw()
	w.fake.Crash(boxID(t, w, "b"))
	s.ends(ExitHutch)
}

func boxID(t *testing.T, w *scriptWorld, name string) string {
	t.Helper()
	info, err := w.fake.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return info.ID
}

// TestTerminalIsGivenBack however it ends.
func TestTerminalIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		do   func(s *screen)
		code int
	}{
		"signal":       {func(s *screen) { s.signals <- syscall.SIGTERM }, 143},
		"hangup":       {func(s *screen) { s.signals <- syscall.SIGHUP }, 129},
		"the box dies": {func(s *screen) { s.world.fake.Crash(boxID(t, s.world, "b")) }, ExitHutch},
		"third Ctrl-C": {func(s *screen) { s.signals <- syscall.SIGINT; s.signals <- syscall.SIGINT; s.signals <- syscall.SIGINT }, 1},
		"time limit":   {func(s *screen) {}, ExitTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"run", "-it", "--name", "b"}
			script := "echo ready; sleep 60"
			if name == "third Ctrl-C" {
				script = "trap '' INT; " + script
			}
			if name == "time limit" {
				args = append(args, "--timeout", "300ms")
			}
			s := onTerminal(t, newTestWorld(t), append(args, "--", "sh", "-c", script)...)
			s.await("ready")
			if name != "time limit" {
				s.awaitRaw()
			}
			end.do(s)
			s.ends(end.code)
		})
	}
}

func TestProgressBars(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t)
	s := onTerminal(t, w, "pull", "python:3")
	s.ends(0)
	s.await("MiB")
	s.await("sha256:")
	s = onTerminal(t, w, "pull", "--no-progress", "alpine")
	s.ends(0)
	s.await("sha256:")
	if strings.Contains(s.shown.String(), "MiB") {
		t.Errorf("progress in spite of --no-progress: %q", s.shown.String())
	}
}

func TestPruneAsks(t *testing.T) {
	t.Parallel()
	for answer, call := range map[string]string{"y\n": "prune false", "n\n": "", "\n": ""} {
		w := newTestWorld(t)
		s := onTerminal(t, w, "image", "prune")
		s.await("Go on? [y/N]")
		s.typeIn(answer)
		s.ends(0)
		if got := strings.Join(w.rec.take(), " "); !strings.HasSuffix(got, call) || call == "" && strings.Contains(got, "prune") {
			t.Errorf("after %q the calls are %q", answer, got)
		}
	}
}

// TestTerminalsAreNoFiles: archives do not go to or come from a terminal.
func TestTerminalsAreNoFiles(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"image save x", "image load", "image import - x", "cp - b:/x", "cp b:/x -"} {
		s := onTerminal(t, newTestWorld(t), strings.Fields(args)...)
		s.ends(ExitUsage)
		s.await("is a terminal; ")
	}
}

func TestStatsReplaceThemselves(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t)
	s := onTerminal(t, w, "stats")
	s.await("\x1b[H\x1b[2J")
	s.await("MEM USAGE")
	s.signals <- syscall.SIGINT
	s.ends(130)
}
