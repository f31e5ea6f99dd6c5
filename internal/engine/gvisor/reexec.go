//go:build linux

package gvisor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

// IsHelper reports whether this process was started by gVisor's own code as
// one of a box's engine processes. They are started with this program's file
// and an empty environment; the name they are called by is all there is to
// tell them by.
func IsHelper(args []string) bool {
	if len(args) == 0 {
		return false
	}
	return args[0] == "/proc/self/exe" || strings.HasPrefix(filepath.Base(args[0]), "runsc")
}

// RunHelper is the whole life of an engine process; it does not return. It
// must come before anything else in main: the process is about to give up its
// privileges, and must hold nothing that it should not.
func RunHelper() {
	applyBootOverrides()
	deferGC()
	cli.Run(nil, map[util.SubCommand]string{
		new(sentrycmd.Boot):   "",
		new(cmd.Gofer):        "",
		new(sentrycmd.Umount): "",
	}, nil)
	os.Exit(0)
}

// A start allocates a few MiB that mostly live on, in many small steps.
// Collections in between free little and fault pages in; in profiles they took
// a tenth of the time from create to first output. The limit keeps a sandbox in
// check that is put to heavy work at once.
const (
	startTime  = 2 * time.Second
	startLimit = 64 << 20 // bytes
)

// deferGC keeps the garbage collector quiet until this process has started.
func deferGC() {
	percent, limit := debug.SetGCPercent(-1), debug.SetMemoryLimit(startLimit)
	// The process ends by exit only, so nobody has to stop the timer.
	time.AfterFunc(startTime, func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
		debug.FreeOSMemory()
	})
}

// bootOverrides are arguments of the sandbox process that gVisor derives from
// its own control groups, which we do not use (the keeper puts the finished
// processes into a group of its own making). They wait in the bundle folder.
type bootOverrides struct {
	TotalMemory int64 `json:"totalMemory,omitempty"` // what the box sees as its memory, in bytes
	CPUs        int   `json:"cpus,omitempty"`        // how many CPUs it sees
}

const overridesFile = "boot.json"

// applyBootOverrides edits os.Args. The sandbox process starts itself anew
// with the same arguments when it drops privileges, so they must be right.
func applyBootOverrides() {
	boot := -1
	bundle := ""
	for i, arg := range os.Args {
		if arg == "boot" && boot < 0 {
			boot = i
		}
		if dir, ok := strings.CutPrefix(arg, "--bundle="); ok {
			bundle = dir
		}
	}
	if boot < 0 || bundle == "" {
		return
	}
	data, err := os.ReadFile(filepath.Join(bundle, overridesFile))
	if err != nil {
		return // none asked for, or the second start, inside the new root
	}
	var o bootOverrides
	if json.Unmarshal(data, &o) != nil {
		return
	}
	set := func(flag, value string) {
		for i := boot; i < len(os.Args); i++ {
			if os.Args[i] == flag && i+1 < len(os.Args) {
				os.Args[i+1] = value
				return
			}
		}
		// Flags come before the last argument, the machine's id.
		last := len(os.Args) - 1
		os.Args = append(os.Args[:last:last], flag, value, os.Args[last])
	}
	if o.TotalMemory > 0 {
		set("--total-memory", strconv.FormatInt(o.TotalMemory, 10))
	}
	if o.CPUs > 0 {
		set("--cpu-num", strconv.Itoa(o.CPUs))
	}
}
