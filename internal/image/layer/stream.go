package layer

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// maxWindow is the most memory a zstd frame may ask for. It is what the zstd
// tool itself accepts without being told to.
const maxWindow = 128 << 20

// Decompress returns what r holds in the clear: it recognises gzip (several
// members too) and zstd by their first bytes and takes anything else as it is.
// Closing the result releases the decoder, not r. Sizes are not bounded here.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 256<<10)
	magic, err := br.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, malformed{err}
		}
		return z, nil
	case len(magic) == 4 && isZstd(magic):
		z, err := zstd.NewReader(br, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, malformed{err}
		}
		return z.IOReadCloser(), nil
	case len(magic) >= 3 && string(magic[:3]) == "BZh":
		return nil, malformedf("bzip2 compression is not supported; use gzip or zstd")
	case len(magic) == 4 && string(magic) == "\xfd7zX":
		return nil, malformedf("xz compression is not supported; use gzip or zstd")
	}
	return io.NopCloser(br), nil
}

// isZstd recognises a data frame or a skippable one.
func isZstd(m []byte) bool {
	if m[0] == 0x28 && m[1] == 0xb5 && m[2] == 0x2f && m[3] == 0xfd {
		return true
	}
	return m[0]&0xf0 == 0x50 && m[1] == 0x2a && m[2] == 0x4d && m[3] == 0x18
}

// stream is the decompressed tar of a layer: bounded, hashed and cancellable.
type stream struct {
	ctx   context.Context
	z     io.ReadCloser
	sum   hash.Hash
	limit int64
	read  int64
}

func newStream(ctx context.Context, r io.Reader, limit int64) (*stream, error) {
	z, err := Decompress(r)
	if err != nil {
		return nil, err
	}
	return &stream{ctx: ctx, z: z, sum: sha256.New(), limit: limit}, nil
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	if s.read > s.limit {
		return 0, limitError(fmt.Sprintf("it expands to more than %d bytes", s.limit))
	}
	// One byte more than allowed tells "exactly full" from "too much".
	if room := s.limit - s.read + 1; int64(len(p)) > room {
		p = p[:room]
	}
	n, err := s.z.Read(p)
	s.sum.Write(p[:n])
	s.read += int64(n)
	if s.read > s.limit {
		return 0, limitError(fmt.Sprintf("it expands to more than %d bytes", s.limit))
	}
	if err != nil && err != io.EOF {
		err = malformed{err}
	}
	return n, err
}

// drain reads what follows the end of the archive, which the digest covers.
func (s *stream) drain() error {
	_, err := io.Copy(io.Discard, struct{ io.Reader }{s})
	return err
}

func (s *stream) digest() string { return "sha256:" + hex.EncodeToString(s.sum.Sum(nil)) }

func (s *stream) close() { s.z.Close() }
