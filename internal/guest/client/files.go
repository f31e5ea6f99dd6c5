package client

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"sort"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

// Stat describes a file.
func (c *Client) Stat(ctx context.Context, path string, follow bool) (box.FileInfo, error) {
	resp, err := c.files.Stat(ctx, connect.NewRequest(&hutchv1.StatRequest{Path: []byte(path), NoFollow: !follow}))
	if err != nil {
		return box.FileInfo{}, fail(ctx, "stat", path, err)
	}
	return wire.FileInfo(resp.Msg.GetInfo()), nil
}

// ReadDir returns a directory's entries, sorted by name.
func (c *Client) ReadDir(ctx context.Context, path string) ([]box.FileInfo, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.files.ReadDir(ctx, connect.NewRequest(&hutchv1.ReadDirRequest{Path: []byte(path)}))
	if err != nil {
		return nil, fail(ctx, "readdir", path, err)
	}
	infos := []box.FileInfo{}
	for stream.Receive() {
		for _, e := range stream.Msg().GetEntries() {
			infos = append(infos, wire.FileInfo(e))
		}
	}
	if err := stream.Err(); err != nil {
		return nil, fail(ctx, "readdir", path, err)
	}
	sort.Slice(infos, func(i, j int) bool { return infos[i].FileName < infos[j].FileName })
	return infos, nil
}

// ReadFile streams a file.
func (c *Client) ReadFile(ctx context.Context, path string, offset, length int64) (box.FileInfo, io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.files.Read(ctx, connect.NewRequest(&hutchv1.ReadRequest{Path: []byte(path), Offset: offset, Length: length}))
	if err != nil {
		cancel()
		return box.FileInfo{}, nil, fail(ctx, "read", path, err)
	}
	r := &download[hutchv1.ReadResponse]{ctx: ctx, cancel: cancel, stream: stream, op: "read", path: path, data: (*hutchv1.ReadResponse).GetData}
	if !stream.Receive() {
		err := r.end()
		cancel()
		if errors.Is(err, io.EOF) {
			err = cut("read", path, "the answer ended before it began")
		}
		return box.FileInfo{}, nil, err
	}
	r.rest = stream.Msg().GetData()
	return wire.FileInfo(stream.Msg().GetInfo()), r, nil
}

// Pack streams a tar of a path.
func (c *Client) Pack(ctx context.Context, path string, opts box.PackOptions) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.files.Pack(ctx, connect.NewRequest(&hutchv1.PackRequest{Path: []byte(path), Name: []byte(opts.Name), Follow: opts.Follow}))
	if err != nil {
		cancel()
		return nil, fail(ctx, "copy out", path, err)
	}
	r := &download[hutchv1.PackResponse]{ctx: ctx, cancel: cancel, stream: stream, op: "copy out", path: path, data: (*hutchv1.PackResponse).GetData}
	// A tar is never empty: the first block, or the reason why there is none.
	if !stream.Receive() {
		err := r.end()
		cancel()
		if errors.Is(err, io.EOF) {
			err = cut("copy out", path, "the answer ended before it began")
		}
		return nil, err
	}
	r.rest = stream.Msg().GetData()
	return r, nil
}

// download reads the data of a server stream.
type download[M any] struct {
	ctx    context.Context
	cancel context.CancelFunc
	stream *connect.ServerStreamForClient[M]
	op     string
	path   string
	data   func(*M) []byte

	rest   []byte
	err    error
	closed atomic.Bool
}

func (d *download[M]) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := d.fill(); err != nil {
		return 0, err
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// WriteTo spares a copy of every message.
func (d *download[M]) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		if err := d.fill(); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return total, err
		}
		n, err := w.Write(d.rest)
		total += int64(n)
		d.rest = d.rest[n:]
		if err != nil {
			return total, err
		}
	}
}

func (d *download[M]) fill() error {
	for len(d.rest) == 0 {
		if d.closed.Load() {
			return fs.ErrClosed
		}
		if d.err != nil {
			return d.err
		}
		if !d.stream.Receive() {
			d.err = d.end()
			return d.err
		}
		d.rest = d.data(d.stream.Msg())
	}
	return nil
}

