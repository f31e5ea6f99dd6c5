package workspace

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
)

// Ten runs at once on one provider, twenty rounds, each given up at a random
// moment while its box is made, booted or used: the boxes that there are in the
// end are those whose refs are known.
func TestNoBoxIsLost(t *testing.T) {
	const runs = 10
	rounds := 20
	if testing.Short() {
		rounds = 2
	}
	rt := open(t)
	p, err := sandbox.New(rt, sandbox.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	// How long a box takes here and now, to give up before and after.
	began := time.Now()
	first := workspace.New(p.New())
	if _, err := first.WorkingDir(t.Context()); err != nil {
		t.Fatal(err)
	}
	usual := time.Since(began)
	ref, _ := first.Ref()
	known := map[string]workspace.Ref{ref.ID: ref}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	var mu sync.Mutex
	finished, abandoned := 0, 0
	for range rounds {
		var round sync.WaitGroup
		for range runs {
			round.Go(func() {
				ws := workspace.New(p.New())
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.Int64N(int64(8*usual))))
				defer cancel()
				res, err := ws.Run(ctx, workspace.Command{Shell: "echo ok"})
				if err != nil && !errors.Is(err, context.DeadlineExceeded) || err == nil && res.Stdout != "ok\n" {
					t.Errorf("Run: %+v, %v", res, err)
				}
				ref, ok := ws.Ref()
				mu.Lock()
				defer mu.Unlock()
				if ok {
					known[ref.ID] = ref
				}
				if err == nil {
					finished++
				} else {
					abandoned++
				}
				if err := ws.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		round.Wait()
	}
	infos, err := rt.List(t.Context(), box.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if _, ok := known[info.Name]; !ok {
			t.Errorf("nobody knows box %s", info.Name)
		}
	}
	for name := range known {
		if !slices.ContainsFunc(infos, func(info box.Info) bool { return info.Name == name }) {
			t.Errorf("there is no box %s", name)
		}
	}
	t.Logf("%d runs finished and %d were given up; %d boxes were alive and known", finished, abandoned, len(infos))
	if finished == 0 || abandoned == 0 {
		t.Errorf("the test shows nothing: %d finished, %d given up", finished, abandoned)
	}
	var removals sync.WaitGroup
	slots := make(chan struct{}, 4)
	for _, ref := range known {
		slots <- struct{}{}
		removals.Go(func() {
			defer func() { <-slots }()
			if err := p.Destroy(context.Background(), ref); err != nil {
				t.Error(err)
			}
		})
	}
	removals.Wait()
}

// A full disk is an error, and what was there stays.
func TestDiskFull(t *testing.T) {
	rt := open(t)
	p, err := sandbox.New(rt, sandbox.Options{Logger: slog.New(slog.DiscardHandler), Spec: box.Spec{Disk: 16 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	b := p.New().(*sandbox.Backend)
	ws := workspace.New(b)
	bx, err := b.Box(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ref, _ := ws.Ref()
		if err := p.Destroy(context.Background(), ref); err != nil {
			t.Error(err)
		}
	}()
	info, err := bx.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.Limits.Disk.By == "" {
		t.Skipf("this host cannot bound a disk: %s", info.Limits.Disk.Note)
	}
	old := "the old content"
	if err := ws.WriteText(t.Context(), "f", old); err != nil {
		t.Fatal(err)
	}
	for name, w := range map[string]*workspace.Workspace{"own files": ws, "derived files": workspace.New(commandsOnly{b, b, b})} {
		err = w.WriteFile(t.Context(), "f", make([]byte, 24<<20))
		if err == nil {
			t.Errorf("%s: 24 MiB fit on a disk of 16 MiB", name)
		}
		t.Logf("%s: %v", name, err)
		if got, err := w.ReadText(t.Context(), "f"); got != old || err != nil {
			t.Errorf("%s: the file has %d bytes, %v", name, len(got), err)
		}
		entries, err := w.ReadDir(t.Context(), ".")
		if err != nil || len(entries) != 1 {
			t.Errorf("%s: the entries are %v, %v", name, entries, err)
		}
	}
}

// Whoever comes back at once to a box that is just being stopped, because the
// last one to use it has gone, finds it whole.
func TestComeBack(t *testing.T) {
	rt := open(t)
	p, err := sandbox.New(rt, sandbox.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ws := workspace.New(p.New())
	if err := ws.WriteText(t.Context(), "n", ""); err != nil {
		t.Fatal(err)
	}
	ref, _ := ws.Ref()
	want := ""
	for range 15 {
		if err := ws.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond) // anywhere in the stop
		b, err := p.Backend(ref)
		if err != nil {
			t.Fatal(err)
		}
		ws = workspace.New(b)
		want += "x"
		res, err := ws.Run(t.Context(), workspace.Command{Shell: "printf x >> n; cat n"})
		if err != nil || res.Stdout != want {
			t.Fatalf("%+v, %v; want %q", res, err, want)
		}
	}
	if err := p.Destroy(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
}
