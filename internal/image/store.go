// Package image keeps OCI images on the disk of this machine: it gets them
// from registries, archives and Debian's package archive, and unpacks each of
// them once into a directory tree that any number of boxes share.
//
// A [Store] is a directory that any number of processes use at the same time:
//
//	oci-layout, index.json    an OCI image layout; index.json says which images
//	blobs/sha256/<hex>        there are and their names
//	trees/<hex>/rootfs        the unpacked tree of the image with that digest
//	trees/<hex>/tree.json     how it was unpacked
//	partial/<hex>             a download under way, or cut off and to be resumed
//	tmp/<kind>-<random>/      work in progress; its maker holds a lock on it
//	locks/                    lock files, and a spare file that is given up when
//	                          the disk is full, so that images can be removed
//
// Everything appears by rename once it is whole, so a crash leaves the old
// state or the new one. What a killed process left in tmp is removed by the
// next Open or Prune; partial downloads stay until they are resumed or pruned.
//
// Locks are flocks, which the kernel drops with their process. They are waited
// for in this order: gc, then that of one download or tree, then store. store
// guards index.json. gc is held shared by whoever adds blobs that index.json
// does not mention yet, and exclusively by who removes the blobs that it does
// not mention. A lease is held shared by who is about to use an image
// ([Store.Lease]), and exclusively by who removes it. To remove something, its
// lock is tried and never waited for.
//
// Errors are *box.Error. Secrets (passwords, tokens) are in none of them.
package image

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
)

// Config configures a Store. The zero value works.
type Config struct {
	// Registries is the path of a file in the form of [Registries]. "" or a
	// file that does not exist: Docker Hub is searched, without mirrors.
	Registries string
	// DockerConfig is the directory that holds a config.json with credentials.
	// "": where docker and podman look ($DOCKER_CONFIG or ~/.docker, then
	// $REGISTRY_AUTH_FILE, $XDG_RUNTIME_DIR/containers/auth.json and
	// ~/.config/containers/auth.json).
	DockerConfig string
	// Helper unpacks and removes trees. Nil: this process does, which is for
	// tests and tools.
	Helper layer.Helper
	// Limits bound unpacking, and with it what is loaded and downloaded.
	Limits layer.Limits
	// UserAgent is sent to registries. "" is "hutch".
	UserAgent string
}

// Store is an images folder. Its methods may be called at the same time, by
// any number of goroutines and processes. There is nothing to close.
type Store struct {
	dir      string
	cfg      Config
	patience patience
}

// Open opens the images folder dir and makes it if it does not exist. It
// removes what killed processes left behind.
func Open(ctx context.Context, dir string, cfg Config) (*Store, error) {
	const op = "image open"
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, &box.Error{Kind: box.Invalid, Op: op, Object: dir, Err: err}
	}
	if cfg.Helper == nil {
		cfg.Helper = layer.Here{}
	}
	if cfg.UserAgent == "" {
		cfg.UserAgent = "hutch"
	}
	if cfg.Limits.LayerBytes <= 0 {
		cfg.Limits.LayerBytes = layer.DefaultLayerBytes
	}
	if cfg.Limits.TotalBytes <= 0 {
		cfg.Limits.TotalBytes = max(layer.DefaultTotalBytes, cfg.Limits.LayerBytes)
	}
	s := &Store{dir: dir, cfg: cfg, patience: usualPatience}
	for _, d := range []string{"blobs/sha256", "trees", "partial", "tmp", "locks"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, localError(ctx, op, dir, err)
		}
	}
	if _, err := os.Stat(s.path("index.json")); errors.Is(err, fs.ErrNotExist) {
		if err := s.create(ctx); err != nil {
			return nil, localError(ctx, op, dir, err)
		}
	} else if err != nil {
		return nil, localError(ctx, op, dir, err)
	}
	if _, err := s.readIndex(); err != nil {
		return nil, localError(ctx, op, dir, err)
	}
	if err := s.reclaim(ctx); err != nil {
		return nil, localError(ctx, op, dir, err)
	}
	s.refillSpare()
	return s, nil
}

// spareSize is enough for a new index.json and a directory or two.
const spareSize = 128 << 10

// refillSpare keeps some disk space back, which withSpare gives away. That it
// cannot, on a disk that is full, is no error.
func (s *Store) refillSpare() {
	path := s.path("locks", "spare")
	if _, err := os.Lstat(path); err == nil {
		return
	}
	if os.WriteFile(path, bytes.Repeat([]byte("spare\n"), spareSize/6), 0o600) != nil {
		os.Remove(path)
	}
}

// withSpare calls f, and once more with the spare disk space if there is none
// left without: removing an image must work on a full disk, of all places.
func (s *Store) withSpare(f func() error) error {
	err := f()
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		if os.Remove(s.path("locks", "spare")) == nil {
			err = f()
		}
	}
	return err
}

