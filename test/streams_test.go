package test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

// Standard output and error stay apart, and hutch ends as the command did.
func TestCLIStatus(t *testing.T) {
	everyEngine(t, func(t *testing.T, h *home) {
		if got, want := h.hutch(t, "run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"), (result{"out\n", "err\n", 7}); got != want {
			t.Errorf("run: got %v; want %v", got, want)
		}
		if got := h.hutch(t, "run", "--rm", "--", "nosuch"); got.code != 127 || got.stdout != "" || strings.Count(got.stderr, "\n") != 1 || !strings.Contains(got.stderr, "nosuch") {
			t.Errorf("a missing command: got %v; want status 127 and one line that names it", got)
		}
		if got := h.hutch(t, "run", "--rm", "--", "/etc/passwd"); got.code != 126 || got.stdout != "" {
			t.Errorf("a command that is not executable: got %v; want status 126", got)
		}
		if got := h.hutch(t, "run", "--rm", "--", "sh", "-c", "kill -9 $$"); got.code != 137 || got.stdout != "" {
			t.Errorf("a command that SIGKILL ends: got %v; want status 137", got)
		}
		h.ok(t, "run", "-d", "--name", "b", "--idle")
		for _, c := range []struct {
			script string
			want   result
		}{
			{"echo out; echo err >&2; exit 7", result{"out\n", "err\n", 7}},
			{"kill -9 $$", result{"", "", 137}},
			{"kill -TERM $$", result{"", "", 143}},
			{"exit 255", result{"", "", 255}},
		} {
			if got := h.hutch(t, "exec", "b", "sh", "-c", c.script); got != c.want {
				t.Errorf("exec %q: got %v; want %v", c.script, got, c.want)
			}
		}
		if got := h.hutch(t, "exec", "b", "nosuch"); got.code != 127 {
			t.Errorf("exec of a missing command: got %v; want status 127", got)
		}
		cmd := h.command(t, "exec", "-i", "b", "cat")
		cmd.Stdin = strings.NewReader("through\x00it\xff")
		if got := finish(t, cmd); got != (result{"through\x00it\xff", "", 0}) {
			t.Errorf("exec -i cat: got %v", got)
		}
	})
}

