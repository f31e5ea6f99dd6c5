package test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/box"
)

// A thousand variables with anything in them arrive exactly, however they
// were given.
func TestEnvironment(t *testing.T) {
	everyone(t, func(t *testing.T) {
		h := newHome(t)
		var env, plain []string
		for n := range 1000 {
			value := fmt.Sprintf("%d \"quoted\" 'single' $HOME `id` \\ \t%s= é😀 \xff", n, strings.Repeat("v", 150))
			plain = append(plain, fmt.Sprintf("PLAIN_%d=%s", n, strings.ReplaceAll(value, "\xff", "")))
			env = append(env, fmt.Sprintf("VAR_%d=%s\n\nlast line\n", n, value))
		}
		rt := h.open(t)
		for what, get := range map[string]func() ([]byte, error){
			"of the box": func() ([]byte, error) {
				b := h.create(t, rt, box.Spec{Name: "spec", Env: env, Volumes: []box.Volume{guest(t)}})
				return b.Command(t.Context(), "/guest", "environ").Output()
			},
			"of a command": func() ([]byte, error) {
				b := h.create(t, rt, box.Spec{Name: "cmd", Volumes: []box.Volume{guest(t)}})
				cmd := b.Command(t.Context(), "/guest", "environ")
				cmd.Env = env
				return cmd.Output()
			},
			"with -e": func() ([]byte, error) {
				args := []string{"run", "--rm", "-v", guestProgram(t) + ":/guest:ro"}
				for _, kv := range env {
					args = append(args, "-e", kv)
				}
				cmd := h.command(t, append(args, "--", "/guest", "environ")...)
				r := finish(t, cmd)
				if r.code != 0 {
					return nil, fmt.Errorf("%v", r)
				}
				return []byte(r.stdout), nil
			},
		} {
			out, err := get()
			if err != nil {
				t.Errorf("variables %s: %v", what, err)
				continue
			}
			got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
			for _, kv := range env {
				if !slices.Contains(got, kv) {
					t.Errorf("variables %s: %q is not there", what, kv)
					break
				}
			}
			for _, kv := range got {
				name, _, _ := strings.Cut(kv, "=")
				if !strings.HasPrefix(name, "VAR_") && !slices.Contains([]string{"PATH", "HOME", "HOSTNAME", "USER", "LOGNAME", "SHELL", "PWD", "TERM"}, name) {
					t.Errorf("variables %s: there is also %q", what, kv)
				}
			}
		}
		file := filepath.Join(t.TempDir(), "env")
		if err := os.WriteFile(file, []byte("# a comment\n\n"+strings.Join(plain, "\n")+"\nCALLER\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{
			{"run", "--rm", "-v", guestProgram(t) + ":/guest:ro", "--env-file", file, "--", "/guest", "environ"},
			{"exec", "--env-file", file, "cmd", "/guest", "environ"},
		} {
			cmd := h.command(t, args...)
			cmd.Env = append(cmd.Env, "CALLER=passed on\nwith a line")
			r := finish(t, cmd)
			got := strings.Split(strings.TrimSuffix(r.stdout, "\x00"), "\x00")
			for _, kv := range append(plain, "CALLER=passed on\nwith a line") {
				if !slices.Contains(got, kv) {
					t.Errorf("%s --env-file: %q is not there; status %d, %s", args[0], kv, r.code, r.stderr)
					break
				}
			}
		}
	})
}

var oddNames = []string{
	"with space", `quote"d`, "sing'le", "new\nline", "-rf", "--", "\xff\xfe", "tab\t", "é😀", `back\slash`, "*", "$HOME", "`id`", " ", "a:b", "~",
	strings.Repeat("n", 255),
}

// cp takes odd names both ways, as names of files and of folders.
func TestCopyOddNames(t *testing.T) {
	everyone(t, func(t *testing.T) {
		h := newHome(t)
		h.box(t, box.Spec{Name: "b"})
		src := filepath.Join(t.TempDir(), "src")
		for _, name := range oddNames {
			dir := filepath.Join(src, name)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o640); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(name, filepath.Join(dir, "link")); err != nil {
				t.Fatal(err)
			}
		}
		// All of them at once, there and back.
		h.ok(t, "cp", src, "b:/all")
		back := filepath.Join(t.TempDir(), "back")
		h.ok(t, "cp", "b:/all", back)
		same := func(root string) {
			t.Helper()
			entries, err := os.ReadDir(root)
			if err != nil || len(entries) != len(oddNames) {
				t.Errorf("%s: %d entries, %v; want %d", root, len(entries), err, len(oddNames))
			}
			for _, name := range oddNames {
				data, err := os.ReadFile(filepath.Join(root, name, name))
				if err != nil || string(data) != name {
					t.Errorf("%q came back as %q, %v", name, data, err)
				}
				if target, err := os.Readlink(filepath.Join(root, name, "link")); err != nil || target != name {
					t.Errorf("the link to %q came back as %q, %v", name, target, err)
				}
				if fi, err := os.Stat(filepath.Join(root, name, name)); err == nil && fi.Mode() != 0o640 {
					t.Errorf("the mode of %q came back as %v", name, fi.Mode())
				}
			}
		}
		same(back)
		// Each by its name, and as the current folder's own.
		work := t.TempDir()
		for _, name := range oddNames {
			cmd := h.command(t, "cp", "./"+name, "b:/one by one/"+name)
			if name == "-rf" || name == "--" {
				cmd = h.command(t, "cp", "--", name, "b:/one by one/"+name)
			}
			cmd.Dir = filepath.Join(src, name)
			if r := finish(t, cmd); r.code != 0 {
				// The folder is made by the first.
				if !strings.Contains(r.stderr, "one by one") || len(oddNames) == 0 {
					t.Errorf("cp %q into the box: %v", name, r)
					continue
				}
				h.ok(t, "exec", "b", "mkdir", "/one by one")
				cmd := h.command(t, "cp", "./"+name, "b:/one by one/"+name)
				cmd.Dir = filepath.Join(src, name)
				if r := finish(t, cmd); r.code != 0 {
					t.Errorf("cp %q into the box: %v", name, r)
					continue
				}
			}
			cmd = h.command(t, "cp", "b:/one by one/"+name, "./x"+name[:min(len(name), 250)])
			cmd.Dir = work
			if r := finish(t, cmd); r.code != 0 {
				t.Errorf("cp %q out of the box: %v", name, r)
				continue
			}
			if data, err := os.ReadFile(filepath.Join(work, "x"+name[:min(len(name), 250)])); err != nil || string(data) != name {
				t.Errorf("cp %q: came back as %q, %v", name, data, err)
			}
		}
		// As a tar, and through commands' arguments.
		tarOut := h.command(t, "cp", "b:/all", "-")
		r := finish(t, tarOut)
		if r.code != 0 || len(r.stdout) < 1024 {
			t.Fatalf("cp to a tar: status %d, %s", r.code, r.stderr)
		}
		h.ok(t, "exec", "b", "mkdir", "/again")
		tarIn := h.command(t, "cp", "-", "b:/again")
		tarIn.Stdin = bytes.NewReader([]byte(r.stdout))
		if r := finish(t, tarIn); r.code != 0 {
			t.Fatalf("cp from a tar: %v", r)
		}
		out := filepath.Join(t.TempDir(), "out")
		h.ok(t, "cp", "b:/again/all", out)
		same(out)
		for _, name := range oddNames {
			if got := h.hutch(t, "exec", "b", "cat", "--", "/all/"+name+"/"+name); got.stdout != name {
				t.Errorf("exec cat %q: %v", name, got)
			}
		}
	})
}
