package local

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

func TestSpareKind(t *testing.T) {
	rec := func(spec box.Spec) boxdir.Record { return boxdir.Record{Tree: "/tree", Spec: spec} }
	_, plain := spareKind(rec(box.Spec{Image: "a"}))
	if plain == "" {
		t.Fatal("a plain box has no kind")
	}
	for _, row := range []struct {
		what string
		rec  boxdir.Record
		want string // plain, other or none
	}{
		{"name, labels and what happens at the end", rec(box.Spec{Image: "a", Name: "n", Hostname: "h", Labels: map[string]string{"k": "v"},
			Detach: true, Ephemeral: true, StopTimeout: time.Second}), "plain"},
		{"another tree", boxdir.Record{Tree: "/other", Spec: box.Spec{Image: "a"}}, "other"},
		{"another accelerator", boxdir.Record{Tree: "/tree", Accelerator: "kvm", Spec: box.Spec{Image: "a"}}, "other"},
		{"memory", rec(box.Spec{Image: "a", Memory: 1 << 30}), "other"},
		{"environment", rec(box.Spec{Image: "a", Env: []string{"A=b"}}), "other"},
		{"user", rec(box.Spec{Image: "a", User: "nobody"}), "other"},
		{"a volume", rec(box.Spec{Image: "a", Volumes: []box.Volume{{Name: "v", Target: "/v"}}}), "none"},
		{"a main command", boxdir.Record{Tree: "/tree", Main: []string{"sh"}, Spec: box.Spec{Image: "a", Cmd: []string{"sh"}}}, "none"},
		{"a restart policy", rec(box.Spec{Image: "a", Restart: box.RestartPolicy{When: box.RestartAlways}}), "none"},
	} {
		_, kind := spareKind(row.rec)
		got := "other"
		switch kind {
		case "":
			got = "none"
		case plain:
			got = "plain"
		}
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.what, got, row.want)
		}
	}
}

// openWarm opens a runtime that keeps boxes booted ahead.
func openWarm(t *testing.T, home string, warm int) (*driver, *box.Runtime) {
	d, err := newDriver(t.Context(), Config{Home: home, Warm: warm})
	if err != nil {
		t.Fatal(err)
	}
	rt := box.New(d)
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, rt
}

// awaitWarm waits for a box booted ahead, and returns its record.
func awaitWarm(t *testing.T, d *driver) boxdir.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for d.warm.count() == 0 {
		select {
		case <-ctx.Done():
			t.Fatal("no box was booted ahead")
		case <-time.After(10 * time.Millisecond):
		}
	}
	d.warm.mu.Lock()
	id := d.warm.ready[0].id
	d.warm.mu.Unlock()
	rec, err := d.home.Box(id).Load()
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func output(t *testing.T, b *box.Box, script string) string {
	t.Helper()
	out, err := b.Shell(t.Context(), script).Output()
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return string(out)
}

