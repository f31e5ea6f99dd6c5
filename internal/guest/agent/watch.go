//go:build linux

package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
)

// maxWatches bounds the directories of one watch.
const maxWatches = 65536

const (
	watchEvents = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE |
		unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	watchSub = watchEvents | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
)

// watcher turns inotify's events into the protocol's. One goroutine uses it.
type watcher struct {
	file      *os.File
	root      string
	recursive bool
	send      func(path, op string) error

	dirs  map[int32]string // watched directories (or the one file) by descriptor
	byDir map[string]int32
	// found holds, for a directory that was made while the watch ran, the names
	// that were read after the watch was in place and already told: the kernel
	// may tell them again.
	found map[int32]map[string]struct{}
	// moved is a directory that left its place, by cookie, until it is known
	// whether it arrived elsewhere in the tree.
	moved map[uint32]string

	lastPath, lastOp string // to tell a run of equal events once
}

// Watch streams changes of a path and, where asked, of everything below it.
func (s *filesService) Watch(ctx context.Context, req *connect.Request[hutchv1.WatchRequest], stream *connect.ServerStream[hutchv1.WatchEvent]) error {
	path, err := s.a.path("watch", req.Msg.GetPath())
	if err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return pathError("watch", path, err)
	}
	w := &watcher{
		file:      os.NewFile(uintptr(fd), "inotify"),
		root:      path,
		recursive: req.Msg.GetRecursive(),
		send: func(path, op string) error {
			return stream.Send(&hutchv1.WatchEvent{Path: []byte(path), Op: op})
		},
		dirs:  make(map[int32]string),
		byDir: make(map[string]int32),
		found: make(map[int32]map[string]struct{}),
		moved: make(map[uint32]string),
	}
	defer w.file.Close()
	if err := w.begin(); err != nil {
		return err
	}
	if err := stream.Send(&hutchv1.WatchEvent{}); err != nil {
		return err
	}
	end := func() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) }
	defer context.AfterFunc(ctx, end)()
	defer context.AfterFunc(s.a.ctx, end)()
	err = w.run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// add watches one directory, or the root whatever it is.
func (w *watcher) add(path string, mask uint32) error {
	if len(w.dirs) >= maxWatches {
		return unix.ENOSPC
	}
	var wd int
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) { wd, err = unix.InotifyAddWatch(int(fd), path, mask) })
	if err = errors.Join(cerr, err); err != nil {
		return err
	}
	if old, ok := w.dirs[int32(wd)]; ok {
		delete(w.byDir, old)
	}
	w.dirs[int32(wd)], w.byDir[path] = path, int32(wd)
	return nil
}

func (w *watcher) begin() error {
	if err := w.add(w.root, watchEvents); err != nil {
		return watchError(w.root, err)
	}
	if !w.recursive {
		return nil
	}
	return watchError(w.root, w.addTree(w.root, nil))
}

func watchError(path string, err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		if errno == unix.ENOSPC || errno == unix.EMFILE {
			return &box.Error{
				Kind: box.Exhausted, Op: "watch", Object: path, Err: errors.New("too many directories to watch"),
				Hint: "watch a smaller part of the tree",
			}
		}
		return pathError("watch", path, errno)
	}
	return err
}

// addTree watches all directories below dir, which is watched. Told, if set,
// is called for each entry.
func (w *watcher) addTree(dir string, told func(wd int32, name, path string) error) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		if dir == w.root {
			if errors.Is(err, unix.ENOTDIR) {
				return nil
			}
			return err
		}
		return nil // gone again
	}
	entries, err := f.ReadDir(-1)
	f.Close()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	wd := w.byDir[dir]
	for _, e := range entries {
		path := strings.TrimSuffix(dir, "/") + "/" + e.Name()
		if told != nil {
			if err := told(wd, e.Name(), path); err != nil {
				return err
			}
		}
		if !e.IsDir() {
			continue
		}
		if err := w.add(path, watchSub); err != nil {
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
				continue
			}
			return err
		}
		if err := w.addTree(path, told); err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) run() error {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return pathError("watch", w.root, err)
		}
		old := w.moved
		w.moved = make(map[uint32]string)
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd := int32(binary.NativeEndian.Uint32(b))
			mask := binary.NativeEndian.Uint32(b[4:])
			cookie := binary.NativeEndian.Uint32(b[8:])
			size := int(binary.NativeEndian.Uint32(b[12:]))
			name := b[unix.SizeofInotifyEvent:min(len(b), unix.SizeofInotifyEvent+size)]
			name, _, _ = bytes.Cut(name, []byte{0})
			b = b[min(len(b), unix.SizeofInotifyEvent+size):]
			if from, ok := old[cookie]; ok && cookie != 0 {
				w.moved[cookie] = from
				delete(old, cookie)
			}
			if err := w.event(wd, mask, cookie, string(name)); err != nil {
				return err
			}
		}
		w.lastPath, w.lastOp = "", ""
		for _, dir := range old { // it left the tree
			w.forget(dir)
		}
	}
}

