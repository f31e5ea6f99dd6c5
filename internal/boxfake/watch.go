package boxfake

import (
	"context"
	"iter"
	"strings"
	"syscall"

	"github.com/hutch-sandbox/hutch/box"
)

// watchQueue is how many events a slow watcher may be behind.
const watchQueue = 1024

type watcher struct {
	dir       string // without a final slash; empty: the root
	recursive bool
	events    chan box.FileEvent
	lost      bool
}

// changed tells the watchers. The caller holds mu.
func (f *memFS) changed(path, op string) {
	for w := range f.watchers {
		below, ok := strings.CutPrefix(path, w.dir+"/")
		if path != w.dir && (!ok || !w.recursive && strings.Contains(below, "/")) {
			continue
		}
		ev := box.FileEvent{Path: path, Op: op}
		if w.lost {
			ev = box.FileEvent{Path: w.dir, Op: "overflow"}
		}
		select {
		case w.events <- ev:
			w.lost = false
		default:
			w.lost = true
		}
	}
}

func (f *memFS) watch(ctx context.Context, path string, recursive bool) (iter.Seq2[box.FileEvent, error], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(path, true)
	if err != nil {
		return nil, pathError("watch", path, err)
	}
	w := &watcher{dir: strings.TrimSuffix(p.path(), "/"), recursive: recursive, events: make(chan box.FileEvent, watchQueue)}
	f.watchers[w] = true
	remove := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watchers, w)
	}
	stop := context.AfterFunc(ctx, remove)
	return func(yield func(box.FileEvent, error) bool) {
		defer func() {
			stop()
			remove()
		}()
		for {
			select {
			case ev := <-w.events:
				if !yield(ev, nil) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}, nil
}

// account is who a command runs as.
type account struct {
	name     string
	uid, gid int
}

var accounts = []account{{"root", 0, 0}, {"user", 1000, 1000}, {"nobody", 65534, 65534}}

func userName(uid int) string {
	for _, a := range accounts {
		if a.uid == uid {
			return a.name
		}
	}
	return ""
}

// lookup finds "name", "uid", "name:group" or "uid:gid".
func lookup(user string) (account, error) {
	if user == "" {
		return accounts[0], nil
	}
	name, group, both := strings.Cut(user, ":")
	a, err := lookupOne(name)
	if err != nil {
		return a, err
	}
	if both {
		g, err := lookupOne(group)
		if err != nil {
			return a, err
		}
		a.gid = g.uid
	}
	return a, nil
}

func lookupOne(name string) (account, error) {
	for _, a := range accounts {
		if a.name == name {
			return a, nil
		}
	}
	id := 0
	for _, c := range []byte(name) {
		if c < '0' || c > '9' || id > 1<<30 {
			return account{}, &box.Error{Kind: box.Invalid, Op: "user", Object: name, Err: syscall.ENOENT, Hint: "use a user of the box's /etc/passwd, or a number"}
		}
		id = 10*id + int(c-'0')
	}
	return account{userName(id), id, id}, nil
}
