package boxfake

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// machine is a handle on a box, with its lease. It is a box.Machine.
type machine struct {
	d  *Driver
	id string

	mu     sync.Mutex
	leased *machineState
}

// state finds the box without waking it.
func (m *machine) state(ctx context.Context, op string) (*machineState, error) {
	if err := m.d.fail(ctx, op, m.id); err != nil {
		return nil, err
	}
	return m.d.h.find(m.id)
}

// use wakes the box and takes the lease.
func (m *machine) use(ctx context.Context, op string) (*machineState, error) {
	st, _, err := m.start(ctx, op)
	if err != nil {
		return nil, err
	}
	for {
		st.h.mu.Lock()
		paused := st.paused
		st.h.mu.Unlock()
		if paused == nil {
			return st, nil
		}
		select {
		case <-paused:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (m *machine) start(ctx context.Context, op string) (st *machineState, booted bool, err error) {
	if st, err = m.state(ctx, op); err != nil {
		return nil, false, err
	}
	booted, err = st.wake(ctx, func() { m.lease(st) })
	if err != nil {
		return nil, false, err
	}
	if booted && op != "startmain" {
		if _, err := st.startMain(nil); err != nil {
			return nil, false, err
		}
	}
	return st, booted, nil
}

// lease is called with the host's mutex held.
func (m *machine) lease(st *machineState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leased != nil {
		return
	}
	m.leased = st
	st.leases++
	m.d.mu.Lock()
	m.d.handles[m] = true
	m.d.mu.Unlock()
}

func (m *machine) Close() error {
	m.d.h.mu.Lock()
	m.mu.Lock()
	st := m.leased
	m.leased = nil
	m.mu.Unlock()
	unused := false
	if st != nil {
		st.leases--
		unused = st.leases == 0 && !st.spec.Detach && st.state == box.Running
	}
	m.d.h.mu.Unlock()
	m.d.mu.Lock()
	delete(m.d.handles, m)
	m.d.mu.Unlock()
	if unused {
		st.h.work.Go(func() {
			st.shutdownIf(func() bool { return st.leases == 0 }, false, -1, "nobody used it any more")
		})
	}
	return nil
}

func (m *machine) Info(ctx context.Context) (box.Info, error) {
	st, err := m.state(ctx, "info")
	if err != nil {
		return box.Info{}, err
	}
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	return st.infoLocked(), nil
}

func (m *machine) Start(ctx context.Context) error {
	_, _, err := m.start(ctx, "start")
	return err
}

func (m *machine) StartMain(ctx context.Context, opts box.AttachOptions) (box.ProcessStream, error) {
	st, err := m.state(ctx, "startmain")
	if err != nil {
		return nil, err
	}
	if len(st.mainArgs) == 0 {
		return nil, &box.Error{Kind: box.Invalid, Op: "attach", Object: st.name, Err: errors.New("the box has no main command"), Hint: "create it with cmd, entrypoint or main"}
	}
	conflict := &box.Error{Kind: box.Conflict, Op: "attach", Object: st.name, Err: errors.New("the box runs already")}
	st.h.mu.Lock()
	running := st.state == box.Running
	st.h.mu.Unlock()
	if running {
		return nil, conflict
	}
	st, booted, err := m.start(ctx, "startmain")
	if err != nil {
		return nil, err
	}
	if !booted {
		return nil, conflict
	}
	s, err := st.startMain(&opts)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (m *machine) Stop(ctx context.Context, grace time.Duration) error {
	return m.end(ctx, "stop", func(st *machineState) { st.shutdown(false, grace, "stopped") })
}

func (m *machine) Kill(ctx context.Context) error {
	return m.end(ctx, "kill", func(st *machineState) { st.shutdown(true, 0, "killed") })
}

// end goes on when the caller gives up, as the keeper of a real box does.
func (m *machine) end(ctx context.Context, op string, do func(*machineState)) error {
	st, err := m.state(ctx, op)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	st.h.work.Go(func() {
		defer close(done)
		do(st)
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *machine) Wait(ctx context.Context) (*box.ExitStatus, error) {
	st, err := m.state(ctx, "wait")
	if err != nil {
		return nil, err
	}
	st.h.mu.Lock()
	live, stopped := st.state == box.Running || st.state == box.Stopping, st.stopped
	st.h.mu.Unlock()
	if live {
		select {
		case <-stopped:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	return st.exit, nil
}

func (m *machine) Pause(ctx context.Context) error {
	st, err := m.state(ctx, "pause")
	if err != nil {
		return err
	}
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	if st.state != box.Running {
		return &box.Error{Kind: box.Conflict, Op: "pause", Object: st.name, Err: errors.New("the box does not run")}
	}
	if st.paused == nil {
		st.paused = make(chan struct{})
	}
	return nil
}

func (m *machine) Resume(ctx context.Context) error {
	st, err := m.state(ctx, "resume")
	if err != nil {
		return err
	}
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	if st.paused != nil {
		close(st.paused)
		st.paused = nil
	}
	return nil
}

func (m *machine) Logs(ctx context.Context, opts box.LogOptions) iter.Seq2[box.LogEntry, error] {
	return func(yield func(box.LogEntry, error) bool) {
		st, err := m.state(ctx, "logs")
		if err != nil {
			yield(box.LogEntry{}, err)
			return
		}
		at := -1
		for {
			st.h.mu.Lock()
			logs, change := st.logs, st.logChange
			live := st.state == box.Running || st.state == box.Stopping
			st.h.mu.Unlock()
			if at < 0 {
				at = 0
				if opts.Tail > 0 {
					at = max(0, len(logs)-opts.Tail)
				}
			}
			for ; at < len(logs); at++ {
				if !logs[at].Time.Before(opts.Since) && !yield(logs[at], nil) {
					return
				}
			}
			if !opts.Follow || !live {
				return
			}
			select {
			case <-change:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (m *machine) StartProcess(ctx context.Context, spec box.ProcessSpec) (box.ProcessStream, error) {
	st, err := m.use(ctx, "startprocess")
	if err != nil {
		return nil, err
	}
	m.d.commands.Add(1)
	s, err := st.start(spec, &box.AttachOptions{})
	if err != nil {
		return nil, err
	}
	s.bind(ctx)
	return s, nil
}

// bind closes the stream when ctx ends.
func (s *stream) bind(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	before := s.onClose
	s.onClose = func() {
		stop()
		if before != nil {
			before()
		}
	}
}

func (m *machine) exec(ctx context.Context, op, id string) (*exec, error) {
	st, err := m.use(ctx, op)
	if err != nil {
		return nil, err
	}
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	if e := st.execs[id]; e != nil {
		return e, nil
	}
	return nil, &box.Error{Kind: box.NotFound, Op: op, Object: id, Err: errors.New("no such command")}
}

func (m *machine) AttachProcess(ctx context.Context, id string, opts box.AttachOptions) (box.ProcessStream, error) {
	e, err := m.exec(ctx, "attachprocess", id)
	if err != nil {
		return nil, err
	}
	s := e.log.follow(id, opts, false, nil)
	s.bind(ctx)
	return s, nil
}

func (m *machine) WriteInput(ctx context.Context, id string, offset int64, data []byte, eof bool) error {
	e, err := m.exec(ctx, "writeinput", id)
	if err != nil {
		return err
	}
	return e.write(ctx, offset, data, eof)
}

func (m *machine) SignalProcess(ctx context.Context, id string, sig int, _ bool) error {
	e, err := m.exec(ctx, "signalprocess", id)
	if err != nil {
		return err
	}
	return e.signal(syscall.Signal(sig))
}

func (m *machine) ResizeProcess(ctx context.Context, id string, rows, cols int) error {
	e, err := m.exec(ctx, "resizeprocess", id)
	if err != nil {
		return err
	}
	if !e.spec.TTY {
		return &box.Error{Kind: box.Conflict, Op: "resize", Object: id, Err: errors.New("the command has no terminal")}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rows, e.cols = rows, cols
	return nil
}

func (m *machine) Processes(ctx context.Context) ([]box.ProcessInfo, error) {
	st, err := m.use(ctx, "processes")
	if err != nil {
		return nil, err
	}
	st.h.mu.Lock()
	execs := slices.SortedFunc(maps.Values(st.execs), func(a, b *exec) int { return a.started.Compare(b.started) })
	pids := make(map[*exec]int)
	for pid, o := range st.procs {
		if pids[o.exec] == 0 || pid < pids[o.exec] {
			pids[o.exec] = pid
		}
	}
	st.h.mu.Unlock()
	infos := []box.ProcessInfo{}
	for _, e := range execs {
		infos = append(infos, e.info(pids[e]))
	}
	return infos, nil
}

func (m *machine) Top(ctx context.Context) ([]box.OSProcess, error) {
	st, err := m.use(ctx, "top")
	if err != nil {
		return nil, err
	}
	return st.top(), nil
}

func (m *machine) Stats(ctx context.Context) (box.Stats, error) {
	st, err := m.use(ctx, "stats")
	if err != nil {
		return box.Stats{}, err
	}
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	running := 0
	for _, e := range st.execs {
		e.mu.Lock()
		if e.status == nil {
			running++
		}
		e.mu.Unlock()
	}
	return box.Stats{
		CPU: time.Millisecond, Memory: int64(1+len(st.procs)) << 20, MemoryLimit: int64(st.infoLocked().Limits.Memory.Value),
		Processes: 1 + len(st.procs), Execs: running, Uptime: time.Since(st.startedAt), Leases: st.leases,
	}, nil
}

// file prepares a file operation: the box runs, and the path is absolute.
func (m *machine) file(ctx context.Context, op, path string) (*memFS, string, error) {
	st, err := m.use(ctx, op)
	if err != nil {
		return nil, "", err
	}
	return st.fs, st.abs(path), nil
}

func (m *machineState) abs(path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return strings.TrimSuffix(m.dir(), "/") + "/" + path
}

// owner is who owns what file operations create.
func (m *machine) owner(user string) (account, error) {
	if user == "" {
		if st, err := m.d.h.find(m.id); err == nil {
			if user = st.spec.User; user == "" {
				user = st.image.Config.User
			}
		}
	}
	return lookup(user)
}

func (m *machine) Stat(ctx context.Context, path string, follow bool) (box.FileInfo, error) {
	f, p, err := m.file(ctx, "stat", path)
	if err != nil {
		return box.FileInfo{}, err
	}
	return f.stat(p, follow)
}

func (m *machine) ReadDir(ctx context.Context, path string) ([]box.FileInfo, error) {
	f, p, err := m.file(ctx, "readdir", path)
	if err != nil {
		return nil, err
	}
	return f.readDir(p)
}

func (m *machine) ReadFile(ctx context.Context, path string, offset, length int64) (box.FileInfo, io.ReadCloser, error) {
	f, p, err := m.file(ctx, "readfile", path)
	if err != nil {
		return box.FileInfo{}, nil, err
	}
	if err := f.regular("read", p); err != nil {
		return box.FileInfo{}, nil, err
	}
	o, err := f.open(p, 0, 0, account{})
	if err != nil {
		return box.FileInfo{}, nil, err
	}
	info, err := o.Stat()
	if err != nil {
		return box.FileInfo{}, nil, err
	}
	if info.RealPath, err = f.realpath(p); err != nil {
		return box.FileInfo{}, nil, err
	}
	o.pos = offset
	var r io.Reader = o
	if length > 0 {
		r = io.LimitReader(o, length)
	}
	return info, &fileReader{ctx, r, o}, nil
}

type fileReader struct {
	ctx context.Context
	r   io.Reader
	o   *openFile
}

func (r *fileReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

func (r *fileReader) Close() error { return r.o.Close() }

func (m *machine) WriteFile(ctx context.Context, path string, r io.Reader, opts box.WriteOptions) (box.FileInfo, error) {
	f, p, err := m.file(ctx, "writefile", path)
	if err != nil {
		return box.FileInfo{}, err
	}
	a, err := m.owner(opts.User)
	if err != nil {
		return box.FileInfo{}, err
	}
	return f.writeFile(p, r, opts, a)
}

func (m *machine) OpenFile(ctx context.Context, path string, flag int, perm fs.FileMode) (box.FileHandle, error) {
	f, p, err := m.file(ctx, "openfile", path)
	if err != nil {
		return nil, err
	}
	if err := f.regular("open", p); err != nil {
		return nil, err
	}
	a, err := m.owner("")
	if err != nil {
		return nil, err
	}
	o, err := f.open(p, flag, perm&^0o022, a)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = o.Close() })
	return o, nil
}

func (m *machine) Mkdir(ctx context.Context, path string, perm fs.FileMode, parents bool) error {
	f, p, err := m.file(ctx, "mkdir", path)
	if err != nil {
		return err
	}
	a, err := m.owner("")
	if err != nil {
		return err
	}
	return f.mkdir(p, perm, parents, a)
}

func (m *machine) RemoveFile(ctx context.Context, path string, recursive bool) error {
	f, p, err := m.file(ctx, "removefile", path)
	if err != nil {
		return err
	}
	return f.remove(p, recursive)
}

func (m *machine) RenameFile(ctx context.Context, oldPath, newPath string) error {
	st, err := m.use(ctx, "renamefile")
	if err != nil {
		return err
	}
	return st.fs.rename(st.abs(oldPath), st.abs(newPath))
}

func (m *machine) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	f, p, err := m.file(ctx, "chmod", path)
	if err != nil {
		return err
	}
	const bits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	return f.change("chmod", p, true, func(n *node) { n.mode = n.mode&^bits | mode&bits })
}

func (m *machine) Chown(ctx context.Context, path string, uid, gid int, follow bool) error {
	f, p, err := m.file(ctx, "chown", path)
	if err != nil {
		return err
	}
	return f.change("chown", p, follow, func(n *node) {
		if uid >= 0 {
			n.uid = uid
		}
		if gid >= 0 {
			n.gid = gid
		}
	})
}

func (m *machine) Chtimes(ctx context.Context, path string, _, mtime time.Time) error {
	f, p, err := m.file(ctx, "chtimes", path)
	if err != nil {
		return err
	}
	return f.change("chtimes", p, true, func(n *node) {
		if !mtime.IsZero() {
			n.mtime = mtime
		}
	})
}

func (m *machine) Symlink(ctx context.Context, target, path string) error {
	f, p, err := m.file(ctx, "symlink", path)
	if err != nil {
		return err
	}
	a, err := m.owner("")
	if err != nil {
		return err
	}
	return f.symlink(target, p, a)
}

func (m *machine) Link(ctx context.Context, oldPath, newPath string) error {
	st, err := m.use(ctx, "link")
	if err != nil {
		return err
	}
	return st.fs.link(st.abs(oldPath), st.abs(newPath))
}

func (m *machine) Readlink(ctx context.Context, path string) (string, error) {
	f, p, err := m.file(ctx, "readlink", path)
	if err != nil {
		return "", err
	}
	return f.readlink(p)
}

func (m *machine) Realpath(ctx context.Context, path string) (string, error) {
	f, p, err := m.file(ctx, "realpath", path)
	if err != nil {
		return "", err
	}
	return f.realpath(p)
}

func (m *machine) Watch(ctx context.Context, path string, recursive bool) (iter.Seq2[box.FileEvent, error], error) {
	f, p, err := m.file(ctx, "watch", path)
	if err != nil {
		return nil, err
	}
	return f.watch(ctx, p, recursive)
}

func (m *machine) Pack(ctx context.Context, path string, opts box.PackOptions) (io.ReadCloser, error) {
	f, p, err := m.file(ctx, "pack", path)
	if err != nil {
		return nil, err
	}
	return f.pack(ctx, p, opts)
}

func (m *machine) Unpack(ctx context.Context, dir string, tar io.Reader, opts box.UnpackOptions) error {
	f, p, err := m.file(ctx, "unpack", dir)
	if err != nil {
		return err
	}
	a, err := m.owner(opts.User)
	if err != nil {
		return err
	}
	return f.unpack(p, tar, opts, a)
}

func (m *machine) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	st, err := m.use(ctx, "dial")
	if err != nil {
		return nil, err
	}
	return st.h.dial(ctx, st.id, network, addr)
}