func (s *Store) create(ctx context.Context) error {
	return s.update(ctx, func(ix *v1.IndexManifest) error {
		return s.writeFile("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`+"\n"))
	})
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

func (s *Store) blobPath(hex string) string { return s.path("blobs", "sha256", hex) }

// hexOf returns the part of a digest that is its file name.
func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// writeFile replaces the file name of the store's top directory. Callers hold
// the store lock, so the name of the temporary file is free.
func (s *Store) writeFile(name string, data []byte) error {
	return s.withSpare(func() error { return s.tryWriteFile(name, data) })
}

func (s *Store) tryWriteFile(name string, data []byte) error {
	tmp := s.path("." + name + ".new")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, s.path(name))
	}
	if err != nil {
		os.Remove(tmp)
		return err
	}
	return syncDir(s.dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// maxIndex bounds index.json and manifests; maxConfig bounds configurations.
const (
	maxIndex    = 64 << 20
	maxManifest = 4 << 20
	maxConfig   = 8 << 20
)

func (s *Store) readIndex() (*v1.IndexManifest, error) {
	data, err := readFile(s.path("index.json"), maxIndex)
	if err != nil {
		return nil, err
	}
	var ix v1.IndexManifest
	if err := json.Unmarshal(data, &ix); err != nil {
		return nil, fmt.Errorf("%s: %w", s.path("index.json"), err)
	}
	return &ix, nil
}

// update changes index.json under the store lock. When f fails, it stays.
func (s *Store) update(ctx context.Context, f func(*v1.IndexManifest) error) error {
	l, err := lockFile(ctx, s.path("locks", "store"), unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer l.unlock()
	ix, err := s.readIndex()
	if errors.Is(err, fs.ErrNotExist) {
		ix, err = &v1.IndexManifest{SchemaVersion: 2, MediaType: "application/vnd.oci.image.index.v1+json"}, nil
	}
	if err != nil {
		return err
	}
	if err := f(ix); err != nil {
		return err
	}
	if ix.Manifests == nil {
		ix.Manifests = []v1.Descriptor{}
	}
	data, err := json.MarshalIndent(ix, "", "  ")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if old, err := readFile(s.path("index.json"), maxIndex); err == nil && bytes.Equal(old, data) {
		return nil
	}
	return s.writeFile("index.json", data)
}

// adding announces that blobs will appear which index.json does not mention
// yet. Call the result when it does, or when they are not wanted any more.
func (s *Store) adding(ctx context.Context) (done func(), err error) {
	l, err := lockFile(ctx, s.path("locks", "gc"), unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	return func() {
		l.unlock()
		if _, err := os.Lstat(s.path("locks", "sweep")); err == nil {
			// Somebody removed an image meanwhile and left its blobs to us.
			// If this fails the mark stays for the next one.
			_, _ = s.sweep(context.WithoutCancel(ctx))
		}
	}, nil
}

// temp is a directory below tmp that belongs to this process.
type temp struct {
	path string
	lock *fileLock
}

// newTemp makes one. Its owner removes it with s.discard, or renames what is
// in it and then does.
func (s *Store) newTemp(kind string) (*temp, error) {
	for {
		path := s.path("tmp", kind+"-"+rand.Text())
		if err := s.withSpare(func() error { return os.Mkdir(path, 0o700) }); err != nil {
			return nil, err
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // reclaimed before it was locked
		}
		if err != nil {
			return nil, err
		}
		ok, err := flock(f, unix.LOCK_EX)
		if err != nil {
			f.Close()
			return nil, err
		}
		if ok && isAt(f, path) {
			return &temp{path: path, lock: &fileLock{f}}, nil
		}
		f.Close()
	}
}

// discard removes t and all that is in it.
func (s *Store) discard(ctx context.Context, t *temp) error {
	defer t.lock.unlock()
	// Most hold plain files of ours; a tree may need the helper.
	if layer.RemoveAll(t.path) == nil {
		return nil
	}
	return s.cfg.Helper.Remove(context.WithoutCancel(ctx), t.path)
}

// reclaim removes what is in tmp and belongs to no living process.
func (s *Store) reclaim(ctx context.Context) error {
	names, err := os.ReadDir(s.path("tmp"))
	if err != nil {
		return err
	}
	for _, n := range names {
		path := s.path("tmp", n.Name())
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		ok, err := flock(f, unix.LOCK_EX)
		if err != nil || !ok {
			f.Close()
			if err != nil {
				return err
			}
			continue
		}
		if err := s.discard(ctx, &temp{path: path, lock: &fileLock{f}}); err != nil {
			return err
		}
	}
	return nil
}

// readFile reads a whole file of at most limit bytes.
func readFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, limit)
}

// localError makes an error of this machine's disk one for the user.
func localError(ctx context.Context, op, object string, err error) error {
	if err == nil {
		return nil
	}
	var e *box.Error
	if errors.As(err, &e) {
		if e.Op == op {
			return err
		}
		// The outer operation is the one the user asked for.
		c := *e
		if c.Object != "" && c.Object != object {
			c.Err = errors.New(c.Object + ": " + causeOf(e))
		}
		c.Op, c.Object = op, object
		return &c
	}
	if ctx.Err() != nil {
		return &box.Error{Kind: box.KindOf(ctx.Err()), Op: op, Object: object, Err: ctx.Err()}
	}
	e = &box.Error{Kind: box.Internal, Op: op, Object: object, Err: err}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e.Kind, e.Hint = box.Exhausted, "free some disk space; hutch image prune removes what is not needed"
	case errors.Is(err, unix.EMFILE):
		e.Kind = box.Exhausted
	case errors.Is(err, fs.ErrPermission):
		e.Kind = box.Permission
	}
	return e
}

func causeOf(e *box.Error) string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return string(e.Kind)
}
