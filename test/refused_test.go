package test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// What is refused is refused in one line with a remedy, and the home is as it
// was.
func TestBadInput(t *testing.T) {
	everyone(t, func(t *testing.T) {
		h := newHome(t)
		h.ok(t, "create", "--name", "taken", "--idle")
		fifo := filepath.Join(t.TempDir(), "missing")
		before := h.ok(t, "ps", "-a", "--json")
		files := h.list(t)
		for _, c := range []struct {
			args string // separated by |
			code int
			says string
		}{
			{"run|--memory|lots|--|true", 125, "--memory"},
			{"run|--memory|1k|--|true", 125, "emory"},
			{"run|--cpus|-1|--|true", 125, "cpus"},
			{"run|--cpus|99999|--|true", 125, "CPUs"},
			{"run|--pids|-5|--|true", 125, "ids"},
			{"run|--disk|1|--|true", 125, "isk"},
			{"run|-v|relative|--|true", 125, "volume"},
			{"run|-v|" + fifo + ":/x|--|true", 125, "missing"},
			{"run|-v|/tmp:relative|--|true", 125, "relative"},
			{"run|-v|/tmp:/|--|true", 125, "/"},
			{"run|-v|/tmp:/a|-v|/tmp:/a|--|true", 125, "/a"},
			{"run|-v|/tmp:/a:ro|-v|/tmp:/a/nosuch/folder|--|true", 125, "read-only"},
			{"run|-v|/etc/passwd:/a|-v|/tmp:/a/b|--|true", 125, "file"},
			{"run|-v|/tmp:/a:rx|--|true", 125, "rx"},
			{"run|-e|=x|--|true", 125, "="},
			{"run|--env-file|" + fifo + "|--|true", 125, "missing"},
			{"run|--name|bad/name|--|true", 125, "name"},
			{"run|--name|taken|--|true", 125, "taken"},
			{"run|--engine|nosuch|--|true", 125, "engine"},
			{"run|--engine|vm|--|true", 125, "vm"},
			{"run|--restart|sometimes|--|true", 125, "restart"},
			{"run|--pull|never|no/such:image|true", 125, "no/such"},
			{"run|UPPER/case|true", 125, "UPPER"},
			{"run|-u|nosuchuser|--|true", 125, "nosuchuser"},
			{"run|--platform|plan9/mips|--|true", 125, "plan9"},
			{"run|--nosuchflag|--|true", 125, "nosuchflag"},
			{"run|--rm|--restart|always|--|true", 125, "restart"},
			{"run|--timeout|soon|--|true", 125, "timeout"},
			{"run|--hostname|bad_host name|--|true", 125, "ostname"},
			{"exec|nosuchbox|true", 125, "nosuchbox"},
			{"cp|nosuchbox:/x|.", 1, "nosuchbox"},
			{"cp|a|b", 1, "box"},
			{"rm|taken|nosuchbox", 1, "nosuchbox"},
			{"image|load|-i|/etc/passwd", 1, "archive"},
			{"image|import|/etc/passwd|x", 1, "archive"},
			{"nosuchcommand", 1, "nosuchcommand"},
			{"stop|--time|x|taken", 1, "time"},
			{"rename|taken|bad/name", 1, "name"},
			{"logs|--tail|x|taken", 1, "tail"},
		} {
			if strings.HasPrefix(c.args, "rm|") {
				continue // below: it does what it can
			}
			args := strings.Split(c.args, "|")
			r := h.hutch(t, args...)
			if args[0] != "run" && args[0] != "exec" {
				// Hutch's own failures: usage is 2, all else 1 or 125.
				if r.code == 2 || r.code == 125 || r.code == 1 {
					c.code = r.code
				}
			} else if r.code == 2 {
				c.code = 2
			}
			if r.code != c.code || r.stdout != "" || !strings.Contains(r.stderr, c.says) || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("hutch %q: got %v; want status %d and one line about %q", args, r, c.code, c.says)
			}
		}
		if after := h.ok(t, "ps", "-a", "--json"); after != before {
			t.Errorf("the boxes were %s and are %s", before, after)
		}
		if after := h.list(t); after != files {
			t.Errorf("the home was\n%sand is\n%s", files, after)
		}
	})
}

