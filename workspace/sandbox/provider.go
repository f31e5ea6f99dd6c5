package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/workspace"
)

const (
	// ProviderName is the Provider of refs unless Options say otherwise.
	ProviderName = "hutch"
	// DefaultDir is the working directory unless Options say otherwise.
	DefaultDir = "/workspace"
	// DefaultCreateTimeout bounds the making of a box, with the pull of its
	// image.
	DefaultCreateTimeout = 10 * time.Minute
	// Label is on every box that a Provider makes; its value is the Provider
	// of its ref.
	Label = "hutch.workspace"

	namePrefix = "hutch-"
	// removeTime bounds the removal of a box.
	removeTime = 2 * time.Minute
)

// Options are for New. The zero value gives boxes with the builtin image, no
// network and the default size.
type Options struct {
	// Image, CPUs and Memory (bytes) of a new box, as in box.Spec.
	Image  string
	CPUs   float64
	Memory int64
	// Labels of a new box, to find it by. Label is added.
	Labels map[string]string
	// Spec is everything else about a new box: network, volumes, secrets,
	// idle timers and so on. The fields that the Provider or other Options
	// own are refused: Name, Labels, Image, CPUs, Memory, Env, Dir, Detach and
	// Ephemeral.
	Spec box.Spec

	// WorkingDir is where commands start, an absolute path in the box; empty:
	// DefaultDir. It is made in a new box, and there belongs to Spec.User; in
	// an old one it has to exist.
	WorkingDir string
	// ImageDir uses the image's working directory instead.
	ImageDir bool
	// Env is laid over the image's environment for every command, also in an
	// old box. Names are identifiers.
	Env map[string]string

	// Provider is the name in refs; empty: ProviderName. Programs that use
	// several runtimes give each its own.
	Provider string
	// CreateTimeout bounds the making of a box; zero: DefaultCreateTimeout.
	CreateTimeout time.Duration
	// Logger gets a line before a box is made; nil: slog.Default.
	Logger *slog.Logger
}

// Provider makes boxes to work in, and finds them again. It may be used by any
// number of goroutines.
type Provider struct {
	rt   *box.Runtime
	spec box.Spec // without a name
	// imageDir says that the working directory is the image's own affair.
	imageDir bool
	setting  setting
	timeout  time.Duration
	log      *slog.Logger

	mu      sync.Mutex
	making  map[string]*flight    // those that make a box, by its name
	flights map[*flight]struct{}  // all that go on
	open    map[*Backend]struct{} // those that use a box now
}

// setting is how commands run in a box, whoever made it.
type setting struct {
	provider string
	dir      string   // empty: the box's own
	env      []string // KEY=value
}

var _ workspace.Provider = (*Provider)(nil)

// New returns a Provider over rt, which has to stay open for as long as the
// Provider is used. It does no I/O: whether there is such an image shows when
// the first box is made. Options that cannot be are workspace.ErrInvalid.
func New(rt *box.Runtime, opts Options) (*Provider, error) {
	if rt == nil {
		return nil, invalid("runtime", "no runtime given", "open one, for example with box/local")
	}
	if err := refuseOwned(opts.Spec); err != nil {
		return nil, err
	}
	if _, taken := opts.Labels[Label]; taken {
		return nil, invalid("Labels", Label+" is the provider's own", "use another key")
	}
	if opts.ImageDir && opts.WorkingDir != "" {
		return nil, invalid("WorkingDir", "ImageDir contradicts it", "set one of them")
	}
	if opts.CreateTimeout < 0 {
		return nil, invalid("CreateTimeout", fmt.Sprintf("%v is negative", opts.CreateTimeout), "use 0 for the default")
	}
	if opts.WorkingDir == "" && !opts.ImageDir {
		opts.WorkingDir = DefaultDir
	}
	set, err := newSetting(opts.Provider, opts.WorkingDir, opts.Env)
	if err != nil {
		return nil, err
	}
	p := &Provider{
		rt: rt, spec: opts.Spec, imageDir: opts.ImageDir, setting: set, timeout: opts.CreateTimeout, log: opts.Logger,
		making: make(map[string]*flight), flights: make(map[*flight]struct{}), open: make(map[*Backend]struct{}),
	}
	if p.timeout == 0 {
		p.timeout = DefaultCreateTimeout
	}
	if p.log == nil {
		p.log = slog.Default()
	}
	p.spec.Image, p.spec.CPUs, p.spec.Memory, p.spec.Dir = opts.Image, opts.CPUs, opts.Memory, set.dir
	p.spec.Labels = maps.Clone(opts.Labels)
	if p.spec.Labels == nil {
		p.spec.Labels = make(map[string]string)
	}
	p.spec.Labels[Label] = set.provider
	if err := p.spec.Validate(); err != nil {
		return nil, &workspace.Error{Kind: workspace.ErrInvalid, Op: "sandbox", Err: err}
	}
	return p, nil
}

func invalid(field, what, hint string) error {
	return &workspace.Error{Kind: workspace.ErrInvalid, Op: "sandbox", Object: field, Err: errors.New(what), Hint: hint}
}

