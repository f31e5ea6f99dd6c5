package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
)

// Lease keeps an image from being removed, by this process and by others. It
// ends with Close, or with the process.
type Lease struct {
	once sync.Once
	lock *fileLock
}

// Close ends the lease. It may be called twice.
func (l *Lease) Close() error {
	l.once.Do(l.lock.unlock)
	return nil
}

func (s *Store) leasePath(digest string) string { return s.path("locks", "lease-"+hexOf(digest)) }

// Lease takes a lease on the image with that manifest digest. The error is of
// kind NotFound if the image is not in the store (any more). Hold it from
// choosing an image until what uses it is written down where the inUse
// function given to Remove and Prune looks.
func (s *Store) Lease(ctx context.Context, digest string) (*Lease, error) {
	const op = "image lease"
	if !digForm().MatchString(digest) {
		return nil, &box.Error{Kind: box.Invalid, Op: op, Object: clip(digest), Err: errors.New("not a digest")}
	}
	l, err := lockFile(ctx, s.leasePath(digest), unix.LOCK_SH)
	if err != nil {
		return nil, localError(ctx, op, digest, err)
	}
	ix, err := s.readIndex()
	if err == nil && !slices.ContainsFunc(ix.Manifests, func(d v1.Descriptor) bool { return d.Digest.String() == digest }) {
		err = notHere(op, digest)
	}
	if err != nil {
		l.unlock()
		return nil, localError(ctx, op, digest, err)
	}
	return &Lease{lock: l}, nil
}

// Use pulls the image as Pull does and takes a lease on it, so that nobody can
// remove it in between.
func (s *Store) Use(ctx context.Context, ref string, opts PullOptions) (Image, *Lease, error) {
	for {
		img, err := s.Pull(ctx, ref, opts)
		if err != nil {
			return Image{}, nil, err
		}
		l, err := s.Lease(ctx, img.Digest)
		if err == nil {
			return img, l, nil
		}
		if box.KindOf(err) != box.NotFound {
			return Image{}, nil, err
		}
	}
}

// InUse returns the names of the boxes and snapshots that use the image with
// that manifest digest, as things are when it is called.
type InUse func(digest string) ([]string, error)

// Removed says what Remove or Prune did.
type Removed struct {
	Untagged []string // names that are gone
	Deleted  []string // digests of images that are gone
	Freed    int64    // bytes given back to the disk; what another process is still busy with is freed later
}

// Remove takes the name ref away from its image, and removes the image with
// its blobs and trees when that was the last name. A digest stands for all
// names. An image that inUse knows, or somebody has a lease on, stays: the
// error is of kind Conflict.
func (s *Store) Remove(ctx context.Context, ref string, inUse InUse) (Removed, error) {
	const op = "image rm"
	var out Removed
	regs, err := s.registries(op)
	if err != nil {
		return out, err
	}
	var gone *removal
	err = s.update(ctx, func(ix *v1.IndexManifest) error {
		d, err := s.findIn(ix, regs, op, ref)
		if err != nil {
			return err
		}
		name := d.Annotations[nameKey]
		var names []string
		for _, o := range ix.Manifests {
			if o.Digest == d.Digest && o.Annotations[nameKey] != "" {
				names = append(names, o.Annotations[nameKey])
			}
		}
		// A reference that is no name stands for the image itself.
		byName := false
		if r, err := splitReference(ref); err == nil && r.digest == "" {
			for _, n := range localNames(r, regs) {
				byName = byName || n.name() == name
			}
		} else if err == nil {
			byName = r.in(registryOf(name)).name() == name
		}
		if byName && len(names) > 1 {
			ix.Manifests = slices.DeleteFunc(ix.Manifests, func(o v1.Descriptor) bool {
				return o.Digest == d.Digest && o.Annotations[nameKey] == name
			})
			out.Untagged = []string{name}
			return nil
		}
		gone, err = s.take(op, clip(ref), d.Digest, inUse)
		if err != nil {
			return err
		}
		ix.Manifests = slices.DeleteFunc(ix.Manifests, func(o v1.Descriptor) bool { return o.Digest == d.Digest })
		out.Untagged = names
		out.Deleted = []string{d.Digest.String()}
		return nil
	})
	if gone != nil {
		defer gone.lease.unlock()
	}
	if err != nil {
		return Removed{}, localError(ctx, op, clip(ref), err)
	}
	if gone == nil {
		return out, nil
	}
	n, err := s.drop(ctx, gone)
	out.Freed += n
	if err == nil {
		n, err = s.collect(ctx)
		out.Freed += n
	}
	s.refillSpare()
	return out, localError(ctx, op, clip(ref), err)
}

func registryOf(name string) string {
	r, _ := splitReference(name) // "" for what is no name
	return r.registry
}

