//go:build linux

package gvisor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hutch-sandbox/hutch/internal/engine"
)

// newSpec describes the machine to gVisor: one process, the agent, with every
// capability of the box's own kernel. What keeps the box from the host is that
// kernel, not its capabilities.
func newSpec(cfg *engine.Config, root string) *specs.Spec {
	caps := allCapabilities()
	s := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: root},
		Process: &specs.Process{
			Args: []string{"/" + agentDir + "/agent"},
			Env:  []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: caps, Effective: caps, Permitted: caps,
			},
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1 << 20, Hard: 1 << 20}},
		},
		Hostname: cfg.Hostname,
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc"},
			{Destination: "/sys", Type: "sysfs"},
			{Destination: "/dev", Type: "dev"},
			{Destination: "/dev/pts", Type: "devpts"},
			{Destination: "/dev/shm", Type: "tmpfs", Options: []string{"mode=1777"}},
			// Without these two lines gVisor puts a tmpfs of its own on an
			// empty /tmp, and files there would not last.
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
			},
		},
	}
	// A volume inside of another one comes after it, however they were named.
	mounts := slices.Clone(cfg.Mounts)
	slices.SortStableFunc(mounts, func(a, b engine.Mount) int {
		return strings.Count(filepath.Clean(a.Target), "/") - strings.Count(filepath.Clean(b.Target), "/")
	})
	for _, m := range mounts {
		opts := []string{"rbind", "rw"}
		if m.ReadOnly {
			opts = []string{"rbind", "ro"}
		}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: m.Target, Type: "bind", Source: m.Source, Options: opts})
	}
	return s
}

func allCapabilities() []string {
	return []string{
		"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_AUDIT_WRITE", "CAP_BLOCK_SUSPEND", "CAP_CHOWN",
		"CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_IPC_LOCK", "CAP_IPC_OWNER",
		"CAP_KILL", "CAP_LEASE", "CAP_LINUX_IMMUTABLE", "CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_MKNOD",
		"CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID",
		"CAP_SETPCAP", "CAP_SETUID", "CAP_SYSLOG", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_CHROOT",
		"CAP_SYS_MODULE", "CAP_SYS_NICE", "CAP_SYS_PACCT", "CAP_SYS_PTRACE", "CAP_SYS_RAWIO", "CAP_SYS_RESOURCE",
		"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_WAKE_ALARM",
	}
}

// writeBundle writes what gVisor reads from a bundle folder.
func writeBundle(dir string, spec *specs.Spec, o bootOverrides) error {
	for name, v := range map[string]any{"config.json": spec, overridesFile: o} {
		data, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
