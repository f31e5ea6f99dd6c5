package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hutch-sandbox/hutch/internal/boxdir"
	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/x/erofs"
	"github.com/hutch-sandbox/hutch/internal/x/filelock"
)

// rootForm returns the box's image in the form that the engine wants. The
// EROFS form of an image lies beside its tree, goes with it, and is made by
// the first box that needs it; that of a folder of the user's belongs to the
// box.
func rootForm(ctx context.Context, form engine.Form, b *boxdir.Box, rec boxdir.Record) (string, error) {
	switch form {
	case engine.Tree:
		return rec.Tree, nil
	case engine.EROFS:
	default:
		return "", fmt.Errorf("boot: no image has the form %q", form)
	}
	file := filepath.Join(filepath.Dir(rec.Tree), "rootfs.erofs")
	if rec.Spec.RootFS != "" {
		file = b.Path("rootfs.erofs")
	}
	if _, err := os.Stat(file); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	lock, err := filelock.Lock(ctx, file+".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(file); err == nil {
		return file, nil // whoever had the lock made it
	}
	tmp := file + ".new" // of nobody else: we have the lock
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", err
	}
	err = erofs.Write(ctx, rec.Tree, f)
	if err == nil {
		err = f.Sync() // a power cut must not leave half of it under its name
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, file)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return "", fmt.Errorf("image: %w", err)
	}
	return file, nil
}
