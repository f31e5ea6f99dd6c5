package vm

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/cgroup"
)

// headroom is what QEMU may use beside the machine's memory: its own, and the
// code that it translated.
const headroom = 512 << 20

// group is QEMU's control group; nil without one.
type group struct{ g *cgroup.Group }

func (g group) oomKills() int {
	if g.g == nil {
		return 0
	}
	return int(g.g.OOMKills())
}

func (g group) remove(ctx context.Context) error {
	if g.g == nil {
		return nil
	}
	return g.g.Remove(ctx)
}

// cpuLimitSupport says who holds a limit of CPU time.
func cpuLimitSupport() box.Limit {
	s := cgroup.Probe()
	if s.CPU == "" {
		return box.Limit{By: "the machine's CPUs", Note: "in whole CPUs: " + s.Reason}
	}
	return box.Limit{By: s.CPU}
}

// enterGroup puts QEMU into a control group with the limits that the machine
// itself does not hold.
func (i *instance) enterGroup(id string) error {
	s := cgroup.Probe()
	if s.CPU == "" && s.Memory == "" {
		return nil
	}
	limits := cgroup.Limits{CPUs: i.want.CPUs, Memory: i.m.hw.memory + headroom}
	if i.want.CPUs > 0 && s.CPU != "" {
		// QEMU's own threads beside the CPUs' are part of what a box takes.
		i.limits.CPUs = box.Limit{Value: i.want.CPUs, By: s.CPU}
	}
	g, err := cgroup.Create(id, limits)
	if err != nil {
		return err
	}
	i.group.g = g
	return g.Add(i.p.cmd.Process.Pid)
}

// processUsage reads what a process uses of the host.
func processUsage(pid int) (cpu time.Duration, memory int64, threads int, err error) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 0, 0, 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	if len(f) < 22 {
		return 0, 0, 0, fmt.Errorf("%s/stat is not as expected", dir)
	}
	const tick = time.Second / 100 // as on every Linux that this runs on
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	threads, _ = strconv.Atoi(f[17])
	pages, _ := strconv.ParseInt(strings.TrimSpace(f[21]), 10, 64)
	return time.Duration(user+system) * tick, pages * int64(os.Getpagesize()), threads, nil
}
