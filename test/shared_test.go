package test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/local"
)

// programs are what this test program can be besides: other programs that use
// the home. The first argument of each is the home.
var programs = map[string]func(ctx context.Context, args []string) error{
	"program-use":   programUse,
	"program-crash": programCrash,
	"program-wait":  func(context.Context, []string) error { time.Sleep(time.Hour); return nil },
}

// other prepares another program on the same home.
func (h *home) other(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, append([]string{name, h.dir}, args...)...)
	cmd.Stderr = os.Stderr
	return cmd
}

// programUse HOME WHO SHARED uses a box of its own and a shared one, again and
// again, and says for each round what it saw. It ends with its input.
func programUse(ctx context.Context, args []string) error {
	rt, err := local.Open(ctx, local.Config{Home: args[0]})
	if err != nil {
		return err
	}
	defer rt.Close()
	who, shared := args[1], args[2]
	own, _, err := rt.GetOrCreate(ctx, box.Spec{Name: "own-" + who})
	if err != nil {
		return err
	}
	both, _, err := rt.GetOrCreate(ctx, box.Spec{Name: shared})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for n := range 10 {
		for _, b := range []*box.Box{own, both} {
			path := fmt.Sprintf("/root/%s-%d", who, n)
			if err := b.WriteFile(ctx, path, []byte(path), 0o644); err != nil {
				return err
			}
			out, err := b.Command(ctx, "cat", path).Output()
			if err != nil {
				return err
			}
			if string(out) != path {
				return fmt.Errorf("%s in %s has %q", path, b.Name(), out)
			}
		}
	}
	fmt.Println("done")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// Two programs and the command use their own boxes, and one box together, of
// one home at the same time. The shared box lives as long as anybody uses it.
func TestSharedHome(t *testing.T) {
	everyone(t, func(t *testing.T) {
		h := newHome(t)
		type program struct {
			cmd   *exec.Cmd
			stdin io.WriteCloser
			out   *bufio.Scanner
		}
		var ps []program
		for _, who := range []string{"one", "two"} {
			cmd := h.other(t, "program-use", who, "shared")
			stdin, err := cmd.StdinPipe()
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
			ps = append(ps, program{cmd, stdin, bufio.NewScanner(stdout)})
		}
		says := func(p program, want string) {
			t.Helper()
			if !p.out.Scan() || p.out.Text() != want {
				t.Fatalf("a program says %q, %v; want %q", p.out.Text(), p.out.Err(), want)
			}
		}
		for _, p := range ps {
			says(p, "ready")
		}
		var wg sync.WaitGroup
		for n := range 5 {
			wg.Go(func() {
				if out := h.ok(t, "exec", "shared", "sh", "-c", fmt.Sprintf("echo cli-%d > /root/cli-%d && cat /root/cli-%d", n, n, n)); out != fmt.Sprintf("cli-%d", n) {
					t.Errorf("the command in the shared box: %q", out)
				}
				if out := h.ok(t, "run", "--rm", "--", "sh", "-c", "ls /root; echo mine"); out != "mine" {
					t.Errorf("the command in its own box: %q", out)
				}
			})
		}
		wg.Wait()
		for _, p := range ps {
			says(p, "done")
		}
		// All see all in the shared box, and only their own in their own.
		if out := h.ok(t, "exec", "shared", "sh", "-c", "ls /root | wc -l"); strings.TrimSpace(out) != "25" {
			t.Errorf("the shared box has %s files, want 25", out)
		}
		if out := h.ok(t, "exec", "own-one", "sh", "-c", "ls /root | grep -vc one || true"); strings.TrimSpace(out) != "0" {
			t.Errorf("the first program's box has %s files of others", out)
		}

		rt := h.open(t)
		shared, err := rt.Get(t.Context(), "shared")
		if err != nil {
			t.Fatal(err)
		}
		state := func() box.State {
			info, err := shared.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return info.State
		}
		// One leaves; the other still uses it, and the box works.
		_ = ps[0].stdin.Close()
		if err := ps[0].cmd.Wait(); err != nil {
			t.Error(err)
		}
		if got := state(); got != box.Running {
			t.Errorf("the shared box is %s while a program uses it", got)
		}
		if out := h.ok(t, "exec", "shared", "cat", "/root/two-9"); out != "/root/two-9" {
			t.Errorf("the shared box says %q", out)
		}
		// The other is killed; nobody is left.
		if err := ps[1].cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = ps[1].cmd.Wait()
		for _, name := range []string{"shared", "own-two"} {
			b, err := rt.Get(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if got := state(); got != box.Stopped {
			t.Errorf("the shared box is %s when nobody uses it any more", got)
		}
	})
}

// Twenty boxes at once, each with one user, do not disturb each other.
func TestTwentyBoxes(t *testing.T) {
	everyone(t, func(t *testing.T) {
		n := 20
		if !root() {
			n = 5
		}
		rt := newHome(t).open(t)
		boxes := make([]*box.Box, n)
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				boxes[i], errs[i] = rt.Create(t.Context(), box.Spec{Memory: 128 << 20})
				if errs[i] == nil {
					errs[i] = boxes[i].WriteFile(t.Context(), "/tmp/number", fmt.Appendf(nil, "%d", i), 0o600)
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		// All of them run now.
		for i, b := range boxes {
			wg.Go(func() {
				res, err := b.Exec(t.Context(), "sh", "-c", "cat /tmp/number; hostname")
				if want := fmt.Sprintf("%d%s\n", i, b.Name()); err != nil || string(res.Stdout) != want {
					t.Errorf("box %d: got %q, %v; want %q", i, res.Stdout, err, want)
				}
			})
		}
		wg.Wait()
		m, err := rt.Metrics(t.Context())
		if err != nil || m.Running != n {
			t.Errorf("got %d running boxes, %v; want %d", m.Running, err, n)
		}
	})
}
