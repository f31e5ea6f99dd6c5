package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// mark is something that happened at a time after the begin.
type mark struct {
	at   time.Duration
	what string
}

// traceCreate takes starts of boxes apart: the steps of the client, which are
// exact, and what can be seen of the keeper from outside (files, processes),
// which is looked at every millisecond. With HUTCH_DEBUG=1 in the environment,
// what gVisor says in the keeper is woven in; that costs time, too. The medians
// over all rounds come last.
func (b *bench) traceCreate(ctx context.Context, w io.Writer) error {
	stages := map[string][]float64{}
	var order []string
	for n := range b.opts.rounds {
		marks, usage, err := b.traceOne(ctx)
		if err != nil {
			return err
		}
		for _, m := range marks {
			if stages[m.what] == nil {
				order = append(order, m.what)
			}
			stages[m.what] = append(stages[m.what], ms(m.at))
		}
		if n == 0 {
			fmt.Fprintln(w, "one box:")
			for i, m := range marks {
				fmt.Fprintf(w, "  %8.2f ms  (+%6.2f)  %s\n", ms(m.at), ms(m.at-marks[max(i-1, 0)].at), m.what)
			}
			fmt.Fprintln(w, "  CPU time used by then:")
			for _, line := range usage {
				fmt.Fprintln(w, "   ", line)
			}
		}
	}
	fmt.Fprintf(w, "\nmedians of %d boxes (least–most):\n", b.opts.rounds)
	slices.SortStableFunc(order, func(x, y string) int {
		a, b := sample{values: stages[x]}, sample{values: stages[y]}
		switch {
		case a.median() < b.median():
			return -1
		case a.median() > b.median():
			return 1
		}
		return 0
	})
	before := 0.0
	for _, what := range order {
		s := sample{values: stages[what]}
		fmt.Fprintf(w, "  %8.2f ms  (+%6.2f)  (%s–%s)  %s\n", s.median(), s.median()-before,
			number(slices.Min(s.values)), number(slices.Max(s.values)), what)
		before = s.median()
	}
	if err := b.traceExec(ctx, w); err != nil {
		return err
	}
	return b.traceRemove(ctx, w)
}

// traceRemove takes the end of a box apart: ending its processes, and removing
// what is on disk.
func (b *bench) traceRemove(ctx context.Context, w io.Writer) error {
	var kill, remove sample
	for range b.opts.rounds {
		m, err := (&hutch{b: b}).start(ctx)
		if err != nil {
			return err
		}
		start := time.Now()
		err = m.(*hutchBox).bx.Kill(ctx)
		kill.ok(ms(time.Since(start)))
		start = time.Now()
		if err := errors.Join(err, m.remove(context.WithoutCancel(ctx))); err != nil {
			return err
		}
		remove.ok(ms(time.Since(start)))
	}
	fmt.Fprintf(w, "\nan end, medians of %d (p95; least–most), ms:\n", b.opts.rounds)
	for _, step := range []struct {
		s    *sample
		what string
	}{{&kill, "Kill, until the keeper is gone"}, {&remove, "Remove of the stopped box"}} {
		fmt.Fprintf(w, "  %s  %s\n", strings.ReplaceAll(step.s.cell(), "**", ""), step.what)
	}
	return nil
}

