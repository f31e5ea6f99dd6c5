package boxtest

import (
	"archive/tar"
	"bytes"
	"io"
	"slices"
	"testing"

	"github.com/hutch-sandbox/hutch/box"
)

// rootTar is a root file system with one file in it.
func rootTar(t testing.TB, name, content string) io.Reader {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []tar.Header{
		{Name: "data/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "data/" + name, Typeflag: tar.TypeReg, Mode: 0o640, Size: int64(len(content)), Uid: 3, Gid: 4},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(w, content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

func images(s *suite) {
	if !s.h.Images {
		s.Skip("this driver keeps no images")
	}
	imgs := s.rt.Images()
	s.rule("Import", "a root file system becomes an image, whose files a box of it has, with mode and owner", func(t *T) {
		img, err := imgs.Import(t.ctx, rootTar(t, "f", "hello"), "imported:1", box.ImageConfig{Labels: map[string]string{"k": "v"}})
		t.ok(err, "Import")
		if img.Digest == "" || !slices.Contains(img.Names, "imported:1") || img.Config.Labels["k"] != "v" {
			t.Errorf("image %+v", img)
		}
		b := t.create(box.Spec{Image: "imported:1", Pull: box.PullNever})
		info, r, err := b.ReadStream(t.ctx, "/data/f", 0, 0)
		t.ok(err, "ReadStream")
		defer r.Close()
		got, err := io.ReadAll(r)
		t.ok(err, "ReadAll")
		if string(got) != "hello" || info.FileMode != 0o640 || info.UID != 3 || info.GID != 4 {
			t.Errorf("%q, %+v", got, info)
		}
		boxInfo, err := b.Info(t.ctx)
		t.ok(err, "Info")
		if boxInfo.Digest != img.Digest {
			t.Errorf("the box has digest %s, the image %s", boxInfo.Digest, img.Digest)
		}
		// What one box writes, the next does not see.
		t.ok(b.WriteFile(t.ctx, "/data/f", []byte("changed"), 0), "WriteFile")
		other := t.create(box.Spec{Image: "imported:1", Pull: box.PullNever})
		got, err = other.ReadFile(t.ctx, "/data/f")
		t.ok(err, "ReadFile")
		if string(got) != "hello" {
			t.Errorf("another box reads %q", got)
		}
	})
	s.rule("Names", "an image has several names, is found by each and by digest, and goes with the last", func(t *T) {
		img, err := imgs.Import(t.ctx, rootTar(t, "n", "names"), "named:1", box.ImageConfig{})
		t.ok(err, "Import")
		t.ok(imgs.Tag(t.ctx, "named:1", "named:2"), "Tag")
		for _, ref := range []string{"named:1", "named:2", img.Digest} {
			got, err := imgs.Get(t.ctx, ref)
			t.ok(err, "Get "+ref)
			if got.Digest != img.Digest {
				t.Errorf("%s is %s", ref, got.Digest)
			}
		}
		t.ok(imgs.Remove(t.ctx, "named:1"), "Remove")
		_, err = imgs.Get(t.ctx, "named:1")
		t.is(err, box.ErrNotFound, "Get")
		_, err = imgs.Get(t.ctx, "named:2")
		t.ok(err, "Get")
		t.ok(imgs.Remove(t.ctx, "named:2"), "Remove")
		_, err = imgs.Get(t.ctx, img.Digest)
		t.is(err, box.ErrNotFound, "Get by digest")
		t.is(imgs.Remove(t.ctx, "named:2"), box.ErrNotFound, "second Remove")
		t.is(imgs.Tag(t.ctx, "named:2", "x:1"), box.ErrNotFound, "Tag of nothing")
	})
	s.rule("Used", "an image that a box uses is not removed, nor pruned", func(t *T) {
		_, err := imgs.Import(t.ctx, rootTar(t, "u", "used"), "used:1", box.ImageConfig{})
		t.ok(err, "Import")
		b := t.create(box.Spec{Image: "used:1", Pull: box.PullNever})
		t.is(imgs.Remove(t.ctx, "used:1"), box.ErrConflict, "Remove")
		_, err = imgs.Prune(t.ctx, true)
		t.ok(err, "Prune")
		if _, err := b.Stat(t.ctx, "/data/u"); err != nil {
			t.Errorf("after Prune: %v", err)
		}
		t.ok(b.Remove(t.ctx), "Remove of the box")
		_, err = imgs.Prune(t.ctx, true)
		t.ok(err, "Prune")
		_, err = imgs.Get(t.ctx, "used:1")
		t.is(err, box.ErrNotFound, "Get after Prune")
	})
	s.rule("SaveLoad", "a saved image is the same after it is removed and loaded", func(t *T) {
		img, err := imgs.Import(t.ctx, rootTar(t, "s", "saved"), "saved:1", box.ImageConfig{Env: []string{"A=b"}})
		t.ok(err, "Import")
		var archive bytes.Buffer
		t.ok(imgs.Save(t.ctx, &archive, "", "saved:1"), "Save")
		t.ok(imgs.Remove(t.ctx, "saved:1"), "Remove")
		loaded, err := imgs.Load(t.ctx, &archive)
		t.ok(err, "Load")
		if len(loaded) != 1 || loaded[0].Digest != img.Digest || !slices.Equal(loaded[0].Config.Env, []string{"A=b"}) {
			t.Errorf("loaded %+v, saved %+v", loaded, img)
		}
		b := t.create(box.Spec{Image: "saved:1", Pull: box.PullNever})
		got, err := b.ReadFile(t.ctx, "/data/s")
		t.ok(err, "ReadFile")
		if string(got) != "saved" {
			t.Errorf("read %q", got)
		}
	})
	s.rule("Noise", "what is no archive is refused, and leaves nothing", func(t *T) {
		before, err := imgs.List(t.ctx)
		t.ok(err, "List")
		if _, err := imgs.Load(t.ctx, bytes.NewReader(noise(11, 3000))); err == nil {
			t.Error("noise was loaded")
		}
		if _, err := imgs.Import(t.ctx, bytes.NewReader(noise(12, 3000)), "noise:1", box.ImageConfig{}); err == nil {
			t.Error("noise was imported")
		}
		after, err := imgs.List(t.ctx)
		t.ok(err, "List")
		if len(after) != len(before) {
			t.Errorf("%d images, before %d", len(after), len(before))
		}
	})
}
