package test

import (
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// growth notes when a hog last said how much it has.
type growth struct {
	at   time.Time
	last string
}

func (g *growth) Write(p []byte) (int, error) {
	if lines := strings.Fields(string(p)); len(lines) > 0 {
		g.at, g.last = time.Now(), lines[len(lines)-1]
	}
	return len(p), nil
}

// A command that eats all memory dies and is reported so; the box and the host
// go on.
func TestMemoryLimit(t *testing.T) {
	everyEngine(t, func(t *testing.T, h *home) {
		free := available(t)
		b := h.box(t, box.Spec{Name: "b", Memory: 256 << 20, Volumes: []box.Volume{guest(t)}})
		bystander := b.Command(t.Context(), "sleep", "600")
		if err := bystander.Start(); err != nil {
			t.Fatal(err)
		}
		var grew growth
		hog := b.Command(t.Context(), "/guest", "eat", "4096")
		hog.Stderr = &grew
		start := time.Now()
		err := hog.Run()
		var exit *box.ExitError
		if !errors.As(err, &exit) || !exit.OutOfMemory || exit.Reason != box.OutOfMemory || !errors.Is(err, box.ErrExhausted) {
			t.Errorf("the hog: %v; want out of memory", err)
		}
		t.Logf("the hog was reported dead %v after it last grew, to %s MiB, and %v after its start", time.Since(grew.at), grew.last, time.Since(start))
		if used := free - available(t); used > 1<<30 {
			t.Errorf("the host lost %d MiB to a box of 256", used>>20)
		}
		if got := sh(t, b, "echo alive"); got != "alive" {
			t.Errorf("the box says %q", got)
		}
		if n := running(t, b, "sleep 600"); n != 1 {
			t.Errorf("%d of the innocent commands are left, want 1", n)
		}
		_ = bystander.Kill()
		_ = bystander.Wait()
		// What fits, fits.
		cmd := b.Command(t.Context(), "/guest", "eat", "100")
		cmd.Timeout = 20 * time.Second
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 8)
		if n, err := out.Read(line); err != nil || string(line[:n]) != "ate 100\n" {
			t.Errorf("eating less than the limit: %q, %v", line[:n], err)
		}
		_ = cmd.Kill()
		_ = out.Close()
		_ = cmd.Wait()
		// The command says so in words.
		if r := h.hutch(t, "exec", "b", "/guest", "eat", "4096"); r.code != 137 || !strings.Contains(r.stderr, "memory") {
			t.Errorf("exec: got %v; want 137 and the reason", r)
		}
		if r := h.hutch(t, "run", "--name", "hog", "-m", "128m", "-v", guestProgram(t)+":/guest:ro", "--", "/guest", "eat", "4096"); r.code != 137 || !strings.Contains(r.stderr, "memory") {
			t.Errorf("run: got %v; want 137 and the reason", r)
		}
		var infos []box.Info
		if err := json.Unmarshal([]byte(h.ok(t, "inspect", "hog")), &infos); err != nil {
			t.Fatal(err)
		}
		if info := infos[0]; info.Exit == nil || info.Exit.Reason != box.OutOfMemory || info.Limits.Memory.By == "" || info.Limits.Memory.Value != 128<<20 {
			t.Errorf("inspect says %+v, limit %+v", info.Exit, info.Limits.Memory)
		}
	})
}

// available is the host's free memory in bytes.
func available(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); f[0] == "MemAvailable:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("no MemAvailable")
	return 0
}