// traceOne makes one box and returns what happened when, in order.
func (b *bench) traceOne(ctx context.Context) (marks []mark, usage []string, err error) {
	var mu sync.Mutex // guards marks
	start := time.Now()
	note := func(format string, args ...any) {
		at := time.Since(start)
		mu.Lock()
		defer mu.Unlock()
		marks = append(marks, mark{at, fmt.Sprintf(format, args...)})
	}
	bx, err := b.rt.Create(ctx, box.Spec{Image: b.image})
	if err != nil {
		return nil, nil, err
	}
	note("client: Create has returned")
	defer func() { err = errors.Join(err, drop(ctx, bx)) }()

	watch, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { b.watchBoot(watch, bx.ID(), note) })
	defer func() {
		stop()
		watcher.Wait()
	}()
	if err := bx.Start(ctx); err != nil {
		return nil, nil, err
	}
	note("client: Start has returned, the box is leased")
	cmd := bx.Command(ctx, "echo", word)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	note("client: Cmd.Start has returned")
	if _, _, err := timeFirst(start, &noting{r: out, note: func() { note("client: first byte of output") }}); err != nil {
		return nil, nil, err
	}
	if err := cmd.Wait(); err != nil {
		return nil, nil, err
	}
	note("client: Cmd.Wait has returned")
	stop()
	watcher.Wait()
	marks = append(marks, b.gvisorLog(bx.ID(), start)...)
	usage, err = b.cpuTimes(ctx, bx)
	slices.SortStableFunc(marks, func(a, b mark) int { return int(a.at - b.at) })
	return firstOfEach(marks), usage, err
}

// firstOfEach drops what happened before, so that medians are of one moment.
func firstOfEach(marks []mark) []mark {
	seen := map[string]bool{}
	return slices.DeleteFunc(marks, func(m mark) bool {
		again := seen[m.what]
		seen[m.what] = true
		return again
	})
}

// gvisorLog returns what gVisor wrote to the keeper's log, without the parts
// that differ from box to box.
func (b *bench) gvisorLog(id string, start time.Time) []mark {
	data, err := os.ReadFile(filepath.Join(b.work, "home", "boxes", id, "keeper.log"))
	if err != nil {
		return nil
	}
	var marks []mark
	for line := range strings.Lines(string(data)) {
		// I1129 21:28:57.282490       1 file.go:201] message
		fields := strings.Fields(line)
		if len(fields) < 5 || !strings.Contains(fields[3], ".go:") {
			continue
		}
		at, err := time.ParseInLocation("20060102 15:04:05.000000", start.Format("2006")+fields[0][1:]+" "+fields[1], time.Local)
		if err != nil {
			continue
		}
		said := strings.Join(fields[4:min(len(fields), 8)], " ")
		said = strings.NewReplacer(id, "ID", b.work, "").Replace(said)
		marks = append(marks, mark{at.Sub(start), "gvisor: " + strings.Trim(fields[3], "]") + " " + strings.TrimRight(said, "0123456789 ")})
	}
	return marks
}

// noting calls note at the first Read that brings something.
type noting struct {
	r    io.Reader
	note func()
	done bool
}

func (n *noting) Read(p []byte) (int, error) {
	got, err := n.r.Read(p)
	if got > 0 && !n.done {
		n.done = true
		n.note()
	}
	return got, err
}

// watchBoot notes what appears in the box's folder and below its keeper.
func (b *bench) watchBoot(ctx context.Context, id string, note func(string, ...any)) {
	dir := filepath.Join(b.work, "home", "boxes", id)
	files := []struct{ path, what string }{
		{"run", "keeper: boot begins (run/ is there)"},
		{"run/disk", "keeper: mountDisk begins (run/disk is there)"},
		{"disk/disk.img", "keeper: the disk's file is there"},
		{"run/root", "keeper: the disk is mounted (run/root is there)"},
		{"run/agent", "keeper: agent's layer begins (run/agent is there)"},
		{"run/bundle", "keeper: the overlay is mounted (run/bundle is there)"},
		{"run/bundle/config.json", "engine: container.New begins (config.json is there)"},
		{"keeper.sock", "keeper: the agent has answered (keeper.sock is there)"},
	}
	seenFile := map[string]bool{}
	seenProc := map[int]string{}
	keeper := 0
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, f := range files {
			if !seenFile[f.path] && exists(filepath.Join(dir, f.path)) {
				seenFile[f.path] = true
				note("%s", f.what)
			}
		}
		keeper = findKeeper(keeper, note)
		if keeper == 0 {
			continue
		}
		for _, pid := range children(keeper) {
			name := processName(pid)
			// A child still has its parent's name until it execs.
			if name == "" || name == "hutch-keeper" || seenProc[pid] == name {
				continue
			}
			seenProc[pid] = name
			note("process: %s runs", name)
		}
	}
}

