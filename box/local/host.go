package local

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/helper"
)

// Host looks at this machine.
func (d *driver) Host(ctx context.Context) (box.HostInfo, error) {
	h := box.HostInfo{
		Version: helper.Version(), Home: d.home.Dir(),
		OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(),
	}
	if u, err := user.Current(); err == nil {
		h.User = u.Username
	}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		h.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		h.Memory = int64(si.Totalram) * int64(si.Unit)
	}
	infos, err := d.List(ctx, box.ListOptions{})
	if err != nil {
		return h, err
	}
	h.Boxes = len(infos)
	for _, info := range infos {
		if info.State == box.Running {
			h.Running++
		}
	}
	list, err := d.Images().List(ctx)
	if err != nil {
		return h, err
	}
	h.Images = len(list)
	h.Engines, h.Checks = d.checks(ctx)
	return h, nil
}

// checks finds out what works and what would mend the rest.
func (d *driver) checks(ctx context.Context) ([]box.EngineInfo, []box.Check) {
	var checks []box.Check
	add := func(name string, ok bool, detail, fix string) {
		if ok {
			fix = ""
		}
		checks = append(checks, box.Check{Name: name, OK: ok, Detail: detail, Fix: fix})
	}
	probe, err := d.probeAgain(ctx)
	if err != nil {
		why, fix := namespaceTrouble()
		if why == "" {
			why, fix = err.Error(), box.HintOf(err)
		}
		add("helper", false, why, fix)
		return nil, checks
	}
	add("helper", true, d.helper, "")
	var limits box.Limits
	for n, e := range probe.Engines {
		detail := e.Reason
		if e.Usable {
			detail = string(e.Isolation)
			if e.Note != "" {
				detail += ": " + e.Note
			}
			if e.Explicit {
				detail += "; used only when it is asked for (--engine " + e.Name + ")"
			}
		}
		add("engine "+e.Name, e.Usable, detail, probe.Fixes[n])
		if e.Default {
			limits = e.Limits
		}
	}
	if d.ids.All() {
		add("users", true, "boxes have all users of their images", "")
	} else {
		add("users", false, "boxes have only root, not the other users of their images: "+d.ids.WhyNot(), d.ids.Fix())
	}
	for _, l := range []struct {
		name  string
		limit box.Limit
		fix   string
	}{
		{"CPU limits", limits.CPUs, "run as root, or from a systemd user session with delegated control groups"},
		{"memory limits", limits.Memory, "run as root, or from a systemd user session with delegated control groups"},
		{"disk limits", limits.Disk, "run as root"},
		{"process limits", limits.Pids, ""},
	} {
		detail := "held by " + l.limit.By
		if l.limit.By == "" {
			detail = "not held: " + l.limit.Note
		}
		add(l.name, l.limit.By != "", detail, l.fix)
	}
	_, err = exec.LookPath("mmdebstrap")
	detail := "hutch image debian works"
	if err != nil {
		detail = "hutch image debian needs mmdebstrap"
	}
	add("mmdebstrap", err == nil, detail, "sudo apt-get install mmdebstrap")
	var st unix.Statfs_t
	if unix.Statfs(d.home.Dir(), &st) == nil {
		free := int64(st.Bavail) * st.Bsize
		add("disk space", free > 2<<30, fmt.Sprintf("%.1f GiB free at %s", float64(free)/(1<<30), d.home.Dir()), "hutch image prune --all")
	}
	return probe.Engines, checks
}

// namespaceTrouble says why this user cannot make the namespaces that helpers
// live in, and what would help.
func namespaceTrouble() (why, fix string) {
	if os.Geteuid() == 0 {
		return "", ""
	}
	for _, s := range []struct{ file, bad, why, fix string }{
		{"/proc/sys/user/max_user_namespaces", "0", "user namespaces are switched off", "sudo sysctl -w user.max_user_namespaces=15000"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "user namespaces are for root only", "sudo sysctl -w kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor restricts user namespaces", "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
	} {
		if data, err := os.ReadFile(s.file); err == nil && strings.TrimSpace(string(data)) == s.bad {
			return s.why, s.fix
		}
	}
	return "", ""
}
