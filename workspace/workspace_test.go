package workspace_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/workspace"
)

// place is a backend without anything: tests add what they are about.
type place struct{ dir string }

func (p place) Ref() (workspace.Ref, bool) { return workspace.Ref{Provider: "test", ID: p.dir}, true }
func (p place) WorkingDir(context.Context) (string, error) {
	return p.dir, nil
}

// memFiles is files in memory: as much of a file system as Composite needs.
type memFiles map[string]string

func (m memFiles) missing(op, p string) error {
	return &fs.PathError{Op: op, Path: p, Err: syscall.ENOENT}
}

func (m memFiles) ReadFile(_ context.Context, p string) ([]byte, error) {
	if text, ok := m[p]; ok {
		return []byte(text), nil
	}
	return nil, m.missing("read", p)
}

func (m memFiles) WriteFile(_ context.Context, p string, data []byte) error {
	m[p] = string(data)
	return nil
}

func (m memFiles) Stat(_ context.Context, p string) (workspace.Entry, error) {
	if text, ok := m[p]; ok {
		return workspace.Entry{Name: path.Base(p), Path: p, Size: int64(len(text))}, nil
	}
	for name := range m {
		if strings.HasPrefix(name, strings.TrimSuffix(p, "/")+"/") {
			return workspace.Entry{Name: path.Base(p), Path: p, Dir: true, Size: -1}, nil
		}
	}
	return workspace.Entry{}, m.missing("stat", p)
}

func (m memFiles) ReadDir(ctx context.Context, p string) ([]workspace.Entry, error) {
	if e, err := m.Stat(ctx, p); err != nil || !e.Dir {
		return nil, m.missing("list", p)
	}
	var entries []workspace.Entry
	for name, text := range m {
		if path.Dir(name) == p {
			entries = append(entries, workspace.Entry{Name: path.Base(name), Path: name, Size: int64(len(text))})
		}
	}
	return entries, nil
}

func (m memFiles) MkdirAll(context.Context, string) error { return nil }

func (m memFiles) Remove(_ context.Context, p string) error {
	if _, ok := m[p]; !ok {
		return m.missing("remove", p)
	}
	delete(m, p)
	return nil
}

func (m memFiles) Exists(_ context.Context, p string) (bool, error) {
	_, ok := m[p]
	return ok, nil
}

type filesOnly struct {
	place
	memFiles
}

// A backend that only has files has no commands, and streams by holding whole files.
func TestFilesOnly(t *testing.T) {
	ctx := t.Context()
	ws := workspace.New(filesOnly{place{"/w"}, memFiles{"/w/f": "0123456789"}})
	for f, want := range map[workspace.Feature]bool{workspace.Commands: false, workspace.FileOps: true, workspace.Streaming: true, workspace.Realpaths: false, workspace.Closing: true, workspace.Forking: false} {
		if ws.Supports(f) != want {
			t.Errorf("Supports(%q) is %v", f, !want)
		}
	}
	if _, err := ws.Run(ctx, workspace.Command{Shell: "true"}); !errors.Is(err, workspace.ErrUnsupported) {
		t.Errorf("Run: %v", err)
	}
	if _, err := ws.Fork(ctx); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Fork: %v", err)
	}
	r, err := ws.Open(ctx, "f", 4)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); string(got) != "456789" || err != nil {
		t.Errorf("Open at 4: %q, %v", got, err)
	}
	if err := ws.WriteFrom(ctx, "sub/g", strings.NewReader("from a reader")); err != nil {
		t.Fatal(err)
	}
	if got, err := ws.ReadText(ctx, "/w/sub/g"); got != "from a reader" || err != nil {
		t.Errorf("ReadText: %q, %v", got, err)
	}
	// Without a way to look, a real path is text.
	if got, err := ws.Realpath(ctx, "a/../b"); got != "/w/b" || err != nil {
		t.Errorf("Realpath: %q, %v", got, err)
	}
	if err := ws.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// half has some of the methods of Files.
type half struct{ place }

func (half) ReadFile(context.Context, string) ([]byte, error) { return nil, nil }
func (half) Exists(context.Context, string) (bool, error)     { return true, nil }
func (half) Run(context.Context, workspace.Command) (workspace.Result, error) {
	return workspace.Result{}, nil
}

// A backend with half of Files is told what it lacks, and not helped with commands.
func TestPartialFiles(t *testing.T) {
	_, err := workspace.New(half{place{"/w"}}).ReadFile(t.Context(), "/f")
	if !errors.Is(err, workspace.ErrUnsupported) || !strings.Contains(err.Error(), "WriteFile, Stat, ReadDir, MkdirAll, Remove") {
		t.Errorf("error is %v", err)
	}
	_, err = workspace.New(place{"/w"}).ReadFile(t.Context(), "/f")
	if !errors.Is(err, workspace.ErrUnsupported) {
		t.Errorf("neither files nor commands: %v", err)
	}
}

