// Command agent-cleanup destroys the box of a run that fails, in a hook. A hook
// for errors has a context of its own, and so also runs when the run was
// cancelled.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/coder"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/box/local"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "agent-cleanup:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rt, err := local.Open(ctx, local.Config{})
	if err != nil {
		return err
	}
	defer rt.Close()
	boxes, err := sandbox.New(rt, sandbox.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	cleanUp := agent.Hooks{Name: "clean up", OnRunError: func(ctx context.Context, run *agent.Run, err error) (*agent.Result, error) {
		if ref, ok := run.Workspace().Ref(); ok {
			if derr := boxes.Destroy(ctx, ref); derr != nil {
				return nil, errors.Join(err, derr)
			}
			fmt.Println("the box is destroyed")
		}
		return nil, err
	}}
	m := scripted.Sequence(scripted.Call("1", "shell", `{"command": "echo half done >file"}`)) // and then it fails
	result, err := agent.New(m, boxes, coder.New(coder.Options{}), cleanUp).Run(ctx, "Do something.")
	fmt.Println("the run failed:", err)
	_, err = result.Workspace.ReadFile(ctx, "file")
	fmt.Println("the box is gone:", errors.Is(err, workspace.ErrUnavailable))
	return nil
}
