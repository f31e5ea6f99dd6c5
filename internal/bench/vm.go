package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/internal/engine/vm/kernel"
)

// measureVM is for Hutch alone: its boxes as virtual machines. No peer that
// Debian packages makes one for a command.
func measureVM(ctx context.Context, b *bench) ([]*result, error) {
	line := func(what, unit string) *result { return newResult("vm", "virtual machine: "+what, unit) }
	warm, cold := line("create → first output, the image's template there", "ms"), line("create → first output, and both templates made", "ms")
	first := line("create → first output, and the image's template made", "ms")
	exec := line("exec `true`", "ms")
	in, out := line(fmt.Sprintf("copy %d MiB in", b.opts.copySize>>20), "MB/s"), line(fmt.Sprintf("copy %d MiB out", b.opts.copySize>>20), "MB/s")
	in.moreIsBetter, out.moreIsBetter = true, true
	idle := line("idle memory of one box (PSS, mean of 5)", "MB")
	all := []*result{warm, first, cold, exec, in, out, idle}

	templates, err := b.prepareVM(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, r := range all {
			r.of("hutch").skip = err.Error()
		}
		return all, nil
	}
	h := &hutch{b: b, engine: "vm"}
	const name = "hutch"
	for range min(b.opts.rounds, 3) {
		if err := os.RemoveAll(templates); err != nil {
			return nil, err
		}
		if err := oneFirst(ctx, h.first, cold.of(name)); err != nil {
			return nil, err
		}
	}
	for range min(b.opts.rounds, 3) {
		if err := removeImageTemplates(templates); err != nil {
			return nil, err
		}
		if err := oneFirst(ctx, h.first, first.of(name)); err != nil {
			return nil, err
		}
	}
	for range b.opts.rounds {
		if err := oneFirst(ctx, h.first, warm.of(name)); err != nil {
			return nil, err
		}
	}
	if err := b.inVM(ctx, h, exec.of(name), in.of(name), out.of(name)); err != nil {
		return nil, err
	}
	bytes, failure, end := idleBytes(ctx, h, 5)
	if end != nil {
		return nil, end
	}
	idle.of(name).add(bytes/1e6, failure)
	forks, err := b.measureForks(ctx)
	return append(all, forks...), err
}

// removeImageTemplates leaves the templates of kernels: those without a disk.
func removeImageTemplates(templates string) error {
	disks, err := filepath.Glob(filepath.Join(templates, "*", "disk.ext4"))
	for _, disk := range disks {
		err = errors.Join(err, os.RemoveAll(filepath.Dir(disk)))
	}
	return err
}

// prepareVM gives the home a kernel, which is kept for the next run, and
// returns the folder of its templates.
func (b *bench) prepareVM(ctx context.Context) (templates string, err error) {
	kept, err := cacheDir()
	if err != nil {
		return "", err
	}
	kept = filepath.Join(kept, "vm")
	at := filepath.Join(b.home(), "cache", "vm")
	if err := os.MkdirAll(kept, 0o700); err != nil {
		return "", err
	}
	if err := os.Symlink(kept, at); err != nil {
		return "", err
	}
	store := kernel.In(filepath.Dir(at))
	if _, err := store.Selected(); err != nil {
		if _, err := store.Fetch(ctx, kernel.FetchOptions{}); err != nil {
			return "", fmt.Errorf("no kernel: %w", err)
		}
	}
	return filepath.Join(kept, "templates"), nil
}

// inVM measures what is done in one machine.
func (b *bench) inVM(ctx context.Context, h *hutch, exec, in, out *sample) (err error) {
	m, err := h.start(ctx)
	if err != nil {
		exec.skip, in.skip, out.skip = err.Error(), err.Error(), err.Error()
		return ctx.Err()
	}
	defer func() { err = errors.Join(err, m.remove(context.WithoutCancel(ctx))) }()
	timed := func(s *sample, unit func(time.Duration) float64, f func(context.Context) error) error {
		start := time.Now()
		failure, end := limited(ctx, f)
		s.add(unit(time.Since(start)), failure)
		return end
	}
	for range b.opts.rounds {
		if end := timed(exec, ms, func(ctx context.Context) error {
			_, err := m.exec(ctx, "true")
			return err
		}); end != nil {
			return end
		}
	}
	host := filepath.Join(b.work, "vm.bin")
	defer func() { _, _ = os.Remove(host), os.Remove(host+".back") }()
	if _, err := writeRandom(host, b.opts.copySize); err != nil {
		return err
	}
	speed := func(d time.Duration) float64 { return float64(b.opts.copySize) / 1e6 / d.Seconds() }
	for range min(b.opts.rounds, 5) {
		if end := timed(in, speed, func(ctx context.Context) error { return m.copyIn(ctx, host, "/root/copy") }); end != nil {
			return end
		}
		if end := timed(out, speed, func(ctx context.Context) error { return m.copyOut(ctx, "/root/copy", host+".back") }); end != nil {
			return end
		}
	}
	return nil
}

// measureForks runs the engine's own benchmark: copies of a running machine
// are not yet something that a user can ask for.
func (b *bench) measureForks(ctx context.Context) ([]*result, error) {
	text, err := program{args: []string{"go"}}.output(ctx, "test", "-run", "^$", "-bench", "^BenchmarkFork$",
		"-benchtime", strconv.Itoa(b.opts.rounds)+"x", "./internal/engine/vm")
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var all []*result
	for _, what := range []struct{ bench, says string }{{"/0MiB", "idle"}, {"/512MiB", "512 MiB in use"}} {
		for _, metric := range []struct{ unit, says string }{
			{"stall-ms", "the original does not answer"},
			{"answer-ms", "the copy's agent answers after"},
			{"copy-MB", "memory of the copy"},
		} {
			_, unit, _ := strings.Cut(metric.unit, "-")
			res := newResult("vm", fmt.Sprintf("virtual machine: fork, %s: %s (median)", what.says, metric.says), unit)
			v, found := metricOf(text, what.bench, metric.unit)
			switch {
			case err != nil:
				res.of("hutch").skip = err.Error()
			case !found:
				res.of("hutch").skip = "not measured"
			default:
				res.of("hutch").ok(v)
			}
			all = append(all, res)
		}
	}
	return all, nil
}

// metricOf finds a metric in what "go test -bench" prints.
func metricOf(text, bench, unit string) (float64, bool) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || !strings.Contains(f[0]+"-", bench+"-") {
			continue
		}
		for n := 1; n+1 < len(f); n++ {
			if f[n+1] == unit {
				v, err := strconv.ParseFloat(f[n], 64)
				return v, err == nil
			}
		}
	}
	return 0, false
}