// refuseOwned refuses what would contradict the Provider's promises, or be
// overwritten by its options.
func refuseOwned(s box.Spec) error {
	for _, f := range []struct {
		name string
		set  bool
		hint string
	}{
		{"Name", s.Name != "", "the provider names its boxes"},
		{"Labels", s.Labels != nil, "use Options.Labels"},
		{"Image", s.Image != "", "use Options.Image"},
		{"CPUs", s.CPUs != 0, "use Options.CPUs"},
		{"Memory", s.Memory != 0, "use Options.Memory"},
		{"Env", s.Env != nil, "use Options.Env"},
		{"Dir", s.Dir != "", "use Options.WorkingDir"},
		{"Detach", s.Detach, "a box stops when nothing uses it; keep a backend open to keep it running"},
		{"Ephemeral", s.Ephemeral, "a box is kept until Destroy"},
	} {
		if f.set {
			return invalid("Spec."+f.name, "the provider owns this field", f.hint)
		}
	}
	return nil
}

func newSetting(provider, dir string, env map[string]string) (setting, error) {
	if provider == "" {
		provider = ProviderName
	}
	if err := (workspace.Ref{Provider: provider, ID: "x"}).Validate(); err != nil {
		return setting{}, invalid("Provider", fmt.Sprintf("%q is not a name", provider), "use a short word")
	}
	if dir != "" && (!path.IsAbs(dir) || strings.IndexByte(dir, 0) >= 0) {
		return setting{}, invalid("WorkingDir", fmt.Sprintf("%q is no absolute path", dir), "begin it with /")
	}
	s := setting{provider: provider, dir: dir}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if err := workspace.CheckEnv(name, env[name]); err != nil {
			return setting{}, err
		}
		s.env = append(s.env, name+"="+env[name])
	}
	return s, nil
}

// New returns a *Backend whose first operation makes a box.
func (p *Provider) New() workspace.Backend {
	return &Backend{p: p, setting: p.setting}
}

// Backend returns a *Backend whose first operation attaches to the box that ref
// names, booting it when it is stopped.
func (p *Provider) Backend(ref workspace.Ref) (workspace.Backend, error) {
	name, err := p.boxName("attach", ref)
	if err != nil {
		return nil, err
	}
	return &Backend{p: p, setting: p.setting, name: name, fixed: true}, nil
}

// boxName returns the name of the box that ref names.
func (p *Provider) boxName(op string, ref workspace.Ref) (string, error) {
	if ref.Provider != p.setting.provider {
		return "", &workspace.Error{Kind: workspace.ErrUnknownRef, Op: op, Object: clip(ref.String()), Err: fmt.Errorf("this provider is %q", p.setting.provider)}
	}
	digits, ok := strings.CutPrefix(ref.ID, namePrefix)
	if !ok || len(digits) != 32 || strings.Trim(digits, "0123456789abcdef") != "" {
		return "", &workspace.Error{Kind: workspace.ErrInvalid, Op: op, Object: clip(ref.String()), Err: errors.New("no box of this provider has such a name"), Hint: "use FromBox for a box that your program made"}
	}
	return ref.ID, nil
}

func newName() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return namePrefix + hex.EncodeToString(b[:])
}

// Destroy removes the box that ref names and all that is on its disk, in any
// state. A box that is not there any more is no error. A box that is being made
// by this Provider is given up first. Destroy goes on to its end, within two
// minutes, whether or not ctx has ended, so that it can be deferred.
func (p *Provider) Destroy(ctx context.Context, ref workspace.Ref) error {
	name, err := p.boxName("destroy", ref)
	if err != nil {
		return err
	}
	p.mu.Lock()
	f := p.making[name]
	p.mu.Unlock()
	if f != nil {
		f.destroy()
		<-f.done
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	return translate(ctx, "destroy", name, p.rt.Remove(ctx, name, true))
}

// Fork copies the box that ref names, with its files and running processes. No
// runtime can do that yet: it is workspace.ErrUnsupported.
func (p *Provider) Fork(_ context.Context, ref workspace.Ref) (workspace.Ref, error) {
	name, err := p.boxName("fork", ref)
	if err != nil {
		return workspace.Ref{}, err
	}
	return workspace.Ref{}, &workspace.Error{Kind: workspace.ErrUnsupported, Op: "fork", Object: name, Err: errors.New("this runtime cannot copy a box")}
}

// Close closes every backend that uses a box, which stops the boxes that nobody
// else uses, and waits for those that are being made or removed. No box is
// destroyed. The Provider may be used again.
func (p *Provider) Close(ctx context.Context) error {
	p.mu.Lock()
	open, flights := slices.Collect(maps.Keys(p.open)), slices.Collect(maps.Keys(p.flights))
	p.mu.Unlock()
	var errs []error
	for _, b := range open {
		errs = append(errs, b.Close(ctx))
	}
	for _, f := range flights {
		<-f.done
	}
	return errors.Join(errs...)
}

func clip(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
