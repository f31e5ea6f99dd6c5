package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// row is a group of lines of the table that are measured together.
type row struct {
	name string // for -only
	run  func(ctx context.Context, b *bench) ([]*result, error)
}

// result is one line of the table.
type result struct {
	name         string // of its row
	what         string
	unit         string
	moreIsBetter bool
	network      bool               // in the table of ways to the network
	samples      map[string]*sample // by contestant, and "native"
}

func newResult(name, what, unit string) *result {
	return &result{name: name, what: what, unit: unit, samples: map[string]*sample{}}
}

// of returns the sample of a contestant.
func (r *result) of(name string) *sample {
	s := r.samples[name]
	if s == nil {
		s = &sample{}
		r.samples[name] = s
	}
	return s
}

// rows lists everything that can be measured, in the order of the table.
func rows() []row {
	return []row{
		{"first", measureFirst},
		{"builtin", measureBuiltin},
		{"exec", measureExec},
		{"sequential", measureSequential},
		{"staggered", measureStaggered},
		{"burst", measureBurst},
		{"copy", measureCopy},
		{"files", measureFiles},
		{"idle", measureIdle},
		{"remove", measureRemove},
		{"harness", measureHarness},
		{"vm", measureVM},
		{"network", measureNetwork},
	}
}

func rowNames() []string {
	var names []string
	for _, r := range rows() {
		names = append(names, r.name)
	}
	return names
}

// attempt bounds one operation, so that one that hangs does not end the run.
const attempt = 3 * time.Minute

// limited runs f with that bound, and returns an error of ctx's own end apart.
func limited(ctx context.Context, f func(context.Context) error) (failure, end error) {
	actx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	failure = f(actx)
	if ctx.Err() != nil {
		return failure, ctx.Err()
	}
	if failure != nil && actx.Err() != nil {
		failure = fmt.Errorf("not done after %s: %w", attempt, failure)
	}
	return failure, nil
}

func measureFirst(ctx context.Context, b *bench) ([]*result, error) {
	res := newResult("first", "create → first output", "ms")
	// The same turns of the peers, beside a program that nothing is booted
	// ahead of.
	cold := newResult("first", "create → first output, nothing booted ahead", "ms")
	h := &hutch{b: b}
	// The first box of a program is never one that was booted ahead.
	if err := oneFirst(ctx, b.contestants[0].first, &sample{}); err != nil {
		return nil, err
	}
	for range b.opts.rounds {
		for _, c := range b.able() {
			var one sample
			if err := oneFirst(ctx, c.first, &one); err != nil {
				return nil, err
			}
			if err := c.settle(ctx); err != nil {
				return nil, err
			}
			res.of(c.name()).merge(one)
			if c.name() != h.name() {
				cold.of(c.name()).merge(one)
			}
		}
		if err := oneFirst(ctx, h.first, cold.of(h.name())); err != nil {
			return nil, err
		}
	}
	return []*result{res, cold}, nil
}

func oneFirst(ctx context.Context, first func(context.Context) (time.Duration, error), s *sample) error {
	var took time.Duration
	failure, end := limited(ctx, func(ctx context.Context) (err error) {
		took, err = first(ctx)
		return err
	})
	s.add(ms(took), failure)
	return end
}

// measureBuiltin is for Hutch alone: the others have no image of their own. So
// no turns of theirs lie between two creates, in which one could be booted
// ahead.
func measureBuiltin(ctx context.Context, b *bench) ([]*result, error) {
	if b.image == "builtin" {
		return nil, nil // measured as the common image
	}
	res := newResult("builtin", "create → first output, builtin image, nothing booted ahead", "ms")
	h := &hutch{b: b}
	first := func(ctx context.Context) (time.Duration, error) { return h.firstOf(ctx, "builtin") }
	if err := oneFirst(ctx, first, &sample{}); err != nil { // makes the image
		return nil, err
	}
	for range b.opts.rounds {
		if err := oneFirst(ctx, first, res.of(h.name())); err != nil {
			return nil, err
		}
	}
	return []*result{res}, nil
}

// withMachines gives f an idle machine of each contestant, and of the host
// with native. What could not start is in res.
func (b *bench) withMachines(ctx context.Context, withNative bool, res []*result, f func(machines []named) error) error {
	var machines []named
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attempt)
		defer cancel()
		for _, m := range machines {
			if err := m.remove(ctx); err != nil {
				fmt.Fprintf(os.Stderr, "remove %s: %v\n", m.name, err)
			}
		}
	}()
	start := func(name string, start func(context.Context) (machine, error)) error {
		var m machine
		failure, end := limited(ctx, func(ctx context.Context) (err error) {
			m, err = start(ctx)
			return err
		})
		if m != nil && failure == nil {
			machines = append(machines, named{machine: m, name: name})
		}
		if failure != nil {
			for _, r := range res {
				r.of(name).skip = failure.Error()
			}
		}
		return end
	}
	for _, c := range b.able() {
		if err := start(c.name(), c.start); err != nil {
			return err
		}
	}
	if withNative {
		if err := start(nativeName, b.native.start); err != nil {
			return err
		}
	}
	return f(machines)
}

