// Command testcount runs "go test -json", shows of it what a person wants to
// read, and adds up what really ran over several such runs:
//
//	testcount -totals FILE [-may-skip REGEXP] COMMAND ARG...
//	testcount -totals FILE -engines FILE -report
//
// The first form prints the output of failed tests and one line for each
// package, adds the counts to the file and fails when a test failed, when the
// command did, or when it ended without having run anything. With -may-skip, a
// test that is skipped for a reason which the expression does not match counts
// as failed: it should have run. The second form prints
// why tests were skipped, which engines ran, and as its last line
// "N passed, N failed".
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "testcount:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("testcount", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("totals", "", "file that keeps the counts of all runs")
	maySkip := flags.String("may-skip", "", "reasons for which tests may be skipped, a regular expression; empty: all")
	engines := flags.String("engines", "", "file in which tests noted the engines they ran on")
	report := flags.Bool("report", false, "print the totals")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *file == "" {
		return errors.New("-totals: name a file")
	}
	t, err := loadTotals(*file)
	if err != nil {
		return err
	}
	if *report {
		ran, err := readEngines(*engines)
		if err != nil {
			return err
		}
		return t.print(stdout, ran)
	}
	if flags.NArg() == 0 {
		return errors.New("no command was given")
	}
	may, err := regexp.Compile(*maySkip)
	if err != nil {
		return fmt.Errorf("-may-skip: %w", err)
	}
	return runCommand(flags.Args(), *file, t, may, stdout, stderr)
}

// runCommand counts one command's tests and adds them to the file, even when
// it fails, so that a report never says more than what passed.
func runCommand(args []string, file string, t totals, maySkip *regexp.Regexp, stdout, stderr io.Writer) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stderr = os.Stdin, stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	counted, cerr := count(out, stdout)
	if cerr != nil {
		// The command must be able to end.
		_, _ = io.Copy(io.Discard, out)
	}
	err = cmd.Wait()
	if cerr == nil && err != nil && counted.Failed == 0 {
		counted.Failed++ // it failed outside of any test
	}
	for reason, n := range counted.Skipped {
		if !maySkip.MatchString(reason) {
			fmt.Fprintf(stdout, "FAIL  %d skipped that should have run: %s\n", n, reason)
			counted.Failed += n
			delete(counted.Skipped, reason)
		}
	}
	t.add(counted)
	if serr := t.save(file); serr != nil {
		return serr
	}
	switch {
	case cerr != nil:
		return cerr
	case counted.Failed > 0:
		return fmt.Errorf("%d failed", counted.Failed)
	case err != nil:
		return err
	case counted.Packages == 0:
		return errors.New("the command ran no package's tests")
	}
	return nil
}

// totals are the counts of any number of runs.
type totals struct {
	Packages int            `json:"packages"`
	Passed   int            `json:"passed"`
	Failed   int            `json:"failed"`
	Skipped  map[string]int `json:"skipped"` // by reason
}

func (t *totals) add(o totals) {
	t.Packages += o.Packages
	t.Passed += o.Passed
	t.Failed += o.Failed
	if t.Skipped == nil {
		t.Skipped = map[string]int{}
	}
	for reason, n := range o.Skipped {
		t.Skipped[reason] += n
	}
}

func loadTotals(file string) (totals, error) {
	var t totals
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal(data, &t); err != nil {
		return t, fmt.Errorf("%s: %w", file, err)
	}
	return t, nil
}

func (t totals) save(file string) error {
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}

// print ends a test run. Nothing that ran is no success.
func (t totals) print(w io.Writer, engines []string) error {
	reasons := make([]string, 0, len(t.Skipped))
	for r := range t.Skipped {
		reasons = append(reasons, r)
	}
	slices.Sort(reasons)
	for _, r := range reasons {
		fmt.Fprintf(w, "skipped %d: %s\n", t.Skipped[r], r)
	}
	if len(engines) == 0 {
		fmt.Fprintln(w, "engines that ran: none")
	} else {
		fmt.Fprintln(w, "engines that ran:", strings.Join(engines, ", "))
	}
	fmt.Fprintf(w, "%d passed, %d failed\n", t.Passed, t.Failed)
	switch {
	case t.Failed > 0:
		return fmt.Errorf("%d failed", t.Failed)
	case t.Passed == 0:
		return errors.New("nothing ran")
	}
	return nil
}

// readEngines reads the lines that tests appended, each once.
func readEngines(file string) ([]string, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(data)) {
		if name := strings.TrimSpace(line); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
