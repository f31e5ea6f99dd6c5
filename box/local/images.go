package local

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image"
)

// Images returns the image store of the home.
func (d *driver) Images() box.ImageDriver { return images{d} }

// images implements box.ImageDriver.
type images struct{ d *driver }

func (i images) Pull(ctx context.Context, ref string, opts box.PullOptions) (box.Image, error) {
	img, err := i.d.store.Pull(ctx, ref, image.PullOptions{
		Platform: opts.Platform, Policy: pullPolicy(opts.Policy), Progress: pullProgress(opts.Progress),
	})
	return i.one(ctx, img, err)
}

func (i images) Get(ctx context.Context, ref string) (box.Image, error) {
	img, err := i.d.store.Get(ctx, ref)
	return i.one(ctx, img, err)
}

// List joins the names of one image into one entry.
func (i images) List(ctx context.Context) ([]box.Image, error) {
	list, err := i.d.store.List(ctx)
	if err != nil {
		return nil, err
	}
	return group(list), nil
}

func group(list []image.Image) []box.Image {
	var out []box.Image
	at := map[string]int{}
	for _, img := range list {
		n, ok := at[img.Digest]
		if !ok {
			n = len(out)
			at[img.Digest] = n
			out = append(out, publicImage(img))
		}
		if img.Name != "" && !slices.Contains(out[n].Names, img.Name) {
			out[n].Names = append(out[n].Names, img.Name)
		}
	}
	return out
}

// one fills in the other names of an image.
func (i images) one(ctx context.Context, img image.Image, err error) (box.Image, error) {
	if err != nil {
		return box.Image{}, err
	}
	list, err := i.List(ctx)
	if err != nil {
		return box.Image{}, err
	}
	for _, other := range list {
		if other.Digest == img.Digest {
			return other, nil
		}
	}
	return publicImage(img), nil
}

func publicImage(img image.Image) box.Image {
	out := box.Image{Digest: img.Digest, Platform: img.Platform, Size: img.Size, Created: img.Created,
		Layers: len(img.Layers), Config: imageConfig(img.Config)}
	if img.Name != "" {
		out.Names = []string{img.Name}
	}
	return out
}

func (i images) Load(ctx context.Context, r io.Reader) ([]box.Image, error) {
	list, err := i.d.store.Load(ctx, r)
	return group(list), err
}

func (i images) LoadDir(ctx context.Context, dir string) ([]box.Image, error) {
	list, err := i.d.store.LoadPath(ctx, dir)
	return group(list), err
}

func (i images) Save(ctx context.Context, w io.Writer, format string, refs ...string) error {
	formats := map[string]image.Format{"": image.OCIArchive, "oci": image.OCIArchive, "docker": image.DockerArchive}
	f, ok := formats[format]
	if !ok {
		return &box.Error{Kind: box.Invalid, Op: "image save", Object: "format " + format, Err: errors.New("unknown format"), Hint: "use oci or docker"}
	}
	return i.d.store.Save(ctx, w, f, refs...)
}

func (i images) Import(ctx context.Context, r io.Reader, name string, cfg box.ImageConfig) (box.Image, error) {
	img, err := i.d.store.Import(ctx, r, name, image.ImportOptions{Config: runConfig(cfg)})
	return i.one(ctx, img, err)
}

func (i images) Tag(ctx context.Context, ref, name string) error {
	_, err := i.d.store.Tag(ctx, ref, name)
	return err
}

func (i images) Remove(ctx context.Context, ref string) error {
	_, err := i.d.store.Remove(ctx, ref, i.d.imageUsers)
	if box.KindOf(err) != box.Conflict {
		return err
	}
	// Perhaps it is used by nothing but a box booted ahead, which is nobody's.
	if had, gerr := i.d.warm.giveUp(ctx); gerr != nil || !had {
		return cmp.Or(gerr, err)
	}
	_, err = i.d.store.Remove(ctx, ref, i.d.imageUsers)
	return err
}

func (i images) Prune(ctx context.Context, all bool) (int64, error) {
	if all { // what is used by a box booted ahead is used by nobody
		if _, err := i.d.warm.giveUp(ctx); err != nil {
			return 0, err
		}
	}
	out, err := i.d.store.Prune(ctx, i.d.imageUsers, image.PruneOptions{All: all})
	return out.Freed, err
}

// imageUsers names the boxes that boot from an image.
func (d *driver) imageUsers(digest string) ([]string, error) {
	ids, err := d.home.IDs()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, id := range ids {
		if rec, err := d.home.Box(id).Load(); err == nil && rec.Digest == digest {
			names = append(names, cmp.Or(rec.Name, "a box that a running program keeps booted ahead"))
		}
	}
	return names, nil
}

func pullPolicy(p box.PullPolicy) image.Policy {
	switch p {
	case box.PullAlways:
		return image.PullAlways
	case box.PullNever:
		return image.PullNever
	}
	return image.PullMissing
}

func pullProgress(f func(box.PullProgress)) func(image.Progress) {
	if f == nil {
		return nil
	}
	return func(p image.Progress) {
		f(box.PullProgress{Layer: p.Digest, Phase: string(p.Phase), Done: p.Done, Total: p.Total})
	}
}

func imageConfig(c image.RunConfig) box.ImageConfig {
	return box.ImageConfig{Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, Dir: c.WorkingDir, User: c.User, Labels: c.Labels, StopSignal: c.StopSignal}
}

func runConfig(c box.ImageConfig) image.RunConfig {
	return image.RunConfig{Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, WorkingDir: c.Dir, User: c.User, Labels: c.Labels, StopSignal: c.StopSignal}
}

func (i images) Debian(ctx context.Context, name string, opts box.DebianOptions) (box.Image, error) {
	img, err := i.d.store.Debian(ctx, name, image.DebianOptions{
		Suite: opts.Suite, Mirror: opts.Mirror, Include: opts.Include, Progress: opts.Progress,
	})
	return i.one(ctx, img, err)
}
