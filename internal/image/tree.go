package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
)

const opUnpack = "image unpack"

// Tree is the unpacked root filesystem of an image. Nobody may write to it:
// all boxes of the image share it.
type Tree struct {
	Dir    string       // its root directory
	Owners layer.Owners // whether the owners of its files are those of the image
	Result layer.Result // what unpacking it left out
}

// treeFile is the content of a tree.json.
type treeFile struct {
	Format int          `json:"format"` // 1
	Digest string       `json:"digest"` // of the image
	Owners layer.Owners `json:"owners,omitempty"`
	Result layer.Result `json:"result"`
}

// treeName returns the name below trees: an image unpacked both ways has two.
func treeName(digest string, owners layer.Owners) string {
	if owners == layer.OneOwner {
		return hexOf(digest) + ".one"
	}
	return hexOf(digest)
}

func (s *Store) treeInfo(name string) (*treeFile, error) {
	data, err := readFile(s.path("trees", name, "tree.json"), 64<<10)
	if err != nil {
		return nil, err
	}
	var info treeFile
	if err := json.Unmarshal(data, &info); err != nil {
		return nil, fmt.Errorf("%s: %w", s.path("trees", name, "tree.json"), err)
	}
	return &info, nil
}

// Tree returns the unpacked tree of img, unpacking it with Config.Helper if
// that has not been done yet. When many ask at once, one does and the others
// wait. Owners "" means layer.OneOwner; images made by AddTree have one tree,
// whatever is asked for.
//
// Hold a lease on img while the tree is used.
func (s *Store) Tree(ctx context.Context, img Image, owners layer.Owners) (Tree, error) {
	object := img.Name
	if object == "" {
		object = img.Digest
	}
	switch owners {
	case "":
		owners = layer.OneOwner
	case layer.OneOwner, layer.KeepOwners:
	default:
		return Tree{}, &box.Error{Kind: box.Invalid, Op: opUnpack, Object: object, Err: fmt.Errorf("owners %q", owners)}
	}
	if img.treeKey != "" {
		owners = ""
	}
	name := treeName(img.Digest, owners)
	if t, err := s.openTree(name); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return t, localError(ctx, opUnpack, object, err)
	}
	if img.treeKey != "" {
		return Tree{}, &box.Error{Kind: box.NotFound, Op: opUnpack, Object: object, Err: errors.New("its tree is gone"), Hint: "make the image again"}
	}
	l, err := lockFile(ctx, s.path("locks", "tree-"+name), unix.LOCK_EX)
	if err != nil {
		return Tree{}, localError(ctx, opUnpack, object, err)
	}
	defer l.unlock()
	if t, err := s.openTree(name); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return t, localError(ctx, opUnpack, object, err) // the holder before us made it
	}
	lease, err := s.Lease(ctx, img.Digest)
	if err != nil {
		return Tree{}, localError(ctx, opUnpack, object, err)
	}
	defer func() { _ = lease.Close() }()
	job := layer.Job{Owners: owners, Limits: s.cfg.Limits, Confine: true}
	for _, l := range img.Layers {
		job.Layers = append(job.Layers, layer.Blob{Path: s.blobPath(hexOf(l.Digest)), Digest: l.Digest, DiffID: l.DiffID, Size: l.Size})
	}
	err = s.buildTree(ctx, name, treeFile{Digest: img.Digest, Owners: owners}, func(dir string) (layer.Result, error) {
		job.Dest = dir
		return s.cfg.Helper.Unpack(ctx, job)
	})
	if err != nil {
		return Tree{}, localError(ctx, opUnpack, object, err)
	}
	t, err := s.openTree(name)
	return t, localError(ctx, opUnpack, object, err)
}

func (s *Store) openTree(name string) (Tree, error) {
	info, err := s.treeInfo(name)
	if err != nil {
		return Tree{}, err
	}
	return Tree{Dir: s.path("trees", name, "rootfs"), Owners: info.Owners, Result: info.Result}, nil
}

// buildTree makes the tree called name with fill, which gets an empty
// directory, and publishes it when it is whole.
func (s *Store) buildTree(ctx context.Context, name string, info treeFile, fill func(dir string) (layer.Result, error)) (err error) {
	t, err := s.newTemp("tree")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.discard(ctx, t)) }()
	tree := filepath.Join(t.path, "tree")
	rootfs := filepath.Join(tree, "rootfs")
	if err := os.MkdirAll(rootfs, 0o700); err != nil {
		return err
	}
	info.Format = 1
	if info.Result, err = fill(rootfs); err != nil {
		return err
	}
	data, err := json.Marshal(info)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tree, "tree.json"), append(data, '\n'), 0o600); err != nil {
		return err
	}
	// A tree that a power cut left half on the disk must not look whole.
	// Syncing the filesystem is far quicker than syncing every file.
	d, err := os.Open(tree)
	if err != nil {
		return err
	}
	err = unix.Syncfs(int(d.Fd()))
	d.Close()
	if err != nil {
		return os.NewSyscallError("syncfs", err)
	}
	if err := os.Rename(tree, s.path("trees", name)); err != nil {
		return err
	}
	return syncDir(s.path("trees"))
}

