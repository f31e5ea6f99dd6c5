package box

import (
	"context"
	"errors"
	"io"
)

// Images is the images of a Runtime. It may be used by any number of
// goroutines.
type Images struct {
	driver ImageDriver
}

// Pull fetches an image from its registry, and returns the one that is here
// already where opts.Policy allows.
func (i *Images) Pull(ctx context.Context, ref string, opts PullOptions) (Image, error) {
	if err := needRef("image pull", ref); err != nil {
		return Image{}, err
	}
	switch opts.Policy {
	case PullMissing, PullAlways, PullNever:
	default:
		return Image{}, &Error{Kind: Invalid, Op: "image pull", Object: ref, Err: errors.New("unknown pull policy " + string(opts.Policy)), Hint: `use "always", "never" or nothing`}
	}
	img, err := i.driver.Pull(ctx, ref, opts)
	return img, wrap("image pull", ref, err)
}

// Get finds an image by name or digest.
func (i *Images) Get(ctx context.Context, ref string) (Image, error) {
	if err := needRef("image inspect", ref); err != nil {
		return Image{}, err
	}
	img, err := i.driver.Get(ctx, ref)
	return img, wrap("image inspect", ref, err)
}

// List returns all images.
func (i *Images) List(ctx context.Context) ([]Image, error) {
	imgs, err := i.driver.List(ctx)
	return imgs, wrap("image list", "", err)
}

// Load reads a docker archive or an OCI archive, plain, gzip or zstd.
func (i *Images) Load(ctx context.Context, r io.Reader) ([]Image, error) {
	imgs, err := i.driver.Load(ctx, r)
	return imgs, wrap("image load", "", err)
}

// LoadDir reads an OCI layout folder on the runtime's host.
func (i *Images) LoadDir(ctx context.Context, dir string) ([]Image, error) {
	imgs, err := i.driver.LoadDir(ctx, dir)
	return imgs, wrap("image load", dir, err)
}

// Save writes images to w as an archive; format is "oci" (also "") or "docker".
func (i *Images) Save(ctx context.Context, w io.Writer, format string, refs ...string) error {
	if len(refs) == 0 {
		return needRef("image save", "")
	}
	switch format {
	case "", "oci", "docker":
	default:
		return &Error{Kind: Invalid, Op: "image save", Object: "format", Err: errors.New("unknown format " + clip(format)), Hint: `use "oci" or "docker"`}
	}
	return wrap("image save", refs[0], i.driver.Save(ctx, w, format, refs...))
}

// Import makes an image called name of a root file system tar, plain, gzip or
// zstd.
func (i *Images) Import(ctx context.Context, r io.Reader, name string, cfg ImageConfig) (Image, error) {
	if err := needRef("image import", name); err != nil {
		return Image{}, err
	}
	img, err := i.driver.Import(ctx, r, name, cfg)
	return img, wrap("image import", name, err)
}

// Tag gives an image one more name.
func (i *Images) Tag(ctx context.Context, ref, name string) error {
	if err := needRef("image tag", ref); err != nil {
		return err
	}
	if err := needRef("image tag", name); err != nil {
		return err
	}
	return wrap("image tag", ref, i.driver.Tag(ctx, ref, name))
}

// Remove removes a name, and the image with its last name. An image that a box
// uses is refused (Conflict).
func (i *Images) Remove(ctx context.Context, ref string) error {
	if err := needRef("image remove", ref); err != nil {
		return err
	}
	return wrap("image remove", ref, i.driver.Remove(ctx, ref))
}

// Prune removes what no name and no box uses, and returns the bytes freed. All
// means also named images that no box uses.
func (i *Images) Prune(ctx context.Context, all bool) (int64, error) {
	n, err := i.driver.Prune(ctx, all)
	return n, wrap("image prune", "", err)
}

// Debian builds an image called name from Debian's archive with mmdebstrap.
func (i *Images) Debian(ctx context.Context, name string, opts DebianOptions) (Image, error) {
	if err := needRef("image debian", name); err != nil {
		return Image{}, err
	}
	img, err := i.driver.Debian(ctx, name, opts)
	return img, wrap("image debian", name, err)
}

func needRef(op, ref string) error {
	if ref != "" {
		return nil
	}
	return &Error{Kind: Invalid, Op: op, Err: errors.New("no image named"), Hint: "give an image's name, for example python:3.12-slim"}
}