// A full disk is ENOSPC in the box, which goes on. Where nothing can bound a
// disk, asking for it is refused with the reason.
func TestDiskLimit(t *testing.T) {
	everyEngine(t, func(t *testing.T, h *home) {
		args := []string{"create", "--name", "b", "--idle", "--disk", "64m", "-v", guestProgram(t) + ":/guest:ro"}
		if !root() {
			r := h.hutch(t, args...)
			if r.code != 125 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "root") || !strings.Contains(strings.ToLower(r.stderr), "disk") {
				t.Errorf("--disk of an ordinary user: got %v; want 125 and one line that says why", r)
			}
			if out := h.ok(t, "ps", "-aq"); out != "" {
				t.Errorf("the refused box is there: %s", out)
			}
			return
		}
		h.ok(t, args...)
		for range 2 {
			out := h.ok(t, "exec", "b", "/guest", "fill", "/root/full")
			what, size, _ := strings.Cut(out, " ")
			n, _ := strconv.ParseInt(size, 10, 64)
			if what != "ENOSPC" || n < 32<<20 || n > 64<<20 {
				t.Errorf("filling a disk of 64 MiB: %q", out)
			}
			rt := h.open(t)
			b, err := rt.Get(t.Context(), "b")
			if err != nil {
				t.Fatal(err)
			}
			if err := b.WriteFile(t.Context(), "/root/more", make([]byte, 1<<20), 0o644); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("WriteFile on a full disk: %v", err)
			}
			if got := sh(t, b, "echo alive; cat /etc/passwd | head -1 | cut -c1-4"); got != "alive\nroot" {
				t.Errorf("the box says %q", got)
			}
			// It stops and boots with the disk full, and space comes back.
			h.ok(t, "stop", "b")
			h.ok(t, "exec", "b", "rm", "/root/full")
			h.ok(t, "exec", "b", "sh", "-c", "echo x > /root/small && sync")
		}
		var infos []box.Info
		if err := json.Unmarshal([]byte(h.ok(t, "inspect", "b")), &infos); err != nil {
			t.Fatal(err)
		}
		if l := infos[0].Limits.Disk; l.By == "" || l.Value != 64<<20 {
			t.Errorf("inspect says of the disk %+v", l)
		}
	})
}

// A fork bomb meets the limit of processes; the box still answers, and is rid
// of it at a word.
func TestForkBomb(t *testing.T) {
	everyEngine(t, func(t *testing.T, h *home) {
		b := h.box(t, box.Spec{Name: "b", Pids: 100, Volumes: []box.Volume{guest(t)}})
		bomb := b.Command(t.Context(), "/guest", "bomb")
		out, err := bomb.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := bomb.Start(); err != nil {
			t.Fatal(err)
		}
		said := make([]byte, 200)
		n := 0
		for !strings.Contains(string(said[:n]), "refused") && n < len(said) {
			m, err := out.Read(said[n:])
			if err != nil {
				t.Fatalf("the bomb said %q, %v", said[:n], err)
			}
			n += m
		}
		// The box answers, in files at once and in commands by its agent's
		// own means.
		if _, err := b.ReadDir(t.Context(), "/"); err != nil {
			t.Errorf("the box does not list a folder: %v", err)
		}
		if n := running(t, b, "bomb"); n < 2 || n > 100 {
			t.Errorf("%d processes of the bomb run; the limit is 100", n)
		}
		if err := bomb.Kill(); err != nil {
			t.Errorf("kill the bomb: %v", err)
		}
		_ = out.Close()
		_ = bomb.Wait()
		if n := running(t, b, "bomb"); n != 0 {
			t.Errorf("%d processes of the bomb are left", n)
		}
		if got := sh(t, b, "echo alive"); got != "alive" {
			t.Errorf("the box says %q", got)
		}
		info, err := b.Info(t.Context())
		if err != nil || info.Limits.Pids.Value != 100 || info.Limits.Pids.By == "" {
			t.Errorf("Info says of processes %+v, %v", info.Limits.Pids, err)
		}
		if root() {
			if data, err := os.ReadFile("/proc/loadavg"); err == nil {
				t.Logf("load of the host: %s", data)
			}
		}
	})
}

// A CPU limit holds and is told; where it cannot hold, it is refused.
func TestCPULimit(t *testing.T) {
	everyEngine(t, func(t *testing.T, h *home) {
		rt := h.open(t)
		b, err := rt.Create(t.Context(), box.Spec{CPUs: 0.5})
		if err != nil {
			if root() || !errors.Is(err, box.ErrUnsupported) || box.HintOf(err) == "" {
				t.Fatalf("half a CPU: %v", err)
			}
			t.Logf("refused: %v", err)
			return
		}
		if err := b.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		info, err := b.Info(t.Context())
		if err != nil || info.Limits.CPUs.Value != 0.5 || info.Limits.CPUs.By == "" {
			t.Errorf("Info says of CPUs %+v, %v", info.Limits.CPUs, err)
		}
		// Two busy loops over a span get no more than the half, with room for
		// the way it is counted: more than a whole CPU would be no limit.
		before, err := b.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		cmd := b.Shell(t.Context(), "while true; do :; done & while true; do :; done")
		cmd.Timeout = 2 * time.Second
		if err := cmd.Run(); !errors.Is(err, box.ErrTimeout) {
			t.Errorf("busy loops: %v", err)
		}
		after, err := b.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if used, span := after.CPU-before.CPU, time.Since(start); used > span*9/10 {
			t.Errorf("a box with half a CPU used %v in %v", used, span)
		}
	})
}
