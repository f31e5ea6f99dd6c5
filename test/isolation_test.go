package test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/box"
)

// mask hides a needle from a search through the searcher's own arguments.
func mask(s string) string { return s[:2] + "%" + s[2:] }

// Nothing of the host is seen from a box: a process, a variable, a file, a
// socket, the host's name.
func TestHostUnseen(t *testing.T) {
	everyEngine(t, func(t *testing.T, h *home) {
		// Planted in the environment of this process and of the hutch command,
		// which starts the keeper.
		t.Setenv("CANARY_VARIABLE", "zqcanaryvalue")
		dir, err := os.MkdirTemp("", "zqcanaryfolder")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		if err := os.WriteFile(filepath.Join(dir, "zqcanaryfile"), []byte("zqcanarycontent"), 0o644); err != nil {
			t.Fatal(err)
		}
		// Names of this run alone: a run that was killed leaves its files behind.
		for _, addr := range []string{fmt.Sprintf("@zqcanarysocket%d", os.Getpid()), filepath.Join(dir, "zqcanarysocket")} {
			l, err := net.Listen("unix", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		}
		// A process whose arguments have a canary: this test's guest program.
		canary := h.other(t, "program-wait", "zqcanaryprocess")
		if err := canary.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = canary.Process.Kill(); _ = canary.Wait() }()

		// A volume beside other files: only itself is seen.
		shown := filepath.Join(dir, "shown")
		if err := os.WriteFile(shown, []byte("shown\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		create := h.command(t, "create", "--name", "b", "--idle", "-v", guestProgram(t)+":/guest:ro", "-v", shown+":/shown")
		create.Env = append(create.Env, "CANARY_VARIABLE=zqcanaryvalue")
		if r := finish(t, create); r.code != 0 {
			t.Fatal(r)
		}
		needles := []string{mask("zqcanary"), mask("CANARY_VARIABLE"), mask(filepath.Base(h.dir)), mask("HUTCH_HOME")}
		if name, err := os.Hostname(); err == nil && len(name) > 4 {
			needles = append(needles, mask(name))
		}
		// One more that is in the box: the search does find what is there.
		h.ok(t, "exec", "b", "sh", "-c", "echo zq''planted > /root/planted")
		exec := h.command(t, append([]string{"exec", "b", "/guest", "search", mask("zqplanted")}, needles...)...)
		exec.Env = append(exec.Env, "CANARY_VARIABLE=zqcanaryvalue")
		r := finish(t, exec)
		found, planted := strings.Count(r.stdout, "found "), strings.Contains(r.stdout, "found "+mask("zqplanted")+" in /root/planted\n")
		if r.code != 0 || found != 1 || !planted || !strings.Contains(r.stdout, "looked at") {
			t.Errorf("the search in the box: %v", r)
		}
		if out := h.ok(t, "exec", "b", "hostname"); out != "b" {
			t.Errorf("the box's host name is %q", out)
		}
		// All processes in the box are the agent's; threads of a kernel of its
		// own have no command line.
		if out := h.ok(t, "exec", "b", "sh", "-c", "cd /proc; cat [0-9]*/cmdline | tr '\\0' '\\n' | grep -c ."); len(out) > 1 {
			t.Errorf("a fresh box shows %s processes", out)
		}
	})
}

// Root in a box can write neither a read-only volume nor the image, nor see
// the files of another box.
func TestReadOnly(t *testing.T) {
	everyEngine(t, func(t *testing.T, h *home) {
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		single := filepath.Join(t.TempDir(), "single")
		for _, path := range []string{file, single} {
			if err := os.WriteFile(path, []byte("original\n"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		rt := h.open(t)
		a := h.create(t, rt, box.Spec{Name: "a", Volumes: []box.Volume{guest(t),
			{Host: dir, Target: "/ro", ReadOnly: true}, {Host: single, Target: "/single", ReadOnly: true},
			{Name: "named", Target: "/named", ReadOnly: true},
		}})
		before := tree(t, dir)
		for _, args := range [][]string{{"/ro", "/ro/file"}, {"/single", "/single"}} {
			res, err := a.Exec(t.Context(), "/guest", "breakout", args[0], args[1])
			out := string(res.Stdout)
			if h.engine == "vm" {
				// The disks and the memory that its kernel shows are the machine's.
				out = strings.ReplaceAll(out, "worked: open /dev/", "its own: /dev/")
			}
			if err != nil || strings.Contains(out, "worked:") || !strings.Contains(string(res.Stdout), "refused: write:") {
				t.Errorf("breakout %q: %v, %v\n%s%s", args, res.ExitStatus, err, res.Stdout, res.Stderr)
			}
		}
		if res, err := a.Exec(t.Context(), "touch", "/named/x"); err != nil || res.Success() {
			t.Errorf("a file was made in a read-only named volume: %v, %v", res.ExitStatus, err)
		}
		// The library's own file calls are no way round.
		if err := a.WriteFile(t.Context(), "/ro/file", []byte("x"), 0o644); err == nil {
			t.Error("WriteFile wrote to a read-only volume")
		}
		if after := tree(t, dir); after != before {
			t.Errorf("the volume was\n%s\nand is\n%s", before, after)
		}
		if data, err := os.ReadFile(single); err != nil || string(data) != "original\n" {
			t.Errorf("the single file: %q, %v", data, err)
		}

		// The image's files, written in one box, are as ever in another and on
		// the host.
		images := filepath.Join(h.dir, "images", "trees")
		imageBefore := ""
		if root() { // others cannot read all of it
			imageBefore = tree(t, images)
		}
		sh(t, a, `echo hacked > /etc/passwd; rm /bin/ls; mkdir /etc/new; chmod 0 /bin/cat; echo secret-of-a > /root/secret; mv /etc/hosts /etc/hosts.old || true`)
		b := h.create(t, rt, box.Spec{Name: "b"})
		if out := sh(t, b, `grep -c hacked /etc/passwd; ls -d /etc/new 2>/dev/null; cat /root/secret 2>/dev/null; ls /bin/ls`); out != "0\n/bin/ls" {
			t.Errorf("box b sees what box a did: %q", out)
		}
		if root() {
			if after := tree(t, images); after != imageBefore {
				t.Errorf("the image's tree was changed:\n%s\n%s", imageBefore, after)
			}
		}
		// And box a still has its changes.
		if data, err := a.ReadFile(t.Context(), "/etc/passwd"); err != nil || string(data) != "hacked\n" {
			t.Errorf("box a lost its own change: %q, %v", data, err)
		}
	})
}

// tree describes a folder: names, modes, sizes, times.
func tree(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v", path, fi.Mode())
		if !d.IsDir() {
			fmt.Fprintf(&b, " %d", fi.Size())
		}
		fmt.Fprintf(&b, " %d\n", fi.ModTime().UnixNano())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Volumes keep their content whatever happens to the box, and lead nowhere
// else.
func TestVolumes(t *testing.T) {
	everyEngine(t, func(t *testing.T, h *home) {
		dir, outside := t.TempDir(), t.TempDir()
		write := func(path, content string) {
			t.Helper()
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		write(filepath.Join(outside, "secret"), "outside")
		write(filepath.Join(dir, "deep/down/file"), "precious")
		for name, target := range map[string]string{
			"absolute": outside, "file": filepath.Join(outside, "secret"), "relative": "../" + filepath.Base(outside),
			"up": "../../../../../../../..", "proc": "/proc/1/root", "etc": "/etc/passwd",
		} {
			if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		single := filepath.Join(t.TempDir(), "single")
		write(single, "one")
		write(filepath.Join(filepath.Dir(single), "sibling"), "not for the box")

		args := []string{"create", "--name", "b", "--idle", "-v", dir + ":/v", "-v", single + ":/one/single", "-v", "kept:/kept"}
		// Twenty mounts, nested and beside each other, inner ones named first.
		var more, mounts []string
		readOnly := func(n int) bool { return n%3 == 0 && n%4 != 2 }
		for n := range 17 {
			path := filepath.Join(t.TempDir(), "m")
			write(filepath.Join(path, "number"), fmt.Sprint(n))
			more = append(more, path)
			at := fmt.Sprintf("/m%d", n)
			if n%4 == 3 {
				at = fmt.Sprintf("/m%d/nested/deep", n-1)
			}
			mount := path + ":" + at
			if readOnly(n) {
				mount += ":ro"
			}
			mounts = append([]string{"-v", mount}, mounts...)
		}
		h.ok(t, append(args, mounts...)...)
		for n := range 17 {
			at := fmt.Sprintf("/m%d", n)
			if n%4 == 3 {
				at = fmt.Sprintf("/m%d/nested/deep", n-1)
			}
			out := h.ok(t, "exec", "b", "sh", "-c", fmt.Sprintf("cat %s/number; echo; echo x > %s/new 2>/dev/null && echo wrote", at, at)+" || true")
			want := fmt.Sprint(n)
			if !readOnly(n) {
				want += "\nwrote"
			}
			if out != want && out != want+"\n" {
				t.Errorf("mount %d: %q; want %q", n, out, want)
			}
			_, err := os.Stat(filepath.Join(more[n], "new"))
			if wrote := err == nil; wrote == readOnly(n) {
				t.Errorf("mount %d: a file was made on the host: %v", n, wrote)
			}
		}
		// Links in a volume are followed in the box.
		out := h.ok(t, "exec", "b", "sh", "-c", `
cat /v/file 2>/dev/null && echo LEAK
ls /v/absolute/ 2>/dev/null && echo LEAK
ls /v/relative/ 2>/dev/null && echo LEAK
ln -s / /v/x && ls -d /v/x/kept /v/up/kept
ls /v/x/`+filepath.Base(os.TempDir())+`/`+filepath.Base(outside)+` 2>/dev/null && echo LEAK
cat /v/etc | grep -c '^root:'
ls /one
cat /v/../v/deep/down/file`)
		if want := "/v/up/kept\n/v/x/kept\n1\nsingle\nprecious"; out != want {
			t.Errorf("links in a volume: %q; want %q", out, want)
		}
		// Reading and writing through links by the file calls stays in the box
		// too.
		if r := h.hutch(t, "cp", "b:/v/file", filepath.Join(t.TempDir(), "out")); r.code != 0 {
			// The link itself is copied; followed, it leads nowhere.
			t.Errorf("cp of a link: %v", r)
		}
		if r := h.hutch(t, "cp", "-L", "b:/v/file", filepath.Join(t.TempDir(), "out")); r.code == 0 {
			t.Errorf("cp -L followed a link out of the box: %v", r)
		}
		// What the box writes is on the host.
		h.ok(t, "exec", "b", "sh", "-c", "echo from-box > /v/new; echo two > /one/single; echo named > /kept/file; mkdir -p /v/a/b; rm -r /v/x")
		// And it stays when the box stops, dies, and is removed.
		check := func(when string) {
			t.Helper()
			for path, want := range map[string]string{
				filepath.Join(dir, "deep/down/file"): "precious", filepath.Join(dir, "new"): "from-box\n",
				single: "two\n", filepath.Join(filepath.Dir(single), "sibling"): "not for the box",
				filepath.Join(outside, "secret"): "outside", filepath.Join(h.dir, "volumes/kept/file"): "named\n",
				filepath.Join(more[1], "number"): "1", filepath.Join(more[3], "number"): "3",
			} {
				if data, err := os.ReadFile(path); err != nil || string(data) != want {
					t.Errorf("%s, %s has %q, %v; want %q", when, path, data, err, want)
				}
			}
		}
		check("while the box runs")
		h.ok(t, "stop", "b")
		check("after stop")
		h.ok(t, "start", "b")
		h.ok(t, "kill", "b")
		check("after kill")
		h.ok(t, "start", "b")
		h.ok(t, "rm", "-f", "b")
		check("after rm -f")
		if out := h.ok(t, "run", "--rm", "-v", "kept:/k:ro", "-v", dir+":/v", "--", "sh", "-c", "cat /k/file /v/new"); out != "named\nfrom-box" {
			t.Errorf("the next box sees %q", out)
		}
		check("after run --rm")
	})
}