// list names the files of the home that something could be left in.
func (h *home) list(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	for _, pattern := range []string{"boxes/*", "names/*", "tmp/*", "volumes/*", "images/*", "images/*/*"} {
		found, err := filepath.Glob(filepath.Join(h.dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			fmt.Fprintln(&b, strings.TrimPrefix(path, h.dir))
		}
	}
	return b.String()
}

// Images of strangers cannot reach out of their folder: what is hostile in
// them is refused or confined, and nothing else on the host changes.
func TestHostileImages(t *testing.T) {
	everyone(t, func(t *testing.T) {
		h := newHome(t)
		h.ok(t, "image", "ls")
		target := t.TempDir() // absolute names point here
		victim := filepath.Join(target, "victim")
		if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := tree(t, target)
		up := strings.Repeat("../", 30) + strings.TrimPrefix(target, "/")
		dir := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755} }
		file := func(name string) tar.Header {
			return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: 5}
		}
		link := func(name, to string) tar.Header {
			return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}
		}
		hard := func(name, to string) tar.Header { return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to} }
		for name, layers := range map[string][][]tar.Header{
			"absolute":        {{file(target + "/absolute")}},
			"dots":            {{file(up + "/dots")}},
			"dots-inside":     {{dir("a"), file("a/../../../../../../../../../.." + target + "/inside")}},
			"link-then-write": {{link("out", target), file("out/written")}},
			"link-next-layer": {{link("out", target)}, {file("out/written"), file("out/victim")}},
			"link-replaced":   {{dir("etc"), link("etc/out", target)}, {dir("etc/out"), file("etc/out/victim")}},
			"up-link":         {{link("out", up)}, {file("out/victim")}},
			"hard-link":       {{hard("h", victim), file("h")}},
			"hard-link-dots":  {{hard("h", up+"/victim"), file("h")}},
			"hard-through":    {{link("out", target), hard("h", "out/victim")}, {file("h")}},
			"whiteout":        {{link("out", target)}, {{Typeflag: tar.TypeReg, Name: "out/.wh.victim", Mode: 0o644}}},
			"whiteout-dots":   {{{Typeflag: tar.TypeReg, Name: up + "/.wh.victim", Mode: 0o644}}},
			"whiteout-parent": {{{Typeflag: tar.TypeReg, Name: ".wh...", Mode: 0o644}}},
			"opaque":          {{link("out", target)}, {{Typeflag: tar.TypeReg, Name: "out/.wh..wh..opq", Mode: 0o644}}},
			"chmod-through":   {{link("out", target)}, {{Typeflag: tar.TypeDir, Name: "out", Mode: 0o7777}}},
			"device":          {{{Typeflag: tar.TypeBlock, Name: "disk", Devmajor: 7, Devminor: 0, Mode: 0o666}, {Typeflag: tar.TypeChar, Name: "mem", Devmajor: 1, Devminor: 1, Mode: 0o666}}},
			"sparse":          {{{Typeflag: tar.TypeReg, Name: "huge", Size: 1 << 40, Mode: 0o644}}},
			"root-replaced":   {{link(".", target), file("victim")}},
			"agent-replaced":  {{link(".hutch", target)}, {file(".hutch/agent")}},
			"deep":            {{dir(strings.Repeat("d/", 3000))}},
			"mount-points":    {{link("proc", target), link("sys", target), link("dev", target), link("tmp", target)}},
			"volume-through":  {{link("v", target)}},
		} {
			archive := dockerArchive(t, name, layers)
			load := h.command(t, "image", "load")
			load.Stdin = bytes.NewReader(archive)
			r := finish(t, load)
			if r.code != 0 {
				if strings.Count(strings.TrimSpace(r.stderr), "\n") != 0 {
					t.Errorf("%s is refused in more than a line: %s", name, r.stderr)
				}
				continue
			}
			// It was taken: then a box of it stays in itself.
			args := []string{"run", "--rm", "-v", guestProgram(t) + ":/guest:ro"}
			if name == "volume-through" {
				args = append(args, "-v", "data:/v/data")
			}
			h.hutch(t, append(args, "test/"+name, "/guest", "write", victim)...)
		}
		if after := tree(t, target); after != before {
			t.Errorf("the host was\n%sand is\n%s", before, after)
		}
		if data, err := os.ReadFile(victim); err != nil || string(data) != "untouched" {
			t.Errorf("the victim: %q, %v", data, err)
		}
	})
}

