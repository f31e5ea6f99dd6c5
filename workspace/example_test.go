//go:build unix

package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/hostdir"
)

// exampleDir is a folder for an example.
func exampleDir() (ws *workspace.Workspace, remove func()) {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	d, err := hostdir.New(dir, hostdir.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return workspace.New(d), func() { _ = os.RemoveAll(dir) }
}

func Example() {
	ctx := context.Background()
	ws, remove := exampleDir()
	defer remove()

	if err := ws.WriteText(ctx, "src/greet.sh", "echo \"hello $1\"\n"); err != nil {
		log.Fatal(err)
	}
	res, err := ws.Run(ctx, workspace.Command{Args: []string{"sh", "src/greet.sh", "box"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(res.Stdout)
	res, err = ws.Run(ctx, workspace.Command{Shell: "exit 3"})
	fmt.Println(res.ExitCode, err)
	// Output:
	// hello box
	// 3 <nil>
}

func ExampleCommandError() {
	ctx := context.Background()
	ws, remove := exampleDir()
	defer remove()

	_, err := ws.Run(ctx, workspace.Command{Shell: "echo working; sleep 60", Timeout: 300 * time.Millisecond})
	fmt.Println(errors.Is(err, workspace.ErrTimeout), errors.Is(err, context.DeadlineExceeded))
	var ce *workspace.CommandError
	if errors.As(err, &ce) {
		fmt.Printf("%q\n", ce.Stdout)
	}
	// Output:
	// true false
	// "working\n"
}

func ExampleReadOnly() {
	ctx := context.Background()
	ws, remove := exampleDir()
	defer remove()
	if err := ws.WriteText(ctx, "notes.txt", "keep"); err != nil {
		log.Fatal(err)
	}

	ro := workspace.ReadOnly(ws)
	text, err := ro.ReadText(ctx, "notes.txt")
	fmt.Println(text, err)
	err = ro.WriteText(ctx, "notes.txt", "lost")
	fmt.Println(errors.Is(err, workspace.ErrReadOnly))
	// Output:
	// keep <nil>
	// true
}

func ExampleCommand_writer() {
	ctx := context.Background()
	ws, remove := exampleDir()
	defer remove()

	res, err := ws.Run(ctx, workspace.Command{Shell: "echo live; echo kept >&2", Stdout: os.Stdout})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%q %q\n", res.Stdout, res.Stderr)
	// Output:
	// live
	// "" "kept\n"
}