// end is io.EOF only when the other side said that the stream is whole.
func (d *download[M]) end() error {
	if err := d.stream.Err(); err != nil {
		return fail(d.ctx, d.op, d.path, err)
	}
	return io.EOF
}

func (d *download[M]) Close() error {
	d.closed.Store(true)
	d.cancel()
	return nil
}

// WriteFile writes all of r to a file.
func (c *Client) WriteFile(ctx context.Context, path string, r io.Reader, opts box.WriteOptions) (box.FileInfo, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	header := &hutchv1.WriteHeader{
		Path: []byte(path), Mode: wire.PermBits(opts.Perm), Atomic: opts.Atomic, Append: opts.Append,
		Exclusive: opts.Exclusive, Parents: opts.Parents, User: opts.User, Sync: opts.Sync,
	}
	stream := c.files.Write(ctx)
	err := upload(r, func(data []byte, complete bool) error {
		err := stream.Send(&hutchv1.WriteRequest{Header: header, Data: data, Complete: complete})
		header = nil
		return err
	})
	if err != nil && !errors.Is(err, errPeer) {
		// Without Complete, an atomic write changes nothing.
		return box.FileInfo{}, err
	}
	resp, err := stream.CloseAndReceive()
	if err != nil {
		return box.FileInfo{}, fail(ctx, "write", path, err)
	}
	return wire.FileInfo(resp.Msg.GetInfo()), nil
}

// Unpack writes a tar below dir.
func (c *Client) Unpack(ctx context.Context, dir string, tar io.Reader, opts box.UnpackOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	header := &hutchv1.UnpackHeader{Dir: []byte(dir), KeepOwner: opts.KeepOwner, User: opts.User, NoOverwriteDir: opts.NoOverwriteDir}
	stream := c.files.Unpack(ctx)
	err := upload(tar, func(data []byte, complete bool) error {
		err := stream.Send(&hutchv1.UnpackRequest{Header: header, Data: data, Complete: complete})
		header = nil
		return err
	})
	if err != nil && !errors.Is(err, errPeer) {
		return err
	}
	_, err = stream.CloseAndReceive()
	return fail(ctx, "copy in", dir, err)
}

// errPeer says that sending failed; why, the response says.
var errPeer = errors.New("the peer stopped reading")

// upload sends r in chunks. The last one is complete. The first is empty: as
// long as there is no connection, nothing of r is read, so that the call can be
// made again.
func upload(r io.Reader, send func(data []byte, complete bool) error) error {
	if send(nil, false) != nil {
		return errPeer
	}
	buf := make([]byte, chunk)
	for {
		n, err := io.ReadFull(r, buf)
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return err
		}
		if send(buf[:n], last) != nil {
			return errPeer
		}
		if last {
			return nil
		}
	}
}

// The open flags of Linux, which the protocol uses.
var openFlags = []struct{ here, linux int }{
	{os.O_WRONLY, 0o1}, {os.O_RDWR, 0o2}, {os.O_CREATE, 0o100}, {os.O_EXCL, 0o200},
	{os.O_TRUNC, 0o1000}, {os.O_APPEND, 0o2000},
}

