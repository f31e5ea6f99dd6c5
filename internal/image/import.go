package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
)

// ImportOptions describe an image made from a root filesystem.
type ImportOptions struct {
	Config   RunConfig // how to run it
	Platform string    // os/arch[/variant]; "" is linux and this machine's architecture
}

// Import makes an image called name from a root filesystem: a tar, plain or
// compressed with gzip or zstd.
func (s *Store) Import(ctx context.Context, r io.Reader, name string, opts ImportOptions) (Image, error) {
	return s.importAs(ctx, "image import", r, name, opts)
}

func (s *Store) importAs(ctx context.Context, op string, r io.Reader, name string, opts ImportOptions) (Image, error) {
	to, err := parseName(op, name)
	if err != nil {
		return Image{}, err
	}
	img, err := func() (Image, error) {
		done, err := s.adding(ctx)
		if err != nil {
			return Image{}, err
		}
		defer done()
		sp, err := s.spool(ctx, r, s.cfg.Limits.LayerBytes)
		if err != nil {
			return Image{}, err
		}
		defer sp.discard()
		diffID, mt, err := s.inspectTar(ctx, sp.path)
		if err != nil {
			return Image{}, err
		}
		sp.desc.MediaType = mt
		d, manifest, config, err := makeImage([]v1.Descriptor{sp.desc}, []string{diffID}, opts.Config, time.Now(), opts.Platform)
		if err != nil {
			return Image{}, &box.Error{Kind: box.Invalid, Op: op, Object: clip(name), Err: err}
		}
		if err := sp.keep(); err != nil {
			return Image{}, err
		}
		if err := s.writeBlob(ctx, config.digest, config.data); err != nil {
			return Image{}, err
		}
		return s.add(ctx, op, d, manifest, to.name())
	}()
	return img, localError(ctx, op, clip(name), err)
}

// inspectTar reads the layer at path to its end, within the limits, and
// returns its DiffID and media type. It is Invalid if it is no tar.
func (s *Store) inspectTar(ctx context.Context, path string) (diffID string, mt types.MediaType, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	mt, err = layerType(f)
	if err != nil {
		return "", "", err
	}
	z, err := layer.Decompress(ctxReader{ctx, f})
	if err != nil {
		return "", "", notTar(err)
	}
	defer z.Close()
	sum := sha256.New()
	limited := &limitReader{r: z, left: s.cfg.Limits.LayerBytes}
	tr := tar.NewReader(io.TeeReader(limited, sum))
	entries := 0
	for {
		_, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", "", notTar(err)
		}
		if entries++; entries > layer.DefaultEntries {
			return "", "", &box.Error{Kind: box.Exhausted, Err: fmt.Errorf("more than %d entries", layer.DefaultEntries)}
		}
	}
	if entries == 0 {
		return "", "", notTar(errors.New("it is empty"))
	}
	if _, err := io.Copy(sum, limited); err != nil {
		return "", "", notTar(err)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), mt, nil
}

func notTar(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var e *box.Error
	if errors.As(err, &e) {
		return err
	}
	return &box.Error{Kind: box.Invalid, Err: fmt.Errorf("not a tar of a root filesystem: %s", clip(err.Error())),
		Hint: "give a tar, plain or compressed with gzip or zstd; for an archive of images use hutch image load"}
}

// layerType tells the media type of a layer by how it is compressed.
func layerType(f *os.File) (types.MediaType, error) {
	var magic [4]byte
	if _, err := f.ReadAt(magic[:], 0); err != nil && err != io.EOF {
		return "", err
	}
	switch {
	case magic[0] == 0x1f && magic[1] == 0x8b:
		return types.OCILayer, nil
	case magic == [4]byte{0x28, 0xb5, 0x2f, 0xfd}:
		return types.OCILayerZStd, nil
	}
	return types.OCIUncompressedLayer, nil
}

// limitReader fails, rather than ends, when there is more than allowed.
type limitReader struct {
	r    io.Reader
	left int64
}

func (l *limitReader) Read(p []byte) (int, error) {
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, &box.Error{Kind: box.Exhausted, Err: errors.New("it expands to more than is allowed")}
	}
	return n, err
}
