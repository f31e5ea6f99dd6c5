package layer_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
)

// raw makes a tar header field by field, for what archive/tar does not write.
func raw(name string, typ byte, size string, mod func(h []byte)) []byte {
	h := make([]byte, 512)
	copy(h, name)
	copy(h[100:], "0000644\x00")
	copy(h[108:], "0000000\x00")
	copy(h[116:], "0000000\x00")
	copy(h[124:], size)
	copy(h[136:], "00000000000\x00")
	h[156] = typ
	copy(h[257:], "ustar\x0000")
	if mod != nil {
		mod(h)
	}
	copy(h[148:156], "        ")
	sum := 0
	for _, b := range h {
		sum += int(b)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return h
}

// base256 is a size beyond what octal digits hold.
func base256(n int64) string {
	b := make([]byte, 12)
	binary.BigEndian.PutUint64(b[4:], uint64(n))
	b[0] |= 0x80
	return string(b)
}

// pax makes a PAX header with the records, followed by header h.
func pax(h []byte, records ...string) []byte {
	var body strings.Builder
	for _, r := range records {
		for n := len(r) + 3; ; n++ {
			if line := fmt.Sprintf("%d %s\n", n, r); len(line) == n {
				body.WriteString(line)
				break
			}
		}
	}
	out := raw("pax", 'x', fmt.Sprintf("%011o\x00", body.Len()), nil)
	out = append(out, body.String()...)
	out = append(out, make([]byte, (512-len(out)%512)%512)...)
	return append(out, h...)
}

func end(b []byte) []byte { return append(b, make([]byte, 1024)...) }

// attack is a row of the table: what comes, and what becomes of it.
type attack struct {
	blobs  func(t testing.TB) [][]byte
	kind   box.Kind // "" when it is unpacked, confined
	want   tree     // then
	limits layer.Limits
	change func(j *layer.Job) // lies that are told outside of the layer
}

func one(entries ...entry) func(testing.TB) [][]byte {
	return func(t testing.TB) [][]byte { return [][]byte{tarOf(t, entries...)} }
}

func bytesOf(b ...[]byte) func(testing.TB) [][]byte {
	return func(testing.TB) [][]byte { return [][]byte{bytes.Join(b, nil)} }
}

// up leads from the destination of a site to its canary, and further.
const up = "../../../canary"

func attacks() map[string]attack {
	small := layer.Limits{LayerBytes: 1 << 20, TotalBytes: 2 << 20, Entries: 1000}
	deep := strings.Repeat("d/", 300) + "f"
	chain := func(n int) []entry {
		var es []entry
		for i := range n {
			es = append(es, sym(fmt.Sprintf("l%d", i), fmt.Sprintf("l%d", i+1)))
		}
		return append(es, dir(fmt.Sprintf("l%d/", n)), file("l0/x", "1"))
	}
	return map[string]attack{
		// Names.
		"dot-dot name":          {blobs: one(file(up+"/file", "evil")), want: tree{"canary": "dir", "canary/file": "evil"}},
		"dot-dot in the middle": {blobs: one(file("a/../../../../../../canary/file", "evil")), want: tree{"canary": "dir", "canary/file": "evil"}},
		"absolute name":         {blobs: one(file("/etc/passwd", "evil")), want: tree{"etc": "dir", "etc/passwd": "evil"}},
		"name of the root":      {blobs: one(file("..", "evil")), kind: box.Invalid},
		"root as a link":        {blobs: one(sym("/", "/etc")), kind: box.Invalid},
		"empty name":            {blobs: bytesOf(end(raw("", '0', "00000000000\x00", nil))), kind: box.Invalid},
		"zero byte in a name":   {blobs: bytesOf(end(pax(raw("x", '0', "00000000000\x00", nil), "path=a\x00b"))), kind: box.Invalid},
		"long component":        {blobs: one(file(strings.Repeat("x", 300), "1")), kind: box.Invalid},
		"long path":             {blobs: one(file(strings.Repeat("x/", 3000)+"f", "1")), kind: box.Invalid},
		"deep path":             {blobs: one(file(deep, "1")), kind: box.Exhausted},
		"deeper at every step":  {blobs: one(file(strings.Repeat("d/", 200)+"f", "1"), sym("s", strings.Repeat("d/", 200)), file("s/"+strings.Repeat("d/", 200)+"f", "2")), kind: box.Exhausted},
		"removing a deep tree":  {blobs: one(file(strings.Repeat("d/", 250)+"f", "1"), file("d", "2")), want: tree{"d": "2"}},
		"whiteout of dot-dot":   {blobs: one(file("a/.wh...", "")), kind: box.Invalid},
		"whiteout of dot":       {blobs: one(file("a/.wh..", "")), kind: box.Invalid},
		"whiteout of nothing":   {blobs: one(file(".wh.", "")), kind: box.Invalid},
		"whiteout by link": {blobs: func(t testing.TB) [][]byte {
			return [][]byte{tarOf(t, sym("up", up)), tarOf(t, file("up/.wh.file", ""), file("up/.wh..wh..opq", ""))}
		}, want: tree{"up": "-> " + up, "canary": "dir"}},
		"opaque at the root": {blobs: func(t testing.TB) [][]byte {
			return [][]byte{tarOf(t, sym("s", "/")), tarOf(t, file("s/../../.wh..wh..opq", ""))}
		}, want: tree{}},
		"whiteout of a link out": {blobs: func(t testing.TB) [][]byte { return [][]byte{tarOf(t, sym("up", up)), tarOf(t, file(".wh.up", ""))} }, want: tree{}},

		// Symbolic links.
		"write through a link to a directory": {blobs: one(sym("d", up), file("d/file", "evil")), want: tree{"d": "-> " + up, "canary": "dir", "canary/file": "evil"}},
		"write through an absolute link":      {blobs: one(sym("d", "/etc"), file("d/shadow", "evil")), want: tree{"d": "-> /etc", "etc": "dir", "etc/shadow": "evil"}},
		"write over a link to a file":         {blobs: one(sym("f", up+"/file"), file("f", "evil")), want: tree{"f": "evil"}},
		"make a directory over a link":        {blobs: one(sym("d", up), dir("d/"), file("d/file", "mine")), want: tree{"d": "dir", "d/file": "mine"}},
		"mode through a link":                 {blobs: one(sym("f", up+"/file"), mode(0o777, sym("f", up+"/file"))), want: tree{"f": "-> " + up + "/file"}},
		"link after link":                     {blobs: one(sym("a", ".."), sym("b", "a/.."), sym("c", "b/../.."), file("c/canary/file", "evil")), want: tree{"a": "-> ..", "b": "-> a/..", "c": "-> b/../..", "canary": "dir", "canary/file": "evil"}},
		"link swapped between layers": {blobs: func(t testing.TB) [][]byte {
			return [][]byte{tarOf(t, dir("d/"), file("d/x", "1")), tarOf(t, sym("d", up)), tarOf(t, file("d/file", "evil"))}
		}, want: tree{"d": "-> " + up, "canary": "dir", "canary/file": "evil"}},
		"directory swapped for a link and back": {blobs: one(dir("d/"), file("d/a", "1"), sym("d", up), dir("d/"), file("d/b", "2")), want: tree{"d": "dir", "d/b": "2"}},
		"the cache knows of the swap":           {blobs: one(dir("p/d/"), file("p/d/a", "1"), sym("p", up), file("p/d/file", "2")), want: tree{"p": "-> " + up, "canary": "dir", "canary/d": "dir", "canary/d/file": "2"}},
		"link to itself":                        {blobs: one(sym("l", "l"), file("l/x", "1")), kind: box.Invalid},
		"two links in a ring":                   {blobs: one(sym("a", "b"), sym("b", "a"), file("a/x", "1")), kind: box.Invalid},
		"a hundred links":                       {blobs: one(chain(100)...), kind: box.Invalid},
		"links that double":                     {blobs: one(sym("a", "b/../b"), sym("b", "c/../c"), sym("c", "d/../d"), sym("d", "e/../e"), sym("e", "f/../f"), sym("f", "g/../g"), sym("g", "h/../h"), dir("h/"), file("a/x", "1")), kind: box.Invalid},
		"through proc":                          {blobs: one(sym("p", "/proc/self/cwd"), file("p/x", "1"), sym("q", "/proc/self/root/../.."), file("q/y", "1")), want: tree{"p": "-> /proc/self/cwd", "q": "-> /proc/self/root/../..", "proc": "dir", "proc/self": "dir", "proc/self/cwd": "dir", "proc/self/cwd/x": "1", "proc/self/root": "dir", "proc/y": "1"}},
		"empty target":                          {blobs: bytesOf(end(raw("l", '2', "00000000000\x00", nil))), kind: box.Invalid},
		"file used as a directory":              {blobs: one(file("f", "1"), file("f/x", "2")), kind: box.Invalid},

		// Hard links.
		"hard link out":              {blobs: one(hard("h", up+"/file")), kind: box.Invalid},
		"hard link out, absolute":    {blobs: one(hard("h", "/etc/passwd")), kind: box.Invalid},
		"hard link through a link":   {blobs: one(sym("d", up), hard("h", "d/file")), kind: box.Invalid},
		"hard link to a link out":    {blobs: one(sym("s", up+"/file"), hard("h", "s"), file("h", "evil")), want: tree{"s": "-> " + up + "/file", "h": "evil"}},
		"write through a hard link":  {blobs: one(sym("s", up+"/file"), hard("h", "s"), mode(0o777, file("s", "evil"))), want: tree{"s": "evil", "h": "-> " + up + "/file"}},
		"hard link to a directory":   {blobs: one(dir("d/"), hard("h", "d")), kind: box.Invalid},
		"hard link to the root":      {blobs: one(hard("h", "/")), kind: box.Invalid},
		"hard link to what it hides": {blobs: one(file("d/f", "1"), hard("d", "d/f")), kind: box.Invalid},

		// Devices.
		"device nodes":             {blobs: one(node("sda", tar.TypeBlock), node("mem", tar.TypeChar), file("ok", "1")), want: tree{"ok": "1"}},
		"device behind a link":     {blobs: one(sym("d", up), node("d/file", tar.TypeChar)), want: tree{"d": "-> " + up, "canary": "dir"}},
		"write to a left-out node": {blobs: one(node("null", tar.TypeChar), file("null", "1")), want: tree{"null": "1"}},
		"overlay whiteout device":  {blobs: one(entry{tar.Header{Name: "gone", Typeflag: tar.TypeChar}, ""}), want: tree{}},

		// Sizes.
		"gzip bomb": {blobs: func(t testing.TB) [][]byte {
			return [][]byte{gz(t, tarOf(t, file("f", strings.Repeat("\x00", 4<<20))))}
		}, kind: box.Exhausted, limits: small},
		"zstd bomb": {blobs: func(t testing.TB) [][]byte {
			return [][]byte{zst(t, tarOf(t, file("f", strings.Repeat("\x00", 4<<20))))}
		}, kind: box.Exhausted, limits: small},
		"bomb after the end": {blobs: func(t testing.TB) [][]byte {
			return [][]byte{gz(t, append(tarOf(t, file("f", "x")), make([]byte, 4<<20)...))}
		}, kind: box.Exhausted, limits: small},
		"many layers": {blobs: func(t testing.TB) [][]byte {
			b := gz(t, tarOf(t, file("f", strings.Repeat("x", 900_000))))
			return [][]byte{b, b, b}
		}, kind: box.Exhausted, limits: small},
		"many entries": {blobs: func(t testing.TB) [][]byte {
			var es []entry
			for i := range 1001 {
				es = append(es, file(fmt.Sprint(i), ""))
			}
			return [][]byte{tarOf(t, es...)}
		}, kind: box.Exhausted, limits: small},
		"a file of a tebibyte":    {blobs: bytesOf(raw("f", '0', base256(1<<40), nil), []byte("short")), kind: box.Exhausted},
		"a file of 8 exbibytes":   {blobs: bytesOf(raw("f", '0', base256(1<<63-1), nil), []byte("short")), kind: box.Exhausted},
		"a file of negative size": {blobs: bytesOf(raw("f", '0', "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", nil)), kind: box.Invalid},
		"sparse, old GNU, 1 TiB": {blobs: bytesOf(end(raw("f", 'S', "00000000000\x00", func(h []byte) {
			copy(h[257:], "ustar  \x00")
			copy(h[386:], base256(1<<40)) // where its only, empty part is
			copy(h[398:], "00000000000\x00")
			copy(h[483:], base256(1<<40)) // real size
		}))), kind: box.Exhausted},
		"sparse, PAX 0.1, 1 TiB": {blobs: bytesOf(end(pax(raw("f", '0', "00000000000\x00", nil), "GNU.sparse.size=1099511627776", "GNU.sparse.numblocks=1", "GNU.sparse.map=1099511627776,0"))), kind: box.Exhausted},
		"sparse, many claims": {blobs: func(testing.TB) [][]byte {
			var b []byte
			for i := range 40 {
				b = append(b, pax(raw(fmt.Sprint(i), '0', "00000000000\x00", nil), "GNU.sparse.size=100000", "GNU.sparse.numblocks=1", "GNU.sparse.map=100000,0")...)
			}
			return [][]byte{end(b)}
		}, kind: box.Exhausted, limits: small},
		"PAX header of 8 MiB":     {blobs: bytesOf(raw("x", 'x', fmt.Sprintf("%011o\x00", 8<<20), nil), make([]byte, 8<<20)), kind: box.Invalid},
		"GNU name of 8 MiB":       {blobs: bytesOf(raw("x", 'L', fmt.Sprintf("%011o\x00", 8<<20), nil), make([]byte, 8<<20)), kind: box.Invalid},
		"PAX size that overrules": {blobs: bytesOf(end(pax(raw("f", '0', "00000000000\x00", nil), "size=1099511627776"))), kind: box.Exhausted},
		"zstd window of 2 GiB":    {blobs: bytesOf([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0, 0}), kind: box.Invalid},
		"cut off":                 {blobs: func(t testing.TB) [][]byte { return [][]byte{tarOf(t, file("f", strings.Repeat("x", 9000)))[:5000]} }, kind: box.Invalid},
		"cut off gzip": {blobs: func(t testing.TB) [][]byte {
			b := gz(t, tarOf(t, file("f", strings.Repeat("x", 9000))))
			return [][]byte{b[:len(b)-9]}
		}, kind: box.Invalid},
		"garbage":        {blobs: bytesOf(bytes.Repeat([]byte("garbage "), 1000)), kind: box.Invalid},
		"wrong checksum": {blobs: func(t testing.TB) [][]byte { b := tarOf(t, file("f", "x")); b[148] ^= 1; return [][]byte{b} }, kind: box.Invalid},
		"unknown type":   {blobs: bytesOf(end(raw("f", 'V', "00000000000\x00", nil))), kind: box.Invalid},
		"bzip2":          {blobs: bytesOf([]byte("BZh91AY&SY")), kind: box.Invalid},

		// Lies about the layer.
		"another DiffID": {blobs: one(file("f", "x")), change: func(j *layer.Job) { j.Layers[0].DiffID = digest([]byte("other")) }, kind: box.Invalid},
		"another size":   {blobs: one(file("f", "x")), change: func(j *layer.Job) { j.Layers[0].Size-- }, kind: box.Internal},
		"blob that is a link": {blobs: one(file("f", "x")), change: func(j *layer.Job) {
			l := j.Layers[0].Path + ".link"
			os.Symlink(j.Layers[0].Path, l)
			j.Layers[0].Path = l
		}, kind: box.Internal},
		"blob that is a fifo": {blobs: one(file("f", "x")), change: func(j *layer.Job) { j.Layers[0].Path = "/dev/null" }, kind: box.Internal},
		"a thousand layers": {blobs: one(file("f", "x")), change: func(j *layer.Job) {
			for range 1000 {
				j.Layers = append(j.Layers, j.Layers[0])
			}
		}, kind: box.Exhausted},
		"owners of -1":         {blobs: one(owner(-1, -1, file("f", "x"))), kind: box.Invalid},
		"owners that are huge": {blobs: one(owner(1<<32-1, 0, file("f", "x"))), kind: box.Invalid},
		"time before all time": {blobs: bytesOf(end(raw("f", '0', "00000000000\x00", func(h []byte) { copy(h[136:], "\xff\xff\xff\xff\x80\x00\x00\x00\x00\x00\x00\x00") }))), want: tree{"f": ""}},
	}
}

func TestHostileLayers(t *testing.T) {
	for name, a := range attacks() {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			j := s.job(t, a.blobs(t)...)
			j.Limits = a.limits
			if a.change != nil {
				a.change(&j)
			}
			start := time.Now()
			_, err := layer.Unpack(t.Context(), j)
			if got := box.KindOf(err); got != a.kind {
				t.Errorf("kind %q (%v), want %q", got, err, a.kind)
			}
			want := a.want
			if err != nil {
				want = tree{} // a failed unpacking leaves nothing
				if strings.ContainsAny(err.Error(), "\n\x00") {
					t.Errorf("the error is not one line: %q", err)
				}
			}
			if diff := cmp.Diff(want, list(t, s.dest)); diff != "" {
				t.Errorf("tree (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(s.canary, s.outside(t)); diff != "" {
				t.Errorf("outside (-before +after):\n%s", diff)
			}
			if d := time.Since(start); d > 30*time.Second {
				t.Errorf("took %v", d)
			}
		})
	}
}

