package boxfake

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// Config changes what a fake does. The zero value is a host with the builtin
// image.
type Config struct {
	// Fail, when set, is asked before every operation and may make it fail.
	// op is the method's name in lower case, or "boot"; id is the box, if any.
	Fail func(op, id string) error
	// Registry is the images that can be pulled, by reference. Only names,
	// digest and config matter.
	Registry map[string]box.ImageConfig
}

// host is what all drivers on it share: one home.
type host struct {
	cfg  Config
	work sync.WaitGroup // everything that runs in the background

	mu          sync.Mutex
	boxes       map[string]*machineState // by id
	seq         int
	images      []*storedImage
	subscribers map[chan box.Event]bool
	listeners   map[string]*listener
}

// Driver is one program's view of the host. It is a box.Driver.
type Driver struct {
	h *host

	created, failed, commands atomic.Int64

	mu      sync.Mutex
	handles map[*machine]bool
	closed  bool
}

var _ box.Driver = (*Driver)(nil)

// New returns a driver on a host of its own.
func New(cfg Config) *Driver {
	h := &host{
		cfg: cfg, boxes: make(map[string]*machineState), subscribers: make(map[chan box.Event]bool),
		listeners: make(map[string]*listener),
	}
	h.images = []*storedImage{builtinImage()}
	return h.open()
}

func (h *host) open() *Driver { return &Driver{h: h, handles: make(map[*machine]bool)} }

// Another returns a second driver on the same host, as another program would
// open.
func (d *Driver) Another() *Driver { return d.h.open() }

// Crash makes a box die as if its kernel had: streams are cut, and the box is
// found stopped.
func (d *Driver) Crash(id string) {
	if m, err := d.h.find(id); err == nil {
		m.shutdown(true, 0, "the box's kernel died")
	}
}

// Quiesce waits until everything that runs in the background has ended. Call
// it after all boxes are stopped.
func (d *Driver) Quiesce() { d.h.work.Wait() }

func (d *Driver) fail(ctx context.Context, op, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return &box.Error{Kind: box.Unavailable, Op: op, Err: errors.New("the runtime is closed")}
	}
	if d.h.cfg.Fail != nil {
		return d.h.cfg.Fail(op, id)
	}
	return nil
}

// find returns the box with this id.
func (h *host) find(id string) (*machineState, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.boxes[id]; m != nil {
		return m, nil
	}
	return nil, notFound(id)
}

func notFound(ref string) error {
	return &box.Error{Kind: box.NotFound, Op: "get", Object: ref, Err: errors.New("no such box")}
}

// Create implements box.Driver.
func (d *Driver) Create(ctx context.Context, spec box.Spec) (box.Info, error) {
	info, err := d.create(ctx, spec)
	if err != nil {
		d.failed.Add(1)
		return info, err
	}
	d.created.Add(1)
	return info, nil
}

func (d *Driver) create(ctx context.Context, spec box.Spec) (box.Info, error) {
	if err := d.fail(ctx, "create", ""); err != nil {
		return box.Info{}, err
	}
	if err := spec.Validate(); err != nil {
		return box.Info{}, err
	}
	if spec.RootFS != "" || len(spec.Volumes) > 0 {
		return box.Info{}, &box.Error{Kind: box.Unsupported, Op: "create", Err: errors.New("this driver is in memory and has no host folders")}
	}
	if spec.Engine == "vm" || spec.Isolation == box.IsolationHardware {
		return box.Info{}, &box.Error{Kind: box.Unsupported, Op: "create", Object: "engine", Err: errors.New("there is no engine vm here")}
	}
	if _, err := lookup(spec.User); err != nil {
		return box.Info{}, err
	}
	img, err := d.resolveImage(ctx, spec)
	if err != nil {
		return box.Info{}, err
	}
	ref := spec.Image
	if ref == "" {
		ref = box.BuiltinImage
	}
	main := mainCommand(spec, img.Config)
	if spec.HasMain() && len(main) == 0 {
		return box.Info{}, &box.Error{Kind: box.Invalid, Op: "create", Object: "main", Err: errors.New("the image has no command"), Hint: "set cmd or entrypoint"}
	}
	root := newRoot()
	if err := img.fill(root); err != nil {
		return box.Info{}, err
	}

	h := d.h
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	id := makeID(h.seq)
	name := spec.Name
	if name == "" {
		name = fmt.Sprintf("fake-%d", h.seq)
	}
	if h.named(name) != nil {
		return box.Info{}, &box.Error{Kind: box.Exists, Op: "create", Object: name, Err: errors.New("a box has this name"), Hint: "hutch rm " + name}
	}
	m := &machineState{
		h: h, id: id, name: name, seq: h.seq, spec: spec, image: img, ref: ref, mainArgs: main, fs: root, state: box.Created, created: time.Now(),
		execs: make(map[string]*exec), procs: make(map[int]*osProcess), logChange: make(chan struct{}),
	}
	if dir := m.dir(); dir != "/" {
		if err := root.mkdir(dir, 0o755, true, account{}); err != nil {
			return box.Info{}, err
		}
	}
	h.boxes[id] = m
	h.emit(m, "create", nil)
	return m.infoLocked(), nil
}

