package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
)

// placeFlags say where an agent, or an MCP client, works: in a new box or in
// one that is there.
type placeFlags struct {
	flags *pflag.FlagSet
	image string
	eng   string
	net   networkFlags
	dir   folderFlag
	ref   string
	fresh bool
}

func (f *placeFlags) register(fs *pflag.FlagSet) {
	f.flags = fs
	parsed(fs, &f.image, "image", "", "image", "image of a new box (default: the small one in hutch)", someText)
	parsed(fs, &f.eng, "engine", "", "name", "engine of a new box: auto, gvisor or vm", oneOf("auto", "gvisor", "vm"))
	f.net.register(fs)
	parsed(fs, &f.dir, "dir", "", "path[:how]", "a folder to work on in a new box: copy (default), rw or ro", parseFolder)
	parsed(fs, &f.ref, "ref", "", "box", "work in this box: a ref, or a box's name", parseBoxRef)
	fs.BoolVar(&f.fresh, "new", false, "work in a new box, whatever the conversation says")
}

// ofNewBox are the flags that only a new box can obey.
var ofNewBox = []string{"image", "engine", "net", "allow", "deny", "dir"}

func (f *placeFlags) check() error {
	if f.ref != "" && f.fresh {
		return usagef("--new: contradicts --ref; leave out one of them")
	}
	if f.ref != "" {
		return f.refuseNew("--ref names a box that is there")
	}
	return nil
}

// refuseNew refuses flags for a new box, since there is none, for a reason.
func (f *placeFlags) refuseNew(why string) error {
	for _, name := range ofNewBox {
		if f.flags.Changed(name) {
			return usagef("--%s: %s; leave it out, or add --new for a new box", name, why)
		}
	}
	return nil
}

// folderFlag is --dir.
type folderFlag struct {
	path string
	how  string // "copy", "rw" or "ro"
}

func parseFolder(s string) (folderFlag, error) {
	f := folderFlag{path: s, how: "copy"}
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		switch s[i+1:] {
		case "copy", "rw", "ro":
			f = folderFlag{path: s[:i], how: s[i+1:]}
		default:
			return f, errors.New("write PATH, PATH:copy, PATH:rw or PATH:ro")
		}
	}
	if f.path == "" {
		return f, errors.New("it names no folder; write for example .:copy")
	}
	return f, nil
}

// resolve finds the host's folder.
func (f *folderFlag) resolve(e *env) error {
	if f.path == "" {
		return nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Clean(e.hostPath(f.path)))
	if err != nil {
		return usagef("--dir: %v; name a folder that exists", err)
	}
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return usagef("--dir: %s is no folder; name one", f.path)
	}
	f.path = dir
	return nil
}

// parseBoxRef reads a ref or a box's name.
func parseBoxRef(s string) (string, error) {
	name := strings.TrimPrefix(s, sandbox.ProviderName+":")
	if name == "" {
		return "", errors.New("it is empty; give what 'hutch agent' printed, or a name from 'hutch ps -a'")
	}
	return name, nil
}

// madeHere is the form of the names that sandbox.Provider gives.
var madeHere = regexp.MustCompile(`^hutch-[0-9a-f]{32}$`)

// places supplies the boxes that runs work in. Unlike sandbox.Provider it
// keeps a box in use from one run to the next, so that what runs in it goes on
// while the user thinks.
type places struct {
	*sandbox.Provider
	rt    *box.Runtime
	named string // a box that the user named, whatever it is called

	mu     sync.Mutex
	next   *held            // what New returns first
	held   map[string]*held // by the box's name
	copies map[string]bool  // boxes that a folder was copied into
}

// held is a box that a run's end does not let go of.
type held struct{ *sandbox.Backend }

// Close does nothing: places.Close does.
func (held) Close(context.Context) error { return nil }

// places makes the supplier of boxes. Without a box named by --ref, they come
// as the flags say.
func (f *placeFlags) places(e *env, rt *box.Runtime) (*places, error) {
	spec := box.Spec{Engine: f.eng, Network: f.net.network()}
	if f.dir.path != "" && f.dir.how != "copy" {
		spec.Volumes = []box.Volume{{Host: f.dir.path, Target: sandbox.DefaultDir, ReadOnly: f.dir.how == "ro"}}
	}
	p, err := sandbox.New(rt, sandbox.Options{Image: f.image, Spec: spec, Logger: slog.New(&noteHandler{env: e})})
	if err != nil {
		return nil, &usageError{err.Error()}
	}
	return &places{Provider: p, rt: rt, named: f.ref, held: map[string]*held{}, copies: map[string]bool{}}, nil
}

// New returns the box that was prepared, or one that is to be made.
func (p *places) New() workspace.Backend {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.next
	p.next = nil
	if h == nil {
		h = &held{p.Provider.New().(*sandbox.Backend)}
	}
	return *h
}

// Backend returns the box with a ref: the same each time, so that all its users
// share one hold on it.
func (p *places) Backend(ref workspace.Ref) (workspace.Backend, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.held[ref.ID]; h != nil {
		return *h, nil
	}
	b, err := p.Provider.Backend(ref)
	if err != nil {
		return nil, err
	}
	h := &held{b.(*sandbox.Backend)}
	p.held[ref.ID] = h
	return *h, nil
}

// open finds the box that the user named, and returns its ref.
func (p *places) open(ctx context.Context) (workspace.Ref, error) {
	b, err := p.rt.Get(ctx, p.named)
	if err != nil {
		return workspace.Ref{}, err
	}
	ref := workspace.Ref{Provider: sandbox.ProviderName, ID: b.Name()}
	if madeHere.MatchString(ref.ID) {
		return ref, b.Close()
	}
	backend, err := sandbox.FromBox(b, sandbox.BoxOptions{})
	if err != nil {
		return ref, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[ref.ID] = &held{backend}
	return ref, nil
}

// noteHandler prints log records as lines for a person.
type noteHandler struct{ env *env }

func (h *noteHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle prints one record.
func (h *noteHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key != "provider" { // always the same here
			fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		}
		return true
	})
	h.env.note("%s", b.String())
	return nil
}

func (h *noteHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *noteHandler) WithGroup(string) slog.Handler      { return h }