// A backend whose working directory makes no sense is not believed.
func TestWorkingDirChecked(t *testing.T) {
	for _, dir := range []string{"", "relative", "/a/../b", "/a/"} {
		ws := workspace.New(filesOnly{place{dir}, memFiles{}})
		if _, err := ws.WorkingDir(t.Context()); !errors.Is(err, workspace.ErrWorkspace) {
			t.Errorf("%q: %v", dir, err)
		}
		if _, err := ws.ReadFile(t.Context(), "f"); !errors.Is(err, workspace.ErrWorkspace) {
			t.Errorf("%q: ReadFile: %v", dir, err)
		}
	}
}

func TestUnavailable(t *testing.T) {
	ctx := t.Context()
	for name, ws := range map[string]*workspace.Workspace{
		"nil": workspace.New(nil), "nil workspace": workspace.New((*workspace.Workspace)(nil)),
		"given": workspace.Unavailable("the agent has no sandbox"), "read-only": workspace.ReadOnly(nil),
	} {
		if ws.Attached() {
			t.Errorf("%s: it is attached", name)
		}
		if ref, ok := ws.Ref(); ok {
			t.Errorf("%s: its ref is %v", name, ref)
		}
		_, err := ws.ReadFile(ctx, "f")
		if !errors.Is(err, workspace.ErrUnavailable) {
			t.Errorf("%s: ReadFile: %v", name, err)
		}
		if _, err := ws.WorkingDir(ctx); !errors.Is(err, workspace.ErrUnavailable) {
			t.Errorf("%s: WorkingDir: %v", name, err)
		}
		_, err = ws.Run(ctx, workspace.Command{Shell: "true"})
		if want := workspace.ErrUnavailable; name != "read-only" && !errors.Is(err, want) {
			t.Errorf("%s: Run: %v", name, err)
		}
	}
	_, err := workspace.Unavailable("the agent has no sandbox").Stat(ctx, "/")
	if err == nil || !strings.Contains(err.Error(), "the agent has no sandbox") {
		t.Errorf("error is %v", err)
	}
	if !workspace.New(place{"/"}).Attached() {
		t.Error("a backend is not attached")
	}
}

// describing says that each of its files is another one.
type describing struct{ memFiles }

type described struct {
	io.Reader
	e workspace.Entry
}

func (d described) Close() error           { return nil }
func (d described) Entry() workspace.Entry { return d.e }

func (d describing) Open(ctx context.Context, p string, offset int64) (io.ReadCloser, error) {
	data, err := d.ReadFile(ctx, p)
	return described{bytes.NewReader(data), workspace.Entry{Name: "other", Path: path.Join(path.Dir(p), "other"), Size: int64(len(data))}}, err
}

func (d describing) WriteFrom(ctx context.Context, p string, r io.Reader) error {
	data, err := io.ReadAll(r)
	return errors.Join(err, d.WriteFile(ctx, p, data))
}

