// Command agent-tool gives an agent a tool of its own beside those for files and
// commands: it runs a snippet in the box that the run has. With
// -image python:3.12-slim the snippet is Python; the builtin image has awk.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/filesystem"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/agent/shell"
	"github.com/hutch-sandbox/hutch/box/local"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "agent-tool:", err)
		os.Exit(1)
	}
}

// runSnippet is the tool. What it does in the workspace works the same in any
// box, here or on a server, and in a folder.
func runSnippet(interpreter ...string) agent.Tool {
	type args struct {
		Code string `json:"code" jsonschema:"the program"`
	}
	return agent.NewTool("run_snippet", "Run a "+interpreter[0]+" snippet in the box.",
		func(ctx context.Context, call *agent.Call, a args) (string, error) {
			result, err := call.Workspace().Run(ctx, workspace.Command{Args: append(interpreter, a.Code), Timeout: 10 * time.Second})
			return result.Stdout + result.Stderr, err
		})
}

func run(ctx context.Context) error {
	image := flag.String("image", "", "image of the box; one of Python's makes the tool run Python")
	flag.Parse()
	rt, err := local.Open(ctx, local.Config{})
	if err != nil {
		return err
	}
	defer rt.Close()
	boxes, err := sandbox.New(rt, sandbox.Options{Image: *image, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	tool, snippet := runSnippet("awk"), `{"code": "BEGIN { print 6 * 7 }"}`
	if *image != "" {
		tool, snippet = runSnippet("python3", "-c"), `{"code": "print(6 * 7)"}`
	}
	m := scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		if results := scripted.Returns(req); len(results) > 0 {
			return scripted.Say("It is " + strings.TrimSpace(results[0].Text) + "."), nil
		}
		return scripted.Call("1", "run_snippet", snippet), nil
	})
	a := agent.New(m, boxes, shell.New(shell.Options{}), filesystem.New(filesystem.Options{}), tool)
	result, err := a.Run(ctx, "What is six times seven? Use the tool.")
	if ref, ok := result.Workspace.Ref(); ok {
		defer boxes.Destroy(ctx, ref)
	}
	if err != nil {
		return err
	}
	fmt.Println(result.Output)
	return nil
}
