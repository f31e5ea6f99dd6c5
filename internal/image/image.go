package image

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/hutch-sandbox/hutch/box"
)

// Image is an image of the store under one of its names.
type Image struct {
	Name         string    // normalised, "docker.io/library/python:3.12-slim" or "dev:latest"; "" when it has none
	Digest       string    // of the manifest, "sha256:…": the identity of the image
	Source       string    // digest of the multi-platform index it was chosen from; "" when it came as it is
	ConfigDigest string    // of the configuration: what docker calls the image ID
	Platform     string    // "linux/amd64", "linux/arm/v7"
	Size         int64     // bytes of its blobs on the disk, or of its tree if it was made from one
	Created      time.Time // zero when the image does not say
	Config       RunConfig // how to run it
	Layers       []Layer   // lowest first; none when it was made from a tree
	treeKey      string    // what AddTree made it from; "" for others
}

// Layer is one layer of an image.
type Layer struct {
	Digest    string // of the blob
	DiffID    string // of the tar in it
	MediaType string
	Size      int64 // of the blob, in bytes
}

// RunConfig says how an image wants to be run. Every field may be empty.
type RunConfig struct {
	Entrypoint   []string            `json:"Entrypoint,omitempty"`
	Cmd          []string            `json:"Cmd,omitempty"`
	Env          []string            `json:"Env,omitempty"` // NAME=value
	WorkingDir   string              `json:"WorkingDir,omitempty"`
	User         string              `json:"User,omitempty"`         // name or id, with :group or without
	ExposedPorts map[string]struct{} `json:"ExposedPorts,omitempty"` // "80/tcp"
	Volumes      map[string]struct{} `json:"Volumes,omitempty"`      // paths
	Labels       map[string]string   `json:"Labels,omitempty"`
	StopSignal   string              `json:"StopSignal,omitempty"` // "SIGTERM" or a number
}

// Marks in index.json.
const (
	nameKey   = "org.opencontainers.image.ref.name"
	sourceKey = "io.github.hutch-sandbox.image.source" // digest of the index it was chosen from
	treeKey   = "io.github.hutch-sandbox.image.tree"   // made by AddTree, from what
)

// configFile is the part of an image's configuration that matters here. Its
// own type, since a date that is not one should not make an image unusable.
type configFile struct {
	Created      string `json:"created,omitempty"`
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Variant      string `json:"variant,omitempty"`
	RootFS       struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	Config RunConfig `json:"config"`
}

func (c *configFile) platform() string {
	return platformString(c.OS, c.Architecture, c.Variant)
}

func platformString(os, arch, variant string) string {
	s := os + "/" + arch
	if variant != "" {
		s += "/" + variant
	}
	return s
}

// readAll reads r, which may have at most limit bytes.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("longer than %d bytes", limit)
	}
	return data, err
}

// parseManifest checks an image manifest as far as this store relies on it.
func parseManifest(data []byte) (*v1.Manifest, error) {
	m, err := v1.ParseManifest(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("the manifest is not readable: %w", err)
	}
	if m.MediaType.IsIndex() || m.Config.Digest.Hex == "" {
		return nil, errors.New("the manifest is not that of an image")
	}
	for _, d := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		if err := checkDescriptor(d); err != nil {
			return nil, err
		}
	}
	if m.Config.Size > maxConfig {
		return nil, fmt.Errorf("its configuration has %d bytes, at most %d are allowed", m.Config.Size, maxConfig)
	}
	if len(m.Layers) > maxLayers {
		return nil, fmt.Errorf("it has %d layers, at most %d are allowed", len(m.Layers), maxLayers)
	}
	return m, nil
}

const maxLayers = 512

func checkDescriptor(d v1.Descriptor) error {
	if !digForm().MatchString(d.Digest.String()) {
		return fmt.Errorf("%q is not a sha256 digest", clip(d.Digest.String()))
	}
	if d.Size < 0 {
		return fmt.Errorf("%s claims a size of %d bytes", d.Digest, d.Size)
	}
	return nil
}

// parseConfig checks a configuration against the manifest that names it.
func parseConfig(data []byte, m *v1.Manifest) (*configFile, error) {
	var c configFile
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("the configuration is not readable: %w", err)
	}
	if len(c.RootFS.DiffIDs) != len(m.Layers) {
		return nil, fmt.Errorf("the configuration knows %d layers, the manifest %d", len(c.RootFS.DiffIDs), len(m.Layers))
	}
	for _, d := range c.RootFS.DiffIDs {
		if !digForm().MatchString(d) {
			return nil, fmt.Errorf("%q is not a sha256 digest", clip(d))
		}
	}
	return &c, nil
}

// manifest reads that of an image in the store.
func (s *Store) manifest(h v1.Hash) (*v1.Manifest, error) {
	data, err := readFile(s.blobPath(h.Hex), maxManifest)
	if err != nil {
		return nil, err
	}
	return parseManifest(data)
}

