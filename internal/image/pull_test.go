package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image"
	"github.com/hutch-sandbox/hutch/internal/image/imagetest"
)

// noise is an incompressible layer of about size bytes.
func noise(t testing.TB, name string, size int) []byte {
	body := make([]byte, size)
	x := uint64(len(name) + 1)
	for i := range body {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		body[i] = byte(x)
	}
	return imagetest.Gzip(t, imagetest.Tar(t, imagetest.File{Name: name, Body: string(body)}))
}

func isBlob(r *http.Request, b imagetest.Blob) bool {
	return strings.HasSuffix(r.URL.Path, "/blobs/"+b.Digest)
}

func TestPullHTTPS(t *testing.T) {
	reg := imagetest.NewTLSRegistry(t)
	reg.Push(t, "app", "1", simple(t, "x"))
	ref := reg.Host + "/app:1"
	pull := func(r image.Registry) error {
		s := openWith(t, newDir(t), image.Registries{Registries: map[string]image.Registry{reg.Host: r}}, image.Config{})
		_, err := s.Pull(t.Context(), ref, image.PullOptions{})
		return err
	}
	wantKind(t, pull(image.Registry{}), box.Unavailable, "certificate", "ca_file")
	if err := pull(image.Registry{CAFile: reg.CAFile(t)}); err != nil {
		t.Errorf("with its CA: %v", err)
	}
	if err := pull(image.Registry{SkipVerify: true}); err != nil {
		t.Errorf("without verification: %v", err)
	}
	wantKind(t, pull(image.Registry{CAFile: "/nonexistent"}), box.Invalid, "ca_file")

	// No plain HTTP unless it is asked for, on loopback neither.
	plain := imagetest.NewRegistry(t)
	plain.Push(t, "app", "1", simple(t, "x"))
	_, err := open(t, "").Pull(t.Context(), plain.Host+"/app:1", image.PullOptions{})
	wantKind(t, err, box.Unavailable, "plain HTTP", "insecure")
	if got := slices.DeleteFunc(plain.Requests(), func(s string) bool { return false }); len(got) != 0 {
		t.Errorf("the registry was asked %v", got)
	}
	// Nor by a redirect.
	reg.Hook(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, plain.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return
		}
		next.ServeHTTP(w, r)
	})
	wantKind(t, pull(image.Registry{SkipVerify: true}), box.Unavailable, "plain HTTP")
	if got := plain.Requests(); len(got) != 0 {
		t.Errorf("after a redirect it was asked %v", got)
	}
}