// findKeeper returns the child of this process that is a keeper.
func findKeeper(known int, note func(string, ...any)) int {
	if known != 0 {
		return known
	}
	for _, pid := range children(os.Getpid()) {
		if processName(pid) == "hutch-keeper" {
			note("process: hutch-keeper runs")
			return pid
		}
	}
	return 0
}

// children returns the child processes of all threads of pid.
func children(pid int) []int {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	var list []int
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(data)) {
			var child int
			if _, err := fmt.Sscan(f, &child); err == nil {
				list = append(list, child)
			}
		}
	}
	return list
}

// processName is the base name of a process's first argument, "" for one that
// has ended.
func processName(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(data), "\x00")
	if first == "" {
		return ""
	}
	return filepath.Base(first)
}

// cpuTimes says how much CPU time each process of a box has used.
func (b *bench) cpuTimes(ctx context.Context, bx *box.Box) ([]string, error) {
	info, err := bx.Info(ctx)
	if err != nil {
		return nil, err
	}
	table, err := processTable()
	if err != nil {
		return nil, err
	}
	byPid := map[int]process{}
	for _, p := range table {
		byPid[p.pid] = p
	}
	total := map[string]time.Duration{}
	count := map[string]int{}
	var order []string
	for _, pid := range descend(table, []int{info.Pid}) {
		name := processName(pid)
		if name == "" {
			name = byPid[pid].comm
		}
		if count[name] == 0 {
			order = append(order, name)
		}
		count[name]++
		total[name] += byPid[pid].cpu
	}
	var lines []string
	for _, name := range order {
		lines = append(lines, fmt.Sprintf("%s (%d): %d ms", name, count[name], total[name].Milliseconds()))
	}
	return lines, nil
}

// traceExec takes an exec apart: the way to the agent and back, and what it
// costs in the box alone.
func (b *bench) traceExec(ctx context.Context, w io.Writer) error {
	m, err := (&hutch{b: b}).start(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = m.remove(context.WithoutCancel(ctx)) }()
	bx := m.(*hutchBox).bx
	const inner = 50
	loop := fmt.Sprintf("i=0; while [ $i -lt %d ]; do env true; i=$((i+1)); done", inner)
	steps := []struct {
		what string
		per  float64
		do   func() error
	}{
		{"round trip to the agent and back (Stat of /)", 1, func() error { _, err := bx.Stat(ctx, "/"); return err }},
		{"Cmd.Start of true (the agent has started it)", 1, func() error {
			cmd := bx.Command(ctx, "true")
			if err := cmd.Start(); err != nil {
				return err
			}
			go func() { _ = cmd.Wait() }() // ends with the command, which does at once
			return nil
		}},
		{"Cmd.Run of true", 1, func() error { return bx.Command(ctx, "true").Run() }},
		{"Cmd.Output of echo", 1, func() error { _, err := bx.Command(ctx, "echo", word).Output(); return err }},
		{fmt.Sprintf("in the box alone, by its shell: fork, exec env, exec true, wait (of %d)", inner), inner, func() error {
			return bx.Shell(ctx, loop).Run()
		}},
	}
	fmt.Fprintf(w, "\nan exec, medians of %d (p95; least–most), ms:\n", b.opts.rounds)
	for _, step := range steps {
		var s sample
		for n := range b.opts.rounds + 1 {
			start := time.Now()
			err := step.do()
			took := time.Since(start)
			if err != nil {
				return fmt.Errorf("%s: %w", step.what, err)
			}
			if n > 0 {
				s.ok(ms(took) / step.per)
			}
		}
		fmt.Fprintf(w, "  %s  %s\n", strings.ReplaceAll(s.cell(), "**", ""), step.what)
	}
	pids, err := m.processes()
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "\nmemory of that box (PSS; alone on the machine it pays for what boxes share):")
	for _, pid := range pids {
		bytes, err := pss([]int{pid})
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "  %6.1f MB  %s\n", float64(bytes)/1e6, cmp.Or(processName(pid), "(no arguments: address spaces of the box's programs)"))
	}
	return nil
}
