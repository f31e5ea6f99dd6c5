package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// host is the machine that measured.
type host struct {
	cpu     string
	cores   int
	memory  int64
	system  string
	kernel  string
	nested  string
	cgroups string
	load    string // before the run
	podman  string
	crun    string
}

func describeHost(ctx context.Context) host {
	h := host{cores: runtime.NumCPU(), load: loadAverage(), cpu: "unknown", system: runtime.GOOS, cgroups: "none"}
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		h.cpu = field(string(data), "model name", h.cpu)
		h.nested = nested(string(data))
	}
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		kb, _ := strconv.ParseInt(strings.TrimSuffix(field(string(data), "MemTotal", "0 kB"), " kB"), 10, 64)
		h.memory = kb << 10
	}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		h.kernel = unix.ByteSliceToString(uts.Release[:]) + " " + unix.ByteSliceToString(uts.Machine[:])
	}
	if data, err := os.ReadFile("/etc/os-release"); err == nil {
		for line := range strings.Lines(string(data)) {
			if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
				h.system = strings.Trim(strings.TrimSpace(name), `"`)
			}
		}
	}
	switch {
	case exists("/sys/fs/cgroup/cgroup.controllers"):
		h.cgroups = "v2"
	case exists("/sys/fs/cgroup/unified"):
		h.cgroups = "v1 and v2 (hybrid)"
	case exists("/sys/fs/cgroup/memory"):
		h.cgroups = "v1"
	}
	// Absent ones are in the report anyway, as contestants that cannot run.
	h.podman, _ = program{args: []string{"podman"}}.output(ctx, "--version")
	h.crun, _ = program{args: []string{"crun"}}.output(ctx, "--version")
	h.podman = strings.TrimPrefix(strings.TrimSpace(h.podman), "podman version ")
	h.crun, _, _ = strings.Cut(strings.TrimPrefix(h.crun, "crun version "), "\n")
	return h
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// field returns the value of the first line "key : value".
func field(text, key, without string) string {
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return without
}

// nested says whether the machine is itself a guest, which makes what a
// sandbox does dearer.
func nested(cpuinfo string) string {
	flags := strings.Fields(field(cpuinfo, "flags", ""))
	for _, f := range flags {
		if f == "hypervisor" {
			kvm := "no /dev/kvm"
			if exists("/dev/kvm") {
				kvm = "with /dev/kvm"
			}
			return "a virtual machine, " + kvm
		}
	}
	return "not a virtual machine, as far as its CPU says"
}

func loadAverage() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	f := strings.Fields(string(data))
	return strings.Join(f[:min(3, len(f))], " ")
}

// lines describes the machine for the report.
func (h host) lines(gvisor string) []string {
	return []string{
		fmt.Sprintf("CPU: %s, %d cores visible", h.cpu, h.cores),
		fmt.Sprintf("memory: %.1f GiB", float64(h.memory)/(1<<30)),
		fmt.Sprintf("system: %s, kernel %s, control groups %s", h.system, h.kernel, h.cgroups),
		"machine: " + h.nested,
		fmt.Sprintf("versions: Go %s, gVisor %s, podman %s, crun %s", strings.TrimPrefix(runtime.Version(), "go"), gvisor, orNone(h.podman), orNone(h.crun)),
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
