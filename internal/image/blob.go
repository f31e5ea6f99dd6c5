package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

func hashOf(data []byte) (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(data))
	return h, err
}

// blob makes sure that the store has d. Only one download of a blob goes on at
// a time, in whatever process; the others wait for it.
func (p *puller) blob(ctx context.Context, r reference, endpoints []endpoint, d v1.Descriptor, tell bool) error {
	s := p.store
	var th throttle
	report := func(ph Phase, done int64) {
		if tell && th.pass(ph) {
			p.report(Progress{Ref: r.String(), Digest: d.Digest.String(), Phase: ph, Done: done, Total: d.Size})
		}
	}
	if s.exists(d) {
		report(Present, d.Size)
		return nil
	}
	path := s.path("partial", d.Digest.Hex)
	l, err := tryLockFile(path, unix.LOCK_EX)
	if l == nil && err == nil {
		report(Waiting, 0)
		l, err = lockFile(ctx, path, unix.LOCK_EX)
	}
	if err != nil {
		return localError(ctx, opPull, r.String(), err)
	}
	defer l.unlock()
	if s.exists(d) {
		// Our lock made a new, empty file, unless it is the blob itself.
		if err := removeIfSame(l.f, path); err != nil {
			return localError(ctx, opPull, r.String(), err)
		}
		report(Present, d.Size)
		return nil
	}
	dl := &download{f: l.f, want: d, report: report, stall: s.patience.stall}
	if err := dl.start(ctx); err != nil {
		return localError(ctx, opPull, r.String(), err)
	}
	var last error
	for _, e := range endpoints {
		if last = p.fetch(ctx, e, dl); last == nil {
			if err := s.publish(l.f, path, d); err != nil {
				return localError(ctx, opPull, r.String(), err)
			}
			report(Complete, d.Size)
			return nil
		}
		var disk diskError
		if errors.As(last, &disk) {
			return localError(ctx, opPull, r.String(), disk.err)
		}
		if ctx.Err() != nil {
			return p.fail(ctx, r, e.host, last)
		}
		last = p.fail(ctx, r, e.host, last)
	}
	return last
}

func removeIfSame(f *os.File, path string) error {
	if isAt(f, path) {
		return os.Remove(path)
	}
	return nil
}

// publish makes the finished download f at path a blob.
func (s *Store) publish(f *os.File, path string, d v1.Descriptor) error {
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(path, s.blobPath(d.Digest.Hex)); err != nil {
		return err
	}
	return syncDir(s.path("blobs", "sha256"))
}

// diskError is an error of this machine, not of the registry.
type diskError struct{ err error }

func (e diskError) Error() string { return e.err.Error() }

// download is a blob on its way into a file.
type download struct {
	f      *os.File
	want   v1.Descriptor
	have   int64     // bytes in f
	sum    hash.Hash // of these
	report func(Phase, int64)
	stall  time.Duration
}

// start takes over what an earlier download left in the file.
func (dl *download) start(ctx context.Context) error {
	dl.sum = sha256.New()
	st, err := dl.f.Stat()
	if err != nil {
		return err
	}
	if st.Size() > dl.want.Size {
		return dl.restart()
	}
	dl.have, err = io.Copy(dl.sum, ctxReader{ctx, io.NewSectionReader(dl.f, 0, st.Size())})
	return err
}

func (dl *download) restart() error {
	dl.have = 0
	dl.sum.Reset()
	return dl.f.Truncate(0)
}

// verified reports whether the file is whole and right.
func (dl *download) verified() bool {
	return dl.have == dl.want.Size && hex.EncodeToString(dl.sum.Sum(nil)) == dl.want.Digest.Hex
}

// fetch downloads what is missing of dl from e.
func (p *puller) fetch(ctx context.Context, e endpoint, dl *download) error {
	c, err := p.client(ctx, e)
	if err != nil {
		return err
	}
	resumed := dl.have > 0
	pa := p.store.patience
	wait := pa.first
	for failures := 0; ; {
		before := dl.have
		err := dl.attempt(ctx, c)
		if err == nil && dl.verified() {
			return nil
		}
		if err == nil {
			// All bytes are here, and they are not the right ones. If some of
			// them are from an earlier download, that one may be to blame.
			if rerr := dl.restart(); rerr != nil {
				return diskError{rerr}
			}
			if resumed {
				resumed = false
				continue
			}
			return wrongContent(fmt.Sprintf("the registry sent other bytes for %s", dl.want.Digest))
		}
		var disk diskError
		if errors.As(err, &disk) || !transient(ctx, err) {
			return err
		}
		// A connection that brings something each time may break often.
		if failures++; dl.have > before {
			failures, wait = 1, pa.first
		}
		if failures >= pa.tries {
			return err
		}
		dl.report(Retrying, dl.have)
		if !sleep(ctx, wait) {
			return ctx.Err()
		}
		wait = min(2*wait, pa.most)
	}
}

