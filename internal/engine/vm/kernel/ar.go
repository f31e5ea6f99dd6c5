package kernel

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

const (
	// maxPackage bounds a package's content, unpacked; maxFiles their number.
	maxPackage = 2 << 30
	maxFiles   = 50_000
)

// arMember is the header of one file in an ar archive.
type arMember struct {
	name string
	size int64
}

// arReader reads a Unix ar archive, which is what a Debian package is.
type arReader struct {
	r    *bufio.Reader
	left int64 // of the current member, with its padding
}

func newArReader(r io.Reader) (*arReader, error) {
	b := bufio.NewReaderSize(r, 256<<10)
	magic := make([]byte, 8)
	if _, err := io.ReadFull(b, magic); err != nil || string(magic) != "!<arch>\n" {
		return nil, errors.New("not a Debian package")
	}
	return &arReader{r: b}, nil
}

// next goes to the next member; io.EOF after the last.
func (a *arReader) next() (arMember, error) {
	if _, err := io.CopyN(io.Discard, a.r, a.left); err != nil {
		return arMember{}, fmt.Errorf("package: %w", noEOF(err))
	}
	a.left = 0
	head := make([]byte, 60)
	if _, err := io.ReadFull(a.r, head); err != nil {
		if errors.Is(err, io.EOF) {
			return arMember{}, io.EOF
		}
		return arMember{}, fmt.Errorf("package: %w", err)
	}
	size, err := strconv.ParseInt(strings.TrimSpace(string(head[48:58])), 10, 64)
	if err != nil || size < 0 || string(head[58:]) != "`\n" {
		return arMember{}, errors.New("package: a member's header is damaged")
	}
	a.left = size + size%2
	name := strings.TrimRight(strings.TrimSpace(string(head[:16])), "/")
	return arMember{name: name, size: size}, nil
}

// content is what is left of the current member.
func (a *arReader) content(m arMember) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		if m.size == 0 {
			return 0, io.EOF
		}
		if int64(len(p)) > m.size {
			p = p[:m.size]
		}
		n, err := a.r.Read(p)
		m.size -= int64(n)
		a.left -= int64(n)
		if m.size > 0 {
			err = noEOF(err)
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
		return n, err
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// unpackDeb unpacks the kernel and its modules from the package in r to dir:
// vmlinuz, and the modules below modules. It returns the kernel's release.
func unpackDeb(ctx context.Context, r io.Reader, dir string) (release string, err error) {
	a, err := newArReader(r)
	if err != nil {
		return "", err
	}
	for {
		m, err := a.next()
		if errors.Is(err, io.EOF) {
			return "", errors.New("the package has no data")
		}
		if err != nil {
			return "", err
		}
		ext, ok := strings.CutPrefix(m.name, "data.tar")
		if !ok {
			continue
		}
		data, err := decompress(a.content(m), ext)
		if err != nil {
			return "", err
		}
		return unpackTar(ctx, tar.NewReader(io.LimitReader(data, maxPackage)), dir)
	}
}

// decompress chooses by a file name's ending.
func decompress(r io.Reader, ext string) (io.Reader, error) {
	switch ext {
	case "":
		return r, nil
	case ".gz":
		return gzip.NewReader(r)
	case ".xz":
		// A dictionary of more than this is no package's.
		return xz.ReaderConfig{DictCap: 128 << 20}.NewReader(r)
	case ".zst":
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return nil, fmt.Errorf("the package is compressed as %q, which is not known", ext)
}

// unpackTar takes what a boot needs from a package's tree. Names decide alone
// where a file goes; links and everything else are left out.
func unpackTar(ctx context.Context, t *tar.Reader, dir string) (release string, err error) {
	files := 0
	for {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("package: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if files++; files > maxFiles {
			return "", fmt.Errorf("the package has more than %d files", maxFiles)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		name = strings.TrimPrefix(name, "usr/")
		if rest, ok := strings.CutPrefix(name, "boot/vmlinuz-"); ok && !strings.Contains(rest, "/") {
			if release != "" {
				return "", errors.New("the package has more than one kernel")
			}
			release = rest
			if err := writeFrom(filepath.Join(dir, "vmlinuz"), t); err != nil {
				return "", err
			}
			continue
		}
		rest, ok := strings.CutPrefix(name, "lib/modules/")
		if !ok {
			continue
		}
		_, rest, ok = strings.Cut(rest, "/") // after the release
		if !ok {
			continue
		}
		var content io.Reader = t
		if base, ext, ok := cutCompression(rest); ok {
			if content, err = decompress(t, ext); err != nil {
				return "", err
			}
			content = io.LimitReader(content, maxPackage)
			rest = base
		}
		if err := writeFrom(filepath.Join(dir, "modules", filepath.FromSlash(rest)), content); err != nil {
			return "", err
		}
	}
	if release == "" {
		return "", errors.New("the package has no kernel (boot/vmlinuz-*)")
	}
	return release, nil
}

// cutCompression takes the compression's ending from a module's name.
func cutCompression(name string) (base, ext string, ok bool) {
	for _, ext := range []string{".xz", ".zst", ".gz"} {
		if base, ok := strings.CutSuffix(name, ext); ok && strings.HasSuffix(base, ".ko") {
			return base, ext, true
		}
	}
	return name, "", false
}

func writeFrom(file string, r io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
