package rootfs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/internal/userland"
	"github.com/hutch-sandbox/hutch/internal/userland/rootfs"
)

func TestNamesAreThoseOfTheProgram(t *testing.T) {
	if diff := cmp.Diff(userland.Names(), rootfs.Names()); diff != "" {
		t.Errorf("rootfs.Names differs from userland.Names (-program +image):\n%s", diff)
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := rootfs.Write(dir, []byte("program")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{
		"tmp": fs.ModeDir | fs.ModeSticky | 0o777, "root": fs.ModeDir | 0o700,
		"bin/hutch-userland": 0o755, "etc/passwd": 0o644, "bin/sh": 0o755,
	} {
		fi, err := os.Stat(filepath.Join(dir, path))
		if err != nil {
			t.Error(err)
		} else if fi.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, fi.Mode(), want)
		}
	}
	if data, err := os.ReadFile(filepath.Join(dir, "usr/bin/env")); err != nil || string(data) != "program" {
		t.Errorf("/usr/bin/env is %q, %v, want the program: scripts name it in their first line", data, err)
	}
	if err := rootfs.Write(dir, []byte("program")); err == nil {
		t.Error("a folder that is not empty was written to")
	}
}
