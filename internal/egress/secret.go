package egress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// secrets puts values into requests. Its authority is made at each boot and
// never leaves this process's memory; the box trusts its certificate.
type secrets struct {
	g         *Gateway
	list      []box.Secret // without values; never changes
	caCert    *x509.Certificate
	caDER     []byte
	caKey     *ecdsa.PrivateKey
	leafKey   *ecdsa.PrivateKey
	transport *http.Transport

	mu     sync.Mutex // guards the fields below
	values map[string]string
	leaves map[string]*tls.Certificate
}

const maxLeaves = 256

// errCertificate marks a server whose certificate is not in order.
var errCertificate = errors.New("the server's certificate is not in order")

func newSecrets(cfg Config) (*secrets, error) {
	s := &secrets{values: map[string]string{}, leaves: map[string]*tls.Certificate{}}
	for _, sec := range cfg.Secrets {
		if sec.Value != "" {
			s.values[sec.Name] = sec.Value
		}
		sec.Value = ""
		if len(sec.Headers) == 0 {
			sec.Headers = box.DefaultSecretHeaders()
		}
		s.list = append(s.list, sec)
	}
	var err error
	if s.caKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	if s.leafKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Hutch box " + cfg.ID},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	if s.caDER, err = x509.CreateCertificate(rand.Reader, tmpl, tmpl, s.caKey.Public(), s.caKey); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	s.caCert, err = x509.ParseCertificate(s.caDER)
	return s, err
}

func serial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // never fails
	return n
}

// Placeholder is what a box sees instead of a secret's value: the same at each
// boot, so that it may be kept in the box's files.
func Placeholder(boxID, name string) string {
	sum := sha256.Sum256([]byte("hutch placeholder\x00" + boxID + "\x00" + name))
	return "hutch-secret-" + hex.EncodeToString(sum[:20])
}

// CA returns the certificate that the box is to trust, in PEM; nil without
// secrets.
func (g *Gateway) CA() []byte {
	if g.secret == nil {
		return nil
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.secret.caDER})
}

// SetSecrets gives values to secrets that the box has. Names that it does not
// have are refused.
func (g *Gateway) SetSecrets(values map[string]string) error {
	for name, value := range values {
		if g.secret == nil || !slices.ContainsFunc(g.secret.list, func(s box.Secret) bool { return s.Name == name }) {
			return &box.Error{Kind: box.NotFound, Op: "set secret", Object: name, Err: errors.New("the box has no such secret"), Hint: "secrets are named when a box is created"}
		}
		if err := (box.Secret{Name: name, Value: value}).ValidateValue(); err != nil {
			return err
		}
	}
	if g.secret == nil {
		return nil
	}
	g.secret.mu.Lock()
	defer g.secret.mu.Unlock()
	for name, value := range values {
		g.secret.values[name] = value
	}
	return nil
}

// has reports whether a name is a host that gets a secret. It may be called on
// nil.
func (s *secrets) has(name string) bool {
	return s != nil && name != "" && len(s.of(normal(name))) > 0
}

func (s *secrets) of(name string) []box.Secret {
	var out []box.Secret
	for _, sec := range s.list {
		if sec.MatchHost(name) {
			out = append(out, sec)
		}
	}
	return out
}

// wantsSecret reports whether a connection may turn out to be for a host that
// gets a secret.
func (g *Gateway) wantsSecret(d decision, dst netip.AddrPort) bool {
	return g.secret != nil && dst.Port() == 443 && (d.kind == named || d.kind == direct) && slices.ContainsFunc(d.names, g.secret.has)
}

// certificate returns one for a host, made at first.
func (s *secrets) certificate(name string) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.leaves[name]; c != nil {
		return c, nil
	}
	if len(s.leaves) >= maxLeaves {
		clear(s.leaves)
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: clipName(name)}, DNSNames: []string{name},
		NotBefore: s.caCert.NotBefore, NotAfter: s.caCert.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, s.caCert, s.leafKey.Public(), s.caKey)
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{Certificate: [][]byte{der, s.caDER}, PrivateKey: s.leafKey}
	s.leaves[name] = c
	return c, nil
}

// clipName keeps a common name within its 64 bytes.
func clipName(name string) string {
	if len(name) > 64 {
		return name[:64]
	}
	return name
}

// substitution is one secret in the requests to a host.
type substitution struct {
	name, placeholder, value string
	headers                  []string
}

// substitutions returns what applies to a host; missing names a secret whose
// value is not known.
func (s *secrets) substitutions(boxID, host string) (subs []substitution, missing string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sec := range s.of(host) {
		value, ok := s.values[sec.Name]
		if !ok {
			return nil, sec.Name
		}
		subs = append(subs, substitution{sec.Name, Placeholder(boxID, sec.Name), value, sec.Headers})
	}
	return subs, ""
}

