package realengine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/internal/engine/vm/kernel"
)

// KernelsVar names a folder with kernels for tests that run as another user.
const KernelsVar = "HUTCH_TEST_KERNELS"

// Cache is a folder for what virtual machines share, with a kernel in it. It
// outlives the tests, so that a kernel is fetched and a template made once.
func Cache(t testing.TB) string {
	t.Helper()
	base := os.Getenv("HUTCH_TEST_CACHE")
	if base == "" {
		dir, err := os.UserCacheDir()
		if err == nil {
			base = filepath.Join(dir, "hutch-test")
			err = os.MkdirAll(base, 0o700)
		}
		if err != nil {
			t.Fatalf("no place for the kernel: %v; set HUTCH_TEST_CACHE", err)
		}
	}
	dir := filepath.Join(base, fmt.Sprintf("engines-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	store := kernel.In(dir)
	if from := os.Getenv(KernelsVar); from != "" {
		if _, err := store.Selected(); err != nil {
			if err := os.CopyFS(store.Path(""), os.DirFS(from)); err != nil {
				t.Fatalf("the kernel for virtual machines: %v", err)
			}
		}
	}
	if _, err := store.Selected(); err != nil {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if _, err := store.Fetch(ctx, kernel.FetchOptions{}); err != nil {
			t.Fatalf("the kernel for virtual machines: %v", err)
		}
	}
	return dir
}

// Kernel prepares a home for virtual machines: with what is in Cache.
func Kernel(t testing.TB, home string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(home, "cache"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(Cache(t), "vm"), filepath.Join(home, "cache", "vm")); err != nil {
		t.Fatal(err)
	}
}
