//go:build linux

// Package gvisor is the engine that runs boxes on gVisor's application kernel,
// linked into this program. It works wherever Linux runs: no KVM, no daemon,
// and no root where user namespaces are allowed.
//
// A machine is two processes, both this program's own file under other names
// (see IsHelper): the sandbox, which holds the kernel and everything that runs
// in the box, and the gofer, which opened its files. They live in the keeper's
// mount, process and, for an ordinary user, user namespace, and in a control
// group of their own where there is one.
//
// The root file system is an overlay that the keeper mounts: the image's tree
// and the guest agent's folder below, the box's own folder on top. What the
// guest wrote is in that folder at once, so that it outlives any crash here.
//
// The agent is reached over the network link, by its secret. gVisor's own port
// forwarding is not used: it loses bytes under load.
package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/x/cgroup"
)

// Name is the engine's name.
const Name = "gvisor"

// Engine implements engine.Engine.
type Engine struct{}

// New returns the engine. It does nothing yet.
func New() *Engine { return &Engine{} }

// quiet drops what gVisor's code says in this process, unless somebody is
// looking for a fault: its errors come back as errors.
func quiet() {
	if os.Getenv("HUTCH_DEBUG") == "" {
		log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}})
	}
}

// Name returns Name.
func (*Engine) Name() string { return Name }

// Form returns engine.Tree.
func (*Engine) Form() engine.Form { return engine.Tree }

// Checksums returns false: gVisor's own stack trusts the link as well.
func (*Engine) Checksums() bool { return false }

// Restore is not supported.
func (*Engine) Restore(context.Context, engine.Config, string) (engine.Instance, error) {
	return nil, fmt.Errorf("gvisor: restore: %w", errors.ErrUnsupported)
}

// Probe checks for seccomp. The namespaces that gVisor needs as well are those
// of the process that asks: without them it would not have started.
func (*Engine) Probe(context.Context, string) engine.Report {
	r := engine.Report{
		Version:   moduleVersion(),
		Isolation: box.IsolationKernel,
		Pause:     true,
		Limits:    limitSupport(),
	}
	if _, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err != nil {
		r.Reason = "the host's kernel has no seccomp"
		return r
	}
	r.Usable = true
	return r
}

func limitSupport() box.Limits {
	s := cgroup.Probe()
	l := box.Limits{
		CPUs:   box.Limit{By: s.CPU},
		Memory: box.Limit{By: s.Memory},
		Pids:   box.Limit{By: "the box's kernel"},
	}
	if s.CPU == "" {
		l.CPUs.Note = s.Reason
	}
	if s.Memory == "" {
		l.Memory.By = "the keeper, by watching"
	}
	if how, why := diskLimitSupport(); how != "" {
		l.Disk.By = how
	} else {
		l.Disk.Note = why
	}
	return l
}

// moduleVersion is the version of gVisor that this program links.
func moduleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == "gvisor.dev/gvisor" {
			return m.Version
		}
	}
	return ""
}

// newConfig returns gVisor's configuration for one machine whose state is in
// root. Everything not set here has gVisor's default.
func newConfig(root, console string) (*config.Config, error) {
	fs := flag.NewFlagSet("gvisor", flag.ContinueOnError)
	config.RegisterFlags(fs)
	for name, value := range map[string]string{
		"root":     root,
		"platform": "systrap",
		// The link is handed over before the start; see boot.
		"network": "sandbox",
		// The keeper's group is made by package cgroup, which also knows
		// delegated groups.
		"ignore-cgroups": "true",
		// Version 1 inside counts a new process against any one of its groups,
		// most of which have no limit: pids.max would hold once in seven times.
		"in-sandbox-cgroup": "v2",
		// Writes go to the host overlay below, at once.
		"overlay2":    "none",
		"file-access": "exclusive",
		// Each gofer in a fresh namespace: sharing one would pin a mount in
		// a folder that all boxes see.
		"gofer-network-namespace": "new",
		"host-settings":           "ignore",
		// sudo, su and ping work in a box as on any machine.
		"allow-suid": "true",
		"net-raw":    "true",
		// This program is its own helper; nothing else is looked for.
		"sidecar-usage-policy": string(config.SidecarUsageLegacyEmbedded),
		"panic-log":            console,
		"traceback":            "all",
	} {
		if err := fs.Set(name, value); err != nil {
			return nil, fmt.Errorf("gvisor configuration: %s: %w", name, err)
		}
	}
	return config.NewFromFlags(fs)
}
