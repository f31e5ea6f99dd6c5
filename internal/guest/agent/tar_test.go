//go:build linux

package agent

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

func (r *rig) pack(req *hutchv1.PackRequest) ([]byte, error) {
	s, err := r.files.Pack(testContext(r.t), connect.NewRequest(req))
	if err != nil {
		return nil, wire.Decode(err)
	}
	defer s.Close()
	var data []byte
	for s.Receive() {
		data = append(data, s.Msg().GetData()...)
	}
	return data, wire.Decode(s.Err())
}

func (r *rig) unpack(h *hutchv1.UnpackHeader, data []byte) (*hutchv1.UnpackResponse, error) {
	s := r.files.Unpack(testContext(r.t))
	_ = s.Send(&hutchv1.UnpackRequest{Header: h})
	for len(data) > 0 {
		n := min(len(data), 100_000)
		if s.Send(&hutchv1.UnpackRequest{Data: data[:n], Complete: n == len(data)}) != nil {
			break
		}
		data = data[n:]
	}
	res, err := s.CloseAndReceive()
	if err != nil {
		return nil, wire.Decode(err)
	}
	return res.Msg, nil
}

// entry is what a tree is compared by.
type treeEntry struct {
	Mode   fs.FileMode
	Data   string
	Target string
	MTime  int64
	Links  uint64
}

func snapshot(t *testing.T, dir string) map[string]treeEntry {
	t.Helper()
	all := make(map[string]treeEntry)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		fi, err := d.Info()
		if err != nil {
			return err
		}
		e := treeEntry{Mode: fi.Mode(), MTime: fi.ModTime().UnixNano()}
		switch {
		case fi.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			e.Data, e.Links = string(b), uint64(fi.Sys().(*syscall.Stat_t).Nlink)
		case fi.Mode()&fs.ModeSymlink != 0:
			e.Target, _ = os.Readlink(path)
		}
		if rel != "." {
			all[rel] = e
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestTarRoundTrip(t *testing.T) {
	r := newRig(t, Config{})
	src := r.dir + "/src"
	if err := os.MkdirAll(src+"/sub/readonly", 0o755); err != nil {
		t.Fatal(err)
	}
	for i, name := range oddNames {
		if err := os.WriteFile(src+"/"+name, bytes.Repeat([]byte{byte(i)}, i*100000), os.FileMode(0o600+i)); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(name+"\xff", src+"/sub/l"+name[1:]); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Link(src+"/plain", src+"/sub/hard"))
	must(unix.Mkfifo(src+"/fifo", 0o620))
	must(os.WriteFile(src+"/sub/readonly/f", []byte("x"), 0o444))
	must(os.WriteFile(src+"/setuid", nil, 0o755))
	must(os.Chmod(src+"/setuid", 0o755|fs.ModeSetuid))
	hasXattr := unix.Setxattr(src+"/plain", "user.a", []byte("b\x00c"), 0) == nil
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(err)
	defer unix.Close(sock)
	must(unix.Bind(sock, &unix.SockaddrUnix{Name: src + "/sock"}))
	must(os.Chmod(src+"/sub/readonly", 0o555))
	when := time.Unix(1234567890, 123456789)
	must(os.Chtimes(src+"/sub/readonly", when, when))
	must(os.Chtimes(src+"/plain", when, when))

	data, err := r.pack(&hutchv1.PackRequest{Path: []byte(src), Name: []byte(".")})
	must(err)
	dst := r.dir + "/dst"
	must(os.Mkdir(dst, 0o755))
	res, err := r.unpack(&hutchv1.UnpackHeader{Dir: []byte(dst), KeepOwner: os.Geteuid() == 0}, data)
	must(err)
	want := snapshot(t, src)
	delete(want, "sock")
	if diff := cmp.Diff(want, snapshot(t, dst)); diff != "" {
		t.Errorf("tree (-want +got):\n%.2000s", diff)
	}
	if int(res.GetEntries()) != len(want) {
		t.Errorf("%d entries, want %d", res.GetEntries(), len(want))
	}
	if hasXattr {
		if v, err := getXattr(dst+"/plain", "user.a"); err != nil || string(v) != "b\x00c" {
			t.Errorf("attribute: %q, %v", v, err)
		}
	}
	// Once more, over what is there.
	_, err = r.unpack(&hutchv1.UnpackHeader{Dir: []byte(dst)}, data)
	must(err)
	if diff := cmp.Diff(want, snapshot(t, dst)); diff != "" {
		t.Errorf("second time (-want +got):\n%.2000s", diff)
	}
	must(os.Chmod(src+"/sub/readonly", 0o755)) // for the clean-up
	must(os.Chmod(dst+"/sub/readonly", 0o755))
}

func TestPackNames(t *testing.T) {
	r := newRig(t, Config{})
	if err := os.MkdirAll(r.dir+"/d/e", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.dir+"/d/e/f", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("d", r.dir+"/link"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path, name string
		follow     bool
		want       []string
	}{
		{"/d", "", false, []string{"d/", "d/e/", "d/e/f"}},
		{"/d", "other", false, []string{"other/", "other/e/", "other/e/f"}},
		{"/d", ".", false, []string{"e/", "e/f"}},
		{"/d/e/f", "", false, []string{"f"}},
		{"/d/e/f", "renamed", false, []string{"renamed"}},
		{"/link", "", false, []string{"link"}},
		{"/link", "", true, []string{"link/", "link/e/", "link/e/f"}},
		{"/link", ".", true, []string{"e/", "e/f"}},
	} {
		data, err := r.pack(&hutchv1.PackRequest{Path: []byte(r.dir + tt.path), Name: []byte(tt.name), Follow: tt.follow})
		if err != nil {
			t.Errorf("%v: %v", tt, err)
			continue
		}
		var got []string
		tr := tar.NewReader(bytes.NewReader(data))
		for {
			h, err := tr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, h.Name)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%v: %q", tt, got)
		}
	}
	_, err := r.pack(&hutchv1.PackRequest{Path: []byte(r.dir + "/d/e/f"), Name: []byte(".")})
	wantErrno(t, err, "pack", r.dir+"/d/e/f", syscall.ENOTDIR)
	_, err = r.pack(&hutchv1.PackRequest{Path: []byte(r.dir + "/missing")})
	wantErrno(t, err, "pack", r.dir+"/missing", syscall.ENOENT)
}

// archive makes a tar of headers whose PAXRecords["data"] is their content.
func archive(t *testing.T, headers ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		data := h.PAXRecords["data"]
		h.PAXRecords = nil
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		h.Size = int64(len(data))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name, data string) *tar.Header {
	return &tar.Header{Name: name, Mode: 0o644, PAXRecords: map[string]string{"data": data}}
}
func dir(name string, mode int64) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}
}
func link(name, target string) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
}
func hard(name, target string) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}
}