const nativeName = "native"

type named struct {
	machine
	name string
}

func measureExec(ctx context.Context, b *bench) ([]*result, error) {
	res := newResult("exec", "exec `true` in a running box", "ms")
	err := b.withMachines(ctx, false, []*result{res}, func(machines []named) error {
		for round := range b.opts.rounds + 1 {
			for _, m := range machines {
				start := time.Now()
				failure, end := limited(ctx, func(ctx context.Context) error {
					_, err := m.exec(ctx, "true")
					return err
				})
				if round > 0 { // the first finds cold caches
					res.of(m.name).add(ms(time.Since(start)), failure)
				}
				if end != nil {
					return end
				}
			}
		}
		return nil
	})
	return []*result{res}, err
}

// measureSequential, measureStaggered and measureBurst follow the procedure of
// the ComputeSDK benchmark: time to the first output of a new machine, one
// after the other, one every 200 ms, and all at once. Each contestant does all
// of its creates alone: together they would measure each other.
func measureSequential(ctx context.Context, b *bench) ([]*result, error) {
	res := newResult("sequential", fmt.Sprintf("%d creates one after the other: time to first output", b.opts.creates), "ms")
	for _, c := range b.able() {
		for range b.opts.creates {
			if err := oneFirst(ctx, c.first, res.of(c.name())); err != nil {
				return nil, err
			}
		}
		if err := c.settle(ctx); err != nil {
			return nil, err
		}
	}
	return []*result{res}, nil
}

func measureStaggered(ctx context.Context, b *bench) ([]*result, error) {
	return measureMany(ctx, b, "staggered", "creates, one every 200 ms", 200*time.Millisecond)
}

func measureBurst(ctx context.Context, b *bench) ([]*result, error) {
	return measureMany(ctx, b, "burst", "creates at once", 0)
}

// measureMany starts creates whether or not those before are done.
func measureMany(ctx context.Context, b *bench, name, what string, every time.Duration) ([]*result, error) {
	res := newResult(name, fmt.Sprintf("%d %s: time to first output", b.opts.creates, what), "ms")
	all := newResult(name, fmt.Sprintf("%d %s: until the last is gone again", b.opts.creates, what), "s")
	for _, c := range b.able() {
		var mu sync.Mutex // guards the sample
		var wg sync.WaitGroup
		began := time.Now()
		for n := range b.opts.creates {
			if n > 0 && every > 0 {
				select {
				case <-ctx.Done():
				case <-time.After(every):
				}
			}
			if ctx.Err() != nil {
				break
			}
			wg.Go(func() {
				var took time.Duration
				failure, _ := limited(ctx, func(ctx context.Context) (err error) {
					took, err = c.first(ctx)
					return err
				})
				mu.Lock()
				defer mu.Unlock()
				res.of(c.name()).add(ms(took), failure)
			})
		}
		wg.Wait()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		all.of(c.name()).ok(time.Since(began).Seconds())
		if err := c.settle(ctx); err != nil {
			return nil, err
		}
	}
	return []*result{res, all}, nil
}

func measureCopy(ctx context.Context, b *bench) ([]*result, error) {
	mib := b.opts.copySize >> 20
	in := newResult("copy", fmt.Sprintf("copy %d MiB into a box", mib), "MB/s")
	out := newResult("copy", fmt.Sprintf("copy %d MiB out of a box", mib), "MB/s")
	in.moreIsBetter, out.moreIsBetter = true, true
	source := filepath.Join(b.work, "random")
	sum, err := writeRandom(source, b.opts.copySize)
	if err != nil {
		return nil, err
	}
	defer os.Remove(source)
	target := filepath.Join(b.work, "copied")
	defer os.Remove(target)
	rate := func(took time.Duration) float64 { return float64(b.opts.copySize) / 1e6 / took.Seconds() }
	err = b.withMachines(ctx, false, []*result{in, out}, func(machines []named) error {
		for range min(b.opts.rounds, 5) {
			for _, m := range machines {
				start := time.Now()
				failure, end := limited(ctx, func(ctx context.Context) error { return m.copyIn(ctx, source, "/root/copied") })
				in.of(m.name).add(rate(time.Since(start)), failure)
				if end != nil {
					return end
				}
				_ = os.Remove(target)
				start = time.Now()
				failure, end = limited(ctx, func(ctx context.Context) error { return m.copyOut(ctx, "/root/copied", target) })
				took := time.Since(start)
				if failure == nil {
					// A copy that is quick and wrong does not count.
					failure = checkSum(target, sum)
				}
				out.of(m.name).add(rate(took), failure)
				if end != nil {
					return end
				}
			}
		}
		return nil
	})
	return []*result{in, out}, err
}

