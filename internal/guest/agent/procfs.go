//go:build linux

package agent

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is USER_HZ, which is 100 on every Linux that this code runs on.
const clockTick = 100

// procStat is the part of /proc/PID/stat that the agent uses.
type procStat struct {
	pid, ppid, pgrp, session int
	comm                     string
	state                    byte
	utime, stime             uint64 // clock ticks
	start                    uint64 // clock ticks since boot: with pid it names a process
	rss                      uint64 // bytes
}

func (p procStat) cpu() time.Duration {
	return time.Duration(p.utime+p.stime) * time.Second / clockTick
}

// parseStat parses the content of /proc/PID/stat. The command's name is
// chosen by the process and may hold anything, parentheses and newlines too.
func parseStat(data []byte) (procStat, bool) {
	open, shut := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || shut < open {
		return procStat{}, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data[:open])))
	f := strings.Fields(string(data[shut+1:]))
	if err != nil || len(f) < 22 {
		return procStat{}, false
	}
	num := func(i int) uint64 { // i as numbered in proc(5)
		v, _ := strconv.ParseUint(f[i-3], 10, 64)
		return v
	}
	return procStat{
		pid:     pid,
		comm:    string(data[open+1 : shut]),
		state:   f[0][0],
		ppid:    int(num(4)),
		pgrp:    int(num(5)),
		session: int(num(6)),
		utime:   num(14),
		stime:   num(15),
		start:   num(22),
		rss:     num(24) * uint64(os.Getpagesize()),
	}, len(f) >= 22
}

// readProcs lists all processes.
func readProcs() []procStat {
	var procs []procStat
	for _, pid := range listPids() {
		if p, ok := readProc(pid); ok {
			procs = append(procs, p)
		}
	}
	return procs
}

func readProc(pid int) (procStat, bool) {
	data, err := readSmall("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	return parseStat(data)
}

func listPids() []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil && len(names) == 0 {
		return nil
	}
	var pids []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// readSmall reads a file of /proc or a control group, at most 1 MiB of it.
func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 1<<20))
}