// Nothing that an archive says reaches outside of the directory.
func TestUnpackIsConfined(t *testing.T) {
	r := newRig(t, Config{})
	outside := r.dir + "/outside"
	setup := func() {
		for _, d := range []string{outside, r.dir + "/in/real"} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(outside+"/secret", []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		for l, target := range map[string]string{"abs": outside, "up": "../outside", "inside": "real", "twice": "inside/../../outside", "deep": "real/../inside"} {
			_ = os.Symlink(target, r.dir+"/in/"+l)
		}
	}
	for _, tt := range []struct {
		name    string
		headers []*tar.Header
		refused bool
	}{
		{"dotdot", []*tar.Header{file("../outside/pwned", "x")}, true},
		{"dotdot inside", []*tar.Header{file("a/../../outside/pwned", "x")}, true},
		{"absolute", []*tar.Header{file(outside+"/pwned", "x")}, true},
		{"link then write", []*tar.Header{link("l", outside), file("l/pwned", "x")}, true},
		{"relative link then write", []*tar.Header{link("l", "../outside"), file("l/pwned", "x")}, true},
		{"chain of links", []*tar.Header{link("a", "."), link("b", "a/.."), file("b/outside/pwned", "x")}, true},
		{"link then dir", []*tar.Header{link("l", outside), dir("l/pwned", 0o755)}, true},
		{"existing absolute link", []*tar.Header{file("abs/pwned", "x")}, true},
		{"existing link up", []*tar.Header{file("up/pwned", "x")}, true},
		{"existing link through another", []*tar.Header{file("twice/pwned", "x")}, true},
		{"file over link", []*tar.Header{link("l", outside+"/secret"), file("l", "x")}, false},
		{"dir over link", []*tar.Header{link("l", outside), dir("l", 0o700), file("l/ok", "x")}, false},
		{"hard link out", []*tar.Header{hard("h", "../outside/secret"), file("h", "x")}, true},
		{"hard link absolute", []*tar.Header{hard("h", outside+"/secret")}, true},
		{"hard link through link", []*tar.Header{link("l", outside), hard("h", "l/secret")}, true},
		{"hard link to link", []*tar.Header{link("l", outside+"/secret"), hard("h", "l"), file("h", "x")}, false},
		{"loop", []*tar.Header{link("x", "y"), link("y", "x"), file("x/f", "x")}, true},
		{"inside link", []*tar.Header{file("inside/ok", "x"), file("deep/ok2", "x")}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.t = t
			setup()
			defer os.RemoveAll(r.dir + "/in")
			before := snapshot(t, outside)
			_, err := r.unpack(&hutchv1.UnpackHeader{Dir: []byte(r.dir + "/in")}, archive(t, tt.headers...))
			if (err != nil) != tt.refused {
				t.Errorf("error %v, want refusal: %t", err, tt.refused)
			}
			if diff := cmp.Diff(before, snapshot(t, outside)); diff != "" {
				t.Errorf("outside changed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnpackReplaces(t *testing.T) {
	for _, keep := range []bool{false, true} {
		r := newRig(t, Config{})
		if err := os.MkdirAll(r.dir+"/was-dir/full", 0o755); err != nil {
			t.Fatal(err)
		}
		for name, data := range map[string]string{"was-dir/full/f": "old", "was-file": "old", "file": "old"} {
			if err := os.WriteFile(r.dir+"/"+name, []byte(data), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		header := func() *hutchv1.UnpackHeader {
			return &hutchv1.UnpackHeader{Dir: []byte(r.dir), NoOverwriteDir: keep}
		}
		if _, err := r.unpack(header(), archive(t, file("file", "new"))); err != nil {
			t.Fatal(err)
		}
		_, err := r.unpack(header(), archive(t, file("was-dir", "file now")))
		_, err2 := r.unpack(header(), archive(t, dir("was-file", 0o711)))
		if keep {
			wantKind(t, err, box.Conflict)
			wantKind(t, err2, box.Conflict)
		} else if err != nil || err2 != nil {
			t.Errorf("%v, %v", err, err2)
		}
		fi, _ := os.Stat(r.dir + "/was-dir")
		fi2, _ := os.Stat(r.dir + "/was-file")
		if fi.IsDir() != keep || fi2.IsDir() == keep {
			t.Errorf("keep %t: %v, %v", keep, fi.Mode(), fi2.Mode())
		}
		if b, _ := os.ReadFile(r.dir + "/file"); string(b) != "new" {
			t.Errorf("file %q", b)
		}
	}
}

func TestUnpackBadStreams(t *testing.T) {
	r := newRig(t, Config{})
	h := func() *hutchv1.UnpackHeader { return &hutchv1.UnpackHeader{Dir: []byte(r.dir)} }
	whole := archive(t, file("f", strings.Repeat("x", 100000)))
	_, err := r.unpack(h(), whole[:50000])
	wantKind(t, err, box.Invalid)
	_, err = r.unpack(h(), []byte(strings.Repeat("garbage", 1000)))
	wantKind(t, err, box.Invalid)
	_, err = r.unpack(&hutchv1.UnpackHeader{Dir: []byte(r.dir + "/missing")}, whole)
	wantErrno(t, err, "unpack", r.dir+"/missing", syscall.ENOENT)
	_, err = r.unpack(&hutchv1.UnpackHeader{Dir: []byte(r.dir + "/f")}, whole)
	wantErrno(t, err, "unpack", r.dir+"/f", syscall.ENOTDIR)
	// Whole, but not said to be complete.
	s := r.files.Unpack(testContext(t))
	_ = s.Send(&hutchv1.UnpackRequest{Header: h(), Data: whole})
	_, err = s.CloseAndReceive()
	wantKind(t, err, box.Canceled)
}

func TestUnpackOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files away")
	}
	r := newRig(t, Config{User: "1234:5678"})
	for _, keep := range []bool{true, false} {
		sub := fmt.Sprintf("%s/%t", r.dir, keep)
		if err := os.Mkdir(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		f, d, l := file("d/f", "x"), dir("d", 0o2755), link("d/l", "f")
		for _, h := range []*tar.Header{f, d, l} {
			h.Uid, h.Gid = 77, 88
		}
		f.Mode = 0o4755
		if _, err := r.unpack(&hutchv1.UnpackHeader{Dir: []byte(sub), KeepOwner: keep}, archive(t, d, f, l, file("made/parents/f", "x"))); err != nil {
			t.Fatal(err)
		}
		uid, gid := uint32(1234), uint32(5678)
		if keep {
			uid, gid = 77, 88
		}
		for name, mode := range map[string]uint32{"d": 0o2755, "d/f": 0o4755, "d/l": 0o777} {
			fi, err := r.stat(sub+"/"+name, true)
			if err != nil || fi.GetUid() != uid || fi.GetGid() != gid || fi.GetMode()&0o7777 != mode {
				t.Errorf("keep %t: %s: %v, %v", keep, name, fi, err)
			}
		}
		if fi, err := r.stat(sub+"/made", true); err != nil || fi.GetUid() != 1234 {
			t.Errorf("made parent: %v, %v", fi, err)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	var seed bytes.Buffer
	w := tar.NewWriter(&seed)
	for _, h := range []*tar.Header{dir("d", 0o755), link("d/l", ".."), {Name: "d/l/x", Mode: 0o644}, hard("h", "d/l/x")} {
		if err := w.WriteHeader(h); err != nil {
			f.Fatal(err)
		}
	}
	w.Close()
	f.Add(seed.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		top := t.TempDir()
		if err := os.Mkdir(top+"/in", 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := openTree(top + "/in")
		if err != nil {
			t.Fatal(err)
		}
		defer root.close()
		me := account{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
		u := &unpacker{ctx: context.Background(), tree: root, tr: tar.NewReader(io.LimitReader(bytes.NewReader(data), 1<<20)), buf: make([]byte, 4096), made: make(map[string]struct{}), owner: me}
		err = errors.Join(u.run(), u.finishDirs())
		if names, _ := os.ReadDir(top); len(names) != 1 {
			t.Errorf("something is beside the directory: %v (error %v)", names, err)
		}
	})
}
