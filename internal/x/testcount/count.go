package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// event is one line of "go test -json"; see "go doc test2json".
type event struct {
	Action     string
	Package    string
	ImportPath string // of what could not be built
	Test       string
	Elapsed    float64
	Output     string
}

// testID names a test.
type testID struct{ pkg, name string }

// counter follows one stream of events.
type counter struct {
	w        io.Writer
	output   map[testID]*bytes.Buffer // of what still runs; name "" is the package's own
	ended    map[testID]string        // actions
	took     map[testID]float64       // seconds, of tests that are nobody's subtest
	packages map[string]string        // actions
	builds   map[string]*bytes.Buffer // output of builds
}

// count reads events up to the end of r, prints what is worth reading to w and
// returns the counts. A test that has subtests counts as its subtests; a
// package that failed without a failed test counts as one failure.
func count(r io.Reader, w io.Writer) (totals, error) {
	c := &counter{
		w:      w,
		output: map[testID]*bytes.Buffer{}, ended: map[testID]string{}, took: map[testID]float64{},
		packages: map[string]string{}, builds: map[string]*bytes.Buffer{},
	}
	br := bufio.NewReader(r)
	for {
		line, err := br.ReadBytes('\n')
		if len(line) > 0 {
			c.line(line)
		}
		if errors.Is(err, io.EOF) {
			return c.totals(), nil
		}
		if err != nil {
			return c.totals(), err
		}
	}
}

func (c *counter) line(line []byte) {
	var e event
	if line[0] != '{' || json.Unmarshal(line, &e) != nil {
		_, _ = c.w.Write(line) // not an event: somebody else's word
		return
	}
	id := testID{e.Package, e.Test}
	switch e.Action {
	case "output":
		buffer(c.output, id).WriteString(e.Output)
	case "build-output":
		buffer(c.builds, e.ImportPath).WriteString(e.Output)
	case "build-fail":
		_, _ = io.Copy(c.w, buffer(c.builds, e.ImportPath))
	case "pass", "fail", "skip":
		if e.Test == "" {
			c.endPackage(e)
		} else {
			c.endTest(id, e.Action)
			if !strings.Contains(e.Test, "/") {
				c.took[id] = e.Elapsed
			}
		}
	}
}

func buffer[K comparable](m map[K]*bytes.Buffer, key K) *bytes.Buffer {
	if m[key] == nil {
		m[key] = &bytes.Buffer{}
	}
	return m[key]
}

func (c *counter) endTest(id testID, action string) {
	c.ended[id] = action
	out := buffer(c.output, id)
	switch action {
	case "fail":
		_, _ = io.Copy(c.w, out)
		delete(c.output, id)
	case "pass":
		delete(c.output, id)
	}
	// Of a skipped test the output is the reason, wanted at the end.
}

func (c *counter) endPackage(e event) {
	c.packages[e.Package] = e.Action
	if e.Action == "fail" {
		// What was cut short never ended, and its output tells why.
		for id, out := range c.output {
			if _, ended := c.ended[id]; id.pkg == e.Package && !ended {
				_, _ = io.Copy(c.w, out)
			}
		}
	}
	if e.Action == "skip" {
		return // it has no tests
	}
	passed, skipped := 0, 0
	for id, action := range c.ended {
		switch {
		case id.pkg != e.Package || c.hasChildren(id):
		case action == "pass":
			passed++
		case action == "skip":
			skipped++
		}
	}
	word := map[string]string{"pass": "ok  ", "fail": "FAIL"}[e.Action]
	fmt.Fprintf(c.w, "%s  %-70s %6.1fs  %4d passed", word, e.Package, e.Elapsed, passed)
	if skipped > 0 {
		fmt.Fprintf(c.w, ", %d skipped", skipped)
	}
	fmt.Fprintln(c.w)
	if e.Elapsed >= longPackage {
		c.slowest(e.Package)
	}
}

// longPackage is how many seconds a package takes of which the slowest tests
// are told, and longTest the least of such a test.
const (
	longPackage = 60
	longTest    = 10
	mostSlowest = 10
)

// slowest prints where the time of a package went.
func (c *counter) slowest(pkg string) {
	var ids []testID
	for id, took := range c.took {
		if id.pkg == pkg && took >= longTest {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b testID) int { return cmp.Compare(c.took[b], c.took[a]) })
	var parts []string
	for _, id := range ids[:min(len(ids), mostSlowest)] {
		parts = append(parts, fmt.Sprintf("%s %.0fs", id.name, c.took[id]))
	}
	if len(parts) > 0 {
		fmt.Fprintf(c.w, "      slowest: %s\n", strings.Join(parts, ", "))
	}
}

func (c *counter) hasChildren(id testID) bool {
	for other := range c.ended {
		if other.pkg == id.pkg && strings.HasPrefix(other.name, id.name+"/") {
			return true
		}
	}
	return false
}

func (c *counter) totals() totals {
	t := totals{Skipped: map[string]int{}}
	for _, action := range c.packages {
		if action != "skip" { // a package without tests
			t.Packages++
		}
	}
	parents := map[testID]bool{}   // tests with subtests
	explained := map[testID]bool{} // failed tests with a failed subtest
	for id, action := range c.ended {
		for name := id.name; ; {
			slash := strings.LastIndexByte(name, '/')
			if slash < 0 {
				break
			}
			name = name[:slash]
			parents[testID{id.pkg, name}] = true
			if action == "fail" {
				explained[testID{id.pkg, name}] = true
			}
		}
	}
	failed := map[string]int{}
	for id, action := range c.ended {
		switch {
		case action == "fail" && !explained[id]:
			failed[id.pkg]++
		case parents[id]:
		case action == "pass":
			t.Passed++
		case action == "skip":
			t.Skipped[reason(c.output[id])]++
		}
	}
	for pkg, action := range c.packages {
		if action == "fail" && failed[pkg] == 0 {
			failed[pkg] = 1
		}
	}
	for _, n := range failed {
		t.Failed += n
	}
	return t
}

// reason finds the message of t.Skip in a test's output:
// "    file_test.go:12: why".
func reason(out *bytes.Buffer) string {
	if out == nil {
		return "no reason given"
	}
	for line := range strings.Lines(out.String()) {
		line = strings.TrimSpace(line)
		if _, why, ok := strings.Cut(line, ".go:"); ok && !strings.HasPrefix(line, "---") {
			if _, why, ok := strings.Cut(why, ": "); ok {
				return why
			}
		}
	}
	return "no reason given"
}
