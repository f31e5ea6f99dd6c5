package layer_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image/imagetest"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
)

// TestMain makes the test program its own helper process.
func TestMain(m *testing.M) {
	if os.Getenv("HUTCH_TEST_LAYER_HELPER") != "" {
		if err := imagetest.Main(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// entry is a short way to write a tar header and its content.
type entry struct {
	tar.Header
	body string
}

func file(name, body string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}, body}
}
func mode(m int64, e entry) entry       { e.Mode = m; return e }
func owner(uid, gid int, e entry) entry { e.Uid, e.Gid = uid, gid; return e }
func dir(name string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}
func sym(name, target string) entry {
	return entry{tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink, Mode: 0o777}, ""}
}
func hard(name, target string) entry {
	return entry{tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeLink}, ""}
}
func node(name string, typ byte) entry {
	return entry{tar.Header{Name: name, Typeflag: typ, Mode: 0o666, Devmajor: 1, Devminor: 3}, ""}
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := e.Header
		h.Size = int64(len(e.body))
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1_000_000_000, 0)
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatalf("header of %q: %v", e.Name, err)
		}
		if _, err := w.Write([]byte(e.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func gz(t testing.TB, data []byte) []byte {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	w.Write(data)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func zst(t testing.TB, data []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// site is a place with a destination, and a canary beside it that no layer
// may touch.
type site struct {
	dir, dest string
	canary    map[string]string
}

func newSite(t testing.TB) site {
	t.Helper()
	s := site{dir: t.TempDir()}
	s.dest = filepath.Join(s.dir, "a", "b", "dest")
	for _, d := range []string{s.dest, filepath.Join(s.dir, "canary", "sub")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"canary/file", "canary/sub/file", "a/file"} {
		if err := os.WriteFile(filepath.Join(s.dir, f), []byte("untouched"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	s.canary = s.outside(t)
	t.Cleanup(func() { layer.RemoveAll(s.dest) })
	return s
}

// outside describes everything of the site but the destination.
func (s site) outside(t testing.TB) map[string]string {
	return describe(t, s.dir, s.dest)
}

func describe(t testing.TB, top, skip string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if p == skip {
			return fs.SkipDir
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(top, p)
		desc := fmt.Sprintf("%o", st.Mode)
		switch d.Type() {
		case 0:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			desc = fmt.Sprintf("%o links=%d %s", st.Mode, st.Nlink, digest(b))
		case fs.ModeSymlink:
			desc, _ = os.Readlink(p)
		}
		m[rel] = desc
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// job makes one that unpacks the given blobs into the site.
func (s site) job(t testing.TB, blobs ...[]byte) layer.Job {
	t.Helper()
	j := layer.Job{Dest: s.dest, Owners: layer.OneOwner}
	for i, b := range blobs {
		p := filepath.Join(t.TempDir(), fmt.Sprint("layer", i))
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		diff := digest(b)
		if z, err := layer.Decompress(bytes.NewReader(b)); err == nil {
			var plain bytes.Buffer
			if _, err := plain.ReadFrom(z); err == nil {
				diff = digest(plain.Bytes())
			}
		}
		j.Layers = append(j.Layers, layer.Blob{Path: p, Digest: digest(b), DiffID: diff, Size: int64(len(b))})
	}
	return j
}

// list describes the tree: "path" → "type content".
func list(t testing.TB, top string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(top, p)
		switch d.Type() {
		case fs.ModeDir:
			m[rel] = "dir"
		case fs.ModeSymlink:
			target, _ := os.Readlink(p)
			m[rel] = "-> " + target
		case fs.ModeNamedPipe:
			m[rel] = "fifo"
		case 0:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			m[rel] = string(b)
		default:
			m[rel] = d.Type().String()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	delete(m, ".")
	return m
}

type tree = map[string]string

func TestUnpackMeaning(t *testing.T) {
	long := strings.Repeat("long", 40)
	tests := map[string]struct {
		layers [][]entry
		want   tree
	}{
		"nothing": {},
		"files, directories, links, fifos": {
			layers: [][]entry{{dir("d/"), file("d/f", "x"), sym("s", "d/f"), hard("h", "d/f"), node("p", tar.TypeFifo)}},
			want:   tree{"d": "dir", "d/f": "x", "s": "-> d/f", "h": "x", "p": "fifo"},
		},
		"parents nobody lists": {
			layers: [][]entry{{file("a/b/c", "x")}},
			want:   tree{"a": "dir", "a/b": "dir", "a/b/c": "x"},
		},
		"names of all kinds": {
			layers: [][]entry{{file("./dot", "1"), file(long+"/"+long+"/"+long, "2"), file("sp ace\nnew\t-\xff\xfe", "3"), file("--", "4"), sym("l", strings.Repeat("t/", 300))}},
			want: tree{"dot": "1", long: "dir", long + "/" + long: "dir", long + "/" + long + "/" + long: "2",
				"sp ace\nnew\t-\xff\xfe": "3", "--": "4", "l": "-> " + strings.Repeat("t/", 300)},
		},
		"below an existing linked directory": {
			layers: [][]entry{{dir("usr/"), dir("usr/lib/"), sym("lib", "usr/lib"), sym("abs", "/usr")}, {file("lib/x", "1"), file("abs/lib/y", "2")}},
			want:   tree{"usr": "dir", "usr/lib": "dir", "usr/lib/x": "1", "usr/lib/y": "2", "lib": "-> usr/lib", "abs": "-> /usr"},
		},
		"below a link in the same layer to what is not there yet": {
			layers: [][]entry{{sym("lib", "usr/lib"), file("lib/x", "1"), dir("usr/lib/")}},
			want:   tree{"usr": "dir", "usr/lib": "dir", "usr/lib/x": "1", "lib": "-> usr/lib"},
		},
		"a link with dot-dot": {
			layers: [][]entry{{dir("a/b/"), sym("a/b/up", "../../c"), file("a/b/up/x", "1")}},
			want:   tree{"a": "dir", "a/b": "dir", "a/b/up": "-> ../../c", "c": "dir", "c/x": "1"},
		},
		"a link replaced by a directory": {
			layers: [][]entry{{dir("real/"), file("real/keep", "1"), sym("l", "real")}, {dir("l/"), file("l/x", "2")}},
			want:   tree{"real": "dir", "real/keep": "1", "l": "dir", "l/x": "2"},
		},
		"a directory replaced by a link, then written through": {
			layers: [][]entry{{dir("real/"), dir("l/"), file("l/old", "1")}, {sym("l", "real"), file("l/x", "2")}},
			want:   tree{"real": "dir", "real/x": "2", "l": "-> real"},
		},
		"file to directory and back": {
			layers: [][]entry{{file("a", "1"), dir("b/"), file("b/x", "1")}, {dir("a/"), file("a/y", "2"), file("b", "2")}},
			want:   tree{"a": "dir", "a/y": "2", "b": "2"},
		},
		"the last of duplicates wins, and links to the first stay": {
			layers: [][]entry{{file("a", "1"), hard("b", "a"), file("a", "2"), dir("d/"), dir("d/")}},
			want:   tree{"a": "2", "b": "1", "d": "dir"},
		},
		"a later layer does not write through a hard link": {
			layers: [][]entry{{file("a", "1"), hard("b", "a")}, {file("b", "2")}},
			want:   tree{"a": "1", "b": "2"},
		},
		"a hard link to a symbolic link, to itself, by an absolute name": {
			layers: [][]entry{{file("f", "1"), sym("s", "f"), hard("h", "s"), hard("f", "f"), hard("g", "/f")}},
			want:   tree{"f": "1", "s": "-> f", "h": "-> f", "g": "1"},
		},
		"a hard link into a lower layer": {
			layers: [][]entry{{file("d/f", "1")}, {hard("g", "d/f")}},
			want:   tree{"d": "dir", "d/f": "1", "g": "1"},
		},
		"whiteouts": {
			layers: [][]entry{{file("d/a", "1"), file("d/b", "1"), dir("e/"), file("e/deep/x", "1")}, {file("d/.wh.a", ""), file(".wh.e", ""), file(".wh.nothing", "")}},
			want:   tree{"d": "dir", "d/b": "1"},
		},
		"a whiteout hides only what is below, wherever it stands": {
			layers: [][]entry{{file("a", "old"), file("b", "old"), file("d/x", "old"), file("d/y", "old")},
				{file("a", "new"), file(".wh.a", ""), file(".wh.b", ""), file("b", "new"), file("d/x", "new"), file(".wh.d", "")}},
			want: tree{"a": "new", "b": "new", "d": "dir", "d/x": "new"},
		},
		"a whiteout in the lowest layer hides nothing": {
			layers: [][]entry{{file("a", "1"), file(".wh.a", ""), file(".wh..wh..opq", "")}},
			want:   tree{"a": "1"},
		},
		"opaque, first in its layer": {
			layers: [][]entry{{file("d/a", "1"), file("d/s/b", "1"), file("k", "1")}, {dir("d/"), file("d/.wh..wh..opq", ""), file("d/c", "2")}},
			want:   tree{"d": "dir", "d/c": "2", "k": "1"},
		},
		"opaque, last in its layer": {
			layers: [][]entry{{file("d/a", "1"), file("d/s/b", "1"), file("d/s/t/c", "1"), file("d/n", "1")},
				{dir("d/"), file("d/s/t/new", "2"), file("d/n", "2"), file("d/.wh..wh..opq", "")}},
			want: tree{"d": "dir", "d/n": "2", "d/s": "dir", "d/s/t": "dir", "d/s/t/new": "2"},
		},
		"opaque in a directory that is a link": {
			layers: [][]entry{{file("real/a", "1"), sym("l", "real")}, {file("l/.wh..wh..opq", ""), file("l/b", "2")}},
			want:   tree{"real": "dir", "real/b": "2", "l": "-> real"},
		},
		"opaque root": {
			layers: [][]entry{{file("a", "1"), file("d/b", "1")}, {file(".wh..wh..opq", ""), file("c", "2")}},
			want:   tree{"c": "2"},
		},
		"a whiteout in one layer does not reach the next": {
			layers: [][]entry{{file("a", "1")}, {file(".wh.a", "")}, {file("a", "3")}},
			want:   tree{"a": "3"},
		},
		"notes of aufs": {
			layers: [][]entry{{file("a", "1")}, {file(".wh..wh.aufs", ""), dir(".wh..wh.plnk/"), file(".wh..wh.plnk/1.2", "x")}},
			want:   tree{"a": "1", ".wh..wh.plnk": "dir", ".wh..wh.plnk/1.2": "x"},
		},
		"devices are left out and still hide": {
			layers: [][]entry{{file("dev/null", "1"), file("k", "1")}, {node("dev/null", tar.TypeChar), hard("dev/zero", "dev/null"), node("dev/sda", tar.TypeBlock)}},
			want:   tree{"dev": "dir", "k": "1"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			var blobs [][]byte
			for i, l := range tt.layers {
				b := tarOf(t, l...)
				switch i % 3 { // all forms of compression on the way
				case 1:
					b = gz(t, b)
				case 2:
					b = zst(t, b)
				}
				blobs = append(blobs, b)
			}
			if _, err := layer.Unpack(t.Context(), s.job(t, blobs...)); err != nil {
				t.Fatal(err)
			}
			if tt.want == nil {
				tt.want = tree{}
			}
			if diff := cmp.Diff(tt.want, list(t, s.dest)); diff != "" {
				t.Errorf("tree (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(s.canary, s.outside(t)); diff != "" {
				t.Errorf("outside (-before +after):\n%s", diff)
			}
		})
	}
}

func TestUnpackMetadata(t *testing.T) {
	s := newSite(t)
	old := time.Unix(981173106, 0)
	e := func(m int64, e entry) entry { e.Mode, e.ModTime = m, old; return e }
	xa := file("xattr", "x")
	xa.PAXRecords = map[string]string{
		"SCHILY.xattr.user.mine": "va\x00lue", "SCHILY.xattr.user.overlay.redirect": "/etc",
		"SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.system.posix_acl_access": "zz",
	}
	j := s.job(t, tarOf(t,
		e(0o750, dir("./")),
		e(0o555, dir("ro/")), e(0o444, file("ro/f", "x")), e(0o555, dir("ro/sub/")), e(0, file("ro/sub/none", "x")),
		e(0o000, dir("closed/")), e(0o600, file("closed/f", "x")),
		e(0o1777, dir("tmp/")), e(0o2775, dir("sgid/")),
		e(0o4755, file("su", "x")), e(0o2755, file("sg", "x")), e(0o755, sym("ln", "su")), e(0o640, node("p", tar.TypeFifo)),
		owner(1234, 5678, e(0o644, file("theirs", "x"))), xa,
	), tarOf(t, file("ro/sub/late", "y")))
	res, err := layer.Unpack(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]uint32{
		".": 0o750, "ro": 0o555, "ro/f": 0o444, "tmp": 0o1777, "sgid": 0o2775, "su": 0o4755, "sg": 0o2755, "p": 0o640, "closed": 0, "ro/sub": 0o555,
	} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(s.dest, p), &st); err != nil {
			t.Error(err)
		} else if got := st.Mode & 0o7777; got != want {
			t.Errorf("%s has mode %o, want %o", p, got, want)
		}
		// Not that of a directory without search permission: its owner cannot
		// look into it either.
		if p != "closed" && time.Unix(st.Mtim.Sec, st.Mtim.Nsec) != old {
			t.Errorf("%s has time %v, want %v", p, time.Unix(st.Mtim.Sec, 0), old)
		}
	}
	var st unix.Stat_t
	if unix.Lstat(filepath.Join(s.dest, "ln"), &st); st.Mtim.Sec != old.Unix() {
		t.Errorf("the link has time %d", st.Mtim.Sec)
	}
	if res.Owners != 1 {
		t.Errorf("%d owners not kept, want 1", res.Owners)
	}
	buf := make([]byte, 64)
	n, err := unix.Getxattr(filepath.Join(s.dest, "xattr"), "user.mine", buf)
	if errors.Is(err, unix.ENOTSUP) {
		t.Log("no user attributes on this filesystem")
	} else if err != nil || string(buf[:n]) != "va\x00lue" {
		t.Errorf("user.mine = %q, %v", buf[:max(n, 0)], err)
	} else if res.Xattrs != 3 {
		t.Errorf("%d attributes left out, want 3", res.Xattrs)
	}
	if n, err := unix.Getxattr(filepath.Join(s.dest, "xattr"), "user.overlay.redirect", buf); err == nil {
		t.Errorf("user.overlay.redirect = %q was set", buf[:n])
	}
	if err := layer.RemoveAll(s.dest); err != nil {
		t.Errorf("the tree cannot be removed: %v", err)
	}
}

func TestUnpackKeepsOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s := newSite(t)
	cap := file("cap", "x")
	cap.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}
	j := s.job(t, tarOf(t,
		owner(10, 20, dir("d/")), owner(11, 21, mode(0o4755, file("d/su", "x"))), owner(12, 22, sym("s", "d")), owner(13, 23, node("p", tar.TypeFifo)),
		owner(100, 100, cap)), tarOf(t, file("d/later", "y"), file("e/implied", "z")))
	j.Owners = layer.KeepOwners
	if _, err := layer.Unpack(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]string{"d": "10:20 755", "d/su": "11:21 4755", "s": "12:22 777", "p": "13:23 666", "d/later": "0:0 644", "e": "0:0 755"} {
		var st unix.Stat_t
		unix.Lstat(filepath.Join(s.dest, p), &st)
		if got := fmt.Sprintf("%d:%d %o", st.Uid, st.Gid, st.Mode&0o7777); got != want {
			t.Errorf("%s is %s, want %s", p, got, want)
		}
	}
	buf := make([]byte, 64)
	if n, err := unix.Getxattr(filepath.Join(s.dest, "cap"), "security.capability", buf); err != nil || n != 20 {
		t.Errorf("security.capability: %d bytes, %v", n, err)
	}
	bad := s.job(t, tarOf(t, owner(-1, 0, file("x", ""))))
	bad.Dest = t.TempDir()
	bad.Owners = layer.KeepOwners
	if _, err := layer.Unpack(t.Context(), bad); box.KindOf(err) != box.Invalid {
		t.Errorf("owner -1: %v, want it refused", err)
	}
}

func TestUnpackSparse(t *testing.T) {
	s := newSite(t)
	body := strings.Repeat("\x00", 8<<20) + "end" + strings.Repeat("\x00", 4096+17)
	if _, err := layer.Unpack(t.Context(), s.job(t, gz(t, tarOf(t, file("f", body), file("zero", strings.Repeat("\x00", 5)))))); err != nil {
		t.Fatal(err)
	}
	got := list(t, s.dest)
	if got["f"] != body || got["zero"] != "\x00\x00\x00\x00\x00" {
		t.Error("the content is not what the layer has")
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(s.dest, "f"), &st); err != nil {
		t.Fatal(err)
	}
	if used := st.Blocks * 512; used > 1<<20 {
		t.Errorf("8 MiB of zeros take %d bytes on the disk", used)
	}
}

func TestUnpackMultiMemberGzip(t *testing.T) {
	s := newSite(t)
	b := tarOf(t, file("a", strings.Repeat("x", 5000)), file("b", "y"))
	blob := append(gz(t, b[:700]), gz(t, b[700:])...)
	j := s.job(t, blob)
	j.Layers[0].DiffID = digest(b)
	if _, err := layer.Unpack(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	if got := list(t, s.dest); got["b"] != "y" {
		t.Errorf("got %v", got)
	}
}

// keysOf helps failure messages.
func keysOf(m map[string]string) []string {
	var ks []string
	for k := range m {
		ks = append(ks, k)
	}
	sort.Strings(ks)
	return ks
}

func TestProcess(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, attr := range map[string]*syscall.SysProcAttr{
		"plain": {Pdeathsig: syscall.SIGKILL},
		"user namespace": {Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := imagetest.Process(func(ctx context.Context) *exec.Cmd {
				cmd := exec.CommandContext(ctx, exe)
				cmd.Env = []string{"HUTCH_TEST_LAYER_HELPER=1"}
				cmd.SysProcAttr = attr
				return cmd
			})
			if name == "user namespace" {
				probe := exec.Command("/bin/true")
				probe.SysProcAttr = attr
				if err := probe.Run(); err != nil {
					t.Skipf("no user namespaces here: %v", err)
				}
			}
			s := newSite(t)
			j := s.job(t, gz(t, tarOf(t, dir("d/"), mode(0o555, dir("d/ro/")), file("d/ro/f", "x"), hard("h", "d/ro/f"), sym("d/esc", "/../../canary"), file("d/esc/x", "1"))))
			j.Confine = true
			res, err := p.Unpack(t.Context(), j)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("confined by %v", res.Confined)
			if name == "user namespace" && (len(res.Confined) == 0 || res.Confined[0] != "chroot") {
				t.Errorf("confined by %v, want chroot at least", res.Confined)
			}
			got := list(t, s.dest)
			if want := "1"; got["canary/x"] != want || got["h"] != "x" {
				t.Errorf("tree: %v", keysOf(got))
			}
			if diff := cmp.Diff(s.canary, s.outside(t)); diff != "" {
				t.Errorf("outside (-before +after):\n%s", diff)
			}

			if err := p.Remove(t.Context(), s.dest); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(s.dest); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after Remove: %v", err)
			}

			// Its errors arrive with their kind.
			s = newSite(t)
			bad := s.job(t, tarOf(t, dir("d/"), mode(0o500, dir("d/e/")), file("d/e/f", "x")), []byte("no tar at all, but long enough to be one header"+strings.Repeat("x", 600)))
			bad.Confine = true
			_, err = p.Unpack(t.Context(), bad)
			if got := list(t, s.dest); len(got) != 0 {
				t.Errorf("a job that failed leaves %v", got)
			}
			if box.KindOf(err) != box.Invalid {
				t.Errorf("garbage: %v, want kind invalid", err)
			}
		})
	}
}

// A helper with a whole range of ids keeps the owners of the image, as seen
// from inside.
func TestProcessWithIDRange(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to map ids without newuidmap")
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1, HostID: 200_000, Size: 999}}
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true}
	probe := exec.Command("/bin/true")
	probe.SysProcAttr = attr
	if err := probe.Run(); err != nil {
		t.Skipf("no user namespaces here: %v", err)
	}
	p := imagetest.Process(func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "/proc/self/exe")
		cmd.Env = []string{"HUTCH_TEST_LAYER_HELPER=1"}
		cmd.SysProcAttr = attr
		return cmd
	})
	s := newSite(t)
	cap := owner(5, 6, mode(0o4755, file("d/f", "x")))
	cap.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}
	j := s.job(t, tarOf(t, owner(100, 200, mode(0o700, dir("d/"))), cap, owner(5000, 0, mode(0o4755, file("far", "x")))),
		tarOf(t, file("d/later", "y"), file("d/.wh.gone", "")))
	j.Owners, j.Confine = layer.KeepOwners, true
	res, err := p.Unpack(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"d": "200099:200199 700", "d/f": "200004:200005 4755", "d/later": "0:0 644",
		// Whoever 5000 is, it is not root: no setuid.
		"far": "0:0 755"} {
		var st unix.Stat_t
		unix.Lstat(filepath.Join(s.dest, path), &st)
		if got := fmt.Sprintf("%d:%d %o", st.Uid, st.Gid, st.Mode&0o7777); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	if res.Owners != 1 || res.Xattrs != 0 {
		t.Errorf("%d owners and %d attributes left out, want 1 and 0", res.Owners, res.Xattrs)
	}
	if err := p.Remove(t.Context(), s.dest); err != nil {
		t.Error(err)
	}
}
