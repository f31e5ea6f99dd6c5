// Command bench measures boxes of this machine beside what people use instead:
// runsc, built from the same version of gVisor, and podman with crun. All run
// on one root file system tree, in one run, taking turns, so that a slow
// moment of the machine meets all of them:
//
//	HUTCH_HELPER=$PWD/bin/hutch go run ./internal/bench
//
// It prints a table and writes it to a file, with the machine, the commands
// and the spread. A contestant that cannot run is named with the reason. There
// is no pass or fail: figures are for reading.
//
// Who measures is in contestants (hutch.go, runsc.go, podman.go, native.go),
// what is measured in rows.go, and how it is written in report.go. The way to
// the network has contestants and a table of its own (net.go). With
// -trace-create it instead takes one start of a box apart (trace.go).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	rounds     int
	creates    int
	density    int
	copySize   int64
	netSize    int64
	files      int
	out        string
	only       []string
	image      string
	cpuprofile string
	trace      bool
	args       []string // as they were given
}

func main() {
	work := run
	if len(os.Args) > 1 && os.Args[1] == netClientArg {
		work = func(args []string) error { return runNetClient(args[1:]) }
	}
	if err := work(os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{args: args}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.rounds, "rounds", 20, "how often each timed row is measured")
	quick := fs.Bool("quick", false, "fewer creates (10), idle boxes (5), files (2000) and bytes (64 MiB to copy or to send), for a look; the figures are then not comparable")
	fs.StringVar(&o.out, "out", "docs/benchmarks.md", "where to write the report; empty: nowhere")
	only := fs.String("only", "", "rows to measure, separated by commas: "+strings.Join(rowNames(), ", "))
	fs.StringVar(&o.image, "image", "", "root file system for all: debian, builtin; empty: debian where mmdebstrap is installed, else builtin")
	fs.StringVar(&o.cpuprofile, "cpuprofile", "", "write a CPU profile of this process, which is Hutch's client")
	fs.BoolVar(&o.trace, "trace-create", false, "print the stages from create to first output, and of an exec, instead of the table")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: there are only flags", fs.Arg(0))
	}
	if o.rounds < 1 {
		return o, fmt.Errorf("-rounds %d: use 1 or more", o.rounds)
	}
	if o.image != "" && o.image != "debian" && o.image != "builtin" {
		return o, fmt.Errorf("-image %q: use debian or builtin", o.image)
	}
	o.creates, o.density, o.copySize, o.files, o.netSize = 100, 20, 256<<20, 20_000, 1<<30
	if *quick {
		o.creates, o.density, o.copySize, o.files, o.netSize = 10, 5, 64<<20, 2000, 64<<20
	}
	if *only != "" {
		o.only = strings.Split(*only, ",")
		for _, name := range o.only {
			if !slices.Contains(rowNames(), name) {
				return o, fmt.Errorf("-only %q: no such row; there are: %s", name, strings.Join(rowNames(), ", "))
			}
		}
	}
	return o, nil
}

func run(args []string) (err error) {
	o, err := parse(args, os.Stderr)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal begins the clean-up, a second one ends that, too.
	context.AfterFunc(ctx, stop)

	if o.cpuprofile != "" {
		f, err := os.Create(o.cpuprofile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}

	b, err := newBench(ctx, o)
	defer func() {
		if cerr := b.close(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", cerr))
		}
	}()
	if err != nil {
		return err
	}
	if o.trace {
		return b.traceCreate(ctx, os.Stdout)
	}
	rep, err := b.measure(ctx)
	if err != nil {
		return err
	}
	text := rep.markdown()
	fmt.Println()
	fmt.Print(text)
	if o.out == "" {
		return nil
	}
	return os.WriteFile(o.out, []byte(text), 0o644)
}

// measure runs all rows.
func (b *bench) measure(ctx context.Context) (*report, error) {
	rep := &report{start: time.Now(), args: b.opts.args, host: describeHost(ctx), image: b.imageNote,
		gvisor: b.gvisor, disk: b.diskNote, nativeHow: b.native.how()}
	for _, c := range b.contestants {
		rep.columns = append(rep.columns, column{name: c.name(), reason: b.cannot[c.name()], how: c.how()})
	}
	for _, r := range rows() {
		if len(b.opts.only) > 0 && !slices.Contains(b.opts.only, r.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s  %s …\n", time.Now().Format(time.TimeOnly), r.name)
		results, err := r.run(ctx, b)
		err = errors.Join(err, b.ahead.close())
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		rep.netColumns = b.netColumns
		for _, res := range results {
			rep.results = append(rep.results, res)
			fmt.Fprintln(os.Stderr, res.line(rep.columnsOf(res)))
		}
	}
	rep.end = time.Now()
	rep.loadEnd = loadAverage()
	return rep, nil
}