func TestPullErrors(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	reg.Push(t, "app", "1", simple(t, "x"))
	s := open(t, "", reg)
	for _, tt := range []struct {
		ref  string
		kind box.Kind
	}{
		{reg.Host + "/app:nope", box.NotFound}, {reg.Host + "/nope:1", box.NotFound}, {"nope", box.NotFound},
		{reg.Host + "/app@sha256:" + strings.Repeat("0", 64), box.NotFound},
		{"sha256:" + strings.Repeat("0", 64), box.NotFound}, {"localhost:1/app", box.Unavailable},
	} {
		_, err := s.Pull(t.Context(), tt.ref, image.PullOptions{})
		wantKind(t, err, tt.kind)
	}
	for code, kind := range map[int]box.Kind{401: box.Unauthenticated, 403: box.Permission, 400: box.Invalid, 410: box.Unavailable} {
		reg.Hook(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if strings.Contains(r.URL.Path, "/manifests/") {
				w.WriteHeader(code)
				fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"line\nbreak"}]}`)
				return
			}
			next.ServeHTTP(w, r)
		})
		_, err := s.Pull(t.Context(), reg.Host+"/app:1", image.PullOptions{})
		wantKind(t, err, kind)
	}
	_, err := s.Pull(t.Context(), "app:1", image.PullOptions{Policy: "often"})
	wantKind(t, err, box.Invalid, "missing, always or never")
}

func TestPullTransient(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	img := simple(t, "x")
	reg.Push(t, "app", "1", img)
	var n atomic.Int32
	reg.Hook(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if n.Add(1)%2 == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
	if _, err := open(t, "", reg).Pull(t.Context(), "app:1", image.PullOptions{}); err != nil {
		t.Errorf("every other request fails: %v", err)
	}

	// A connection that says nothing counts as broken.
	stalls := 0
	reg.Hook(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if isBlob(r, img.Layers[0]) && stalls == 0 {
			stalls++
			w.Write(img.Layers[0].Data[:10])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		next.ServeHTTP(w, r)
	})
	if _, err := open(t, "", reg).Pull(t.Context(), "app:1", image.PullOptions{}); err != nil || stalls != 1 {
		t.Errorf("a connection that stalls: %v after %d", err, stalls)
	}

	// A context ends the waiting.
	block := make(chan struct{})
	defer close(block)
	ctx, cancel := context.WithCancel(t.Context())
	reg.Hook(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if isBlob(r, img.Layers[0]) {
			w.Header().Set("Content-Length", strconv.Itoa(len(img.Layers[0].Data)))
			w.Write(img.Layers[0].Data[:10])
			w.(http.Flusher).Flush()
			cancel()
			select {
			case <-block:
			case <-r.Context().Done():
			}
			return
		}
		next.ServeHTTP(w, r)
	})
	_, err := open(t, "", reg).Pull(ctx, "app:1", image.PullOptions{})
	wantKind(t, err, box.Canceled)
}

// cutter ends the connection after some bytes of a blob, as often as it is
// told to.
type cutter struct {
	mu     sync.Mutex
	blob   imagetest.Blob
	after  int // bytes in each response
	cuts   int // how often
	ranges []string
	noPart bool // answers ranges with the whole
	lie    bool // answers with another part than asked for
}

func (c *cutter) hook(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.Method != http.MethodGet || !isBlob(r, c.blob) {
		next.ServeHTTP(w, r)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	rng := r.Header.Get("Range")
	c.ranges = append(c.ranges, rng)
	data := c.blob.Data
	from := 0
	if rng != "" && !c.noPart {
		fmt.Sscanf(rng, "bytes=%d-", &from)
		if c.lie {
			from--
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
		w.Header().Set("Content-Length", strconv.Itoa(len(data)-from))
		w.WriteHeader(http.StatusPartialContent)
	} else {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	}
	if c.cuts > 0 {
		c.cuts--
		w.Write(data[from:min(from+c.after, len(data))])
		panic(http.ErrAbortHandler)
	}
	w.Write(data[from:])
}

func TestPullResumes(t *testing.T) {
	layer := noise(t, "f", 400_000)
	img := imagetest.New(t, "", nil, layer)
	for name, tt := range map[string]struct {
		c    *cutter
		asks int
	}{
		"cut often":            {&cutter{after: 40_000, cuts: 9}, 10},
		"no ranges":            {&cutter{after: 40_000, cuts: 2, noPart: true}, 3},
		"another part":         {&cutter{after: 40_000, cuts: 1, lie: true}, 3},
		"cut before any bytes": {&cutter{after: 0, cuts: 3}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reg := imagetest.NewRegistry(t)
			reg.Push(t, "app", "1", img)
			c := tt.c
			c.blob = img.Layers[0]
			reg.Hook(c.hook)
			got, err := open(t, "", reg).Pull(t.Context(), "app:1", image.PullOptions{})
			if err != nil || got.Digest != img.Manifest.Digest {
				t.Fatalf("%v, ranges %q", err, c.ranges)
			}
			if len(c.ranges) != tt.asks {
				t.Errorf("asked %d times (%q), want %d", len(c.ranges), c.ranges, tt.asks)
			}
		})
	}
	t.Run("by the next pull", func(t *testing.T) {
		reg := imagetest.NewRegistry(t)
		reg.Push(t, "app", "1", img)
		dir := newDir(t)
		part := filepath.Join(dir, "partial", strings.TrimPrefix(img.Layers[0].Digest, "sha256:"))
		for what, left := range map[string][]byte{"good start": layer[:123_456], "wrong start": bytes.Repeat([]byte("x"), 99), "too long": append(layer[:len(layer):len(layer)], 0), "whole": layer} {
			s := open(t, dir, reg)
			if err := os.WriteFile(part, left, 0o600); err != nil {
				t.Fatal(err)
			}
			c := &cutter{blob: img.Layers[0]}
			reg.Hook(c.hook)
			if _, err := s.Pull(t.Context(), "app:1", image.PullOptions{}); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if want := fmt.Sprintf("bytes=123456-%d", len(layer)-1); what == "good start" && !slices.Equal(c.ranges, []string{want}) {
				t.Errorf("%s: asked for %q, want %q", what, c.ranges, want)
			}
			if what == "whole" && len(c.ranges) != 0 {
				t.Errorf("%s: asked for %q", what, c.ranges)
			}
			if _, err := s.Remove(t.Context(), "app:1", nil); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("given up after a while without any byte", func(t *testing.T) {
		t.Parallel()
		reg := imagetest.NewRegistry(t)
		reg.Push(t, "app", "1", img)
		c := &cutter{blob: img.Layers[0], cuts: 1000}
		reg.Hook(c.hook)
		_, err := open(t, "", reg).Pull(t.Context(), "app:1", image.PullOptions{})
		wantKind(t, err, box.Unavailable)
	})
}

// A registry that sends what it did not promise gets nowhere.
func TestPullLies(t *testing.T) {
	good := simple(t, "x")
	other := imagetest.NewBlob(good.Layers[0].MediaType, noise(t, "f", 1000))
	serve := func(b imagetest.Blob, data []byte, declare bool) func(http.ResponseWriter, *http.Request, http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if !isBlob(r, b) {
				next.ServeHTTP(w, r)
				return
			}
			if declare {
				w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			}
			w.Write(data)
		}
	}
	same := bytes.Clone(good.Layers[0].Data)
	same[len(same)/2] ^= 1
	manifest := func(b imagetest.Blob) func(http.ResponseWriter, *http.Request, http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if strings.Contains(r.URL.Path, "/manifests/") {
				w.Header().Set("Content-Type", b.MediaType)
				w.Write(b.Data)
				return
			}
			next.ServeHTTP(w, r)
		}
	}
	mt := good.Manifest.MediaType
	text := func(s string) imagetest.Blob { return imagetest.NewBlob(mt, []byte(s)) }
	desc := func(digest string, size any) string {
		return fmt.Sprintf(`{"mediaType":"x","digest":%q,"size":%v}`, digest, size)
	}
	config := desc(good.Config.Digest, len(good.Config.Data))
	tests := map[string]struct {
		hook func(http.ResponseWriter, *http.Request, http.Handler)
		kind box.Kind
	}{
		"other bytes of the same length": {serve(good.Layers[0], same, true), box.Invalid},
		"longer, and says so":            {serve(good.Layers[0], append(same, 1, 2, 3), true), box.Invalid},
		"longer, chunked":                {serve(good.Layers[0], append(good.Layers[0].Data[:len(same):len(same)], other.Data...), false), box.Invalid},
		"shorter":                        {serve(good.Layers[0], same[:10], true), box.Unavailable},
		"another configuration":          {serve(good.Config, []byte(strings.Repeat("y", len(good.Config.Data))), true), box.Invalid},
		"manifest is no JSON":            {manifest(text("<html>")), box.Invalid},
		"manifest is an empty object":    {manifest(text("{}")), box.Invalid},
		"manifest is huge":               {manifest(text(strings.Repeat(" ", 5<<20))), box.Invalid},
		"layer of negative size":         {manifest(text(`{"config":` + config + `,"layers":[` + desc(other.Digest, -1) + `]}`)), box.Invalid},
		"layer with a path as digest":    {manifest(text(`{"config":` + config + `,"layers":[` + desc("sha256:../../../../etc/passwd", 1) + `]}`)), box.Invalid},
		"layer with upper-case digest":   {manifest(text(`{"config":` + config + `,"layers":[` + desc("sha256:"+strings.Repeat("A", 64), 1) + `]}`)), box.Invalid},
		"layer of a petabyte":            {manifest(text(`{"config":` + config + `,"layers":[` + desc(other.Digest, int64(1)<<50) + `]}`)), box.Exhausted},
		"sizes that overflow":            {manifest(text(`{"config":` + config + `,"layers":[` + desc(other.Digest, int64(1)<<62) + `,` + desc(other.Digest, int64(1)<<62) + `]}`)), box.Exhausted},
		"configuration of a gigabyte":    {manifest(text(`{"config":` + desc(good.Config.Digest, 1<<30) + `,"layers":[]}`)), box.Invalid},
		"fewer layers than it says":      {manifest(text(`{"config":` + config + `,"layers":[]}`)), box.Invalid},
		"10000 layers":                   {manifest(text(`{"config":` + config + `,"layers":[` + strings.TrimSuffix(strings.Repeat(config+",", 10000), ",") + `]}`)), box.Invalid},
		"schema 1":                       {manifest(imagetest.NewBlob("application/vnd.docker.distribution.manifest.v1+prettyjws", []byte(`{"schemaVersion":1}`))), box.Invalid},
		"an index in itself":             {manifest(imagetest.NewBlob("application/vnd.oci.image.index.v1+json", []byte(`{"manifests":[`+desc(other.Digest, 1)+`]}`))), box.Invalid},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reg := imagetest.NewRegistry(t)
			reg.Push(t, "app", "1", good)
			reg.Hook(tt.hook)
			dir := newDir(t)
			s := open(t, dir, reg)
			_, err := s.Pull(t.Context(), "app:1", image.PullOptions{})
			wantKind(t, err, tt.kind)
			if list, err := s.List(t.Context()); err != nil || len(list) != 0 {
				t.Errorf("the store has %v, %v", list, err)
			}
			if _, err := s.Prune(t.Context(), nil, image.PruneOptions{}); err != nil {
				t.Error(err)
			}
			for _, d := range []string{"blobs/sha256", "partial", "tmp", "trees"} {
				if left := files(t, filepath.Join(dir, d)); len(left) != 0 {
					t.Errorf("%s has %v", d, left)
				}
			}
			// The honest registry is not held to it.
			reg.Hook(nil)
			if _, err := s.Pull(t.Context(), "app:1", image.PullOptions{}); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
	t.Run("another manifest for a digest", func(t *testing.T) {
		reg := imagetest.NewRegistry(t)
		reg.Push(t, "app", "1", good)
		reg.Hook(manifest(simple(t, "evil").Manifest))
		_, err := open(t, "", reg).Pull(t.Context(), reg.Host+"/app@"+good.Manifest.Digest, image.PullOptions{})
		wantKind(t, err, box.Invalid, "digest")
	})
}

// login makes reg ask for a user, by token or basic authentication.
func login(reg *imagetest.Registry, token bool) {
	const basic = "Basic dXNlcjpzM2NyZXQtcHc=" // user:s3cret-pw
	reg.Hook(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		auth := r.Header.Get("Authorization")
		switch {
		case r.URL.Path == "/token":
			if auth != basic {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if r.URL.Query().Get("scope") == "repository:private/app:pull" {
				fmt.Fprint(w, `{"token":"tok-12345"}`)
				return
			}
			fmt.Fprint(w, `{"token":"tok-of-no-use"}`)
		case token && auth != "Bearer tok-12345":
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+reg.URL+`/token",service="test"`)
			w.WriteHeader(http.StatusUnauthorized)
		case !token && auth != basic:
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, `{"errors":[{"code":"UNAUTHORIZED","message":"you sent %s"}]}`, auth)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func TestPullLogin(t *testing.T) {
	bin := t.TempDir()
	script := "#!/bin/sh\nread server\ncase $server in *127.0.0.1*) ;; *) echo 'credentials not found in native keychain'; exit 1;; esac\necho '{\"ServerURL\":\"x\",\"Username\":\"user\",\"Secret\":\"s3cret-pw\"}'\n"
	broken := "#!/bin/sh\necho s3cret-pw; echo s3cret-pw >&2; exit 1\n"
	for name, text := range map[string]string{"docker-credential-test": script, "docker-credential-broken": broken} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	good := base64.StdEncoding.EncodeToString([]byte("user:s3cret-pw"))
	wrong := base64.StdEncoding.EncodeToString([]byte("user:wr0ng-pw"))
	img := simple(t, "x")
	for _, token := range []bool{false, true} {
		for name, tt := range map[string]struct {
			config string
			kind   box.Kind
		}{
			"auth":                {`{"auths":{"HOST":{"auth":"` + good + `"}}}`, ""},
			"user and password":   {`{"auths":{"https://HOST/v1/":{"username":"user","password":"s3cret-pw"}}}`, ""},
			"for the repository":  {`{"auths":{"HOST":{"auth":"` + wrong + `"},"HOST/private":{"auth":"` + good + `"}}}`, ""},
			"helper":              {`{"credHelpers":{"HOST":"test"}}`, ""},
			"store":               {`{"credsStore":"test"}`, ""},
			"wrong password":      {`{"auths":{"HOST":{"auth":"` + wrong + `"}}}`, box.Unauthenticated},
			"nobody":              {`{}`, box.Unauthenticated},
			"of another registry": {`{"auths":{"example.com":{"auth":"` + good + `"}}}`, box.Unauthenticated},
			"helper that fails":   {`{"credHelpers":{"HOST":"broken"}}`, box.Unauthenticated},
			"helper that is not":  {`{"credHelpers":{"HOST":"missing"}}`, box.Unauthenticated},
			"helper with a path":  {`{"credHelpers":{"HOST":"../x"}}`, box.Unauthenticated},
			"broken file":         {`{"auths":{"HOST":{"auth":"s3cret-pw`, box.Unauthenticated},
			"broken auth":         {`{"auths":{"HOST":{"auth":"s3cret-pw!"}}}`, box.Unauthenticated},
		} {
			t.Run(fmt.Sprintf("%s, token %v", name, token), func(t *testing.T) {
				reg := imagetest.NewRegistry(t)
				reg.Push(t, "private/app", "1", img)
				login(reg, token)
				dir := t.TempDir()
				if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(strings.ReplaceAll(tt.config, "HOST", reg.Host)), 0o600); err != nil {
					t.Fatal(err)
				}
				s := openWith(t, newDir(t), image.Registries{Registries: map[string]image.Registry{reg.Host: {Insecure: true}}}, image.Config{DockerConfig: dir})
				_, err := s.Pull(t.Context(), reg.Host+"/private/app:1", image.PullOptions{})
				if tt.kind == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				wantKind(t, err, tt.kind)
				for _, secret := range []string{"s3cret-pw", "wr0ng-pw", good, wrong, "tok-"} {
					if strings.Contains(fmt.Sprintf("%v %+v %q", err, err, err), secret) {
						t.Errorf("the error tells the secret: %v", err)
					}
				}
			})
		}
	}
}

