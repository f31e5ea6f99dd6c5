//go:build linux || darwin

package sparse_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hutch-sandbox/hutch/internal/x/sparse"
)

// file makes a file with data between holes.
func file(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "src")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, at := range []int64{0, 1 << 20, 5<<20 + 4096} {
		if _, err := f.WriteAt([]byte("data"), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(9 << 20); err != nil {
		t.Fatal(err)
	}
	return path
}

func same(t *testing.T, a, b string) {
	t.Helper()
	x, err1 := os.ReadFile(a)
	y, err2 := os.ReadFile(b)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(x, y) {
		t.Error("the copy differs")
	}
}

func TestCopy(t *testing.T) {
	src := file(t)
	dst := src + ".copy"
	if err := sparse.Copy(t.Context(), dst, src); err != nil {
		t.Fatal(err)
	}
	same(t, src, dst)
	if err := sparse.Copy(t.Context(), dst, src); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file was overwritten: %v", err)
	}
}

// A copy that was killed half-way does not stand in the way of the next, and
// one that fails leaves nothing.
func TestPlace(t *testing.T) {
	src := file(t)
	dst := src + ".copy"
	if err := os.WriteFile(dst+".new", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sparse.Place(t.Context(), dst, src); err != nil {
		t.Fatal(err)
	}
	same(t, src, dst)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	other := src + ".other"
	if err := sparse.Place(ctx, other, src); err == nil {
		same(t, src, other) // its blocks are shared: there was nothing to end
	} else if left, _ := filepath.Glob(other + "*"); len(left) > 0 {
		t.Errorf("a copy that was ended left %q", left)
	}
}
