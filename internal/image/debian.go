package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

// DebianOptions describe an image that is put together from Debian packages.
type DebianOptions struct {
	Suite    string    // release, such as bookworm or trixie; "" is bookworm
	Mirror   string    // http or https address of the archive; "" is deb.debian.org
	Variant  string    // base set of packages, as mmdebstrap calls it; "" is minbase
	Include  []string  // packages to add: name, name:arch or name=version
	Progress io.Writer // gets what mmdebstrap says meanwhile; nil drops it
}

const (
	opDebian      = "image debian"
	defaultSuite  = "bookworm"
	debianPath    = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	debianLabel   = "io.github.hutch-sandbox.image.debian"
	includedLabel = "io.github.hutch-sandbox.image.debian.include"
)

var (
	suiteForm   = lazy(`^[a-z][a-z0-9.-]{0,63}$`)
	packageForm = lazy(`^[a-z0-9][a-z0-9+.-]{0,127}(?::[a-z0-9-]{1,32})?(?:=[A-Za-z0-9][A-Za-z0-9.+~:-]{0,127})?$`)
	variants    = []string{"minbase", "apt", "essential", "required", "important", "standard", "buildd"}
)

// Debian makes an image called name from packages of Debian's archive, by way
// of mmdebstrap: no registry is involved. It works as root, and for an
// ordinary user who has subordinate ids (newuidmap).
func (s *Store) Debian(ctx context.Context, name string, opts DebianOptions) (Image, error) {
	if _, err := parseName(opDebian, name); err != nil {
		return Image{}, err
	}
	args, err := opts.args()
	if err != nil {
		return Image{}, &box.Error{Kind: box.Invalid, Op: opDebian, Object: clip(name), Err: err}
	}
	program, err := exec.LookPath("mmdebstrap")
	if err != nil {
		return Image{}, &box.Error{Kind: box.Unsupported, Op: opDebian, Object: clip(name),
			Err: errors.New("mmdebstrap is not installed"), Hint: "apt-get install mmdebstrap"}
	}
	// mmdebstrap hands its descriptors to shells that know only one digit, so
	// that it fails below a program that was started with many.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	said := &lastLines{w: opts.Progress}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = said
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	// It is asked to stop rather than killed, since it has mounts and
	// temporary files to clear away. Its own process group, so that a Ctrl-C
	// at the terminal does not reach it before we do.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 20 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return Image{}, localError(ctx, opDebian, name, err)
	}
	if err := cmd.Start(); err != nil {
		return Image{}, localError(ctx, opDebian, name, err)
	}
	suite := opts.suite()
	cfg := RunConfig{Cmd: []string{"bash"}, Env: []string{debianPath}, WorkingDir: "/",
		Labels: map[string]string{debianLabel: suite}}
	if len(opts.Include) > 0 {
		cfg.Labels[includedLabel] = strings.Join(opts.Include, ",")
	}
	// The archive counts only if mmdebstrap says that it is whole, which it
	// does after the last byte: so wait for it before the image is entered.
	waited := &waitReader{r: out, wait: cmd.Wait}
	img, err := s.importAs(ctx, opDebian, waited, name, ImportOptions{Config: cfg})
	werr := waited.finish(err != nil, cmd)
	switch {
	case ctx.Err() != nil:
		return Image{}, localError(ctx, opDebian, name, ctx.Err())
	case werr != nil && said.last() != "":
		e := &box.Error{Kind: box.Unavailable, Op: opDebian, Object: clip(name), Err: fmt.Errorf("mmdebstrap failed: %s", said.last())}
		switch {
		case os.Geteuid() == 0 || !strings.Contains(said.all(), "unshare"):
		case strings.Contains(said.all(), "Permission denied"):
			// It works there under the subordinate ids of this user.
			e.Kind, e.Hint = box.Unsupported, "set TMPDIR to a folder that others may enter, such as /tmp"
		default:
			e.Kind, e.Hint = box.Unsupported, "install uidmap and give this user ids in /etc/subuid and /etc/subgid, or run it as root"
		}
		return Image{}, e
	case err != nil:
		return Image{}, err
	}
	return img, nil
}

func (o DebianOptions) suite() string {
	if o.Suite == "" {
		return defaultSuite
	}
	return o.Suite
}

// args returns the arguments of mmdebstrap. Everything that ends up in them
// has a form that cannot be taken for an option or for several words.
func (o DebianOptions) args() ([]string, error) {
	if !suiteForm().MatchString(o.suite()) {
		return nil, fmt.Errorf("suite %q: must be a release such as bookworm", clip(o.Suite))
	}
	variant := o.Variant
	if variant == "" {
		variant = "minbase"
	}
	ok := false
	for _, v := range variants {
		ok = ok || v == variant
	}
	if !ok {
		return nil, fmt.Errorf("variant %q: must be one of %s", clip(variant), strings.Join(variants, ", "))
	}
	args := []string{"--format=tar", "--variant=" + variant}
	for _, p := range o.Include {
		if !packageForm().MatchString(p) {
			return nil, fmt.Errorf("include %q: must be the name of a package", clip(p))
		}
		args = append(args, "--include="+p)
	}
	args = append(args, o.suite(), "-")
	if o.Mirror != "" {
		u, err := url.Parse(o.Mirror)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.ContainsAny(o.Mirror, " \t\r\n") {
			return nil, fmt.Errorf("mirror %q: must be an address that starts with http:// or https://", clip(o.Mirror))
		}
		args = append(args, o.Mirror)
	}
	return args, nil
}

// waitReader reads the output of a process and, at its end, waits for the
// process: if that failed, so does the reading.
type waitReader struct {
	r    io.Reader
	wait func() error
	once sync.Once
	err  error
}

func (w *waitReader) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if err != nil {
		w.once.Do(func() { w.err = w.wait() })
		if w.err != nil {
			return n, w.err
		}
	}
	return n, err
}

// finish waits for the process if nobody has, stopping it first if its output
// is not wanted any more.
func (w *waitReader) finish(stop bool, cmd *exec.Cmd) error {
	w.once.Do(func() {
		if stop {
			_ = cmd.Cancel()
		}
		w.err = w.wait()
	})
	return w.err
}

// lastLines passes on what is written to it and remembers the end of it.
type lastLines struct {
	w    io.Writer
	tail []byte
}

func (l *lastLines) Write(p []byte) (int, error) {
	l.tail = append(l.tail, p...)
	if len(l.tail) > 8<<10 {
		l.tail = append([]byte(nil), l.tail[len(l.tail)-8<<10:]...)
	}
	if l.w != nil {
		// Whoever watches must not be able to stop it.
		_, _ = l.w.Write(p)
	}
	return len(p), nil
}

func (l *lastLines) all() string { return string(l.tail) }

// last returns the line that says most: the last error, or the last at all.
func (l *lastLines) last() string {
	var last, bad string
	for line := range strings.Lines(l.all()) {
		if line = strings.TrimSpace(line); line != "" {
			last = line
		}
		if strings.HasPrefix(line, "E: ") && !strings.Contains(line, "run_chroot failed") {
			bad = strings.TrimPrefix(line, "E: ")
		}
	}
	if bad != "" {
		last = bad
	}
	return clip(last)
}
