// Package workspacetest is the suite that every workspace backend passes.
//
// A backend's own test calls Run with a Harness that says how to make one and
// what it honestly cannot do. Each rule is a subtest with a short name (C for
// commands, F for files, L for life, P for policies) and a sentence, printed
// when it fails, that says what right behaviour is.
//
// A rule that a limit of the harness excludes is not passed: it is counted
// apart, and the last line of the output names the limits.
package workspacetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/workspace"
)

// Limit is something that a backend declares it cannot do.
type Limit string

// The limits that can be declared.
const (
	// ExitAtPipeEnd: the end of a command cannot be told from the end of its
	// output, so a process that holds the output open holds up Run.
	ExitAtPipeEnd Limit = "a command ends when its output does"
	// PermissionsIgnored: file operations are made by somebody whom
	// permissions do not stop, such as root.
	PermissionsIgnored Limit = "permissions do not bind"
	// NoShell: there is no POSIX shell with the usual utilities on a real
	// kernel, only something that understands simple scripts.
	NoShell Limit = "no real shell"
	// NoTraversal: paths are not walked by a real kernel.
	NoTraversal Limit = "no real path traversal"
	// BytesMangled: names that are not UTF-8 cannot be passed on.
	BytesMangled Limit = "names are UTF-8"
)

// Harness is what Run needs to know. Only New is required; the rules for which
// something is missing are counted as not run.
type Harness struct {
	// New returns a backend for a place of its own, which does not exist yet
	// where the backend makes one. Run closes it, and destroys the place.
	New func() workspace.Backend
	// Attach returns one more backend for a place.
	Attach func(ref workspace.Ref) workspace.Backend
	// Destroy destroys a place, in any state, more than once.
	Destroy func(ctx context.Context, ref workspace.Ref) error
	// Alive lists the places of this harness that there are now.
	Alive func(ctx context.Context) ([]workspace.Ref, error)
	// Slow is New for a place that takes about this long to be made.
	Slow func(delay time.Duration) workspace.Backend

	// Limits are what the backend declares it cannot do.
	Limits []Limit
	// Patience bounds each rule; zero: two minutes. It does not measure, it
	// keeps a hanging backend from hanging the tests.
	Patience time.Duration
	// Only runs just these rules, by name, and everything when empty.
	Only []string
}

// Status is what became of a rule.
type Status string

// What can become of a rule.
const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Limited Status = "not run" // for a limit, or something that the harness lacks
)

// Outcome is one rule's.
type Outcome struct {
	Name     string
	Sentence string
	Status   Status
	Problems []string // why it failed; why it was not run
}

// Report is the outcomes of a whole suite.
type Report struct {
	Outcomes []Outcome
	Limits   []Limit
}

// Count returns how many rules had this status.
func (r Report) Count(s Status) int {
	n := 0
	for _, o := range r.Outcomes {
		if o.Status == s {
			n++
		}
	}
	return n
}

// String is the line that Run ends with.
func (r Report) String() string {
	limits := "none"
	if len(r.Limits) > 0 {
		var all []string
		for _, l := range r.Limits {
			all = append(all, string(l))
		}
		limits = strings.Join(all, "; ")
	}
	s := fmt.Sprintf("workspacetest: %d rules run, %d failed, %d not run; declared limits: %s",
		r.Count(Passed)+r.Count(Failed), r.Count(Failed), r.Count(Limited), limits)
	for _, o := range r.Outcomes {
		if o.Status == Limited {
			s += fmt.Sprintf("\n\t%s not run: %s", o.Name, strings.Join(o.Problems, "; "))
		}
	}
	return s
}

// Run runs the suite, each rule as a subtest, and logs the report. The rules
// that are not run are in the report only.
func Run(t *testing.T, h Harness) Report {
	t.Helper()
	s := newSuite(h)
	defer s.close(t.Errorf)
	report := Report{Limits: h.Limits}
	for _, rule := range s.rules() {
		if why := s.missing(rule); len(why) > 0 {
			report.Outcomes = append(report.Outcomes, Outcome{rule.name, rule.sentence, Limited, why})
			continue
		}
		t.Run(rule.name, func(t *testing.T) {
			o := s.run(rule)
			report.Outcomes = append(report.Outcomes, o)
			for _, p := range o.Problems {
				t.Error(p)
			}
			if o.Status == Failed {
				t.Logf("the rule is: %s", o.Sentence)
			}
		})
	}
	t.Log(report)
	return report
}

