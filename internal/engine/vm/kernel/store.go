//go:build linux || darwin

package kernel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/erofs"
	"github.com/hutch-sandbox/hutch/internal/x/filelock"
)

// Info describes one kernel of a store.
type Info struct {
	Name    string    `json:"name"`    // of its folder, for example "6.1.0-57-cloud-amd64"
	Release string    `json:"release"` // as uname -r says
	Arch    string    `json:"arch"`    // as Go names it
	Source  string    `json:"source"`  // where it came from, in words
	Digest  string    `json:"digest"`  // SHA-256 of the file it came from
	Modules int       `json:"modules"` // how many modules it has
	Added   time.Time `json:"added"`
	// Selected: new boots use it.
	Selected bool `json:"selected,omitempty"`
	// Boot are the modules that a boot needs, in the order to load them, as
	// paths below the folder of modules.
	Boot []string `json:"boot"`
}

// Store is a folder of kernels. Its methods may be called concurrently and in
// several processes.
type Store struct{ dir string }

// At returns the store in the folder dir, which is made when a kernel is added.
func At(dir string) *Store { return &Store{dir: dir} }

// In returns the store below the cache folder that all boxes share.
func In(cacheDir string) *Store { return At(filepath.Join(cacheDir, "vm", "kernels")) }

// Path joins names below the folder of the kernel called name.
func (s *Store) Path(name string, names ...string) string {
	return filepath.Join(append([]string{s.dir, name}, names...)...)
}

// List returns the kernels, newest first; none is not an error.
func (s *Store) List() ([]Info, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list kernels: %w", err)
	}
	selected := s.selected()
	var list []Info
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		info, err := s.load(e.Name())
		if err != nil {
			continue // no kernel of this version of Hutch
		}
		info.Selected = info.Name == selected
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b Info) int { return b.Added.Compare(a.Added) })
	if selected == "" || !slices.ContainsFunc(list, func(i Info) bool { return i.Selected }) {
		for n := range list {
			if list[n].Arch == runtime.GOARCH {
				list[n].Selected = true
				break
			}
		}
	}
	return list, nil
}

