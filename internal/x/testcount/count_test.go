package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const head = `{"Action":"start","Package":"p"}
`

func TestCount(t *testing.T) {
	for _, tc := range []struct {
		name           string
		events         string
		passed, failed int
		skipped        map[string]int
		prints, hides  string
	}{
		{
			name: "a passing test is counted and its output is not shown",
			events: head + `{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}
`,
			passed: 1, prints: "ok    p", hides: "chatter",
		},
		{
			name: "of a package that takes long the slowest tests are named",
			events: head + `{"Action":"pass","Package":"p","Test":"TestA/x","Elapsed":40}
{"Action":"pass","Package":"p","Test":"TestB","Elapsed":31}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":41}
{"Action":"pass","Package":"p","Test":"TestC","Elapsed":1}
{"Action":"pass","Package":"p","Elapsed":73}
`,
			passed: 3, prints: "slowest: TestA 41s, TestB 31s\n", hides: "TestC",
		},
		{
			name: "a test with subtests counts as its subtests",
			events: head + `{"Action":"pass","Package":"p","Test":"TestA/x"}
{"Action":"pass","Package":"p","Test":"TestA/y"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}
`,
			passed: 2,
		},
		{
			name: "a failed subtest is one failure and its output is shown",
			events: head + `{"Action":"output","Package":"p","Test":"TestA/x","Output":"broken\n"}
{"Action":"fail","Package":"p","Test":"TestA/x"}
{"Action":"pass","Package":"p","Test":"TestA/y"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`,
			passed: 1, failed: 1, prints: "broken",
		},
		{
			name: "a test that fails itself after good subtests is a failure",
			events: head + `{"Action":"pass","Package":"p","Test":"TestA/x"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`,
			passed: 1, failed: 1,
		},
		{
			name: "a package that dies in a test is a failure and says why",
			events: head + `{"Action":"output","Package":"p","Test":"TestA","Output":"panic: no\n"}
{"Action":"fail","Package":"p"}
`,
			failed: 1, prints: "panic: no",
		},
		{
			name: "a package that cannot be built is a failure and says why",
			events: `{"ImportPath":"p [p.test]","Action":"build-output","Output":"x.go:1: undefined\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
` + head + `{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}
`,
			failed: 1, prints: "undefined",
		},
		{
			name: "a skipped test is counted by its reason",
			events: head + `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: needs root\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}
`,
			skipped: map[string]int{"needs root": 1}, prints: "1 skipped",
		},
		{
			name:   "a package without tests is not worth a line",
			events: head + "{\"Action\":\"skip\",\"Package\":\"p\"}\n", hides: "p",
		},
		{
			name:   "what is no event is passed on",
			events: "go: downloading example.com/x v1.0.0\n", prints: "downloading",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			got, err := count(strings.NewReader(tc.events), &out)
			if err != nil {
				t.Fatal(err)
			}
			if got.Passed != tc.passed || got.Failed != tc.failed {
				t.Errorf("got %d passed, %d failed; want %d, %d", got.Passed, got.Failed, tc.passed, tc.failed)
			}
			for reason, n := range tc.skipped {
				if got.Skipped[reason] != n {
					t.Errorf("skipped: got %v, want %d of %q", got.Skipped, n, reason)
				}
			}
			if len(got.Skipped) != len(tc.skipped) {
				t.Errorf("skipped: got %v, want %v", got.Skipped, tc.skipped)
			}
			if !strings.Contains(out.String(), tc.prints) {
				t.Errorf("output lacks %q:\n%s", tc.prints, &out)
			}
			if tc.hides != "" && strings.Contains(out.String(), tc.hides) {
				t.Errorf("output has %q:\n%s", tc.hides, &out)
			}
		})
	}
}

// say is a command that prints its argument and ends with a status.
func say(text, status string) []string {
	return []string{"sh", "-c", `printf %s "$0"; exit "$1"`, text, status}
}

func TestRunsAddUp(t *testing.T) {
	pass := head + "{\"Action\":\"pass\",\"Package\":\"p\",\"Test\":\"TestA\"}\n{\"Action\":\"pass\",\"Package\":\"p\"}\n"
	dir := t.TempDir()
	file, engines := filepath.Join(dir, "totals"), filepath.Join(dir, "engines")
	if err := os.WriteFile(engines, []byte("gvisor (user)\ngvisor (root)\ngvisor (root)\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	do := func(args ...string) (string, error) {
		// The command writes to its standard error while run writes to the
		// other.
		var out, errOut bytes.Buffer
		err := run(append([]string{"-totals", file}, args...), &out, &errOut)
		return errOut.String() + out.String(), err
	}
	if _, err := do("-report"); err == nil {
		t.Error("a report of nothing is a success")
	}
	for range 2 {
		if out, err := do(say(pass, "0")...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	out, err := do("-engines", engines, "-report")
	if err != nil {
		t.Fatal(err)
	}
	if want := "engines that ran: gvisor (root), gvisor (user)\n2 passed, 0 failed\n"; !strings.HasSuffix(out, want) {
		t.Errorf("report:\n%s\nwant at its end:\n%s", out, want)
	}
	if _, err := do(say("", "0")...); err == nil {
		t.Error("a command that ran no test is a success")
	}
	if _, err := do(say(pass, "3")...); err == nil {
		t.Error("a command that failed is a success")
	}
	if out, err = do("-report"); err == nil || !strings.HasSuffix(out, "3 passed, 1 failed\n") {
		t.Errorf("report after a failure: %v\n%s", err, out)
	}
}

func TestMaySkip(t *testing.T) {
	skip := head + `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: needs root\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}
`
	for _, tc := range []struct {
		may, want string
		fails     bool
	}{
		{"", "skipped 1: needs root\n", false},
		{"^(needs root|too slow)$", "skipped 1: needs root\n", false},
		{"^needs$", "0 passed, 1 failed\n", true},
		{"(", "", true},
	} {
		var out, errOut bytes.Buffer
		file := filepath.Join(t.TempDir(), "totals")
		err := run(append([]string{"-totals", file, "-may-skip", tc.may}, say(skip, "0")...), &out, &errOut)
		if (err != nil) != tc.fails {
			t.Errorf("%q: error %v\n%s", tc.may, err, out.String())
		}
		if tc.fails && tc.want != "" && !strings.Contains(out.String(), "should have run: needs root") {
			t.Errorf("%q: it does not say what was skipped:\n%s", tc.may, out.String())
		}
		_ = run([]string{"-totals", file, "-report"}, &out, &errOut)
		if !strings.Contains(out.String(), tc.want) {
			t.Errorf("%q: report\n%s\nlacks %q", tc.may, out.String(), tc.want)
		}
	}
}
