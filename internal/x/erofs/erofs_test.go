//go:build linux

package erofs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/x/erofs"
)

// tree makes a folder with one of each thing that an image may hold and that
// an ordinary user can make.
func tree(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tree")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(dir+"/etc/deep/er", 0o755))
	must(os.WriteFile(dir+"/etc/empty", nil, 0o600))
	must(os.WriteFile(dir+"/etc/small", []byte("small\n"), 0o644))
	must(os.WriteFile(dir+"/etc/block", bytes.Repeat([]byte("b"), 4096), 0o444))
	must(os.WriteFile(dir+"/etc/large", bytes.Repeat([]byte("0123456789abcde\n"), 10_001), 0o644))
	must(os.WriteFile(dir+"/suid", []byte("x"), 0o755))
	must(os.Chmod(dir+"/suid", 0o755|os.ModeSetuid))
	must(os.Link(dir+"/etc/small", dir+"/etc/deep/er/hard"))
	must(os.Symlink("etc/small", dir+"/soft"))
	must(os.Symlink(strings.Repeat("long/", 700), dir+"/longlink"))
	must(os.WriteFile(dir+"/odd \xff\n\\name", []byte("odd"), 0o644))
	must(unix.Mkfifo(dir+"/fifo", 0o640))
	must(os.Mkdir(dir+"/many", 0o700))
	for n := range 700 {
		must(os.WriteFile(fmt.Sprintf("%s/many/%s-%d", dir, strings.Repeat("n", n%100), n), []byte{byte(n)}, 0o644))
	}
	must(os.Mkdir(dir+"/sticky", 0o700))
	must(os.Chmod(dir+"/sticky", 0o777|os.ModeSticky))
	if err := unix.Lsetxattr(dir+"/etc/small", "user.note", []byte("a value"), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
		t.Fatal(err)
	}
	return dir
}

// describe lists what a tree holds, one line a file.
func describe(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		fmt.Fprintf(&out, "%q %o %d:%d", rel, st.Mode, st.Uid, st.Gid)
		switch {
		case d.Type().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&out, " %d bytes %.40q %d", len(data), data, st.Nlink)
			if first, ok := inodes[st.Ino]; ok {
				fmt.Fprintf(&out, " is %q", first)
			}
			inodes[st.Ino] = rel
			buf := make([]byte, 100)
			if n, err := unix.Lgetxattr(path, "user.note", buf); err == nil {
				fmt.Fprintf(&out, " note %q", buf[:n])
			}
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&out, " -> %.60q %d", target, len(target))
		}
		fmt.Fprintf(&out, " at %d.%09d\n", st.Mtim.Sec, st.Mtim.Nsec)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func write(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.erofs")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := erofs.Write(t.Context(), dir, f); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestSuperblock(t *testing.T) {
	data, err := os.ReadFile(write(t, tree(t)))
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	super := data[1024:]
	if got := le.Uint32(super); got != 0xE0F5E1E2 {
		t.Errorf("magic %x", got)
	}
	if blocks := le.Uint32(super[36:]); len(data) != int(blocks)*4096 {
		t.Errorf("%d blocks are announced, the file has %d bytes", blocks, len(data))
	}
	if incompatible := le.Uint32(super[80:]); incompatible != 0 {
		t.Errorf("incompatible features %x: older kernels would refuse it", incompatible)
	}
	root := data[int(le.Uint16(super[14:]))*32:]
	if mode := le.Uint16(root[4:]); mode&unix.S_IFMT != unix.S_IFDIR {
		t.Errorf("the root's mode is %o", mode)
	}
}

// TestSame writes the same tree twice: images are compared by content.
func TestSame(t *testing.T) {
	dir := tree(t)
	a, err := os.ReadFile(write(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(write(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("two images of one tree differ")
	}
}

// TestFsck has the reference implementation check the image and unpack it.
func TestFsck(t *testing.T) {
	fsck, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Skip("erofs-utils is not installed")
	}
	dir := tree(t)
	image := write(t, dir)
	out := filepath.Join(t.TempDir(), "out")
	args := []string{"--extract=" + out, "--no-preserve-owner", image}
	if os.Geteuid() == 0 {
		args[1] = "--preserve"
	}
	if msg, err := exec.Command(fsck, args...).CombinedOutput(); err != nil {
		t.Fatalf("fsck.erofs: %v\n%s", err, msg)
	}
	// fsck.erofs 1.5 unpacks neither attributes nor hard links nor a link's
	// time, and loses the set-id bits; mounting shows those.
	drop := func(s string) string {
		var b strings.Builder
		for line := range strings.Lines(s) {
			line, _, _ = strings.Cut(line, " note ")
			line, _, _ = strings.Cut(line, " is ")
			line, _, _ = strings.Cut(line, " at ")
			line = strings.Replace(strings.TrimSuffix(line, "\n"), " 104755 ", " 100755 ", 1)
			if strings.Contains(line, "small") || strings.Contains(line, "hard") {
				line = strings.TrimRight(line, "0123456789")
			}
			b.WriteString(line + "\n")
		}
		return b.String()
	}
	if diff := cmp.Diff(drop(describe(t, dir)), drop(describe(t, out))); diff != "" {
		t.Errorf("unpacked (-tree +image):\n%s", diff)
	}
}

// TestMount has the host's own kernel read the image, where it can.
func TestMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := tree(t)
	// What only root can make.
	for _, err := range []error{
		unix.Mknod(dir+"/device", unix.S_IFCHR|0o660, int(unix.Mkdev(10, 300))),
		os.Lchown(dir+"/etc/large", 70_000, 80_000),
		os.Lchown(dir+"/soft", 5, 6),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	image := write(t, dir)
	at := t.TempDir()
	if out, err := exec.Command("mount", "-t", "erofs", "-o", "loop,ro", image, at).CombinedOutput(); err != nil {
		t.Skipf("this kernel mounts no EROFS: %s", out)
	}
	defer unix.Unmount(at, unix.MNT_DETACH)
	if diff := cmp.Diff(describe(t, dir), describe(t, at)); diff != "" {
		t.Errorf("mounted (-tree +image):\n%s", diff)
	}
	var st unix.Stat_t
	if err := unix.Lstat(at+"/device", &st); err != nil || st.Rdev != unix.Mkdev(10, 300) {
		t.Errorf("the device is %d:%d, %v", unix.Major(st.Rdev), unix.Minor(st.Rdev), err)
	}
}

func TestRefusals(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := erofs.Write(t.Context(), file, &out); err == nil {
		t.Error("a file was taken for a tree")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := erofs.Write(ctx, t.TempDir(), &out); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled, it gave %v", err)
	}
}
