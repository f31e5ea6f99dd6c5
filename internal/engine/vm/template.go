//go:build linux || darwin

package vm

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/vmboot"
	"github.com/hutch-sandbox/hutch/internal/x/console"
	"github.com/hutch-sandbox/hutch/internal/x/filelock"
)

// A template is a machine that was captured before it was anybody's. There are
// two kinds:
//
//   - One whose kernel is up and waits for its plan. Every machine with equal
//     hardware can start as a copy of it, with its own disks and network.
//   - One that has its image and an empty disk mounted, and whose agent serves
//     (image.go). Every new box of that image and size can start as a copy of
//     it, and only needs to be told who it is.
//
// Copies have their own secrets, clock and random numbers either way.
//
// A template is published only after a machine that started from it reported
// that it is ready. Until then, or when something about it fails, machines boot
// in the longer way. Nothing of a template is synced to the disk, so none is
// used after the host has started anew.

// How many of each kind are kept. Each takes about as much as a kernel that has
// just booted, some 100 MB.
const (
	maxKernelTemplates = 4
	maxImageTemplates  = 8
)

// key names everything that two machines must have in common to take each
// other's state.
func (m *machine) key() string {
	hw := m.hw
	hw.ram, hw.kernel, hw.initrd = "RAM", "KERNEL", "INITRAMFS"
	hw.image, hw.disk, hw.modules, hw.devices, hw.link, hw.volumes = nil, nil, nil, nil, nil, nil
	c := &command{}
	hw.arguments(c)
	host := ""
	if hw.accel != accelTCG {
		host = bootID() // the processor's state depends on the host's kernel
	}
	return hash([]byte(strings.Join(c.args, "\x00")), []byte(m.kernel.Digest),
		[]byte(filepath.Base(m.files["initramfs"])), []byte(m.qemu), []byte(host))
}

