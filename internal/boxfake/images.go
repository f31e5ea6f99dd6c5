package boxfake

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// storedImage is an image of the host: the programs and folders that every box
// here has, with the files of a tar laid over them.
type storedImage struct {
	box.Image
	layer []byte // a tar; may be empty
}

func builtinImage() *storedImage {
	return &storedImage{Image: box.Image{
		Names: []string{box.BuiltinImage}, Digest: digestOf([]byte("builtin")), Platform: "linux/amd64", Size: 1 << 20, Layers: 1,
		Created: time.Unix(0, 0).UTC(), Config: box.ImageConfig{Cmd: []string{"/bin/sh"}},
	}}
}

func digestOf(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// newRoot is the file system of the builtin image.
func newRoot() *memFS {
	f := newFS()
	root := account{}
	mode := func(dir string, perm fs.FileMode) {
		if err := f.mkdir(dir, perm, true, root); err != nil {
			panic(err) // only for the programmer
		}
	}
	for _, dir := range []string{"/bin", "/dev", "/etc", "/home", "/proc", "/root", "/sys", "/usr/bin", "/var/lib", "/home/user"} {
		mode(dir, 0o755)
	}
	for _, dir := range []string{"/tmp", "/dev/shm", "/var/tmp"} {
		mode(dir, 0o777|fs.ModeSticky)
	}
	put := func(path string, n *node) {
		f.mu.Lock()
		defer f.mu.Unlock()
		p, err := f.walk(path, false)
		if err != nil {
			panic(err)
		}
		f.create(p, n, root)
	}
	for _, name := range programNames() {
		n := f.newNode(0o755)
		n.program = name
		put("/bin/"+name, n)
	}
	for name, kind := range map[string]string{"null": "null", "zero": "zero", "random": "random", "urandom": "random"} {
		n := f.newNode(fs.ModeDevice | fs.ModeCharDevice | 0o666)
		n.device = kind
		put("/dev/"+name, n)
	}
	passwd := f.newNode(0o644)
	for _, a := range accounts {
		passwd.data = fmt.Appendf(passwd.data, "%s:x:%d:%d::/home/%[1]s:/bin/sh\n", a.name, a.uid, a.gid)
	}
	put("/etc/passwd", passwd)
	return f
}

func (i *storedImage) fill(f *memFS) error {
	if len(i.layer) == 0 {
		return nil
	}
	return f.unpack("/", bytes.NewReader(i.layer), box.UnpackOptions{KeepOwner: true}, account{})
}

// imageDriver is a box.ImageDriver.
type imageDriver struct{ d *Driver }

// Images implements box.Driver.
func (d *Driver) Images() box.ImageDriver { return imageDriver{d} }

// imageLocked finds an image by name or digest.
func (h *host) imageLocked(ref string) *storedImage {
	for _, i := range h.images {
		if slices.Contains(i.Names, ref) || i.Digest == ref || len(ref) >= 12 && strings.HasPrefix(strings.TrimPrefix(i.Digest, "sha256:"), ref) {
			return i
		}
	}
	return nil
}

func noImage(op, ref string) error {
	return &box.Error{Kind: box.NotFound, Op: op, Object: ref, Err: errors.New("no such image"), Hint: "hutch pull " + ref}
}

func (d *Driver) resolveImage(ctx context.Context, spec box.Spec) (*storedImage, error) {
	ref := spec.Image
	if ref == "" {
		ref = box.BuiltinImage
	}
	if spec.Pull == box.PullNever || ref == box.BuiltinImage {
		d.h.mu.Lock()
		defer d.h.mu.Unlock()
		if i := d.h.imageLocked(ref); i != nil {
			return i, nil
		}
		return nil, noImage("create", ref)
	}
	if _, err := d.Images().Pull(ctx, ref, box.PullOptions{Policy: spec.Pull}); err != nil {
		return nil, err
	}
	d.h.mu.Lock()
	defer d.h.mu.Unlock()
	if i := d.h.imageLocked(ref); i != nil {
		return i, nil
	}
	return nil, noImage("create", ref)
}

func (s imageDriver) Pull(ctx context.Context, ref string, opts box.PullOptions) (box.Image, error) {
	if err := s.d.fail(ctx, "pull", ""); err != nil {
		return box.Image{}, err
	}
	s.d.h.mu.Lock()
	have := s.d.h.imageLocked(ref)
	s.d.h.mu.Unlock()
	if have != nil && (opts.Policy != box.PullAlways || ref == box.BuiltinImage) {
		return have.Image, nil
	}
	cfg, ok := s.d.h.cfg.Registry[ref]
	if opts.Policy == box.PullNever || !ok {
		return box.Image{}, noImage("image pull", ref)
	}
	if opts.Progress != nil {
		layer := digestOf([]byte("layer " + ref))
		for _, phase := range []string{"waiting", "downloading", "unpacking", "done"} {
			done := int64(0)
			if phase != "waiting" {
				done = 1 << 20
			}
			opts.Progress(box.PullProgress{Layer: layer, Phase: phase, Done: done, Total: 1 << 20})
		}
	}
	img := &storedImage{Image: box.Image{
		Names: []string{ref}, Digest: digestOf([]byte(ref)), Platform: "linux/amd64", Size: 1 << 20, Layers: 1, Created: time.Unix(0, 0).UTC(), Config: cfg,
	}}
	return s.add(img), nil
}

// add stores an image; its names leave other images.
func (s imageDriver) add(img *storedImage) box.Image {
	h := s.d.h
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range img.Names {
		h.untag(name)
	}
	if same := h.imageLocked(img.Digest); same != nil {
		for _, name := range img.Names {
			if !slices.Contains(same.Names, name) {
				same.Names = append(same.Names, name)
			}
		}
		return same.Image
	}
	h.images = append(h.images, img)
	return img.Image
}

func (h *host) untag(name string) {
	for _, i := range h.images {
		i.Names = slices.DeleteFunc(slices.Clone(i.Names), func(n string) bool { return n == name })
	}
}

func (s imageDriver) Get(ctx context.Context, ref string) (box.Image, error) {
	if err := s.d.fail(ctx, "imageget", ""); err != nil {
		return box.Image{}, err
	}
	s.d.h.mu.Lock()
	defer s.d.h.mu.Unlock()
	if i := s.d.h.imageLocked(ref); i != nil {
		return i.Image, nil
	}
	return box.Image{}, noImage("image inspect", ref)
}

func (s imageDriver) List(ctx context.Context) ([]box.Image, error) {
	if err := s.d.fail(ctx, "imagelist", ""); err != nil {
		return nil, err
	}
	s.d.h.mu.Lock()
	defer s.d.h.mu.Unlock()
	imgs := []box.Image{}
	for _, i := range s.d.h.images {
		imgs = append(imgs, i.Image)
	}
	return imgs, nil
}

// archived is an image in this fake's archives, which only it reads: a tar
// with one JSON file for each.
type archived struct {
	Image box.Image
	Layer []byte
}

func (s imageDriver) Save(ctx context.Context, w io.Writer, _ string, refs ...string) error {
	if err := s.d.fail(ctx, "save", ""); err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	for i, ref := range refs {
		s.d.h.mu.Lock()
		img := s.d.h.imageLocked(ref)
		var data []byte
		var err error
		if img != nil {
			data, err = json.Marshal(archived{img.Image, img.layer})
		}
		s.d.h.mu.Unlock()
		if img == nil {
			return noImage("image save", ref)
		}
		if err != nil {
			return err
		}
		if err := tw.WriteHeader(&tar.Header{Name: fmt.Sprintf("boxfake/%d.json", i), Mode: 0o644, Size: int64(len(data))}); err != nil {
			return err
		}
		if _, err := tw.Write(data); err != nil {
			return err
		}
	}
	return tw.Close()
}

func (s imageDriver) Load(ctx context.Context, r io.Reader) ([]box.Image, error) {
	if err := s.d.fail(ctx, "load", ""); err != nil {
		return nil, err
	}
	bad := func(err error) error {
		return &box.Error{Kind: box.Invalid, Op: "image load", Err: err, Hint: "give an archive that this fake's Save wrote"}
	}
	imgs := []box.Image{}
	tr := tar.NewReader(r)
	for {
		_, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, bad(err)
		}
		var a archived
		if err := json.NewDecoder(tr).Decode(&a); err != nil {
			return nil, bad(err)
		}
		imgs = append(imgs, s.add(&storedImage{a.Image, a.Layer}))
	}
	if len(imgs) == 0 {
		return nil, bad(errors.New("no image in it"))
	}
	return imgs, nil
}