// apply puts the values into the headers. It returns what else must be taken
// out of the response, since it contains a value.
func apply(subs []substitution, h http.Header) (used []string, extra []pair) {
	for _, sub := range subs {
		hit := false
		for _, name := range sub.headers {
			key := http.CanonicalHeaderKey(name)
			for i, v := range h[key] {
				if strings.Contains(v, sub.placeholder) {
					h[key][i] = strings.ReplaceAll(v, sub.placeholder, sub.value)
					hit = true
					continue
				}
				// Basic credentials hide the placeholder in base64.
				scheme, blob, ok := strings.Cut(v, " ")
				if !ok || !strings.EqualFold(scheme, "basic") {
					continue
				}
				blob = strings.TrimSpace(blob)
				plain, err := base64.StdEncoding.DecodeString(blob)
				if err != nil || !strings.Contains(string(plain), sub.placeholder) {
					continue
				}
				real := base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(string(plain), sub.placeholder, sub.value)))
				h[key][i] = scheme + " " + real
				extra = append(extra, pair{real, blob})
				hit = true
			}
		}
		if hit {
			used = append(used, sub.name)
		}
	}
	return used, extra
}

// serveSecret answers TLS in the place of host, and passes the requests on with
// the values in.
func (g *Gateway) serveSecret(f *flow, c net.Conn, host string) error {
	host = normal(host)
	proxy := newProxy()
	proxy.Transport = g.secret.upstream()
	proxy.Rewrite = func(r *httputil.ProxyRequest) {
		restore(r)
		r.Out.URL.Scheme = "https"
		r.Out.URL.Host = host + ":443"
		// What is compressed cannot be searched.
		r.Out.Header.Set("Accept-Encoding", "identity")
		ex := r.In.Context().Value(exchangeKey{}).(*exchangeState)
		used, extra := apply(ex.subs, r.Out.Header)
		ex.scrub = newScrubber(ex.subs, extra)
		if len(used) > 0 {
			rec := f.record(box.NetHTTP, true)
			rec.Reason = "the value of " + strings.Join(used, ", ") + " was put in"
			g.cfg.Record(rec)
		}
	}
	proxy.ModifyResponse = func(r *http.Response) error {
		ex := r.Request.Context().Value(exchangeKey{}).(*exchangeState)
		return ex.scrub.response(r)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, v := requestHost(r)
		if v.Allowed && name != host {
			v = box.Verdict{Reason: fmt.Sprintf("the connection is for %s", host)}
		}
		if v.Allowed {
			v = g.nameAllowed(f, host)
		}
		if !v.Allowed {
			g.refuseRequest(w, f, name, v)
			return
		}
		subs, missing := g.secret.substitutions(g.cfg.ID, host)
		if missing != "" {
			g.refuseRequest(w, f, name, box.Verdict{Reason: fmt.Sprintf("the value of the secret %s is not known since the box was stopped; hand it over with 'hutch net secret'", missing)})
			return
		}
		w.Header()["Content-Type"] = nil
		ex := &exchangeState{subs: subs}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, ex)))
	})
	return g.serveConn(f, &http.Server{Handler: handler, TLSConfig: &tls.Config{
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if normal(h.ServerName) != host {
				return nil, errors.New("another name than at first")
			}
			return g.secret.certificate(host)
		},
	}}, c)
}

// exchangeKey is the context key of a request's exchangeState.
type exchangeKey struct{}

type exchangeState struct {
	subs  []substitution
	scrub *scrubber
}

// upstream returns the transport to hosts that get secrets. Connections are
// shared by the box's connections, and verified.
func (s *secrets) upstream() http.RoundTripper {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.transport == nil {
		g := s.g
		s.transport = &http.Transport{
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
				host, _, err := net.SplitHostPort(addr)
				if err != nil {
					return nil, err
				}
				addrs, err := g.res.lookup(ctx, host)
				if err != nil {
					return nil, err
				}
				return g.dialName(ctx, "tcp", host, netip.AddrPortFrom(addrs[0], 443), host)
			},
			TLSClientConfig:     &tls.Config{RootCAs: g.cfg.Roots, MinVersion: tls.VersionTLS12},
			ForceAttemptHTTP2:   true,
			DisableCompression:  true,
			TLSHandshakeTimeout: dialTimeout,
			MaxIdleConnsPerHost: 4,
			MaxConnsPerHost:     64,
			IdleConnTimeout:     30 * time.Second,
		}
	}
	t := s.transport
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		resp, err := t.RoundTrip(r)
		var bad *tls.CertificateVerificationError
		if errors.As(err, &bad) {
			return nil, fmt.Errorf("%w: %s: %w", errCertificate, r.URL.Hostname(), bad.Err)
		}
		return resp, err
	})
}

func (s *secrets) close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.transport != nil {
		s.transport.CloseIdleConnections()
	}
}
