package hosttar

import (
	"archive/tar"
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tree describes a folder: relative name to "dir mode", "file mode content" or
// "link target".
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		fi, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			got[name] = "dir " + fi.Mode().Perm().String()
		case fi.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			got[name] = "link " + target
			return err
		default:
			data, err := os.ReadFile(p)
			got[name] = "file " + fi.Mode().Perm().String() + " " + string(data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func write(t *testing.T, name, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

func TestPackAndUnpackKeepWhatMatters(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	odd := "a\nb \xff 'q' -x"
	write(t, filepath.Join(src, odd), "odd", 0o640)
	write(t, filepath.Join(src, "sub/run"), "#!", 0o755)
	write(t, filepath.Join(src, "sub/big"), strings.Repeat("x", 1<<20), 0o600)
	long := strings.Repeat("long/", 60) + "name"
	write(t, filepath.Join(src, long), "", 0o644)
	if err := os.Symlink("/nowhere", filepath.Join(src, "dangling")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(src, "sub/run"), filepath.Join(src, "sub/same")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(src, "locked"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(src, "locked/in"), "in", 0o400)
	if err := os.Chmod(filepath.Join(src, "locked"), 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // so that an ordinary user can remove them
		os.Chmod(filepath.Join(src, "locked"), 0o700)
		os.Chmod(filepath.Join(dst, "locked"), 0o700)
	})
	when := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	if err := os.Chtimes(filepath.Join(src, "sub"), when, when); err != nil {
		t.Fatal(err)
	}

	var buf bytes.Buffer
	if err := Pack(t.Context(), &buf, src, ".", false); err != nil {
		t.Fatal(err)
	}
	if err := Unpack(t.Context(), dst, &buf, ".", false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tree(t, src), tree(t, dst)); diff != "" {
		t.Errorf("the copy differs (-want +got):\n%s", diff)
	}
	a, _ := os.Stat(filepath.Join(dst, "sub/run"))
	b, _ := os.Stat(filepath.Join(dst, "sub/same"))
	if !os.SameFile(a, b) {
		t.Error("a file with two names became two files")
	}
	if fi, err := os.Stat(filepath.Join(dst, "sub")); err != nil || !fi.ModTime().Equal(when) {
		t.Errorf("a folder's time is %v, want %v (%v)", fi.ModTime(), when, err)
	}
}

func TestPackNamesAndLinks(t *testing.T) {
	src := t.TempDir()
	write(t, filepath.Join(src, "f"), "text", 0o644)
	if err := os.Symlink("f", filepath.Join(src, "l")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path, name string
		follow     bool
		want       map[string]string
	}{
		{"f", "g", false, map[string]string{"g": "file -rw-r--r-- text"}},
		{"l", "l", false, map[string]string{"l": "link f"}},
		{"l", "l", true, map[string]string{"l": "file -rw-r--r-- text"}},
		{"", "top", false, map[string]string{"top": "dir -rwxr-xr-x", "top/f": "file -rw-r--r-- text", "top/l": "link f"}},
	} {
		if err := os.Chmod(src, 0o755); err != nil {
			t.Fatal(err)
		}
		var buf bytes.Buffer
		if err := Pack(t.Context(), &buf, filepath.Join(src, tt.path), tt.name, tt.follow); err != nil {
			t.Fatal(err)
		}
		dst := t.TempDir()
		if err := Unpack(t.Context(), dst, &buf, tt.name, false); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, tree(t, dst)); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tt, diff)
		}
	}
}

