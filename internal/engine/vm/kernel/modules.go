package kernel

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// module is what a kernel module says of itself.
type module struct {
	path    string // below the folder of modules
	name    string // with '_' for '-', as the kernel has it
	depends []string
	aliases []string
}

// moduleName is the name of the module in a file: '-' and '_' are the same.
func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".ko"), "-", "_")
}

// readModule reads the .modinfo section of a module.
func readModule(file string) (module, error) {
	f, err := elf.Open(file)
	if err != nil {
		return module{}, fmt.Errorf("module %s: %w", filepath.Base(file), err)
	}
	defer f.Close()
	m := module{name: moduleName(file)}
	s := f.Section(".modinfo")
	if s == nil {
		return m, nil
	}
	if s.Size > 1<<20 {
		return m, fmt.Errorf("module %s: its description is too long", m.name)
	}
	data, err := s.Data()
	if err != nil {
		return m, fmt.Errorf("module %s: %w", m.name, err)
	}
	for field := range bytes.SplitSeq(data, []byte{0}) {
		key, value, _ := strings.Cut(string(field), "=")
		switch key {
		case "depends":
			for d := range strings.SplitSeq(value, ",") {
				if d != "" {
					m.depends = append(m.depends, strings.ReplaceAll(d, "-", "_"))
				}
			}
		case "alias":
			m.aliases = append(m.aliases, value)
		}
	}
	return m, nil
}

// readModules reads all modules below dir.
func readModules(dir string) (map[string]module, error) {
	all := map[string]module{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if path == dir && errors.Is(err, fs.ErrNotExist) {
				return fs.SkipAll // a kernel without modules
			}
			return err
		}
		if !d.Type().IsRegular() || !strings.HasSuffix(path, ".ko") {
			return nil
		}
		m, err := readModule(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		m.path = filepath.ToSlash(rel)
		all[m.name] = m
		return nil
	})
	return all, err
}

// closure returns the modules that names need, each after those that it needs
// itself. What is not a module is taken for built in.
func closure(all map[string]module, names []string) []module {
	var order []module
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		m, ok := all[name]
		if !ok || seen[name] {
			return
		}
		seen[name] = true
		for _, d := range m.depends {
			visit(d)
		}
		order = append(order, m)
	}
	for _, name := range names {
		visit(strings.ReplaceAll(name, "-", "_"))
	}
	return order
}

// writeIndex writes modules.dep and modules.alias, in depmod's format, which
// packages do not bring.
func writeIndex(dir string, all map[string]module) error {
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	var dep, alias strings.Builder
	for _, name := range names {
		m := all[name]
		order := closure(all, []string{name})
		dep.WriteString(m.path + ":")
		for n := len(order) - 2; n >= 0; n-- { // nearest first, without itself
			dep.WriteString(" " + order[n].path)
		}
		dep.WriteString("\n")
		for _, a := range m.aliases {
			fmt.Fprintf(&alias, "alias %s %s\n", a, name)
		}
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "modules.dep"), []byte(dep.String()), 0o644),
		os.WriteFile(filepath.Join(dir, "modules.alias"), []byte(alias.String()), 0o644))
}
