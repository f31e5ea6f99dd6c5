package filesystem_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/filesystem"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/hostdir"
)

type args = map[string]any

// bench is a folder with an agent that has the tools.
type bench struct {
	t   *testing.T
	dir string
	ws  workspace.Backend
	opt filesystem.Options
	fs  *filesystem.FileSystem
}

func setup(t *testing.T, opt filesystem.Options) *bench {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d, err := hostdir.New(dir, hostdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, dir: dir, ws: d, opt: opt, fs: filesystem.New(opt)}
}

func (b *bench) write(name, text string) {
	b.t.Helper()
	full := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) read(name string) string {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.dir, name))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(data)
}

// run has the model make calls at the same time, and returns what it is told.
func (b *bench) run(calls ...model.ToolCall) []model.Part {
	b.t.Helper()
	for i := range calls {
		calls[i].ID = fmt.Sprint(i)
	}
	a := agent.New(scripted.Sequence(scripted.Calls(calls...), scripted.Say("ok")), b.fs, agent.Config{Retries: 9})
	res, err := a.Run(b.t.Context(), "go", agent.WithWorkspace(b.ws))
	if err != nil {
		b.t.Fatal(err)
	}
	return res.Messages()[2].Parts
}

func call(tool string, a args) model.ToolCall {
	data, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	return model.ToolCall{Name: tool, Args: string(data)}
}

// ok makes one call that has to succeed.
func (b *bench) ok(tool string, a args) string {
	b.t.Helper()
	p := b.run(call(tool, a))[0]
	r, is := p.(model.ToolReturn)
	if !is || r.Outcome != model.OK {
		b.t.Fatalf("%s %v: %+v", tool, a, p)
	}
	return r.Text
}

// refused makes one call that the model has to be told to mend.
func (b *bench) refused(tool string, a args, want string) {
	b.t.Helper()
	p := b.run(call(tool, a))[0]
	r, is := p.(model.Retry)
	if !is || !strings.Contains(r.Text, want) {
		b.t.Errorf("%s %v: %+v, want a retry with %q", tool, a, p, want)
	}
}

func everyTool() []string {
	return []string{"read_file", "write_file", "edit_file", "list_directory", "find_files", "search_files", "create_directory", "file_info", "list_files", "grep"}
}

func TestReadFile(t *testing.T) {
	b := setup(t, filesystem.Options{})
	b.write("a.txt", "one\ntwo\nthree")
	if got, want := b.ok("read_file", args{"path": "a.txt"}), "a.txt (lines 1-3 of 3, hash 058053d87c81)\n     1\tone\n     2\ttwo\n     3\tthree\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := b.ok("read_file", args{"path": "a.txt", "offset": 1, "limit": 1}); !strings.Contains(got, "lines 2-2 of 3") || !strings.HasSuffix(got, "     2\ttwo\n[1 more lines; go on with offset=2]\n") {
		t.Errorf("%q", got)
	}
	b.write("empty", "")
	if got := b.ok("read_file", args{"path": "empty"}); got != "(empty file)" {
		t.Errorf("%q", got)
	}
	b.write("bin", "ab\x00cd")
	if got := b.ok("read_file", args{"path": "bin"}); got != "[binary file, 5 bytes]" {
		t.Errorf("%q", got)
	}
	b.write("latin", "caf\xe9\n")
	if got := b.ok("read_file", args{"path": "latin"}); !strings.Contains(got, "caf\uFFFD") {
		t.Errorf("%q", got)
	}
	b.write("dos", "\uFEFFa\r\nb\r\n")
	if got := b.ok("read_file", args{"path": "dos"}); !strings.HasSuffix(got, "     1\ta\n     2\tb\n") {
		t.Errorf("%q", got)
	}
	b.refused("read_file", args{"path": "a.txt", "offset": 3}, "past the end")
	b.refused("read_file", args{"path": "a.txt", "offset": -1}, "negative")
	b.refused("read_file", args{"path": "none"}, "no such file")
	b.refused("read_file", args{"path": "."}, "is a directory")
	b.refused("read_file", args{"path": ""}, "empty")
}