func mainCommand(spec box.Spec, cfg box.ImageConfig) []string {
	if !spec.HasMain() {
		return nil
	}
	entry, cmd := cfg.Entrypoint, cfg.Cmd
	if spec.Entrypoint != nil {
		// As docker does: the image's arguments belong to its own entrypoint.
		entry, cmd = spec.Entrypoint, nil
	}
	if spec.Cmd != nil {
		cmd = spec.Cmd
	}
	return slices.Concat(entry, cmd)
}

// makeID is the same for every run.
func makeID(seq int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	sum := sha256.Sum256(fmt.Appendf(nil, "boxfake %d", seq))
	id := make([]byte, 12)
	for i := range id {
		id[i] = letters[int(sum[i])%len(letters)]
	}
	return string(id)
}

func (h *host) named(name string) *machineState {
	for _, m := range h.boxes {
		if m.name == name {
			return m
		}
	}
	return nil
}

// Get implements box.Driver.
func (d *Driver) Get(ctx context.Context, ref string) (box.Info, error) {
	if err := d.fail(ctx, "get", ref); err != nil {
		return box.Info{}, err
	}
	d.h.mu.Lock()
	defer d.h.mu.Unlock()
	if m := d.h.boxes[ref]; m != nil {
		return m.infoLocked(), nil
	}
	if m := d.h.named(ref); m != nil {
		return m.infoLocked(), nil
	}
	var found *machineState
	for id, m := range d.h.boxes {
		if len(ref) >= 4 && strings.HasPrefix(id, ref) {
			if found != nil {
				return box.Info{}, &box.Error{Kind: box.Invalid, Op: "get", Object: ref, Err: errors.New("several boxes' ids begin so"), Hint: "give more of the id"}
			}
			found = m
		}
	}
	if found == nil {
		return box.Info{}, notFound(ref)
	}
	return found.infoLocked(), nil
}

// List implements box.Driver.
func (d *Driver) List(ctx context.Context, opts box.ListOptions) ([]box.Info, error) {
	if err := d.fail(ctx, "list", ""); err != nil {
		return nil, err
	}
	d.h.mu.Lock()
	defer d.h.mu.Unlock()
	all := slices.SortedFunc(maps.Values(d.h.boxes), func(a, b *machineState) int { return b.seq - a.seq })
	infos := []box.Info{}
	for _, m := range all {
		if matches(m, opts) {
			infos = append(infos, m.infoLocked())
		}
	}
	return infos, nil
}

func matches(m *machineState, opts box.ListOptions) bool {
	for k, v := range opts.Labels {
		if have, ok := m.spec.Labels[k]; !ok || v != "" && have != v {
			return false
		}
	}
	return len(opts.States) == 0 || slices.Contains(opts.States, m.state)
}

// Remove implements box.Driver.
func (d *Driver) Remove(ctx context.Context, id string, force bool) error {
	if err := d.fail(ctx, "remove", id); err != nil {
		return err
	}
	m, err := d.h.find(id)
	if err != nil {
		return nil
	}
	d.h.mu.Lock()
	busy := m.state == box.Running || m.state == box.Stopping
	name := m.name
	d.h.mu.Unlock()
	if busy && !force {
		return &box.Error{Kind: box.Conflict, Op: "remove", Object: name, Err: errors.New("the box is running"), Hint: "hutch rm --force " + name}
	}
	m.shutdown(true, 0, "removed")
	d.h.mu.Lock()
	defer d.h.mu.Unlock()
	m.removeLocked()
	return nil
}

// Rename implements box.Driver.
func (d *Driver) Rename(ctx context.Context, id, name string) error {
	if err := d.fail(ctx, "rename", id); err != nil {
		return err
	}
	if err := box.ValidateName(name); err != nil {
		return err
	}
	d.h.mu.Lock()
	defer d.h.mu.Unlock()
	m := d.h.boxes[id]
	if m == nil {
		return notFound(id)
	}
	if other := d.h.named(name); other != nil && other != m {
		return &box.Error{Kind: box.Exists, Op: "rename", Object: name, Err: errors.New("a box has this name")}
	}
	old := m.name
	m.name = name
	d.h.emit(m, "rename", map[string]string{"from": old})
	return nil
}

// Machine implements box.Driver.
func (d *Driver) Machine(id string) box.Machine { return &machine{d: d, id: id} }

