package image_test

import (
	"archive/tar"
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image"
	"github.com/hutch-sandbox/hutch/internal/image/imagetest"
)

// FuzzLoad loads whatever bytes. Load fails with an error of the user's kind
// or not at all, and leaves no half image and no temporary file.
func FuzzLoad(f *testing.F) {
	img := simple(f, "x")
	s := open(f, "")
	r := imagetest.Tar(f, imagetest.File{Name: "etc/", Type: tar.TypeDir})
	if _, err := s.Import(f.Context(), bytes.NewReader(r), "seed", image.ImportOptions{}); err != nil {
		f.Fatal(err)
	}
	for _, format := range []image.Format{image.DockerArchive, image.OCIArchive} {
		var out bytes.Buffer
		if err := s.Save(f.Context(), &out, format, "seed"); err != nil {
			f.Fatal(err)
		}
		f.Add(out.Bytes())
	}
	blob := func(b imagetest.Blob) imagetest.File {
		return imagetest.File{Name: "blobs/sha256/" + strings.TrimPrefix(b.Digest, "sha256:"), Body: string(b.Data)}
	}
	index := imagetest.IndexOf(f, img)
	f.Add(imagetest.Gzip(f, imagetest.Tar(f, imagetest.File{Name: "index.json", Body: string(index.Data)},
		blob(img.Manifest), blob(img.Config), blob(img.Layers[0]), blob(img.Layers[1]))))
	dir := newDir(f)
	fuzzed := open(f, dir)
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := fuzzed.Load(t.Context(), bytes.NewReader(data))
		if kind := box.KindOf(err); err != nil && kind != box.Invalid && kind != box.NotFound && kind != box.Exhausted {
			t.Errorf("kind %q: %v", kind, err)
		}
		if left := files(t, filepath.Join(dir, "tmp")); len(left) != 0 {
			t.Errorf("tmp has %v", left)
		}
		for _, l := range list {
			if _, err := fuzzed.Get(t.Context(), l.Digest); err != nil {
				t.Errorf("loaded, and yet: %v", err)
			}
			if _, err := fuzzed.Remove(t.Context(), l.Digest, nil); err != nil && box.KindOf(err) != box.NotFound {
				t.Error(err)
			}
		}
	})
}

// FuzzReference checks that a name that is accepted is stable: what it is
// normalised to means the same.
func FuzzReference(f *testing.F) {
	for _, s := range []string{"a", "a:b", "docker.io/a", "localhost:5000/a/b@sha256:" + strings.Repeat("0", 64), "[::1]:80/x", "A", "a..b/c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, err := image.Normalize(s)
		if err != nil {
			return
		}
		again, err := image.Normalize(name)
		if err != nil || again != name {
			t.Errorf("%q becomes %q, and that %q, %v", s, name, again, err)
		}
		if strings.ContainsAny(name, " \n\t\x00") || strings.Contains(name, "..") {
			t.Errorf("%q was accepted as %q", s, name)
		}
	})
}
