package box_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxfake"
)

// open stands for local.Open: the examples run in memory.
func open() *box.Runtime { return box.New(boxfake.New(boxfake.Config{})) }

func Example() {
	ctx := context.Background()
	rt := open()
	defer rt.Close()

	b, err := rt.Create(ctx, box.Spec{Memory: 512 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Remove(ctx)

	if err := b.WriteFile(ctx, "/work.txt", []byte("three\none\n"), 0o644); err != nil {
		log.Fatal(err)
	}
	out, err := b.Shell(ctx, "wc -l < /work.txt; head -n 1 /work.txt").Output()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", out)
	// Output:
	// 2
	// three
}

// A command that fails is an *ExitError; one that runs too long is a Timeout.
func ExampleCmd_Run() {
	ctx := context.Background()
	rt := open()
	defer rt.Close()
	b, err := rt.Create(ctx, box.Spec{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Remove(ctx)

	err = b.Shell(ctx, "exit 3").Run()
	var exit *box.ExitError
	if errors.As(err, &exit) {
		fmt.Println("status", exit.ExitCode())
	}

	slow := b.Command(ctx, "sleep", "60")
	slow.Timeout = 10 * time.Millisecond
	fmt.Println("timeout", errors.Is(slow.Run(), box.ErrTimeout))
	// Output:
	// status 3
	// timeout true
}

// Exec reports every status as a result, for those to whom failing is normal.
func ExampleBox_Exec() {
	ctx := context.Background()
	rt := open()
	defer rt.Close()
	b, err := rt.Create(ctx, box.Spec{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Remove(ctx)

	r, err := b.Exec(ctx, "cat", "/no/such/file")
	if err != nil {
		log.Fatal(err) // there is no result at all
	}
	fmt.Printf("%d %s", r.Code, r.Stderr)
	// Output: 1 cat: /no/such/file: no such file or directory
}

// Output collects what the command writes; Stdin feeds it.
func ExampleCmd_Output() {
	ctx := context.Background()
	rt := open()
	defer rt.Close()
	b, err := rt.Create(ctx, box.Spec{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Remove(ctx)

	c := b.Command(ctx, "cat")
	c.Stdin = strings.NewReader("from here to there and back\n")
	out, err := c.Output()
	fmt.Printf("%s%v\n", out, err)
	// Output:
	// from here to there and back
	// <nil>
}

// The box's files are an fs.FS.
func ExampleBox_FS() {
	ctx := context.Background()
	rt := open()
	defer rt.Close()
	b, err := rt.Create(ctx, box.Spec{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Remove(ctx)

	if err := b.MkdirAll(ctx, "/src/cmd", 0o755); err != nil {
		log.Fatal(err)
	}
	if err := b.WriteFile(ctx, "/src/cmd/main.go", []byte("package main\n"), 0); err != nil {
		log.Fatal(err)
	}
	err = fs.WalkDir(b.DirFS(ctx, "/src"), ".", func(path string, d fs.DirEntry, err error) error {
		fmt.Println(path, d.IsDir())
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// . true
	// cmd true
	// cmd/main.go false
}

// A detached command is followed later, by its id.
func ExampleBox_Attach() {
	ctx := context.Background()
	rt := open()
	defer rt.Close()
	b, err := rt.Create(ctx, box.Spec{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Remove(ctx)

	job := b.Shell(ctx, "echo working; exit 5")
	job.Detach = true
	if err := job.Start(); err != nil {
		log.Fatal(err)
	}
	// Any program that finds the box can do this.
	again, err := b.Attach(ctx, job.ID(), box.AttachOptions{})
	if err != nil {
		log.Fatal(err)
	}
	out, err := again.Output()
	fmt.Printf("%s%v\n", out, err)
	// Output:
	// working
	// exit status 5
}

// What a spec gets wrong is said before anything is made.
func ExampleSpec_Validate() {
	err := box.Spec{Memory: 1 << 20}.Validate()
	fmt.Println(err)
	fmt.Println(errors.Is(err, box.ErrInvalid))
	// Output:
	// spec memory: 1048576 bytes are too little to boot; use at least 16 MiB, or 0 for the default of 2 GiB
	// true
}
