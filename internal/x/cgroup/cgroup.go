// Package cgroup puts processes into a Linux control group with limits: cgroup
// v1 and v2 as root, and a delegated part of cgroup v2 as an ordinary user.
//
// A Group's methods may be called concurrently.
package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Root is where the kernel's hierarchies are mounted.
const Root = "/sys/fs/cgroup"

// parent is the folder below a hierarchy that holds all groups of Hutch.
const parent = "hutch"

// period of the CPU quota, in microseconds; the kernel's default.
const period = 100_000

// Limits of a group; zero means none.
type Limits struct {
	CPUs   float64
	Memory int64 // bytes
	Pids   int
}

// Support says what can be limited here. The empty string means no.
type Support struct {
	CPU, Memory, Pids string // the mechanism's name, for example "cgroup v1"
	// Reason says why something is missing.
	Reason string
}

// Group is one control group.
type Group struct {
	v2   bool
	dirs map[string]string // controller → folder; on v2 all the same
}

var controllers = []string{"cpu", "memory", "pids", "cpuacct"}

// layout finds the folder of each controller below which groups can be made.
type layout struct {
	v2    bool
	bases map[string]string
}

// detect looks below root, which tests replace.
func detect(root string) (layout, error) {
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return detectV2(root)
	}
	l := layout{bases: map[string]string{}}
	for _, c := range controllers {
		dir := filepath.Join(root, c)
		if unix.Access(dir, unix.W_OK) == nil && isDir(dir) {
			l.bases[c] = dir
		}
	}
	if len(l.bases) == 0 {
		return l, fmt.Errorf("no control group hierarchy below %s can be written", root)
	}
	return l, nil
}

// detectV2 uses the highest group above this process that may be written:
// the root group for root, the delegated one for an ordinary user.
func detectV2(root string) (layout, error) {
	l := layout{v2: true, bases: map[string]string{}}
	base := root
	if os.Geteuid() != 0 || unix.Access(root, unix.W_OK) != nil {
		own, err := ownV2()
		if err != nil {
			return l, err
		}
		base = ""
		for dir := filepath.Join(root, own); strings.HasPrefix(dir, root+"/"); dir = filepath.Dir(dir) {
			if unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK) == nil && unix.Access(dir, unix.W_OK) == nil {
				base = dir
			}
		}
		if base == "" {
			return l, fmt.Errorf("no control group is delegated to user %d", os.Geteuid())
		}
	}
	data, err := os.ReadFile(filepath.Join(base, "cgroup.controllers"))
	if err != nil {
		return l, err
	}
	for _, c := range strings.Fields(string(data)) {
		l.bases[c] = base
	}
	if len(l.bases) == 0 {
		return l, fmt.Errorf("no controller is available in %s", base)
	}
	return l, nil
}

func ownV2() (string, error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return own, nil
		}
	}
	return "", errors.New("this process is in no cgroup v2 group")
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// Probe finds out what Create can limit here.
func Probe() Support { return probe(Root) }

func probe(root string) Support {
	l, err := detect(root)
	if err != nil {
		return Support{Reason: err.Error()}
	}
	name := "cgroup v1"
	if l.v2 {
		name = "cgroup v2"
	}
	var s Support
	var missing []string
	for c, field := range map[string]*string{"cpu": &s.CPU, "memory": &s.Memory, "pids": &s.Pids} {
		if l.bases[c] != "" {
			*field = name
		} else {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		s.Reason = "no " + strings.Join(missing, ", ") + " controller"
	}
	return s
}

// Create makes the group name with limits. Controllers that are not there are
// left out; Probe says which. An error undoes what was made.
func Create(name string, limits Limits) (*Group, error) { return create(Root, name, limits) }

func create(root, name string, limits Limits) (_ *Group, err error) {
	l, err := detect(root)
	if err != nil {
		return nil, err
	}
	g := &Group{v2: l.v2, dirs: map[string]string{}}
	defer func() {
		if err != nil {
			g.removeDirs()
		}
	}()
	for c, base := range l.bases {
		top := filepath.Join(base, parent)
		if err := os.Mkdir(top, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("control group: %w", err)
		}
		g.dirs[c] = filepath.Join(top, name)
	}
	if l.v2 {
		for _, base := range l.bases {
			if err := enable(base); err != nil {
				return nil, err
			}
			if err := enable(filepath.Join(base, parent)); err != nil {
				return nil, err
			}
			break // v2 has one tree
		}
	}
	for _, dir := range g.dirs {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("control group: %w", err)
		}
	}
	if err := g.Update(limits); err != nil {
		return nil, err
	}
	return g, nil
}

// enable hands the controllers on to the groups below dir.
func enable(dir string) error {
	var words []string
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	on, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	for _, c := range []string{"cpu", "memory", "pids"} {
		if hasWord(have, c) && !hasWord(on, c) {
			words = append(words, "+"+c)
		}
	}
	if len(words) == 0 {
		return nil
	}
	return write(dir, "cgroup.subtree_control", strings.Join(words, " "))
}

