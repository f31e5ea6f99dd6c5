//go:build linux || darwin

package kernel

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/box"
)

// deb makes a package of the files.
func deb(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var data bytes.Buffer
	z := gzip.NewWriter(&data)
	w := tar.NewWriter(z)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	out := bytes.NewBufferString("!<arch>\n")
	for _, m := range []struct{ name, data string }{{"debian-binary", "2.0\n"}, {"control.tar.gz", "odd"}, {"data.tar.gz", data.String()}} {
		fmt.Fprintf(out, "%-16s%-12d%-6d%-6d%-8s%-10d`\n%s", m.name, 0, 0, 0, "100644", len(m.data), m.data)
		if len(m.data)%2 == 1 {
			out.WriteByte('\n')
		}
	}
	return out.Bytes()
}

func TestUnpackDeb(t *testing.T) {
	for _, tt := range []struct {
		name    string
		files   map[string]string
		release string
		want    []string
		err     string
	}{
		{
			name: "kernel and modules, in both places",
			files: map[string]string{
				"./boot/vmlinuz-6.1.0-9-cloud-amd64": "kernel", "./boot/System.map-6.1": "x",
				"./lib/modules/6.1.0-9-cloud-amd64/kernel/a.txt":     "a",
				"./usr/lib/modules/6.1.0-9-cloud-amd64/kernel/b.txt": "b",
				"./usr/share/doc/x": "x",
			},
			release: "6.1.0-9-cloud-amd64",
			want:    []string{"modules/kernel/a.txt", "modules/kernel/b.txt", "vmlinuz"},
		},
		{
			name: "names that would lead out stay inside",
			files: map[string]string{
				"boot/vmlinuz-1": "kernel", "../../lib/modules/1/../../../../etc/passwd": "x",
				"lib/modules/1/x/../../1/y": "y", "/lib/modules/1/z": "z",
			},
			release: "1",
			want:    []string{"modules/y", "modules/z", "vmlinuz"},
		},
		{name: "no kernel", files: map[string]string{"lib/modules/1/a": "a"}, err: "no kernel"},
		{name: "two kernels", files: map[string]string{"boot/vmlinuz-1": "a", "boot/vmlinuz-2": "b"}, err: "more than one kernel"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			release, err := unpackDeb(t.Context(), bytes.NewReader(deb(t, tt.files)), dir)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if release != tt.release {
				t.Errorf("release %q, want %q", release, tt.release)
			}
			var got []string
			_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					rel, _ := filepath.Rel(dir, path)
					got = append(got, rel)
				}
				return err
			})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzUnpackDeb(f *testing.F) {
	f.Add(deb(f, map[string]string{"boot/vmlinuz-1": "kernel", "lib/modules/1/a.ko": "a"}))
	f.Add([]byte("!<arch>\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		_, _ = unpackDeb(t.Context(), bytes.NewReader(data), filepath.Join(dir, "in"))
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != "in" {
				t.Fatalf("%s was written outside of the folder", e.Name())
			}
		}
	})
}

func TestClosure(t *testing.T) {
	all := map[string]module{}
	for _, m := range []module{
		{name: "virtio", path: "v.ko", depends: []string{"virtio_ring"}},
		{name: "virtio_ring", path: "r.ko"},
		{name: "net", path: "n.ko", depends: []string{"virtio", "failover"}},
		{name: "failover", path: "f.ko", depends: []string{"built_in"}},
		{name: "loop_a", path: "la.ko", depends: []string{"loop_b"}},
		{name: "loop_b", path: "lb.ko", depends: []string{"loop_a"}},
	} {
		all[m.name] = m
	}
	for _, tt := range []struct {
		names []string
		want  string
	}{
		{[]string{"net"}, "r.ko v.ko f.ko n.ko"},
		{[]string{"virtio", "net", "virtio"}, "r.ko v.ko f.ko n.ko"},
		{[]string{"nothing"}, ""},
		{[]string{"loop-a"}, "lb.ko la.ko"},
	} {
		var got []string
		for _, m := range closure(all, tt.names) {
			got = append(got, m.path)
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("closure of %v is %q, want %q", tt.names, s, tt.want)
		}
	}
}

