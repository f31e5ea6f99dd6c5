// Package archive holds tar and the compressors. Archives are treated as
// hostile: names that would leave the target directory are refused, and data
// is streamed, never held whole.
package archive

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// Gzip is gzip, gunzip and zcat by their names.
func Gzip(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Short: "cdfklnNqrtv123456789", Long: []string{"stdout|c", "to-stdout|c", "decompress|d", "uncompress|d", "force|f", "keep|k", "no-name|n", "name|N", "quiet|q", "test|t", "verbose|v", "fast|1", "best|9", "list|l", "recursive|r"}})
	if !ok {
		return code
	}
	g := &gzipper{c: c, level: gzip.DefaultCompression, unpack: c.Name == "gunzip" || c.Name == "zcat", out: c.Name == "zcat"}
	for _, o := range opts {
		switch o.Name {
		case "c":
			g.out = true
		case "d":
			g.unpack = true
		case "f":
			g.force = true
		case "k":
			g.keep = true
		case "n":
			g.noName = true
		case "N":
			g.noName = false
		case "q":
			g.quiet = true
		case "t":
			g.unpack, g.test = true, true
		case "v":
			g.verbose = true
		case "l", "r":
			return c.Fail(1, "option -%s is not supported", o.Name)
		default:
			g.level, _ = strconv.Atoi(o.Name)
		}
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	for _, name := range files {
		var err error
		if name == "-" {
			if !g.unpack && !g.force && c.Stdout.File() != nil && isTTY(c.Stdout.File()) {
				return c.Fail(1, "compressed data not written to a terminal. Use -f to force compression.")
			}
			err = g.stream(c.Stdout, c.Stdin, "", time.Time{})
		} else {
			err = g.file(name)
		}
		if err != nil {
			if errors.Is(err, errSkipped) {
				code = max(code, 2)
				continue
			}
			if c.Stdout.Err() != nil {
				return 1
			}
			if name == "-" {
				name = "stdin"
			}
			c.Errorf("%s: %s", name, reason(err))
			code = 1
		}
	}
	return code
}

func isTTY(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

var errSkipped = errors.New("skipped")

type gzipper struct {
	c                                                      *tool.Context
	level                                                  int
	unpack, out, force, keep, noName, quiet, test, verbose bool
}

func reason(err error) string {
	switch {
	case errors.Is(err, gzip.ErrHeader):
		return "not in gzip format"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "unexpected end of file"
	case errors.Is(err, gzip.ErrChecksum):
		return "invalid compressed data--crc error"
	}
	return tool.Reason(err)
}

func (g *gzipper) stream(w io.Writer, r io.Reader, name string, mod time.Time) error {
	if g.unpack {
		br := bufio.NewReaderSize(r, 64<<10)
		if head, err := br.Peek(1); len(head) == 0 {
			if err == io.EOF {
				return io.ErrUnexpectedEOF
			}
			return err
		}
		z, err := gzip.NewReader(br)
		if err != nil {
			return err
		}
		if g.test {
			w = io.Discard
		}
		_, err = io.Copy(w, z)
		if errors.Is(err, gzip.ErrHeader) {
			// Whole members came before it: padding is left by tape drives.
			if !g.quiet {
				g.c.Errorf("%s: decompression OK, trailing garbage ignored", name)
			}
			return errSkipped
		}
		return err
	}
	z, err := gzip.NewWriterLevel(w, g.level)
	if err != nil {
		return err
	}
	if !g.noName && name != "" {
		z.Name, z.ModTime = name, mod
	}
	if _, err := io.Copy(z, r); err != nil {
		return err
	}
	return z.Close()
}

func (g *gzipper) file(name string) error {
	f, err := os.Open(name)
	if err != nil && g.unpack && os.IsNotExist(err) {
		if f2, e2 := os.Open(name + ".gz"); e2 == nil {
			f, err, name = f2, nil, name+".gz"
		}
	}
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.IsDir() {
		g.c.Errorf("%s is a directory -- ignored", name)
		return errSkipped
	}
	base := name[strings.LastIndexByte(name, '/')+1:]
	if g.out || g.test {
		err := g.stream(g.c.Stdout, f, base, st.ModTime())
		if err == nil && g.test && g.verbose {
			g.c.Printf("%s:\t OK\n", name)
		}
		return err
	}
	target := name + ".gz"
	if g.unpack {
		switch {
		case strings.HasSuffix(name, ".tgz"):
			target = strings.TrimSuffix(name, ".tgz") + ".tar"
		case strings.HasSuffix(name, ".gz"):
			target = strings.TrimSuffix(name, ".gz")
		default:
			g.c.Errorf("%s: unknown suffix -- ignored", name)
			return errSkipped
		}
	} else if strings.HasSuffix(name, ".gz") && !g.force {
		g.c.Errorf("%s already has .gz suffix -- unchanged", name)
		return errSkipped
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if g.force {
		os.Remove(target)
	}
	out, err := os.OpenFile(target, flags, 0o600)
	if err != nil {
		if os.IsExist(err) {
			g.c.Errorf("%s already exists;\tnot overwritten", target)
			return errSkipped
		}
		return err
	}
	err = g.stream(out, f, base, st.ModTime())
	if err == nil || errors.Is(err, errSkipped) {
		tool.KeepOwner(out, st)
		_ = out.Chmod(st.Mode().Perm())
	}
	if e := out.Close(); err == nil {
		err = e
	}
	if err != nil && !errors.Is(err, errSkipped) {
		os.Remove(target)
		return err
	}
	_ = os.Chtimes(target, st.ModTime(), st.ModTime())
	if g.verbose {
		verb := "replaced with"
		if g.keep {
			verb = "created"
		}
		g.c.Errorf("%s: %s %s", name, verb, target)
	}
	if !g.keep {
		if e := os.Remove(name); e != nil {
			return e
		}
	}
	return err
}

// decompress recognises gzip, bzip2 and zstd by their first bytes.
func decompress(r io.Reader) (io.Reader, func(), error) {
	br := bufio.NewReaderSize(r, 64<<10)
	head, err := br.Peek(6)
	if err != nil && err != io.EOF {
		return nil, nil, err
	}
	none := func() {}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(br)
		return z, none, err
	case bytes.HasPrefix(head, []byte("BZh")):
		return bzip2.NewReader(br), none, nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	case bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")):
		return nil, nil, errors.New("archives compressed with xz are not supported")
	}
	return br, none, nil
}