func TestComposite(t *testing.T) {
	ctx := t.Context()
	skills, deep := memFiles{"/guide.md": "read me", "/sub/x": "x"}, memFiles{"/d": "deep"}
	base := filesOnly{place{"/w"}, memFiles{"/w/f": "base", "/mnt/skills/guide.md": "hidden", "/mnt/other": "seen"}}
	ws, err := workspace.Composite(base, map[string]workspace.Files{"/mnt/skills": skills, "/mnt/skills/in/deep": deep, "/new/place": deep})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"f": "base", "/mnt/skills/guide.md": "read me", "/mnt/skills/in/deep/d": "deep", "/new/place/d": "deep", "/mnt/other": "seen", "/mnt/skills/../other": "seen"} {
		if got, err := ws.ReadText(ctx, name); got != want || err != nil {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
	list := func(dir string) []string {
		entries, err := ws.ReadDir(ctx, dir)
		if err != nil {
			t.Errorf("ReadDir %s: %v", dir, err)
		}
		var got []string
		for _, e := range entries {
			p := e.Path
			if e.Dir {
				p += "/"
			}
			if path.Base(e.Path) != e.Name {
				t.Errorf("the entry %+v has two names", e)
			}
			got = append(got, p)
		}
		return got
	}
	for dir, want := range map[string][]string{
		"/mnt": {"/mnt/other", "/mnt/skills/"}, "/mnt/skills": {"/mnt/skills/guide.md", "/mnt/skills/in/"}, "/mnt/skills/in": {"/mnt/skills/in/deep/"}, "/new": {"/new/place/"},
	} {
		if diff := cmp.Diff(want, list(dir)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", dir, diff)
		}
	}
	// What is opened has its outer path, whether its file system tells it or not.
	told, err := workspace.Composite(base, map[string]workspace.Files{"/told": describing{memFiles{"/sub/x": "x"}}, "/mnt/skills": skills})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"/told/sub/x": "/told/sub/other", "/mnt/skills/sub/x": "/mnt/skills/sub/x", "f": "/w/f"} {
		e, r, err := told.OpenFile(ctx, name, 0)
		if err != nil || e.Path != want || e.Name != path.Base(want) || e.Size < 1 {
			t.Errorf("OpenFile %s: %+v, %v", name, e, err)
			continue
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	// Writes go where reads come from, and faults have the outer path.
	if err := ws.WriteText(ctx, "/mnt/skills/new", "n"); err != nil || skills["/new"] != "n" {
		t.Errorf("WriteText: %v, %v", err, skills)
	}
	if err := ws.WriteFrom(ctx, "/mnt/skills/streamed", strings.NewReader("s")); err != nil || skills["/streamed"] != "s" {
		t.Errorf("WriteFrom: %v, %v", err, skills)
	}
	_, err = ws.ReadFile(ctx, "/mnt/skills/absent")
	if pe, ok := errors.AsType[*fs.PathError](err); !ok || pe.Path != "/mnt/skills/absent" || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadFile: %v", err)
	}
	e, err := ws.Stat(ctx, "/mnt/skills/sub/x")
	if err != nil || e != (workspace.Entry{Name: "x", Path: "/mnt/skills/sub/x", Size: 1}) {
		t.Errorf("Stat: %+v, %v", e, err)
	}
	for _, p := range []string{"/mnt/skills", "/mnt", "/new"} {
		if e, err := ws.Stat(ctx, p); err != nil || !e.Dir {
			t.Errorf("Stat %s: %+v, %v", p, e, err)
		}
		if ok, err := ws.Exists(ctx, p); !ok || err != nil {
			t.Errorf("Exists %s: %v, %v", p, ok, err)
		}
		if err := ws.Remove(ctx, p); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("Remove %s: %v", p, err)
		}
		if err := ws.WriteText(ctx, p, ""); !errors.Is(err, syscall.EISDIR) {
			t.Errorf("WriteText %s: %v", p, err)
		}
		if err := ws.MkdirAll(ctx, p); err != nil {
			t.Errorf("MkdirAll %s: %v", p, err)
		}
	}
	if ro := workspace.ReadOnly(ws); !errors.Is(ro.WriteText(ctx, "/mnt/skills/new", ""), workspace.ErrReadOnly) || skills["/new"] != "n" {
		t.Error("a mount is written to through ReadOnly")
	}
	over, err := workspace.Composite(workspace.ReadOnly(base), map[string]workspace.Files{"/mnt": skills})
	if err != nil || !over.ReadOnly() || !errors.Is(over.WriteText(ctx, "/mnt/new", ""), workspace.ErrReadOnly) {
		t.Errorf("over a read-only base: %v", err)
	}
	for _, dir := range []string{"", "relative", "/", "/a/../b", "/a/"} {
		if _, err := workspace.Composite(base, map[string]workspace.Files{dir: skills}); !errors.Is(err, workspace.ErrInvalid) {
			t.Errorf("mount at %q: %v", dir, err)
		}
	}
	if _, err := workspace.Composite(base, map[string]workspace.Files{"/x": nil}); !errors.Is(err, workspace.ErrInvalid) {
		t.Errorf("no files: %v", err)
	}
}

func TestResolve(t *testing.T) {
	for _, c := range [][3]string{
		{"/w", "a", "/w/a"}, {"/w", "", "/w"}, {"/w", ".", "/w"}, {"/w", "../x", "/x"}, {"/w", "../../..", "/"}, {"/w", "/abs/./x//y/", "/abs/x/y"}, {"", "/abs", "/abs"}, {"/", "a", "/a"},
		{"/w", "..a", "/w/..a"}, {"/w", "a b", "/w/a b"},
	} {
		if got, err := workspace.Resolve(c[0], c[1]); got != c[2] || err != nil {
			t.Errorf("Resolve(%q, %q) is %q, %v; want %q", c[0], c[1], got, err, c[2])
		}
	}
	for _, c := range [][2]string{{"", "a"}, {"rel", "a"}, {"/w", "a\x00"}, {"/w\x00", "a"}} {
		if got, err := workspace.Resolve(c[0], c[1]); !errors.Is(err, workspace.ErrInvalid) {
			t.Errorf("Resolve(%q, %q) is %q, %v", c[0], c[1], got, err)
		}
	}
}