func TestWriteCpio(t *testing.T) {
	var out bytes.Buffer
	err := writeCpio(&out, []cpioFile{
		{name: "init", mode: modeProgram, data: []byte("#!/bin/sh\n")},
		{name: "modules/a/x.ko", mode: modeFile, data: []byte("x")},
		{name: "modules/a/y.ko", mode: modeFile},
		{name: "dev", mode: modeFolder},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]cpioFile{{{name: "a"}, {name: "a"}}, {{name: "../a"}}, {{name: ""}}, {{name: "/a"}}} {
		if err := writeCpio(io.Discard, bad); err == nil {
			t.Errorf("%q was accepted", bad[0].name)
		}
	}
	cpio, err := exec.LookPath("cpio")
	if err != nil {
		if !bytes.HasPrefix(out.Bytes(), []byte("070701")) || out.Len()%4 != 0 {
			t.Errorf("%d bytes that begin with %.6q", out.Len(), out.Bytes())
		}
		return
	}
	cmd := exec.Command(cpio, "-t", "--quiet")
	cmd.Stdin = &out
	list, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := "init\nmodules\nmodules/a\nmodules/a/x.ko\nmodules/a/y.ko\ndev\n"; string(list) != want {
		t.Errorf("cpio lists %q, want %q", list, want)
	}
}

// bzImage is a kernel image that says its release and nothing more.
func bzImage(release string) []byte {
	img := make([]byte, 0x800)
	copy(img[0x202:], "HdrS")
	img[0x20e], img[0x20f] = 0x00, 0x04
	copy(img[0x600:], release+" (builder) #1\x00")
	return img
}

func TestStore(t *testing.T) {
	s := At(filepath.Join(t.TempDir(), "kernels"))
	if _, err := s.Selected(); box.KindOf(err) != box.NotFound || box.HintOf(err) == "" {
		t.Errorf("an empty store gives %v", err)
	}
	dir := t.TempDir()
	add := func(name string, data []byte) (Info, error) {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return s.Add(t.Context(), file, "a test")
	}
	first, err := add("a", bzImage("6.6.6-own"))
	if err != nil {
		t.Fatal(err)
	}
	if first.Release != "6.6.6-own" || !strings.HasPrefix(first.Name, "6.6.6-own-") || first.Modules != 0 {
		t.Errorf("added as %+v", first)
	}
	if _, err := add("a", bzImage("6.6.6-own")); err != nil {
		t.Errorf("added again: %v", err)
	}
	second, err := add("b", deb(t, map[string]string{"boot/vmlinuz-7": "k"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]byte{nil, []byte("hello, this is no kernel at all"), bzImage("../../x"),
		deb(t, map[string]string{"boot/vmlinuz-8": "k", "lib/modules/8/kernel/x.ko": "no module"})} {
		if _, err := add("bad", bad); box.KindOf(err) != box.Invalid {
			t.Errorf("%.20q gives %v", bad, err)
		}
	}
	list, err := s.List()
	if err != nil || len(list) != 2 || list[0].Name != second.Name || !list[0].Selected || list[1].Selected {
		t.Fatalf("the list is %+v, %v", list, err)
	}
	if _, err := s.Select(first.Name); err != nil {
		t.Fatal(err)
	}
	if sel, err := s.Selected(); err != nil || sel.Name != first.Name {
		t.Errorf("selected is %+v, %v", sel, err)
	}
	for _, name := range []string{"", "none", "../kernels/" + first.Name} {
		if _, err := s.Select(name); box.KindOf(err) != box.NotFound {
			t.Errorf("Select(%q) gives %v", name, err)
		}
	}
	if err := s.Remove(first.Name); err != nil {
		t.Fatal(err)
	}
	if sel, err := s.Selected(); err != nil || sel.Name != second.Name {
		t.Errorf("after the removal, selected is %+v, %v", sel, err)
	}
	// Nothing half-made stays.
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}

func TestDownloadChecks(t *testing.T) {
	serve := func(body string, status int) *httptest.Server {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(srv.Close)
		return srv
	}
	p := pinned{file: "pool/x.deb", size: 5, sha256: "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"} // hello
	for _, tt := range []struct {
		name, body string
		status     int
		err        string
	}{
		{"right", "hello", 200, ""},
		{"another content", "hullo", 200, "not the package"},
		{"too long", "hello, you", 200, "not the package"},
		{"too short", "hell", 200, "not the package"},
		{"missing", "", 404, "404"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "f")
			_, err := download(context.Background(), FetchOptions{Mirror: serve(tt.body, tt.status).URL}, p, file)
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}
