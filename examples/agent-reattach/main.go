// Command agent-reattach comes back to a box without the conversation: it stores
// the workspace's ref, and a later run, in another process perhaps, is given it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/coder"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/box/local"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "agent-reattach:", err)
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
	write := scripted.Sequence(
		scripted.Call("1", "write_file", `{"path": "note.txt", "content": "remember the milk\n"}`),
		scripted.Say("It is written down."),
	)
	result, err := agent.New(write, boxes, coder.New(coder.Options{})).Run(ctx, "Write a note about milk.")
	ref, ok := result.Workspace.Ref()
	if ok {
		defer boxes.Destroy(ctx, ref)
	}
	if err != nil {
		return err
	}
	fmt.Println(result.Output)
	stored, err := json.Marshal(ref) // in a database, for example
	if err != nil {
		return err
	}

	var later workspace.Ref
	if err := json.Unmarshal(stored, &later); err != nil {
		return err
	}
	read := scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		if results := scripted.Returns(req); len(results) > 0 {
			return scripted.Say("It says:\n" + results[0].Text), nil
		}
		return scripted.Call("1", "shell", `{"command": "cat note.txt"}`), nil
	})
	a := agent.New(read, boxes, coder.New(coder.Options{}))
	result, err = a.Run(ctx, "What does note.txt say?", agent.WithRef(later))
	if err != nil {
		return err
	}
	fmt.Println(result.Output)

	// A ref of a box that is gone is an error, and never an empty new one.
	if err := boxes.Destroy(ctx, later); err != nil {
		return err
	}
	_, err = a.Run(ctx, "And now?", agent.WithRef(later))
	fmt.Println("after its end:", errors.Is(err, workspace.ErrUnavailable))
	return nil
}
