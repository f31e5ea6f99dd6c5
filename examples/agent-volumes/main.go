// Command agent-volumes mounts the current folder into an agent's box, for it to
// read and not to write, and shows other options of a new box.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/coder"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/local"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "agent-volumes:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	rt, err := local.Open(ctx, local.Config{})
	if err != nil {
		return err
	}
	defer rt.Close()
	boxes, err := sandbox.New(rt, sandbox.Options{
		CPUs: 1, Memory: 512 << 20,
		Env: map[string]string{"PROJECT": "/project"},
		// Everything else of a box: volumes, ports, secrets, a disk's size, a user.
		Spec:   box.Spec{Volumes: []box.Volume{{Host: dir, Target: "/project", ReadOnly: true}}, Pids: 100},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	m := scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		results := scripted.Returns(req)
		if len(results) == 0 {
			return scripted.Call("1", "shell", `{"command": "ls $PROJECT; touch $PROJECT/mine 2>/dev/null || echo not to be written"}`), nil
		}
		return scripted.Say("The folder holds:\n" + strings.TrimPrefix(results[0].Text, "[stdout]\n")), nil
	})
	result, err := agent.New(m, boxes, coder.New(coder.Options{})).Run(ctx, "Summarize what is in /project.")
	if ref, ok := result.Workspace.Ref(); ok {
		defer boxes.Destroy(ctx, ref)
	}
	if err != nil {
		return err
	}
	fmt.Println(result.Output)
	return nil
}