// Check runs the suite outside of any test: for tests of the suite itself. The
// problems are those of cleaning up.
func Check(h Harness) (report Report, problems []string) {
	s := newSuite(h)
	report.Limits = h.Limits
	for _, rule := range s.rules() {
		report.Outcomes = append(report.Outcomes, s.run(rule))
	}
	s.close(func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) })
	return report, problems
}

// canary is a variable of this program that no command may see.
const canary = "HUTCH_WORKSPACETEST_CANARY"

// rule is one of the suite.
type rule struct {
	name     string
	sentence string
	limits   []Limit             // any of them excludes the rule
	needs    []workspace.Feature // all of them
	harness  []string            // fields of Harness that must be set
	run      func(r *R)
}

type suite struct {
	h Harness

	shared workspace.Backend // most rules use one place, each a folder of its own
	made   []workspace.Backend
	mu     sync.Mutex
}

func newSuite(h Harness) *suite {
	if h.Patience == 0 {
		h.Patience = 2 * time.Minute
	}
	s := &suite{h: h}
	// It stays, since another suite may run at the same time.
	_ = os.Setenv(canary, "seen")
	s.shared = s.keep(h.New())
	return s
}

func (s *suite) keep(b workspace.Backend) workspace.Backend {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made = append(s.made, b)
	return b
}

func (s *suite) rules() []rule {
	all := slices.Concat(commandRules, outputRules, endRules, fileRules, linkRules, lifeRules, policyRules)
	if len(s.h.Only) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(r rule) bool { return !slices.Contains(s.h.Only, r.name) })
}

// close destroys every place that was made.
func (s *suite) close(errorf func(string, ...any)) {
	ctx, cancel := context.WithTimeout(context.Background(), s.h.Patience)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.made {
		if err := workspace.New(b).Close(ctx); err != nil {
			errorf("Close: %v", err)
		}
		if ref, ok := b.Ref(); ok && s.h.Destroy != nil {
			if err := s.h.Destroy(ctx, ref); err != nil {
				errorf("Destroy %v: %v", ref, err)
			}
		}
	}
}

// missing says what excludes a rule.
func (s *suite) missing(r rule) (why []string) {
	for _, l := range r.limits {
		if slices.Contains(s.h.Limits, l) {
			why = append(why, string(l))
		}
	}
	ws := workspace.New(s.shared)
	for _, f := range r.needs {
		if !ws.Supports(f) {
			why = append(why, "no "+string(f))
		}
	}
	has := map[string]bool{"Attach": s.h.Attach != nil, "Destroy": s.h.Destroy != nil, "Alive": s.h.Alive != nil, "Slow": s.h.Slow != nil}
	for _, field := range r.harness {
		if !has[field] {
			why = append(why, "the harness has no "+field)
		}
	}
	return why
}

func (s *suite) run(rule rule) Outcome {
	o := Outcome{Name: rule.name, Sentence: rule.sentence, Status: Passed}
	if why := s.missing(rule); len(why) > 0 {
		o.Status, o.Problems = Limited, why
		return o
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.h.Patience)
	defer cancel()
	r := &R{suite: s, ctx: ctx, ws: workspace.New(s.shared), name: rule.name}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		rule.run(r)
	}()
	<-done
	if ctx.Err() != nil {
		r.Errorf("the rule took longer than %v", s.h.Patience)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.problems) > 0 {
		o.Status, o.Problems = Failed, r.problems
	}
	return o
}

// R is one rule under test.
type R struct {
	suite *suite
	ctx   context.Context
	ws    *workspace.Workspace // on the shared place
	name  string

	mu       sync.Mutex
	problems []string
}

