package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// native runs the same programs of the same tree without any isolation, by
// chroot into an overlay on the host. It shows what the machine itself does.
type native struct {
	b *bench
	n atomic.Int64
}

func (n *native) how() string {
	return "`chroot` into an overlay of the same tree, mounted on the host"
}

func (n *native) start(context.Context) (machine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("needs root, for mount and chroot")
	}
	dir := filepath.Join(n.b.disk, fmt.Sprintf("native-%d", n.n.Add(1)))
	m := &nativeRoot{dir: dir, root: filepath.Join(dir, "root")}
	for _, sub := range []string{"upper", "work", "root"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	opts := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", n.b.tree, filepath.Join(dir, "upper"), filepath.Join(dir, "work"))
	if err := unix.Mount("overlay", m.root, "overlay", 0, opts); err != nil {
		return nil, fmt.Errorf("mount overlay: %w", err)
	}
	// git and others open it.
	if err := unix.Mount("/dev", filepath.Join(m.root, "dev"), "", unix.MS_BIND, ""); err != nil {
		return nil, errors.Join(fmt.Errorf("mount /dev: %w", err), unmountBelow(dir))
	}
	return m, nil
}

// nativeRoot is one mounted tree.
type nativeRoot struct{ dir, root string }

func (m *nativeRoot) exec(ctx context.Context, args ...string) (string, error) {
	p := program{args: []string{"chroot", m.root, "env", "-i", "HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}
	return p.output(ctx, args...)
}

func (m *nativeRoot) copyIn(ctx context.Context, host, path string) error {
	return program{args: []string{"cp"}}.run(ctx, nil, nil, host, filepath.Join(m.root, path))
}

func (m *nativeRoot) copyOut(ctx context.Context, path, host string) error {
	return program{args: []string{"cp"}}.run(ctx, nil, nil, filepath.Join(m.root, path), host)
}

func (m *nativeRoot) processes() ([]int, error) {
	return nil, errors.New("it has no processes of its own")
}

func (m *nativeRoot) remove(context.Context) error {
	if err := unmountBelow(m.dir); err != nil {
		return err
	}
	return os.RemoveAll(m.dir)
}
