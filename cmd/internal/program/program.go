// Package program runs the hutch command in this process: it gives package cli
// the process's arguments, streams and signals, and boxes on this machine.
package program

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/local"
	"github.com/hutch-sandbox/hutch/internal/cli"
	"github.com/hutch-sandbox/hutch/internal/helper"
)

// Models makes the model that has a name; see cli.App.
type Models func(name, home string, getenv func(string) string) (model.Model, error)

// Run runs the command that the process was started with and returns the exit
// status. kernels opens the store of kernels; see cli.App. It may be nil.
func Run(models Models, kernels func(home string) (cli.Kernels, error)) int {
	dir, err := os.Getwd()
	if err != nil {
		dir = "/" // it was removed; absolute paths still work
	}
	// A reader of the output that went away shall be an error of a write, so
	// that the command tidies up, and not the end of this process. Catching
	// the signal does that, and unlike ignoring it is not inherited by the
	// processes that this one starts.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return cli.Main(context.Background(), cli.App{
		Args:    os.Args[1:],
		Environ: os.Environ(),
		Dir:     dir,
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Notify:  notify,
		Version: helper.Version(),
		Models:  models,
		Kernels: kernels,
		Open: func(ctx context.Context, opts cli.OpenOptions) (*box.Runtime, error) {
			return local.Open(ctx, local.Config{Home: opts.Home})
		},
	})
}

// notify subscribes to signals, except to those that whoever started this
// program wants ignored (nohup, a shell's background job).
func notify(sigs ...os.Signal) (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 16)
	for _, sig := range sigs {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
	return c, func() { signal.Stop(c) }
}