// Errorf notes a problem.
func (r *R) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// Fatalf notes a problem and ends the rule.
func (r *R) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *R) ok(err error, what string) {
	if err != nil {
		r.Fatalf("%s: %v", what, err)
	}
}

func (r *R) is(err, target error, what string) {
	if !errors.Is(err, target) {
		r.Errorf("%s: error is %v, want one that is %q", what, err, target)
	}
}

func (r *R) isNot(err, target error, what string) {
	if errors.Is(err, target) {
		r.Errorf("%s: error is %v, which must not be %q", what, err, target)
	}
}

// dir returns a folder of the rule's own.
func (r *R) dir() string {
	wd, err := r.ws.WorkingDir(r.ctx)
	r.ok(err, "WorkingDir")
	dir := path.Join(wd, r.name)
	r.ok(r.ws.MkdirAll(r.ctx, dir), "MkdirAll "+dir)
	return dir
}

// sh runs a script in dir that must succeed, and returns its output.
func (r *R) sh(dir, script string) string {
	res := r.run(workspace.Command{Shell: "cd " + workspace.Quote(dir) + " || exit 99\n" + script})
	if !res.OK() {
		r.Fatalf("%s: status %d, stderr %q", script, res.ExitCode, clip(res.Stderr))
	}
	return res.Stdout
}

// run runs a command that must have a result.
func (r *R) run(cmd workspace.Command) workspace.Result {
	res, err := r.ws.Run(r.ctx, cmd)
	if err != nil {
		r.Fatalf("%s%v: %v", clip(cmd.Shell), cmd.Args, err)
	}
	return res
}

// eventually waits for what follows soon, but not at once.
func (r *R) eventually(what string, ok func() bool) {
	for !ok() {
		select {
		case <-r.ctx.Done():
			r.Fatalf("in vain waited for: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// alive reports whether the process whose id is in this file runs.
func (r *R) alive(pidFile string) bool {
	res := r.run(workspace.Command{Shell: "kill -0 $(cat " + workspace.Quote(pidFile) + ") 2>/dev/null"})
	return res.OK()
}

// gone waits until the process whose id is in this file has ended. A process
// that is being killed may be there for a moment.
func (r *R) gone(pidFile string) {
	ctx, cancel := context.WithTimeout(r.ctx, 15*time.Second)
	defer cancel()
	for r.alive(pidFile) {
		select {
		case <-ctx.Done():
			r.Fatalf("the process of %s still runs", path.Base(pidFile))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (r *R) write(name string, data []byte) {
	r.ok(r.ws.WriteFile(r.ctx, name, data), "WriteFile "+name)
}

func (r *R) read(name string) []byte {
	data, err := r.ws.ReadFile(r.ctx, name)
	r.ok(err, "ReadFile "+name)
	return data
}

// same reports where two long values differ, not the values.
func (r *R) same(what string, got, want []byte) {
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	r.Errorf("%s: %d bytes, want %d; first difference at %d", what, len(got), len(want), at)
}

func (r *R) equal(what string, got, want any) {
	if got != want {
		r.Errorf("%s is %q, want %q", what, fmt.Sprint(got), fmt.Sprint(want))
	}
}

// names lists a directory.
func (r *R) names(dir string) []string {
	entries, err := r.ws.ReadDir(r.ctx, dir)
	r.ok(err, "ReadDir "+dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return names
}

// fresh makes a backend for a place of its own.
func (r *R) fresh() *workspace.Workspace {
	return workspace.New(r.suite.keep(r.suite.h.New()))
}

func (r *R) attach(ref workspace.Ref) *workspace.Workspace {
	return workspace.New(r.suite.keep(r.suite.h.Attach(ref)))
}

// noise is the same for the same seed.
func noise(seed byte, n int) []byte {
	c := rand.NewChaCha8([32]byte{seed})
	data := make([]byte, n)
	_, _ = c.Read(data)
	return data
}

func clip(s string) string {
	if len(s) > 300 {
		return s[:300] + "..."
	}
	return s
}
