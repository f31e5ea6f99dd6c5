package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"github.com/hutch-sandbox/hutch/box"
)

// Policy says when Pull asks a registry.
type Policy string

// The policies.
const (
	PullMissing Policy = "missing" // when the store does not have the image
	PullAlways  Policy = "always"  // always; what has not changed is not downloaded again
	PullNever   Policy = "never"   // not at all
)

// PullOptions are the choices of a pull. The zero value works.
type PullOptions struct {
	// Platform is os/arch or os/arch/variant. "" is linux and this machine's
	// architecture, or with a local image whatever that is for.
	Platform string
	// Policy is when to ask a registry. "" is PullMissing.
	Policy Policy
	// Progress, when not nil, is told how the pull goes. Calls come one at a
	// time, from goroutines of the pull, at most every 100 ms for each blob
	// besides changes of phase. It must not block for long.
	Progress func(Progress)
}

// Phase is what happens to a blob, or to the whole pull.
type Phase string

// The phases.
const (
	Resolving   Phase = "resolving"   // the manifest is being fetched; Ref is the name in question
	Waiting     Phase = "waiting"     // another pull is downloading this blob
	Downloading Phase = "downloading" // Done of Total bytes
	Retrying    Phase = "retrying"    // the connection broke; Done bytes are kept
	Present     Phase = "present"     // the blob is here already
	Complete    Phase = "complete"    // the blob has been downloaded and verified
)

// Progress is one report of a pull.
type Progress struct {
	Ref         string // normalised name of the image being pulled
	Digest      string // of the blob; "" when the report is about the whole pull
	Phase       Phase
	Done, Total int64 // bytes of the blob
}

// ID returns the first digits of the digest, as docker shows it.
func (p Progress) ID() string {
	hex := hexOf(p.Digest)
	return hex[:min(len(hex), 12)]
}

const (
	opPull        = "image pull"
	parallelBlobs = 4
	maxIndexDepth = 3
)

// Pull makes sure that the store has the image that ref means and returns it.
// Layers that are here already, or that another pull is just getting, are not
// downloaded again; a download that was cut off goes on where it stopped.
func (s *Store) Pull(ctx context.Context, ref string, opts PullOptions) (Image, error) {
	want, err := parsePlatform(opts.Platform)
	if err != nil {
		return Image{}, &box.Error{Kind: box.Invalid, Op: opPull, Object: clip(ref), Err: err}
	}
	switch opts.Policy {
	case PullMissing, "", PullNever:
		img, err := s.get(ctx, opPull, ref)
		if err == nil && (opts.Platform == "" || matches(img.Platform, want)) {
			return img, nil
		}
		if err == nil && opts.Policy == PullNever {
			return Image{}, &box.Error{Kind: box.NotFound, Op: opPull, Object: clip(ref),
				Err: fmt.Errorf("the image on this machine is for %s, not for %s", img.Platform, opts.Platform), Hint: "hutch pull --platform " + opts.Platform + " " + clip(ref)}
		}
		if err != nil && (opts.Policy == PullNever || box.KindOf(err) != box.NotFound) {
			return Image{}, err
		}
	case PullAlways:
		// No registry has what AddTree made, and none may offer its name.
		if img, err := s.get(ctx, opPull, ref); err == nil && img.treeKey != "" {
			return img, nil
		}
	default:
		return Image{}, &box.Error{Kind: box.Invalid, Op: opPull, Object: clip(ref),
			Err: fmt.Errorf("pull policy %q: must be missing, always or never", clip(string(opts.Policy)))}
	}
	r, err := parseReference(opPull, ref)
	if err != nil {
		// A digest alone can be looked up here but not in a registry.
		if shortForm().MatchString(ref) {
			_, err = s.get(ctx, opPull, ref)
		}
		return Image{}, err
	}
	regs, err := s.registries(opPull)
	if err != nil {
		return Image{}, err
	}
	candidates := []reference{r}
	if r.registry == "" {
		candidates = nil
		for _, reg := range regs.Search {
			candidates = append(candidates, r.in(reg))
		}
	}
	p := &puller{store: s, regs: regs, want: want, progress: opts.Progress, clients: map[endpoint]*client{}}
	defer p.close()
	var first error
	for _, c := range candidates {
		img, err := p.pull(ctx, c)
		if err == nil {
			return img, nil
		}
		if first == nil {
			first = err
		}
		// Docker Hub calls what does not exist unauthorized.
		switch box.KindOf(err) {
		case box.NotFound, box.Unauthenticated, box.Permission:
		default:
			return Image{}, err
		}
	}
	if len(candidates) > 1 {
		var e *box.Error
		if errors.As(first, &e) {
			first = &box.Error{Kind: e.Kind, Op: opPull, Object: clip(ref), Hint: e.Hint,
				Err: fmt.Errorf("in none of the registries %s; the first says: %s", strings.Join(regs.Search, ", "), causeOf(e))}
		}
	}
	return Image{}, first
}

