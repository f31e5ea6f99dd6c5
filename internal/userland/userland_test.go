package userland_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/internal/userland"
)

// binDir holds the built program under every name; TestMain sets it.
var binDir string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "userland")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	_ = os.Chmod(dir, 0o755)
	prog := filepath.Join(dir, "hutch-userland")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", prog, "github.com/hutch-sandbox/hutch/cmd/hutch-userland")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	binDir = filepath.Join(dir, "bin")
	if err := os.Mkdir(binDir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, n := range userland.Names() {
		if err := os.Symlink("../hutch-userland", filepath.Join(binDir, n)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

type result struct {
	Out  string
	Code int
}

// runScript runs a script by a shell in an empty directory and returns its
// standard output and status, and its standard error.
func runScript(t *testing.T, shell, path, script string) (result, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dir := filepath.Join(t.TempDir(), "w")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, shell, "-c", script)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + path, "HOME=/root", "LC_ALL=C", "TZ=UTC", "PWD=" + dir, "TMPDIR=" + dir}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("%s did not end\n%s\nstdout %q\nstderr %q", shell, script, out.String(), errOut.String())
	}
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatal(err)
	}
	return result{out.String(), cmd.ProcessState.ExitCode()}, errOut.String()
}

// TestSameAsDash runs each case of same.txt by dash with the system's own
// utilities and by ours, which must print and return the same.
func TestSameAsDash(t *testing.T) {
	dash, err := exec.LookPath("dash")
	if err != nil {
		t.Skip("dash is not installed")
	}
	data, err := os.ReadFile("testdata/same.txt")
	if err != nil {
		t.Fatal(err)
	}
	for i, script := range strings.Split(string(data), "%%\n") {
		t.Run(fmt.Sprintf("%03d", i), func(t *testing.T) {
			t.Parallel()
			want, _ := runScript(t, dash, "/usr/bin:/bin", script)
			got, stderr := runScript(t, filepath.Join(binDir, "sh"), binDir, script)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s\n(-dash +ours)\n%s\nstderr: %s", script, d, stderr)
			}
		})
	}
}

type wantCase struct {
	reason, script string
	want           result
}

func readWants(t *testing.T) []wantCase {
	data, err := os.ReadFile("testdata/want.txt")
	if err != nil {
		t.Fatal(err)
	}
	var list []wantCase
	for _, l := range strings.Split(strings.TrimSuffix(string(data), "\n"), "\n") {
		head, rest := l, ""
		if len(l) >= 3 {
			head, rest = l[:3], l[3:]
		}
		last := len(list) - 1
		switch {
		case head == "## ":
			list = append(list, wantCase{reason: rest})
		case last < 0:
		case head == "== ":
			list[last].want.Out += rest + "\n"
		case head == "?? ":
			n, err := strconv.Atoi(rest)
			if err != nil {
				t.Fatalf("bad status %q", l)
			}
			list[last].want.Code = n
		default:
			list[last].script += l + "\n"
		}
	}
	return list
}

// TestOwnBehaviour runs the cases of want.txt, which say themselves what is
// right.
func TestOwnBehaviour(t *testing.T) {
	for _, c := range readWants(t) {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			got, stderr := runScript(t, filepath.Join(binDir, "sh"), binDir, c.script)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("%s\n(-want +got)\n%s\nstderr: %s", c.script, d, stderr)
			}
		})
	}
}

func TestNamesAreSortedAndUnique(t *testing.T) {
	n := userland.Names()
	if !slices.IsSorted(n) || len(slices.Compact(slices.Clone(n))) != len(n) {
		t.Errorf("names are not sorted and unique: %v", n)
	}
	for _, must := range strings.Fields("sh ls cat cp mv rm mkdir rmdir find grep sed awk sort uniq wc head tail cut tr xargs tar gzip base64 sha256sum date env id ps kill sleep stat touch ln chmod chown df du uname hostname which seq tee dd mktemp realpath readlink test printf expr yes true false") {
		if !slices.Contains(n, must) {
			t.Errorf("%s is missing", must)
		}
	}
}

func TestMainDispatch(t *testing.T) {
	for _, c := range []struct {
		args []string
		out  string
		code int
	}{
		{[]string{"/bin/echo", "a", "b"}, "a b\n", 0},
		{[]string{"hutch-userland", "echo", "x"}, "x\n", 0},
		{[]string{"hutch-userland", "nosuch"}, "", 127},
		{[]string{"false"}, "", 1},
	} {
		var out, errOut bytes.Buffer
		if code := userland.Main(c.args, strings.NewReader(""), &out, &errOut); code != c.code || out.String() != c.out {
			t.Errorf("%q: status %d, output %q; want %d, %q", c.args, code, out.String(), c.code, c.out)
		}
	}
}

// TestOtherArchitecture compiles for arm64, whose system calls differ.
func TestOtherArchitecture(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	cmd := exec.Command("go", "vet", "github.com/hutch-sandbox/hutch/internal/userland/...", "github.com/hutch-sandbox/hutch/cmd/hutch-userland")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=arm64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