// LoadDir loads every file of a folder as Load does.
func (s imageDriver) LoadDir(ctx context.Context, dir string) ([]box.Image, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, &box.Error{Kind: box.NotFound, Op: "image load", Object: dir, Err: errors.New("no archive there")}
	}
	var all []box.Image
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		imgs, err := s.Load(ctx, f)
		_ = f.Close()
		if err != nil {
			return nil, err
		}
		all = append(all, imgs...)
	}
	return all, nil
}

func (s imageDriver) Import(ctx context.Context, r io.Reader, name string, cfg box.ImageConfig) (box.Image, error) {
	if err := s.d.fail(ctx, "import", ""); err != nil {
		return box.Image{}, err
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return box.Image{}, err
	}
	if z, err := gzip.NewReader(bytes.NewReader(data)); err == nil {
		if data, err = io.ReadAll(z); err != nil {
			return box.Image{}, &box.Error{Kind: box.Invalid, Op: "image import", Object: name, Err: err}
		}
	}
	img := &storedImage{box.Image{
		Names: []string{name}, Digest: digestOf(data), Platform: "linux/amd64", Size: int64(len(data)), Layers: 1, Created: time.Now(), Config: cfg,
	}, data}
	if err := img.fill(newRoot()); err != nil {
		return box.Image{}, err
	}
	return s.add(img), nil
}

