//go:build linux

package vminit

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/vmboot"
)

// modprobeAt is where the box's kernel, and programs that ask it, find the
// program that loads modules: this one, under another name. Images rarely have
// one, and none has the modules of this kernel.
const modprobeAt = "/.hutch/modprobe"

// IsModprobe reports whether this process was started to load a module.
func IsModprobe(args []string) bool { return len(args) > 0 && filepath.Base(args[0]) == "modprobe" }

// Modprobe loads the module that args name, by its name or one of its aliases,
// with all that it needs. It returns the exit status. The modules come from a
// disk that all boxes share, which the first call mounts.
func Modprobe(args []string) int {
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return strings.HasPrefix(a, "-") })
	if len(args) == 0 {
		return 0 // somebody asks for a version, or nothing
	}
	if err := probe(args[0]); err != nil {
		log.New(os.Stderr, "modprobe: ", 0).Print(err)
		return 1
	}
	return 0
}

func probe(name string) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	dir := "/lib/modules/" + unix.ByteSliceToString(u.Release[:])
	if _, err := os.Stat(dir + "/modules.dep"); err != nil {
		if err := mountModules(dir); err != nil {
			return err
		}
	}
	dep, err := os.ReadFile(dir + "/modules.dep")
	if err != nil {
		return err
	}
	alias, err := os.ReadFile(dir + "/modules.alias")
	if err != nil {
		return err
	}
	paths := resolveModule(name, string(dep), string(alias))
	if len(paths) == 0 {
		return fmt.Errorf("module %s not found", name)
	}
	for _, p := range paths {
		if err := loadModule(filepath.Join(dir, p)); err != nil {
			return err
		}
	}
	return nil
}

// resolveModule returns the files to load for a module or an alias, in order.
// Dep and alias are modules.dep and modules.alias.
func resolveModule(name, dep, alias string) []string {
	plain := func(s string) string { return strings.ReplaceAll(s, "-", "_") }
	wanted := map[string]bool{plain(name): true}
	for line := range strings.Lines(alias) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "alias" {
			continue
		}
		if ok, err := path.Match(plain(f[1]), plain(name)); err == nil && ok {
			wanted[plain(f[2])] = true
		}
	}
	var order []string
	for line := range strings.Lines(dep) {
		file, needs, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok || !wanted[plain(strings.TrimSuffix(path.Base(file), ".ko"))] {
			continue
		}
		all := strings.Fields(needs)
		slices.Reverse(all) // what is needed most comes last there
		for _, p := range append(all, file) {
			if !slices.Contains(order, p) {
				order = append(order, p)
			}
		}
	}
	return order
}

func mountModules(dir string) error {
	dev, err := disk(vmboot.SerialModules)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(dev, dir, "erofs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("mount the kernel's modules: %w", err)
	}
	return nil
}

// openSelf opens this program's file as a mount, which outlives the change of
// the root; placeSelf puts it where the kernel looks. A box without it works,
// except that its kernel loads no further modules.
func openSelf() (int, error) {
	return unix.OpenTree(unix.AT_FDCWD, "/init", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
}

func placeSelf(tree int) error {
	if err := place(tree, vmboot.Mount{Target: modprobeAt, File: true, ReadOnly: true}); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/kernel/modprobe", []byte(modprobeAt), 0)
}