func (w *watcher) tell(path, op string) error {
	if path == w.lastPath && op == w.lastOp && op != "create" && op != "remove" {
		return nil
	}
	w.lastPath, w.lastOp = path, op
	return w.send(path, op)
}

func (w *watcher) event(wd int32, mask, cookie uint32, name string) error {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		return w.tell(w.root, "overflow")
	}
	dir, ok := w.dirs[wd]
	if !ok {
		return nil
	}
	if mask&unix.IN_IGNORED != 0 {
		delete(w.dirs, wd)
		delete(w.found, wd)
		if w.byDir[dir] == wd {
			delete(w.byDir, dir)
		}
		return nil
	}
	path, isDir := dir, mask&unix.IN_ISDIR != 0
	if name != "" {
		path = strings.TrimSuffix(dir, "/") + "/" + name
	} else if dir != w.root {
		return nil // its parent tells it too
	}
	switch {
	case mask&unix.IN_CREATE != 0:
		if _, again := w.found[wd][name]; again {
			delete(w.found[wd], name)
			return nil
		}
		return w.created(path, isDir)
	case mask&unix.IN_MOVED_TO != 0:
		delete(w.found[wd], name)
		if from, ok := w.moved[cookie]; ok && isDir {
			delete(w.moved, cookie)
			w.relocate(from, path)
			return w.tell(path, "create")
		}
		return w.created(path, isDir)
	case mask&unix.IN_MOVED_FROM != 0:
		delete(w.found[wd], name)
		if isDir && w.recursive {
			w.moved[cookie] = path
		}
		return w.tell(path, "rename")
	case mask&(unix.IN_DELETE|unix.IN_DELETE_SELF) != 0:
		delete(w.found[wd], name)
		return w.tell(path, "remove")
	case mask&unix.IN_MOVE_SELF != 0:
		return w.tell(path, "rename")
	case mask&unix.IN_MODIFY != 0:
		return w.tell(path, "write")
	case mask&unix.IN_ATTRIB != 0:
		return w.tell(path, "chmod")
	}
	return nil
}

// created tells a new entry. A new directory is watched first and then read,
// so that nothing that was made in between is lost.
func (w *watcher) created(path string, isDir bool) error {
	if err := w.tell(path, "create"); err != nil || !isDir || !w.recursive {
		return err
	}
	if err := w.add(path, watchSub); err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return nil // gone again
		}
		return w.tell(w.root, "overflow") // what happens there will not be seen
	}
	var sendErr error
	err := w.addTree(path, func(wd int32, name, path string) error {
		if w.found[wd] == nil {
			w.found[wd] = make(map[string]struct{})
		}
		w.found[wd][name] = struct{}{}
		sendErr = w.tell(path, "create")
		return sendErr
	})
	if err != nil && sendErr == nil {
		return w.tell(w.root, "overflow")
	}
	return err
}

// relocate renames what is known below a directory that moved.
func (w *watcher) relocate(from, to string) {
	for wd, dir := range w.dirs {
		if rest, ok := strings.CutPrefix(dir, from); ok && (rest == "" || rest[0] == '/') {
			delete(w.byDir, dir)
			w.dirs[wd] = to + rest
			w.byDir[to+rest] = wd
		}
	}
}

// forget ends the watches below a directory that left the tree.
func (w *watcher) forget(from string) {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	for wd, dir := range w.dirs {
		if rest, ok := strings.CutPrefix(dir, from); ok && (rest == "" || rest[0] == '/') {
			_ = raw.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) })
			delete(w.dirs, wd)
			delete(w.byDir, dir)
			delete(w.found, wd)
		}
	}
}