// OpenFile opens a file, until Close or until ctx ends.
func (c *Client) OpenFile(ctx context.Context, path string, flag int, perm fs.FileMode) (box.FileHandle, error) {
	var flags int
	for _, f := range openFlags {
		if flag&f.here != 0 {
			flags |= f.linux
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.files.Open(ctx, connect.NewRequest(&hutchv1.OpenRequest{Path: []byte(path), Flags: uint32(flags), Mode: wire.PermBits(perm)}))
	if err != nil {
		cancel()
		return nil, fail(ctx, "open", path, err)
	}
	if !stream.Receive() {
		err := stream.Err()
		if err == nil {
			err = cut("open", path, "the answer ended before it began")
		} else {
			err = fail(ctx, "open", path, err)
		}
		cancel()
		return nil, err
	}
	return &handle{c: c, ctx: ctx, cancel: cancel, stream: stream, path: path, id: stream.Msg().GetHandle()}, nil
}

// handle is an open file: the stream keeps it open, calls of their own use it.
type handle struct {
	c      *Client
	ctx    context.Context
	cancel context.CancelFunc
	stream *connect.ServerStreamForClient[hutchv1.OpenResponse]
	path   string
	id     uint64
	closed atomic.Bool
}

// do runs one call on the handle.
func (h *handle) do(op string, call func(ctx context.Context) error) error {
	if h.closed.Load() {
		return fs.ErrClosed
	}
	err := call(h.ctx)
	if err == nil {
		return nil
	}
	if h.closed.Load() {
		return fs.ErrClosed
	}
	return fail(h.ctx, op, h.path, err)
}

func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	total := 0
	for total < len(p) {
		eof, n := false, 0
		err := h.do("read", func(ctx context.Context) error {
			resp, err := h.c.files.ReadAt(ctx, connect.NewRequest(&hutchv1.ReadAtRequest{
				Handle: h.id, Offset: off + int64(total), Length: uint32(min(len(p)-total, 4*chunk)),
			}))
			if err == nil {
				n = copy(p[total:], resp.Msg.GetData())
				eof = resp.Msg.GetEof()
			}
			return err
		})
		total += n
		switch {
		case err != nil:
			return total, err
		case n == 0 || eof && total < len(p):
			return total, io.EOF
		}
	}
	return total, nil
}

func (h *handle) WriteAt(p []byte, off int64) (int, error) { return h.write(p, off, false) }

func (h *handle) Append(p []byte) (int, error) { return h.write(p, 0, true) }

func (h *handle) write(p []byte, off int64, appending bool) (int, error) {
	total := 0
	for total < len(p) {
		n := 0
		err := h.do("write", func(ctx context.Context) error {
			resp, err := h.c.files.WriteAt(ctx, connect.NewRequest(&hutchv1.WriteAtRequest{
				Handle: h.id, Offset: off + int64(total), Data: p[total:min(len(p), total+4*chunk)], Append: appending,
			}))
			if err == nil {
				n = min(int(resp.Msg.GetWritten()), len(p)-total)
			}
			return err
		})
		total += n
		if err != nil {
			return total, err
		}
		if n == 0 {
			return total, io.ErrShortWrite
		}
	}
	return total, nil
}

// Stat asks through Sync, which is the call that describes an open file.
func (h *handle) Stat() (box.FileInfo, error) {
	var info box.FileInfo
	err := h.do("stat", func(ctx context.Context) error {
		resp, err := h.c.files.Sync(ctx, connect.NewRequest(&hutchv1.SyncRequest{Handle: h.id}))
		if err == nil {
			info = wire.FileInfo(resp.Msg.GetInfo())
		}
		return err
	})
	return info, err
}

func (h *handle) Truncate(size int64) error {
	return h.do("truncate", func(ctx context.Context) error {
		_, err := h.c.files.Truncate(ctx, connect.NewRequest(&hutchv1.TruncateRequest{Handle: h.id, Size: size}))
		return err
	})
}

func (h *handle) Sync() error {
	return h.do("sync", func(ctx context.Context) error {
		_, err := h.c.files.Sync(ctx, connect.NewRequest(&hutchv1.SyncRequest{Handle: h.id}))
		return err
	})
}

func (h *handle) Close() error {
	if h.closed.Swap(true) {
		return fs.ErrClosed
	}
	h.cancel()
	return nil
}

// Mkdir makes a directory.
func (c *Client) Mkdir(ctx context.Context, path string, perm fs.FileMode, parents bool) error {
	_, err := c.files.Mkdir(ctx, connect.NewRequest(&hutchv1.MkdirRequest{Path: []byte(path), Mode: wire.PermBits(perm), Parents: parents}))
	return fail(ctx, "mkdir", path, err)
}

// RemoveFile removes a file or directory.
func (c *Client) RemoveFile(ctx context.Context, path string, recursive bool) error {
	_, err := c.files.Remove(ctx, connect.NewRequest(&hutchv1.RemoveRequest{Path: []byte(path), Recursive: recursive}))
	return fail(ctx, "remove", path, err)
}

// RenameFile moves a file.
func (c *Client) RenameFile(ctx context.Context, oldPath, newPath string) error {
	_, err := c.files.Rename(ctx, connect.NewRequest(&hutchv1.RenameRequest{OldPath: []byte(oldPath), NewPath: []byte(newPath)}))
	return fail(ctx, "rename", oldPath, err)
}

// Chmod changes permissions.
func (c *Client) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	_, err := c.files.Chmod(ctx, connect.NewRequest(&hutchv1.ChmodRequest{Path: []byte(path), Mode: wire.PermBits(mode)}))
	return fail(ctx, "chmod", path, err)
}

