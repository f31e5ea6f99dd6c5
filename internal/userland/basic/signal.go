package basic

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// maxSignal is the highest signal number of Linux.
const maxSignal = 64

// ParseSignal reads a signal by number or by name with or without SIG, in any
// case. Signal 0 is allowed.
func ParseSignal(s string) (syscall.Signal, bool) {
	if n, err := strconv.Atoi(s); err == nil {
		return syscall.Signal(n), n >= 0 && n <= maxSignal
	}
	u := strings.ToUpper(s)
	if !strings.HasPrefix(u, "SIG") {
		u = "SIG" + u
	}
	switch u {
	case "SIGEXIT":
		return 0, true
	case "SIGCLD":
		return syscall.SIGCHLD, true
	case "SIGIOT":
		return syscall.SIGABRT, true
	}
	if n, ok := strings.CutPrefix(u, "SIGRTMIN+"); ok {
		k, err := strconv.Atoi(n)
		return syscall.Signal(34 + k), err == nil && k >= 0 && 34+k <= maxSignal
	}
	switch u {
	case "SIGRTMIN":
		return 34, true
	case "SIGRTMAX":
		return maxSignal, true
	}
	n := unix.SignalNum(u)
	return n, n != 0
}

// SignalName is the name of a signal without SIG, or its number.
func SignalName(sig syscall.Signal) string {
	if n := unix.SignalName(sig); n != "" {
		return strings.TrimPrefix(n, "SIG")
	}
	switch {
	case sig == 0:
		return "EXIT"
	case sig == 34:
		return "RTMIN"
	case sig == maxSignal:
		return "RTMAX"
	}
	return strconv.Itoa(int(sig))
}

// Kill is the kill utility.
func Kill(c *tool.Context) int { return KillWith(c, nil, syscall.Kill) }

// KillWith is kill for a caller that resolves job names such as %1 to a
// process or (negative) group id, and sends signals by send. A nil job means
// that there are no jobs.
func KillWith(c *tool.Context, job func(string) (int, error), send func(pid int, sig syscall.Signal) error) int {
	args := c.Args
	sig := syscall.SIGTERM
	usage := func() int {
		fmt.Fprintf(c.Stderr, "Usage: kill [-s SIGNAL | -SIGNAL] PID...\n       kill -l [SIGNAL]...\n")
		return 2
	}
	if len(args) == 0 {
		return usage()
	}
	switch a := args[0]; {
	case a == "--help":
		c.Printf("Usage: kill [-s SIGNAL | -SIGNAL] PID...\n       kill -l [SIGNAL]...\n")
		return 0
	case a == "-l" || a == "-L":
		return listSignals(c, args[1:])
	case a == "-s" || a == "-n":
		if len(args) < 2 {
			return usage()
		}
		s, ok := ParseSignal(args[1])
		if !ok {
			return c.Fail(1, "invalid signal '%s'", args[1])
		}
		sig, args = s, args[2:]
	case a == "--":
		args = args[1:]
	case len(a) > 1 && a[0] == '-':
		name := strings.TrimPrefix(a[1:], "s")
		s, ok := ParseSignal(a[1:])
		if !ok && name != a[1:] {
			s, ok = ParseSignal(name)
		}
		if !ok {
			return c.Fail(1, "invalid signal '%s'", a[1:])
		}
		sig, args = s, args[1:]
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return usage()
	}
	code := 0
	for _, a := range args {
		var pid int
		var err error
		if strings.HasPrefix(a, "%") && job != nil {
			pid, err = job(a)
		} else if pid, err = strconv.Atoi(a); err != nil {
			err = fmt.Errorf("invalid process id '%s'", a)
		}
		if err != nil {
			c.Errorf("%v", err)
			code = 1
			continue
		}
		if err := send(pid, sig); err != nil {
			c.Errorf("(%d) - %s", pid, tool.Reason(err))
			code = 1
		}
	}
	return code
}

func listSignals(c *tool.Context, names []string) int {
	if len(names) == 0 {
		for i := 1; i < 32; i++ {
			c.Printf("%s\n", SignalName(syscall.Signal(i)))
		}
		return 0
	}
	for _, n := range names {
		if v, err := strconv.Atoi(n); err == nil {
			if v > 128 {
				v -= 128
			}
			if v < 0 || v > maxSignal {
				return c.Fail(1, "invalid signal '%s'", n)
			}
			c.Printf("%s\n", SignalName(syscall.Signal(v)))
			continue
		}
		s, ok := ParseSignal(n)
		if !ok {
			return c.Fail(1, "invalid signal '%s'", n)
		}
		c.Printf("%d\n", int(s))
	}
	return 0
}

// DieBySignal ends this process by sig with its default effect, so that the
// parent sees the true cause. It returns only if the signal does not end it.
func DieBySignal(sig syscall.Signal) {
	resetSignal(sig)
	// To this very thread, which then cannot run on and end the process by
	// itself before the signal has.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = syscall.Tgkill(os.Getpid(), syscall.Gettid(), sig)
}