// A bomb is noticed while it is read, not afterwards.
func TestBombIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("compresses 2 GiB")
	}
	var blob bytes.Buffer
	w, err := gzip.NewWriterLevel(&blob, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(raw("f", '0', base256(1<<31), nil))
	if _, err := io.CopyN(w, zeros{}, 1<<31); err != nil {
		t.Fatal(err)
	}
	w.Close()
	s := newSite(t)
	j := s.job(t)
	p := filepath.Join(t.TempDir(), "bomb")
	if err := os.WriteFile(p, blob.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	j.Layers = []layer.Blob{{Path: p, Size: int64(blob.Len())}}
	j.Limits = layer.Limits{LayerBytes: 1 << 30}
	if _, err := layer.Unpack(t.Context(), j); box.KindOf(err) != box.Exhausted {
		t.Errorf("got %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestUnpackCancelled(t *testing.T) {
	s := newSite(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := layer.Unpack(ctx, s.job(t, tarOf(t, file("f", "x"))))
	if box.KindOf(err) != box.Canceled {
		t.Errorf("got %v", err)
	}
	if got := list(t, s.dest); len(got) != 0 {
		t.Errorf("left %v", got)
	}
}

func TestUnpackIntoFullDirectory(t *testing.T) {
	s := newSite(t)
	if err := os.WriteFile(filepath.Join(s.dest, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := layer.Unpack(t.Context(), s.job(t, tarOf(t, file("f", "x")))); err == nil {
		t.Error("a directory that is not empty was accepted")
	}
	if got := list(t, s.dest); len(got) != 1 {
		t.Errorf("it has %v, want what was in it", got)
	}
}

// FuzzUnpack feeds two layers to Unpack. Whatever they are, nothing outside of
// the destination changes, and when it fails nothing stays in it.
func FuzzUnpack(f *testing.F) {
	for _, a := range attacks() {
		blobs := a.blobs(f)
		if len(blobs[0]) > 64<<10 {
			continue
		}
		second := []byte{}
		if len(blobs) > 1 && len(blobs[1]) < 64<<10 {
			second = blobs[1]
		}
		f.Add(blobs[0], second)
	}
	f.Add(zst(f, tarOf(f, file("a", "x"))), gz(f, tarOf(f, file(".wh.a", ""))))
	s := newSite(f)
	work := f.TempDir()
	n := 0
	f.Fuzz(func(t *testing.T, a, b []byte) {
		n++
		j := layer.Job{Dest: filepath.Join(s.dest, fmt.Sprint(n)), Limits: layer.Limits{LayerBytes: 1 << 20, TotalBytes: 2 << 20, Entries: 2000}}
		if err := os.Mkdir(j.Dest, 0o700); err != nil {
			t.Fatal(err)
		}
		defer layer.RemoveAll(j.Dest)
		for i, data := range [][]byte{a, b} {
			if i == 1 && len(b) == 0 {
				break
			}
			p := filepath.Join(work, fmt.Sprint(i))
			if err := os.WriteFile(p, data, 0o600); err != nil {
				t.Fatal(err)
			}
			// The DiffID must be right, or nothing would ever succeed.
			diff := "sha256:none"
			if z, err := layer.Decompress(bytes.NewReader(data)); err == nil {
				if plain, err := io.ReadAll(io.LimitReader(z, 2<<20)); err == nil {
					diff = digest(plain)
				}
				z.Close()
			}
			j.Layers = append(j.Layers, layer.Blob{Path: p, DiffID: diff, Size: int64(len(data))})
		}
		res, err := layer.Unpack(t.Context(), j)
		if diff := cmp.Diff(s.canary, s.outside(t)); diff != "" {
			t.Fatalf("outside (-before +after):\n%s", diff)
		}
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("the error is not one line: %q", err)
			}
			if left, rerr := os.ReadDir(j.Dest); rerr != nil || len(left) != 0 {
				t.Errorf("after %v: %v, %v", err, left, rerr)
			}
			if box.KindOf(err) == box.Internal {
				t.Errorf("a fault of ours: %v", err)
			}
		} else if res.Bytes > 2<<20 {
			t.Errorf("%d bytes written", res.Bytes)
		}
		if err := layer.RemoveAll(j.Dest); err != nil {
			t.Errorf("cannot be removed: %v", err)
		}
	})
}
