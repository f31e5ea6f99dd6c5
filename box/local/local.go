// Package local runs boxes on this machine, without a daemon.
//
//	rt, err := local.Open(ctx, local.Config{})
//
// A box is a folder in a home. Whoever first uses a box starts its keeper, a
// process of its own; everybody else connects to it. So any number of programs
// may use one home, and one box, at the same time.
//
// A program that creates boxes one after the other does not wait for each boot:
// from the second one on, the next is booted ahead; see Config.Warm.
//
// This package links no engine. It starts the helper program, which is found
// by, in this order: Config.Helper; the environment variable HUTCH_HELPER; the
// running program itself, if it called embed.Init first in main (package
// box/local/embed); a program named hutch beside the running one; hutch on the
// PATH.
package local

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
	"github.com/hutch-sandbox/hutch/internal/helper"
	"github.com/hutch-sandbox/hutch/internal/image"
)

// Config says where boxes live. The zero value is the user's own home folder
// for boxes.
type Config struct {
	// Home is the folder of the home. Empty: $HUTCH_HOME, else
	// $XDG_DATA_HOME/hutch, else ~/.local/share/hutch. It is made when
	// missing, for this user alone.
	Home string
	// Engine is used for boxes whose spec names none: "gvisor", "vm", or empty
	// for the best that works here.
	Engine string
	// Helper is the path of the helper program. Empty: see the package.
	Helper string
	// Registries is the path of a file that configures image registries, see
	// docs/images.md. Empty: registries.json in the home, where it exists.
	Registries string
	// Progress, when set, is told how pulls that Create needs are getting on.
	// It is called from several goroutines, one at a time.
	Progress func(box.PullProgress)
	// Warm is how many boxes are kept booted ahead, so that Create has one at
	// once.
	//
	// Zero: one, while it is of use. Nothing is booted ahead by Open or for
	// the first box. When two Creates in a row ask for the same kind of box
	// within a minute, one more of that kind is booted as soon as the second
	// one's own boot has ended and no other boot of this runtime is under way,
	// and again whenever a Create has adopted it. It ends when no Create asked
	// for that kind for a minute, or two in a row asked for another. Never
	// when machines are emulated ([box.IsolationEmulation]), since they cost
	// CPU time while they idle, nor for a RootFS, which may change meanwhile.
	//
	// More: that many, from the first Create on, as long as the runtime is
	// open. Less: none.
	//
	// They are of the kind created last: same image, limits, environment,
	// directory, user and network; names and labels do not matter. A box with
	// volumes, ports, links, secrets or a main command is never one of them. Each takes what an idle box
	// takes, some 60 MB; nobody sees it, and it ends when it is adopted, when
	// another kind is kept, with Close, or with this program. A box that
	// was booted ahead is Running when Create returns.
	Warm int
}

// Open opens the runtime of this machine. It tidies up after processes that
// died, and starts nothing.
func Open(ctx context.Context, cfg Config) (*box.Runtime, error) {
	d, err := newDriver(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return box.New(d), nil
}

// driver implements box.Driver.
type driver struct {
	cfg    Config
	home   *boxdir.Home
	helper string
	ids    helper.IDs
	store  *image.Store

	created, failed, commands atomic.Int64

	warm *pool // nil: none

	mu       sync.Mutex // guards the four below
	closed   bool
	machines map[*machine]struct{}        // those that hold a lease
	secrets  map[string]map[string]string // values, by box and name; for keepers that are started here
	handed   map[string]*session          // leases on adopted boxes, until their handle is made

	probeMu sync.Mutex // guards probed, across the probe
	probed  *helper.ProbeAnswer
}

func newDriver(ctx context.Context, cfg Config) (*driver, error) {
	if cfg.Home == "" {
		var err error
		if cfg.Home, err = boxdir.Default(); err != nil {
			return nil, err
		}
	}
	path, err := helper.Find(cfg.Helper)
	if err != nil {
		return nil, err
	}
	ids, err := helper.LookupIDs()
	if err != nil {
		return nil, err
	}
	home, err := boxdir.Open(cfg.Home)
	if err != nil {
		return nil, err
	}
	d := &driver{cfg: cfg, home: home, helper: path, ids: ids, machines: map[*machine]struct{}{}, handed: map[string]*session{}}
	home.Remover = func(dir string) error {
		return unpacker{path}.Remove(context.WithoutCancel(ctx), dir)
	}
	if d.store, err = d.openStore(ctx); err != nil {
		return nil, err
	}
	if _, err := home.Recover(ctx); err != nil {
		return nil, fmt.Errorf("tidy up %s: %w", home.Dir(), err)
	}
	d.warm = newPool(context.WithoutCancel(ctx), d, cfg.Warm)
	return d, nil
}

func (d *driver) openStore(ctx context.Context) (*image.Store, error) {
	registries := d.cfg.Registries
	if registries == "" {
		registries = d.home.Path("registries.json")
	}
	return image.Open(ctx, d.home.Path("images"), image.Config{
		Registries: registries,
		Helper:     unpacker{d.helper},
		UserAgent:  "hutch/" + helper.Version(),
	})
}

// box returns the folder of an id, if the driver is open.
func (d *driver) box(id string) (*boxdir.Box, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, &box.Error{Kind: box.Unavailable, Op: "runtime", Err: errors.New("it was closed"), Hint: "open it again"}
	}
	if id == "" || strings.ContainsAny(id, "/\x00") || strings.HasPrefix(id, ".") {
		return nil, &box.Error{Kind: box.NotFound, Op: "find box", Object: id, Err: errors.New("no such box")}
	}
	return d.home.Box(id), nil
}

