package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/local"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
)

// bench is what all rows share.
type bench struct {
	opts        options
	work        string // everything that is written, removed at the end
	disk        string // where contestants without a disk of their own write
	diskNote    string
	rt          *box.Runtime // nothing is booted ahead here
	ahead       ahead        // but here
	image       string       // the image's name in the runtime
	tree        string       // its root file system, which all use
	imageNote   string
	gvisor      string // version of gVisor that this module uses
	contestants []contestant
	cannot      map[string]string // contestant to reason
	native      *native
	netColumns  []column // of the network rows, once they were measured
}

// newBench gets everything ready. The bench it returns is never nil and must
// be closed, also after an error.
func newBench(ctx context.Context, o options) (b *bench, err error) {
	b = &bench{opts: o, cannot: map[string]string{}}
	if _, err := os.Stat("go.mod"); err != nil {
		return b, errors.New("run it in the module's root folder (go run ./internal/bench)")
	}
	if b.work, err = os.MkdirTemp("", "hutch-bench-"); err != nil {
		return b, err
	}
	b.ahead.home = b.home()
	version, err := program{args: []string{"go"}}.output(ctx, "list", "-m", "-f", "{{.Version}}", "gvisor.dev/gvisor")
	if err != nil {
		return b, err
	}
	b.gvisor = strings.TrimSpace(version)
	if b.rt, err = local.Open(ctx, local.Config{Home: b.home(), Warm: -1}); err != nil {
		return b, err
	}
	if err := b.prepareImage(ctx); err != nil {
		return b, fmt.Errorf("root file system: %w", err)
	}
	if err := b.prepareDisk(ctx); err != nil {
		return b, fmt.Errorf("disk of the peers: %w", err)
	}
	b.native = &native{b: b}
	b.contestants = []contestant{&hutch{b: b, byDefault: true}, &runsc{b: b}, &podman{b: b}}
	if o.trace {
		b.contestants = b.contestants[:1]
	}
	for _, c := range b.contestants {
		err := c.prepare(ctx)
		if ctx.Err() != nil {
			return b, ctx.Err()
		}
		if err != nil {
			if c.name() == "hutch" {
				return b, err
			}
			b.cannot[c.name()] = strings.ReplaceAll(err.Error(), "\n", "; ")
			fmt.Fprintf(os.Stderr, "%s could not run: %v\n", c.name(), err)
		}
	}
	return b, b.ahead.close()
}

// home is the folder of the boxes that are measured.
func (b *bench) home() string { return filepath.Join(b.work, "home") }

// able returns the contestants that run here.
func (b *bench) able() []contestant {
	var list []contestant
	for _, c := range b.contestants {
		if _, no := b.cannot[c.name()]; !no {
			list = append(list, c)
		}
	}
	return list
}

// close removes everything, whatever was half done.
func (b *bench) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	errs := []error{b.ahead.close()}
	for _, c := range b.contestants {
		if err := c.close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.name(), err))
		}
	}
	if b.rt != nil {
		errs = append(errs, b.rt.Close())
	}
	if b.work != "" {
		errs = append(errs, unmountBelow(b.work))
		// Only when nothing is mounted there any more: RemoveAll would go
		// through a mount.
		if errors.Join(errs...) == nil {
			errs = append(errs, os.RemoveAll(b.work))
		} else {
			errs = append(errs, fmt.Errorf("left as it is: %s", b.work))
		}
	}
	return errors.Join(errs...)
}

// cacheDir holds what takes minutes to make and never changes.
func cacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "hutch-bench")
	return dir, os.MkdirAll(dir, 0o700)
}

// prepareImage gets the image into the runtime and finds its tree.
func (b *bench) prepareImage(ctx context.Context) (err error) {
	want := b.opts.image
	if want == "" {
		want = "builtin"
		if _, err := exec.LookPath("mmdebstrap"); err == nil {
			want = "debian"
		}
	}
	b.image, b.imageNote = box.BuiltinImage, "Hutch's builtin image"
	if want == "debian" {
		if err := b.debian(ctx); err != nil {
			return err
		}
	}
	bx, err := b.rt.Create(ctx, box.Spec{Image: b.image})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bx.Remove(context.WithoutCancel(ctx))) }()
	info, err := bx.Info(ctx)
	if err != nil {
		return err
	}
	home, err := boxdir.Open(filepath.Join(b.work, "home"))
	if err != nil {
		return err
	}
	rec, err := home.Box(info.ID).Load()
	b.tree = rec.Tree
	return err
}

// debian makes an image of Debian's packages, or takes it from the cache.
func (b *bench) debian(ctx context.Context) error {
	const suite, packages = "bookworm", "git"
	b.image, b.imageNote = "bench", "Debian "+suite+" (minbase) with "+packages+", made by mmdebstrap"
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	archive := filepath.Join(cache, "debian-"+suite+"-"+packages+".oci.tar")
	f, err := os.Open(archive)
	if err == nil {
		defer f.Close()
		_, err = b.rt.Images().Load(ctx, f)
		return err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fmt.Fprintln(os.Stderr, "making a Debian image, once …")
	if _, err := b.rt.Images().Debian(ctx, b.image, box.DebianOptions{Suite: suite, Include: strings.Fields(packages)}); err != nil {
		return err
	}
	// The run does not depend on it.
	if err := b.keepImage(ctx, archive); err != nil {
		fmt.Fprintf(os.Stderr, "the image is not kept for the next run: %v\n", err)
	}
	return nil
}

func (b *bench) keepImage(ctx context.Context, archive string) error {
	f, err := os.CreateTemp(filepath.Dir(archive), "image-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := b.rt.Images().Save(ctx, f, "oci", b.image); err != nil {
		return err
	}
	return os.Rename(f.Name(), archive)
}

// prepareDisk makes the file system on which everybody but Hutch writes. A box
// of Hutch has an ext4 file system in a file where the machine can have that,
// so the others get the same; the machine's own disk may be very different.
func (b *bench) prepareDisk(ctx context.Context) error {
	b.disk = filepath.Join(b.work, "disk")
	if err := os.Mkdir(b.disk, 0o700); err != nil {
		return err
	}
	b.diskNote = "Every contestant writes to the machine's own file system."
	if os.Geteuid() != 0 {
		return nil
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return nil
	}
	img := filepath.Join(b.work, "disk.img")
	for _, args := range [][]string{
		{"truncate", "--size", "40G", img},
		// As internal/engine/gvisor makes the disk of a box.
		{"mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", img},
		{"mount", "-o", "loop,noatime,discard", img, b.disk},
	} {
		if err := (program{args: args[:1]}).run(ctx, nil, nil, args[1:]...); err != nil {
			return err
		}
	}
	b.diskNote = "Hutch's boxes each have an ext4 file system in a file of their own (their disk limit); the peers, and the native runs, share one made the same way. All those files are on the same disk of the machine."
	return nil
}