// parsePlatform reads os/arch[/variant]; "" is this machine's.
func parsePlatform(s string) (v1.Platform, error) {
	if s == "" {
		return v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, nil
	}
	parts := strings.Split(strings.ToLower(s), "/")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
		return v1.Platform{}, fmt.Errorf("platform %q: must be like linux/amd64 or linux/arm/v7", clip(s))
	}
	p := v1.Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	switch p.Architecture { // what people call them
	case "x86_64", "x86-64":
		p.Architecture = "amd64"
	case "aarch64":
		p.Architecture = "arm64"
	}
	return p, nil
}

// matches reports whether an image for platform have serves want.
func matches(have string, want v1.Platform) bool {
	p, err := parsePlatform(have)
	return err == nil && fits(p, want)
}

func fits(have, want v1.Platform) bool {
	if have.OS != want.OS || have.Architecture != want.Architecture {
		return false
	}
	return want.Variant == "" || have.Variant == want.Variant ||
		// The one variant of arm64 is often left out.
		want.Architecture == "arm64" && want.Variant == "v8" && have.Variant == ""
}

// puller is one pull.
type puller struct {
	store    *Store
	regs     *Registries
	want     v1.Platform
	progress func(Progress)

	mu      sync.Mutex
	clients map[endpoint]*client
	secrets []string // of the clients, never to be shown

	reportMu sync.Mutex // held while progress runs
}

func (p *puller) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.clients {
		c.close()
	}
}

func (p *puller) report(r Progress) {
	if p.progress == nil {
		return
	}
	p.reportMu.Lock()
	defer p.reportMu.Unlock()
	p.progress(r)
}