func TestReadFileStaysWithinItsBound(t *testing.T) {
	b := setup(t, filesystem.Options{MaxReadChars: 2000})
	var text strings.Builder
	for i := range 500 {
		fmt.Fprintf(&text, "line %d é\n", i+1)
	}
	b.write("long", text.String())
	// Going on as the hint says gives every line once.
	var all strings.Builder
	offset := 0
	for range 100 {
		got := b.ok("read_file", args{"path": "long", "offset": offset})
		if n := len([]rune(got)); n > 2000 {
			t.Fatalf("%d characters", n)
		}
		hint := ""
		for _, l := range strings.Split(strings.TrimSuffix(got, "\n"), "\n")[1:] {
			if _, line, ok := strings.Cut(l, "\t"); ok {
				all.WriteString(line + "\n")
			} else {
				hint = l
			}
		}
		if hint == "" {
			break
		}
		var more int
		if _, err := fmt.Sscanf(hint, "[%d more lines; go on with offset=%d]", &more, &offset); err != nil {
			t.Fatalf("hint %q: %v", hint, err)
		}
	}
	if all.String() != text.String() {
		t.Error("the pages together are not the file")
	}

	b.write("wide", "a\n"+strings.Repeat("x", 10_000)+"\nb\n")
	got := b.ok("read_file", args{"path": "wide"})
	if !strings.Contains(got, "10001 bytes, too long to show; skip it with offset=2") || !strings.Contains(got, "     3\tb\n") {
		t.Errorf("%q", got)
	}
}

func TestHugeFilesAreNotHeld(t *testing.T) {
	b := setup(t, filesystem.Options{Tools: everyTool()})
	f, err := os.Create(filepath.Join(b.dir, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(2<<30), f.Close()); err != nil {
		t.Fatal(err)
	}
	if got := b.ok("read_file", args{"path": "sparse"}); got != "[binary file, 2147483648 bytes]" {
		t.Errorf("%q", got)
	}
	b.refused("edit_file", args{"path": "sparse", "old_text": "a", "new_text": "b"}, "at most")
	if got := b.ok("file_info", args{"path": "sparse"}); !strings.Contains(got, "not computed") {
		t.Errorf("%q", got)
	}
	if got := b.ok("search_files", args{"pattern": "x"}); !strings.Contains(got, "1 files of more than") {
		t.Errorf("%q", got)
	}
	b.write("big.txt", strings.Repeat("0123456789\n", 1_100_000)) // more than is hashed
	if got := b.ok("read_file", args{"path": "big.txt", "offset": 1000, "limit": 2}); !strings.Contains(got, "  1001\t0123456789\n") || !strings.Contains(got, "go on with offset=1002") {
		t.Errorf("%q", got)
	}
}

func TestWriteFile(t *testing.T) {
	b := setup(t, filesystem.Options{})
	if got := b.ok("write_file", args{"path": "a.txt", "content": "é\nx"}); !strings.HasPrefix(got, "Created a.txt: 3 characters, 2 lines, hash ") {
		t.Errorf("%q", got)
	}
	_, old, _ := strings.Cut(b.ok("write_file", args{"path": "a.txt", "content": "two"}), "hash ")
	old = strings.TrimSuffix(old, ".")
	b.write("a.txt", "somebody else's")
	b.refused("write_file", args{"path": "a.txt", "content": "three", "expected_hash": old}, "has changed since")
	if b.read("a.txt") != "somebody else's" {
		t.Error("a stale write went through")
	}
	b.refused("write_file", args{"path": "none/a.txt", "content": ""}, "does not exist: create it first")
	b.refused("write_file", args{"path": "a.txt/b", "content": ""}, "")
	b.refused("write_file", args{"path": ".", "content": ""}, "is a directory")
	b.refused("write_file", args{"path": "new", "content": "", "expected_hash": "abc"}, "does not exist")
	if got := b.ok("create_directory", args{"path": "x/y"}); got != "Created x/y." {
		t.Errorf("%q", got)
	}
	if got := b.ok("create_directory", args{"path": "x/y"}); got != "x/y exists." {
		t.Errorf("%q", got)
	}
	b.refused("create_directory", args{"path": "a.txt"}, "exists")
	for _, mode := range []os.FileMode{0o755, 0o600} {
		b.write("tool", "old\n")
		if err := os.Chmod(filepath.Join(b.dir, "tool"), mode); err != nil {
			t.Fatal(err)
		}
		b.ok("edit_file", args{"path": "tool", "old_text": "old", "new_text": "new"})
		info, err := os.Stat(filepath.Join(b.dir, "tool"))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("mode %v became %v (%v)", mode, info.Mode().Perm(), err)
		}
	}
}

