package hutch_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// source is one Go file of the module.
type source struct {
	path      string // with slashes, from the root
	file      *ast.File
	lines     int
	generated bool
	test      bool
}

// sources parses every Go file once, for whatever system it is.
var sources = sync.OnceValues(func() ([]source, error) {
	var list []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			base := d.Name()
			if name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin" || isModule(name)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, name, data, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		list = append(list, source{
			path: filepath.ToSlash(name), file: f, lines: bytes.Count(data, []byte("\n")),
			generated: ast.IsGenerated(f), test: strings.HasSuffix(name, "_test.go"),
		})
		return nil
	})
	return list, err
})

// isModule reports whether a folder below the root is a module of its own.
func isModule(dir string) bool {
	if dir == "." {
		return false
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func parsed(t *testing.T) []source {
	t.Helper()
	list, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

const maxLines = 1000

func TestFilesAreNotTooLong(t *testing.T) {
	for _, s := range parsed(t) {
		if !s.generated && s.lines > maxLines {
			t.Errorf("%s has %d lines; more than %d are two ideas: split it", s.path, s.lines, maxLines)
		}
	}
}

// TestPackageComments: exactly one, so that the documentation does not depend
// on the order of files.
func TestPackageComments(t *testing.T) {
	docs := map[string][]string{}
	for _, s := range parsed(t) {
		if s.generated || s.test {
			continue
		}
		dir := path.Dir(s.path)
		if docs[dir] == nil {
			docs[dir] = []string{}
		}
		if s.file.Doc != nil {
			docs[dir] = append(docs[dir], path.Base(s.path))
		}
	}
	for dir, files := range docs {
		switch {
		case len(files) == 0:
			t.Errorf("%s has no package comment: say what it is for and how to follow it", dir)
		case len(files) > 1:
			t.Errorf("%s has %d package comments, in %s: keep one", dir, len(files), strings.Join(files, ", "))
		}
	}
}

// inits are the init functions that there may be, with the reason. There is no
// registration by import: a plain function lists what exists.
var inits = map[string]string{}

func TestNoInitFunctions(t *testing.T) {
	found := map[string]bool{}
	for _, s := range parsed(t) {
		if s.generated || s.test {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				found[s.path] = true
				if inits[s.path] == "" {
					t.Errorf("%s has an init function: let somebody call it, or add it to the list with the reason", s.path)
				}
			}
		}
	}
	for p := range inits {
		if !found[p] {
			t.Errorf("%s has no init function any more; remove it from the list", p)
		}
	}
}

// printers may write to standard output as they like: they are programs.
var printers = []string{"cmd/", "examples/", "internal/cli/", "internal/bench/", "internal/payload/pack/", "internal/x/testcount/", "test/guest/"}

func TestOnlyProgramsPrint(t *testing.T) {
	for _, s := range parsed(t) {
		if s.generated || s.test || hasPrefix(s.path, printers) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && isIdent(sel.X, "fmt") &&
				(sel.Sel.Name == "Print" || sel.Sel.Name == "Printf" || sel.Sel.Name == "Println") {
				t.Errorf("%s calls fmt.%s: a library returns, or writes to what it was given", s.path, sel.Sel.Name)
			}
			return true
		})
	}
}

func isIdent(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

func hasPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

func TestPackageNamesSayWhat(t *testing.T) {
	empty := map[string]bool{"util": true, "utils": true, "common": true, "helpers": true, "misc": true, "shared": true, "pkg": true}
	for _, s := range parsed(t) {
		if name := strings.TrimSuffix(s.file.Name.Name, "_test"); empty[name] || empty[path.Base(path.Dir(s.path))] {
			t.Errorf("%s: a package called %q says nothing; name it after what it is", s.path, name)
		}
	}
}

func TestLicence(t *testing.T) {
	data, err := os.ReadFile("LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Apache License", "Version 2.0, January 2004"} {
		if !bytes.Contains(data, []byte(want)) {
			t.Errorf("LICENSE lacks %q", want)
		}
	}
}

var (
	codeSpan = regexp.MustCompile("`([^`\n]+)`")
	fence    = regexp.MustCompile("(?ms)^```.*?^```")
	link     = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	ownPath  = regexp.MustCompile(`^(?:api|box|cmd|docs|examples|internal|test|tools|\.ci)(?:/[A-Za-z0-9_.-]+)*/?$`)
	target   = regexp.MustCompile(`^make ([a-z-]+)$`)
)

// TestDocumentsNameWhatExists: a document that names a file, a package or a
// make target that is gone misleads.
func TestDocumentsNameWhatExists(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"docs/*.md", "docs/design/*.md"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, more...)
	}
	for _, doc := range docs {
		data, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		exists := func(p string) bool {
			_, err := os.Stat(filepath.FromSlash(p))
			return err == nil
		}
		data = fence.ReplaceAll(data, nil)
		for _, m := range codeSpan.FindAllSubmatch(data, -1) {
			text := string(m[1])
			if ownPath.MatchString(text) && !exists(text) {
				t.Errorf("%s names %s, which does not exist", doc, text)
			}
			if m := target.FindStringSubmatch(text); m != nil && !regexp.MustCompile(`(?m)^`+m[1]+`:`).Match(makefile) {
				t.Errorf("%s names %q, which the Makefile does not have", doc, text)
			}
		}
		for _, m := range link.FindAllSubmatch(data, -1) {
			to := string(m[1])
			if !strings.Contains(to, "://") && !exists(path.Join(path.Dir(filepath.ToSlash(doc)), to)) {
				t.Errorf("%s links to %s, which does not exist", doc, to)
			}
		}
	}
}
