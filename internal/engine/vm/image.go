//go:build linux || darwin

package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/vmboot"
	"github.com/hutch-sandbox/hutch/internal/x/filelock"
	"github.com/hutch-sandbox/hutch/internal/x/sparse"
)

// imageTemplate is the template of new boxes that have an image, a size and a
// user in common. The first such box is set up as nobody's: with a token that
// is thrown away and an environment that is empty. It is captured then, before
// it is told who it is, and has run nothing that its owner asked for.
type imageTemplate struct {
	dir   string // where it is, or would be
	image string // the image's file
	agent []byte // the agent's configuration in a machine that is nobody's
}

// imageTemplate returns the template that the box can start from, or can be
// made a template of; nil if there is none, because it has volumes, or a disk
// from an earlier boot.
func (e *Engine) imageTemplate(m *machine, cfg *engine.Config) *imageTemplate {
	if !canCapture || e.cold || len(cfg.Mounts) > 0 || len(cfg.Nobody) == 0 {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(cfg.DiskDir, diskFile)); !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	fi, err := os.Stat(cfg.Image)
	if err != nil {
		return nil
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	shared, err := json.Marshal([]any{
		cfg.Image, st.Dev, st.Ino, fi.Size(), fi.ModTime().UnixNano(),
		diskSize(cfg.Limits.Disk), network(cfg.Net), cfg.NobodyKey,
	})
	if err != nil {
		return nil
	}
	return &imageTemplate{
		dir:   filepath.Join(templateRoot(cfg.CacheDir), sinceBoot()+hash([]byte(m.key()), shared)),
		image: cfg.Image, agent: cfg.Nobody,
	}
}

// create makes the template of a machine that is nobody's yet. If somebody else
// makes one just now, it makes none.
func (t *imageTemplate) create(ctx context.Context, m *machine, p *vmProcess, cfg *engine.Config) error {
	lock, err := filelock.TryLock(filepath.Join(filepath.Dir(t.dir), "lock"))
	if err != nil || lock == nil {
		return err
	}
	defer lock.Close()
	if _, err := openCapture(t.dir); err == nil {
		return nil
	}
	return publish(t.dir, func(tmp, made string) error {
		if err := writeCapture(ctx, m, p, made, source{disk: m.hw.disk, image: t.image}); err != nil {
			return err
		}
		return t.try(ctx, m, cfg, made, filepath.Join(tmp, "trial"))
	})
}

// try starts a machine from the template, and gives it an identity.
func (t *imageTemplate) try(ctx context.Context, m *machine, cfg *engine.Config, dir, state string) error {
	trial := *m
	noLink, err := trial.strip()
	if err != nil {
		return err
	}
	defer noLink()
	if err := os.Mkdir(state, 0o700); err != nil {
		return err
	}
	disk := filepath.Join(state, diskFile)
	if err := sparse.Copy(ctx, disk, filepath.Join(dir, diskFile)); err != nil {
		return fmt.Errorf("trial: disk: %w", err)
	}
	if trial.hw.disk, err = os.OpenFile(disk, os.O_RDWR, 0); err != nil {
		return fmt.Errorf("trial: disk: %w", err)
	}
	defer trial.hw.disk.Close()
	trial.hw.image, trial.hw.modules = m.hw.image, m.hw.modules
	return trial.try(ctx, cfg, dir, state, vmboot.Message{Adopt: &vmboot.Adopt{Identity: newIdentity(t.agent)}})
}