// AddTree makes an image from a directory tree instead of layers, for images
// that this program generates. key says what build makes it from: while the
// store has an image with that key, build is not called and the image only
// gets the name. build fills an empty directory, and may be called at the same
// time by several processes; the first one counts.
//
// Such an image has no layers, cannot be saved, and is not removed by Prune
// while it has a name. Only AddTree can give its name to another image.
func (s *Store) AddTree(ctx context.Context, name, key string, cfg RunConfig, build func(ctx context.Context, dir string) error) (Image, error) {
	const op = "image add"
	r, err := parseName(op, name)
	if err != nil {
		return Image{}, err
	}
	if key == "" {
		return Image{}, &box.Error{Kind: box.Invalid, Op: op, Object: clip(name), Err: errors.New("a tree needs a key")}
	}
	if img, ok, err := s.haveTree(ctx, op, r.name(), key); ok || err != nil {
		return img, localError(ctx, op, clip(name), err)
	}
	done, err := s.adding(ctx)
	if err != nil {
		return Image{}, localError(ctx, op, clip(name), err)
	}
	defer done()
	cfg.Labels = withLabel(cfg.Labels, treeKey, key)
	d, manifest, config, err := makeImage(nil, nil, cfg, time.Time{}, "")
	if err != nil {
		return Image{}, localError(ctx, op, clip(name), err)
	}
	d.Annotations = map[string]string{treeKey: key}
	l, err := lockFile(ctx, s.path("locks", "tree-"+treeName(d.Digest.String(), "")), unix.LOCK_EX)
	if err != nil {
		return Image{}, localError(ctx, op, clip(name), err)
	}
	defer l.unlock()
	if img, ok, err := s.haveTree(ctx, op, r.name(), key); ok || err != nil {
		return img, localError(ctx, op, clip(name), err)
	}
	img, err := func() (Image, error) {
		if _, err := s.openTree(treeName(d.Digest.String(), "")); errors.Is(err, fs.ErrNotExist) {
			err := s.buildTree(ctx, treeName(d.Digest.String(), ""), treeFile{Digest: d.Digest.String()}, func(dir string) (layer.Result, error) {
				if err := build(ctx, dir); err != nil {
					return layer.Result{}, err
				}
				return measure(dir)
			})
			if err != nil {
				return Image{}, err
			}
		} else if err != nil {
			return Image{}, err
		}
		if err := s.writeBlob(ctx, config.digest, config.data); err != nil {
			return Image{}, err
		}
		return s.add(ctx, op, d, manifest, r.name())
	}()
	return img, localError(ctx, op, clip(name), err)
}

// haveTree returns the image that AddTree made from key before, under name.
func (s *Store) haveTree(ctx context.Context, op, name, key string) (img Image, ok bool, err error) {
	ix, err := s.readIndex()
	if err != nil {
		return Image{}, false, err
	}
	var hit *v1.Descriptor
	for i, d := range ix.Manifests {
		if d.Annotations[treeKey] == key && (hit == nil || d.Annotations[nameKey] == name) {
			hit = &ix.Manifests[i]
		}
	}
	if hit == nil {
		return Image{}, false, nil
	}
	if _, err := s.openTree(treeName(hit.Digest.String(), "")); err != nil {
		return Image{}, false, nil // half removed: make it again
	}
	if hit.Annotations[nameKey] == name {
		img, err = s.image(*hit)
		return img, err == nil, err
	}
	var d v1.Descriptor
	err = s.update(ctx, func(ix *v1.IndexManifest) error {
		var err error
		if _, err = s.findIn(ix, &Registries{}, op, hit.Digest.String()); err != nil {
			return err
		}
		d, err = file(ix, op, *hit, name)
		return err
	})
	if box.KindOf(err) == box.NotFound {
		return Image{}, false, nil
	}
	if err != nil {
		return Image{}, false, err
	}
	img, err = s.image(d)
	return img, err == nil, err
}

// measure counts what is in dir, as far as this process may look into it.
func measure(dir string) (res layer.Result, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return err
		}
		res.Entries++
		if d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				res.Bytes += info.Size()
			}
		}
		return nil
	})
	return res, err
}

func withLabel(labels map[string]string, key, value string) map[string]string {
	m := map[string]string{key: value}
	for k, v := range labels {
		m[k] = v
	}
	return m
}

// content is a blob in memory.
type content struct {
	data   []byte
	digest v1.Hash
}

// makeImage makes the manifest and configuration of an image of this machine's
// platform, unless another is given.
func makeImage(layers []v1.Descriptor, diffIDs []string, cfg RunConfig, created time.Time, platform string) (d v1.Descriptor, manifest []byte, config content, err error) {
	p := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	if platform != "" {
		if p, err = parsePlatform(platform); err != nil {
			return d, nil, config, err
		}
	}
	c := configFile{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant, Config: cfg}
	if !created.IsZero() {
		c.Created = created.UTC().Format(time.RFC3339)
	}
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", diffIDs
	if diffIDs == nil {
		c.RootFS.DiffIDs = []string{}
	}
	if config.data, err = json.Marshal(c); err != nil {
		return d, nil, config, err
	}
	if config.digest, err = hashOf(config.data); err != nil {
		return d, nil, config, err
	}
	d, manifest, err = makeManifest(layers, config, &p)
	return d, manifest, config, err
}

// makeManifest makes the manifest of an image from its parts.
func makeManifest(layers []v1.Descriptor, config content, p *v1.Platform) (v1.Descriptor, []byte, error) {
	if layers == nil {
		layers = []v1.Descriptor{}
	}
	manifest, err := json.Marshal(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Layers: layers,
		Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: config.digest, Size: int64(len(config.data))}})
	if err != nil {
		return v1.Descriptor{}, nil, err
	}
	h, err := hashOf(manifest)
	return v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: h, Size: int64(len(manifest)), Platform: p}, manifest, err
}