// image makes an Image of an entry of the index.
func (s *Store) image(d v1.Descriptor) (Image, error) {
	m, err := s.manifest(d.Digest)
	if err != nil {
		return Image{}, fmt.Errorf("%s: %w", d.Digest, err)
	}
	data, err := readFile(s.blobPath(m.Config.Digest.Hex), maxConfig)
	if err != nil {
		return Image{}, fmt.Errorf("%s: %w", d.Digest, err)
	}
	c, err := parseConfig(data, m)
	if err != nil {
		return Image{}, fmt.Errorf("%s: %w", d.Digest, err)
	}
	img := Image{
		Name: d.Annotations[nameKey], Source: d.Annotations[sourceKey], treeKey: d.Annotations[treeKey],
		Digest: d.Digest.String(), ConfigDigest: m.Config.Digest.String(),
		Platform: c.platform(), Config: c.Config, Size: d.Size + m.Config.Size,
	}
	if t, err := time.Parse(time.RFC3339Nano, c.Created); err == nil {
		img.Created = t
	}
	for i, l := range m.Layers {
		img.Layers = append(img.Layers, Layer{Digest: l.Digest.String(), DiffID: c.RootFS.DiffIDs[i], MediaType: string(l.MediaType), Size: l.Size})
		img.Size += l.Size
	}
	if img.treeKey != "" {
		if info, err := s.treeInfo(treeName(img.Digest, "")); err == nil {
			img.Size += info.Result.Bytes
		}
	}
	return img, nil
}

// Get returns an image that is in the store. ref is a name, name@digest, a
// digest, or the unique start of the digest of a manifest or configuration.
// A name without a registry is that of an image made here, or else of one in
// the registries of the search order, or else on Docker Hub. The error is of
// kind NotFound if there is none.
func (s *Store) Get(ctx context.Context, ref string) (Image, error) {
	return s.get(ctx, "image get", ref)
}

func (s *Store) get(ctx context.Context, op, ref string) (Image, error) {
	d, err := s.find(ctx, op, ref)
	if err != nil {
		return Image{}, err
	}
	img, err := s.image(d)
	if errors.Is(err, fs.ErrNotExist) {
		// It was removed between our two looks at the disk.
		if _, again := s.find(ctx, op, ref); again != nil {
			return Image{}, again
		}
	}
	if err != nil {
		return Image{}, localError(ctx, op, clip(ref), err)
	}
	return img, nil
}

// find returns the entry of the index that ref means.
func (s *Store) find(ctx context.Context, op, ref string) (v1.Descriptor, error) {
	ix, err := s.readIndex()
	if err != nil {
		return v1.Descriptor{}, localError(ctx, op, clip(ref), err)
	}
	regs, err := s.registries(op)
	if err != nil {
		return v1.Descriptor{}, err
	}
	return s.findIn(ix, regs, op, ref)
}

func (s *Store) findIn(ix *v1.IndexManifest, regs *Registries, op, ref string) (v1.Descriptor, error) {
	r, perr := splitReference(ref)
	if perr == nil {
		for _, name := range localNames(r, regs) {
			for _, d := range ix.Manifests {
				if d.Annotations[nameKey] == name.name() || r.digest != "" && sameRepo(d, name) {
					return d, nil
				}
			}
		}
	}
	if shortForm().MatchString(ref) {
		hits := map[string]v1.Descriptor{}
		hex := hexOf(ref)
		for _, d := range ix.Manifests {
			if strings.HasPrefix(d.Digest.Hex, hex) {
				hits[d.Digest.Hex] = d
				continue
			}
			if m, err := s.manifest(d.Digest); err == nil && strings.HasPrefix(m.Config.Digest.Hex, hex) {
				hits[d.Digest.Hex] = d
			}
		}
		switch len(hits) {
		case 1:
			for _, d := range hits {
				return d, nil
			}
		case 0:
		default:
			return v1.Descriptor{}, &box.Error{Kind: box.Invalid, Op: op, Object: ref,
				Err: fmt.Errorf("%d images start with it", len(hits)), Hint: "give more digits"}
		}
		if perr == nil && len(hex) < 64 && !strings.HasPrefix(ref, "sha256:") {
			return v1.Descriptor{}, notHere(op, ref)
		}
		return v1.Descriptor{}, &box.Error{Kind: box.NotFound, Op: op, Object: ref,
			Err: errors.New("no image on this machine has that digest"), Hint: "hutch images lists them"}
	}
	if perr != nil {
		_, err := parseReference(op, ref)
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{}, notHere(op, ref)
}

func notHere(op, ref string) error {
	return &box.Error{Kind: box.NotFound, Op: op, Object: clip(ref),
		Err: errors.New("the image is not on this machine"), Hint: "hutch pull " + clip(ref)}
}

// localNames returns the names under which an image that r means may be filed,
// the likeliest first.
func localNames(r reference, regs *Registries) []reference {
	if r.registry != "" {
		return []reference{r}
	}
	names := []reference{r, r.in("localhost")} // podman's name for its own
	for _, reg := range append(slices.Clone(regs.Search), dockerHub) {
		if n := r.in(reg); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// sameRepo reports whether d is the image that r names by digest, filed under
// a tag of the same repository.
func sameRepo(d v1.Descriptor, r reference) bool {
	if d.Digest.String() != r.digest && d.Annotations[sourceKey] != r.digest {
		return false
	}
	have, err := splitReference(d.Annotations[nameKey])
	return err == nil && have.registry == r.registry && have.repo == r.repo
}

// List returns all images, one Image for each name and one for each image
// without a name, sorted by name. An image that cannot be read is left out of
// the list and is part of the error, which comes beside the others.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	const op = "image list"
	ix, err := s.readIndex()
	if err != nil {
		return nil, localError(ctx, op, s.dir, err)
	}
	var list []Image
	var errs []error
	for _, d := range ix.Manifests {
		img, err := s.image(d)
		if errors.Is(err, fs.ErrNotExist) && !s.lists(d) {
			continue // removed meanwhile
		}
		if err != nil {
			errs = append(errs, localError(ctx, op, "", err))
			continue
		}
		list = append(list, img)
	}
	slices.SortFunc(list, func(a, b Image) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Digest, b.Digest))
	})
	return list, errors.Join(errs...)
}

