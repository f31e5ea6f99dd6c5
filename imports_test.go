package hutch_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// layers are the module's packages from the bottom up. A package imports its
// own layer and those below. Every package is in one of them, so that a new
// one has to be given its place.
var layers = [][]string{
	// The words everything is said in, and helpers of one idea each.
	{"box", "api/...", "internal/x/cgroup", "internal/x/console", "internal/x/environ", "internal/x/erofs", "internal/x/ext4", "internal/x/filelock", "internal/x/sparse", "internal/x/testcount"},
	// What agents work in.
	{"workspace", "workspace/workspacetest", "workspace/hostdir", "workspace/sandbox"},
	// Agents.
	{"agent/..."},
	// What a box is made of.
	{"internal/engine/...", "internal/egress", "internal/guest/...", "internal/userland/...", "internal/payload/...", "internal/vmboot"},
	// What boxes are kept in, and the processes that do it.
	{"internal/image/...", "internal/boxdir", "internal/helper", "internal/keeper"},
	// Runtimes.
	{"box/local/...", "box/boxtest", "internal/boxfake", "internal/x/realengine"},
	// What people meet.
	{"internal/cli/..."},
	{"cmd/...", "examples/...", "internal/bench/...", "test/...", "."},
}

// rule says what some packages must not import.
type rule struct {
	from   []string // packages of this module
	except []string // but not these
	not    []string // packages, modules or std for anything that is not the standard library
	deep   bool     // nor through other packages
	why    string
}

var rules = []rule{
	{
		from: []string{"box"}, not: []string{"std"}, deep: true,
		why: "every program that uses boxes links package box, one with a remote runtime too: it must cost nothing",
	},
	{
		from: []string{"box/boxtest"}, not: []string{"internal/...", "box/local/..."}, deep: true,
		why: "the suite is for every driver, also those of other modules, and knows only the contract",
	},
	{
		from: []string{"box/local"}, deep: true,
		not: []string{"gvisor.dev/gvisor", "internal/engine/...", "internal/keeper", "internal/egress", "internal/payload/...", "internal/userland/..."},
		why: "a program that uses boxes on this machine starts the helper and does not link the engines (about 40 MB); package box/local/embed is for those that want to",
	},
	{
		from: []string{"internal/engine/..."}, except: []string{"internal/engine/enginetest"},
		not: []string{"internal/boxdir", "internal/image/...", "internal/cli/...", "internal/keeper", "internal/guest/...", "internal/helper", "box/local/..."},
		why: "an engine gets resolved values and one network link; names, states, policies and clients are the keeper's",
	},
	{
		from:   []string{"box/...", "api/...", "cmd/...", "examples/...", "internal/..."},
		except: []string{"internal/keeper", "internal/engine/...", "internal/bench/..."},
		not:    []string{"internal/engine/gvisor", "internal/engine/vm"},
		why:    "one list, keeper.Engines, says which engines there are",
	},
	{
		from: []string{"internal/cli/..."}, deep: true,
		not: []string{"box/local/...", "internal/keeper", "internal/engine/...", "internal/boxdir", "internal/image/...", "internal/guest/...", "internal/helper"},
		why: "commands work over any runtime, which main hands to them",
	},
	{
		from: []string{"workspace/..."}, except: []string{"workspace/sandbox"}, deep: true,
		not: []string{"box/...", "api/...", "internal/..."},
		why: "what works on a folder works on every box: only workspace/sandbox knows what a box is",
	},
	{
		from: []string{"workspace/sandbox"}, deep: true, not: []string{"box/local/...", "internal/..."},
		why: "it is over any runtime, which the program hands to it",
	},
	{
		from: []string{"agent/..."}, deep: true, not: []string{"box/...", "api/...", "internal/..."},
		why: "an agent works in a workspace: tools that work on a folder work on every box",
	},
	{
		from: []string{"agent/..."}, except: []string{"agent/model/fantasy"}, deep: true, not: []string{"charm.land/fantasy"},
		why: "providers are 40 MB of program: who brings a model of their own, or a scripted one, does not link them",
	},
	{
		from: []string{"cmd/hutch"}, deep: true, not: []string{"charm.land/fantasy"},
		why: "the same program runs boxes, and providers of models are set up at every start: they are in cmd/hutch-agent, which is embedded",
	},
	{
		from: []string{"cmd/hutch-agent"}, deep: true, not: []string{"gvisor.dev/gvisor", "internal/engine/...", "internal/payload/..."},
		why: "hutch, which embeds it, is its helper: nothing is to be in there twice",
	},
	{
		from: []string{"agent/model/..."}, not: []string{"agent"}, deep: true,
		why: "a model knows conversations, not agents",
	},
	{
		from: []string{"examples/..."}, not: []string{"internal/..."},
		why: "an example shows what a program outside of this module can do",
	},
	{
		from: []string{"api/..."}, not: []string{"box/...", "internal/..."},
		why: "the protocol is data: it has no behaviour and no opinion",
	},
	{
		from: []string{"internal/guest/agent"}, deep: true,
		not: []string{"internal/image/...", "internal/boxdir", "internal/keeper", "internal/engine/...", "internal/egress", "internal/helper", "internal/guest/client", "internal/userland/..."},
		why: "the agent is in every box: what it links costs each of them, and what it knows a box can read",
	},
	{
		from: []string{"internal/vmboot"}, not: []string{"box/...", "api/...", "internal/..."},
		why: "the vm engine and the first program in its machines share it, so it must not bring anything along",
	},
	{
		from: []string{"internal/guest/boot"}, not: []string{"box/...", "api/...", "internal/..."},
		why: "both sides of a boot share it, so it must not bring anything along",
	},
	{
		from: []string{"internal/userland/..."}, deep: true,
		not: []string{"api/...", "internal/guest/...", "internal/engine/...", "internal/image/...", "internal/boxdir", "internal/keeper", "internal/helper"},
		why: "it is an ordinary program in a box and knows nothing of Hutch",
	},
	{
		from: []string{"internal/image/layer"}, deep: true,
		not: []string{"internal/image", "github.com/google/go-containerregistry", "internal/boxdir"},
		why: "it reads what strangers wrote, in a process of its own; the less there is in it, the better",
	},
	{
		from: []string{"internal/boxfake"}, deep: true,
		not: []string{"box/local/...", "internal/keeper", "internal/boxdir", "internal/engine/..."},
		why: "the fake is for tests that must not need a machine",
	},
	{
		from: []string{"internal/x/..."}, except: []string{"internal/x/realengine"}, not: []string{"box/...", "api/...", "internal/guest/...", "internal/image/...", "internal/boxdir", "internal/engine/..."},
		why: "a helper of one idea knows nothing of boxes",
	},
}

