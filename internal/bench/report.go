package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// report is a finished run.
type report struct {
	start, end time.Time
	loadEnd    string
	args       []string // of this command
	host       host
	image      string
	gvisor     string
	disk       string
	nativeHow  string
	columns    []column
	netColumns []column // of the table of ways to the network
	results    []*result
}

// columnsOf returns the contestants of a result's table.
func (r *report) columnsOf(res *result) []string {
	if res.network {
		return names(r.netColumns)
	}
	return append(names(r.columns), nativeName)
}

// column is a contestant in the table.
type column struct {
	name   string
	reason string // why it could not run
	how    []string
}

// line is a result on the terminal while the rest is measured.
func (r *result) line(columns []string) string {
	parts := []string{"  " + r.what + " (" + r.unit + ")"}
	for _, name := range columns {
		if s := r.samples[name]; s != nil {
			parts = append(parts, name+" "+strings.ReplaceAll(s.cell(), "**", ""))
		}
	}
	return strings.Join(parts, "\n      ")
}

func names(columns []column) []string {
	var list []string
	for _, c := range columns {
		list = append(list, c.name)
	}
	return list
}

// ratio says how Hutch stands beside another: how many times as long, large or
// fast.
func (r *result) ratio(other string) string {
	a, b := r.samples["hutch"], r.samples[other]
	if a == nil || b == nil || len(a.values) == 0 || len(b.values) == 0 || b.median() == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a.median()/b.median())
}

// markdown is the whole document.
func (r *report) markdown() string {
	var w strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&w, format+"\n", args...) }
	p("# Benchmarks")
	p("")
	p("Written by `make bench`; do not edit by hand. Hutch's gVisor engine beside other ways to run a command in isolation, in")
	p("one run on one machine, taking turns, on the same root file system: %s.", r.image)
	p("")
	p("Measured on %s, in %s, by `go run ./internal/bench %s`.", r.start.UTC().Format("2 January 2006 15:04 UTC"), r.end.Sub(r.start).Round(time.Second), strings.Join(r.args, " "))
	p("")
	for _, line := range r.host.lines(r.gvisor) {
		p("* %s", line)
	}
	p("* load average before the run: %s; after it: %s", r.host.load, r.loadEnd)
	p("")
	if slices.ContainsFunc(r.results, func(res *result) bool { return !res.network }) {
		r.table(p, append(names(r.columns), nativeName), false)
	}
	if len(r.netColumns) > 0 {
		p("")
		p("The way to a server on this machine, from the same client in different places:")
		p("")
		r.table(p, names(r.netColumns), true)
	}
	p("")
	p("A cell is the **median** (95th percentile; least–most) of the attempts that worked. A ratio is Hutch's median over the other's:")
	p("below 1 Hutch takes less, except in the rows where more is better (marked ↑).")
	r.trouble(p)
	p("")
	p("## How")
	p("")
	p("%s", r.disk)
	p("Output is timed to its first byte, as read by this Go program. Peers are command line programs, and a call of theirs includes")
	p("starting that program; Hutch is called as a library, without starting one, except for its keeper.")
	r.how(p, append(r.columns[:len(r.columns):len(r.columns)], column{name: nativeName, how: []string{r.nativeHow}}))
	if len(r.netColumns) > 0 {
		p("")
		p("The ways to the network: the client is this program, mounted into the sandboxes, the server a part of it on an address of this machine's own interface, and the time is what")
		p("the client measures, from before it connects. A request is %d bytes, and so is the answer; each value is the median of 300 of them.", echoBytes)
		r.how(p, r.netColumns)
	}
	p("")
	p("## How far to trust it")
	p("")
	p("One run on one machine. Medians of runs on the same idle machine differ by some percent, those of file-heavy rows by")
	p("much more, since the disk below is shared with whatever else its host does; so are the CPUs of a virtual machine, where every")
	p("page touched first and every change of context costs more than on bare metal. Ratios within a row travel better than milliseconds.")
	p("A load average above about 1 before the run means that something else was running, and that all figures are too high.")
	p("The contestants do not do the same: podman's containers share the host's kernel and cost accordingly little; runsc is gVisor as Hutch uses it,")
	p("but its overlay's files are gone after a crash, and it has neither an agent in the box nor a process that owns it.")
	return w.String()
}

// how says what was done for each contestant.
func (r *report) how(p func(string, ...any), columns []column) {
	for _, c := range columns {
		p("")
		p("**%s**", c.name)
		p("")
		for _, line := range c.how {
			p("* %s", line)
		}
	}
}

// table writes the results of one of the two tables.
func (r *report) table(p func(string, ...any), all []string, network bool) {
	head, rule := "| |", "| --- |"
	for _, name := range all {
		head += " " + name + " |"
		rule += " --- |"
	}
	for _, name := range all[1:] {
		head += " ÷ " + name + " |"
		rule += " --- |"
	}
	p("%s", head)
	p("%s", rule)
	for _, res := range r.results {
		if res.network != network {
			continue
		}
		what := res.what + ", " + res.unit
		if res.moreIsBetter {
			what += " ↑"
		}
		line := "| " + what + " |"
		for _, name := range all {
			line += " " + r.cell(res, name) + " |"
		}
		for _, name := range all[1:] {
			line += " " + res.ratio(name) + " |"
		}
		p("%s", line)
	}
}

func (r *report) cell(res *result, name string) string {
	columns := r.columns
	if res.network {
		columns = r.netColumns
	}
	for _, c := range columns {
		if c.name == name && c.reason != "" {
			return "could not run"
		}
	}
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(res.samples[name].cell())
}

// trouble lists what did not work.
func (r *report) trouble(p func(string, ...any)) {
	var lines []string
	for _, c := range append(r.columns[:len(r.columns):len(r.columns)], r.netColumns...) {
		if c.reason != "" {
			lines = append(lines, c.name+" could not run: "+c.reason)
		}
	}
	for _, res := range r.results {
		for _, name := range r.columnsOf(res) {
			if s := res.samples[name]; s != nil && s.failure != "" && len(s.values) > 0 {
				lines = append(lines, fmt.Sprintf("%s, %s: %d of %d attempts failed, the first with: %s", res.what, name, s.attempts-len(s.values), s.attempts, s.failure))
			}
		}
	}
	if len(lines) > 0 {
		p("")
		p("What did not work:")
		p("")
	}
	for _, line := range lines {
		p("* %s", strings.ReplaceAll(line, "\n", " "))
	}
}
