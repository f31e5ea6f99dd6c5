package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/hutch-sandbox/hutch/box"
)

// client talks to one repository of one registry.
type client struct {
	e    endpoint
	reg  name.Registry
	http *http.Client
	base *http.Transport
}

func (c *client) close() { c.base.CloseIdleConnections() }

// client returns the one for e, which has logged in if that was asked for.
func (p *puller) client(ctx context.Context, e endpoint) (*client, error) {
	p.mu.Lock()
	c := p.clients[e]
	p.mu.Unlock()
	if c != nil {
		return c, nil
	}
	settings := p.regs.Registries[e.host]
	var opts []name.Option
	if settings.Insecure {
		opts = append(opts, name.Insecure)
	}
	reg, err := name.NewRegistry(e.host, opts...)
	if err != nil {
		return nil, wrongContent(err.Error())
	}
	base, rt, err := settings.httpTransport(reg.RegistryStr())
	if err != nil {
		return nil, &box.Error{Kind: box.Invalid, Op: opPull, Object: e.host, Err: err, Hint: "mend " + p.store.cfg.Registries}
	}
	cred, err := p.store.credentials(ctx, e)
	if err != nil {
		return nil, &box.Error{Kind: box.Unauthenticated, Op: opPull, Object: e.host, Err: err}
	}
	p.keepSecret(cred)
	auth := authn.Anonymous
	if cred != (authn.AuthConfig{}) {
		auth = authn.FromConfig(cred)
	}
	rt = transport.NewUserAgent(rt, p.store.cfg.UserAgent)
	err = p.store.patience.retry(ctx, func() error {
		var err error
		c, err = connect(ctx, e, reg, auth, base, rt)
		return err
	})
	if err != nil {
		base.CloseIdleConnections()
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if other := p.clients[e]; other != nil {
		c.close()
		return other, nil
	}
	p.clients[e] = c
	return c, nil
}

func connect(ctx context.Context, e endpoint, reg name.Registry, auth authn.Authenticator, base *http.Transport, rt http.RoundTripper) (*client, error) {
	scopes := []string{reg.Repo(e.repo).Scope(transport.PullScope)}
	login, err := transport.NewWithContext(ctx, reg, auth, rt, scopes)
	if err != nil {
		return nil, err
	}
	return &client{e: e, reg: reg, base: base, http: &http.Client{
		// The login is applied to requests for the registry's own host only,
		// so a redirect elsewhere carries none of it.
		Transport: login,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) >= 10 {
				return errors.New("more than 10 redirects")
			}
			if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
				return errPlain
			}
			// Go keeps this header for subdomains.
			if req.URL.Host != via[0].URL.Host {
				req.Header.Del("Authorization")
			}
			return nil
		},
	}}, nil
}

// keepSecret notes what must not get into messages.
func (p *puller) keepSecret(c authn.AuthConfig) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range []string{c.Password, c.Auth, c.IdentityToken, c.RegistryToken, base64.StdEncoding.EncodeToString([]byte(c.Username + ":" + c.Password))} {
		if len(s) >= 3 {
			p.secrets = append(p.secrets, s)
		}
	}
}

func (c *client) get(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	u := url.URL{Scheme: c.reg.Scheme(), Host: c.reg.RegistryStr(), Path: "/v2/" + c.e.repo + path}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	return c.http.Do(req)
}

// manifest fetches the manifest or index that ref, a tag or digest, names.
func (c *client) manifest(ctx context.Context, pa patience, ref string) (raw []byte, mt types.MediaType, err error) {
	accept := []string{string(types.OCIImageIndex), string(types.DockerManifestList),
		string(types.OCIManifestSchema1), string(types.DockerManifestSchema2)}
	err = pa.retry(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		resp, err := c.get(ctx, "/manifests/"+ref, http.Header{"Accept": {strings.Join(accept, ", ")}})
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if err := transport.CheckError(resp, http.StatusOK); err != nil {
			return err
		}
		mt = types.MediaType(strings.TrimSpace(strings.Split(resp.Header.Get("Content-Type"), ";")[0]))
		raw, err = io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
		if err == nil && len(raw) > maxManifest {
			return wrongContent(fmt.Sprintf("the manifest is longer than %d bytes", maxManifest))
		}
		return err
	})
	return raw, mt, err
}

// wrongContent is the error that a registry sent something it should not have.
type wrongContent string

func (e wrongContent) Error() string { return string(e) }

// patience is what a registry that stumbles is given.
type patience struct {
	tries int           // how often the same thing is tried without any progress
	first time.Duration // before the second try; it doubles with each
	most  time.Duration // that it grows to
	stall time.Duration // how long a download may stay silent before it counts as broken
}

