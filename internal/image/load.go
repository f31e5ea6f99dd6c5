package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
)

const opLoad = "image load"

// maxMembers bounds the files of an archive of images.
const maxMembers = 20_000

// containerdName is where containerd and docker put the full name.
const containerdName = "io.containerd.image.name"

// Load adds the images of an archive: what docker save or podman save writes
// (docker-archive), or an OCI layout in a tar; plain or compressed with gzip or
// zstd. Of an image for several platforms it takes the one of this machine. It
// returns one Image for each name, and one for each image without a name.
func (s *Store) Load(ctx context.Context, r io.Reader) ([]Image, error) {
	list, err := s.loadTar(ctx, r)
	return list, localError(ctx, opLoad, "", err)
}

// LoadPath is Load for a file, or for a directory that is an OCI layout.
func (s *Store) LoadPath(ctx context.Context, name string) ([]Image, error) {
	load := func() ([]Image, error) {
		st, err := os.Stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &box.Error{Kind: box.NotFound, Err: errors.New("no such file or directory")}
		}
		if err != nil {
			return nil, err
		}
		if st.IsDir() {
			root, err := os.OpenRoot(name)
			if err != nil {
				return nil, err
			}
			defer func() { _ = root.Close() }()
			return s.loadFrom(ctx, dirSource{root})
		}
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return s.loadTar(ctx, f)
	}
	list, err := load()
	return list, localError(ctx, opLoad, name, err)
}

// source is where an archive's files can be opened by name, in any order. A
// file that does not exist is fs.ErrNotExist.
type source interface {
	open(name string) (*os.File, error)
}

// dirSource is an OCI layout on the disk. It does not follow links out of it.
type dirSource struct{ root *os.Root }

func (d dirSource) open(name string) (*os.File, error) {
	f, err := d.root.Open(name)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, invalid("%s is not a regular file", name)
	}
	return f, nil
}

// tarSource is an archive, spooled into numbered files.
type tarSource struct {
	dir     string
	members map[string]member
}

type member struct {
	number int
	link   string // instead of a file, the name of another member
}

func (t tarSource) open(name string) (*os.File, error) {
	for range 8 {
		m, ok := t.members[path.Clean(name)]
		if !ok {
			return nil, fs.ErrNotExist
		}
		if m.link == "" {
			return os.Open(filepath.Join(t.dir, strconv.Itoa(m.number)))
		}
		name = m.link
	}
	return nil, invalid("%s is a link that leads nowhere", clip(name))
}

func invalid(format string, args ...any) error {
	return &box.Error{Kind: box.Invalid, Err: fmt.Errorf(format, args...)}
}

func (s *Store) loadTar(ctx context.Context, r io.Reader) ([]Image, error) {
	t, err := s.newTemp("load")
	if err != nil {
		return nil, err
	}
	defer s.discard(ctx, t) //nolint:errcheck // what stays is reclaimed by the next Open
	z, err := layer.Decompress(ctxReader{ctx, r})
	if err != nil {
		return nil, invalid("not an archive of images: %s", clip(err.Error()))
	}
	defer z.Close()
	src := tarSource{dir: t.path, members: map[string]member{}}
	tr := tar.NewReader(&limitReader{r: z, left: s.cfg.Limits.TotalBytes})
	for n := 0; ; n++ {
		hdr, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err == nil && n >= maxMembers {
			err = &box.Error{Kind: box.Exhausted, Err: fmt.Errorf("the archive has more than %d files", maxMembers)}
		}
		if err != nil {
			return nil, archiveError(ctx, err)
		}
		name := path.Clean(strings.TrimPrefix(hdr.Name, "/"))
		switch hdr.Typeflag {
		case tar.TypeReg:
			if err := writeMember(filepath.Join(t.path, strconv.Itoa(n)), tr); err != nil {
				return nil, archiveError(ctx, err)
			}
			src.members[name] = member{number: n}
		case tar.TypeSymlink:
			src.members[name] = member{link: path.Join(path.Dir(name), hdr.Linkname)}
		case tar.TypeLink:
			src.members[name] = member{link: path.Clean(strings.TrimPrefix(hdr.Linkname, "/"))}
		}
	}
	return s.loadFrom(ctx, src)
}

func archiveError(ctx context.Context, err error) error {
	var e *box.Error
	var disk *fs.PathError
	if ctx.Err() != nil || errors.As(err, &e) || errors.As(err, &disk) {
		return err
	}
	return invalid("the archive is damaged: %s", clip(err.Error()))
}

