package sparse_test

import (
	"syscall"
	"testing"

	"github.com/hutch-sandbox/hutch/internal/x/sparse"
)

func TestHoles(t *testing.T) {
	src := file(t)
	dst := src + ".copy"
	if err := sparse.Copy(t.Context(), dst, src); err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(dst, &st); err != nil {
		t.Fatal(err)
	}
	if got := st.Blocks * 512; got > 1<<20 {
		t.Errorf("the copy of three pages in 9 MiB takes %d bytes", got)
	}
}
