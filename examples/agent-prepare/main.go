// Command agent-prepare puts a file with a bug into a box before the run, has an
// agent mend it, and looks at the file afterwards. The box is destroyed whatever
// happens.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/coder"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/box/local"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "agent-prepare:", err)
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
	ws := workspace.New(boxes.New())
	defer func() {
		if ref, ok := ws.Ref(); ok { // it is there as soon as the box is begun
			if err := boxes.Destroy(ctx, ref); err != nil {
				fmt.Fprintln(os.Stderr, "agent-prepare:", err)
			}
		}
	}()
	if err := ws.WriteText(ctx, "calc.py", "def add(a, b):\n    return a - b\n"); err != nil {
		return err
	}
	// Whatever else is needed: with an image of Python's and a network that
	// allows pypi.org, this would be pip install.
	setup, err := ws.Run(ctx, workspace.Command{Shell: "printf 'calc.add is wrong\\n' >TODO", Timeout: time.Minute})
	if err != nil {
		return err
	}
	if !setup.OK() {
		return fmt.Errorf("setup failed: %s", setup.Stderr)
	}

	m := scripted.Sequence(
		scripted.Call("1", "read_file", `{"path": "calc.py"}`),
		scripted.Call("2", "edit_file", `{"path": "calc.py", "old_text": "a - b", "new_text": "a + b"}`),
		scripted.Say("add subtracted; now it adds."),
	)
	result, err := agent.New(m, coder.New(coder.Options{})).Run(ctx, "Fix the bug in calc.py.", agent.WithWorkspace(ws))
	if err != nil {
		return err
	}
	fmt.Println(result.Output)
	text, err := ws.ReadText(ctx, "calc.py")
	if err != nil {
		return err
	}
	fmt.Print(text)
	return nil
}