// removal is an image on its way out: nobody has a lease on it.
type removal struct {
	digest v1.Hash
	lease  *fileLock
}

// take checks that the image may go, and keeps others from taking a lease on
// it. The caller holds the store lock.
func (s *Store) take(op, object string, h v1.Hash, inUse InUse) (*removal, error) {
	l, err := tryLockFile(s.leasePath(h.String()), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, &box.Error{Kind: box.Conflict, Op: op, Object: object, Err: errors.New("the image is just being used to make a box"), Hint: "try again"}
	}
	// After the lock: whoever had a lease has by now written down what for.
	if inUse != nil {
		users, err := inUse(h.String())
		if err == nil && len(users) > 0 {
			rest := users[min(len(users), 5):]
			list := strings.Join(users[:len(users)-len(rest)], ", ")
			if len(rest) > 0 {
				list += fmt.Sprintf(" and %d more", len(rest))
			}
			err = &box.Error{Kind: box.Conflict, Op: op, Object: object, Err: fmt.Errorf("the image is used by %s", list), Hint: "remove that first"}
		}
		if err != nil {
			l.unlock()
			return nil, err
		}
	}
	return &removal{digest: h, lease: l}, nil
}

// drop removes the trees of an image that index.json no longer mentions, and
// its lock files.
func (s *Store) drop(ctx context.Context, r *removal) (freed int64, err error) {
	for _, owners := range []layer.Owners{layer.KeepOwners, layer.OneOwner} {
		name := treeName(r.digest.String(), owners)
		n, err := s.dropTree(ctx, name)
		if freed += n; err != nil {
			return freed, err
		}
		os.Remove(s.path("locks", "tree-"+name))
	}
	os.Remove(s.leasePath(r.digest.String()))
	return freed, nil
}

// dropTree removes a published tree: at one stroke out of sight, then in peace.
func (s *Store) dropTree(ctx context.Context, name string) (int64, error) {
	t, err := s.newTemp("rm")
	if err != nil {
		return 0, err
	}
	err = os.Rename(s.path("trees", name), filepath.Join(t.path, "tree"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, s.discard(ctx, t)
	}
	if err != nil {
		return 0, errors.Join(err, s.discard(ctx, t))
	}
	// Looking at every file takes as long as removing it, and may not be
	// possible from outside the user namespace of the tree.
	var freed int64
	if data, err := readFile(filepath.Join(t.path, "tree", "tree.json"), 64<<10); err == nil {
		var info treeFile
		if json.Unmarshal(data, &info) == nil {
			freed = info.Result.Bytes
		}
	}
	return freed, s.discard(ctx, t)
}

// usage returns how many bytes dir has on the disk, as far as it can be seen.
func usage(dir string) (n int64) {
	seen := map[uint64]bool{} // files with several links
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err != nil || unix.Lstat(path, &st) != nil {
			return nil
		}
		if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if seen[st.Ino] {
				return nil
			}
			seen[st.Ino] = true
		}
		n += st.Blocks * 512
		return nil
	})
	return n
}

// collect sweeps now, or leaves it to who is adding blobs at the moment.
func (s *Store) collect(ctx context.Context) (int64, error) {
	err := s.withSpare(func() error { return os.WriteFile(s.path("locks", "sweep"), nil, 0o600) })
	if err != nil {
		return 0, err
	}
	return s.sweep(ctx)
}

