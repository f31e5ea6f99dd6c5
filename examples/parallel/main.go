// Command parallel runs twenty boxes at once. Each writes to the same path,
// and none sees the others.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/local"
)

const boxes = 20

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "parallel:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rt, err := local.Open(ctx, local.Config{})
	if err != nil {
		return err
	}
	defer rt.Close()
	results := make([]string, boxes)
	errs := make([]error, boxes)
	var wg sync.WaitGroup
	for n := range boxes {
		wg.Go(func() { results[n], errs[n] = square(ctx, rt, n) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Println(strings.Join(results, " "))
	return nil
}

// square has a box of its own compute the square of n.
func square(ctx context.Context, rt *box.Runtime, n int) (string, error) {
	b, err := rt.Create(ctx, box.Spec{Memory: 256 << 20})
	if err != nil {
		return "", err
	}
	defer b.Remove(ctx)
	script := fmt.Sprintf("echo $((%d * %d)) > /tmp/result && cat /tmp/result", n, n)
	out, err := b.Shell(ctx, script).Output()
	return strings.TrimSpace(string(out)), err
}
