//go:build linux

package ext4_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hutch-sandbox/hutch/internal/x/ext4"
)

// The file system has the size, a journal and extents (the magic number, counts
// and feature bits are at the places that the kernel's documentation of ext4
// gives), takes little, and is copied, not made again.
func TestPlace(t *testing.T) {
	if _, err := ext4.Mkfs(); err != nil {
		t.Fatalf("mkfs.ext4 is needed (apt-get install e2fsprogs): %v", err)
	}
	dir := t.TempDir()
	file, blank := filepath.Join(dir, "disk"), filepath.Join(dir, "cache", "blank")
	const size = 256 << 20
	if err := ext4.Place(t.Context(), file, blank, size, "-J", "size=4"); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	super := make([]byte, 1024)
	if _, err := f.ReadAt(super, 1024); err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	if magic := le.Uint16(super[0x38:]); magic != 0xef53 {
		t.Fatalf("magic number %#x", magic)
	}
	if blocks, log := le.Uint32(super[4:]), le.Uint32(super[0x18:]); int64(blocks)<<(10+log) != size {
		t.Errorf("%d blocks of 1 KiB << %d", blocks, log)
	}
	if le.Uint32(super[0x5c:])&0x4 == 0 || le.Uint32(super[0x60:])&0x40 == 0 {
		t.Errorf("no journal, or no extents: features %#x %#x", le.Uint32(super[0x5c:]), le.Uint32(super[0x60:]))
	}
	var st syscall.Stat_t
	if err := syscall.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	if taken := st.Blocks * 512; taken > 4<<20 {
		t.Errorf("empty, it takes %d bytes", taken)
	}
	if err := os.WriteFile(blank, []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ext4.Place(t.Context(), file, blank, size); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(file); !bytes.Equal(got, []byte("changed")) {
		t.Errorf("the second was not copied from the first: %d bytes", len(got))
	}
}

func TestPlaceRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := ext4.Place(t.Context(), filepath.Join(dir, "disk"), filepath.Join(dir, "blank"), 1<<20, "--nonsense"); err == nil {
		t.Error("options that mkfs does not know were taken")
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
		t.Errorf("it left %q", left)
	}
}