// sweep removes blobs that no image of index.json has, unless somebody is
// adding some, who then sweeps.
func (s *Store) sweep(ctx context.Context) (freed int64, err error) {
	gc, err := tryLockFile(s.path("locks", "gc"), unix.LOCK_EX)
	if gc == nil || err != nil {
		return 0, err
	}
	defer gc.unlock()
	if err := os.Remove(s.path("locks", "sweep")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	err = s.locked(ctx, func(ix *v1.IndexManifest) error {
		keep := map[string]bool{}
		for _, d := range ix.Manifests {
			m, err := s.manifest(d.Digest)
			if err != nil {
				// Without it nobody knows what must stay.
				return fmt.Errorf("%s: %w", d.Digest, err)
			}
			keep[d.Digest.Hex], keep[m.Config.Digest.Hex] = true, true
			for _, l := range m.Layers {
				keep[l.Digest.Hex] = true
			}
		}
		names, err := os.ReadDir(s.path("blobs", "sha256"))
		if err != nil {
			return err
		}
		for _, n := range names {
			if keep[n.Name()] {
				continue
			}
			if info, err := n.Info(); err == nil {
				freed += info.Size()
			}
			if err := os.Remove(s.blobPath(n.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
	return freed, err
}

// locked calls f under the store lock without changing the index.
func (s *Store) locked(ctx context.Context, f func(*v1.IndexManifest) error) error {
	l, err := lockFile(ctx, s.path("locks", "store"), unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer l.unlock()
	ix, err := s.readIndex()
	if err != nil {
		return err
	}
	return f(ix)
}

// PruneOptions are the choices of Prune.
type PruneOptions struct {
	// All removes every image that is not in use, not only those without a name.
	All bool
}

// Prune removes images that nobody needs, and what is left of interrupted
// downloads and killed processes. An image that inUse knows or that somebody
// has a lease on stays, and so do images made by AddTree that have a name.
func (s *Store) Prune(ctx context.Context, inUse InUse, opts PruneOptions) (Removed, error) {
	const op = "image prune"
	var out Removed
	var gone []*removal
	defer func() {
		for _, g := range gone {
			g.lease.unlock()
		}
	}()
	// What needs no room first: the disk may be full.
	n, err := s.dropPartials()
	out.Freed += n
	if err == nil {
		before := usage(s.path("tmp"))
		err = s.reclaim(ctx)
		out.Freed += max(0, before-usage(s.path("tmp")))
	}
	if err != nil {
		return out, localError(ctx, op, "", err)
	}
	err = s.update(ctx, func(ix *v1.IndexManifest) error {
		named, pinned := map[v1.Hash][]string{}, map[v1.Hash]bool{}
		for _, d := range ix.Manifests {
			n := d.Annotations[nameKey]
			if n != "" {
				named[d.Digest] = append(named[d.Digest], n)
			}
			pinned[d.Digest] = pinned[d.Digest] || n != "" && d.Annotations[treeKey] != ""
		}
		drop := map[v1.Hash]bool{}
		for _, d := range ix.Manifests {
			if drop[d.Digest] || pinned[d.Digest] || len(named[d.Digest]) > 0 && !opts.All {
				continue
			}
			g, err := s.take(op, d.Digest.String(), d.Digest, inUse)
			if box.KindOf(err) == box.Conflict {
				continue
			}
			if err != nil {
				return err
			}
			gone = append(gone, g)
			drop[d.Digest] = true
			out.Deleted = append(out.Deleted, d.Digest.String())
			out.Untagged = append(out.Untagged, named[d.Digest]...)
		}
		ix.Manifests = slices.DeleteFunc(ix.Manifests, func(d v1.Descriptor) bool { return drop[d.Digest] })
		return nil
	})
	if err != nil {
		return out, localError(ctx, op, "", err)
	}
	for _, g := range gone {
		n, err := s.drop(ctx, g)
		if out.Freed += n; err != nil {
			return out, localError(ctx, op, "", err)
		}
	}
	for _, step := range []func(context.Context) (int64, error){s.collect, s.dropOrphanTrees} {
		n, err := step(ctx)
		if out.Freed += n; err != nil {
			return out, localError(ctx, op, "", err)
		}
	}
	s.refillSpare()
	return out, nil
}

// dropPartials removes the downloads that nobody goes on with.
func (s *Store) dropPartials() (freed int64, err error) {
	names, err := os.ReadDir(s.path("partial"))
	if err != nil {
		return 0, err
	}
	for _, n := range names {
		path := s.path("partial", n.Name())
		l, err := tryLockFile(path, unix.LOCK_EX)
		if err != nil {
			return freed, err
		}
		if l == nil {
			continue
		}
		if st, err := l.f.Stat(); err == nil {
			freed += st.Size()
		}
		err = os.Remove(path)
		l.unlock()
		if err != nil {
			return freed, err
		}
	}
	return freed, nil
}

// dropOrphanTrees removes trees of images that are no longer in the index: a
// process was killed after it had taken the image out.
func (s *Store) dropOrphanTrees(ctx context.Context) (freed int64, err error) {
	names, err := os.ReadDir(s.path("trees"))
	if err != nil {
		return 0, err
	}
	for _, n := range names {
		l, err := tryLockFile(s.path("locks", "tree-"+n.Name()), unix.LOCK_EX)
		if err != nil {
			return freed, err
		}
		if l == nil {
			continue // just being made
		}
		orphan := false
		err = s.locked(ctx, func(ix *v1.IndexManifest) error {
			hex, _, _ := strings.Cut(n.Name(), ".")
			orphan = !slices.ContainsFunc(ix.Manifests, func(d v1.Descriptor) bool { return d.Digest.Hex == hex })
			return nil
		})
		if err == nil && orphan {
			var freedNow int64
			freedNow, err = s.dropTree(ctx, n.Name())
			freed += freedNow
			os.Remove(s.path("locks", "tree-"+n.Name()))
		}
		l.unlock()
		if err != nil {
			return freed, err
		}
	}
	return freed, nil
}