func (s *Store) selected() string {
	data, err := os.ReadFile(filepath.Join(s.dir, "selected"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func (s *Store) load(name string) (Info, error) {
	var info Info
	data, err := os.ReadFile(s.Path(name, "kernel.json"))
	if err == nil {
		err = json.Unmarshal(data, &info)
	}
	if err == nil && info.Name != name {
		err = fmt.Errorf("kernel %s: its description is of another", name)
	}
	return info, err
}

// Selected returns the kernel that new boots use. Without one the error is
// box.NotFound and names the command that fetches one.
func (s *Store) Selected() (Info, error) {
	list, err := s.List()
	if err != nil {
		return Info{}, err
	}
	for _, info := range list {
		if info.Selected {
			return info, nil
		}
	}
	return Info{}, &box.Error{Kind: box.NotFound, Op: "find kernel", Err: errors.New("no kernel for boxes has been fetched"), Hint: "hutch kernel fetch"}
}

// Select makes new boots use the kernel called name.
func (s *Store) Select(name string) (Info, error) {
	info, err := s.load(name)
	if err != nil || name == "" || strings.ContainsAny(name, "/") {
		return Info{}, &box.Error{Kind: box.NotFound, Op: "select kernel", Object: name, Err: errors.New("no such kernel"), Hint: "hutch kernel ls"}
	}
	if err := writeFile(filepath.Join(s.dir, "selected"), []byte(name+"\n")); err != nil {
		return Info{}, fmt.Errorf("select kernel: %w", err)
	}
	info.Selected = true
	return info, nil
}

// bootModules are the modules that a box needs before its root file system is
// there, and those that volumes need.
var bootModules = []string{
	"virtio_ring", "virtio", "virtio_mmio", "virtio_console", "virtio_rng",
	"virtio_net", "overlay", "erofs", "ext4", "virtio_blk", "fuse", "virtiofs",
}

// needed are those of bootModules that every kernel for boxes has, as modules
// or built in. A kernel package without them is refused.
var needed = []string{"virtio_mmio", "virtio_console", "virtio_net", "virtio_blk", "overlay", "erofs", "ext4"}

// Add adds the kernel in the file: a Debian package, or a bare kernel with
// everything built in. It is selected then. Source says where the file came
// from, for people.
func (s *Store) Add(ctx context.Context, file, source string) (_ Info, err error) {
	defer func() {
		if err != nil && box.KindOf(err) == box.Internal {
			err = &box.Error{Kind: box.Invalid, Op: "add kernel", Object: file, Err: err, Hint: "name a kernel package of Debian (linux-image-cloud-*.deb), or a kernel image"}
		}
	}()
	f, err := os.Open(file)
	if err != nil {
		return Info{}, &box.Error{Kind: box.NotFound, Op: "add kernel", Object: file, Err: err}
	}
	defer f.Close()
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return Info{}, err
	}
	tmp, err := os.MkdirTemp(s.dir, ".new-")
	if err != nil {
		return Info{}, err
	}
	defer os.RemoveAll(tmp)
	info := Info{Arch: runtime.GOARCH, Source: source, Added: time.Now().Round(0).UTC()}
	hash := sha256.New()
	magic := make([]byte, 8)
	if _, err := f.ReadAt(magic, 0); err != nil && !errors.Is(err, io.EOF) {
		return Info{}, err
	}
	in := io.TeeReader(f, hash)
	if string(magic) == "!<arch>\n" {
		if info.Release, err = unpackDeb(ctx, in, tmp); err != nil {
			return Info{}, err
		}
		if _, err := io.Copy(io.Discard, in); err != nil {
			return Info{}, err
		}
	} else {
		if info.Release, err = copyImage(in, tmp); err != nil {
			return Info{}, err
		}
	}
	info.Digest = hex.EncodeToString(hash.Sum(nil))
	if err := s.describe(ctx, tmp, &info); err != nil {
		return Info{}, err
	}
	if err := s.publish(ctx, tmp, info); err != nil {
		return Info{}, err
	}
	return s.Select(info.Name)
}

// copyImage copies a bare kernel and finds its release.
func copyImage(r io.Reader, dir string) (release string, err error) {
	file := filepath.Join(dir, "vmlinuz")
	if err := writeFrom(file, io.LimitReader(r, maxPackage)); err != nil {
		return "", err
	}
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	release, err = imageRelease(f)
	if err != nil {
		return "", err
	}
	return release, nil
}

// imageRelease reads the release from the header of an x86 kernel image. Other
// images do not have it in clear.
func imageRelease(f io.ReaderAt) (string, error) {
	head := make([]byte, 0x220)
	if _, err := f.ReadAt(head, 0); err != nil {
		return "", errors.New("the file is too short for a kernel")
	}
	switch {
	case string(head[0x202:0x206]) == "HdrS":
		at := int64(head[0x20e]) | int64(head[0x20f])<<8
		text := make([]byte, 128)
		n, err := f.ReadAt(text, at+0x200)
		if err != nil && n == 0 {
			return "", errors.New("the kernel image is damaged")
		}
		release, _, _ := strings.Cut(string(text[:n]), " ")
		if release == "" || strings.ContainsAny(release, "/\x00") {
			return "", errors.New("the kernel image does not say its release")
		}
		return release, nil
	case string(head[0x38:0x3c]) == "ARM\x64", string(head[:4]) == "\x7fELF":
		return "custom", nil
	}
	return "", errors.New("neither a Debian package nor a kernel image")
}

// describe makes everything beside the kernel itself.
func (s *Store) describe(ctx context.Context, dir string, info *Info) error {
	modules := filepath.Join(dir, "modules")
	all, err := readModules(modules)
	if err != nil {
		return err
	}
	info.Modules = len(all)
	for _, m := range closure(all, bootModules) {
		info.Boot = append(info.Boot, m.path)
	}
	info.Name = info.Release
	if strings.ContainsAny(info.Name, "/\\ \x00") || strings.HasPrefix(info.Name, ".") || info.Name == "" {
		return fmt.Errorf("the release %q is not a name", info.Release)
	}
	if len(all) > 0 {
		builtin, _ := os.ReadFile(filepath.Join(modules, "modules.builtin"))
		for _, name := range needed {
			if _, ok := all[name]; !ok && !strings.Contains(strings.ReplaceAll(string(builtin), "-", "_"), "/"+name+".ko") {
				return &box.Error{Kind: box.Unsupported, Op: "add kernel", Object: info.Release, Err: fmt.Errorf("it has no %s, which boxes need", name), Hint: "use Debian's linux-image-cloud-* or linux-image-* package"}
			}
		}
		if err := writeIndex(modules, all); err != nil {
			return err
		}
		f, err := os.OpenFile(filepath.Join(dir, "modules.erofs"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		err = erofs.Write(ctx, modules, f)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	} else {
		sum := info.Digest
		info.Name += "-" + sum[:min(8, len(sum))]
	}
	data, err := json.MarshalIndent(info, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "kernel.json"), append(data, '\n'), 0o600)
}

// publish gives a prepared folder its name. A kernel that is there already
// stays: boxes may be booting from it.
func (s *Store) publish(ctx context.Context, tmp string, info Info) error {
	lock, err := filelock.Lock(ctx, filepath.Join(s.dir, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if have, err := s.load(info.Name); err == nil {
		if have.Digest == info.Digest {
			return nil
		}
		// The same release, built anew: the old one goes where nobody new
		// finds it, and is removed.
		old := filepath.Join(s.dir, ".old-"+filepath.Base(tmp))
		if err := os.Rename(s.Path(info.Name), old); err != nil {
			return err
		}
		defer os.RemoveAll(old)
	}
	if err := os.Rename(tmp, s.Path(info.Name)); err != nil {
		return fmt.Errorf("add kernel: %w", err)
	}
	return nil
}

// Remove removes a kernel. Boxes that run go on: they have it in memory.
func (s *Store) Remove(name string) error {
	if _, err := s.load(name); err != nil || strings.ContainsAny(name, "/") {
		return &box.Error{Kind: box.NotFound, Op: "remove kernel", Object: name, Err: errors.New("no such kernel"), Hint: "hutch kernel ls"}
	}
	gone := filepath.Join(s.dir, ".gone-"+name)
	_ = os.RemoveAll(gone)
	if err := os.Rename(s.Path(name), gone); err != nil {
		return fmt.Errorf("remove kernel: %w", err)
	}
	return os.RemoveAll(gone)
}

// Initramfs returns the file that the kernel unpacks as its first root: the
// program agent as /init, and the modules of a boot. It is made once for each
// kernel and agent; agents that differ have files with different names.
func (s *Store) Initramfs(info Info, agent string) (string, error) {
	fi, err := os.Stat(agent)
	if err != nil {
		return "", fmt.Errorf("initramfs: %w", err)
	}
	// By its name, which stands for its content: to hash megabytes at every boot
	// shows.
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", filepath.Base(agent), fi.Size()))
	file := s.Path(info.Name, "initramfs-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	program, err := os.ReadFile(agent)
	if err != nil {
		return "", fmt.Errorf("initramfs: %w", err)
	}
	files := []cpioFile{
		{name: "init", mode: modeProgram, data: program},
		{name: "dev", mode: modeFolder},
		{name: "proc", mode: modeFolder},
		{name: "sys", mode: modeFolder},
		{name: "root", mode: modeFolder},
	}
	var order strings.Builder
	for n, path := range info.Boot {
		data, err := os.ReadFile(s.Path(info.Name, "modules", filepath.FromSlash(path)))
		if err != nil {
			return "", fmt.Errorf("initramfs: %w", err)
		}
		name := fmt.Sprintf("modules/%02d-%s", n, filepath.Base(path))
		files = append(files, cpioFile{name: name, mode: modeFile, data: data})
		order.WriteString("/" + name + "\n")
	}
	files = append(files, cpioFile{name: "modules/order", mode: modeFile, data: []byte(order.String())})
	f, err := os.CreateTemp(s.Path(info.Name), ".initramfs-*")
	if err != nil {
		return "", fmt.Errorf("initramfs: %w", err)
	}
	defer os.Remove(f.Name())
	err = writeCpio(f, files)
	if err == nil {
		err = f.Chmod(0o644) // QEMU reads it, as a user of its own
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return "", fmt.Errorf("initramfs: %w", err)
	}
	return file, nil
}

// writeFile writes a file whole.
func writeFile(file string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}