// Bytes arrive as they were written, through the library and the command.
func TestBytes(t *testing.T) {
	const size = 64 << 20
	everyEngine(t, func(t *testing.T, h *home) {
		b := h.box(t, box.Spec{Name: "b", Volumes: []box.Volume{guest(t)}})
		if got := h.hutch(t, "exec", "b", "printf", `\377\000\376`); got.stdout != "\xff\x00\xfe" {
			t.Errorf("printf: got %v", got)
		}
		t.Run("library", func(t *testing.T) {
			seed := "library"
			cmd := b.Command(t.Context(), "/guest", "both", fmt.Sprint(size), seed)
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// Only one is read until it ends.
			for i, r := range []io.Reader{stdout, stderr} {
				s := newStream(seed, byte(i))
				if _, err := io.Copy(s, r); err != nil {
					t.Error(err)
				}
				s.check(t, fmt.Sprintf("stream %d", i+1), size)
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
		t.Run("command", func(t *testing.T) {
			seed := "command"
			cmd := h.command(t, "exec", "b", "/guest", "both", fmt.Sprint(size), seed)
			out, errs := newStream(seed, 0), newStream(seed, 1)
			// Nobody reads standard error until standard output has ended.
			ended := make(chan struct{})
			pipe, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				<-ended
				_, _ = io.Copy(errs, pipe)
			})
			_, _ = io.Copy(out, io.LimitReader(stdout, size))
			close(ended)
			wg.Wait()
			_, _ = io.Copy(out, stdout)
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			out.check(t, "standard output", size)
			errs.check(t, "standard error", size)
		})
		t.Run("byte by byte", func(t *testing.T) {
			const n = 1 << 20
			text := []byte("€😀")
			want := sha256.Sum256(bytes.Repeat(text, n/len(text)+1)[:n])
			r := h.hutch(t, "exec", "b", "/guest", "bytewise", fmt.Sprint(n))
			if sha256.Sum256([]byte(r.stdout)) != want || r.code != 0 {
				t.Errorf("got %d bytes that are wrong, status %d, %s", len(r.stdout), r.code, r.stderr)
			}
		})
	})
}

// Fifty commands at once in a box with one CPU do not disturb each other,
// and one reader that never reads does not slow them.
func TestFiftyAtOnce(t *testing.T) {
	t.Run("gvisor", func(t *testing.T) {
		realengine.Need(t, "gvisor")
		fiftyAtOnce(t, newHome(t), 20)
	})
	t.Run("vm", func(t *testing.T) {
		realengine.Need(t, "vm")
		h := vmHome(t)
		h.engine = "vm"
		fiftyAtOnce(t, h, 5)
	})
}

func fiftyAtOnce(t *testing.T, h *home, rounds int) {
	if testing.Short() {
		rounds = 3
	}
	spec := box.Spec{Volumes: []box.Volume{guest(t)}}
	if root() {
		spec.CPUs = 1 // an ordinary user cannot always have that
	}
	b := h.box(t, spec)
	stalled := b.Command(t.Context(), "/guest", "both", fmt.Sprint(16<<20), "x")
	reader, err := stalled.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stalled.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for round := range rounds {
		var wg sync.WaitGroup
		for n := range 50 {
			wg.Go(func() {
				cmd := b.Command(t.Context(), "sh", "-c", `read word; echo "$1 $word"; echo "e$1" >&2; exit "$1"`, "sh", fmt.Sprint(n))
				cmd.Stdin = strings.NewReader(fmt.Sprintf("word-%d-%d\n", round, n))
				res, err := cmd.Result()
				if want := fmt.Sprintf("%d word-%d-%d\n", n, round, n); err != nil || string(res.Stdout) != want || string(res.Stderr) != fmt.Sprintf("e%d\n", n) || res.Code != n {
					t.Errorf("round %d, command %d: got %q, %q, %v, %v", round, n, res.Stdout, res.Stderr, res.ExitStatus, err)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
	}
	// What it did not read is still there.
	if n, err := io.Copy(io.Discard, reader); err != nil || n != 16<<20-1 {
		t.Errorf("the reader that stalled got %d bytes more, %v", n, err)
	}
	if err := stalled.Wait(); err != nil {
		t.Error(err)
	}
}

// stubborn is a command that ignores TERM and leaves children in sessions of
// their own.
const stubborn = `trap "" TERM; sleep 300 & setsid sleep 300 & sleep 300`

// A timeout, and the caller's cancellation, end the whole tree, and the box
// goes on working.
func TestTreeKill(t *testing.T) {
	everyEngine(t, func(t *testing.T, h *home) {
		start := time.Now()
		if r := h.hutch(t, "run", "--timeout", "1s", "--", "sh", "-c", stubborn); r.code != 124 || r.stdout != "" {
			t.Errorf("run: got %v; want status 124", r)
		}
		if d := time.Since(start); d > 30*time.Second {
			t.Errorf("run --timeout 1s took %v", d)
		}
		b := h.box(t, box.Spec{Name: "b"})
		clean := func(what string) {
			t.Helper()
			if n := running(t, b, "sleep"); n != 0 {
				t.Errorf("%s: %d sleeps are left in the box", what, n)
			}
			if got := sh(t, b, "echo alive"); got != "alive" {
				t.Errorf("%s: the box says %q", what, got)
			}
		}
		if r := h.hutch(t, "exec", "--timeout", "1s", "b", "sh", "-c", stubborn); r.code != 124 {
			t.Errorf("exec: got %v; want status 124", r)
		}
		clean("exec --timeout")

		cmd := b.Shell(t.Context(), stubborn)
		cmd.Timeout = time.Second
		if err := cmd.Run(); !errors.Is(err, box.ErrTimeout) {
			t.Errorf("Timeout: got %v", err)
		}
		clean("Timeout")

		ctx, cancel := context.WithCancel(t.Context())
		cmd = b.Shell(ctx, stubborn)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if !eventually(20*time.Second, func() bool { return running(t, b, "sleep") >= 3 }) {
			t.Error("the sleeps did not start")
		}
		cancel()
		if err := cmd.Wait(); !errors.Is(err, box.ErrCanceled) {
			t.Errorf("cancel: got %v", err)
		}
		clean("cancel")

		// A command whose hutch is killed dies with it.
		client := h.command(t, "exec", "b", "sh", "-c", stubborn)
		if err := client.Start(); err != nil {
			t.Fatal(err)
		}
		if !eventually(20*time.Second, func() bool { return running(t, b, "sleep") >= 3 }) {
			t.Error("the sleeps did not start")
		}
		if err := client.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = client.Wait()
		if !eventually(20*time.Second, func() bool { return running(t, b, "sleep") == 0 }) {
			t.Error("the commands of a killed client go on")
		}
		clean("killed client")
	})
}