func TestWalkLinks(t *testing.T) {
	links := map[string]string{"/a": "/b/c", "/b/up": "..", "/loop": "loop", "/rel": "b/c/../d", "/root": "/", "/chain": "a"}
	for name, want := range map[string]string{
		"/": "/", "/a": "/b/c", "/a/..": "/b", "/a/../x/./y//": "/b/x/y", "/b/up/a": "/b/c", "/rel": "/b/d", "/root/a": "/b/c", "/chain/z": "/b/c/z", "/..": "/", "/x/../../y": "/y",
	} {
		got, err := workspace.WalkLinks(name, func(p string) (string, error) { return links[p], nil })
		if got != want || err != nil {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
	if _, err := workspace.WalkLinks("/loop/x", func(p string) (string, error) { return links[p], nil }); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a loop: %v", err)
	}
	bad := errors.New("gone")
	if _, err := workspace.WalkLinks("/x", func(string) (string, error) { return "", bad }); !errors.Is(err, bad) {
		t.Errorf("a failure: %v", err)
	}
}

func TestCapture(t *testing.T) {
	t.Run("limit", func(t *testing.T) {
		stops := 0
		c := workspace.NewCapture(workspace.Command{}, func() { stops++ })
		// An ä whose second byte would be the first beyond the preview.
		head := append(bytes.Repeat([]byte("x"), workspace.PreviewLimit-1), "ä"...)
		for _, p := range [][]byte{head, make([]byte, workspace.OutputLimit-len(head))} {
			if n, err := c.Stdout().Write(p); n != len(p) || err != nil {
				t.Fatalf("Write: %d, %v", n, err)
			}
		}
		if stops != 0 || c.Stopped() {
			t.Fatal("it stopped at the limit, not beyond")
		}
		if n, err := c.Stderr().Write([]byte("e")); n != 0 || err == nil || stops != 1 {
			t.Errorf("beyond the limit: %d, %v, %d stops", n, err, stops)
		}
		_, _ = c.Stderr().Write([]byte("e"))
		_, err := c.Result(0)
		ce, ok := errors.AsType[*workspace.CommandError](err)
		if !ok || !errors.Is(err, workspace.ErrOutputLimit) || stops != 1 {
			t.Fatalf("error is %v, %d stops", err, stops)
		}
		if ce.Stdout != strings.Repeat("x", workspace.PreviewLimit-1) || ce.Limit != workspace.OutputLimit {
			t.Errorf("the preview has %d bytes, the limit is %d", len(ce.Stdout), ce.Limit)
		}
	})
	t.Run("late", func(t *testing.T) {
		c := workspace.NewCapture(workspace.Command{}, func() { t.Error("stopped") })
		_, _ = c.Stdout().Write([]byte("out\xff"))
		res, err := c.Result(3)
		if err != nil || res != (workspace.Result{ExitCode: 3, Stdout: "out\ufffd"}) {
			t.Errorf("%+v, %v", res, err)
		}
		if _, err := c.Stdout().Write([]byte("late")); err == nil {
			t.Error("a write after the end is taken")
		}
	})
	t.Run("writer", func(t *testing.T) {
		bad := errors.New("bad writer")
		stops := 0
		c := workspace.NewCapture(workspace.Command{Stderr: writerFunc(func([]byte) (int, error) { return 0, bad })}, func() { stops++ })
		_, _ = c.Stdout().Write([]byte("out"))
		_, _ = c.Stderr().Write([]byte("err"))
		_, _ = c.Stderr().Write([]byte("err"))
		if err := c.Fail(workspace.ErrTimeout, nil); !errors.Is(err, bad) || stops != 1 {
			t.Errorf("error is %v, %d stops", err, stops)
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestText(t *testing.T) {
	for in, want := range map[string]string{"": "", "ä": "ä", "a\xffb": "a\ufffdb", "\xff\xfe": "\ufffd\ufffd", "\xc3": "\ufffd", "\xed\xa0\x80": "\ufffd\ufffd\ufffd", "\xf0\x9f\x98\x80": "😀"} {
		if got := workspace.Text([]byte(in)); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{"": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$x`y`": "'$x`y`'"} {
		if got := workspace.Quote(in); got != want {
			t.Errorf("%q is %s, want %s", in, got, want)
		}
	}
}
