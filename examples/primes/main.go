// Command primes writes a program into a box, runs it there and reads the file
// that it made. The box has no network and is gone afterwards.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/local"
)

// program prints the primes below its argument to a file. It is in awk, which
// every Linux image has, the builtin one included.
const program = `BEGIN {
	for (n = 2; n < limit; n++) {
		for (d = 2; d * d <= n; d++) if (n % d == 0) break
		if (d * d > n) printf "%d ", n > "primes.txt"
	}
}
`

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "primes:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rt, err := local.Open(ctx, local.Config{})
	if err != nil {
		return err
	}
	defer rt.Close()

	start := time.Now()
	b, err := rt.Create(ctx, box.Spec{})
	if err != nil {
		return err
	}
	defer b.Remove(ctx)
	hello, err := b.Command(ctx, "echo", "hello from", "a box").Output()
	if err != nil {
		return err
	}
	firstOutput := time.Since(start)
	fmt.Printf("%s", hello)

	if err := b.WriteFile(ctx, "/root/primes.awk", []byte(program), 0o644); err != nil {
		return err
	}
	cmd := b.Command(ctx, "awk", "-v", "limit=100", "-f", "primes.awk")
	cmd.Dir = "/root"
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	primes, err := b.ReadFile(ctx, "/root/primes.txt")
	if err != nil {
		return err
	}
	info, err := b.Info(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("primes below 100: %s\n", primes)
	fmt.Printf("create to first output: %d ms (engine %s, %s)\n", firstOutput.Milliseconds(), info.Engine, info.Isolation)
	return nil
}