func TestEditFile(t *testing.T) {
	b := setup(t, filesystem.Options{})
	for _, c := range []struct {
		name, before string
		edit         args
		after        string // "" means unchanged
		told         string // a part of the refusal
	}{
		{"once", "a b c", args{"old_text": "b", "new_text": "X"}, "a X c", ""},
		{"not there", "a b c", args{"old_text": "d", "new_text": "X"}, "", "found 0 times"},
		{"twice", "a b b", args{"old_text": "b", "new_text": "X"}, "", "found 2 times"},
		{"overlapping", "aaa", args{"old_text": "aa", "new_text": "X"}, "", "found 2 times"},
		{"deletion", "a b c", args{"old_text": " b", "new_text": ""}, "a c", ""},
		{"one after the other", "a b", args{"replacements": []args{{"old_text": "a", "new_text": "b2"}, {"old_text": "b2", "new_text": "c"}}}, "c b", ""},
		{"all or none", "a b", args{"replacements": []args{{"old_text": "a", "new_text": "x"}, {"old_text": "zz", "new_text": "c"}}}, "", "replacement 2 of 2"},
		{"empty", "a", args{"old_text": "", "new_text": "x"}, "", "is empty"},
		{"the same", "a", args{"old_text": "a", "new_text": "a"}, "", "the same"},
		{"no new text", "a", args{"old_text": "a"}, "", "new_text is missing"},
		{"neither", "a", args{}, "", "give old_text"},
		{"both", "a", args{"old_text": "a", "new_text": "b", "replacements": []args{{"old_text": "a", "new_text": "x"}}}, "", "either"},
		{"CRLF is kept", "\uFEFFa\r\nb\r\n", args{"old_text": "a\nb", "new_text": "a\nx\nb"}, "\uFEFFa\r\nx\r\nb\r\n", ""},
		{"mixed line ends are kept", "a\r\nb\nc", args{"old_text": "b\nc", "new_text": "x\ny"}, "a\r\nx\ny", ""},
		{"bytes that are no text are kept", "\xff\xfe a", args{"old_text": "a", "new_text": "b"}, "\xff\xfe b", ""},
		{"binary", "a\x00b", args{"old_text": "a", "new_text": "b"}, "", "binary"},
		{"stale", "a", args{"old_text": "a", "new_text": "b", "expected_hash": "000000000000"}, "", "changed since"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.t = t
			b.write("f", c.before)
			c.edit["path"] = "f"
			if c.told != "" {
				b.refused("edit_file", c.edit, c.told)
				c.after = c.before
			} else {
				b.ok("edit_file", c.edit)
			}
			if got := b.read("f"); got != c.after {
				t.Errorf("the file is %q, want %q", got, c.after)
			}
		})
	}
	b.t = t
	b.refused("edit_file", args{"path": "none", "old_text": "a", "new_text": "b"}, "does not exist")
}

// TestParallelEdits: all changes that were reported are there.
func TestParallelEdits(t *testing.T) {
	b := setup(t, filesystem.Options{})
	b.write("f", "0\n1\n2\n3\n4\n5\n")
	var calls []model.ToolCall
	for i := range 6 {
		calls = append(calls, call("edit_file", args{"path": "f", "old_text": fmt.Sprintf("%d\n", i), "new_text": fmt.Sprintf("line %d\n", i)}))
	}
	for _, p := range b.run(calls...) {
		if r, ok := p.(model.ToolReturn); !ok || r.Outcome != model.OK {
			t.Errorf("%+v", p)
		}
	}
	if got, want := b.read("f"), "line 0\nline 1\nline 2\nline 3\nline 4\nline 5\n"; got != want {
		t.Errorf("got %q", got)
	}
}

