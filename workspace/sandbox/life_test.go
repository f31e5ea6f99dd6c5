package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxfake"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
)

// names lists the boxes that there are.
func names(t *testing.T, rt *box.Runtime) []string {
	t.Helper()
	infos, err := rt.List(context.Background(), box.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, info := range infos {
		all = append(all, info.Name)
	}
	slices.Sort(all)
	return all
}

// newRuntime returns boxes in memory.
func newRuntime(t *testing.T, cfg boxfake.Config) (*boxfake.Driver, *box.Runtime) {
	t.Helper()
	d := boxfake.New(cfg)
	rt := box.New(d)
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
		d.Quiesce()
	})
	return d, rt
}

// Ten runs at the same time on one provider, many rounds, each given up at a
// random moment: in the end the boxes there are, are exactly those whose refs
// somebody knows.
func TestNoBoxIsLost(t *testing.T) {
	const runs, rounds = 10, 20
	d, rt := newRuntime(t, boxfake.Config{})
	slow := slowDriver{d, func() time.Duration { return time.Duration(rand.IntN(12)) * time.Millisecond }}
	p := newProvider(t, box.New(slow), sandbox.Options{})

	var mu sync.Mutex
	known := map[string]workspace.Ref{}
	var finished, abandoned int
	for range rounds {
		var round sync.WaitGroup
		for range runs {
			round.Go(func() {
				ws := workspace.New(p.New())
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(25))*time.Millisecond)
				defer cancel()
				// Two tools of one run use the workspace at once.
				var tools sync.WaitGroup
				var failed atomic.Bool
				for _, name := range []string{"a", "b"} {
					tools.Go(func() {
						if err := ws.WriteText(ctx, name, name); err != nil {
							failed.Store(true)
							if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, workspace.ErrWorkspace) {
								t.Errorf("WriteText: %v", err)
							}
						}
					})
				}
				tools.Wait()
				ref, ok := ws.Ref()
				if !ok && !failed.Load() {
					t.Error("the run succeeded, and its workspace has no ref")
				}
				mu.Lock()
				defer mu.Unlock()
				if ok {
					known[ref.ID] = ref
				}
				if failed.Load() {
					abandoned++
				} else {
					finished++
				}
				if err := ws.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		round.Wait()
		want := make([]string, 0, len(known))
		for name := range known {
			want = append(want, name)
		}
		slices.Sort(want)
		if got := names(t, rt); !slices.Equal(got, want) {
			t.Fatalf("there are %d boxes, and %d are known:\n%s\n%s", len(got), len(want), got, want)
		}
	}
	t.Logf("%d runs finished and %d were given up; %d boxes are alive and known", finished, abandoned, len(known))
	if finished == 0 || abandoned == 0 {
		t.Errorf("the test shows nothing: %d finished, %d given up", finished, abandoned)
	}
	for _, ref := range known {
		if err := p.Destroy(context.Background(), ref); err != nil {
			t.Error(err)
		}
	}
	if left := names(t, rt); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A box that cannot be made leaves nothing, and does not spoil the backend.
func TestCreateFails(t *testing.T) {
	down := &box.Error{Kind: box.Exhausted, Op: "create", Err: errors.New("out of disk")}
	for _, op := range []string{"create", "boot", "realpath"} {
		t.Run(op, func(t *testing.T) {
			var broken atomic.Bool
			_, rt := newRuntime(t, boxfake.Config{Fail: func(o, _ string) error {
				if o == op && broken.Load() {
					return down
				}
				return nil
			}})
			p := newProvider(t, rt, sandbox.Options{})
			ws := workspace.New(p.New())
			broken.Store(true)
			if err := ws.WriteText(t.Context(), "f", "x"); !errors.Is(err, box.ErrExhausted) {
				t.Fatalf("error is %v, want that of the runtime", err)
			}
			if ref, ok := ws.Ref(); ok {
				t.Errorf("there is a ref, %v, and no box", ref)
			}
			if left := names(t, rt); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			broken.Store(false)
			if err := ws.WriteText(t.Context(), "f", "x"); err != nil {
				t.Errorf("the next try: %v", err)
			}
			if ref, ok := ws.Ref(); !ok || !slices.Equal(names(t, rt), []string{ref.ID}) {
				t.Errorf("the ref is %v, the boxes are %v", ref, names(t, rt))
			}
		})
	}
}

// What may be there and cannot be removed keeps its ref, and the backend does
// not make another.
func TestCreateInDoubt(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	_, rt := newRuntime(t, boxfake.Config{Fail: func(op, _ string) error {
		if broken.Load() && (op == "boot" || op == "remove") {
			return &box.Error{Kind: box.Unavailable, Op: op, Err: errors.New("the connection is gone")}
		}
		return nil
	}})
	p := newProvider(t, rt, sandbox.Options{})
	ws := workspace.New(p.New())
	if err := ws.WriteText(t.Context(), "f", "x"); !errors.Is(err, workspace.ErrUnavailable) {
		t.Fatalf("error is %v", err)
	}
	ref, ok := ws.Ref()
	if !ok || !slices.Equal(names(t, rt), []string{ref.ID}) {
		t.Fatalf("the ref is %v, %v; the boxes are %v", ref, ok, names(t, rt))
	}
	broken.Store(false)
	if err := p.Destroy(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if err := ws.WriteText(t.Context(), "f", "x"); !errors.Is(err, workspace.ErrUnavailable) {
		t.Errorf("error is %v, want unavailable and no new box", err)
	}
	if left := names(t, rt); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// The log has the name of the box before there is a box.
func TestCreationIsLogged(t *testing.T) {
	var log bytes.Buffer
	var early string
	d, _ := newRuntime(t, boxfake.Config{Registry: map[string]box.ImageConfig{"python:3.12-slim": {}}, Fail: func(op, _ string) error {
		if op == "create" {
			early = log.String()
		}
		return nil
	}})
	p := newProvider(t, box.New(d), sandbox.Options{Image: "python:3.12-slim", Logger: slog.New(slog.NewTextHandler(&log, nil)), Env: map[string]string{"TOKEN": "s3cret"}})
	ws := workspace.New(p.New())
	if err := ws.WriteText(t.Context(), "f", "x"); err != nil {
		t.Fatal(err)
	}
	ref, _ := ws.Ref()
	if !strings.Contains(early, "level=INFO") || !strings.Contains(early, "name="+ref.ID) || !strings.Contains(early, "image=python:3.12-slim") {
		t.Errorf("the log before the creation is %q", early)
	}
	if strings.Contains(log.String(), "s3cret") {
		t.Errorf("the log has a secret: %q", log.String())
	}
}

// A box stops when nothing uses it, and boots again with its disk.
func TestStopsWhenUnused(t *testing.T) {
	_, rt := newRuntime(t, boxfake.Config{})
	p := newProvider(t, rt, sandbox.Options{})
	first := workspace.New(p.New())
	if err := first.WriteText(t.Context(), "f", "kept"); err != nil {
		t.Fatal(err)
	}
	ref, _ := first.Ref()
	state := func() box.State {
		b, err := rt.Get(t.Context(), ref.ID)
		if err != nil {
			t.Fatal(err)
		}
		info, err := b.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.State
	}
	second, err := p.Backend(ref)
	if err != nil {
		t.Fatal(err)
	}
	if got := state(); got != box.Running {
		t.Errorf("in use, it is %s", got)
	}
	if _, err := second.WorkingDir(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := state(); got != box.Running {
		t.Errorf("in use by another backend, it is %s", got)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	bx, err := rt.Get(t.Context(), ref.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bx.Wait(t.Context()); err != nil { // for the stop that follows
		t.Error(err)
	}
	if got := state(); got != box.Stopped {
		t.Errorf("not in use, it is %s", got)
	}
	if got, err := workspace.New(second).ReadText(t.Context(), "f"); err != nil || got != "kept" {
		t.Errorf("after a stop: %q, %v", got, err)
	}
	if got := state(); got != box.Running {
		t.Errorf("used again, it is %s", got)
	}
}

// A command that the stop of its box ends has no exit status.
func TestStoppedUnderCommand(t *testing.T) {
	for name, end := range map[string]func(*box.Box) error{
		"stop": func(b *box.Box) error { return b.Stop(context.Background(), time.Second) },
		"kill": func(b *box.Box) error { return b.Kill(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			_, rt := newRuntime(t, boxfake.Config{})
			p := newProvider(t, rt, sandbox.Options{})
			b := p.New().(*sandbox.Backend)
			ws := workspace.New(b)
			bx, err := b.Box(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var begun onWrite = make(chan struct{}, 1)
			done := make(chan error, 1)
			go func() {
				_, err := ws.Run(t.Context(), workspace.Command{Args: []string{"/bin/sh", "-c", "echo begun; sleep 1000"}, Stdout: begun})
				done <- err
			}()
			<-begun
			if err := end(bx); err != nil {
				t.Fatal(err)
			}
			if err := <-done; !errors.Is(err, workspace.ErrUnavailable) {
				t.Errorf("Run: %v", err)
			}
			// The box is not gone: the next command boots it.
			if res, err := ws.Run(t.Context(), workspace.Command{Shell: "echo ok"}); err != nil || res.Stdout != "ok\n" {
				t.Errorf("the next command: %+v, %v", res, err)
			}
		})
	}
}

type onWrite chan struct{}

func (w onWrite) Write(p []byte) (int, error) {
	select {
	case w <- struct{}{}:
	default:
	}
	return len(p), nil
}

// Refs come back from histories: only those that a provider can have made are
// looked at.
func TestRefs(t *testing.T) {
	var touched atomic.Int32
	_, rt := newRuntime(t, boxfake.Config{Fail: func(string, string) error {
		touched.Add(1)
		return nil
	}})
	p := newProvider(t, rt, sandbox.Options{})
	hex := strings.Repeat("0123456789abcdef", 2)
	for _, c := range []struct {
		ref  workspace.Ref
		want error
	}{
		{workspace.Ref{Provider: "hutch", ID: "hutch-" + hex}, nil},
		{workspace.Ref{Provider: "boxlite", ID: "hutch-" + hex}, workspace.ErrUnknownRef},
		{workspace.Ref{}, workspace.ErrUnknownRef},
		{workspace.Ref{Provider: "hutch"}, workspace.ErrInvalid},
		{workspace.Ref{Provider: "hutch", ID: "somebody-elses"}, workspace.ErrInvalid},
		{workspace.Ref{Provider: "hutch", ID: "hutch-" + hex[1:]}, workspace.ErrInvalid},
		{workspace.Ref{Provider: "hutch", ID: "hutch-" + hex + "0"}, workspace.ErrInvalid},
		{workspace.Ref{Provider: "hutch", ID: "hutch-" + strings.ToUpper(hex)}, workspace.ErrInvalid},
		{workspace.Ref{Provider: "hutch", ID: "hutch-" + hex[:31] + "\n"}, workspace.ErrInvalid},
		{workspace.Ref{Provider: "hutch", ID: hex}, workspace.ErrInvalid},
	} {
		_, err := p.Backend(c.ref)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("Backend(%q): %v, want %v", c.ref, err, c.want)
		}
		_, err = p.Fork(t.Context(), c.ref)
		if want := c.want; want == nil {
			if !errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, workspace.ErrUnsupported) {
				t.Errorf("Fork(%q): %v", c.ref, err)
			}
		} else if !errors.Is(err, want) {
			t.Errorf("Fork(%q): %v, want %v", c.ref, err, want)
		}
		if c.want == nil {
			continue
		}
		if err := p.Destroy(t.Context(), c.ref); !errors.Is(err, c.want) {
			t.Errorf("Destroy(%q): %v, want %v", c.ref, err, c.want)
		}
	}
	if n := touched.Load(); n > 0 {
		t.Errorf("the runtime was asked %d times", n)
	}
}

// FromBox works in any box, does not own it, and names it so that no provider
// opens it for a history.
func TestFromBox(t *testing.T) {
	_, rt := newRuntime(t, boxfake.Config{})
	bx, err := rt.Create(t.Context(), box.Spec{Name: "mine", Dir: "/srv", Env: []string{"A=box", "B=box"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := sandbox.FromBox(bx, sandbox.BoxOptions{Env: map[string]string{"B": "backend"}})
	if err != nil {
		t.Fatal(err)
	}
	ws := workspace.New(b)
	if dir, err := ws.WorkingDir(t.Context()); dir != "/srv" || err != nil {
		t.Errorf("the working directory is %q, %v", dir, err)
	}
	res, err := ws.Run(t.Context(), workspace.Command{Shell: `echo "$A $B"`})
	if err != nil || res.Stdout != "box backend\n" {
		t.Errorf("Run: %+v, %v", res, err)
	}
	ref, ok := ws.Ref()
	if !ok || ref != (workspace.Ref{Provider: "hutch", ID: "mine"}) {
		t.Errorf("the ref is %v", ref)
	}
	p := newProvider(t, rt, sandbox.Options{})
	if _, err := p.Backend(ref); !errors.Is(err, workspace.ErrInvalid) {
		t.Errorf("Backend: %v", err)
	}
	if err := ws.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info, err := bx.Info(t.Context()); err != nil || info.State != box.Running {
		t.Errorf("after Close the box is %s, %v", info.State, err)
	}
	elsewhere, err := sandbox.FromBox(bx, sandbox.BoxOptions{WorkingDir: "/nowhere"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = elsewhere.WorkingDir(t.Context())
	if !errors.Is(err, workspace.ErrWorkspace) || errors.Is(err, workspace.ErrUnavailable) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a working directory that is not there: %v", err)
	}
}

// What the provider owns, and what contradicts itself, is refused by New.
func TestOptions(t *testing.T) {
	_, rt := newRuntime(t, boxfake.Config{})
	for name, opts := range map[string]sandbox.Options{
		"Spec.Name":      {Spec: box.Spec{Name: "x"}},
		"Spec.Labels":    {Spec: box.Spec{Labels: map[string]string{"a": "b"}}},
		"Spec.Image":     {Spec: box.Spec{Image: "x"}},
		"Spec.CPUs":      {Spec: box.Spec{CPUs: 1}},
		"Spec.Memory":    {Spec: box.Spec{Memory: 1 << 30}},
		"Spec.Env":       {Spec: box.Spec{Env: []string{"A=b"}}},
		"Spec.Dir":       {Spec: box.Spec{Dir: "/x"}},
		"Spec.Detach":    {Spec: box.Spec{Detach: true}},
		"Spec.Ephemeral": {Spec: box.Spec{Ephemeral: true}},
		"memory":         {Memory: 1},
		"cpus":           {CPUs: -1},
		"labels":         {Labels: map[string]string{"a b": "c"}},
		"Labels":         {Labels: map[string]string{sandbox.Label: "x"}},
		"WorkingDir":     {WorkingDir: "relative"},
		"ImageDir":       {WorkingDir: "/x", ImageDir: true},
		"env":            {Env: map[string]string{"A=B": "c"}},
		"CreateTimeout":  {CreateTimeout: -1},
		"rootfs":         {Image: "x", Spec: box.Spec{RootFS: "/srv"}},
	} {
		_, err := sandbox.New(rt, opts)
		if !errors.Is(err, workspace.ErrInvalid) {
			t.Errorf("%s: error is %v", name, err)
		} else if !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the error does not name it: %v", name, err)
		}
	}
	if _, err := sandbox.New(nil, sandbox.Options{}); !errors.Is(err, workspace.ErrInvalid) {
		t.Errorf("no runtime: %v", err)
	}
}

// Options shape the box, and the commands in it.
func TestOptionsApply(t *testing.T) {
	_, rt := newRuntime(t, boxfake.Config{Registry: map[string]box.ImageConfig{"img:1": {Dir: "/image/dir", Env: []string{"A=image", "B=image", "C=image"}}}})
	p := newProvider(t, rt, sandbox.Options{
		Image: "img:1", CPUs: 2, Memory: 512 << 20, Labels: map[string]string{"team": "blue"},
		Env: map[string]string{"B": "provider", "C": "provider"}, ImageDir: true, Provider: "there",
		Spec: box.Spec{Disk: 64 << 20, Pids: 50},
	})
	b := p.New().(*sandbox.Backend)
	bx, err := b.Box(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	info, err := bx.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := info.Spec
	if !regexp.MustCompile(`^hutch-[0-9a-f]{32}$`).MatchString(s.Name) || s.Image != "img:1" || s.CPUs != 2 || s.Memory != 512<<20 || s.Disk != 64<<20 || s.Pids != 50 ||
		s.Labels["team"] != "blue" || s.Labels[sandbox.Label] != "there" || len(s.Env) != 0 || s.Detach {
		t.Errorf("the spec is %+v", s)
	}
	ws := workspace.New(b)
	res, err := ws.Run(t.Context(), workspace.Command{Shell: `echo "$A $B $C"; pwd`, Env: map[string]string{"C": "call"}})
	if err != nil || res.Stdout != "image provider call\n/image/dir\n" {
		t.Errorf("Run: %+v, %v", res, err)
	}
	if ref, _ := ws.Ref(); ref.Provider != "there" {
		t.Errorf("the ref is %v", ref)
	}
}

// Several operations that begin while a box is being given up get a new one.
func TestUseAfterGivingUp(t *testing.T) {
	d, rt := newRuntime(t, boxfake.Config{})
	p := newProvider(t, box.New(slowDriver{d, func() time.Duration { return 50 * time.Millisecond }}), sandbox.Options{})
	ws := workspace.New(p.New())
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- ws.WriteText(ctx, "f", "x") }()
	for {
		if _, ok := ws.Ref(); ok {
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := ws.WriteText(t.Context(), "g", "x"); err != nil {
				t.Errorf("WriteText: %v", err)
			}
		})
	}
	wg.Wait()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	if ref, _ := ws.Ref(); !slices.Equal(names(t, rt), []string{ref.ID}) {
		t.Errorf("the ref is %v, the boxes are %v", ref, names(t, rt))
	}
}

// A creation that takes too long is unavailable, not the caller's deadline.
func TestCreateTimeout(t *testing.T) {
	d, rt := newRuntime(t, boxfake.Config{})
	p := newProvider(t, box.New(slowDriver{d, func() time.Duration { return time.Hour }}), sandbox.Options{CreateTimeout: 20 * time.Millisecond})
	ws := workspace.New(p.New())
	err := ws.WriteText(t.Context(), "f", "x")
	if !errors.Is(err, workspace.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, workspace.ErrTimeout) {
		t.Errorf("error is %v", err)
	}
	if left := names(t, rt); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