// emit tells the subscribers. The caller holds mu.
func (h *host) emit(m *machineState, action string, attrs map[string]string) {
	ev := box.Event{Time: time.Now(), Action: action, ID: m.id, Name: m.name, Attrs: attrs}
	for c := range h.subscribers {
		select {
		case c <- ev:
		default: // a test that does not read for a thousand events
		}
	}
}

// Events implements box.Driver. It subscribes at once, not first at the loop.
func (d *Driver) Events(ctx context.Context) iter.Seq2[box.Event, error] {
	c := make(chan box.Event, 1000)
	d.h.mu.Lock()
	d.h.subscribers[c] = true
	d.h.mu.Unlock()
	remove := func() {
		d.h.mu.Lock()
		defer d.h.mu.Unlock()
		delete(d.h.subscribers, c)
	}
	stop := context.AfterFunc(ctx, remove)
	return func(yield func(box.Event, error) bool) {
		defer func() {
			stop()
			remove()
		}()
		for {
			select {
			case ev := <-c:
				if !yield(ev, nil) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// Host implements box.Driver.
func (d *Driver) Host(ctx context.Context) (box.HostInfo, error) {
	if err := d.fail(ctx, "host", ""); err != nil {
		return box.HostInfo{}, err
	}
	m := d.counts()
	d.h.mu.Lock()
	images := len(d.h.images)
	d.h.mu.Unlock()
	return box.HostInfo{
		Version: "fake", Home: "/nowhere", OS: "linux", Arch: "amd64", Kernel: "fake", CPUs: 2, Memory: 8 << 30, User: "root",
		Engines: []box.EngineInfo{
			{Name: "gvisor", Usable: true, Default: true, Isolation: box.IsolationKernel, Version: "fake"},
			{Name: "vm", Reason: "in memory only", Isolation: box.IsolationHardware},
		},
		Checks: []box.Check{{Name: "memory", OK: true, Detail: "all boxes are in memory"}, {Name: "kvm", Detail: "/dev/kvm is missing", Fix: "modprobe kvm"}},
		Boxes:  m.Boxes, Running: m.Running, Images: images,
	}, nil
}

func (d *Driver) counts() box.Metrics {
	d.h.mu.Lock()
	defer d.h.mu.Unlock()
	m := box.Metrics{Created: d.created.Load(), Failed: d.failed.Load(), Commands: d.commands.Load(), Boxes: len(d.h.boxes)}
	for _, b := range d.h.boxes {
		if b.state == box.Running {
			m.Running++
		}
	}
	return m
}

// Metrics implements box.Driver.
func (d *Driver) Metrics(ctx context.Context) (box.Metrics, error) {
	if err := d.fail(ctx, "metrics", ""); err != nil {
		return box.Metrics{}, err
	}
	return d.counts(), nil
}

// Close implements box.Driver.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true
	handles := slices.Collect(maps.Keys(d.handles))
	d.mu.Unlock()
	for _, m := range handles {
		_ = m.Close()
	}
	return nil
}

// listener is a server in a box.
type listener struct {
	h     *host
	key   string
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// Listen puts a server into the box: DialContext to this address reaches the
// listener, which works like any other.
func (d *Driver) Listen(id, network, addr string) net.Listener {
	l := &listener{h: d.h, key: listenKey(id, network, addr), conns: make(chan net.Conn), done: make(chan struct{})}
	d.h.mu.Lock()
	defer d.h.mu.Unlock()
	d.h.listeners[l.key] = l
	return l
}

func listenKey(id, network, addr string) string {
	if strings.HasPrefix(network, "tcp") {
		network = "tcp"
		if host, port, err := net.SplitHostPort(addr); err == nil && (host == "" || host == "localhost" || host == "127.0.0.1" || host == "::1") {
			addr = "localhost:" + port
		}
	}
	return id + " " + network + " " + addr
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.h.mu.Lock()
		defer l.h.mu.Unlock()
		if l.h.listeners[l.key] == l {
			delete(l.h.listeners, l.key)
		}
	})
	return nil
}

func (l *listener) Addr() net.Addr { return addrOf(l.key) }

type addrOf string

func (addrOf) Network() string  { return "fake" }
func (a addrOf) String() string { return string(a) }

func (h *host) dial(ctx context.Context, id, network, addr string) (net.Conn, error) {
	h.mu.Lock()
	l := h.listeners[listenKey(id, network, addr)]
	h.mu.Unlock()
	refused := &box.Error{Kind: box.Unavailable, Op: "dial", Object: addr, Err: syscall.ECONNREFUSED}
	if l == nil {
		if network == "unix" {
			return nil, &fs.PathError{Op: "dial", Path: addr, Err: syscall.ENOENT}
		}
		return nil, refused
	}
	here, there, err := connPair()
	if err != nil {
		return nil, err
	}
	select {
	case l.conns <- there:
		return here, nil
	case <-l.done:
		err = refused
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = here.Close()
	_ = there.Close()
	return nil, err
}