// Chown changes owners.
func (c *Client) Chown(ctx context.Context, path string, uid, gid int, follow bool) error {
	_, err := c.files.Chown(ctx, connect.NewRequest(&hutchv1.ChownRequest{Path: []byte(path), Uid: int64(uid), Gid: int64(gid), NoFollow: !follow}))
	return fail(ctx, "chown", path, err)
}

// Chtimes changes times; a zero one is left.
func (c *Client) Chtimes(ctx context.Context, path string, atime, mtime time.Time) error {
	_, err := c.files.Chtimes(ctx, connect.NewRequest(&hutchv1.ChtimesRequest{Path: []byte(path), Accessed: wire.Timestamp(atime), Modified: wire.Timestamp(mtime)}))
	return fail(ctx, "chtimes", path, err)
}

// Symlink makes a symbolic link at path.
func (c *Client) Symlink(ctx context.Context, target, path string) error {
	_, err := c.files.Symlink(ctx, connect.NewRequest(&hutchv1.SymlinkRequest{Target: []byte(target), Path: []byte(path)}))
	return fail(ctx, "symlink", path, err)
}

// Link makes one more name of a file.
func (c *Client) Link(ctx context.Context, oldPath, newPath string) error {
	_, err := c.files.Link(ctx, connect.NewRequest(&hutchv1.LinkRequest{OldPath: []byte(oldPath), NewPath: []byte(newPath)}))
	return fail(ctx, "link", oldPath, err)
}

// Readlink returns a symbolic link's target.
func (c *Client) Readlink(ctx context.Context, path string) (string, error) {
	resp, err := c.files.Readlink(ctx, connect.NewRequest(&hutchv1.ReadlinkRequest{Path: []byte(path)}))
	if err != nil {
		return "", fail(ctx, "readlink", path, err)
	}
	return string(resp.Msg.GetTarget()), nil
}

// Realpath resolves all symbolic links.
func (c *Client) Realpath(ctx context.Context, path string) (string, error) {
	resp, err := c.files.Realpath(ctx, connect.NewRequest(&hutchv1.RealpathRequest{Path: []byte(path)}))
	if err != nil {
		return "", fail(ctx, "realpath", path, err)
	}
	return string(resp.Msg.GetPath()), nil
}

// Watch returns when the watch is in place. Its events can be ranged over once.
func (c *Client) Watch(ctx context.Context, path string, recursive bool) (iter.Seq2[box.FileEvent, error], error) {
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.files.Watch(ctx, connect.NewRequest(&hutchv1.WatchRequest{Path: []byte(path), Recursive: recursive}))
	if err == nil && !stream.Receive() {
		if err = stream.Err(); err == nil {
			err = connect.NewError(connect.CodeUnavailable, errors.New("the answer ended before it began"))
		}
	}
	if err != nil {
		err = fail(ctx, "watch", path, err)
		cancel()
		return nil, err
	}
	return func(yield func(box.FileEvent, error) bool) {
		defer cancel()
		for stream.Receive() {
			ev := box.FileEvent{Path: string(stream.Msg().GetPath()), Op: stream.Msg().GetOp()}
			if !yield(ev, nil) {
				return
			}
		}
		if outer.Err() != nil {
			return // the caller's end of it
		}
		err := stream.Err()
		if err == nil {
			yield(box.FileEvent{}, cut("watch", path, "the watch ended"))
			return
		}
		yield(box.FileEvent{}, fail(ctx, "watch", path, err))
	}, nil
}
