package test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// servePackages adds to the test internet what package tools ask for: a Python
// index at /simple/, whose files are on other.test as those of pypi.org are on
// another host, and a git repository at /git/hello.git, by git's own server
// program.
func servePackages(t *testing.T, mux *http.ServeMux, dir string) {
	t.Helper()
	const wheel = "hello_hutch-1.0-py3-none-any.whl"
	data := pythonWheel(t)
	mux.HandleFunc("/simple/hello-hutch/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<!DOCTYPE html><html><body><a href=\"https://other.test/files/%s#sha256=%x\">%[1]s</a></body></html>\n", wheel, sha256.Sum256(data))
	})
	mux.HandleFunc("/files/"+wheel, func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "other.test" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	})

	out, err := exec.Command("git", "--exec-path").Output()
	backend := filepath.Join(strings.TrimSpace(string(out)), "git-http-backend")
	if err == nil {
		_, err = os.Stat(backend)
	}
	if err != nil {
		return // those who ask for it, get "not found"
	}
	repos := filepath.Join(dir, "git")
	script := `set -e
git init -q --bare "$1/hello.git"
git init -q -b main "$1/work"
cd "$1/work"
echo 'hello from git' > README
git add README
git -c user.name=test -c user.email=test@localhost commit -q -m first
git push -q "$1/hello.git" main
git -C "$1/hello.git" symbolic-ref HEAD refs/heads/main`
	cmd := exec.Command("sh", "-c", script, "sh", repos)
	cmd.Env = append(os.Environ(), "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make a git repository: %v\n%s", err, out)
	}
	mux.Handle("/git/", &cgi.Handler{
		Path: backend, Root: "/git", Stderr: &bytes.Buffer{},
		Env: []string{"GIT_PROJECT_ROOT=" + repos, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + dir},
	})
}

// pythonWheel is a package of one module.
func pythonWheel(t *testing.T) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	info := "hello_hutch-1.0.dist-info/"
	for _, f := range [][2]string{
		{"hello_hutch.py", "print('hello from pip')\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: hello-hutch\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", "hello_hutch.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n"},
	} {
		part, err := w.Create(f[0])
		if err == nil {
			_, err = part.Write([]byte(f[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// pip and git of a Debian box work with rules of the form that the
// documentation names for pypi.org and github.com, and not without any of them.
func TestPackageTools(t *testing.T) {
	if testing.Short() {
		t.Skip("a real image takes its time")
	}
	if _, err := exec.LookPath("git"); err != nil {
		required(t, "git is missing: %v", err)
	}
	image := debianImage(t) // made where there is a network
	inTestInternet(t, func(t *testing.T) { everyone(t, func(t *testing.T) { packageTools(t, image) }) })
}

func packageTools(t *testing.T, image string) {
	if os.Getenv(asVar) == "single" {
		return // nothing is different, and the image takes its time
	}
	h := newHome(t)
	h.ok(t, "image", "load", "-i", image)
	for _, tt := range []struct {
		what   string
		rules  []string
		script string
		says   string
	}{
		{
			"pip download", []string{"app.test", "other.test"},
			"cd /root && python3 -m pip download -q --no-deps --index-url https://app.test/simple hello-hutch && python3 -m zipfile -e hello_hutch-1.0-*.whl x && python3 x/hello_hutch.py", "hello from pip",
		},
		{"git clone", []string{"app.test"}, "cd /root && git clone -q https://app.test/git/hello.git && cat hello/README", "hello from git"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			try := func(rules []string) result {
				args := []string{
					"run", "--rm", "-v", "/etc/ssl/certs/ca-certificates.crt:/test-ca.crt:ro",
					"-e", "PIP_CERT=/test-ca.crt", "-e", "PIP_RETRIES=0", "-e", "PIP_DISABLE_PIP_VERSION_CHECK=1", "-e", "GIT_SSL_CAINFO=/test-ca.crt",
				}
				for _, rule := range rules {
					args = append(args, "--allow", rule)
				}
				return h.hutch(t, append(args, "dev", "sh", "-c", tt.script)...)
			}
			if r := try(tt.rules); r.code != 0 || !strings.Contains(r.stdout, tt.says) {
				t.Errorf("with %q: %v", tt.rules, r)
			}
			for n := range tt.rules {
				// Another rule stands in: it is not the network that is
				// missing.
				rules := append([]string{"none.test"}, tt.rules[:n]...)
				rules = append(rules, tt.rules[n+1:]...)
				if r := try(rules); r.code == 0 || strings.Contains(r.stdout, tt.says) {
					t.Errorf("without %s: %v", tt.rules[n], r)
				}
			}
		})
	}
}
