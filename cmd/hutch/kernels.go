package main

import (
	"context"
	"os"

	"github.com/hutch-sandbox/hutch/internal/boxdir"
	"github.com/hutch-sandbox/hutch/internal/cli"
	"github.com/hutch-sandbox/hutch/internal/engine/vm/kernel"
)

// kernels is a store of kernels as the commands see it.
type kernels struct{ store *kernel.Store }

func openKernels(home string) (cli.Kernels, error) {
	if home == "" {
		var err error
		if home, err = boxdir.Default(); err != nil {
			return nil, err
		}
	}
	h, err := boxdir.Open(home)
	if err != nil {
		return nil, err
	}
	return kernels{kernel.In(h.Path("cache"))}, nil
}

func (k kernels) List(context.Context) ([]cli.Kernel, error) {
	list, err := k.store.List()
	var out []cli.Kernel
	for _, info := range list {
		out = append(out, describe(info))
	}
	return out, err
}

func (k kernels) Fetch(ctx context.Context, mirror string) (cli.Kernel, error) {
	info, err := k.store.Fetch(ctx, kernel.FetchOptions{Mirror: mirror})
	return describe(info), err
}

func (k kernels) Use(ctx context.Context, name, file string) (cli.Kernel, error) {
	info, err := k.store.Select(name)
	if err == nil {
		return describe(info), nil
	}
	if _, serr := os.Stat(file); serr != nil {
		return cli.Kernel{}, err
	}
	info, err = k.store.Add(ctx, file, file)
	return describe(info), err
}

func (k kernels) Remove(_ context.Context, name string) error { return k.store.Remove(name) }

func describe(i kernel.Info) cli.Kernel {
	return cli.Kernel{Name: i.Name, Release: i.Release, Source: i.Source, Digest: i.Digest, Modules: i.Modules, Added: i.Added, Selected: i.Selected}
}