func TestPackFailures(t *testing.T) {
	if err := Pack(t.Context(), &bytes.Buffer{}, filepath.Join(t.TempDir(), "none"), "x", false); err == nil {
		t.Error("a source that is missing was packed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Pack(ctx, &bytes.Buffer{}, t.TempDir(), "x", false); err == nil {
		t.Error("a canceled Pack went on")
	}
}

type entry struct {
	h    tar.Header
	data string
}

func archive(t *testing.T, entries ...entry) *bytes.Buffer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := e.h
		h.Size = int64(len(e.data))
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

// TestUnpackConfines unpacks hostile tars beside a canary. Each must be
// refused, and nothing outside of the top entry may change.
func TestUnpackConfines(t *testing.T) {
	link := func(name, target string) entry {
		return entry{h: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}}
	}
	hard := func(name, target string) entry {
		return entry{h: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}}
	}
	file := func(name string) entry { return entry{h: tar.Header{Typeflag: tar.TypeReg, Name: name}, data: "evil"} }
	dir := func(name string) entry {
		return entry{h: tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}}
	}

	tests := map[string][]entry{
		"absolute":                       {file("/canary")},
		"dotdot":                         {file("../canary")},
		"dotdot inside":                  {dir("top"), file("top/../../canary")},
		"sibling":                        {file("canary")},
		"sibling by dotdot":              {dir("top"), file("top/../canary")},
		"prefix of top":                  {file("topping")},
		"through own link up":            {link("top", ".."), file("top/canary")},
		"through own absolute link":      {link("top", "/tmp"), file("top/canary")},
		"through own link to a sibling":  {link("top", "other"), file("top/canary")},
		"through link deeper":            {dir("top"), link("top/l", "../other"), file("top/l/canary")},
		"through old link":               {file("top/old/canary")},
		"directory over own link":        {link("top", "other"), dir("top"), file("top/canary")},
		"hard link out":                  {dir("top"), hard("top/h", "../canary")},
		"hard link to a sibling":         {dir("top"), hard("top/h", "canary")},
		"hard link through a link":       {dir("top"), link("top/l", "../other"), hard("top/h", "top/l/canary")},
		"file over a directory":          {file("top/dir")},
		"directory over a file":          {dir("top/file")},
		"device":                         {{h: tar.Header{Typeflag: tar.TypeChar, Name: "top/dev", Devmajor: 1, Devminor: 3}}},
		"block device":                   {{h: tar.Header{Typeflag: tar.TypeBlock, Name: "top/dev"}}},
		"named pipe":                     {{h: tar.Header{Typeflag: tar.TypeFifo, Name: "top/fifo"}}},
		"file below a file":              {file("top/file/x")},
		"a missing parent is not made":   {file("top/none/x")},
		"the folder itself, by its name": {file(".")},
	}
	for name, entries := range tests {
		t.Run(name, func(t *testing.T) {
			outer := t.TempDir()
			dst := filepath.Join(outer, "dst")
			write(t, filepath.Join(outer, "canary"), "safe", 0o600)
			write(t, filepath.Join(dst, "canary"), "safe", 0o600)
			write(t, filepath.Join(dst, "other/canary"), "safe", 0o600)
			if !strings.HasPrefix(name, "through own") && !strings.HasPrefix(name, "directory over own") {
				write(t, filepath.Join(dst, "top/file"), "safe", 0o600)
				write(t, filepath.Join(dst, "top/dir/file"), "safe", 0o600)
				if err := os.Symlink("../other", filepath.Join(dst, "top/old")); err != nil {
					t.Fatal(err)
				}
			}
			if err := Unpack(t.Context(), dst, archive(t, entries...), "top", false); err == nil {
				t.Error("it was taken")
			}
			got := tree(t, outer)
			for _, canary := range []string{"canary", "dst/canary", "dst/other/canary"} {
				if got[canary] != "file -rw------- safe" {
					t.Errorf("%s became %q", canary, got[canary])
				}
			}
			for p := range got {
				switch {
				case p == "canary", p == "dst", p == "dst/canary", p == "dst/other", p == "dst/other/canary":
				case p == "dst/top", strings.HasPrefix(p, "dst/top/"):
				default:
					t.Errorf("%s appeared", p)
				}
			}
		})
	}
}

func TestUnpackReplacesLinksAndKeepsNoSetuid(t *testing.T) {
	outer := t.TempDir()
	dst := filepath.Join(outer, "dst")
	write(t, filepath.Join(outer, "victim"), "safe", 0o600)
	write(t, filepath.Join(dst, "x"), "", 0o600)
	if err := os.Symlink("../victim", filepath.Join(dst, "f")); err != nil {
		t.Fatal(err)
	}
	a := archive(t, entry{h: tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o6755}, data: "new"})
	if err := Unpack(t.Context(), dst, a, "f", false); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Lstat(filepath.Join(dst, "f"))
	if err != nil || fi.Mode() != 0o755 {
		t.Errorf("mode %v, want a plain file of 0755 (%v)", fi.Mode(), err)
	}
	if data, _ := os.ReadFile(filepath.Join(outer, "victim")); string(data) != "safe" {
		t.Errorf("the link's target was written: %q", data)
	}
}

func TestUnpackRefusesBrokenTars(t *testing.T) {
	for name, data := range map[string]string{
		"noise": strings.Repeat("noise", 300),
		"cut":   archive(t, entry{h: tar.Header{Typeflag: tar.TypeReg, Name: "top"}, data: strings.Repeat("x", 4096)}).String()[:2000],
	} {
		dst := t.TempDir()
		if err := Unpack(t.Context(), dst, strings.NewReader(data), "top", false); err == nil {
			t.Errorf("%s: it was taken", name)
		}
		if got := tree(t, dst); len(got) > 0 {
			t.Errorf("%s: half a file stayed: %v", name, got)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add([]byte("noise"))
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "top", Linkname: ".."})
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "top/canary", Mode: 0o644})
	_ = w.Close()
	f.Add(buf.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		outer := t.TempDir()
		dst := filepath.Join(outer, "dst")
		write(t, filepath.Join(dst, "canary"), "safe", 0o600)
		_ = Unpack(t.Context(), dst, bytes.NewReader(data), "top", false)
		entries, err := os.ReadDir(outer)
		if err != nil || len(entries) != 1 {
			t.Fatalf("something appeared outside: %v %v", entries, err)
		}
		entries, err = os.ReadDir(dst)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != "canary" && e.Name() != "top" {
				t.Fatalf("%q appeared beside the top entry", e.Name())
			}
		}
	})
}