func hash(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d ", len(p))
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// templateRoot is the folder of all templates.
func templateRoot(cacheDir string) string { return filepath.Join(Dir(cacheDir), "templates") }

// sinceBoot begins the names of the templates made since the host started.
func sinceBoot() string { return hash([]byte(bootID()))[:8] + "-" }

// openTemplate opens a template and notes that it was used.
func openTemplate(dir string) (*captured, error) {
	c, err := openCapture(dir)
	if err == nil {
		now := time.Now()
		_ = os.Chtimes(dir, now, now) // the least used go first
	}
	return c, err
}

// template returns the template of a machine that waits for its plan, which it
// makes when there is none. Who makes one, others wait for.
func (e *Engine) template(ctx context.Context, m *machine, cfg *engine.Config) (*captured, error) {
	if !canCapture {
		return nil, errors.ErrUnsupported
	}
	root := templateRoot(cfg.CacheDir)
	dir := filepath.Join(root, sinceBoot()+m.key())
	if c, err := openTemplate(dir); err == nil {
		return c, nil
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	lock, err := filelock.Lock(ctx, filepath.Join(root, "lock"))
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if c, err := openTemplate(dir); err == nil {
		return c, nil // whoever had the lock made it
	}
	err = publish(dir, func(tmp, made string) error {
		if err := makeTemplate(ctx, m, cfg, tmp, made); err != nil {
			return err
		}
		return tryTemplate(ctx, m, cfg, made, filepath.Join(tmp, "trial"))
	})
	if err != nil {
		return nil, err
	}
	return openCapture(dir)
}

// publish has a template made in a folder of its own, and gives it its name
// when it was made and tried. The caller has the lock.
func publish(dir string, create func(tmp, made string) error) error {
	root := filepath.Dir(dir)
	prune(root)
	tmp, err := os.MkdirTemp(root, ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	made := filepath.Join(tmp, "capture")
	if err := os.Mkdir(made, 0o700); err != nil {
		return err
	}
	if err := create(tmp, made); err != nil {
		return err
	}
	return os.Rename(made, dir)
}

// makeTemplate boots a machine without disks or network and captures it.
func makeTemplate(ctx context.Context, m *machine, cfg *engine.Config, tmp, made string) error {
	t := *m
	noLink, err := t.strip()
	if err != nil {
		return err
	}
	defer noLink()
	l, err := prepareLayout(filepath.Join(tmp, "boot"), cfg.ID)
	if err != nil {
		return err
	}
	con := console.New(cfg.Console, console.Limit)
	p, err := coldBoot(ctx, &t, l, con)
	if err != nil {
		return err
	}
	defer p.end()
	// The machine is a few instructions from waiting.
	if err := settle(ctx, p); err != nil {
		return err
	}
	return writeCapture(ctx, &t, p, made, source{})
}

// strip takes everything from the machine that is a box's own. Its link leads
// nowhere; the returned function closes it.
func (m *machine) strip() (func(), error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(fds[0])
	unix.CloseOnExec(fds[1])
	near, far := os.NewFile(uintptr(fds[0]), "no link"), os.NewFile(uintptr(fds[1]), "no link")
	m.hw.image, m.hw.disk, m.hw.modules, m.hw.link = nil, nil, nil, near
	return func() {
		near.Close()
		far.Close()
	}, nil
}

// settle gives a machine that just reported the time to wait for what comes
// next: its kernel then has nothing half done.
func settle(ctx context.Context, p *vmProcess) error {
	select {
	case <-time.After(100 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.exited:
		return errors.New("qemu ended")
	}
}

// tryTemplate restores a template once and has the machine answer.
func tryTemplate(ctx context.Context, m *machine, cfg *engine.Config, dir, state string) error {
	t := *m
	noLink, err := t.strip()
	if err != nil {
		return err
	}
	defer noLink()
	return t.try(ctx, cfg, dir, state, vmboot.Message{Clock: time.Now().UnixNano()})
}

// try starts the machine from a template that nobody has used yet, and tells it
// something.
func (m *machine) try(ctx context.Context, cfg *engine.Config, dir, state string, msg vmboot.Message) error {
	c, err := openCapture(dir)
	if err != nil {
		return err
	}
	l, err := prepareLayout(state, cfg.ID)
	if err != nil {
		return err
	}
	p, err := restore(ctx, m, l, console.New(nil, 0), c)
	if err != nil {
		return fmt.Errorf("trial: %w", err)
	}
	defer p.end()
	ctx, cancel := p.whileAlive(ctx)
	defer cancel()
	if err := p.tell(ctx, msg); err != nil {
		return fmt.Errorf("trial: %w", err)
	}
	return nil
}

// prune removes the templates that nobody can use any more, and of the others
// those that were used longest ago, so that there is room for one more of each
// kind. The caller has the lock.
func prune(root string) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return
	}
	type template struct {
		path string
		used time.Time
	}
	var kernels, images []template
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() {
			continue
		}
		path := filepath.Join(root, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			_ = os.RemoveAll(path) // left by a process that died: who makes one has the lock
			continue
		}
		c, err := openCapture(path)
		if err == nil && c.Image != "" {
			_, err = os.Stat(c.Image)
		}
		if err != nil || !strings.HasPrefix(e.Name(), sinceBoot()) {
			_ = os.RemoveAll(path)
			continue
		}
		if c.Template {
			kernels = append(kernels, template{path, info.ModTime()})
		} else {
			images = append(images, template{path, info.ModTime()})
		}
	}
	keep := func(all []template, most int) {
		slices.SortFunc(all, func(a, b template) int { return b.used.Compare(a.used) })
		for _, t := range all[min(len(all), most-1):] {
			_ = os.RemoveAll(t.path)
		}
	}
	keep(kernels, maxKernelTemplates)
	keep(images, maxImageTemplates)
}

// newIdentity is an identity that no machine has had.
func newIdentity(agent []byte) vmboot.Identity {
	id := vmboot.Identity{Time: time.Now().UnixNano(), Entropy: make([]byte, 256), Agent: agent}
	_, _ = rand.Read(id.Entropy) // never fails
	return id
}
