// Package examples_test compiles and runs the examples, and checks what they
// print.
package examples_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

func TestExamples(t *testing.T) {
	realengine.Need(t, "gvisor")
	bin := hutch(t)
	for _, c := range []struct{ name, want string }{
		{"primes", `^hello from a box
primes below 100: 2 3 5 7 11 13 17 19 23 29 31 37 41 43 47 53 59 61 67 71 73 79 83 89 97 
create to first output: \d+ ms \(engine gvisor, application kernel\)
$`},
		{"server", `^hello you, this is greeter
$`},
		{"parallel", `^0 1 4 9 16 25 36 49 64 81 100 121 144 169 196 225 256 289 324 361
$`},
		{"agent-primes", `^the first 10: 2 3 5 7 11 13 17 19 23 29
the last of the first 100: 541
in the same box: true
$`},
		{"agent-tool", `^It is 42\.
$`},
		{"agent-prepare", `^add subtracted; now it adds\.
def add\(a, b\):
    return a \+ b
$`},
		{"agent-reattach", `^It is written down\.
It says:
\[stdout\]
remember the milk
after its end: true
$`},
		{"agent-cleanup", `^the box is destroyed
the run failed: .*no more responses
the box is gone: true
$`},
		{"agent-network", `^it reaches \[pypi\.org files\.pythonhosted\.org\]
pypi\.org resolves: true
example\.com resolves: false
$`},
		{"agent-volumes", `^The folder holds:
(?s:.*)examples_test\.go
(?s:.*)not to be written
$`},
	} {
		t.Run(c.name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), c.name)
			build := exec.Command("go", "build", "-o", program, "./"+c.name)
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build: %v\n%s", err, out)
			}
			home, err := os.MkdirTemp("", "hutch-examples-")
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), program)
			cmd.Env = append(os.Environ(), "HUTCH_HOME="+home, "HUTCH_HELPER="+bin)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v\n%s%s", err, stdout.Bytes(), stderr.Bytes())
			}
			if stderr.Len() > 0 || !regexp.MustCompile(c.want).Match(stdout.Bytes()) {
				t.Errorf("it printed %q and %q; want %s", stdout.Bytes(), stderr.Bytes(), c.want)
			}
			// The examples clean up behind themselves.
			for _, dir := range []string{"boxes", "names", "tmp"} {
				entries, err := os.ReadDir(filepath.Join(home, dir))
				if err != nil || len(entries) > 0 {
					t.Errorf("%s: %d entries are left, %v", dir, len(entries), err)
				}
			}
			// Only an ordinary user's images have files that he cannot remove
			// by himself: folders without write permission.
			_ = filepath.WalkDir(home, func(path string, d os.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					return os.Chmod(path, 0o700)
				}
				return nil
			})
			if err := os.RemoveAll(home); err != nil {
				t.Error(err)
			}
		})
	}
}

// hutch finds the helper of the examples, which link no engine.
func hutch(t *testing.T) string {
	t.Helper()
	for _, path := range []string{os.Getenv("HUTCH_HELPER"), os.Getenv("HUTCH_BIN"), "../bin/hutch", "../.bin/hutch"} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err == nil {
			if path, err = filepath.Abs(path); err == nil {
				return path
			}
		}
	}
	if os.Getenv("REQUIRE_ENGINES") != "" {
		t.Fatal("no hutch command: make build")
	}
	t.Skip("no hutch command: make build")
	return ""
}