// A redirect to another host, as blob stores do, gets the blob but no login.
func TestPullRedirect(t *testing.T) {
	img := simple(t, "x")
	for i := range 4 {
		token := i%2 == 1
		// Another host, and another port of the same one.
		host := []string{"localhost", "127.0.0.1"}[i/2]
		reg, blobs := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
		reg.Push(t, "private/app", "1", img)
		blobs.Push(t, "private/app", "1", img)
		var elsewhere sync.Map
		blobs.Hook(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			elsewhere.Store(r.URL.Path, fmt.Sprint(r.Header))
			next.ServeHTTP(w, r)
		})
		reg.Hook(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			auth := r.Header.Get("Authorization")
			switch {
			case r.URL.Path == "/token":
				fmt.Fprint(w, `{"token":"tok-12345"}`)
			case auth == "" || token != strings.HasPrefix(auth, "Bearer"):
				challenge := `Basic realm="x"`
				if token {
					challenge = `Bearer realm="` + reg.URL + `/token"`
				}
				w.Header().Set("WWW-Authenticate", challenge)
				w.WriteHeader(http.StatusUnauthorized)
			case strings.Contains(r.URL.Path, "/blobs/"):
				http.Redirect(w, r, strings.Replace(blobs.URL, "127.0.0.1", host, 1)+r.URL.Path+"?signature=s1gnature", http.StatusTemporaryRedirect)
			default:
				next.ServeHTTP(w, r)
			}
		})
		dir := t.TempDir()
		auth := base64.StdEncoding.EncodeToString([]byte("user:s3cret-pw"))
		os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"auths":{"`+reg.Host+`":{"auth":"`+auth+`"}}}`), 0o600)
		s := openWith(t, newDir(t), image.Registries{Registries: map[string]image.Registry{reg.Host: {Insecure: true}}}, image.Config{DockerConfig: dir})
		if _, err := s.Pull(t.Context(), reg.Host+"/private/app:1", image.PullOptions{}); err != nil {
			t.Fatal(err)
		}
		n := 0
		elsewhere.Range(func(k, v any) bool {
			n++
			if strings.Contains(v.(string), "Authorization") || strings.Contains(v.(string), "tok-") || strings.Contains(v.(string), auth) {
				t.Errorf("token %v: %v was sent %v", token, k, v)
			}
			return true
		})
		if n != 3 {
			t.Errorf("%d requests after redirects, want 3", n)
		}
		// A failure there does not tell the signature.
		blobs.Hook(func(w http.ResponseWriter, r *http.Request, next http.Handler) { w.WriteHeader(http.StatusForbidden) })
		s = openWith(t, newDir(t), image.Registries{Registries: map[string]image.Registry{reg.Host: {Insecure: true}}}, image.Config{DockerConfig: dir})
		_, err := s.Pull(t.Context(), reg.Host+"/private/app:1", image.PullOptions{})
		wantKind(t, err, box.Permission)
		if strings.Contains(err.Error(), "s1gnature") {
			t.Errorf("the error has the signed address: %v", err)
		}
	}
}

func TestPullMirrorsAndSearch(t *testing.T) {
	main, mirror, other := imagetest.NewRegistry(t), imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	a, b := simple(t, "a"), simple(t, "b")
	main.Push(t, "org/app", "1", a)
	mirror.Push(t, "cache/org/app", "1", a)
	other.Push(t, "org/app", "1", b)
	other.Push(t, "org/second", "1", b)
	set := func(search []string, mirrors ...string) *image.Store {
		return openWith(t, newDir(t), image.Registries{Search: search, Registries: map[string]image.Registry{
			main.Host: {Insecure: true, Mirrors: mirrors}, mirror.Host: {Insecure: true}, other.Host: {Insecure: true}}}, image.Config{})
	}
	pull := func(s *image.Store, ref, digest string) {
		t.Helper()
		got, err := s.Pull(t.Context(), ref, image.PullOptions{})
		if err != nil || got.Digest != digest {
			t.Errorf("pull %s: %s, %v", ref, got.Digest, err)
		}
	}
	main.Requests()
	s := set(nil, mirror.Host+"/cache")
	pull(s, main.Host+"/org/app:1", a.Manifest.Digest)
	if got := main.Requests(); len(got) != 0 {
		t.Errorf("with a mirror that has it the registry was asked %v", got)
	}
	if img, err := s.Get(t.Context(), main.Host+"/org/app:1"); err != nil || img.Name != main.Host+"/org/app:1" {
		t.Errorf("it is called %q, %v", img.Name, err)
	}
	// A mirror that lacks the image, or lies, or is down.
	pull(set(nil, mirror.Host), main.Host+"/org/app:1", a.Manifest.Digest)
	pull(set(nil, "localhost:1"), main.Host+"/org/app:1", a.Manifest.Digest)
	mirror.Hook(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if isBlob(r, a.Layers[0]) {
			w.Write(bytes.Repeat([]byte("x"), len(a.Layers[0].Data)))
			return
		}
		next.ServeHTTP(w, r)
	})
	pull(set(nil, mirror.Host+"/cache"), main.Host+"/org/app:1", a.Manifest.Digest)

	// The search order decides, and is not left because a registry is down.
	pull(set([]string{main.Host, other.Host}), "org/app:1", a.Manifest.Digest)
	pull(set([]string{other.Host, main.Host}), "org/app:1", b.Manifest.Digest)
	pull(set([]string{main.Host, other.Host}), "org/second:1", b.Manifest.Digest)
	_, err := set([]string{main.Host, other.Host}).Pull(t.Context(), "org/third:1", image.PullOptions{})
	wantKind(t, err, box.NotFound, main.Host, other.Host)
	_, err = set([]string{"localhost:1", other.Host}).Pull(t.Context(), "org/app:1", image.PullOptions{})
	wantKind(t, err, box.Unavailable)
}

func TestRegistriesFile(t *testing.T) {
	for text, words := range map[string]string{
		`{"serach":["x"]}`:                                   "serach",
		`{"registries":{"a.b":{"insecur":true}}}`:            "insecur",
		`{"search":["https://x"]}`:                           "https://x",
		`{"registries":{"a.b":{"mirrors":["https://x/y"]}}}`: "without https://",
		`{"registries":{"a.b":{"mirrors":["x.y/UP"]}}}`:      "path",
		`{"registries":{"a b":{}}}`:                          "a b",
		`{`:                                                  "",
	} {
		file := filepath.Join(t.TempDir(), "registries.json")
		os.WriteFile(file, []byte(text), 0o600)
		s, err := image.Open(t.Context(), newDir(t), image.Config{Registries: file})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Pull(t.Context(), "app", image.PullOptions{})
		wantKind(t, err, box.Invalid, file, words)
	}
	s, err := image.Open(t.Context(), newDir(t), image.Config{Registries: filepath.Join(t.TempDir(), "none.json")})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Get(t.Context(), "app")
	wantKind(t, err, box.NotFound)
}

func TestPullTogether(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	img := imagetest.New(t, "", nil, noise(t, "a", 300_000), noise(t, "bb", 200_000), noise(t, "ccc", 100_000), imagetest.Tar(t, imagetest.File{Name: "d", Type: tar.TypeDir}))
	reg.Push(t, "app", "1", img)
	var fetched sync.Map
	reg.Hook(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			n, _ := fetched.LoadOrStore(r.URL.Path, new(atomic.Int32))
			n.(*atomic.Int32).Add(1)
			time.Sleep(20 * time.Millisecond) // so that they meet
		}
		next.ServeHTTP(w, r)
	})
	dir := newDir(t)
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			s := open(t, dir, reg)
			got, err := s.Pull(t.Context(), "app:1", image.PullOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := s.Tree(t.Context(), got, ""); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	blobs := 0
	fetched.Range(func(k, n any) bool {
		blobs++
		if got := n.(*atomic.Int32).Load(); got != 1 {
			t.Errorf("%v was fetched %d times", k, got)
		}
		return true
	})
	if blobs != 5 {
		t.Errorf("%d blobs fetched, want 5", blobs)
	}
	if left := append(files(t, filepath.Join(dir, "partial")), files(t, filepath.Join(dir, "tmp"))...); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestLoadSaveImport(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	img := simple(t, "x") // a gzip and a zstd layer
	reg.Push(t, "org/app", "1", img)
	plain := imagetest.New(t, "", nil, imagetest.Tar(t, imagetest.File{Name: "f", Body: "plain"}))
	reg.Push(t, "plain", "1", plain)
	s := open(t, "", reg)
	ctx := t.Context()
	for _, ref := range []string{"org/app:1", "plain:1"} {
		if _, err := s.Pull(ctx, ref, image.PullOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tag := range []string{"dev", "docker.io/library/hub:2"} {
		if _, err := s.Tag(ctx, "org/app:1", tag); err != nil {
			t.Fatal(err)
		}
	}
	for _, format := range []image.Format{image.DockerArchive, image.OCIArchive} {
		var out, again bytes.Buffer
		refs := []string{"org/app:1", "dev", "hub:2", "plain:1"}
		if err := s.Save(ctx, &out, format, refs...); err != nil {
			t.Fatal(err)
		}
		if err := s.Save(ctx, &again, format, refs...); err != nil || !bytes.Equal(out.Bytes(), again.Bytes()) {
			t.Errorf("%s: saving twice gives two archives, %v", format, err)
		}
		for how, data := range map[string][]byte{"plain": out.Bytes(), "gzip": imagetest.Gzip(t, out.Bytes()), "zstd": imagetest.Zstd(t, out.Bytes())} {
			s2 := open(t, "")
			list, err := s2.Load(ctx, bytes.NewReader(data))
			if err != nil || len(list) != 4 {
				t.Fatalf("%s, %s: %d images, %v", format, how, len(list), err)
			}
			for _, ref := range []string{reg.Host + "/org/app:1", "dev", "hub:2", reg.Host + "/plain:1"} {
				got, err := s2.Get(ctx, ref)
				if err != nil {
					t.Errorf("%s, %s: %v", format, how, err)
					continue
				}
				if format == image.OCIArchive && ref != reg.Host+"/plain:1" && got.Digest != img.Manifest.Digest {
					t.Errorf("%s: %s has digest %s", format, ref, got.Digest)
				}
				if want := img.Config.Digest; ref != reg.Host+"/plain:1" && got.ConfigDigest != want {
					t.Errorf("%s: %s has ID %s, want %s", format, ref, got.ConfigDigest, want)
				}
				tree, err := s2.Tree(ctx, got, "")
				if err != nil {
					t.Errorf("%s: %v", format, err)
					continue
				}
				if b, err := os.ReadFile(filepath.Join(tree.Dir, "etc/top")); ref == "dev" && (err != nil || string(b) != "x") {
					t.Errorf("%s: etc/top is %q, %v", format, b, err)
				}
			}
		}
		// As a directory, and with links between members as old dockers write.
		dir := t.TempDir()
		tr := tar.NewReader(&out)
		for {
			hdr, err := tr.Next()
			if err != nil {
				break
			}
			os.MkdirAll(filepath.Dir(filepath.Join(dir, hdr.Name)), 0o755)
			data, _ := io.ReadAll(tr)
			os.WriteFile(filepath.Join(dir, hdr.Name), data, 0o644)
		}
		s2 := open(t, "")
		if list, err := s2.LoadPath(ctx, dir); err != nil || len(list) != 4 {
			t.Errorf("%s as a directory: %d images, %v", format, len(list), err)
		}
	}

	// Old dockers wrote a layer that several images have once, with links to
	// it, and podman has a registry for names of its own.
	l := imagetest.Tar(t, imagetest.File{Name: "f", Body: "x"})
	twice := imagetest.New(t, "", nil, l, l)
	s3 := open(t, "")
	list, err := s3.Load(ctx, bytes.NewReader(imagetest.Tar(t,
		imagetest.File{Name: "aa/", Type: tar.TypeDir}, imagetest.File{Name: "aa/layer.tar", Body: string(l)},
		imagetest.File{Name: "bb/layer.tar", Type: tar.TypeSymlink, Body: "../aa/layer.tar"}, imagetest.File{Name: "c.json", Body: string(twice.Config.Data)},
		imagetest.File{Name: "manifest.json", Body: `[{"Config":"c.json","RepoTags":["localhost/old:1","zz:2"],"Layers":["bb/layer.tar","aa/layer.tar"]}]`})))
	if err != nil || len(list) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	for _, ref := range []string{"old:1", "zz:2", "docker.io/library/zz:2"} {
		if got, err := s3.Get(ctx, ref); err != nil || got.ConfigDigest != twice.Config.Digest {
			t.Errorf("%s: %v", ref, err)
		}
	}

	_, err = s.LoadPath(ctx, "/nonexistent")
	wantKind(t, err, box.NotFound)
	wantKind(t, s.Save(ctx, io.Discard, "zip", "dev"), box.Invalid)
	wantKind(t, s.Save(ctx, io.Discard, image.OCIArchive), box.Invalid)
	wantKind(t, s.Save(ctx, io.Discard, image.OCIArchive, "nope"), box.NotFound)

	rootfs := imagetest.Tar(t, imagetest.File{Name: "bin/", Type: tar.TypeDir}, imagetest.File{Name: "bin/sh", Body: "#!", Mode: 0o755})
	for how, data := range map[string][]byte{"plain": rootfs, "gzip": imagetest.Gzip(t, rootfs), "zstd": imagetest.Zstd(t, rootfs)} {
		got, err := s.Import(ctx, bytes.NewReader(data), "imp:"+how, image.ImportOptions{Config: image.RunConfig{Cmd: []string{"/bin/sh"}}, Platform: "linux/arm64"})
		if err != nil {
			t.Fatal(err)
		}
		if got.Name != "imp:"+how || got.Platform != "linux/arm64" || got.Config.Cmd[0] != "/bin/sh" || got.Layers[0].DiffID != imagetest.Digest(rootfs) {
			t.Errorf("%s: %+v", how, got)
		}
		if _, err := s.Tree(ctx, got, ""); err != nil {
			t.Errorf("%s: %v", how, err)
		}
	}
	for _, data := range map[string][]byte{"nothing": nil, "zeros": make([]byte, 4096), "text": []byte(strings.Repeat("hello ", 1000)), "half a gzip": imagetest.Gzip(t, rootfs)[:60], "xz": []byte("\xfd7zXZ\x00 etc")} {
		_, err := s.Import(ctx, bytes.NewReader(data), "bad", image.ImportOptions{})
		wantKind(t, err, box.Invalid)
	}
}

// Archives of images are hostile too.
func TestLoadHostile(t *testing.T) {
	img := simple(t, "x")
	blob := func(b imagetest.Blob) imagetest.File {
		return imagetest.File{Name: "blobs/sha256/" + strings.TrimPrefix(b.Digest, "sha256:"), Body: string(b.Data)}
	}
	index := func(digest string, name string) imagetest.File {
		return imagetest.File{Name: "index.json", Body: fmt.Sprintf(`{"schemaVersion":2,"manifests":[{"mediaType":%q,"digest":%q,"size":%d,"annotations":{"org.opencontainers.image.ref.name":%q}}]}`,
			img.Manifest.MediaType, digest, len(img.Manifest.Data), name)}
	}
	all := []imagetest.File{index(img.Manifest.Digest, "ok"), blob(img.Manifest), blob(img.Config), blob(img.Layers[0]), blob(img.Layers[1])}
	swap := func(i int, f imagetest.File) []imagetest.File {
		l := slices.Clone(all)
		l[i] = f
		return l
	}
	wrong := blob(img.Layers[0])
	wrong.Body += "x"
	evil := blob(img.Layers[0])
	evil.Type, evil.Body = tar.TypeSymlink, "../../../../../../../etc/passwd"
	loop := blob(img.Layers[0])
	loop.Type, loop.Body = tar.TypeSymlink, filepath.Base(loop.Name)
	docker := func(text string) []imagetest.File {
		return []imagetest.File{{Name: "manifest.json", Body: text}, {Name: "c.json", Body: string(img.Config.Data)}}
	}
	tests := map[string][]imagetest.File{
		"empty":                        nil,
		"a root filesystem":            {{Name: "etc/passwd", Body: "root"}},
		"index is no JSON":             swap(0, imagetest.File{Name: "index.json", Body: "<"}),
		"index names nothing":          swap(0, imagetest.File{Name: "index.json", Body: "{}"}),
		"digest with a path":           swap(0, index("sha256:../../../etc/passwd", "x")),
		"digest that is not there":     swap(0, index(imagetest.Digest([]byte("other")), "x")),
		"name that is none":            swap(0, index(img.Manifest.Digest, "A B")),
		"layer is missing":             all[:4],
		"layer is longer":              swap(3, wrong),
		"layer is a link out":          swap(3, evil),
		"layer is a link to itself":    swap(3, loop),
		"docker: no JSON":              docker("{"),
		"docker: no image":             docker("[]"),
		"docker: config outside":       docker(`[{"Config":"../../etc/passwd","Layers":[]}]`),
		"docker: layer outside":        docker(`[{"Config":"c.json","Layers":["/etc/passwd","/etc/passwd"]}]`),
		"docker: layers do not fit":    docker(`[{"Config":"c.json","Layers":[]}]`),
		"docker: tag that is none":     docker(`[{"Config":"c.json","RepoTags":["A:B:C"],"Layers":[]}]`),
		"docker: config is no JSON":    {{Name: "manifest.json", Body: `[{"Config":"c","Layers":[]}]`}, {Name: "c", Body: "["}},
		"docker: layer with wrong sum": append(docker(`[{"Config":"c.json","Layers":["l","l"]}]`), imagetest.File{Name: "l", Body: string(imagetest.Tar(t))}),
	}
	for name, fs := range tests {
		t.Run(name, func(t *testing.T) {
			dir := newDir(t)
			s := open(t, dir)
			_, err := s.Load(t.Context(), bytes.NewReader(imagetest.Tar(t, fs...)))
			wantKind(t, err, box.Invalid)
			if list, _ := s.List(t.Context()); len(list) != 0 {
				t.Errorf("the store has %v", list)
			}
			if left := files(t, filepath.Join(dir, "tmp")); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
	s := open(t, "")
	if list, err := s.Load(t.Context(), bytes.NewReader(imagetest.Tar(t, all...))); err != nil || list[0].Name != "ok:latest" {
		t.Errorf("the good one: %v, %v", list, err)
	}
}
