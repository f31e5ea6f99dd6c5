package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
)

// Format is the form of an archive of images.
type Format string

// The formats that Save writes. Load reads both.
const (
	DockerArchive Format = "docker-archive" // for docker load and podman load
	OCIArchive    Format = "oci-archive"    // an OCI layout in a tar; digests stay what they are
)

// Save writes the images that refs mean to w as a tar. It leaves the images
// leased meanwhile. An image made by AddTree has no layers to save: the error
// is of kind Unsupported.
func (s *Store) Save(ctx context.Context, w io.Writer, format Format, refs ...string) error {
	const op = "image save"
	if format != DockerArchive && format != OCIArchive {
		return &box.Error{Kind: box.Invalid, Op: op, Err: fmt.Errorf("format %q: must be %s or %s", clip(string(format)), DockerArchive, OCIArchive)}
	}
	if len(refs) == 0 {
		return &box.Error{Kind: box.Invalid, Op: op, Err: errors.New("no image is named")}
	}
	var imgs []Image
	for _, ref := range refs {
		img, err := s.get(ctx, op, ref)
		if err != nil {
			return err
		}
		if img.treeKey != "" {
			return &box.Error{Kind: box.Unsupported, Op: op, Object: clip(ref), Err: errors.New("the image comes with hutch and has no layers")}
		}
		if r, err := splitReference(ref); err != nil || r.digest != "" {
			img.Name = "" // asked for by digest: docker saves it without a name too
		}
		l, err := s.Lease(ctx, img.Digest)
		if err != nil {
			return localError(ctx, op, clip(ref), err)
		}
		defer func() { _ = l.Close() }()
		imgs = append(imgs, img)
	}
	a := &archive{ctx: ctx, s: s, w: tar.NewWriter(w), have: map[string]bool{}}
	var err error
	if format == OCIArchive {
		err = a.oci(imgs)
	} else {
		err = a.docker(imgs)
	}
	if err == nil {
		err = a.w.Close()
	}
	return localError(ctx, op, strings.Join(refs, " "), err)
}

// archive is a tar being written.
type archive struct {
	ctx  context.Context
	s    *Store
	w    *tar.Writer
	have map[string]bool // names written
}

func (a *archive) file(name string, size int64, r io.Reader) error {
	if a.have[name] {
		return nil
	}
	a.have[name] = true
	// The same images give the same archive.
	if err := a.w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0)}); err != nil {
		return err
	}
	_, err := io.Copy(a.w, ctxReader{a.ctx, r})
	return err
}

func (a *archive) json(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return a.file(name, int64(len(data)), strings.NewReader(string(data)))
}

// blob writes a blob of the store as name.
func (a *archive) blob(name, digest string) error {
	f, err := os.Open(a.s.blobPath(hexOf(digest)))
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	return a.file(name, st.Size(), f)
}

func (a *archive) oci(imgs []Image) error {
	if err := a.json("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}); err != nil {
		return err
	}
	ix := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, img := range imgs {
		h, err := v1.NewHash(img.Digest)
		if err != nil {
			return err
		}
		m, err := a.s.manifest(h)
		if err != nil {
			return err
		}
		st, err := os.Stat(a.s.blobPath(h.Hex))
		if err != nil {
			return err
		}
		d := v1.Descriptor{MediaType: manifestType(m), Digest: h, Size: st.Size()}
		if p, err := parsePlatform(img.Platform); err == nil {
			d.Platform = &p
		}
		if img.Name != "" {
			d.Annotations = map[string]string{nameKey: img.Name, containerdName: img.Name}
		}
		ix.Manifests = append(ix.Manifests, d)
		blobs := []string{img.Digest, img.ConfigDigest}
		for _, l := range img.Layers {
			blobs = append(blobs, l.Digest)
		}
		for _, b := range blobs {
			if err := a.blob("blobs/sha256/"+hexOf(b), b); err != nil {
				return err
			}
		}
	}
	return a.json("index.json", ix)
}

func (a *archive) docker(imgs []Image) error {
	var ms []dockerManifest
	for _, img := range imgs {
		dm := dockerManifest{Config: hexOf(img.ConfigDigest) + ".json", RepoTags: []string{}, Layers: []string{}}
		if img.Name != "" {
			// In full: docker takes a short name as Docker Hub's, podman as
			// its own.
			dm.RepoTags = append(dm.RepoTags, img.Name)
		}
		if err := a.blob(dm.Config, img.ConfigDigest); err != nil {
			return err
		}
		for _, l := range img.Layers {
			name, err := a.dockerLayer(l)
			if err != nil {
				return err
			}
			dm.Layers = append(dm.Layers, name)
		}
		// Several names of one image are one entry.
		if i := slices.IndexFunc(ms, func(o dockerManifest) bool { return o.Config == dm.Config && slices.Equal(o.Layers, dm.Layers) }); i >= 0 {
			ms[i].RepoTags = append(ms[i].RepoTags, dm.RepoTags...)
			continue
		}
		ms = append(ms, dm)
	}
	return a.json("manifest.json", ms)
}

// dockerLayer writes a layer. Loaders of this format take gzip as it is, but
// not all take zstd.
func (a *archive) dockerLayer(l Layer) (name string, err error) {
	f, err := os.Open(a.s.blobPath(hexOf(l.Digest)))
	if err != nil {
		return "", err
	}
	defer f.Close()
	mt, err := layerType(f)
	if err != nil {
		return "", err
	}
	switch mt {
	case types.OCILayer:
		name = hexOf(l.Digest) + ".tar.gz"
		return name, a.blob(name, l.Digest)
	case types.OCIUncompressedLayer:
		name = hexOf(l.Digest) + ".tar"
		return name, a.blob(name, l.Digest)
	}
	// The header of a tar comes first and has the size: expand it twice.
	name = hexOf(l.DiffID) + ".tar"
	if a.have[name] {
		return name, nil
	}
	var size int64
	for pass := range 2 {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return "", err
		}
		z, err := layer.Decompress(ctxReader{a.ctx, f})
		if err != nil {
			return "", err
		}
		limited := &limitReader{r: z, left: a.s.cfg.Limits.LayerBytes}
		if pass == 0 {
			size, err = io.Copy(io.Discard, limited)
		} else {
			err = a.file(name, size, limited)
		}
		z.Close()
		if err != nil {
			return "", err
		}
	}
	return name, nil
}
