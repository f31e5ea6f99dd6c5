// Command agent-network gives an agent's box a network that reaches two hosts and
// nothing else. The default is none at all.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/coder"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/local"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "agent-network:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rt, err := local.Open(ctx, local.Config{})
	if err != nil {
		return err
	}
	defer rt.Close()
	boxes, err := sandbox.New(rt, sandbox.Options{
		Spec:   box.Spec{Network: box.Network{Allow: []string{"pypi.org", "files.pythonhosted.org"}}},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	// With an image of Python's, the agent would install a package. What the
	// network lets through is the same: other names do not even resolve.
	m := scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		if len(scripted.Returns(req)) > 0 {
			return scripted.Say("I tried."), nil
		}
		return scripted.Call("1", "shell", `{"command": "cat /etc/resolv.conf; true"}`), nil
	})
	result, err := agent.New(m, boxes, coder.New(coder.Options{})).Run(ctx, "Install requests and check that it imports.")
	ref, ok := result.Workspace.Ref()
	if ok {
		defer boxes.Destroy(ctx, ref)
	}
	if err != nil {
		return err
	}
	// What a box may reach can be asked, and changed while it runs.
	b, err := rt.Get(ctx, ref.ID)
	if err != nil {
		return err
	}
	defer b.Close()
	network, err := b.Network(ctx)
	if err != nil {
		return err
	}
	fmt.Println("it reaches", network.Allow)
	policy, err := network.Compile()
	if err != nil {
		return err
	}
	for _, name := range []string{"pypi.org", "example.com"} {
		fmt.Println(name, "resolves:", policy.Name(name).Allowed)
	}
	return nil
}
