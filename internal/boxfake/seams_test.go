package boxfake_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxfake"
)

// A boot that is made to fail leaves the box failed with the reason, and a later
// one works.
func TestFail(t *testing.T) {
	broken := true
	d := boxfake.New(boxfake.Config{Fail: func(op, _ string) error {
		if op == "boot" && broken {
			return &box.Error{Kind: box.Exhausted, Op: "boot", Err: errors.New("no memory")}
		}
		return nil
	}})
	rt := box.New(d)
	defer d.Quiesce()
	defer rt.Close()
	b, err := rt.Create(t.Context(), box.Spec{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Exec(t.Context(), "true"); !errors.Is(err, box.ErrExhausted) {
		t.Errorf("Exec: %v", err)
	}
	info, err := b.Info(t.Context())
	if err != nil || info.State != box.Failed || info.Reason == "" {
		t.Errorf("info %+v, %v", info, err)
	}
	broken = false
	if r, err := b.Exec(t.Context(), "true"); err != nil || !r.Success() {
		t.Errorf("Exec: %+v, %v", r, err)
	}
}

// Images come from the registry of the configuration, with progress, and their
// configuration holds.
func TestRegistry(t *testing.T) {
	d := boxfake.New(boxfake.Config{Registry: map[string]box.ImageConfig{
		"app:1": {Entrypoint: []string{"sh", "-c"}, Cmd: []string{"echo $GREETING from $(pwd); exit 2"}, Env: []string{"GREETING=hi"}, Dir: "/app", User: "user"},
	}})
	rt := box.New(d)
	defer d.Quiesce()
	defer rt.Close()
	var phases []string
	if _, err := rt.Images().Pull(t.Context(), "app:1", box.PullOptions{Progress: func(p box.PullProgress) { phases = append(phases, p.Phase) }}); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(phases, "done") {
		t.Errorf("phases %q", phases)
	}
	if _, err := rt.Images().Pull(t.Context(), "none:1", box.PullOptions{}); !errors.Is(err, box.ErrNotFound) {
		t.Errorf("Pull of nothing: %v", err)
	}
	b, err := rt.Create(t.Context(), box.Spec{Image: "app:1", Main: true})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Remove(context.Background())
	c, err := b.AttachMain(t.Context(), box.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Result()
	if err != nil || r.Code != 2 || string(r.Stdout) != "hi from /app\n" {
		t.Errorf("result %q, %v, %v", r.Stdout, r.ExitStatus, err)
	}
}
