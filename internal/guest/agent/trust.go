//go:build linux

package agent

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// resolvConf names the box's only resolver. Images often have a link to a file
// of a service that does not run here; it is replaced, as the file is.
func resolvConf(nameserver string) error {
	const path = "/etc/resolv.conf"
	if fi, err := os.Lstat(path); err == nil && fi.Mode()&fs.ModeSymlink != 0 {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return setFile(path, []byte("# The box's gateway; it answers for what the box may reach.\nnameserver "+nameserver+"\n"), func([]byte) bool { return true })
}

// Where distributions keep the certificates that programs trust, in one file.
var caBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine, Arch
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora, RHEL
	"/etc/pki/tls/certs/ca-bundle.crt",                  // older RHEL
	"/var/lib/ca-certificates/ca-bundle.pem",            // SUSE
	"/etc/ssl/ca-bundle.pem",                            // older SUSE
	"/etc/ssl/cert.pem",                                 // Alpine
}

// Where they keep certificates that were added, from which the bundles are made
// anew: a package that is installed later must not lose ours.
var caSources = []string{
	"/usr/local/share/ca-certificates", // Debian, Alpine
	"/etc/pki/ca-trust/source/anchors", // Fedora, RHEL
	"/etc/pki/trust/anchors",           // SUSE
}

const (
	caName  = "hutch-box.crt"
	caBegin = "# Hutch: this box's own authority, begin\n"
	caEnd   = "# Hutch: this box's own authority, end\n"
	maxCA   = 16 << 20
)

// trust makes the box's programs trust a certificate, and returns the variables
// that tell those programs which do not ask the system. Variables that the box
// sets itself are left alone.
func trust(pem []byte, env [][]byte) ([][]byte, error) {
	if len(pem) == 0 {
		return env, nil
	}
	var errs []error
	single := filepath.Join(caSources[0], caName)
	for i, dir := range caSources {
		if _, err := os.Stat(dir); err != nil && i > 0 {
			continue // another distribution's
		}
		errs = append(errs, setFile(filepath.Join(dir, caName), pem, func([]byte) bool { return true }))
	}
	bundle := ""
	done := map[string]bool{}
	for _, path := range caBundles {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue
		}
		if bundle == "" {
			bundle = path
		}
		if !done[real] {
			done[real] = true
			errs = append(errs, addToBundle(real, pem))
		}
	}
	if bundle == "" {
		// An image without any: what is installed later puts a real one here.
		bundle = caBundles[0]
		errs = append(errs, setFile(bundle, bundleWith(nil, pem), func([]byte) bool { return true }))
	}
	for _, kv := range [][2]string{
		{"SSL_CERT_FILE", bundle},       // OpenSSL, Go, Rust
		{"REQUESTS_CA_BUNDLE", bundle},  // Python
		{"NODE_EXTRA_CA_CERTS", single}, // Node
	} {
		if !slices.ContainsFunc(env, func(have []byte) bool { return strings.HasPrefix(string(have), kv[0]+"=") }) {
			env = append(env, []byte(kv[0]+"="+kv[1]))
		}
	}
	return env, errors.Join(errs...)
}

// bundleWith is a bundle with the certificate at its end, in the place of that
// of an earlier boot.
func bundleWith(old, pem []byte) []byte {
	if i := bytes.Index(old, []byte(caBegin)); i >= 0 {
		if j := bytes.Index(old[i:], []byte(caEnd)); j >= 0 {
			old = append(bytes.Clone(old[:i]), old[i+j+len(caEnd):]...)
		}
	}
	out := bytes.Clone(old)
	if len(out) > 0 && !bytes.HasSuffix(out, []byte("\n")) {
		out = append(out, '\n')
	}
	out = append(out, caBegin...)
	out = append(out, bytes.TrimRight(pem, "\n")...)
	return append(append(out, '\n'), caEnd...)
}

// addToBundle changes a file of the box, which may be anything.
func addToBundle(path string, pem []byte) error {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Size() > maxCA {
		return err
	}
	old, err := io.ReadAll(io.LimitReader(f, maxCA))
	if err != nil {
		return err
	}
	data := bundleWith(old, pem)
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(data)))
}
