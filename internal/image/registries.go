package image

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// Registries is the content of the registries file, for example
//
//	{
//	  "search": ["docker.io", "quay.io"],
//	  "registries": {
//	    "docker.io": {"mirrors": ["mirror.corp:5000/hub"]},
//	    "mirror.corp:5000": {"ca_file": "corp-ca.pem"},
//	    "localhost:5000": {"insecure": true}
//	  }
//	}
//
// Unknown fields are errors, so that a misspelt one is not silently ignored.
type Registries struct {
	// Search lists where to look for names without a registry, in this order;
	// the first that has the image wins. A registry that cannot be reached
	// ends the search with an error: going on could find another image of the
	// same name. Empty: docker.io.
	Search []string `json:"search,omitempty"`
	// Registries holds settings by host, with :port where it has one.
	Registries map[string]Registry `json:"registries,omitempty"`
}

// Registry is how to talk to one registry. The zero value is HTTPS with the
// certificates that the system trusts.
type Registry struct {
	// Mirrors are asked first, in this order, then the registry itself. Each
	// is a host[:port] with settings of its own in Registries, or host/path if
	// it keeps the images below a path.
	Mirrors []string `json:"mirrors,omitempty"`
	// Insecure allows plain HTTP if HTTPS does not answer.
	Insecure bool `json:"insecure,omitempty"`
	// CAFile is a file of PEM certificates to trust beside the system's. A
	// relative path starts at the directory of the registries file.
	CAFile string `json:"ca_file,omitempty"`
	// SkipVerify accepts any certificate.
	SkipVerify bool `json:"skip_verify,omitempty"`
}

// registries reads the registries file.
func (s *Store) registries(op string) (*Registries, error) {
	regs := &Registries{}
	if s.cfg.Registries == "" {
		regs.Search = []string{dockerHub}
		return regs, nil
	}
	bad := func(err error) error {
		return &box.Error{Kind: box.Invalid, Op: op, Object: s.cfg.Registries, Err: err, Hint: "mend that file"}
	}
	data, err := readFile(s.cfg.Registries, 1<<20)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		data = []byte("{}")
	case err != nil:
		return nil, bad(err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(regs); err != nil {
		return nil, bad(err)
	}
	for i, h := range regs.Search {
		if !hostForm().MatchString(h) {
			return nil, bad(fmt.Errorf("search: %q is not the name of a registry", clip(h)))
		}
		regs.Search[i] = strings.ToLower(h)
	}
	if len(regs.Search) == 0 {
		regs.Search = []string{dockerHub}
	}
	for host, r := range regs.Registries {
		if !hostForm().MatchString(host) || host != strings.ToLower(host) {
			return nil, bad(fmt.Errorf("registries: %q is not the name of a registry in lower case", clip(host)))
		}
		for _, m := range r.Mirrors {
			if _, err := splitMirror(m); err != nil {
				return nil, bad(fmt.Errorf("registries: %s: mirrors: %w", host, err))
			}
		}
		if r.CAFile != "" && !filepath.IsAbs(r.CAFile) {
			r.CAFile = filepath.Join(filepath.Dir(s.cfg.Registries), r.CAFile)
			regs.Registries[host] = r
		}
	}
	return regs, nil
}

// endpoint is a place to get a repository from.
type endpoint struct {
	host string // "docker.io", "mirror.corp:5000"
	repo string // with the mirror's path in front
}

func splitMirror(m string) (endpoint, error) {
	host, path, _ := strings.Cut(m, "/")
	if !hostForm().MatchString(host) {
		return endpoint{}, fmt.Errorf("%q must be host[:port][/path], without https://", clip(m))
	}
	path = strings.Trim(path, "/")
	for part := range strings.SplitSeq(path, "/") {
		if path != "" && !repoPart().MatchString(part) {
			return endpoint{}, fmt.Errorf("%q has a path that no repository can have", clip(m))
		}
	}
	return endpoint{host: strings.ToLower(host), repo: path}, nil
}

// endpoints returns where to get r from, in the order to try.
func (regs *Registries) endpoints(r reference) []endpoint {
	var list []endpoint
	for _, m := range regs.Registries[r.registry].Mirrors {
		e, err := splitMirror(m)
		if err != nil {
			continue // registries has checked it
		}
		e.repo = strings.TrimPrefix(e.repo+"/"+r.repo, "/")
		list = append(list, e)
	}
	return append(list, endpoint{host: r.registry, repo: r.repo})
}

// errPlain says that plain HTTP was asked for and is not allowed.
var errPlain = errors.New("the registry wants to speak plain HTTP")

// httpTransport returns the transport for the registry host and for what it
// redirects to. The caller closes its idle connections.
func (r Registry) httpTransport(host string) (*http.Transport, http.RoundTripper, error) {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 20 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   2 * parallelBlobs,
		IdleConnTimeout:       30 * time.Second,
		TLSHandshakeTimeout:   20 * time.Second,
		ResponseHeaderTimeout: 60 * time.Second,
		// What is downloaded must be the bytes that the digest is about.
		DisableCompression: true,
		TLSClientConfig:    &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if r.SkipVerify {
		t.TLSClientConfig.InsecureSkipVerify = true
	}
	if r.CAFile != "" {
		pem, err := os.ReadFile(r.CAFile)
		if err != nil {
			return nil, nil, fmt.Errorf("ca_file: %w", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, nil, fmt.Errorf("ca_file: %s holds no PEM certificate", r.CAFile)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	if r.Insecure {
		return t, t, nil
	}
	return t, httpsOnly{host, t}, nil
}

// httpsOnly refuses plain HTTP, to wherever. The library below would try it
// with a registry on a private address, so for the registry itself it speaks
// HTTPS instead.
type httpsOnly struct {
	host string
	next http.RoundTripper
}

func (h httpsOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme == "http" && req.URL.Host == h.host {
		req = req.Clone(req.Context())
		req.URL.Scheme = "https"
	}
	if req.URL.Scheme != "https" {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, errPlain
	}
	return h.next.RoundTrip(req)
}