func (s imageDriver) Tag(ctx context.Context, ref, name string) error {
	if err := s.d.fail(ctx, "tag", ""); err != nil {
		return err
	}
	h := s.d.h
	h.mu.Lock()
	defer h.mu.Unlock()
	i := h.imageLocked(ref)
	if i == nil {
		return noImage("image tag", ref)
	}
	h.untag(name)
	i.Names = append(i.Names, name)
	return nil
}

func (h *host) used(i *storedImage) *machineState {
	for _, m := range h.boxes {
		if m.image == i {
			return m
		}
	}
	return nil
}

func (s imageDriver) Remove(ctx context.Context, ref string) error {
	if err := s.d.fail(ctx, "imageremove", ""); err != nil {
		return err
	}
	h := s.d.h
	h.mu.Lock()
	defer h.mu.Unlock()
	i := h.imageLocked(ref)
	switch {
	case i == nil:
		return noImage("image remove", ref)
	case slices.Contains(i.Names, box.BuiltinImage) && (ref == box.BuiltinImage || len(i.Names) == 1):
		return &box.Error{Kind: box.Invalid, Op: "image remove", Object: ref, Err: errors.New("the builtin image is part of Hutch")}
	}
	if slices.Contains(i.Names, ref) && len(i.Names) > 1 {
		h.untag(ref)
		return nil
	}
	if m := h.used(i); m != nil {
		return &box.Error{Kind: box.Conflict, Op: "image remove", Object: ref, Err: fmt.Errorf("box %s uses it", m.name), Hint: "hutch rm " + m.name}
	}
	h.images = slices.DeleteFunc(h.images, func(x *storedImage) bool { return x == i })
	return nil
}

func (s imageDriver) Prune(ctx context.Context, all bool) (int64, error) {
	if err := s.d.fail(ctx, "prune", ""); err != nil {
		return 0, err
	}
	h := s.d.h
	h.mu.Lock()
	defer h.mu.Unlock()
	var freed int64
	h.images = slices.DeleteFunc(h.images, func(i *storedImage) bool {
		if slices.Contains(i.Names, box.BuiltinImage) || h.used(i) != nil || len(i.Names) > 0 && !all {
			return false
		}
		freed += i.Size
		return true
	})
	return freed, nil
}

func (s imageDriver) Debian(ctx context.Context, name string, opts box.DebianOptions) (box.Image, error) {
	if err := s.d.fail(ctx, "debian", ""); err != nil {
		return box.Image{}, err
	}
	if opts.Progress != nil {
		fmt.Fprintln(opts.Progress, "I: pretending to run mmdebstrap")
	}
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	list := strings.Join(opts.Include, "\n") + "\n"
	if err := tw.WriteHeader(&tar.Header{Name: "etc/packages", Mode: 0o644, Size: int64(len(list))}); err != nil {
		return box.Image{}, err
	}
	if _, err := io.WriteString(tw, list); err != nil {
		return box.Image{}, err
	}
	if err := tw.Close(); err != nil {
		return box.Image{}, err
	}
	return s.Import(ctx, &layer, name, box.ImageConfig{Cmd: []string{"/bin/sh"}})
}