// lists reports whether the index still has an entry for d's image.
func (s *Store) lists(d v1.Descriptor) bool {
	ix, err := s.readIndex()
	return err == nil && slices.ContainsFunc(ix.Manifests, func(o v1.Descriptor) bool { return o.Digest == d.Digest })
}

// Tag gives the image that ref means another name. A name that another image
// has moves. name must have no digest.
func (s *Store) Tag(ctx context.Context, ref, name string) (Image, error) {
	const op = "image tag"
	to, err := parseName(op, name)
	if err != nil {
		return Image{}, err
	}
	regs, err := s.registries(op)
	if err != nil {
		return Image{}, err
	}
	var d v1.Descriptor
	err = s.update(ctx, func(ix *v1.IndexManifest) error {
		var err error
		if d, err = s.findIn(ix, regs, op, ref); err != nil {
			return err
		}
		d, err = file(ix, op, d, to.name())
		return err
	})
	if err != nil {
		return Image{}, localError(ctx, op, clip(ref), err)
	}
	img, err := s.image(d)
	return img, localError(ctx, op, clip(ref), err)
}

// parseName reads a name that is to be given to an image.
func parseName(op, name string) (reference, error) {
	r, err := parseReference(op, name)
	if err == nil && r.digest != "" {
		err = &box.Error{Kind: box.Invalid, Op: op, Object: clip(name), Err: errors.New("a name that is given to an image cannot have a digest")}
	}
	return r, err
}

// file enters d into ix as name, or without a name if that is "", and returns
// the entry. The image that had the name keeps its other names, or stays
// without one. The name of an image made by AddTree can only be taken by
// another such image.
func file(ix *v1.IndexManifest, op string, d v1.Descriptor, name string) (v1.Descriptor, error) {
	d.Annotations = map[string]string{nameKey: name, sourceKey: d.Annotations[sourceKey], treeKey: d.Annotations[treeKey]}
	for k, v := range d.Annotations {
		if v == "" {
			delete(d.Annotations, k)
		}
	}
	var kept []v1.Descriptor
	for _, o := range ix.Manifests {
		had := o.Annotations[nameKey]
		switch {
		case o.Digest == d.Digest && had == "" && name != "":
			continue // it has a name now
		case had != name:
		case o.Digest == d.Digest:
			continue // the same entry again
		case name == "":
		case o.Annotations[treeKey] != "" && d.Annotations[treeKey] == "":
			return d, &box.Error{Kind: box.Conflict, Op: op, Object: name,
				Err: errors.New("the name belongs to an image that comes with hutch"), Hint: "choose another name"}
		default:
			if slices.ContainsFunc(ix.Manifests, func(p v1.Descriptor) bool {
				return p.Digest == o.Digest && p.Annotations[nameKey] != name
			}) {
				continue
			}
			tree := o.Annotations[treeKey]
			if o.Annotations = nil; tree != "" {
				o.Annotations = map[string]string{treeKey: tree}
			}
		}
		kept = append(kept, o)
	}
	if name == "" && slices.ContainsFunc(kept, func(o v1.Descriptor) bool { return o.Digest == d.Digest }) {
		ix.Manifests = kept
		return d, nil
	}
	ix.Manifests = append(kept, d)
	return d, nil
}

// manifestType returns what to call a manifest that does not say.
func manifestType(m *v1.Manifest) types.MediaType {
	if m.MediaType == "" {
		return types.OCIManifestSchema1
	}
	return m.MediaType
}

// exists reports whether the blob is in the store, with the size it should have.
func (s *Store) exists(d v1.Descriptor) bool {
	st, err := os.Lstat(s.blobPath(d.Digest.Hex))
	return err == nil && st.Mode().IsRegular() && st.Size() == d.Size
}
