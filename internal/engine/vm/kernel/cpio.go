package kernel

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// cpioFile is a file of an initramfs.
type cpioFile struct {
	name string // below the root
	mode uint32 // as in stat
	data []byte
}

// Modes of an initramfs's files, as stat has them.
const (
	modeFolder  = 0o040755
	modeProgram = 0o100755
	modeFile    = 0o100644
)

// writeCpio writes an archive in the "newc" format, the one that Linux unpacks
// as its first root file system. Folders that are missing are added.
func writeCpio(w io.Writer, files []cpioFile) error {
	var all []cpioFile
	seen := map[string]bool{}
	for _, f := range files {
		for i, c := range f.name {
			if dir := f.name[:i]; c == '/' && !seen[dir] {
				seen[dir] = true
				all = append(all, cpioFile{name: dir, mode: modeFolder})
			}
		}
		if seen[f.name] {
			return fmt.Errorf("initramfs: %s is there twice", f.name)
		}
		seen[f.name] = true
		if f.name == "" || path.Clean("/"+f.name) != "/"+f.name || strings.ContainsRune(f.name, 0) {
			return fmt.Errorf("initramfs: the name %q is not one", f.name)
		}
		all = append(all, f)
	}
	off := 0
	write := func(b []byte) error {
		n, err := w.Write(b)
		off += n
		return err
	}
	pad := func() error { return write(make([]byte, (4-off%4)%4)) }
	all = slices.Concat(all, []cpioFile{{name: "TRAILER!!!"}})
	for i, f := range all {
		nlink := 1
		if f.mode == modeFolder {
			nlink = 2
		}
		head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
			i+1, f.mode, 0, 0, nlink, 0, len(f.data), 0, 0, 0, 0, len(f.name)+1, 0)
		for _, part := range [][]byte{[]byte(head), append([]byte(f.name), 0)} {
			if err := write(part); err != nil {
				return err
			}
		}
		if err := pad(); err != nil {
			return err
		}
		if err := write(f.data); err != nil {
			return err
		}
		if err := pad(); err != nil {
			return err
		}
	}
	return nil
}
