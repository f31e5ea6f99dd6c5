package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxfake"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
)

// A program has local.Open here, or a remote runtime.
func openRuntime() *box.Runtime { return box.New(boxfake.New(boxfake.Config{})) }

func Example() {
	ctx := context.Background()
	rt := openRuntime()
	defer rt.Close()
	boxes, err := sandbox.New(rt, sandbox.Options{Memory: 512 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}

	// The box is made by the first operation.
	ws := workspace.New(boxes.New())
	_, known := ws.Ref()
	fmt.Println(known)
	if err := ws.WriteText(ctx, "primes.txt", "2 3 5 7\n"); err != nil {
		log.Fatal(err)
	}
	ref, _ := ws.Ref() // store this
	_ = ws.Close(ctx)  // nothing uses the box now: it stops, and keeps its disk

	// Later, perhaps in another program: the same files.
	again, err := boxes.Backend(ref)
	if err != nil {
		log.Fatal(err)
	}
	res, err := workspace.New(again).Run(ctx, workspace.Command{Shell: "pwd; cat primes.txt"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(res.Stdout)

	// A box stays until it is destroyed, and is never replaced by an empty one.
	if err := boxes.Destroy(ctx, ref); err != nil {
		log.Fatal(err)
	}
	_, err = workspace.New(again).ReadText(ctx, "primes.txt")
	fmt.Println(errors.Is(err, workspace.ErrUnavailable))
	// Output:
	// false
	// /workspace
	// 2 3 5 7
	// true
}

func ExampleFromBox() {
	ctx := context.Background()
	rt := openRuntime()
	defer rt.Close()
	b, err := rt.Create(ctx, box.Spec{Name: "mine", Dir: "/srv"})
	if err != nil {
		log.Fatal(err)
	}
	backend, err := sandbox.FromBox(b, sandbox.BoxOptions{})
	if err != nil {
		log.Fatal(err)
	}
	dir, err := workspace.New(backend).WorkingDir(ctx)
	fmt.Println(dir, err)
	// Output:
	// /srv <nil>
}