var usualPatience = patience{tries: 5, first: 200 * time.Millisecond, most: 10 * time.Second, stall: time.Minute}

// retry calls f until it succeeds, fails for good, or has failed too often.
func (pa patience) retry(ctx context.Context, f func() error) error {
	wait := pa.first
	for i := 1; ; i++ {
		err := f()
		if err == nil || i >= pa.tries || !transient(ctx, err) {
			return err
		}
		if !sleep(ctx, wait) {
			return ctx.Err()
		}
		wait = min(2*wait, pa.most)
	}
}

// sleep waits for d and reports whether ctx let it.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// transient reports whether trying again may help.
func transient(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.Is(err, errPlain) {
		return false
	}
	var wrong wrongContent
	var ours *box.Error
	if errors.As(err, &wrong) || errors.As(err, &ours) {
		return false
	}
	// First: with plain HTTP allowed, the error of trying HTTPS is in it too.
	var te *transport.Error
	if errors.As(err, &te) {
		switch te.StatusCode {
		case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
			http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
		return false
	}
	if isTLS(err) {
		return false
	}
	// What remains is the network, which a name that does not exist is not.
	return !strings.Contains(err.Error(), "no such host")
}

func isTLS(err error) bool {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var verify *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	return errors.As(err, &unknown) || errors.As(err, &host) || errors.As(err, &invalid) || errors.As(err, &verify) ||
		errors.As(err, &record) || strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

// fail makes an error of talking to host about r one for the user.
func (p *puller) fail(ctx context.Context, r reference, host string, err error) error {
	e := &box.Error{Kind: box.Unavailable, Op: opPull, Object: r.String()}
	var ours *box.Error
	var wrong wrongContent
	var te *transport.Error
	file := p.store.cfg.Registries
	if file == "" {
		file = "a registries file"
	}
	switch {
	case ctx.Err() != nil:
		e.Kind, e.Err = box.KindOf(ctx.Err()), ctx.Err()
		return e
	case errors.As(err, &ours):
		return localError(ctx, opPull, r.String(), err)
	case errors.As(err, &wrong):
		e.Kind = box.Invalid
	case errors.As(err, &te):
		switch te.StatusCode {
		case http.StatusUnauthorized:
			e.Kind, e.Hint = box.Unauthenticated, "check the name, and log in with docker login "+host+" if it is private"
		case http.StatusForbidden:
			e.Kind, e.Hint = box.Permission, "check the name, and whether your login may read it"
		case http.StatusNotFound:
			e.Kind, e.Hint = box.NotFound, "check the name and the tag"
		case http.StatusTooManyRequests:
			e.Kind, e.Hint = box.Exhausted, "wait, or log in with docker login "+host
		case http.StatusBadRequest:
			e.Kind = box.Invalid
		}
	case errors.Is(err, errPlain), isTLS(err) && strings.Contains(err.Error(), "gave HTTP response"):
		e.Err = fmt.Errorf("%s speaks plain HTTP, which is not allowed", host)
		e.Hint = fmt.Sprintf(`if you trust the network, set {"registries": {%q: {"insecure": true}}} in %s`, host, file)
		return e
	case isTLS(err):
		e.Hint = fmt.Sprintf("if the certificate is right, set ca_file for %q in %s", host, file)
	default:
		e.Hint = "check the name of the registry and the network"
	}
	e.Err = fmt.Errorf("%s: %s", host, p.clean(err))
	return e
}

// clean returns the text of err in one bounded line, without the addresses it
// was redirected to (they may be signed) and without secrets.
func (p *puller) clean(err error) string {
	var ue *url.Error
	if errors.As(err, &ue) {
		host := ""
		if u, perr := url.Parse(ue.URL); perr == nil {
			host = u.Host + ": "
		}
		err = errors.New(host + ue.Err.Error())
	}
	msg := err.Error()
	var te *transport.Error
	if errors.As(err, &te) {
		msg = strconv.Itoa(te.StatusCode) + " " + http.StatusText(te.StatusCode)
		if len(te.Errors) > 0 {
			msg += ": " + string(te.Errors[0].Code) + " " + te.Errors[0].Message
		}
	}
	// The library quotes the whole answer of a token server here.
	if i := strings.Index(msg, "no token in bearer response"); i >= 0 {
		msg = msg[:i] + "no token in the answer of the token server"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.secrets {
		msg = strings.ReplaceAll(msg, s, "***")
	}
	return clip(msg)
}
