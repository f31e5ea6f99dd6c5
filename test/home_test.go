package test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/local"
	"github.com/hutch-sandbox/hutch/internal/helper"
)

// home is a short-lived home. When its test ends, everything of it must have
// been, or be, removable without a trace.
type home struct {
	dir    string
	engine string          // of the boxes that the helpers below make; empty: auto
	ids    map[string]bool // boxes it ever had, as far as the test looked
}

func newHome(t *testing.T) *home {
	t.Helper()
	dir, err := os.MkdirTemp("", "hutch-home-")
	if err != nil {
		t.Fatal(err)
	}
	h := &home{dir: dir, ids: map[string]bool{}}
	t.Cleanup(func() { h.checkRemoved(t) })
	return h
}

// open opens the home as a program of its own would.
func (h *home) open(t testing.TB) *box.Runtime {
	t.Helper()
	rt, err := local.Open(context.Background(), local.Config{Home: h.dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return rt
}

// box makes a box and boots it.
func (h *home) box(t testing.TB, spec box.Spec) *box.Box {
	t.Helper()
	b := h.create(t, h.open(t), spec)
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// create makes a box, on the home's engine.
func (h *home) create(t testing.TB, rt *box.Runtime, spec box.Spec) *box.Box {
	t.Helper()
	spec.Engine = cmp.Or(spec.Engine, h.engine)
	var files []box.Volume
	if spec.Engine == "vm" {
		// A virtual machine with volumes boots its kernel itself, which takes
		// seconds: what need not be a volume is copied into the box.
		spec.Volumes = slices.DeleteFunc(slices.Clone(spec.Volumes), func(v box.Volume) bool {
			copied := v.Target == guestTarget || v.Target == caTarget
			if copied {
				files = append(files, v)
			}
			return copied
		})
	}
	b, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range files {
		data, err := os.ReadFile(v.Host)
		if err == nil {
			err = b.WriteFile(t.Context(), v.Target, data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// guestTarget is where boxes have the guest program, caTarget where those on the
// test's internet have its authority.
const guestTarget, caTarget = "/guest", "/test-ca.crt"

// guest is a volume with the guest program, at /guest.
func guest(t testing.TB) box.Volume {
	return box.Volume{Host: guestProgram(t), Target: guestTarget, ReadOnly: true}
}

// sh runs a script that must succeed and returns its output.
func sh(t testing.TB, b *box.Box, script string) string {
	t.Helper()
	res, err := b.Shell(t.Context(), script).Result()
	if err != nil {
		t.Fatalf("%q: %v", script, err)
	}
	if !res.Success() {
		t.Fatalf("%q: %v\n%s%s", script, res.ExitStatus, res.Stdout, res.Stderr)
	}
	return strings.TrimRight(string(res.Stdout), "\n")
}

// result is how a hutch command ended.
type result struct {
	stdout, stderr string
	code           int
}

func (r result) String() string {
	return fmt.Sprintf("status %d, standard output %q, standard error %q", r.code, ends(r.stdout), ends(r.stderr))
}

// ends is the beginning and the end of what may be long: an error comes last.
func ends(s string) string {
	const most = 1000
	if len(s) <= 2*most {
		return s
	}
	return s[:most] + " […] " + s[len(s)-most:]
}

// command prepares a hutch command on this home. Boxes that it makes are on the
// home's engine.
func (h *home) command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	bin, err := hutchProgram()
	if err != nil {
		required(t, "%v", err)
	}
	if h.engine != "" && (args[0] == "run" || args[0] == "create") {
		args = slices.Insert(slices.Clone(args), 1, "--engine", h.engine)
	}
	cmd := exec.CommandContext(t.Context(), bin, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "HUTCH_HOME=" + h.dir}
	if os.Getenv("TMPDIR") != "" {
		cmd.Env = append(cmd.Env, "TMPDIR="+os.Getenv("TMPDIR"))
	}
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// hutch runs a hutch command.
func (h *home) hutch(t testing.TB, args ...string) result {
	t.Helper()
	r := finish(t, h.command(t, args...))
	if h.engine != "" {
		// Said once by each command that makes a box where nothing speeds it up.
		if line, rest, ok := strings.Cut(r.stderr, "\n"); ok && strings.HasPrefix(line, "warning: no hardware virtualization") {
			r.stderr = rest
		}
	}
	return r
}

// finish runs a command that was prepared.
func finish(t testing.TB, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("hutch: %v\n%s", err, stderr.Bytes())
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// ok runs a hutch command that must succeed and returns its output.
func (h *home) ok(t testing.TB, args ...string) string {
	t.Helper()
	r := h.hutch(t, args...)
	if r.code != 0 {
		t.Fatalf("hutch %q: %v", args, r)
	}
	return strings.TrimRight(r.stdout, "\n")
}

// remember notes the boxes of the home, to look for traces of them later.
func (h *home) remember(t testing.TB) {
	entries, err := os.ReadDir(filepath.Join(h.dir, "boxes"))
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	for _, e := range entries {
		h.ids[e.Name()] = true
	}
}

// checkRemoved removes all boxes and then the home, and fails when something
// of it is left.
func (h *home) checkRemoved(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	h.remember(t)
	rt, err := local.Open(ctx, local.Config{Home: h.dir})
	if err != nil {
		t.Error(err)
		return
	}
	infos, err := rt.List(ctx, box.ListOptions{})
	if err != nil {
		t.Error(err)
	}
	if t.Failed() {
		h.explain(t, infos)
	}
	for _, info := range infos {
		if err := rt.Remove(ctx, info.ID, true); err != nil {
			t.Errorf("remove %s: %v", info.Name, err)
		}
	}
	if err := rt.Close(); err != nil {
		t.Error(err)
	}
	h.checkNoTraces(t)
	for _, dir := range []string{"boxes", "names", "tmp"} {
		entries, err := os.ReadDir(filepath.Join(h.dir, dir))
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			t.Errorf("left behind: %s", filepath.Join(dir, e.Name()))
		}
	}
	// Files of an ordinary user's boxes belong to ids that only his helper has.
	path, err := helper.Find("")
	if err == nil {
		var p *helper.Process
		if p, err = helper.Start(ctx, helper.Unpack, helper.Options{Path: path,
			Request: helper.UnpackRequest{Remove: h.dir}, Answer: &helper.UnpackAnswer{}}); err == nil {
			err = p.Wait()
		}
	}
	if err != nil {
		t.Errorf("remove the home: %v", err)
	}
}

// explain prints what a failed test's boxes said last.
func (h *home) explain(t *testing.T, infos []box.Info) {
	for _, info := range infos {
		// One that is about to stop has a reason in a moment.
		eventually(5*time.Second, func() bool {
			rt, err := local.Open(context.Background(), local.Config{Home: h.dir})
			if err != nil {
				return true
			}
			defer rt.Close()
			if b, err := rt.Get(context.Background(), info.ID); err == nil {
				info, _ = b.Info(context.Background())
			}
			return info.State != box.Stopping
		})
		t.Logf("box %s is %s: %s", info.ID, info.State, info.Reason)
		for _, name := range []string{"keeper.log", "console.log"} {
			data, err := os.ReadFile(filepath.Join(h.dir, "boxes", info.ID, name))
			for _, word := range []string{"panic:", "fatal error:"} {
				if at := bytes.Index(data, []byte(word)); at >= 0 {
					data = data[:min(at+2000, len(data))]
				}
			}
			if err == nil && len(data) > 0 {
				t.Logf("%s of %s:\n%s", name, info.ID, data[max(0, len(data)-2000):])
			}
		}
	}
}

// checkNoTraces fails when a process, a mount, a loop device, a control group
// or a socket of the home is there although no box runs.
func (h *home) checkNoTraces(t testing.TB) {
	t.Helper()
	// The kernel frees mounts and loop devices on its own time.
	var found []string
	if !eventually(10*time.Second, func() bool {
		found = h.traces()
		return len(found) == 0
	}) {
		for _, what := range found {
			t.Errorf("left behind: %s", what)
		}
	}
}

func (h *home) traces() []string {
	var found []string
	ours := func(s string) bool {
		if strings.Contains(s, h.dir) {
			return true
		}
		for id := range h.ids {
			if strings.Contains(s, id) {
				return true
			}
		}
		return false
	}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		if filepath.Base(p) == strconv.Itoa(os.Getpid()) || filepath.Base(p) == strconv.Itoa(os.Getppid()) {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join(p, "cmdline"))
		if err != nil {
			continue
		}
		words := strings.ReplaceAll(string(cmdline), "\x00", " ")
		if ours(words) {
			found = append(found, "process "+p+" "+words)
			continue
		}
		// A keeper's arguments do not name its box; its mounts do.
		if mounts, err := os.ReadFile(filepath.Join(p, "mountinfo")); err == nil && ours(string(mounts)) {
			found = append(found, "mounts of process "+p+" "+words)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/hutch*/*", "/sys/fs/cgroup/*/hutch*/*", "/sys/fs/cgroup/*/*/hutch*/*"} {
		groups, _ := filepath.Glob(pattern)
		for _, g := range groups {
			if ours(g) {
				found = append(found, "control group "+g)
			}
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range loops {
		if data, err := os.ReadFile(l); err == nil && ours(string(data)) {
			found = append(found, "loop device "+l)
		}
	}
	if data, err := os.ReadFile("/proc/self/mountinfo"); err == nil && ours(string(data)) {
		found = append(found, "a mount in this namespace")
	}
	if data, err := os.ReadFile("/proc/net/unix"); err == nil {
		for line := range strings.Lines(string(data)) {
			if ours(line) {
				found = append(found, "socket "+strings.TrimSpace(line))
			}
		}
	}
	for id := range h.ids {
		for _, name := range []string{"keeper.sock", "run"} {
			path := filepath.Join(h.dir, "boxes", id, name)
			if _, err := os.Lstat(path); err == nil {
				found = append(found, path)
			}
		}
	}
	return found
}

// eventually polls until ok or the time is over.
func eventually(limit time.Duration, ok func() bool) bool {
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(5 * time.Millisecond)
	}
	return true
}

// running counts the processes in the box whose command line has the part.
func running(t testing.TB, b *box.Box, part string) int {
	t.Helper()
	procs, err := b.Top(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, p := range procs {
		if strings.Contains(p.Command, part) && p.State != "Z" {
			n++
		}
	}
	return n
}

// stream checks that what is written to it is what guest's job "both" writes
// to stream i, without keeping it.
type stream struct {
	want io.Reader
	n    int64
	err  error
}

func newStream(seed string, i byte) *stream {
	var key [32]byte
	copy(key[:], seed)
	key[31] = i
	return &stream{want: rand.NewChaCha8(key)}
}

func (s *stream) Write(p []byte) (int, error) {
	if s.err != nil {
		return len(p), nil
	}
	want := make([]byte, len(p))
	if _, err := io.ReadFull(s.want, want); err != nil {
		return 0, err
	}
	if !bytes.Equal(p, want) {
		at := 0
		for p[at] == want[at] {
			at++
		}
		s.err = fmt.Errorf("byte %d is wrong", s.n+int64(at))
	}
	s.n += int64(len(p))
	return len(p), nil
}

func (s *stream) check(t testing.TB, what string, size int64) {
	t.Helper()
	if s.err != nil {
		t.Errorf("%s: %v", what, s.err)
	}
	if s.n != size {
		t.Errorf("%s: got %d bytes, want %d", what, s.n, size)
	}
}

// root reports whether the test runs as root.
func root() bool { return os.Geteuid() == 0 }
