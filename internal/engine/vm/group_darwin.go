package vm

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// group is nothing on macOS.
type group struct{}

func (group) oomKills() int                { return 0 }
func (group) remove(context.Context) error { return nil }

func cpuLimitSupport() box.Limit {
	return box.Limit{By: "the machine's CPUs", Note: "in whole CPUs"}
}

func (*instance) enterGroup(string) error { return nil }

// processUsage asks ps: macOS has no file that says it.
func processUsage(pid int) (cpu time.Duration, memory int64, threads int, err error) {
	out, err := exec.Command("/bin/ps", "-o", "rss=,time=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return 0, 0, 0, err
	}
	f := strings.Fields(string(bytes.TrimSpace(out)))
	if len(f) != 2 {
		return 0, 0, 0, fmt.Errorf("ps says %q", out)
	}
	kb, err := strconv.ParseInt(f[0], 10, 64)
	if err != nil {
		return 0, 0, 0, err
	}
	var minutes, seconds float64
	if _, err := fmt.Sscanf(f[1], "%f:%f", &minutes, &seconds); err != nil {
		return 0, 0, 0, err
	}
	return time.Duration((minutes*60 + seconds) * float64(time.Second)), kb << 10, -1, nil
}
