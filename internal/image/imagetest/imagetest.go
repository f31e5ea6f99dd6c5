// Package imagetest gives tests images to work with and a registry to get them
// from, in the test's own process: no network, no files of the machine.
package imagetest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// File is an entry of a layer. The zero Type is a regular file.
type File struct {
	Name string
	Body string // content, or the target of a link
	Type byte   // of archive/tar
	Mode int64  // 0: 0644 for files, 0755 for directories
	UID  int
	GID  int
}

// Tar returns a tar of files, always the same for the same files.
func Tar(t testing.TB, files ...File) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Name: f.Name, Typeflag: f.Type, Mode: f.Mode, Uid: f.UID, Gid: f.GID, ModTime: time.Unix(1_700_000_000, 0)}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		switch h.Typeflag {
		case tar.TypeReg:
			h.Size = int64(len(f.Body))
		case tar.TypeSymlink, tar.TypeLink:
			h.Linkname = f.Body
		}
		if h.Mode == 0 {
			if h.Mode = 0o644; h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, f.Body); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Gzip compresses data.
func Gzip(t testing.TB, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Zstd compresses data.
func Zstd(t testing.TB, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(data, nil)
}

// Digest returns the sha256 digest of data in the form of OCI.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Blob is content with its digest.
type Blob struct {
	Data      []byte
	Digest    string
	MediaType string
}

// NewBlob names data.
func NewBlob(mediaType string, data []byte) Blob {
	return Blob{Data: data, Digest: Digest(data), MediaType: mediaType}
}

// Descriptor returns what names b in a manifest.
func (b Blob) Descriptor() map[string]any {
	return map[string]any{"mediaType": b.MediaType, "digest": b.Digest, "size": len(b.Data)}
}

// Image is an image in memory. Its parts may be changed before it is pushed:
// nothing here checks that they fit.
type Image struct {
	Platform string // os/arch[/variant]
	Manifest Blob
	Config   Blob
	Layers   []Blob
}

// New makes an image from layers: tars, plain or compressed with gzip or zstd.
// platform "" is linux and this machine's architecture. config is its run
// configuration, any value that JSON knows; nil is none.
func New(t testing.TB, platform string, config any, layers ...[]byte) Image {
	t.Helper()
	if platform == "" {
		platform = "linux/" + runtime.GOARCH
	}
	img := Image{Platform: platform}
	diffIDs := []string{}
	for _, data := range layers {
		mt, plain := "application/vnd.oci.image.layer.v1.tar", data
		switch {
		case bytes.HasPrefix(data, []byte{0x1f, 0x8b}):
			r, err := gzip.NewReader(bytes.NewReader(data))
			if err == nil {
				plain, err = io.ReadAll(r)
			}
			if err != nil {
				t.Fatal(err)
			}
			mt += "+gzip"
		case bytes.HasPrefix(data, []byte{0x28, 0xb5, 0x2f, 0xfd}):
			d, err := zstd.NewReader(nil)
			if err == nil {
				plain, err = d.DecodeAll(data, nil)
				d.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			mt += "+zstd"
		}
		diffIDs = append(diffIDs, Digest(plain))
		img.Layers = append(img.Layers, NewBlob(mt, data))
	}
	parts := strings.SplitN(platform+"/", "/", 3)
	cfg := map[string]any{"os": parts[0], "architecture": parts[1], "created": "2026-01-02T03:04:05Z",
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs}}
	if v := strings.TrimSuffix(parts[2], "/"); v != "" {
		cfg["variant"] = v
	}
	if config != nil {
		cfg["config"] = config
	}
	img.Config = NewBlob("application/vnd.oci.image.config.v1+json", JSON(t, cfg))
	img.Manifest = ManifestOf(t, img.Config.Descriptor(), img.Layers)
	return img
}

// ManifestOf makes a manifest.
func ManifestOf(t testing.TB, config map[string]any, layers []Blob) Blob {
	t.Helper()
	ls := []any{}
	for _, l := range layers {
		ls = append(ls, l.Descriptor())
	}
	const mt = "application/vnd.oci.image.manifest.v1+json"
	return NewBlob(mt, JSON(t, map[string]any{"schemaVersion": 2, "mediaType": mt, "config": config, "layers": ls}))
}

// IndexOf makes an index of images for several platforms.
func IndexOf(t testing.TB, images ...Image) Blob {
	t.Helper()
	ms := []any{}
	for _, img := range images {
		d := img.Manifest.Descriptor()
		parts := strings.Split(img.Platform, "/")
		p := map[string]any{"os": parts[0], "architecture": parts[1]}
		if len(parts) > 2 {
			p["variant"] = parts[2]
		}
		d["platform"] = p
		ms = append(ms, d)
	}
	const mt = "application/vnd.oci.image.index.v1+json"
	return NewBlob(mt, JSON(t, map[string]any{"schemaVersion": 2, "mediaType": mt, "manifests": ms}))
}

// JSON encodes v.
func JSON(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Registry is a registry that lives as long as its test.
type Registry struct {
	Host string // host:port
	URL  string // with http:// or https://

	server *httptest.Server
	store  http.Handler // without the hook

	mu   sync.Mutex
	hook func(w http.ResponseWriter, r *http.Request, next http.Handler)
	log  []string
}

// NewRegistry starts one that speaks plain HTTP.
func NewRegistry(t testing.TB) *Registry { return start(t, httptest.NewServer) }

// NewTLSRegistry starts one that speaks HTTPS with a certificate of its own.
func NewTLSRegistry(t testing.TB) *Registry { return start(t, httptest.NewTLSServer) }

func start(t testing.TB, listen func(http.Handler) *httptest.Server) *Registry {
	r := &Registry{store: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	r.server = listen(http.HandlerFunc(r.serve))
	r.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(func() {
		r.server.CloseClientConnections()
		r.server.Close()
	})
	r.URL = r.server.URL
	_, r.Host, _ = strings.Cut(r.URL, "://")
	return r
}

// Hook puts f in front of the registry: it answers itself, or calls next. Nil
// takes it away.
func (r *Registry) Hook(f func(w http.ResponseWriter, req *http.Request, next http.Handler)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hook = f
}

// Requests returns what has been asked, as "GET /v2/…", and forgets it.
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.log
	r.log = nil
	return log
}

func (r *Registry) serve(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.log = append(r.log, req.Method+" "+req.URL.Path)
	hook := r.hook
	r.mu.Unlock()
	if hook != nil {
		hook(w, req, r.store)
		return
	}
	r.store.ServeHTTP(w, req)
}

// CAFile writes the certificate of a TLS registry to a file and returns its
// path.
func (r *Registry) CAFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.server.Certificate().Raw})
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Push stores images as repo:tag, several as one index for several platforms,
// and returns the digest of what the tag names.
func (r *Registry) Push(t testing.TB, repo, tag string, images ...Image) string {
	t.Helper()
	for _, img := range images {
		for _, b := range append([]Blob{img.Config}, img.Layers...) {
			r.PushBlob(t, repo, b)
		}
		r.PushManifest(t, repo, img.Manifest.Digest, img.Manifest)
	}
	top := images[0].Manifest
	if len(images) > 1 {
		top = IndexOf(t, images...)
	}
	r.PushManifest(t, repo, tag, top)
	return top.Digest
}

// PushBlob stores b.
func (r *Registry) PushBlob(t testing.TB, repo string, b Blob) {
	t.Helper()
	r.put(t, http.MethodPost, "/v2/"+repo+"/blobs/uploads/?digest="+b.Digest, b)
}

// PushManifest stores b as a manifest that ref, a tag or digest, names.
func (r *Registry) PushManifest(t testing.TB, repo, ref string, b Blob) {
	t.Helper()
	r.put(t, http.MethodPut, "/v2/"+repo+"/manifests/"+ref, b)
}

func (r *Registry) put(t testing.TB, method, path string, b Blob) {
	t.Helper()
	req := httptest.NewRequest(method, path, bytes.NewReader(b.Data))
	req.Header.Set("Content-Type", b.MediaType)
	w := httptest.NewRecorder()
	r.store.ServeHTTP(w, req)
	if w.Code != http.StatusCreated {
		t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
}
