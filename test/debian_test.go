package test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

// imageVar hands the Debian image on to the processes of other users.
const imageVar = "HUTCH_TEST_IMAGE"

// debianPackages are what the image has beside Debian's base.
const debianPackages = "python3,python3-pip,git,ripgrep"

// debianImage is the path of an archive with a real Debian, for processes of
// other users, too.
func debianImage(t *testing.T) string {
	t.Helper()
	if path := os.Getenv(imageVar); path != "" {
		return path
	}
	kept := keptDebian(t, debianPackages)
	// Other users read it too.
	dir, err := stage.dir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "debian.tar")
	if _, err := os.Stat(path); err != nil { // else it is there for another test
		if err := os.Link(kept, path); err != nil {
			if err := copyFile(path, kept, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(imageVar, path)
	return path
}

// keptDebian is the path of an archive with a real Debian that has packages. It
// is made once and kept, since making it takes a minute and needs the network.
func keptDebian(t *testing.T, packages string) string {
	t.Helper()
	cache := os.Getenv("HUTCH_TEST_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			required(t, "no place for the Debian image: %v", err)
		}
		cache = filepath.Join(dir, "hutch-test")
	}
	kept := filepath.Join(cache, fmt.Sprintf("debian-%.6x.tar", sha256.Sum256([]byte(packages))))
	if _, err := os.Stat(kept); err == nil {
		return kept
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	h := newHome(t)
	if r := h.hutch(t, "image", "debian", "--include", packages, "dev"); r.code != 0 {
		required(t, "build a Debian image: %v", r)
	}
	part := kept + ".part"
	h.ok(t, "image", "save", "-o", part, "dev")
	if err := os.Rename(part, kept); err != nil {
		t.Fatal(err)
	}
	return kept
}

// The main job on a real image: a program and its files, written and run, with
// the tools of a real distribution.
func TestDebian(t *testing.T) {
	realengine.Need(t, "gvisor")
	if testing.Short() {
		t.Skip("a real image takes its time")
	}
	debianImage(t)
	everyone(t, func(t *testing.T) {
		h := newHome(t)
		h.ok(t, "image", "load", "-i", debianImage(t))
		if out := h.ok(t, "run", "--rm", "dev", "python3", "-c", "import sys; print(sys.version)"); !strings.HasPrefix(out, "3.") {
			t.Errorf("python says %q", out)
		}
		h.ok(t, "create", "--name", "b", "--idle", "dev")
		src := filepath.Join(t.TempDir(), "work")
		if err := os.MkdirAll(src, 0o755); err != nil {
			t.Fatal(err)
		}
		program := `
import json, multiprocessing, pathlib, sqlite3, subprocess, tempfile, threading
def square(n): return n * n
if __name__ == "__main__":
    with multiprocessing.Pool(4) as pool:
        squares = pool.map(square, range(10))
    db = sqlite3.connect("/work/data.db")
    db.execute("create table t (n integer)")
    db.executemany("insert into t values (?)", [(n,) for n in squares])
    db.commit()
    total = db.execute("select sum(n) from t").fetchone()[0]
    out = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout
    pathlib.Path("/work/result.json").write_text(json.dumps({"total": total, "git": out.startswith("git version")}))
`
		if err := os.WriteFile(filepath.Join(src, "main.py"), []byte(program), 0o644); err != nil {
			t.Fatal(err)
		}
		h.ok(t, "cp", src, "b:/work")
		h.ok(t, "exec", "-w", "/work", "b", "python3", "main.py")
		back := filepath.Join(t.TempDir(), "result.json")
		h.ok(t, "cp", "b:/work/result.json", back)
		if data, err := os.ReadFile(back); err != nil || string(data) != `{"total": 285, "git": true}` {
			t.Errorf("the program's result: %q, %v", data, err)
		}
		out := h.ok(t, "exec", "-w", "/work", "b", "sh", "-ec", `
git init -q . && git config user.email a@b && git config user.name me
git add main.py && git commit -qm first
echo '# end' >> main.py
git status --porcelain --untracked-files=no
rg --count square main.py`)
		if out != " M main.py\n3" {
			t.Errorf("git and ripgrep say %q", out)
		}
		out = h.ok(t, "exec", "b", "sh", "-c", `stat -c %U:%a /etc/shadow /usr/bin/passwd; cat /etc/debian_version | cut -c1-2; id -un`)
		if out != "root:640\nroot:4755\n12\nroot" {
			t.Errorf("owners and modes: %q", out)
		}
		if os.Getenv(asVar) != "single" {
			if out := h.ok(t, "exec", "-u", "nobody", "b", "sh", "-c", "id -u; touch /etc/x 2>/dev/null || echo refused"); out != "65534\nrefused" {
				t.Errorf("as nobody: %q", out)
			}
		}
	})
}
