//go:build linux || darwin

package vm

import (
	"context"
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

// A template is a machine that was captured when its kernel was up and it
// waited for its plan. Every machine with equal hardware starts as a copy of
// it, with its own disks, network, secrets, clock and random numbers.
//
// A template is published only after a machine that started from it reported
// that it is ready. Until then, or when something about it fails, machines boot
// their kernels themselves.

// maxTemplates is how many are kept. Each takes about as much as a kernel that
// has just booted, some 100 MB.
const maxTemplates = 4

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
	sum := sha256.Sum256(fmt.Append(nil, strings.Join(c.args, "\x00"), "\n", m.kernel.Digest, "\n",
		filepath.Base(m.files["initramfs"]), "\n", m.qemu, "\n", host))
	return hex.EncodeToString(sum[:16])
}

// template returns the template for the machine, which it makes when there is
// none. Who makes one, others wait for.
func (e *Engine) template(ctx context.Context, m *machine, cfg *engine.Config) (*captured, error) {
	if !canCapture {
		return nil, errors.ErrUnsupported
	}
	root := filepath.Join(Dir(cfg.CacheDir), "templates")
	dir := filepath.Join(root, m.key())
	if c, err := openCapture(dir); err == nil {
		now := time.Now()
		_ = os.Chtimes(dir, now, now) // the least used go first
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
	if c, err := openCapture(dir); err == nil {
		return c, nil // whoever had the lock made it
	}
	tmp, err := os.MkdirTemp(root, ".new-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	if err := makeTemplate(ctx, m, cfg, tmp); err != nil {
		return nil, err
	}
	// What is named like a template has been tried.
	made := filepath.Join(tmp, "capture")
	if err := tryTemplate(ctx, m, cfg, made, filepath.Join(tmp, "trial")); err != nil {
		return nil, fmt.Errorf("trial: %w", err)
	}
	if err := os.Rename(made, dir); err != nil {
		return nil, err
	}
	prune(root)
	return openCapture(dir)
}

// makeTemplate boots a machine without disks or network and captures it.
func makeTemplate(ctx context.Context, m *machine, cfg *engine.Config, tmp string) error {
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
	dir := filepath.Join(tmp, "capture")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return writeCapture(ctx, &t, p, dir, nil, false)
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

// settle gives a machine that just reported the time to wait for its plan: its
// kernel then has nothing half done.
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
	c, err := openCapture(dir)
	if err != nil {
		return err
	}
	t := *m
	noLink, err := t.strip()
	if err != nil {
		return err
	}
	defer noLink()
	l, err := prepareLayout(state, cfg.ID)
	if err != nil {
		return err
	}
	con := console.New(nil, 0)
	p, err := restore(ctx, &t, l, con, c)
	if err != nil {
		return err
	}
	defer p.end()
	ctx, cancel := p.whileAlive(ctx)
	defer cancel()
	return p.tell(ctx, vmboot.Message{Clock: time.Now().UnixNano()})
}

// prune removes the templates that were used longest ago.
func prune(root string) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return
	}
	type template struct {
		path string
		used time.Time
	}
	var all []template
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() {
			continue
		}
		path := filepath.Join(root, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			// Left by a process that died; the lock says that none is at it.
			if time.Since(info.ModTime()) > time.Hour {
				_ = os.RemoveAll(path)
			}
			continue
		}
		all = append(all, template{path, info.ModTime()})
	}
	slices.SortFunc(all, func(a, b template) int { return b.used.Compare(a.used) })
	for _, t := range all[min(len(all), maxTemplates):] {
		_ = os.RemoveAll(t.path)
	}
}