// A small archive that unpacks to very much is given up early.
func TestGzipBomb(t *testing.T) {
	everyone(t, func(t *testing.T) {
		h := newHome(t)
		var layer bytes.Buffer
		zw := gzip.NewWriter(&layer)
		tw := tar.NewWriter(zw)
		// 64 GiB of zeroes would be 64 MiB compressed; the header lies about
		// what follows, and what follows is large enough to show it is bounded.
		if err := tw.WriteHeader(&tar.Header{Name: "zeroes", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1 << 36}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(tw, zeroes{}, 256<<20); err != nil {
			t.Fatal(err)
		}
		if err := zw.Close(); err != nil {
			t.Fatal(err)
		}
		load := h.command(t, "image", "load")
		load.Stdin = bytes.NewReader(archiveOf(t, "bomb", [][]byte{layer.Bytes()}))
		r := finish(t, load)
		run := result{}
		if r.code == 0 {
			run = h.hutch(t, "run", "--rm", "test/bomb", "true")
		}
		if r.code == 0 && run.code == 0 {
			t.Errorf("a layer whose size is a lie was taken: %v, %v", r, run)
		}
		// Nothing of it is kept beside the image's blobs.
		if size := du(t, filepath.Join(h.dir, "images", "trees")) + du(t, filepath.Join(h.dir, "tmp")); size > 64<<20 {
			t.Errorf("%d MiB of a broken image are left", size>>20)
		}
	})
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func du(t testing.TB, dir string) int64 {
	t.Helper()
	var sum int64
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if fi, err := d.Info(); err == nil {
				sum += fi.Size()
			}
		}
		return nil
	})
	return sum
}

// dockerArchive is an archive of "docker save" whose layers have these
// entries.
func dockerArchive(t testing.TB, name string, layers [][]tar.Header) []byte {
	t.Helper()
	var raw [][]byte
	for _, headers := range layers {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		for _, hd := range headers {
			hd.ModTime = time.Unix(1, 0)
			if err := tw.WriteHeader(&hd); err != nil {
				t.Fatal(err)
			}
			if hd.Size > 0 && hd.Size < 1<<20 {
				if _, err := tw.Write(bytes.Repeat([]byte("x"), int(hd.Size))); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = tw.Flush() // Close would refuse what is cut short on purpose
		b.Write(make([]byte, 1024))
		raw = append(raw, b.Bytes())
	}
	return archiveOf(t, name, raw)
}

func archiveOf(t testing.TB, name string, layers [][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	add := func(name string, data []byte) {
		if err := tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	var names, diffs []string
	for n, l := range layers {
		// The ids of layers are of what they unpack to.
		plain := l
		if zr, err := gzip.NewReader(bytes.NewReader(l)); err == nil {
			sum := sha256.New()
			_, _ = io.Copy(sum, zr)
			diffs = append(diffs, fmt.Sprintf("sha256:%x", sum.Sum(nil)))
		} else {
			diffs = append(diffs, fmt.Sprintf("sha256:%x", sha256.Sum256(plain)))
		}
		layer := fmt.Sprintf("layer%d/layer.tar", n)
		names = append(names, layer)
		add(layer, l)
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{"Cmd": []string{"/guest"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	})
	if err != nil {
		t.Fatal(err)
	}
	add("config.json", config)
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{"test/" + name + ":latest"}, "Layers": names}})
	if err != nil {
		t.Fatal(err)
	}
	add("manifest.json", manifest)
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
