package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is one line of the host's process table.
type process struct {
	pid, ppid int
	comm      string
	cpu       time.Duration // used so far
}

// processTable reads all processes. Those that end meanwhile are left out.
func processTable() ([]process, error) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var list []process
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue
		}
		if p, ok := parseStat(string(data)); ok {
			p.pid = pid
			list = append(list, p)
		}
	}
	return list, nil
}

// parseStat reads /proc/PID/stat. The name in it may hold anything.
func parseStat(line string) (process, bool) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return process{}, false
	}
	fields := strings.Fields(line[end+1:])
	if len(fields) < 13 {
		return process{}, false
	}
	ppid, err1 := strconv.Atoi(fields[1])
	user, err2 := strconv.ParseInt(fields[11], 10, 64)
	system, err3 := strconv.ParseInt(fields[12], 10, 64)
	if errors.Join(err1, err2, err3) != nil {
		return process{}, false
	}
	const tick = time.Second / 100 // of USER_HZ, the same on every Linux
	return process{ppid: ppid, comm: line[open+1 : end], cpu: time.Duration(user+system) * tick}, true
}

// withDescendants returns the processes and all below them.
func withDescendants(roots []int) ([]int, error) {
	table, err := processTable()
	if err != nil {
		return nil, err
	}
	return descend(table, roots), nil
}

func descend(table []process, roots []int) []int {
	children := map[int][]int{}
	for _, p := range table {
		children[p.ppid] = append(children[p.ppid], p.pid)
	}
	var all []int
	seen := map[int]bool{}
	for queue := slices.Clone(roots); len(queue) > 0; queue = queue[1:] {
		if pid := queue[0]; !seen[pid] {
			seen[pid] = true
			all = append(all, pid)
			queue = append(queue, children[pid]...)
		}
	}
	return all
}

// processesNaming returns the processes that have id in their arguments, as
// those of a container have, and all below them.
func processesNaming(id string) ([]int, error) {
	table, err := processTable()
	if err != nil {
		return nil, err
	}
	var roots []int
	for _, p := range table {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
		if err != nil || p.pid == os.Getpid() {
			continue
		}
		// Not merely the beginning of another id.
		for _, arg := range bytes.Split(args, []byte{0}) {
			if s := string(arg); s == id || strings.HasSuffix(s, "/"+id) || strings.Contains(s, "/"+id+"/") {
				roots = append(roots, p.pid)
				break
			}
		}
	}
	if len(roots) == 0 {
		return nil, fmt.Errorf("no process of %s is there", id)
	}
	return descend(table, roots), nil
}

// pss returns the proportional set size of processes, in bytes: memory that
// several processes share is counted once in all.
func pss(pids []int) (int64, error) {
	var sum int64
	for _, pid := range pids {
		f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if errors.Is(err, os.ErrNotExist) {
			continue // ended
		}
		if err != nil {
			return 0, err
		}
		kb, err := pssLine(bufio.NewScanner(f))
		f.Close()
		if errors.Is(err, unix.ESRCH) {
			continue // ended, and not yet reaped
		}
		if err != nil {
			return 0, fmt.Errorf("process %d: %w", pid, err)
		}
		sum += kb << 10
	}
	return sum, nil
}

func pssLine(s *bufio.Scanner) (int64, error) {
	for s.Scan() {
		if rest, ok := strings.CutPrefix(s.Text(), "Pss:"); ok {
			return strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		}
	}
	if err := s.Err(); err != nil {
		return 0, err
	}
	return 0, errors.New("smaps_rollup has no Pss")
}

// unmountBelow unmounts everything mounted at dir or below it, innermost
// first.
func unmountBelow(dir string) error {
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		// The bench's own folders have no characters that are escaped here.
		if p := fields[4]; p == dir || strings.HasPrefix(p, dir+string(filepath.Separator)) {
			points = append(points, p)
		}
	}
	var errs []error
	for _, p := range slices.Backward(points) {
		err := unix.Unmount(p, 0)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(p, unix.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}