// attempt is one request. It returns nil when all bytes are there.
func (dl *download) attempt(ctx context.Context, c *client) error {
	if dl.have == dl.want.Size {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(dl.stall, func() { cancel(errors.New("the download has stalled")) })
	defer watchdog.Stop()
	header := http.Header{}
	if dl.have > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", dl.have, dl.want.Size-1))
	}
	resp, err := c.get(ctx, "/blobs/"+dl.want.Digest.String(), header)
	if err != nil {
		return cause(ctx, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusPartialContent:
		if dl.have > 0 && strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(dl.have, 10)+"-") {
			break
		}
		fallthrough // not the part we asked for
	case http.StatusRequestedRangeNotSatisfiable:
		if dl.have == 0 {
			return wrongContent("the registry answers with a part of the blob that nobody asked for")
		}
		if err := dl.restart(); err != nil {
			return diskError{err}
		}
		resp.Body.Close()
		return dl.attempt(ctx, c) // once: without a Range there is no part
	case http.StatusOK:
		if dl.have > 0 { // it does not do ranges
			if err := dl.restart(); err != nil {
				return diskError{err}
			}
		}
	default:
		return transport.CheckError(resp, http.StatusOK)
	}
	missing := dl.want.Size - dl.have
	if resp.ContentLength > missing {
		return dl.tooLong()
	}
	buf := make([]byte, 128<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			watchdog.Reset(dl.stall)
			if int64(n) > dl.want.Size-dl.have {
				return dl.tooLong()
			}
			if _, err := dl.f.WriteAt(buf[:n], dl.have); err != nil {
				return diskError{err}
			}
			dl.sum.Write(buf[:n])
			dl.have += int64(n)
			dl.report(Downloading, dl.have)
		}
		if err == io.EOF {
			if dl.have < dl.want.Size {
				return io.ErrUnexpectedEOF
			}
			return nil
		}
		if err != nil {
			return cause(ctx, err)
		}
	}
}

// tooLong ends a download that brings more than the manifest promised.
func (dl *download) tooLong() error {
	if err := dl.restart(); err != nil {
		return diskError{err}
	}
	return wrongContent(fmt.Sprintf("the registry sends more than the %d bytes that %s should have", dl.want.Size, dl.want.Digest))
}

// cause prefers the reason for which we cancelled to "context canceled".
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil && ctx.Err() != nil {
		return c
	}
	return err
}

// ctxReader stops reading when its context is done.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// writeBlob puts small content into the store.
func (s *Store) writeBlob(ctx context.Context, h v1.Hash, data []byte) error {
	if s.exists(v1.Descriptor{Digest: h, Size: int64(len(data))}) {
		return nil
	}
	sp, err := s.spool(ctx, bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return err
	}
	defer sp.discard()
	return sp.keep()
}

// spool is content in a temporary file, on its way to become a blob.
type spool struct {
	s    *Store
	ctx  context.Context
	t    *temp
	path string
	desc v1.Descriptor // size and digest
}

// spool reads r to its end, which must come within limit bytes.
func (s *Store) spool(ctx context.Context, r io.Reader, limit int64) (_ *spool, err error) {
	t, err := s.newTemp("blob")
	if err != nil {
		return nil, err
	}
	made := &spool{s: s, ctx: ctx, t: t, path: t.path + "/blob"}
	defer func() {
		if err != nil {
			made.discard()
		}
	}()
	f, err := os.OpenFile(made.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(f, sum), ctxReader{ctx, io.LimitReader(r, limit+1)}, make([]byte, 256<<10))
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, &box.Error{Kind: box.Exhausted, Err: fmt.Errorf("more than %d bytes", limit)}
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	made.desc = v1.Descriptor{Size: n, Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}}
	return made, nil
}

// keep makes the content a blob of the store.
func (sp *spool) keep() error {
	if sp.s.exists(sp.desc) {
		return nil
	}
	if err := os.Rename(sp.path, sp.s.blobPath(sp.desc.Digest.Hex)); err != nil {
		return err
	}
	return syncDir(sp.s.path("blobs", "sha256"))
}

// discard removes the temporary file. It may follow keep.
func (sp *spool) discard() {
	// What cannot be removed now is reclaimed by the next Open.
	_ = sp.s.discard(sp.ctx, sp.t)
}
