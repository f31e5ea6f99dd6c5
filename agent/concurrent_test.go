package agent_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
)

// TestNoWorkspaceIsLost: of runs that are cancelled at any moment, the
// histories name exactly the workspaces that were made.
func TestNoWorkspaceIsLost(t *testing.T) {
	p := newPlaces("a")
	// The first thing that uses the workspace is a hook in some runs, a tool in others.
	early := agent.Hooks{BeforeRun: func(ctx context.Context, r *agent.Run) error {
		if rand.N(2) == 0 {
			return nil
		}
		return r.Workspace().WriteText(ctx, "f", "x")
	}}
	a := agent.New(endings(), p, note(), early)
	var mu sync.Mutex
	named := map[string]bool{}
	for range 20 {
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(3*time.Millisecond))
				defer cancel()
				res, err := a.Run(ctx, "note", agent.WithLimits(agent.Limits{Requests: 5}))
				if err == nil {
					t.Error("it should run into its limit")
				}
				messages := res.Messages()
				if err := model.Validate(messages); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				ref := model.LatestWorkspace(messages)
				if got, ok := res.Workspace.Ref(); ok != (ref != nil) || ok && got != *ref {
					t.Errorf("the result says %v, the history %v", got, ref)
				}
				if ref != nil {
					named[ref.ID] = true
				}
			})
		}
		wg.Wait()
	}
	if d := cmp.Diff(slices.Sorted(maps.Keys(p.live)), slices.Sorted(maps.Keys(named))); d != "" {
		t.Errorf("made, and named in histories:\n%s", d)
	}
	if len(named) == 0 {
		t.Error("no workspace was made: the test shows nothing")
	}
}