func writeMember(name string, r io.Reader) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// readSource reads a small file of src.
func readSource(src source, name string, limit int64) ([]byte, error) {
	f, err := src.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := readAll(f, limit)
	if err != nil {
		return nil, invalid("%s: %v", clip(name), err)
	}
	return data, nil
}

func (s *Store) loadFrom(ctx context.Context, src source) ([]Image, error) {
	done, err := s.adding(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if index, err := readSource(src, "index.json", maxIndex); err == nil {
		return s.loadOCI(ctx, src, index)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	manifest, err := readSource(src, "manifest.json", maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &box.Error{Kind: box.Invalid, Err: errors.New("neither a docker archive (manifest.json) nor an OCI layout (index.json)"),
			Hint: "a tar of a root filesystem is for hutch image import"}
	}
	if err != nil {
		return nil, err
	}
	return s.loadDocker(ctx, src, manifest)
}

// copyBlob puts the file name of src into the store, checked against d.
func (s *Store) copyBlob(ctx context.Context, src source, name string, d v1.Descriptor) error {
	if err := checkDescriptor(d); err != nil {
		return invalid("%s", err)
	}
	if s.exists(d) {
		return nil
	}
	sp, err := s.spoolFrom(ctx, src, name)
	if err != nil {
		return err
	}
	defer sp.discard()
	if sp.desc.Digest != d.Digest || sp.desc.Size != d.Size {
		return invalid("%s has %d bytes with digest %s, not %d bytes with digest %s", clip(name), sp.desc.Size, sp.desc.Digest, d.Size, d.Digest)
	}
	return sp.keep()
}

func (s *Store) spoolFrom(ctx context.Context, src source, name string) (*spool, error) {
	f, err := src.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, invalid("the archive lacks %s", clip(name))
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return s.spool(ctx, f, s.cfg.Limits.TotalBytes)
}

func ociBlob(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// loadOCI loads every image of an OCI layout.
func (s *Store) loadOCI(ctx context.Context, src source, index []byte) ([]Image, error) {
	var ix v1.IndexManifest
	if err := json.Unmarshal(index, &ix); err != nil {
		return nil, invalid("index.json is not readable: %s", clip(err.Error()))
	}
	var list []Image
	want := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	for _, d := range ix.Manifests {
		if d.Annotations["vnd.docker.reference.type"] != "" {
			continue // an attestation
		}
		name, err := archivedName(d.Annotations)
		if err != nil {
			return list, err
		}
		img, err := s.loadDescriptor(ctx, src, d, name, want)
		if err != nil {
			return list, err
		}
		list = append(list, img)
	}
	if len(list) == 0 {
		return nil, invalid("the archive holds no image")
	}
	return list, nil
}

// archivedName returns the name that an OCI layout gives an image, or "".
func archivedName(annotations map[string]string) (string, error) {
	name := annotations[containerdName]
	if name == "" {
		name = annotations[nameKey]
	}
	if name == "" || name == defaultTag {
		return "", nil
	}
	r, err := parseReference(opLoad, name)
	if err != nil {
		return "", err
	}
	return r.name(), nil
}

func (s *Store) loadDescriptor(ctx context.Context, src source, d v1.Descriptor, name string, want v1.Platform) (Image, error) {
	out := map[string]string{}
	for range maxIndexDepth {
		if err := checkDescriptor(d); err != nil {
			return Image{}, invalid("%s", err)
		}
		raw, err := readSource(src, ociBlob(d.Digest), maxManifest)
		if errors.Is(err, fs.ErrNotExist) {
			return Image{}, invalid("the archive lacks %s", ociBlob(d.Digest))
		}
		if err != nil {
			return Image{}, err
		}
		if h, err := hashOf(raw); err != nil || h != d.Digest {
			return Image{}, invalid("%s has digest %s", ociBlob(d.Digest), h)
		}
		if isIndex(raw, d.MediaType) {
			var ix v1.IndexManifest
			if err := json.Unmarshal(raw, &ix); err != nil {
				return Image{}, invalid("%s is not readable: %s", ociBlob(d.Digest), clip(err.Error()))
			}
			next, have := choose(ix.Manifests, want)
			if next == nil {
				return Image{}, &box.Error{Kind: box.NotFound, Err: fmt.Errorf("there is no image for %s in it, only for %s",
					platformString(want.OS, want.Architecture, want.Variant), clip(strings.Join(have, ", ")))}
			}
			if out[sourceKey] == "" {
				out[sourceKey] = d.Digest.String()
			}
			d = *next
			continue
		}
		m, err := parseManifest(raw)
		if err != nil {
			return Image{}, invalid("%s", clip(err.Error()))
		}
		if err := s.copyBlob(ctx, src, ociBlob(m.Config.Digest), m.Config); err != nil {
			return Image{}, err
		}
		config, err := readFile(s.blobPath(m.Config.Digest.Hex), maxConfig)
		if err != nil {
			return Image{}, err
		}
		c, err := parseConfig(config, m)
		if err != nil {
			return Image{}, invalid("%s", clip(err.Error()))
		}
		for _, l := range m.Layers {
			if err := s.copyBlob(ctx, src, ociBlob(l.Digest), l); err != nil {
				return Image{}, err
			}
		}
		p := v1.Platform{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant}
		return s.add(ctx, opLoad, v1.Descriptor{MediaType: manifestType(m), Digest: d.Digest, Size: int64(len(raw)), Platform: &p, Annotations: out}, raw, name)
	}
	return Image{}, invalid("its indexes are nested too deep")
}

// dockerManifest is an entry of the manifest.json of a docker-archive.
type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// loadDocker loads every image of a docker-archive. Such an archive has no
// manifests, so they are made here: what an image's ID was in docker is its
// ConfigDigest here.
func (s *Store) loadDocker(ctx context.Context, src source, manifest []byte) ([]Image, error) {
	var ms []dockerManifest
	if err := json.Unmarshal(manifest, &ms); err != nil {
		return nil, invalid("manifest.json is not readable: %s", clip(err.Error()))
	}
	if len(ms) == 0 {
		return nil, invalid("the archive holds no image")
	}
	var list []Image
	for _, dm := range ms {
		imgs, err := s.loadDockerImage(ctx, src, dm)
		list = append(list, imgs...)
		if err != nil {
			return list, err
		}
	}
	return list, nil
}

func (s *Store) loadDockerImage(ctx context.Context, src source, dm dockerManifest) ([]Image, error) {
	names := []string{}
	for _, tag := range dm.RepoTags {
		r, err := parseReference(opLoad, tag)
		if err != nil {
			return nil, err
		}
		if r.registry == "" { // docker's short names are Docker Hub's
			r = r.in(dockerHub)
		}
		names = append(names, r.name())
	}
	if len(names) == 0 {
		names = append(names, "")
	}
	data, err := readSource(src, dm.Config, maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, invalid("the archive lacks %s", clip(dm.Config))
	}
	if err != nil {
		return nil, err
	}
	h, err := hashOf(data)
	if err != nil {
		return nil, err
	}
	if len(dm.Layers) > maxLayers {
		return nil, invalid("it has %d layers, at most %d are allowed", len(dm.Layers), maxLayers)
	}
	c, err := parseConfig(data, &v1.Manifest{Layers: make([]v1.Descriptor, len(dm.Layers))})
	if err != nil {
		return nil, invalid("%s", clip(err.Error()))
	}
	var layers []v1.Descriptor
	for i, name := range dm.Layers {
		d, err := s.loadDockerLayer(ctx, src, name, c.RootFS.DiffIDs[i])
		if err != nil {
			return nil, err
		}
		layers = append(layers, d)
	}
	if err := s.writeBlob(ctx, h, data); err != nil {
		return nil, err
	}
	p := v1.Platform{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant}
	d, manifest, err := makeManifest(layers, content{data, h}, &p)
	if err != nil {
		return nil, err
	}
	var list []Image
	for _, name := range names {
		img, err := s.add(ctx, opLoad, d, manifest, name)
		if err != nil {
			return list, err
		}
		list = append(list, img)
	}
	return list, nil
}

func (s *Store) loadDockerLayer(ctx context.Context, src source, name, diffID string) (v1.Descriptor, error) {
	sp, err := s.spoolFrom(ctx, src, name)
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer sp.discard()
	f, err := os.Open(sp.path)
	if err != nil {
		return v1.Descriptor{}, err
	}
	sp.desc.MediaType, err = layerType(f)
	f.Close()
	if err != nil {
		return v1.Descriptor{}, err
	}
	// A compressed layer is compared with its DiffID when it is unpacked.
	if sp.desc.MediaType == types.OCIUncompressedLayer && sp.desc.Digest.String() != diffID {
		return v1.Descriptor{}, invalid("%s has digest %s, the image says %s", clip(name), sp.desc.Digest, diffID)
	}
	return sp.desc, sp.keep()
}
