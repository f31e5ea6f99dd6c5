package local

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"net"
	"sync/atomic"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/client"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

// do calls the box, waking it first. A call that found no keeper did not
// happen, and is made once more.
func (m *machine) do(ctx context.Context, call func(c *client.Client) error) error {
	return m.attempt(ctx, func() bool { return true }, call)
}

// attempt is do for a call that can be made once more only while repeatable says
// so.
func (m *machine) attempt(ctx context.Context, repeatable func() bool, call func(c *client.Client) error) error {
	for try := 0; ; try++ {
		s, err := m.awake(ctx)
		if err != nil {
			return err
		}
		err = call(s.client)
		if !repeatable() {
			return m.explain(ctx, err)
		}
		if errors.Is(err, errNoKeeper) && try < 3 {
			// The session may not have heard yet that its keeper is gone.
			m.drop(s)
			continue
		}
		if refusedToStop(err) && try < 3 {
			// The box was on its way down when the call came, and did not
			// take it. It is woken again once it is down.
			select {
			case <-s.ended:
				continue
			case <-ctx.Done():
			}
		}
		return m.explain(ctx, err)
	}
}

// refusedToStop reports whether the guest agent refused a call because the box
// is stopping. Such a call did nothing.
func refusedToStop(err error) bool {
	e, ok := errors.AsType[*box.Error](err)
	return ok && e.Kind == box.Unavailable && e.Err != nil && e.Err.Error() == wire.Stopping
}

// explain turns "the box went away" into what the box's state says about why.
func (m *machine) explain(ctx context.Context, err error) error {
	if box.KindOf(err) != box.Unavailable || ctx.Err() != nil {
		return err
	}
	b, berr := m.d.box(m.id)
	if berr != nil {
		return err
	}
	// The keeper writes the state down before it lets go of the box.
	wait, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if rec, lerr := b.Load(); lerr != nil || (rec.State != box.Stopping && b.Alive()) {
		return err
	}
	life, lerr := waitLife(wait, b)
	if lerr != nil {
		return err
	}
	life.Close()
	rec, lerr := m.d.load(wait, m.id)
	if lerr == nil && rec.OOM {
		return &box.Error{Kind: box.Exhausted, Op: "box", Object: rec.Name, Err: errors.New("it used up its memory and was ended"),
			Hint: "give it more memory"}
	}
	return err
}

// value is do for a call with a result.
func value[T any](ctx context.Context, m *machine, call func(c *client.Client) (T, error)) (v T, err error) {
	err = m.do(ctx, func(c *client.Client) error {
		v, err = call(c)
		return err
	})
	return v, err
}

// StartProcess starts a command.
func (m *machine) StartProcess(ctx context.Context, spec box.ProcessSpec) (box.ProcessStream, error) {
	m.d.commands.Add(1)
	if err := m.d.checkUser(spec.User); err != nil {
		return nil, err
	}
	s, err := value(ctx, m, func(c *client.Client) (box.ProcessStream, error) { return c.StartProcess(ctx, spec) })
	return m.explained(ctx, s, err)
}

// AttachProcess follows a command.
func (m *machine) AttachProcess(ctx context.Context, id string, opts box.AttachOptions) (box.ProcessStream, error) {
	s, err := value(ctx, m, func(c *client.Client) (box.ProcessStream, error) { return c.AttachProcess(ctx, id, opts) })
	return m.explained(ctx, s, err)
}

func (m *machine) explained(ctx context.Context, s box.ProcessStream, err error) (box.ProcessStream, error) {
	if err != nil {
		return nil, err
	}
	return &stream{ProcessStream: s, m: m, ctx: ctx}, nil
}

// stream explains the end of a box that took its commands along.
type stream struct {
	box.ProcessStream
	m   *machine
	ctx context.Context
}

func (s *stream) Recv() (box.ProcessEvent, error) {
	ev, err := s.ProcessStream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		err = s.m.explain(s.ctx, err)
	}
	return ev, err
}

func (m *machine) WriteInput(ctx context.Context, id string, offset int64, data []byte, eof bool) error {
	return m.do(ctx, func(c *client.Client) error { return c.WriteInput(ctx, id, offset, data, eof) })
}

func (m *machine) SignalProcess(ctx context.Context, id string, sig int, tree bool) error {
	return m.do(ctx, func(c *client.Client) error { return c.SignalProcess(ctx, id, sig, tree) })
}

func (m *machine) ResizeProcess(ctx context.Context, id string, rows, cols int) error {
	return m.do(ctx, func(c *client.Client) error { return c.ResizeProcess(ctx, id, rows, cols) })
}

func (m *machine) Processes(ctx context.Context) ([]box.ProcessInfo, error) {
	return value(ctx, m, func(c *client.Client) ([]box.ProcessInfo, error) { return c.Processes(ctx) })
}

