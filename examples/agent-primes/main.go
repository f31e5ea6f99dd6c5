// Command agent-primes has a coding agent write a program in a box and run it,
// asks for more with the conversation so far, which leads back to the same box,
// and then destroys that. The model is a script, so that it runs anywhere; with
// a key, fantasy.New("anthropic:claude-opus-5-5", fantasy.Options{}) is a real
// one.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/coder"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/box/local"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "agent-primes:", err)
		os.Exit(1)
	}
}

// program prints the first primes, as many as its argument says. The builtin
// image has awk; with one of Python's, the model would write Python.
const program = `#!/bin/sh
awk -v want=10 'BEGIN {
	for (n = 2; found < want; n++) {
		for (d = 2; d * d <= n; d++) if (n % d == 0) break
		if (d * d > n) { printf "%s%d", found++ ? " " : "", n }
	}
	print ""
}'
`

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
	m := scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		switch n := responses(req); n {
		case 0:
			return call("write_file", map[string]any{"path": "primes.sh", "content": program}), nil
		case 1, 4:
			return call("shell", map[string]any{"command": "sh primes.sh"}), nil
		case 3:
			return call("edit_file", map[string]any{"path": "primes.sh", "old_text": "want=10", "new_text": "want=100"}), nil
		}
		return scripted.Say(lastLine(scripted.Returns(req)[0].Text)), nil
	})
	a := agent.New(m, boxes, coder.New(coder.Options{}))

	result, err := a.Run(ctx, "Write a script that prints the first 10 primes, and run it.")
	if ref, ok := result.Workspace.Ref(); ok {
		defer boxes.Destroy(ctx, ref) // nothing else does
	}
	if err != nil {
		return err
	}
	fmt.Println("the first 10:", result.Output)

	followup, err := a.Run(ctx, "Now make it print the first 100.", agent.WithHistory(result.Messages()))
	if err != nil {
		return err
	}
	all := strings.Fields(followup.Output)
	fmt.Println("the last of the first 100:", all[len(all)-1])
	before, _ := result.Workspace.Ref()
	after, _ := followup.Workspace.Ref()
	fmt.Println("in the same box:", before == after)
	return nil
}

// responses counts what the model has said so far.
func responses(req *model.Request) int {
	n := 0
	for _, m := range req.Messages {
		if m.Kind == model.KindResponse {
			n++
		}
	}
	return n
}

func call(tool string, args map[string]any) *model.Response {
	data, _ := json.Marshal(args) // strings only
	return scripted.Call("call", tool, string(data))
}

// lastLine is the last line of a command's output.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
