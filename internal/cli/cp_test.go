package cli

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDestination is docker's table of "docker cp": what a source and a
// destination, as they are written and as they are, make of a copy.
func TestDestination(t *testing.T) {
	type is struct{ exists, dir bool }
	file, dir, none := is{exists: true}, is{exists: true, dir: true}, is{}
	for _, tt := range []struct {
		src   string
		srcIs is
		dst   string
		dstIs is
		in    string // the directory
		name  string
		err   error
	}{
		// A file.
		{"/s/f", file, "/d/x", none, "/d", "x", nil},
		{"/s/f", file, "/d/x/", none, "", "", errNoParent},
		{"/s/f", file, "/d/x", file, "/d", "x", nil},
		{"/s/f", file, "/d/x/", file, "", "", errNotDir},
		{"/s/f", file, "/d", dir, "/d", "f", nil},
		{"/s/f", file, "/d/", dir, "/d", "f", nil},
		{"/s/f", file, "/d/.", dir, "/d", "f", nil},
		{"/s/f", file, "/", dir, "/", "f", nil},
		{"/s/f/", file, "/d", dir, "", "", errNotDir},
		{"/s/f/.", file, "/d", dir, "", "", errNotDir},
		// A folder.
		{"/s/g", dir, "/d/x", none, "/d", "x", nil},
		{"/s/g", dir, "/d/x/", none, "/d", "x", nil},
		{"/s/g/", dir, "/d/x", none, "/d", "x", nil},
		{"/s/g", dir, "/d/x", file, "", "", errDirOnFile},
		{"/s/g/.", dir, "/d/x", file, "", "", errDirOnFile},
		{"/s/g", dir, "/d", dir, "/d", "g", nil},
		{"/s/g/", dir, "/d", dir, "/d", "g", nil},
		// What is in a folder.
		{"/s/g/.", dir, "/d", dir, "/d", ".", nil},
		{"/s/g/.", dir, "/d/x", none, "/d", "x", nil},
		{"/", dir, "/d", dir, "/d", ".", nil},
		{"/s/g/..", dir, "/d", dir, "/d", "s", nil},
	} {
		src, dst := newPlace(tt.src), newPlace(tt.dst)
		src.exists, src.isDir = tt.srcIs.exists, tt.srcIs.dir
		dst.exists, dst.isDir = tt.dstIs.exists, tt.dstIs.dir
		in, name, err := destination(src, dst)
		if !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
			t.Errorf("cp %s %s %+v: error %v, want %v", tt.src, tt.dst, tt.dstIs, err, tt.err)
		}
		if in != tt.in || name != tt.name {
			t.Errorf("cp %s %s %+v makes %q in %q, want %q in %q", tt.src, tt.dst, tt.dstIs, name, in, tt.name, tt.in)
		}
	}
}

func TestSplitBoxPath(t *testing.T) {
	for arg, want := range map[string][2]string{
		"box:/a":    {"box", "/a"},
		"box:a:b":   {"box", "a:b"},
		"box:":      {"box", ""},
		"/a:b":      {"", "/a:b"},
		"./a:b":     {"", "./a:b"},
		"../a:b":    {"", "../a:b"},
		"a/b:c":     {"", "a/b:c"},
		"plain":     {"", "plain"},
		":x":        {"", ":x"},
		"-":         {"", "-"},
		"box:/ a\n": {"box", "/ a\n"},
	} {
		if name, p := splitBoxPath(arg); name != want[0] || p != want[1] {
			t.Errorf("%q splits into %q and %q, want %q", arg, name, p, want)
		}
	}
}