// expand returns the import paths that an entry of rule.not forbids.
func (g *graph) expand(t *testing.T, not string) func(importPath string) bool {
	t.Helper()
	if not == "std" {
		return func(p string) bool {
			dep := g.all[p]
			return dep != nil && !dep.Standard
		}
	}
	if first, _, _ := strings.Cut(not, "/"); strings.Contains(first, ".") { // a module
		return func(p string) bool { return g.moduleOf(p) == not }
	}
	g.find(t, not)
	return func(p string) bool { return match(not, p) && (p == module || strings.HasPrefix(p, module+"/")) }
}

func TestImportRules(t *testing.T) {
	g := loaded(t)
	for _, r := range rules {
		for _, not := range r.not {
			forbidden := g.expand(t, not)
			for _, from := range r.from {
				for _, p := range g.find(t, from) {
					if matchAny(r.except, p.ImportPath) {
						continue
					}
					deps := p.Imports
					if r.deep {
						deps = p.Deps
					}
					for _, dep := range deps {
						// A rule about a tree is not about what it has inside.
						if forbidden(dep) && !(match(from, dep) && match(not, p.ImportPath)) {
							t.Errorf("%s must not import %s: %s\n\t%s", short(p.ImportPath), short(dep), r.why, g.way(p.ImportPath, dep))
							break // one is enough to see why
						}
					}
				}
			}
		}
	}
}

func TestLayers(t *testing.T) {
	g := loaded(t)
	place := func(p string) int {
		return slices.IndexFunc(layers, func(layer []string) bool { return matchAny(layer, p) })
	}
	for _, p := range g.own {
		at := place(p.ImportPath)
		if at < 0 {
			t.Errorf("%s is in no layer: give it its place in the table of layers", short(p.ImportPath))
			continue
		}
		for _, dep := range p.Imports {
			if d := g.all[dep]; d == nil || d.Standard || g.moduleOf(dep) != "" {
				continue
			}
			if to := place(dep); to > at {
				t.Errorf("%s imports %s of a layer above it: arrows point down only", short(p.ImportPath), short(dep))
			}
		}
	}
}

// home says which packages import a module and why nobody else does.
type home struct {
	module string
	in     []string
	why    string
}