func (m *machine) Top(ctx context.Context) ([]box.OSProcess, error) {
	return value(ctx, m, func(c *client.Client) ([]box.OSProcess, error) { return c.Top(ctx) })
}

func (m *machine) Stat(ctx context.Context, path string, follow bool) (box.FileInfo, error) {
	return value(ctx, m, func(c *client.Client) (box.FileInfo, error) { return c.Stat(ctx, path, follow) })
}

func (m *machine) ReadDir(ctx context.Context, path string) ([]box.FileInfo, error) {
	return value(ctx, m, func(c *client.Client) ([]box.FileInfo, error) { return c.ReadDir(ctx, path) })
}

func (m *machine) ReadFile(ctx context.Context, path string, offset, length int64) (info box.FileInfo, r io.ReadCloser, err error) {
	err = m.do(ctx, func(c *client.Client) error {
		info, r, err = c.ReadFile(ctx, path, offset, length)
		return err
	})
	return info, r, err
}

// WriteFile is repeated only as long as nothing of r was read: it cannot be
// sent twice.
func (m *machine) WriteFile(ctx context.Context, path string, r io.Reader, opts box.WriteOptions) (info box.FileInfo, err error) {
	src := &source{r: r}
	err = m.attempt(ctx, src.whole, func(c *client.Client) error {
		info, err = c.WriteFile(ctx, path, src, opts)
		return err
	})
	return info, err
}

// source is a reader that knows whether it is still whole.
type source struct {
	r    io.Reader
	read atomic.Bool
}

func (s *source) whole() bool { return !s.read.Load() }

func (s *source) Read(p []byte) (int, error) {
	s.read.Store(true)
	return s.r.Read(p)
}

func (m *machine) OpenFile(ctx context.Context, path string, flag int, perm fs.FileMode) (box.FileHandle, error) {
	return value(ctx, m, func(c *client.Client) (box.FileHandle, error) { return c.OpenFile(ctx, path, flag, perm) })
}

func (m *machine) Mkdir(ctx context.Context, path string, perm fs.FileMode, parents bool) error {
	return m.do(ctx, func(c *client.Client) error { return c.Mkdir(ctx, path, perm, parents) })
}

func (m *machine) RemoveFile(ctx context.Context, path string, recursive bool) error {
	return m.do(ctx, func(c *client.Client) error { return c.RemoveFile(ctx, path, recursive) })
}

func (m *machine) RenameFile(ctx context.Context, oldPath, newPath string) error {
	return m.do(ctx, func(c *client.Client) error { return c.RenameFile(ctx, oldPath, newPath) })
}

func (m *machine) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	return m.do(ctx, func(c *client.Client) error { return c.Chmod(ctx, path, mode) })
}

func (m *machine) Chown(ctx context.Context, path string, uid, gid int, follow bool) error {
	return m.do(ctx, func(c *client.Client) error { return c.Chown(ctx, path, uid, gid, follow) })
}

func (m *machine) Chtimes(ctx context.Context, path string, atime, mtime time.Time) error {
	return m.do(ctx, func(c *client.Client) error { return c.Chtimes(ctx, path, atime, mtime) })
}

func (m *machine) Symlink(ctx context.Context, target, path string) error {
	return m.do(ctx, func(c *client.Client) error { return c.Symlink(ctx, target, path) })
}

func (m *machine) Link(ctx context.Context, oldPath, newPath string) error {
	return m.do(ctx, func(c *client.Client) error { return c.Link(ctx, oldPath, newPath) })
}

func (m *machine) Readlink(ctx context.Context, path string) (string, error) {
	return value(ctx, m, func(c *client.Client) (string, error) { return c.Readlink(ctx, path) })
}

func (m *machine) Realpath(ctx context.Context, path string) (string, error) {
	return value(ctx, m, func(c *client.Client) (string, error) { return c.Realpath(ctx, path) })
}

func (m *machine) Watch(ctx context.Context, path string, recursive bool) (iter.Seq2[box.FileEvent, error], error) {
	return value(ctx, m, func(c *client.Client) (iter.Seq2[box.FileEvent, error], error) {
		return c.Watch(ctx, path, recursive)
	})
}

func (m *machine) Pack(ctx context.Context, path string, opts box.PackOptions) (io.ReadCloser, error) {
	return value(ctx, m, func(c *client.Client) (io.ReadCloser, error) { return c.Pack(ctx, path, opts) })
}

// Unpack is repeated only as WriteFile is.
func (m *machine) Unpack(ctx context.Context, dir string, tar io.Reader, opts box.UnpackOptions) error {
	src := &source{r: tar}
	return m.attempt(ctx, src.whole, func(c *client.Client) error { return c.Unpack(ctx, dir, src, opts) })
}

func (m *machine) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return value(ctx, m, func(c *client.Client) (net.Conn, error) { return c.Dial(ctx, network, addr) })
}
