//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
)

const (
	// maxHandles bounds the files that clients hold open.
	maxHandles = 1024
	// maxReadAt bounds the answer of one ReadAt; a caller that wants more asks
	// again.
	maxReadAt = 4 << 20
)

// Linux's open flags, which are the protocol's, by name.
const (
	openKnown = unix.O_ACCMODE | unix.O_CREAT | unix.O_EXCL | unix.O_TRUNC | unix.O_APPEND
)

// handles is the files that clients hold open.
type handles struct {
	mu   sync.Mutex
	next uint64
	open map[uint64]*handle
}

// handle is one open file. Calls on it hold mu for reading; closing waits for
// them.
type handle struct {
	mu     sync.RWMutex
	file   *os.File
	path   string
	append bool
}

func (h *handles) add(x *handle) (uint64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.open) >= maxHandles {
		return 0, &box.Error{Kind: box.Exhausted, Op: "open", Object: x.path, Err: errors.New("too many open files"), Hint: "close some"}
	}
	if h.open == nil {
		h.open = make(map[uint64]*handle)
	}
	h.next++
	h.open[h.next] = x
	return h.next, nil
}

func (h *handles) remove(id uint64) {
	h.mu.Lock()
	x := h.open[id]
	delete(h.open, id)
	h.mu.Unlock()
	if x != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.file.Close()
	}
}

func (h *handles) closeAll() {
	h.mu.Lock()
	var ids []uint64
	for id := range h.open {
		ids = append(ids, id)
	}
	h.mu.Unlock()
	for _, id := range ids {
		h.remove(id)
	}
}

// use calls fn with an open file.
func (h *handles) use(op string, id uint64, fn func(*handle) error) error {
	h.mu.Lock()
	x := h.open[id]
	h.mu.Unlock()
	if x == nil {
		return &box.Error{Kind: box.NotFound, Op: op, Object: fmt.Sprint("handle ", id), Err: errors.New("the file is closed")}
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	return pathErrorUnlessBox(op, x.path, fn(x))
}

func pathErrorUnlessBox(op, path string, err error) error {
	if _, ok := errors.AsType[*box.Error](err); ok {
		return err
	}
	return pathError(op, path, err)
}

// Open keeps a file open for as long as its stream lasts.
func (s *filesService) Open(ctx context.Context, req *connect.Request[hutchv1.OpenRequest], stream *connect.ServerStream[hutchv1.OpenResponse]) error {
	path, err := s.a.path("open", req.Msg.GetPath())
	if err != nil {
		return err
	}
	f, err := s.openFile(path, int(req.Msg.GetFlags()), req.Msg.GetMode())
	if err != nil {
		return err
	}
	h := &handle{file: f, path: path, append: req.Msg.GetFlags()&unix.O_APPEND != 0}
	info, err := s.a.describe(path, int(f.Fd()))
	if err != nil {
		f.Close()
		return err
	}
	id, err := s.a.handles.add(h)
	if err != nil {
		f.Close()
		return err
	}
	defer s.a.handles.remove(id)
	if err := stream.Send(&hutchv1.OpenResponse{Handle: id, Info: info}); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-s.a.ctx.Done():
	}
	return nil
}

func (s *filesService) openFile(path string, flags int, mode uint32) (*os.File, error) {
	if other := flags &^ openKnown; other != 0 {
		return nil, invalid("open", path, fmt.Sprintf("flags 0%o are not supported", other), "")
	}
	if flags&unix.O_ACCMODE == unix.O_ACCMODE {
		return nil, invalid("open", path, "access mode 3 is none", "")
	}
	if flags&unix.O_CREAT != 0 {
		owner, err := s.a.owner("")
		if err != nil {
			return nil, err
		}
		if mode &= 0o7777; mode == 0 {
			mode = 0o644
		}
		target, st := path, (*unix.Stat_t)(nil)
		if flags&unix.O_EXCL == 0 {
			if target, st, err = lastTarget("open", path); err != nil {
				return nil, err
			}
		}
		if st == nil {
			f, err := createFile(target, flags&^unix.O_TRUNC, mode, owner)
			if err == nil || !errors.Is(err, unix.EEXIST) || flags&unix.O_EXCL != 0 {
				return f, pathError("open", path, err)
			}
		}
	}
	f, _, err := openRegular("open", path, flags&(unix.O_ACCMODE|unix.O_APPEND|unix.O_TRUNC))
	return f, err
}

// ReadAt reads at an offset. An answer with less than length and without eof
// is not the end.
func (s *filesService) ReadAt(_ context.Context, req *connect.Request[hutchv1.ReadAtRequest]) (*connect.Response[hutchv1.ReadAtResponse], error) {
	res := &hutchv1.ReadAtResponse{}
	err := s.a.handles.use("read", req.Msg.GetHandle(), func(h *handle) error {
		if req.Msg.GetOffset() < 0 {
			return invalid("read", h.path, "negative offset", "")
		}
		buf := make([]byte, min(req.Msg.GetLength(), maxReadAt))
		n, err := h.file.ReadAt(buf, req.Msg.GetOffset())
		res.Data, res.Eof = buf[:n], err == io.EOF
		if err == io.EOF {
			err = nil
		}
		return err
	})
	return connect.NewResponse(res), err
}

// WriteAt writes at an offset, or at the end for a file opened to append.
func (s *filesService) WriteAt(_ context.Context, req *connect.Request[hutchv1.WriteAtRequest]) (*connect.Response[hutchv1.WriteAtResponse], error) {
	res := &hutchv1.WriteAtResponse{}
	err := s.a.handles.use("write", req.Msg.GetHandle(), func(h *handle) (err error) {
		var n int
		switch {
		case req.Msg.GetAppend() != h.append:
			return invalid("write", h.path, "append must be set for files opened to append, and only for them", "")
		case h.append:
			n, err = h.file.Write(req.Msg.GetData())
		case req.Msg.GetOffset() < 0:
			return invalid("write", h.path, "negative offset", "")
		default:
			n, err = h.file.WriteAt(req.Msg.GetData(), req.Msg.GetOffset())
		}
		res.Written = uint32(n)
		return err
	})
	return connect.NewResponse(res), err
}

// Truncate sets the size.
func (s *filesService) Truncate(_ context.Context, req *connect.Request[hutchv1.TruncateRequest]) (*connect.Response[hutchv1.TruncateResponse], error) {
	err := s.a.handles.use("truncate", req.Msg.GetHandle(), func(h *handle) error {
		return h.file.Truncate(req.Msg.GetSize())
	})
	return connect.NewResponse(&hutchv1.TruncateResponse{}), err
}

// Sync writes the file to the disk, and describes it.
func (s *filesService) Sync(_ context.Context, req *connect.Request[hutchv1.SyncRequest]) (*connect.Response[hutchv1.SyncResponse], error) {
	res := &hutchv1.SyncResponse{}
	err := s.a.handles.use("sync", req.Msg.GetHandle(), func(h *handle) (err error) {
		if err = h.file.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
			return err
		}
		res.Info, err = s.a.describe(h.path, int(h.file.Fd()))
		return err
	})
	return connect.NewResponse(res), err
}
