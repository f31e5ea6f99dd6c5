package hutch_test

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestGeneratedCodeIsCurrent generates the protocol's code anew and compares.
// "make proto" builds the tools into .bin; without them the test is skipped,
// unless REQUIRE_PROTO is set.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	tools, err := filepath.Abs(".bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"buf", "protoc-gen-go", "protoc-gen-connect-go"} {
		if _, err := os.Stat(filepath.Join(tools, tool)); err != nil {
			if os.Getenv("REQUIRE_PROTO") != "" {
				t.Fatalf("%s is missing: run make proto", tool)
			}
			t.Skip("the protocol's tools are not built: make proto builds them")
		}
	}
	dir := t.TempDir()
	for _, name := range []string{"proto", "buf.yaml", "buf.gen.yaml"} {
		copyTree(t, filepath.Join("api", name), filepath.Join(dir, name))
	}
	cmd := exec.Command(filepath.Join(tools, "buf"), "generate")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+tools+string(os.PathListSeparator)+os.Getenv("PATH"), "BUF_CACHE_DIR="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("buf generate: %v\n%s", err, out)
	}
	fresh := goFiles(t, dir)
	have := goFiles(t, "api")
	// What is written by hand.
	maps.DeleteFunc(have, func(name string, _ []byte) bool { return filepath.Base(name) == "doc.go" })
	for name, data := range fresh {
		if !bytes.Equal(have[name], data) {
			t.Errorf("api/%s is not what the proto files say: run make proto", name)
		}
	}
	for name := range have {
		if fresh[name] == nil && filepath.Dir(name) != "." {
			t.Errorf("api/%s comes from no proto file: remove it", name)
		}
	}
	if len(fresh) == 0 {
		t.Error("buf generated nothing")
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		dst := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(dst, 0o755)
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(dst, data, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// goFiles reads the Go files below dir, tests excluded.
func goFiles(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(name) != ".go" || bytes.HasSuffix([]byte(name), []byte("_test.go")) {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		files[rel], err = os.ReadFile(name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
