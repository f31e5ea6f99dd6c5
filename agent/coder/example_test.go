package coder_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/coder"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/workspace/hostdir"
)

// A coding agent, with a scripted model in the place of a real one and a
// folder in the place of a box.
func Example() {
	dir, err := os.MkdirTemp("", "coder")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ws, err := hostdir.New(dir, hostdir.Options{})
	if err != nil {
		log.Fatal(err)
	}
	m := scripted.Sequence(
		scripted.Call("1", "write_file", `{"path":"hello.sh","content":"echo hello\n"}`),
		scripted.Call("2", "shell", `{"command":"sh hello.sh"}`),
		scripted.Say("It prints hello."),
	)
	a := agent.New(m, coder.New(coder.Options{}))
	res, err := a.Run(context.Background(), "Write a script that says hello, and run it.", agent.WithWorkspace(ws))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Output)
	// Output: It prints hello.
}
