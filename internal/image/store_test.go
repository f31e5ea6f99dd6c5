package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image"
	"github.com/hutch-sandbox/hutch/internal/image/imagetest"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
)

// open opens a store in dir, or in a new directory, that may speak plain HTTP
// with the given registries.
func open(t testing.TB, dir string, plain ...*imagetest.Registry) *image.Store {
	t.Helper()
	if dir == "" {
		dir = newDir(t)
	}
	regs := image.Registries{Registries: map[string]image.Registry{}}
	for _, r := range plain {
		regs.Search = append(regs.Search, r.Host)
		regs.Registries[r.Host] = image.Registry{Insecure: true}
	}
	return openWith(t, dir, regs, image.Config{})
}

// newDir is a directory that can be removed even if trees are in it.
func newDir(t testing.TB) string {
	dir := filepath.Join(t.TempDir(), "images")
	t.Cleanup(func() { layer.RemoveAll(dir) })
	return dir
}

func openWith(t testing.TB, dir string, regs image.Registries, cfg image.Config) *image.Store {
	t.Helper()
	file := filepath.Join(t.TempDir(), "registries.json")
	data, err := json.Marshal(regs)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Registries = file
	if cfg.DockerConfig == "" {
		cfg.DockerConfig = t.TempDir()
	}
	s, err := image.Open(t.Context(), dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.Hurry()
	return s
}

// files returns the names in a directory tree of the store.
func files(t testing.TB, dir string) []string {
	t.Helper()
	var list []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func wantKind(t testing.TB, err error, kind box.Kind, words ...string) {
	t.Helper()
	if box.KindOf(err) != kind || err == nil {
		t.Errorf("error is %q (%v), want kind %q", box.KindOf(err), err, kind)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not mention %q", err, w)
		}
	}
	if strings.ContainsAny(err.Error(), "\n\r") {
		t.Errorf("error has several lines: %q", err)
	}
}

func simple(t testing.TB, body string) imagetest.Image {
	return imagetest.New(t, "", image.RunConfig{Cmd: []string{"/bin/sh"}, Env: []string{"A=b"}, WorkingDir: "/srv"},
		imagetest.Gzip(t, imagetest.Tar(t, imagetest.File{Name: "etc/", Type: tar.TypeDir}, imagetest.File{Name: "etc/base", Body: "base"}, imagetest.File{Name: "old", Body: "x"})),
		imagetest.Zstd(t, imagetest.Tar(t, imagetest.File{Name: "etc/top", Body: body}, imagetest.File{Name: ".wh.old"})))
}

func TestPullGetTree(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	img := simple(t, "hello")
	reg.Push(t, "org/app", "v1", img)
	s := open(t, "", reg)
	ref := reg.Host + "/org/app:v1"

	_, err := s.Get(t.Context(), ref)
	wantKind(t, err, box.NotFound, "hutch pull "+ref)

	var phases = map[image.Phase]int{}
	got, err := s.Pull(t.Context(), ref, image.PullOptions{Progress: func(p image.Progress) { phases[p.Phase]++ }})
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != ref || got.Digest != img.Manifest.Digest || got.ConfigDigest != img.Config.Digest || len(got.Layers) != 2 || got.Created.IsZero() {
		t.Errorf("pulled %+v", got)
	}
	if diff := cmp.Diff(image.RunConfig{Cmd: []string{"/bin/sh"}, Env: []string{"A=b"}, WorkingDir: "/srv"}, got.Config); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	if phases[image.Complete] != 2 || phases[image.Resolving] != 1 {
		t.Errorf("progress: %v, want one resolving and two complete", phases)
	}

	hex := strings.TrimPrefix(got.Digest, "sha256:")
	for _, ref := range []string{ref, "org/app:v1", reg.Host + "/org/app@" + got.Digest, got.Digest, hex, hex[:8], strings.TrimPrefix(got.ConfigDigest, "sha256:")[:12]} {
		g, err := s.Get(t.Context(), ref)
		if err != nil || g.Digest != got.Digest {
			t.Errorf("Get(%q) = %s, %v", ref, g.Digest, err)
		}
	}
	reg.Requests()
	if _, err := s.Pull(t.Context(), ref, image.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := reg.Requests(); len(got) != 0 {
		t.Errorf("pulling what is here asked %v", got)
	}

	tree, err := s.Tree(t.Context(), got, "")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"etc/base": "base", "etc/top": "hello"} {
		b, err := os.ReadFile(filepath.Join(tree.Dir, name))
		if err != nil || string(b) != want {
			t.Errorf("%s = %q, %v", name, b, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(tree.Dir, "old")); !os.IsNotExist(err) {
		t.Errorf("old: %v, want it hidden", err)
	}
	again, err := s.Tree(t.Context(), got, "")
	if err != nil || again.Dir != tree.Dir {
		t.Errorf("the second time: %v, %v", again.Dir, err)
	}
}

func TestPullPlatforms(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	l := imagetest.Gzip(t, imagetest.Tar(t, imagetest.File{Name: "f", Body: "x"}))
	var imgs []imagetest.Image
	for _, p := range []string{"linux/amd64", "linux/arm64/v8", "linux/arm/v6", "linux/arm/v7", "windows/amd64"} {
		imgs = append(imgs, imagetest.New(t, p, map[string]any{"Cmd": []string{p}}, l))
	}
	index := reg.Push(t, "multi", "latest", imgs...)
	s := open(t, "", reg)
	for _, tt := range []struct{ ask, want string }{
		{"linux/amd64", "linux/amd64"}, {"linux/arm64", "linux/arm64/v8"}, {"linux/aarch64", "linux/arm64/v8"},
		{"linux/arm", "linux/arm/v6"}, {"linux/arm/v7", "linux/arm/v7"}, {"linux/arm", "linux/arm/v7"}, {"windows/amd64", "windows/amd64"},
	} {
		got, err := s.Pull(t.Context(), "multi", image.PullOptions{Platform: tt.ask})
		if err != nil || got.Platform != tt.want || got.Source != index {
			t.Errorf("%s: got %s of %s, %v", tt.ask, got.Platform, got.Source, err)
		}
	}
	// The digest of the index names the image chosen from it.
	if g, err := s.Get(t.Context(), "multi@"+index); err != nil || g.Source != index {
		t.Errorf("by the digest of the index: %+v, %v", g, err)
	}
	_, err := s.Pull(t.Context(), "multi", image.PullOptions{Platform: "linux/riscv64"})
	wantKind(t, err, box.NotFound, "linux/riscv64", "linux/amd64, linux/arm/v6", "--platform")
	_, err = s.Pull(t.Context(), "multi", image.PullOptions{Platform: "linux"})
	wantKind(t, err, box.Invalid, "linux/amd64")
	_, err = s.Pull(t.Context(), "multi", image.PullOptions{Platform: "linux/riscv64", Policy: image.PullNever})
	wantKind(t, err, box.NotFound)

	// An image that is no index is checked by its own configuration.
	reg.Push(t, "one", "latest", imagetest.New(t, "linux/s390x", nil, l))
	_, err = s.Pull(t.Context(), "one", image.PullOptions{})
	wantKind(t, err, box.NotFound, "linux/s390x")
	if _, err := s.Pull(t.Context(), "one", image.PullOptions{Platform: "linux/s390x"}); err != nil {
		t.Error(err)
	}
	if _, err := s.Pull(t.Context(), "one", image.PullOptions{}); err != nil {
		t.Errorf("an image that is here for another platform: %v", err)
	}
}

func TestReferences(t *testing.T) {
	s := open(t, "")
	rootfs := imagetest.Tar(t, imagetest.File{Name: "bin/sh", Body: "#!"})
	if _, err := s.Import(t.Context(), bytes.NewReader(rootfs), "dev", image.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ tag, want string }{
		{"a", "a:latest"}, {"a:b", "a:b"}, {"docker.io/a", "docker.io/library/a:latest"}, {"index.docker.io/x/a:1", "docker.io/x/a:1"},
		{"localhost/a", "localhost/a:latest"}, {"localhost:5000/a/b_c/d__e:T-1.x", "localhost:5000/a/b_c/d__e:T-1.x"}, {"[::1]:5/a", "[::1]:5/a:latest"},
		{"GHCR.io/a", "ghcr.io/a:latest"},
	} {
		got, err := s.Tag(t.Context(), "dev", tt.tag)
		if err != nil || got.Name != tt.want {
			t.Errorf("tag %s: %q, %v, want %q", tt.tag, got.Name, err, tt.want)
		}
		if _, err := s.Get(t.Context(), tt.tag); err != nil {
			t.Errorf("get %s: %v", tt.tag, err)
		}
	}
	// A short name finds what is filed under Docker Hub, but its own first.
	if _, err := s.Tag(t.Context(), "dev", "docker.io/library/hub:1"); err != nil {
		t.Fatal(err)
	}
	if g, err := s.Get(t.Context(), "hub:1"); err != nil || g.Name != "docker.io/library/hub:1" {
		t.Errorf("hub:1 is %q, %v", g.Name, err)
	}
	long := strings.Repeat("a", 600)
	for _, bad := range []string{"", "A", "a:", "a:-x", "a//b", "/a", "a/", "-a", "a@sha256:12", "a@md5:1", "a b", "a\nb", "../a", "http://x/a", "x:99999999/a", long, "a:" + long, "a..b", "é"} {
		_, err := s.Get(t.Context(), bad)
		wantKind(t, err, box.Invalid)
		_, err = s.Tag(t.Context(), "dev", bad)
		wantKind(t, err, box.Invalid)
	}
	_, err := s.Tag(t.Context(), "dev", "x@sha256:"+strings.Repeat("0", 64))
	wantKind(t, err, box.Invalid, "digest")
}

func TestRemoveAndPrune(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	a, b := simple(t, "a"), simple(t, "b") // they share a layer
	reg.Push(t, "a", "1", a)
	reg.Push(t, "b", "1", b)
	dir := newDir(t)
	s := open(t, dir, reg)
	ctx := t.Context()
	var imgs []image.Image
	for _, ref := range []string{"a:1", "b:1"} {
		img, err := s.Pull(ctx, ref, image.PullOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Tree(ctx, img, ""); err != nil {
			t.Fatal(err)
		}
		imgs = append(imgs, img)
	}
	if _, err := s.Tag(ctx, "a:1", "other"); err != nil {
		t.Fatal(err)
	}
	used := func(digest string) ([]string, error) {
		if digest == imgs[1].Digest {
			return []string{"brave-otter", "calm-fox"}, nil
		}
		return nil, nil
	}
	_, err := s.Remove(ctx, "b:1", used)
	wantKind(t, err, box.Conflict, "brave-otter", "calm-fox")

	got, err := s.Remove(ctx, "other", used)
	if err != nil || len(got.Deleted) != 0 || len(got.Untagged) != 1 {
		t.Errorf("the second name: %+v, %v", got, err)
	}
	lease, err := s.Lease(ctx, imgs[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Remove(ctx, "a:1", used)
	wantKind(t, err, box.Conflict, "being used")
	lease.Close()
	before := len(files(t, filepath.Join(dir, "blobs/sha256")))
	got, err = s.Remove(ctx, "a:1", used)
	if err != nil || len(got.Deleted) != 1 || got.Freed < 1 {
		t.Errorf("the last name: %+v, %v", got, err)
	}
	if now := len(files(t, filepath.Join(dir, "blobs/sha256"))); now != before-3 {
		t.Errorf("%d blobs of %d are left, want three less: manifest, config and own layer", now, before)
	}
	if trees := files(t, filepath.Join(dir, "trees")); len(trees) != 1 {
		t.Errorf("trees left: %v", trees)
	}
	if _, err := s.Lease(ctx, imgs[0].Digest); box.KindOf(err) != box.NotFound {
		t.Errorf("a lease on what is gone: %v", err)
	}

	// Moving a name leaves an image without one; that is what prune is for.
	reg.Push(t, "a", "1", a)
	if _, err := s.Pull(ctx, "a:1", image.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	reg.Push(t, "a", "1", simple(t, "c"))
	if _, err := s.Pull(ctx, "a:1", image.PullOptions{Policy: image.PullAlways}); err != nil {
		t.Fatal(err)
	}
	list, err := s.List(ctx)
	if err != nil || len(list) != 3 || list[0].Name != "" {
		t.Fatalf("list: %+v, %v", list, err)
	}
	os.WriteFile(filepath.Join(dir, "partial", strings.Repeat("0", 64)), make([]byte, 5000), 0o600)
	os.MkdirAll(filepath.Join(dir, "tmp/tree-dead/x"), 0o555)
	got, err = s.Prune(ctx, used, image.PruneOptions{})
	if err != nil || len(got.Deleted) != 1 || got.Freed < 5000 {
		t.Errorf("prune: %+v, %v", got, err)
	}
	got, err = s.Prune(ctx, used, image.PruneOptions{All: true})
	if err != nil || len(got.Deleted) != 1 {
		t.Errorf("prune all: %+v, %v", got, err)
	}
	if list, _ := s.List(ctx); len(list) != 1 || list[0].Digest != imgs[1].Digest {
		t.Errorf("left: %+v", list)
	}
	got, err = s.Prune(ctx, nil, image.PruneOptions{All: true})
	if err != nil || len(got.Deleted) != 1 {
		t.Errorf("prune all without boxes: %+v, %v", got, err)
	}
	for _, d := range []string{"blobs/sha256", "trees", "partial", "tmp"} {
		if left := files(t, filepath.Join(dir, d)); len(left) != 0 {
			t.Errorf("%s still has %v", d, left)
		}
	}
}

func TestAddTree(t *testing.T) {
	dir := newDir(t)
	s := open(t, dir)
	ctx := t.Context()
	var mu sync.Mutex
	built := 0
	add := func(key string) image.Image {
		t.Helper()
		img, err := s.AddTree(ctx, "builtin", key, image.RunConfig{Cmd: []string{"sh"}}, func(_ context.Context, dir string) error {
			mu.Lock()
			defer mu.Unlock()
			built++
			return os.WriteFile(filepath.Join(dir, "sh"), []byte(key), 0o755)
		})
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { add("one") })
	}
	wg.Wait()
	img := add("one")
	if built != 1 {
		t.Errorf("built %d times", built)
	}
	got, err := s.Get(ctx, "builtin")
	if err != nil || got.Digest != img.Digest || got.Config.Cmd[0] != "sh" || got.Size < 3 {
		t.Errorf("get: %+v, %v", got, err)
	}
	tree, err := s.Tree(ctx, got, layer.KeepOwners)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(tree.Dir, "sh")); err != nil || string(b) != "one" {
		t.Errorf("tree: %q, %v", b, err)
	}
	for _, policy := range []image.Policy{image.PullMissing, image.PullAlways, image.PullNever} {
		if p, err := s.Pull(ctx, "builtin", image.PullOptions{Policy: policy}); err != nil || p.Digest != img.Digest {
			t.Errorf("pull %s: %v", policy, err)
		}
	}
	if _, err := s.Prune(ctx, nil, image.PruneOptions{All: true}); err != nil {
		t.Error(err)
	}
	if _, err := s.Get(ctx, "builtin"); err != nil {
		t.Errorf("after prune: %v", err)
	}
	wantKind(t, s.Save(ctx, &bytes.Buffer{}, image.OCIArchive, "builtin"), box.Unsupported)
	_, err = s.Import(ctx, bytes.NewReader(imagetest.Tar(t, imagetest.File{Name: "x"})), "builtin", image.ImportOptions{})
	wantKind(t, err, box.Conflict)

	// Two versions of the program on one home take turns without building.
	two := add("two")
	if two.Digest == img.Digest || built != 2 {
		t.Errorf("the second key: built %d times, %s", built, two.Digest)
	}
	if back := add("one"); back.Digest != img.Digest || built != 2 {
		t.Errorf("back to the first: built %d times", built)
	}
	out, err := s.Prune(ctx, nil, image.PruneOptions{})
	if err != nil || len(out.Deleted) != 1 || out.Deleted[0] != two.Digest {
		t.Errorf("prune: %+v, %v, want the one without a name", out, err)
	}
	if _, err := s.AddTree(ctx, "broken", "k", image.RunConfig{}, func(_ context.Context, dir string) error {
		os.WriteFile(filepath.Join(dir, "half"), nil, 0o600)
		return fmt.Errorf("no luck")
	}); err == nil || !strings.Contains(err.Error(), "no luck") {
		t.Errorf("a build that fails: %v", err)
	}
	if left := files(t, filepath.Join(dir, "tmp")); len(left) != 0 {
		t.Errorf("it left %v", left)
	}
}
