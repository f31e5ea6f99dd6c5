package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/filesystem"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/shell"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
)

// measureHarness measures what the harness adds: tools called through agent,
// workspace and sandbox beside the same work asked of the box itself, in turns
// in one box. It is for Hutch alone: the others are called by no harness of
// this kind.
func measureHarness(ctx context.Context, b *bench) (res []*result, err error) {
	h := &hutch{b: b}
	p, err := sandbox.New(b.rt, sandbox.Options{Image: b.image, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	backend := p.New().(*sandbox.Backend)
	tools, err := agent.OpenToolbox(ctx, nil, []agent.Capability{
		filesystem.New(filesystem.Options{NoHashes: true}),
		shell.New(shell.Options{Tools: []string{"shell"}, Deny: []string{}, Interactive: true}),
	}, agent.WithWorkspace(backend))
	if err != nil {
		return nil, err
	}
	bx, err := backend.Box(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		ref, _ := backend.Ref()
		err = errors.Join(err, backend.Close(ctx), p.Destroy(ctx, ref))
	}()
	text := "a line of a file\n"
	for len(text) < 4<<10 {
		text += text
	}
	if err := workspace.New(backend).WriteText(ctx, "file", text); err != nil {
		return nil, err
	}
	n := 0
	call := func(tool string, args map[string]any) func(context.Context) error {
		data, _ := json.Marshal(args) // strings only
		return func(ctx context.Context) error {
			n++
			part, err := tools.Call(ctx, model.ToolCall{ID: strconv.Itoa(n), Name: tool, Args: string(data)})
			if ret, ok := part.(model.ToolReturn); err == nil && (!ok || ret.Outcome != model.OK) {
				err = fmt.Errorf("%s: %+v", tool, part)
			}
			return err
		}
	}
	for _, one := range []struct {
		what          string
		tool, direct  func(context.Context) error
		directly, via string
	}{
		{"read a file of 4 KiB", call("read_file", map[string]any{"path": "file"}), func(ctx context.Context) error {
			_, err := bx.ReadFile(ctx, sandbox.DefaultDir+"/file")
			return err
		}, "b.ReadFile", "read_file"},
		{"run a shell command", call("shell", map[string]any{"command": "true"}), func(ctx context.Context) error {
			return runShell(ctx, bx)
		}, "b.Shell", "shell"},
	} {
		through := newResult("harness", fmt.Sprintf("%s: tool `%s`, through agent, workspace and box", one.what, one.via), "ms")
		directly := newResult("harness", fmt.Sprintf("%s: `%s` itself", one.what, one.directly), "ms")
		adds := newResult("harness", one.what+": what the harness adds, turn by turn", "ms")
		// A call takes some milliseconds, and scatters by as many.
		for round := range 5*b.opts.rounds + 1 {
			var took [2]time.Duration
			for i, f := range []func(context.Context) error{one.tool, one.direct} {
				start := time.Now()
				failure, end := limited(ctx, f)
				took[i] = time.Since(start)
				if round > 0 { // the first finds cold caches
					[]*result{through, directly}[i].of(h.name()).add(ms(took[i]), failure)
				}
				if end != nil {
					return nil, end
				}
			}
			if round > 0 {
				adds.of(h.name()).add(ms(took[0]-took[1]), nil)
			}
		}
		res = append(res, through, directly, adds)
	}
	return res, nil
}

func runShell(ctx context.Context, bx *box.Box) error {
	c := bx.Shell(ctx, "true")
	c.Dir = sandbox.DefaultDir
	return c.Run()
}
