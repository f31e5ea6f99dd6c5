package image_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image"
	"github.com/hutch-sandbox/hutch/internal/image/imagetest"
)

// fakeDebstrap puts an mmdebstrap on PATH that is the given shell script.
func fakeDebstrap(t *testing.T, script string) {
	t.Helper()
	bin := t.TempDir()
	if script != "" {
		if err := os.WriteFile(filepath.Join(bin, "mmdebstrap"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		bin += ":" + os.Getenv("PATH")
	}
	t.Setenv("PATH", bin)
}

func TestDebian(t *testing.T) {
	dir := t.TempDir()
	rootfs := filepath.Join(dir, "rootfs.tar")
	if err := os.WriteFile(rootfs, imagetest.Tar(t, imagetest.File{Name: "bin/bash", Body: "#!"}), 0o600); err != nil {
		t.Fatal(err)
	}
	said := filepath.Join(dir, "args")
	t.Run("made", func(t *testing.T) {
		fakeDebstrap(t, `printf '%s\n' "$@" >'`+said+`'; echo 'I: success' >&2; cat '`+rootfs+"'\n")
		s := open(t, "")
		var progress bytes.Buffer
		got, err := s.Debian(t.Context(), "dev", image.DebianOptions{Include: []string{"python3", "g++", "libc6:amd64=2.36-9+deb12u4"}, Mirror: "http://deb.example/debian", Progress: &progress})
		if err != nil {
			t.Fatal(err)
		}
		if got.Name != "dev:latest" || got.Config.Cmd[0] != "bash" || len(got.Config.Env) != 1 || progress.String() != "I: success\n" {
			t.Errorf("got %+v, progress %q", got, progress.String())
		}
		args, _ := os.ReadFile(said)
		want := "--format=tar\n--variant=minbase\n--include=python3\n--include=g++\n--include=libc6:amd64=2.36-9+deb12u4\nbookworm\n-\nhttp://deb.example/debian\n"
		if string(args) != want {
			t.Errorf("arguments %q, want %q", args, want)
		}
	})
	t.Run("fails after a whole archive", func(t *testing.T) {
		fakeDebstrap(t, `cat '`+rootfs+`'; echo 'I: working' >&2; echo 'E: Unable to locate package nosuch' >&2; exit 1`)
		s := open(t, "")
		_, err := s.Debian(t.Context(), "dev", image.DebianOptions{})
		wantKind(t, err, box.Unavailable, "Unable to locate package nosuch")
		_, err = s.Get(t.Context(), "dev")
		wantKind(t, err, box.NotFound)
	})
	t.Run("not installed", func(t *testing.T) {
		fakeDebstrap(t, "")
		_, err := open(t, "").Debian(t.Context(), "dev", image.DebianOptions{})
		wantKind(t, err, box.Unsupported, "apt-get install mmdebstrap")
	})
	t.Run("bad options", func(t *testing.T) {
		fakeDebstrap(t, "touch '"+said+".ran'")
		s := open(t, "")
		for _, o := range []image.DebianOptions{
			{Suite: "--help"}, {Suite: "Bookworm"}, {Suite: "a b"}, {Variant: "custom"}, {Variant: "-x"},
			{Include: []string{"--setup-hook=id"}}, {Include: []string{"a,b"}}, {Include: []string{""}}, {Include: []string{"a b"}}, {Include: []string{"?narrow(x)"}}, {Include: []string{"./x.deb"}}, {Include: []string{"a\n"}},
			{Mirror: "deb http://x y main"}, {Mirror: "file:///etc"}, {Mirror: "--x"}, {Mirror: "http://x /y"},
		} {
			_, err := s.Debian(t.Context(), "dev", o)
			wantKind(t, err, box.Invalid)
		}
		_, err := s.Debian(t.Context(), "BAD NAME", image.DebianOptions{})
		wantKind(t, err, box.Invalid)
		if _, err := os.Stat(said + ".ran"); err == nil {
			t.Error("mmdebstrap ran")
		}
	})
	t.Run("for real", func(t *testing.T) {
		if os.Getenv("HUTCH_TEST_DEBIAN") == "" {
			t.Skip("needs Debian's archive: set HUTCH_TEST_DEBIAN=1")
		}
		s := open(t, "")
		img, err := s.Debian(t.Context(), "dev", image.DebianOptions{Include: []string{"python3"}, Progress: os.Stderr})
		if err != nil {
			t.Fatal(err)
		}
		tree, err := s.Tree(t.Context(), img, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(tree.Dir, "usr/bin/python3")); err != nil {
			t.Error(err)
		}
		t.Logf("%d bytes, %+v", img.Size, tree.Result)
	})
}