func hasWord(data []byte, word string) bool {
	for _, w := range bytes.Fields(data) {
		if string(w) == word {
			return true
		}
	}
	return false
}

// Update changes the limits.
func (g *Group) Update(limits Limits) error {
	set := func(controller, v1, v2, value string) error {
		dir := g.dirs[controller]
		if dir == "" {
			return nil
		}
		if g.v2 {
			return write(dir, v2, value)
		}
		return write(dir, v1, value)
	}
	unlimited := func(n int64, v1 string) string {
		if n > 0 {
			return strconv.FormatInt(n, 10)
		}
		if g.v2 {
			return "max"
		}
		return v1
	}
	quota := int64(limits.CPUs * period)
	if limits.CPUs > 0 && quota < 1000 {
		quota = 1000 // the kernel's least
	}
	if g.v2 {
		if err := set("cpu", "", "cpu.max", fmt.Sprintf("%s %d", unlimited(quota, ""), period)); err != nil {
			return err
		}
	} else if err := set("cpu", "cpu.cfs_quota_us", "", unlimited(quota, "-1")); err != nil {
		return err
	}
	if err := set("memory", "memory.limit_in_bytes", "memory.max", unlimited(limits.Memory, "-1")); err != nil {
		return err
	}
	return set("pids", "pids.max", "pids.max", unlimited(int64(limits.Pids), "max"))
}

// Add moves a process with all its threads into the group.
func (g *Group) Add(pid int) error {
	done := map[string]bool{}
	for _, dir := range g.dirs {
		if done[dir] {
			continue
		}
		done[dir] = true
		if err := write(dir, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return err
		}
	}
	return nil
}

// Memory returns the bytes that cannot be given back under pressure:
// anonymous and shared memory, without the page cache of files.
func (g *Group) Memory() (int64, error) {
	dir := g.dirs["memory"]
	if dir == "" {
		return 0, errors.ErrUnsupported
	}
	data, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return 0, err
	}
	want := [2]string{"total_rss", "total_shmem"}
	if g.v2 {
		want = [2]string{"anon", "shmem"}
	}
	return fields(data, want[:]...), nil
}

// OOMKills returns how many processes of the group the kernel killed because
// the group was at its memory limit.
func (g *Group) OOMKills() int64 {
	file := "memory.oom_control"
	if g.v2 {
		file = "memory.events"
	}
	data, err := os.ReadFile(filepath.Join(g.dirs["memory"], file))
	if err != nil {
		return 0
	}
	return fields(data, "oom_kill")
}

// CPU returns the CPU time used so far.
func (g *Group) CPU() (time.Duration, error) {
	if g.v2 {
		data, err := os.ReadFile(filepath.Join(g.dirs["cpu"], "cpu.stat"))
		return time.Duration(fields(data, "usage_usec")) * time.Microsecond, err
	}
	data, err := os.ReadFile(filepath.Join(g.dirs["cpuacct"], "cpuacct.usage"))
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return time.Duration(n), err
}

// Processes returns the number of tasks (processes and threads).
func (g *Group) Processes() (int, error) {
	data, err := os.ReadFile(filepath.Join(g.dirs["pids"], "pids.current"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// fields adds up the values of "name value" lines.
func fields(data []byte, names ...string) int64 {
	var sum int64
	for line := range strings.Lines(string(data)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		for _, want := range names {
			if name == want {
				n, _ := strconv.ParseInt(value, 10, 64)
				sum += n
			}
		}
	}
	return sum
}

// Remove kills what is in the group, waits for it, and removes the group. It
// may be called twice.
func (g *Group) Remove(ctx context.Context) error {
	for {
		busy := false
		for _, dir := range g.dirs {
			killAll(dir)
			err := unix.Rmdir(dir)
			if errors.Is(err, unix.EBUSY) {
				busy = true
			} else if err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove control group %s: %w", dir, err)
			}
		}
		if !busy {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove control group: processes do not end: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (g *Group) removeDirs() {
	for _, dir := range g.dirs {
		_ = unix.Rmdir(dir)
	}
}

// Open returns the group that Create made under name, in whatever process, so
// that it can be removed. It need not exist.
func Open(name string) *Group { return open(Root, name) }

func open(root, name string) *Group {
	g := &Group{dirs: map[string]string{}}
	l, err := detect(root)
	if err != nil {
		return g
	}
	g.v2 = l.v2
	for c, base := range l.bases {
		g.dirs[c] = filepath.Join(base, parent, name)
	}
	return g
}

func killAll(dir string) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(data)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

func write(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	_, err = f.WriteString(value)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("control group: write %q to %s: %w", value, file, err)
	}
	return nil
}
