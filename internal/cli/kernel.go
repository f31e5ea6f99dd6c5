package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

// Kernel is a kernel that virtual machines boot.
type Kernel struct {
	Name     string    `json:"name"`
	Release  string    `json:"release"` // as uname -r says
	Source   string    `json:"source"`  // where it came from
	Digest   string    `json:"digest"`  // SHA-256 of what it came from
	Modules  int       `json:"modules"`
	Added    time.Time `json:"added"`
	Selected bool      `json:"selected,omitempty"` // new boots use it
}

// Kernels keeps kernels for virtual machines.
type Kernels interface {
	// List returns all, newest first.
	List(ctx context.Context) ([]Kernel, error)
	// Fetch fetches one, from a mirror if one is named, and selects it.
	Fetch(ctx context.Context, mirror string) (Kernel, error)
	// Use selects the kernel with that name; or, if there is none, adds the
	// absolute file (a Debian package or a kernel image) and selects it.
	Use(ctx context.Context, name, file string) (Kernel, error)
	// Remove removes one.
	Remove(ctx context.Context, name string) error
}

func (e *env) kernelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kernel COMMAND",
		Short: "Manage the kernels of virtual machines",
		Long: `Boxes of the engine vm boot a Linux kernel of their own, which is fetched once.
Boxes that run keep the kernel they have.`,
		Example: `  hutch kernel fetch
  hutch run --engine vm debian:bookworm uname -r`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("COMMAND: missing; see 'hutch kernel --help'")
			}
			return unknownCommand(cmd, args)
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(e.kernelListCommand(), e.kernelFetchCommand(), e.kernelUseCommand(), e.kernelRmCommand())
	return cmd
}

// kernels opens the store of the home that the command works on.
func (e *env) kernels() (Kernels, error) {
	if e.Kernels == nil {
		return nil, &box.Error{Kind: box.Unsupported, Op: "kernel", Err: errors.New("this program keeps no kernels")}
	}
	return e.Kernels(e.homeDir())
}

func (e *env) kernelListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List kernels",
		Long:    `New boots use the one that is marked.`,
		Example: `  hutch kernel ls`,
		Args:    need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := e.kernels()
			if err != nil {
				return err
			}
			list, err := k.List(cmd.Context())
			if err != nil {
				return err
			}
			if e.json {
				return e.document(append([]Kernel{}, list...))
			}
			t := newTable(e.stdout, "NAME", "USED", "ADDED", "SOURCE")
			for _, k := range list {
				used := ""
				if k.Selected {
					used = "*"
				}
				t.row(k.Name, used, imageAge(e, k.Added), k.Source)
			}
			return t.flush()
		},
	}
}

func (e *env) kernelFetchCommand() *cobra.Command {
	var mirror string
	cmd := &cobra.Command{
		Use:   "fetch [flags]",
		Short: "Fetch a kernel and use it",
		Long: `It is Debian's kernel for virtual machines: by apt, where there is apt, and else
from a mirror of Debian's security archive, checked against the digest that this
version of Hutch knows. It prints the kernel's name.`,
		Example: `  hutch kernel fetch
  hutch kernel fetch --mirror https://mirror.example/debian-security`,
		Args: need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := e.kernels()
			if err != nil {
				return err
			}
			got, err := k.Fetch(cmd.Context(), mirror)
			if err != nil {
				return err
			}
			return e.printKernel(got)
		},
	}
	parsed(cmd.Flags(), &mirror, "mirror", "", "url", "a mirror of Debian's security archive, instead of apt", someText)
	return cmd
}

func (e *env) kernelUseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "use NAME|FILE",
		Short: "Choose the kernel of new boots",
		Long: `NAME is one of 'hutch kernel ls'. FILE is a Debian package of a kernel, or a
kernel image that has all it needs built in (virtio-mmio, virtio-blk, virtio-net,
virtio-console, erofs, ext4 and overlay).`,
		Example: `  hutch kernel use ./linux-image-6.1.0-57-cloud-amd64_6.1.192-3_amd64.deb`,
		Args:    need(1, 1, "NAME or FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "" {
				return usagef("NAME or FILE: must not be empty; see 'hutch kernel ls'")
			}
			k, err := e.kernels()
			if err != nil {
				return err
			}
			got, err := k.Use(cmd.Context(), args[0], e.hostPath(args[0]))
			if err != nil {
				return err
			}
			return e.printKernel(got)
		},
	}
}

func (e *env) kernelRmCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME...",
		Short:   "Remove kernels",
		Long:    `Boxes that run are not disturbed.`,
		Example: `  hutch kernel rm 6.1.0-50-cloud-amd64`,
		Args:    need(1, -1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := e.kernels()
			if err != nil {
				return err
			}
			for _, name := range args {
				if err := k.Remove(cmd.Context(), name); err != nil {
					return err
				}
				if err := e.println(name); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (e *env) printKernel(k Kernel) error {
	if e.json {
		return e.document(k)
	}
	return e.println(k.Name)
}

// warnEmulated says once, when a box is created, that it will be slow.
func (e *env) warnEmulated(info box.Info) {
	if info.Accelerator == "tcg" {
		_, _ = e.Stderr.Write([]byte("warning: no hardware virtualization works here, so that QEMU emulates the box's machine: it is about ten times slower, and no strong wall; 'hutch doctor' says what is missing\n"))
	}
}
