package changes

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// entry is one entry of a tar.
type entry struct {
	name string
	kind byte
	text string // content, or where a link leads
	mode int64
}

func file(name, text string) entry { return entry{name, tar.TypeReg, text, 0o644} }

// folder is a tar of a folder with the entries.
func folder(t *testing.T, entries ...entry) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: e.mode}
		switch e.kind {
		case tar.TypeReg:
			h.Size = int64(len(e.text))
		case tar.TypeSymlink, tar.TypeLink:
			h.Linkname = e.text
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if e.kind == tar.TypeReg {
			if _, err := io.WriteString(w, e.text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func read(t *testing.T, entries ...entry) Listing {
	t.Helper()
	l, err := Read(t.Context(), folder(t, entries...))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// texts is a Source of the entries' contents.
func texts(entries ...entry) Source {
	return func(name string) (io.ReadCloser, error) {
		for _, e := range entries {
			if e.name == name && e.kind == tar.TypeReg {
				return io.NopCloser(strings.NewReader(e.text)), nil
			}
		}
		return nil, fs.ErrNotExist
	}
}

// host makes a folder on this machine.
func host(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tree reads it back: what each name holds; links as "-> target".
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		switch {
		case d.IsDir():
			out[name] = "/"
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			out[name] = "-> " + to
			return err
		default:
			data, err := os.ReadFile(p)
			out[name] = string(data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func open(t *testing.T, dir string) *Folder {
	t.Helper()
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestApply(t *testing.T) {
	dir := host(t, map[string]string{"same": "s", "edit": "old\n", "gone/deep/x": "x", "gone/mine": "m", "tool": "t", "turns": "file", "box/was": "dir"})
	base := read(t, file("same", "s"), file("edit", "old\n"), entry{"gone", tar.TypeDir, "", 0o755}, entry{"gone/deep", tar.TypeDir, "", 0o755},
		file("gone/deep/x", "x"), file("tool", "t"), file("turns", "file"), entry{"box", tar.TypeDir, "", 0o755}, file("box/was", "dir"), file(".git/config", "a"))
	after := []entry{
		file("same", "s"), file("edit", "new\n"), {"tool", tar.TypeReg, "t", 0o755}, {"turns", tar.TypeDir, "", 0o755}, file("turns/in", "i"),
		file("box", "a file now"), {"fresh", tar.TypeDir, "", 0o755}, file("fresh/a\nb", "odd name"), {"link", tar.TypeSymlink, "fresh/x", 0o777},
		file("bin", "a\x00b"), {"empty", tar.TypeDir, "", 0o755}, {"again", tar.TypeLink, "edit", 0}, file(".git/config", "[core]\n\tfsmonitor = evil"),
		file(".hutch/shell/x", "ours"), file("sub/.GIT/hooks/pre-commit", "evil"),
	}
	now := read(t, after...)
	list := Compare(base, now)
	if n := Guarded(base, now); n != 2 {
		t.Errorf("%d differences in repositories, want 2", n)
	}
	f := open(t, dir)
	ready, problems, err := f.Check(t.Context(), list)
	if err != nil || len(problems) > 0 {
		t.Fatalf("problems: %v, %v", problems, err)
	}
	source := texts(append(after, file("again", "new\n"))...)
	if _, err := f.Apply(t.Context(), ready, source, false); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"same": "s", "edit": "new\n", "tool": "t", "turns": "/", "turns/in": "i", "box": "a file now", "fresh": "/", "fresh/a\nb": "odd name",
		"link": "-> fresh/x", "bin": "a\x00b", "empty": "/", "again": "new\n", "gone": "/", "gone/mine": "m",
	}
	if d := cmp.Diff(want, tree(t, dir)); d != "" {
		t.Error(d)
	}
	if fi, err := os.Stat(filepath.Join(dir, "tool")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("tool: %v %v, want mode 0755", fi.Mode(), err)
	}
	// It is all done: a second time there is nothing to do.
	ready, problems, err = f.Check(t.Context(), list)
	for _, c := range ready {
		if c.Path != "gone" { // still there for what the host has in it
			t.Errorf("%s is to be done again", c.Path)
		}
	}
	if err != nil || len(problems) > 0 {
		t.Errorf("problems the second time: %v %v", problems, err)
	}
}

func TestConflicts(t *testing.T) {
	outside := host(t, map[string]string{"secret": "s"})
	dir := host(t, map[string]string{"edited": "by the user", "new": "the user's"})
	for name, to := range map[string]string{"dirlink": outside, "link": filepath.Join(outside, "secret")} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	base := read(t, file("edited", "old"), file("deleted", "d"), entry{"dirlink", tar.TypeDir, "", 0o755}, file("dirlink/secret", "s"), file("link", "x"))
	after := []entry{
		file("edited", "by the agent"), file("deleted", "changed"), file("new", "the agent's"), {"dirlink", tar.TypeDir, "", 0o755}, file("dirlink/secret", "evil"),
		file("link", "evil"), {"dev", tar.TypeChar, "", 0o600}, {"out", tar.TypeSymlink, "../../etc/passwd", 0}, {"abs", tar.TypeSymlink, "/etc/passwd", 0},
		{"hooks", tar.TypeSymlink, "sub/../.git/hooks", 0}, {"fine", tar.TypeSymlink, "edited", 0},
	}
	list := Compare(base, read(t, after...))
	f := open(t, dir)
	ready, problems, err := f.Check(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, p := range problems {
		got[p.Path] = errors.Is(p.Err, ErrNever)
	}
	want := map[string]bool{"edited": false, "deleted": false, "new": false, "link": false, "dirlink/secret": true, "dev": true, "out": true, "abs": true, "hooks": true}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("problems, and whether they stay:\n%s", d)
	}
	if len(ready) != 1 || ready[0].Path != "fine" {
		t.Errorf("ready: %v", ready)
	}
	// Without force nothing of it is made, also when Check is left out.
	before := tree(t, dir)
	for _, c := range list {
		if c.Path == "fine" {
			continue
		}
		if _, err := f.Apply(t.Context(), []Change{c}, texts(after...), false); err == nil {
			t.Errorf("%s is made", c.Path)
		}
	}
	if d := cmp.Diff(before, tree(t, dir)); d != "" {
		t.Error(d)
	}
	// With force the host's files give way, and the rest stays refused.
	for _, c := range list {
		if _, err := f.Apply(t.Context(), []Change{c}, texts(after...), true); (err != nil) != want[c.Path] {
			t.Errorf("%s with force: %v", c.Path, err)
		}
	}
	if data, _ := os.ReadFile(filepath.Join(outside, "secret")); string(data) != "s" {
		t.Errorf("a file outside of the folder was changed: %q", data)
	}
	got2 := tree(t, dir)
	for name, text := range map[string]string{"edited": "by the agent", "deleted": "changed", "new": "the agent's", "link": "evil", "fine": "-> edited"} {
		if got2[name] != text {
			t.Errorf("%s holds %q, want %q", name, got2[name], text)
		}
	}
}

func TestContentThatChanges(t *testing.T) {
	dir := host(t, map[string]string{"a": "old"})
	base, after := read(t, file("a", "old")), read(t, file("a", "new"))
	f := open(t, dir)
	_, err := f.Apply(t.Context(), Compare(base, after), texts(file("a", "other")), false)
	if err == nil || !strings.Contains(err.Error(), "try again") {
		t.Errorf("error %v", err)
	}
	if d := cmp.Diff(map[string]string{"a": "old"}, tree(t, dir)); d != "" {
		t.Errorf("the folder is not as it was:\n%s", d)
	}
}

func TestHostileTars(t *testing.T) {
	for _, entries := range [][]entry{
		{file("../x", "")},
		{file("/etc/passwd", "")},
		{file("a/../../x", "")},
		{file("a", ""), file("a", "")},
		{file("a", ""), file("./a", "")},
		{{"a", tar.TypeLink, "/etc/passwd", 0}},
		{{"a", tar.TypeLink, "../b", 0}},
		{{"a", tar.TypeLink, "later", 0}, file("later", "")},
		{{".", tar.TypeSymlink, "/etc", 0}},
	} {
		if l, err := Read(t.Context(), folder(t, entries...)); err == nil {
			t.Errorf("%v is taken: %v", entries, l)
		}
	}
	if _, err := Read(t.Context(), strings.NewReader("not a tar, and long enough to be told from one"+strings.Repeat("x", 600))); err == nil {
		t.Error("garbage is taken")
	}
}

func TestPatch(t *testing.T) {
	dir := host(t, map[string]string{"edit": "a\nb\nc\n", "gone": "g\n", "tool": "t\n", "bin": "\x00"})
	base := read(t, file("edit", "a\nb\nc\n"), file("gone", "g\n"), file("tool", "t\n"), file("bin", "\x00"))
	after := []entry{file("edit", "a\nB\nc\n"), {"tool", tar.TypeReg, "t\n", 0o755}, file("bin", "\x01\x00"), file("no end", "x"), {"link", tar.TypeSymlink, "edit", 0}, file("odd\x1b", "o\n")}
	f := open(t, dir)
	var b bytes.Buffer
	for _, c := range Compare(base, read(t, after...)) {
		if err := f.Patch(&b, c, texts(after...)); err != nil {
			t.Fatal(err)
		}
	}
	want := `diff --git a/bin b/bin
Binary files a/bin and b/bin differ
diff --git a/edit b/edit
--- a/edit
+++ b/edit
@@ -1,3 +1,3 @@
 a
-b
+B
 c
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1,1 +0,0 @@
-g
diff --git a/link b/link
new file mode 120000
--- /dev/null
+++ b/link
@@ -0,0 +1,1 @@
+edit
\ No newline at end of file
diff --git a/no end b/no end
new file mode 100644
--- /dev/null
+++ b/no end
@@ -0,0 +1,1 @@
+x
\ No newline at end of file
diff --git "a/odd\x1b" "b/odd\x1b"
new file mode 100644
--- /dev/null
+++ "b/odd\x1b"
@@ -0,0 +1,1 @@
+o
diff --git a/tool b/tool
old mode 100644
new mode 100755
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
}

func TestWithin(t *testing.T) {
	for _, tt := range []struct {
		name string
		of   string
		want bool
	}{
		{"a/b", "", true}, {"a/b", "a", true}, {"a/b", "a/b", true}, {"a/b", "a/bc", false}, {"ab", "a", false}, {"x", ".", true},
	} {
		if got := Within(tt.name, strings.Fields(tt.of)); got != tt.want {
			t.Errorf("%s within %q: %v", tt.name, tt.of, got)
		}
	}
}
