package hutch_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/hutch-sandbox/hutch"

var update = flag.Bool("update", false, "rewrite the files that tests compare with")

// pkg is what these tests want to know of a package.
type pkg struct {
	ImportPath                         string
	Standard, DepOnly                  bool
	Module                             *struct{ Path string }
	Imports, TestImports, XTestImports []string
	Deps                               []string
	Error                              *struct{ Err string }
}

// short is the package's path in this module, or its whole path.
func short(importPath string) string {
	if importPath == module {
		return "."
	}
	return strings.TrimPrefix(importPath, module+"/")
}

// graph is every package of the module and all they import, as they are for
// Linux without cgo, the way Hutch is built.
type graph struct {
	own []*pkg // of this module
	all map[string]*pkg
}

// load asks the go command once for all tests.
var load = sync.OnceValues(func() (*graph, error) {
	cmd := exec.Command("go", "list", "-e", "-deps",
		"-json=ImportPath,Standard,DepOnly,Module,Imports,TestImports,XTestImports,Deps,Error", "./...")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.Join(err, errors.New(stderr.String()))
	}
	g := &graph{all: map[string]*pkg{}}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &pkg{}
		if err := dec.Decode(p); errors.Is(err, io.EOF) {
			return g, nil
		} else if err != nil {
			return nil, err
		}
		g.all[p.ImportPath] = p
		if !p.DepOnly {
			g.own = append(g.own, p)
		}
	}
})

func loaded(t *testing.T) *graph {
	t.Helper()
	g, err := load()
	if err != nil {
		t.Fatal("go list:", err)
	}
	for _, p := range g.own {
		if p.Error != nil {
			t.Errorf("%s: %s", short(p.ImportPath), p.Error.Err)
		}
	}
	return g
}

// match reports whether a package's path has the form of pattern: a path, or a
// path and "/..." for it and everything below.
func match(pattern, importPath string) bool {
	name := short(importPath)
	if dir, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == dir || strings.HasPrefix(name, dir+"/")
	}
	return name == pattern
}

func matchAny(patterns []string, importPath string) bool {
	for _, p := range patterns {
		if match(p, importPath) {
			return true
		}
	}
	return false
}

// find returns the module's packages that pattern matches. One that matches
// none is out of date.
func (g *graph) find(t *testing.T, pattern string) []*pkg {
	t.Helper()
	var found []*pkg
	for _, p := range g.own {
		if match(pattern, p.ImportPath) {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		t.Errorf("%s: no such package any more; change the rule that names it", pattern)
	}
	return found
}

// moduleOf returns the module of a package of another module, else "".
func (g *graph) moduleOf(importPath string) string {
	p := g.all[importPath]
	if p == nil || p.Standard || p.Module == nil || p.Module.Path == module {
		return ""
	}
	return p.Module.Path
}

// way finds the shortest chain of imports from one package to another, for
// messages.
func (g *graph) way(from, to string) string {
	prev := map[string]string{from: from}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if at == to {
			var steps []string
			for ; at != from; at = prev[at] {
				steps = append([]string{short(at)}, steps...)
			}
			return strings.Join(append([]string{short(from)}, steps...), " → ")
		}
		if p := g.all[at]; p != nil {
			for _, next := range p.Imports {
				if prev[next] == "" {
					prev[next] = at
					queue = append(queue, next)
				}
			}
		}
	}
	return path.Base(from) + " → " + to
}