// pull gets the image r, which has a registry.
func (p *puller) pull(ctx context.Context, r reference) (Image, error) {
	s := p.store
	p.report(Progress{Ref: r.String(), Phase: Resolving})
	done, err := s.adding(ctx)
	if err != nil {
		return Image{}, localError(ctx, opPull, r.String(), err)
	}
	defer done()

	endpoints := p.regs.endpoints(r)
	var found *resolved
	var errs []error
	for i, e := range endpoints {
		found, err = p.resolve(ctx, e, r)
		if err == nil {
			endpoints = append(endpoints[i:], endpoints[:i]...)
			break
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	if found == nil {
		// The registry itself comes last and knows best; a mirror that has
		// not got the image is no news.
		return Image{}, p.fail(ctx, r, endpoints[len(errs)-1].host, errs[len(errs)-1])
	}

	m := found.manifest
	var total int64
	for _, l := range m.Layers {
		if total += l.Size; l.Size > s.cfg.Limits.TotalBytes || total > s.cfg.Limits.TotalBytes {
			return Image{}, &box.Error{Kind: box.Exhausted, Op: opPull, Object: r.String(),
				Err: fmt.Errorf("its layers have more than %d bytes", s.cfg.Limits.TotalBytes)}
		}
	}
	// The configuration first: it tells whether the rest is worth it.
	if err := p.blob(ctx, r, endpoints, m.Config, false); err != nil {
		return Image{}, err
	}
	data, err := readFile(s.blobPath(m.Config.Digest.Hex), maxConfig)
	if err != nil {
		return Image{}, localError(ctx, opPull, r.String(), err)
	}
	c, err := parseConfig(data, m)
	if err != nil {
		return Image{}, p.invalid(r, err)
	}
	if have := (v1.Platform{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant}); !found.chosen && !fits(have, p.want) {
		return Image{}, p.noPlatform(r, []string{c.platform()})
	}

	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelBlobs)
	seen := map[v1.Hash]bool{}
	for _, l := range m.Layers {
		if seen[l.Digest] {
			continue
		}
		seen[l.Digest] = true
		g.Go(func() error { return p.blob(gctx, r, endpoints, l, true) })
	}
	if err := g.Wait(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return Image{}, localError(ctx, opPull, r.String(), err)
	}

	d := v1.Descriptor{MediaType: manifestType(m), Digest: found.digest, Size: int64(len(found.raw))}
	if found.source != "" {
		d.Annotations = map[string]string{sourceKey: found.source}
	}
	pl := v1.Platform{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant}
	d.Platform = &pl
	img, err := s.add(ctx, opPull, d, found.raw, r.name())
	if err != nil {
		return Image{}, localError(ctx, opPull, r.String(), err)
	}
	return img, nil
}

// add writes a manifest whose blobs are in the store and enters it as name.
func (s *Store) add(ctx context.Context, op string, d v1.Descriptor, manifest []byte, name string) (Image, error) {
	if err := s.writeBlob(ctx, d.Digest, manifest); err != nil {
		return Image{}, err
	}
	err := s.update(ctx, func(ix *v1.IndexManifest) error {
		var err error
		d, err = file(ix, op, d, name)
		return err
	})
	if err != nil {
		return Image{}, err
	}
	return s.image(d)
}

// resolved is a manifest of an image for one platform.
type resolved struct {
	manifest *v1.Manifest
	raw      []byte
	digest   v1.Hash
	source   string // digest of the index it was chosen from, or ""
	chosen   bool   // from an index, so the platform is known to fit
}

// resolve fetches the manifest of r from e, choosing the platform.
func (p *puller) resolve(ctx context.Context, e endpoint, r reference) (*resolved, error) {
	c, err := p.client(ctx, e)
	if err != nil {
		return nil, err
	}
	ref := r.tag
	if r.digest != "" {
		ref = r.digest
	}
	out := &resolved{}
	for range maxIndexDepth {
		raw, mt, err := c.manifest(ctx, p.store.patience, ref)
		if err != nil {
			return nil, err
		}
		h, err := hashOf(raw)
		if err != nil {
			return nil, err
		}
		if digForm().MatchString(ref) && h.String() != ref {
			return nil, wrongContent(fmt.Sprintf("the registry sent a manifest with digest %s for %s", h, ref))
		}
		if !isIndex(raw, mt) {
			if mt.IsSchema1() {
				return nil, wrongContent("the registry has it only in the obsolete schema 1")
			}
			m, err := parseManifest(raw)
			if err != nil {
				return nil, wrongContent(err.Error())
			}
			out.manifest, out.raw, out.digest = m, raw, h
			return out, nil
		}
		var ix v1.IndexManifest
		if err := json.Unmarshal(raw, &ix); err != nil {
			return nil, wrongContent("the index is not readable: " + err.Error())
		}
		d, have := choose(ix.Manifests, p.want)
		if d == nil {
			return nil, p.noPlatform(r, have)
		}
		if err := checkDescriptor(*d); err != nil {
			return nil, wrongContent(err.Error())
		}
		if out.source == "" {
			out.source = h.String()
		}
		out.chosen = out.chosen || d.Platform != nil
		ref = d.Digest.String()
	}
	return nil, wrongContent("its indexes are nested too deep")
}

// isIndex looks at the content where the registry's word for it is missing.
func isIndex(raw []byte, mt types.MediaType) bool {
	var probe struct {
		MediaType types.MediaType   `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
		Config    json.RawMessage   `json:"config"`
	}
	if json.Unmarshal(raw, &probe) != nil {
		return false
	}
	if probe.MediaType != "" {
		mt = probe.MediaType
	}
	return mt.IsIndex() || !mt.IsImage() && probe.Manifests != nil && probe.Config == nil
}

// choose returns the manifest that fits want best, or nil and what there is.
func choose(list []v1.Descriptor, want v1.Platform) (best *v1.Descriptor, have []string) {
	for i, d := range list {
		if d.Platform == nil {
			// An index without platforms: what is in it says it itself.
			if len(list) == 1 {
				return &list[i], nil
			}
			continue
		}
		// Attestations travel as images for an unknown platform.
		if d.Platform.OS == "unknown" || d.Annotations["vnd.docker.reference.type"] != "" {
			continue
		}
		have = append(have, platformString(d.Platform.OS, d.Platform.Architecture, d.Platform.Variant))
		if !fits(*d.Platform, want) {
			continue
		}
		// Of several variants the plainest, then the first.
		if best == nil || best.Platform.Variant != want.Variant && d.Platform.Variant == want.Variant {
			best = &list[i]
		}
	}
	return best, have
}

func (p *puller) noPlatform(r reference, have []string) error {
	want := platformString(p.want.OS, p.want.Architecture, p.want.Variant)
	slices.Sort(have)
	have = slices.Compact(have)
	if len(have) > 20 {
		have = append(have[:20], "…")
	}
	e := &box.Error{Kind: box.NotFound, Op: opPull, Object: r.String(),
		Err: fmt.Errorf("there is no image for %s, only for %s", want, clip(strings.Join(have, ", ")))}
	if len(have) > 0 {
		e.Hint = "choose one with --platform"
	}
	return e
}

func (p *puller) invalid(r reference, err error) error {
	return &box.Error{Kind: box.Invalid, Op: opPull, Object: r.String(), Err: errors.New(clip(err.Error()))}
}

// throttle passes at most one report per 100 ms for the same phase.
type throttle struct {
	last  time.Time
	phase Phase
}

func (t *throttle) pass(ph Phase) bool {
	now := time.Now()
	if ph == t.phase && now.Sub(t.last) < 100*time.Millisecond {
		return false
	}
	t.last, t.phase = now, ph
	return true
}
