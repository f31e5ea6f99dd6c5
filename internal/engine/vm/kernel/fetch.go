//go:build linux || darwin

package kernel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// pinned is a package whose content this version of Hutch knows.
type pinned struct {
	file   string // below an archive of Debian's security updates
	size   int64
	sha256 string
}

// packages are the kernels that are fetched where there is no apt. A digest
// decides what is accepted, so that it does not matter who serves the file.
var packages = map[string]pinned{
	"amd64": {
		file:   "pool/updates/main/l/linux-signed-amd64/linux-image-6.1.0-57-cloud-amd64_6.1.192-3_amd64.deb",
		size:   26_705_532,
		sha256: "4fdd0172a8c3f41a97e92465b2ac1867e1c10d82d7aeed3d26ee7a5d14df1754",
	},
	"arm64": {
		file:   "pool/updates/main/l/linux-signed-arm64/linux-image-6.1.0-57-cloud-arm64_6.1.192-3_arm64.deb",
		size:   21_351_316,
		sha256: "51952bf54e96b0bc6263fb51a47b79e206dca0213cd5421162bc55cddbd6e51e",
	},
}

// DefaultMirror is the archive that packages come from without apt.
const DefaultMirror = "https://deb.debian.org/debian-security"

// FetchOptions are the optional settings of Fetch.
type FetchOptions struct {
	// Mirror is the URL of an archive of Debian's security updates. With it,
	// apt is not used. Empty: apt where there is apt with such a kernel, else
	// DefaultMirror.
	Mirror string
	// Client fetches from the mirror; nil: http.DefaultClient.
	Client *http.Client
	// Progress is told how many bytes have come of how many; nil: nobody.
	// With apt it is not called.
	Progress func(done, total int64)
}

// Fetch fetches a kernel for boxes, adds it and selects it. A kernel that is
// there already is only selected.
func (s *Store) Fetch(ctx context.Context, o FetchOptions) (Info, error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return Info{}, err
	}
	tmp, err := os.MkdirTemp(s.dir, ".fetch-")
	if err != nil {
		return Info{}, err
	}
	defer os.RemoveAll(tmp)
	var why error
	if o.Mirror == "" {
		name, err := aptPackage(ctx)
		if err == nil {
			if info, err := s.load(strings.TrimPrefix(name, "linux-image-")); err == nil {
				return s.Select(info.Name)
			}
			var file string
			if file, err = aptDownload(ctx, name, tmp); err == nil {
				return s.Add(ctx, file, "apt: "+filepath.Base(file))
			}
		}
		if ctx.Err() != nil {
			return Info{}, ctx.Err()
		}
		why = err
	}
	p, ok := packages[runtime.GOARCH]
	if !ok {
		return Info{}, &box.Error{Kind: box.Unsupported, Op: "fetch kernel", Err: fmt.Errorf("no kernel is known for %s", runtime.GOARCH), Hint: "hutch kernel use FILE"}
	}
	list, err := s.List()
	if err != nil {
		return Info{}, err
	}
	for _, info := range list {
		if info.Digest == p.sha256 {
			return s.Select(info.Name)
		}
	}
	file := filepath.Join(tmp, "kernel.deb")
	from, err := download(ctx, o, p, file)
	if err != nil {
		return Info{}, &box.Error{Kind: kindOf(ctx), Op: "fetch kernel", Err: errors.Join(err, why),
			Hint: "name a mirror (hutch kernel fetch --mirror URL), or use a package or kernel of yours (hutch kernel use FILE)"}
	}
	return s.Add(ctx, file, from)
}

func kindOf(ctx context.Context) box.Kind {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return box.Timeout
	case ctx.Err() != nil:
		return box.Canceled
	}
	return box.Unavailable
}

// download fetches the pinned package and checks it.
func download(ctx context.Context, o FetchOptions, p pinned, file string) (from string, err error) {
	mirror := o.Mirror
	if mirror == "" {
		mirror = DefaultMirror
	}
	from, err = url.JoinPath(mirror, p.file)
	if err != nil {
		return "", fmt.Errorf("mirror %q: %w", mirror, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return "", err
	}
	client := o.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", from, resp.Status)
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	var done int64
	body := io.LimitReader(resp.Body, p.size+1)
	_, err = io.Copy(io.MultiWriter(f, hash), readerFunc(func(b []byte) (int, error) {
		n, err := body.Read(b)
		done += int64(n)
		if o.Progress != nil {
			o.Progress(done, p.size)
		}
		return n, err
	}))
	if err != nil {
		return "", fmt.Errorf("%s: %w", from, err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); done != p.size || got != p.sha256 {
		return "", fmt.Errorf("%s is not the package that this version of Hutch knows: its SHA-256 is %s, not %s", from, got, p.sha256)
	}
	return from, f.Close()
}

// kernelPackage is the name of a Debian kernel for virtual machines.
var kernelPackage = regexp.MustCompile(`^linux-image-[0-9][0-9A-Za-z.+~-]*-cloud-(amd64|arm64)$`)

// aptTime bounds each call of apt.
const aptTime = 10 * time.Minute

// aptPackage asks apt for the package of the newest kernel for virtual machines.
func aptPackage(ctx context.Context) (string, error) {
	out, err := apt(ctx, "", "apt-cache", "depends", "--no-recommends", "--no-suggests", "linux-image-cloud-"+runtime.GOARCH)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && kernelPackage.MatchString(name) {
			return name, nil
		}
	}
	return "", errors.New("apt knows no linux-image-cloud-" + runtime.GOARCH)
}

// aptDownload has apt download a package, whose origin apt checks.
func aptDownload(ctx context.Context, name, dir string) (string, error) {
	if _, err := apt(ctx, dir, "apt-get", "download", "-q", name); err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("apt-get download %s left %d packages", name, len(found))
	}
	return found[0], nil
}

func apt(ctx context.Context, dir, program string, args ...string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, aptTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		last := strings.TrimSpace(errs.String())
		if i := strings.LastIndexByte(last, '\n'); i >= 0 {
			last = last[i+1:]
		}
		return "", fmt.Errorf("%s: %w: %s", program, err, last)
	}
	return out.String(), nil
}
