package boxdir_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/boxdir"
)

// A user's folder that is mounted below what is removed must stay whole.
func TestRemoveAllDoesNotFollowMounts(t *testing.T) {
	dir := t.TempDir()
	users := filepath.Join(dir, "users folder")
	run := filepath.Join(dir, "run")
	at := filepath.Join(run, "volumes", "0")
	canary := filepath.Join(users, "canary")
	for _, d := range []string{users, at} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(canary, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(users, at, "", unix.MS_BIND, ""); errors.Is(err, unix.EPERM) {
		t.Skip("mounting needs root; the suite of the real engine covers it for users")
	} else if err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(at, unix.MNT_DETACH)
	if err := boxdir.RemoveAll(run); err == nil {
		t.Error("a folder with a mount in it was removed")
	}
	if _, err := os.Stat(canary); err != nil {
		t.Fatalf("the user's file is gone: %v", err)
	}
	if err := boxdir.UnmountBelow(run); err != nil {
		t.Fatal(err)
	}
	if err := boxdir.RemoveAll(run); err != nil {
		t.Errorf("after unmounting: %v", err)
	}
	if _, err := os.Stat(canary); err != nil {
		t.Errorf("the user's file is gone: %v", err)
	}
}
