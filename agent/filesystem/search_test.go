package filesystem_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/agent/filesystem"
	"github.com/hutch-sandbox/hutch/workspace"
)

// filesOnly hides that a workspace runs commands.
type filesOnly struct {
	workspace.Backend
	workspace.Files
	workspace.Realpather
}

// searchers are the ways in which list_files and grep can work: they have to
// say the same.
func searchers(t *testing.T, f func(t *testing.T, b *bench)) {
	for _, how := range []string{"program", "git", "walk"} {
		t.Run(how, func(t *testing.T) {
			b := setup(t, filesystem.Options{Tools: everyTool()})
			switch how {
			case "program":
				if _, err := exec.LookPath("rg"); err != nil {
					t.Skip("ripgrep is not installed")
				}
			case "git":
				if _, err := exec.LookPath("git"); err != nil {
					t.Skip("git is not installed")
				}
				if out, err := exec.Command("git", "-C", b.dir, "init", "-q").CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				fallthrough // without ripgrep
			case "walk":
				w := workspace.New(b.ws)
				if how == "git" {
					b.ws = noRipgrep{w}
				} else {
					b.ws = filesOnly{w, w, w}
				}
			}
			f(t, b)
		})
	}
}

func TestGrep(t *testing.T) {
	searchers(t, func(t *testing.T, b *bench) {
		b.t = t
		b.write("a.go", "package a\n\nfunc Hello() {\n\treturn\n}\n\nfunc hello2() {}\n")
		b.write("sub/b.py", "def hello():\n    pass\n")
		b.write("sub/c.txt", "nothing\n")
		b.write(".hidden/d.go", "func Hello() {}\n")
		b.write("bin", "Hello\x00")
		for _, c := range []struct {
			a    args
			want string
		}{
			{args{"pattern": "Hello"}, "a.go:3:func Hello() {\n"},
			{args{"pattern": "hello", "ignore_case": true, "file_type": "go"}, "a.go:3:func Hello() {\na.go:7:func hello2() {}\n"},
			{args{"pattern": "hello", "glob": "*.py"}, "sub/b.py:1:def hello():\n"},
			{args{"pattern": "hello", "path": "sub"}, "sub/b.py:1:def hello():\n"},
			{args{"pattern": "pass", "path": "sub/b.py"}, "sub/b.py:2:    pass\n"},
			{args{"pattern": "() {", "literal": true}, "a.go:3:func Hello() {\na.go:7:func hello2() {}\n"},
			{args{"pattern": "return", "context": 1}, "a.go-3-func Hello() {\na.go:4:\treturn\na.go-5-}\n"},
			{args{"pattern": "package|hello2", "context": 1}, "a.go:1:package a\na.go-2-\n--\na.go-6-\na.go:7:func hello2() {}\n"},
			{args{"pattern": "func H\\w+"}, "a.go:3:func Hello() {\n"},
			{args{"pattern": "absent"}, "(no matches)\n"},
		} {
			if d := cmp.Diff(c.want, b.ok("grep", c.a)); d != "" {
				t.Errorf("%v:\n%s", c.a, d)
			}
		}
		b.write("wide.txt", "x "+strings.Repeat("y", 5<<20)+" wideneedle\n")
		got := b.ok("grep", args{"pattern": "wideneedle"})
		if !strings.HasPrefix(got, "wide.txt:1:") || len(got) > 1000 {
			t.Errorf("a match in a line of 5 MB: %d bytes: %.200q", len(got), got)
		}
		if !strings.Contains(got, "cut]") && !strings.Contains(got, "omitted") && !strings.Contains(got, "more match") {
			t.Errorf("that the line is cut is not said: %q", got)
		}
		b.refused("grep", args{"pattern": "("}, "no regular expression")
		b.refused("grep", args{"pattern": ""}, "empty")
		b.refused("grep", args{"pattern": "x", "context": 21}, "from 0 to 20")
		b.refused("grep", args{"pattern": "x", "file_type": "cobol"}, "not known")
		b.refused("grep", args{"pattern": "x", "path": "none"}, "no such file")
	})
}