func measureFiles(ctx context.Context, b *bench) ([]*result, error) {
	unpack := newResult("files", fmt.Sprintf("unpack a tar of %d files in a box", b.opts.files), "s")
	status := newResult("files", fmt.Sprintf("`git status` of %d files in a box", b.opts.files), "s")
	both := []*result{unpack, status}
	archive := filepath.Join(b.work, "files.tar")
	hasGit, err := writeTree(ctx, archive, filepath.Join(b.work, "files"), b.opts.files)
	if err != nil {
		return nil, err
	}
	defer os.Remove(archive)
	err = b.withMachines(ctx, true, both, func(machines []named) error {
		for _, m := range machines {
			failure, end := limited(ctx, func(ctx context.Context) error { return m.copyIn(ctx, archive, "/root/files.tar") })
			if end != nil {
				return end
			}
			if failure != nil {
				unpack.of(m.name).fail(failure)
			}
		}
		rounds := min(b.opts.rounds, 3)
		for round := range rounds {
			for _, m := range machines {
				if err := m.unpackAndStatus(ctx, hasGit, round == rounds-1, unpack, status); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return both, err
}

// unpackAndStatus unpacks the archive, in the last round asks git about it,
// and removes the files.
func (m named) unpackAndStatus(ctx context.Context, hasGit, last bool, unpack, status *result) error {
	timed := func(args ...string) (float64, string, error, error) {
		var out string
		start := time.Now()
		failure, end := limited(ctx, func(ctx context.Context) (err error) {
			out, err = m.exec(ctx, args...)
			return err
		})
		return time.Since(start).Seconds(), out, failure, end
	}
	took, _, failure, end := timed("tar", "-x", "-f", "/root/files.tar", "-C", "/root")
	if end != nil {
		return end
	}
	unpack.of(m.name).add(took, failure)
	if failure == nil && last {
		if !hasGit {
			status.of(m.name).skip = "this machine has no git to make the repository"
		} else if err := m.gitStatus(timed, status.of(m.name)); err != nil {
			return err
		}
	}
	_, _, failure, end = timed("rm", "-rf", "/root/files")
	if end == nil && failure != nil {
		unpack.of(m.name).fail(failure)
	}
	return end
}

func (m named) gitStatus(timed func(...string) (float64, string, error, error), s *sample) error {
	// The first one reads all files, since their inodes are new to git's
	// index; the others are what an agent meets.
	for n := range 6 {
		took, out, failure, end := timed("git", "-C", "/root/files", "status", "--short")
		if end != nil {
			return end
		}
		if failure != nil {
			s.fail(failure)
			return nil
		}
		if strings.TrimSpace(out) != "" {
			s.fail(fmt.Errorf("git found changes: %.60q", out))
			return nil
		}
		if n > 0 {
			s.ok(took)
		}
	}
	return nil
}

func measureIdle(ctx context.Context, b *bench) ([]*result, error) {
	n := b.opts.density
	perBox := newResult("idle", fmt.Sprintf("idle memory of one box, everything included (PSS, mean of %d boxes)", n), "MB")
	perGiB := newResult("idle", "boxes in 1 GiB", "boxes")
	perGiB.moreIsBetter = true
	for _, c := range b.able() {
		bytes, failure, end := idleBytes(ctx, c, n)
		if end != nil {
			return nil, end
		}
		perBox.of(c.name()).add(bytes/1e6, failure)
		if failure == nil && bytes > 0 {
			perGiB.of(c.name()).ok(float64(1<<30) / bytes)
		}
	}
	return []*result{perBox, perGiB}, nil
}

func idleBytes(ctx context.Context, c contestant, n int) (bytes float64, failure, end error) {
	var machines []machine
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attempt)
		defer cancel()
		for _, m := range machines {
			failure = errors.Join(failure, m.remove(ctx))
		}
	}()
	for range n {
		failure, end := limited(ctx, func(ctx context.Context) error {
			m, err := c.start(ctx)
			if err == nil {
				machines = append(machines, m)
				// A box that has been used once is what lies idle.
				_, err = m.exec(ctx, "true")
			}
			return err
		})
		if failure != nil || end != nil {
			return 0, failure, end
		}
	}
	select { // until what follows a start has settled
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	case <-time.After(5 * time.Second):
	}
	var pids []int
	for _, m := range machines {
		more, err := m.processes()
		if err != nil {
			return 0, err, nil
		}
		pids = append(pids, more...)
	}
	sum, err := pss(unique(pids))
	return float64(sum) / float64(n), err, nil
}

func unique(pids []int) []int {
	seen := map[int]bool{}
	var list []int
	for _, pid := range pids {
		if !seen[pid] {
			seen[pid] = true
			list = append(list, pid)
		}
	}
	return list
}

func measureRemove(ctx context.Context, b *bench) ([]*result, error) {
	res := newResult("remove", "end and remove a running box", "ms")
	for range b.opts.rounds {
		for _, c := range b.able() {
			var m machine
			failure, end := limited(ctx, func(ctx context.Context) (err error) {
				m, err = c.start(ctx)
				return err
			})
			start := time.Now()
			if failure == nil && end == nil {
				failure, end = limited(ctx, m.remove)
			}
			if end != nil {
				return nil, end
			}
			res.of(c.name()).add(ms(time.Since(start)), failure)
		}
	}
	return []*result{res}, nil
}