func TestContainment(t *testing.T) {
	b := setup(t, filesystem.Options{Tools: everyTool()})
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("needle"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.write("sub/in", "needle")
	for name, to := range map[string]string{"out": outside, "file": filepath.Join(outside, "secret"), "in": "sub", "dangling": filepath.Join(outside, "new")} {
		if err := os.Symlink(to, filepath.Join(b.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"out/secret", "file", "../x", "/etc/passwd", filepath.Join(outside, "secret"), "sub/../../x"} {
		b.refused("read_file", args{"path": p}, "outside")
	}
	b.refused("write_file", args{"path": "dangling", "content": "x"}, "outside")
	b.refused("create_directory", args{"path": "out/d"}, "outside")
	b.refused("list_directory", args{"path": "out"}, "outside")
	b.refused("file_info", args{"path": "file"}, "outside")
	b.refused("grep", args{"pattern": "x", "path": "out"}, "outside")
	if _, err := os.Stat(filepath.Join(outside, "new")); err == nil {
		t.Error("a write went outside")
	}
	if got := b.ok("read_file", args{"path": "in/in"}); !strings.Contains(got, "needle") {
		t.Errorf("a link that stays inside: %q", got)
	}
	for _, tool := range []string{"search_files", "grep"} {
		got := b.ok(tool, args{"pattern": "needle"})
		if strings.Contains(got, "out/") || strings.Contains(got, "file:") || strings.Count(got, "needle") != 1 {
			t.Errorf("%s: %q", tool, got)
		}
	}

	free := setup(t, filesystem.Options{Root: "/"})
	if got := free.ok("read_file", args{"path": filepath.Join(outside, "secret")}); !strings.Contains(got, "needle") {
		t.Errorf("%q", got)
	}
	wrong := setup(t, filesystem.Options{Root: outside})
	a := agent.New(scripted.Sequence(scripted.Call("1", "read_file", `{"path":"x"}`)), wrong.fs)
	if _, err := a.Run(t.Context(), "go", agent.WithWorkspace(wrong.ws)); !errors.Is(err, agent.ErrUsage) {
		t.Errorf("a root that does not contain the working directory: %v", err)
	}
}

func TestPolicies(t *testing.T) {
	b := setup(t, filesystem.Options{Deny: []string{"private", "*.secret"}})
	for _, f := range []string{"private/a", "x.secret", "deep/y.secret", ".env", "deep/.env.local", ".git/config", "cert.pem", "ok.txt"} {
		b.write(f, "needle\n")
	}
	if err := os.Symlink("private/a", filepath.Join(b.dir, "alias")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(".env", filepath.Join(b.dir, "settings")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"private/a", "x.secret", "deep/y.secret", "alias"} {
		b.refused("read_file", args{"path": p}, "denied")
	}
	for _, p := range []string{".env", "deep/.env.local", ".git/config", "cert.pem", "settings", ".git/hooks/x"} {
		b.refused("write_file", args{"path": p, "content": "x"}, "not changed")
	}
	b.ok("read_file", args{"path": ".env"})
	b.ok("write_file", args{"path": "ok.txt", "content": "needle"})
	if got := b.ok("list_directory", args{"path": "."}); strings.Contains(got, "private") || strings.Contains(got, "x.secret") || !strings.Contains(got, "ok.txt (6 bytes)") {
		t.Errorf("%q", got)
	}
	if got := b.ok("search_files", args{"pattern": "needle"}); strings.Contains(got, "secret") || strings.Contains(got, "private") || strings.Contains(got, "alias") {
		t.Errorf("%q", got)
	}

	only := setup(t, filesystem.Options{Allow: []string{"src/*.go"}, ReadOnly: []string{}, Tools: everyTool()})
	only.write("src/a.go", "package a")
	only.write("src/a.txt", "text")
	only.write("b.go", "package b")
	only.ok("read_file", args{"path": "src/a.go"})
	only.refused("read_file", args{"path": "src/a.txt"}, "not allowed")
	only.refused("read_file", args{"path": "b.go"}, "not allowed")
	if got := only.ok("find_files", args{"pattern": "**"}); got != "src/a.go\n" {
		t.Errorf("find_files: %q", got)
	}
	if got := only.ok("list_files", args{}); got != "src/a.go\n" {
		t.Errorf("list_files: %q", got)
	}
}

func TestCompile(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{".git", ".git", true}, {".git", ".git/config", true}, {".git", "a/.git/x", true}, {".git", ".gitignore", false},
		{"*.pem", "a/b.pem", true}, {"*.pem", "b.pem.txt", false},
		{"**/tmp/*", "tmp/x", true}, {"**/tmp/*", "a/tmp/x/y", true},
		{"src/*.go", "src/a/b.go", true}, {"src/*.go", "x/src/a.go", false},
		{"a?c", "abc", true}, {"a[0-9]c", "a5c", true}, {"a[!0-9]c", "a5c", false},
		{"build/", "build/x", true}, {"build/**", "build/x", true},
	} {
		p, err := filesystem.Compile(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Match(c.path); got != c.want {
			t.Errorf("%s for %s: %v", c.pattern, c.path, got)
		}
	}
	for _, bad := range []string{"", "/etc", "a[b"} {
		if _, err := filesystem.Compile(bad); err == nil {
			t.Errorf("%q is a pattern", bad)
		}
	}
	bad := setup(t, filesystem.Options{Deny: []string{"/etc"}})
	if _, err := agent.New(scripted.Sequence(scripted.Say("x")), bad.fs).Run(t.Context(), "go", agent.WithWorkspace(bad.ws)); !errors.Is(err, agent.ErrUsage) {
		t.Errorf("error %v", err)
	}
}

func TestReadOnlyWorkspaceHasNoWriters(t *testing.T) {
	b := setup(t, filesystem.Options{Tools: everyTool()})
	var names []string
	m := scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		for _, tool := range req.Tools {
			names = append(names, tool.Name)
		}
		return scripted.Say("ok"), nil
	})
	if _, err := agent.New(m, b.fs).Run(t.Context(), "go", agent.WithWorkspace(workspace.ReadOnly(b.ws))); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(names, " "); got != "read_file list_directory find_files search_files file_info list_files grep" {
		t.Errorf("tools: %s", got)
	}
}

func TestReviewAndEvents(t *testing.T) {
	var seen []filesystem.Changed
	b := setup(t, filesystem.Options{Review: func(_ context.Context, _ *agent.Call, c filesystem.Changed) error {
		seen = append(seen, c)
		if strings.HasSuffix(c.Path, "no.txt") {
			return errors.New("not this one")
		}
		return nil
	}})
	b.write("a.txt", "old\n")
	a := agent.New(scripted.Sequence(scripted.Calls(
		model.ToolCall{ID: "1", Name: "edit_file", Args: `{"path":"a.txt","old_text":"old","new_text":"new"}`},
		model.ToolCall{ID: "2", Name: "write_file", Args: `{"path":"no.txt","content":"x"}`},
	), scripted.Say("ok")), b.fs, agent.Config{Parallel: 1})
	var changed []filesystem.Changed
	for e, err := range a.Stream(t.Context(), "go", agent.WithWorkspace(b.ws)) {
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := e.(filesystem.Changed); ok {
			changed = append(changed, c)
		}
		if f, ok := e.(agent.ToolFinished); ok && f.Call.ID == "2" {
			if r, ok := f.Part.(model.ToolReturn); !ok || r.Outcome != model.Denied {
				t.Errorf("a refused change: %+v", f.Part)
			}
		}
	}
	if len(seen) != 2 || len(changed) != 1 || !strings.Contains(changed[0].Diff, "-old") || !strings.Contains(changed[0].Diff, "+new") {
		t.Errorf("reviewed %+v, changed %+v", seen, changed)
	}
	if _, err := os.Stat(filepath.Join(b.dir, "no.txt")); err == nil {
		t.Error("a refused change was made")
	}

	// Somebody else changes the file while the review thinks.
	var sneak *bench
	sneak = setup(t, filesystem.Options{Review: func(context.Context, *agent.Call, filesystem.Changed) error {
		sneak.write("a.txt", "sneaked in\n")
		return nil
	}})
	sneak.write("a.txt", "old\n")
	sneak.refused("edit_file", args{"path": "a.txt", "old_text": "old", "new_text": "new"}, "somebody else")
	if sneak.read("a.txt") != "sneaked in\n" {
		t.Error("the other's change was lost")
	}
}

func TestErrorsThatTheModelCannotMendEndTheRun(t *testing.T) {
	b := setup(t, filesystem.Options{})
	if err := os.RemoveAll(b.dir); err != nil {
		t.Fatal(err)
	}
	a := agent.New(scripted.Sequence(scripted.Call("1", "read_file", `{"path":"a"}`)), b.fs)
	if _, err := a.Run(t.Context(), "go", agent.WithWorkspace(b.ws)); !errors.Is(err, workspace.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
}

func TestFileInfo(t *testing.T) {
	b := setup(t, filesystem.Options{})
	b.write("a.txt", "one\ntwo\n")
	if err := os.Symlink("a.txt", filepath.Join(b.dir, "link")); err != nil {
		t.Fatal(err)
	}
	got := b.ok("file_info", args{"path": "link"})
	for _, want := range []string{"kind: file", "symbolic link to: " + filepath.Join(b.dir, "a.txt"), "size: 8 bytes", "lines: 2", "hash: "} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	if got := b.ok("file_info", args{"path": "."}); !strings.Contains(got, "kind: directory") || strings.Contains(got, "symbolic") {
		t.Errorf("%q", got)
	}
}