var homes = []home{
	{"gvisor.dev/gvisor", []string{"internal/engine/gvisor", "internal/egress"}, "30 MB of program and no promise of a stable API: one place to change at each update"},
	{"github.com/opencontainers/runtime-spec", []string{"internal/engine/gvisor"}, "how gVisor wants a machine described; nothing else is described so"},
	{"github.com/google/go-containerregistry", []string{"internal/image", "internal/image/imagetest"}, "registries and their formats"},
	{"github.com/klauspost/compress", []string{"internal/image/...", "internal/payload/...", "internal/userland/...", "internal/engine/vm/kernel"}, "zstd and a fast gzip, where data is compressed"},
	{"github.com/ulikunitz/xz", []string{"internal/engine/vm/kernel"}, "Debian's packages are compressed with it"},
	{"github.com/spf13/cobra", []string{"internal/cli"}, "commands and completion"},
	{"github.com/spf13/pflag", []string{"internal/cli"}, "flags as docker has them"},
	{"github.com/vbauerster/mpb/v8", []string{"internal/cli"}, "progress bars"},
	{"github.com/docker/go-units", []string{"internal/cli"}, "sizes as docker writes them"},
	{"golang.org/x/term", []string{"internal/cli", "internal/userland/..."}, "terminals: the caller's, and those in a box"},
	{"golang.org/x/sync", []string{"internal/image"}, "downloads at once, with the first error"},
	{"mvdan.cc/sh/v3", []string{"internal/userland/...", "internal/boxfake"}, "the POSIX shell of the builtin image, and of the fake"},
	{"github.com/benhoyt/goawk", []string{"internal/userland/..."}, "awk of the builtin image"},
	{"github.com/dlclark/regexp2", []string{"internal/userland/regex"}, "back references, which POSIX expressions have and Go's do not"},
	{"connectrpc.com/connect", []string{"api/...", "internal/guest/...", "internal/keeper"}, "the protocol's transport: who speaks hutch.v1"},
	{"google.golang.org/protobuf", []string{"api/...", "internal/guest/...", "internal/keeper"}, "the protocol's encoding: who speaks hutch.v1"},
	{"github.com/miekg/dns", []string{"internal/egress"}, "DNS: the resolver that boxes have"},
	{"github.com/moby/sys/user", []string{"internal/guest/agent"}, "passwd and group files of images"},
	{"charm.land/fantasy", []string{"agent/model/fantasy"}, "providers of models and their wire formats; it changes often, and one package hides it"},
	{"github.com/google/jsonschema-go", []string{"agent"}, "schemas of tools from Go types, and whether arguments fit them"},
	{"github.com/rogpeppe/go-internal", []string{"agent/filesystem", "agent/model/recorded", "internal/cli/changes"}, "diffs, for people to read"},
	{"github.com/modelcontextprotocol/go-sdk", []string{"internal/cli/mcpserve"}, "the Model Context Protocol: its server, which one package hides"},
	{"go.opentelemetry.io/otel", []string{"agent"}, "spans: the interface, not the exporter"},
	{"go.opentelemetry.io/otel/trace", []string{"agent"}, "likewise"},
	{"golang.org/x/sys", []string{"box/local/...", "cmd/...", "internal/..."}, "system calls; package box does without"},
}

func TestModulesHaveOneHome(t *testing.T) {
	g := loaded(t)
	used := map[string]bool{}
	for _, h := range homes {
		for _, in := range h.in {
			g.find(t, in)
		}
	}
	for _, p := range g.own {
		for _, dep := range p.Imports {
			mod := g.moduleOf(dep)
			if mod == "" {
				continue
			}
			n := slices.IndexFunc(homes, func(h home) bool { return h.module == mod })
			if n < 0 {
				t.Errorf("%s imports %s, which has no home: add it to the table, with the reason", short(p.ImportPath), dep)
				continue
			}
			used[mod] = true
			if h := homes[n]; !matchAny(h.in, p.ImportPath) {
				t.Errorf("%s imports %s: the home of %s is %s (%s)", short(p.ImportPath), dep, mod, strings.Join(h.in, ", "), h.why)
			}
		}
	}
	for _, h := range homes {
		if !used[h.module] {
			t.Errorf("%s: nothing imports it any more; remove it from the table and from go.mod", h.module)
		}
	}
}

// TestGuestDependencies keeps what the guest agent links in a file, so that
// every addition is seen. "go test . -run GuestDependencies -update" writes it.
func TestGuestDependencies(t *testing.T) {
	g := loaded(t)
	p := g.all[module+"/cmd/hutch-guest"]
	if p == nil {
		t.Fatal("cmd/hutch-guest is gone")
	}
	var deps []string
	for _, dep := range p.Deps {
		if d := g.all[dep]; d != nil && !d.Standard {
			deps = append(deps, dep)
		}
	}
	slices.Sort(deps)
	file := filepath.Join("cmd", "hutch-guest", "deps.txt")
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(deps, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	allowed := strings.Fields(string(data))
	for _, dep := range deps {
		if !slices.Contains(allowed, dep) {
			t.Errorf("the guest agent now links %s; it is in every box, so do without, or update %s and say why in the commit\n\t%s",
				dep, file, g.way(p.ImportPath, dep))
		}
	}
	for _, dep := range allowed {
		if !slices.Contains(deps, dep) {
			t.Errorf("%s names %s, which is no longer linked; update the file", file, dep)
		}
	}
}