func TestWarm(t *testing.T) {
	realengine.Need(t, "gvisor")
	home := testHome(t)
	d, rt := openWarm(t, home, 1)
	ctx := t.Context()
	create := func(spec box.Spec) *box.Box {
		t.Helper()
		b, err := rt.Create(ctx, spec)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	first := create(box.Spec{Name: "first"})
	output(t, first, "echo here > /mark")

	spare := awaitWarm(t, d)
	if infos, err := rt.List(ctx, box.ListOptions{}); err != nil || len(infos) != 1 {
		t.Errorf("List shows %d boxes (%v), want the one that was created", len(infos), err)
	}
	if _, err := rt.Get(ctx, spare.ID); !errors.Is(err, box.ErrNotFound) {
		t.Errorf("Get of a spare: %v, want not found", err)
	}
	if _, err := rt.Create(ctx, box.Spec{Name: "first"}); !errors.Is(err, box.ErrExists) {
		t.Errorf("Create of a name that is taken: %v", err)
	}
	if n := d.warm.count(); n != 1 {
		t.Errorf("%d spares after a Create that failed, want 1", n)
	}

	second := create(box.Spec{Name: "second", Labels: map[string]string{"k": "v"}})
	if second.ID() != spare.ID {
		t.Errorf("Create made box %s, and did not adopt %s", second.ID(), spare.ID)
	}
	info, err := second.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if info.State != box.Running || info.Name != "second" || info.Hostname != "second" || info.Spec.Ephemeral {
		t.Errorf("adopted: %+v", info)
	}
	if diff := cmp.Diff(map[string]string{"k": "v"}, info.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if got := output(t, second, "hostname; echo $HOSTNAME; cat /etc/hostname; ls /mark 2>/dev/null; grep -c second /etc/hosts"); got != "second\nsecond\nsecond\n1\n" {
		t.Errorf("the box says of itself: %q", got)
	}
	// It is a box like any other: kept when it stops, with its files.
	output(t, second, "echo kept > /file")
	if err := second.Stop(ctx, -1); err != nil {
		t.Fatal(err)
	}
	if got := output(t, second, "cat /file; hostname"); got != "kept\nsecond\n" {
		t.Errorf("after a restart: %q", got)
	}

	// Another kind takes its place.
	awaitWarm(t, d)
	third := create(box.Spec{Env: []string{"A=b"}})
	output(t, third, "true")
	for spare = awaitWarm(t, d); len(spare.Spec.Env) == 0; spare = awaitWarm(t, d) {
		time.Sleep(10 * time.Millisecond)
	}
	// One that died is not handed out.
	killEngine(t, spare.Pid, "runsc-sandbox")
	fourth := create(box.Spec{Env: []string{"A=b"}})
	if got := output(t, fourth, "echo $A"); got != "b\n" {
		t.Errorf("beside a dead spare: %q", got)
	}
	if fourth.ID() == spare.ID {
		t.Error("a dead box was handed out")
	}
	awaitWarm(t, d)
	if err := rt.Close(); err != nil {
		t.Error(err)
	}
	if ids, err := d.home.IDs(); err != nil || len(ids) != 4 {
		t.Errorf("after Close there are %d boxes (%v), want the 4 that were created", len(ids), err)
	}
}

// A program that says nothing about it has a box booted ahead from its second
// one on, and need not know.
func TestWarmByDefault(t *testing.T) {
	realengine.Need(t, "gvisor")
	home := testHome(t)
	d, rt := openWarm(t, home, 0)
	ctx := t.Context()
	const image = "test:warm"
	var root bytes.Buffer
	tw := tar.NewWriter(&root)
	if err := errors.Join(tw.WriteHeader(&tar.Header{Name: "f", Mode: 0o644}), tw.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := rt.Images().Import(ctx, &root, image, box.ImageConfig{}); err != nil {
		t.Fatal(err)
	}
	create := func() *box.Box {
		t.Helper()
		b, err := rt.Create(ctx, box.Spec{Image: image, Pull: box.PullNever})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Stat(ctx, "/f"); err != nil {
			t.Error(err)
		}
		return b
	}
	boxes := []*box.Box{create()}
	d.warm.mu.Lock()
	if d.warm.working || d.warm.want.kind != "" {
		t.Error("a box is booted ahead after the first Create")
	}
	d.warm.mu.Unlock()
	boxes = append(boxes, create())
	first := awaitWarm(t, d)
	boxes = append(boxes, create())
	if id := boxes[2].ID(); id != first.ID {
		t.Errorf("the third box is %s, and not %s, which was booted ahead", id, first.ID)
	}
	last := awaitWarm(t, d)
	if infos, err := rt.List(ctx, box.ListOptions{}); err != nil || len(infos) != len(boxes) {
		t.Errorf("List shows %d boxes (%v), want %d", len(infos), err, len(boxes))
	}
	m, err := rt.Metrics(ctx)
	if err != nil || m.Boxes != 3 || m.Running != 3 || m.Created != 3 || m.Warm != 1 {
		t.Errorf("metrics %+v, %v", m, err)
	}
	// Nobody's box does not stand in the way of anything.
	for _, b := range boxes {
		if err := errors.Join(b.Remove(ctx), b.Close()); err != nil {
			t.Error(err)
		}
	}
	if err := rt.Images().Remove(ctx, image); err != nil {
		t.Errorf("remove an image that only a box booted ahead uses: %v", err)
	}
	if _, err := d.home.Box(last.ID).Load(); !errors.Is(err, box.ErrNotFound) {
		t.Errorf("the box booted ahead of it: %v, want not found", err)
	}

	// Another one, which is there at the end.
	for range 2 {
		b, err := rt.Create(ctx, box.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		output(t, b, "true")
		if err := errors.Join(b.Remove(ctx), b.Close()); err != nil {
			t.Error(err)
		}
	}
	last = awaitWarm(t, d)
	if err := rt.Close(); err != nil {
		t.Error(err)
	}
	if ids, err := d.home.IDs(); err != nil || len(ids) != 0 {
		t.Errorf("after Close there are boxes %v (%v)", ids, err)
	}
	for _, left := range leftovers(d.home.Dir(), []box.Info{first.Info(), last.Info()}) {
		t.Errorf("left behind: %s", left)
	}
	events, err := os.ReadFile(d.home.Path("events.log"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(events), last.ID) {
		t.Errorf("there are events of a box that was nobody's:\n%s", events)
	}
}

// The box booted ahead must not outlive its program, however that ends.
func TestWarmProgramDies(t *testing.T) {
	realengine.Need(t, "gvisor")
	home := testHome(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "warm-holder", home)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	id := strings.TrimSpace(line)
	if err != nil || id == "" {
		t.Fatalf("the program said %q: %v", line, err)
	}
	d := open(t, home)
	defer d.Close()
	b := d.home.Box(id)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if _, err := b.Load(); errors.Is(err, box.ErrNotFound) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal("the box is still there")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// holdWarm is that program: it prints the id of its spare and waits.
func holdWarm(home string) error {
	ctx := context.Background()
	d, err := newDriver(ctx, Config{Home: home, Warm: 1})
	if err != nil {
		return err
	}
	rt := box.New(d)
	b, err := rt.Create(ctx, box.Spec{Ephemeral: true})
	if err != nil {
		return err
	}
	if err := b.Start(ctx); err != nil {
		return err
	}
	for d.warm.count() == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	d.warm.mu.Lock()
	fmt.Println(d.warm.ready[0].id)
	d.warm.mu.Unlock()
	select {}
}