func TestListFiles(t *testing.T) {
	searchers(t, func(t *testing.T, b *bench) {
		b.t = t
		for _, f := range []string{"b.go", "a.txt", "sub/c.go", "sub/deep/d.go", ".hidden/e.go"} {
			b.write(f, "x")
		}
		for _, c := range []struct {
			a    args
			want string
		}{
			{args{}, "a.txt\nb.go\nsub/c.go\nsub/deep/d.go\n"},
			{args{"glob": "*.go"}, "b.go\nsub/c.go\nsub/deep/d.go\n"},
			{args{"path": "sub"}, "sub/c.go\nsub/deep/d.go\n"},
			{args{"path": "sub", "glob": "deep/**"}, "sub/deep/d.go\n"},
			{args{"glob": "*.rs"}, "(no files)\n"},
		} {
			if d := cmp.Diff(c.want, b.ok("list_files", c.a)); d != "" {
				t.Errorf("%v:\n%s", c.a, d)
			}
		}
		b.refused("list_files", args{"path": "a.txt"}, "not a directory")
	})
}

func TestIgnoredFilesAreLeftOut(t *testing.T) {
	searchers(t, func(t *testing.T, b *bench) {
		b.t = t
		if _, ok := b.ws.(filesOnly); ok {
			return // without commands nobody knows what git ignores
		}
		if _, err := exec.LookPath("git"); err != nil {
			t.Skip("git is not installed")
		}
		if out, err := exec.Command("git", "-C", b.dir, "init", "-q").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		b.write(".gitignore", "out/\n")
		b.write("out/x.go", "needle\n")
		b.write("y.go", "needle\n")
		if got := b.ok("grep", args{"pattern": "needle"}); got != "y.go:1:needle\n" {
			t.Errorf("grep: %q", got)
		}
		if got := b.ok("list_files", args{}); got != "y.go\n" {
			t.Errorf("list_files: %q", got)
		}
	})
}

func TestFindFiles(t *testing.T) {
	b := setup(t, filesystem.Options{})
	for _, f := range []string{"b.go", "a.txt", "sub/c.go", "sub/deep/d.go", ".hidden/e.go"} {
		b.write(f, "x")
	}
	if err := os.Symlink("..", filepath.Join(b.dir, "sub", "loop")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		a    args
		want string
	}{
		{args{"pattern": "**/*.go"}, "b.go\nsub/c.go\nsub/deep/d.go\n"},
		{args{"pattern": "*.go"}, "b.go\n"},
		{args{"pattern": "*.go", "path": "sub"}, "sub/c.go\n"},
		{args{"pattern": "{a,b}.*"}, "a.txt\nb.go\n"},
		{args{"pattern": "*.rs"}, "(no files match)\n[the pattern is for the top of the directory; begin it with **/ to look below]\n"},
	} {
		if d := cmp.Diff(c.want, b.ok("find_files", c.a)); d != "" {
			t.Errorf("%v:\n%s", c.a, d)
		}
	}
	b.refused("find_files", args{"pattern": "/etc/*"}, "absolute")
	b.refused("find_files", args{"pattern": "../*"}, "..")
}

func TestResultsAreBounded(t *testing.T) {
	b := setup(t, filesystem.Options{Tools: everyTool()})
	for i := range filesystem.MaxEntries + 5 {
		b.write(fmt.Sprintf("d/%04d.txt", i), "needle\n")
	}
	for tool, a := range map[string]args{
		"list_directory": {"path": "d"},
		"find_files":     {"pattern": "**"},
		"search_files":   {"pattern": "needle"},
		"list_files":     {},
		"grep":           {"pattern": "needle"},
	} {
		got := b.ok(tool, a)
		lines := strings.Count(got, "\n")
		if lines != filesystem.MaxEntries+1 || !strings.Contains(got, "more") {
			t.Errorf("%s: %d lines, the last %q", tool, lines, got[max(0, len(got)-100):])
		}
	}
}

func TestSearchFilesGlob(t *testing.T) {
	b := setup(t, filesystem.Options{})
	b.write("a.go", "needle 1\n")
	b.write("sub/b.go", "needle 2\n")
	b.write("sub/b.txt", "needle 3\n")
	if got := b.ok("search_files", args{"pattern": `needle \d`, "include_glob": "*.go"}); got != "a.go:1:needle 1\nsub/b.go:1:needle 2\n" {
		t.Errorf("%q", got)
	}
	b.refused("search_files", args{"pattern": "["}, "regular expression")
	if os.Getuid() != 0 {
		if err := os.Chmod(filepath.Join(b.dir, "a.go"), 0); err != nil {
			t.Fatal(err)
		}
		if got := b.ok("search_files", args{"pattern": "needle"}); !strings.Contains(got, "1 files could not be read") {
			t.Errorf("%q", got)
		}
	}
}