// load reads a box's record, brought up to date if its keeper died.
func (d *driver) load(ctx context.Context, id string) (boxdir.Record, error) {
	b, err := d.box(id)
	if err != nil {
		return boxdir.Record{}, err
	}
	rec, changed, err := b.Settle(ctx)
	if err == nil && rec.Spare {
		return rec, &box.Error{Kind: box.NotFound, Op: "find box", Object: id, Err: errors.New("no such box"), Hint: "hutch ps -a lists them"}
	}
	if err == nil && changed && rec.State == box.Removed {
		return rec, &box.Error{Kind: box.NotFound, Op: "find box", Object: rec.Name, Err: errors.New("it was removed when it stopped")}
	}
	return rec, err
}

// Get finds a box.
func (d *driver) Get(ctx context.Context, ref string) (box.Info, error) {
	id, err := d.home.Find(ref)
	if err != nil {
		return box.Info{}, err
	}
	rec, err := d.load(ctx, id)
	if err != nil {
		return box.Info{}, err
	}
	return rec.Info(), nil
}

// List lists boxes, newest first.
func (d *driver) List(ctx context.Context, opts box.ListOptions) ([]box.Info, error) {
	ids, err := d.home.IDs()
	if err != nil {
		return nil, err
	}
	var infos []box.Info
	for _, id := range ids {
		rec, err := d.load(ctx, id)
		if errors.Is(err, box.ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if info := rec.Info(); selected(info, opts) {
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(a, b box.Info) int {
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return infos, nil
}

func selected(info box.Info, opts box.ListOptions) bool {
	if len(opts.States) > 0 && !slices.Contains(opts.States, info.State) {
		return false
	}
	for key, want := range opts.Labels {
		got, ok := info.Labels[key]
		if !ok || (want != "" && got != want) {
			return false
		}
	}
	return true
}

// Rename renames a box.
func (d *driver) Rename(_ context.Context, id, name string) error {
	if _, err := d.box(id); err != nil {
		return err
	}
	if err := d.home.Rename(id, name); err != nil {
		return err
	}
	d.home.Emit(box.Event{Action: "rename", ID: id, Name: name})
	return nil
}

// Remove removes a box.
func (d *driver) Remove(ctx context.Context, id string, force bool) error {
	b, err := d.box(id)
	if err != nil {
		return err
	}
	start, err := b.LockStart(ctx)
	if errors.Is(err, box.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer start.Close()
	rec, err := b.Load()
	if errors.Is(err, box.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if b.Alive() {
		if !force {
			return &box.Error{Kind: box.Conflict, Op: "remove box", Object: rec.Name, Err: errors.New("it is running"),
				Hint: fmt.Sprintf("stop it first (hutch stop %s) or use force (hutch rm -f %s)", rec.Name, rec.Name)}
		}
		if err := d.machine(id).kill(ctx); err != nil {
			return err
		}
	}
	life, err := waitLife(ctx, b)
	if errors.Is(err, box.ErrNotFound) {
		return nil // it was one that removes itself
	}
	if err != nil {
		return err
	}
	defer life.Close()
	if err := b.Sweep(ctx); err != nil {
		return err
	}
	if err := b.Delete(); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.secrets, id)
	d.mu.Unlock()
	if !rec.Spare { // nobody's box has no events
		d.home.Emit(box.Event{Action: "remove", ID: id, Name: rec.Name})
	}
	return nil
}

// Events yields what happens in the home, whichever process does it.
func (d *driver) Events(ctx context.Context) iter.Seq2[box.Event, error] { return d.home.Events(ctx) }

// Metrics counts.
func (d *driver) Metrics(ctx context.Context) (box.Metrics, error) {
	infos, err := d.List(ctx, box.ListOptions{})
	m := box.Metrics{Created: d.created.Load(), Failed: d.failed.Load(), Commands: d.commands.Load(), Boxes: len(infos)}
	for _, info := range infos {
		if info.State == box.Running {
			m.Running++
		}
	}
	m.Warm = d.warm.count()
	return m, err
}

// Close gives up every lease, and ends the boxes that were booted ahead.
func (d *driver) Close() error {
	d.warm.close()
	d.mu.Lock()
	d.closed = true
	handed := d.handed
	d.handed = nil
	held := make([]*machine, 0, len(d.machines))
	for m := range d.machines {
		held = append(held, m)
	}
	d.mu.Unlock()
	var errs []error
	for _, m := range held {
		errs = append(errs, m.Close())
	}
	for _, s := range handed {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

// Machine returns the operations of a box.
func (d *driver) Machine(id string) box.Machine {
	m := d.machine(id)
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.handed[id]; s != nil {
		delete(d.handed, id)
		m.held = s
		d.machines[m] = struct{}{}
	}
	return m
}

func (d *driver) machine(id string) *machine { return &machine{d: d, id: id} }

// register and forget keep track of who holds a lease.
func (d *driver) register(m *machine) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return &box.Error{Kind: box.Unavailable, Op: "runtime", Err: errors.New("it was closed"), Hint: "open it again"}
	}
	d.machines[m] = struct{}{}
	return nil
}

func (d *driver) forget(m *machine) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.machines, m)
}
