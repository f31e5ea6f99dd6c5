package local

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
	"github.com/hutch-sandbox/hutch/internal/guest/client"
	"github.com/hutch-sandbox/hutch/internal/helper"
)

// machine implements box.Machine: a client of the box's keeper, which it
// starts when there is none.
type machine struct {
	d  *driver
	id string

	mu   sync.Mutex // guards held; not kept across a wait
	held *session
}

// session is a lease on a running box.
type session struct {
	client    *client.Client
	transport *http.Transport
	hold      *client.Hold
	ended     chan struct{} // closed when the box has stopped or the keeper is gone
	watcher   sync.WaitGroup
}

// errEnded says that the box was started and has ended since.
var errEnded = errors.New("the box ended at once")

// errNoKeeper says that no keeper could be reached: the call did not happen.
var errNoKeeper = errors.New("the box's keeper cannot be reached")

// connect makes a client of a keeper that may or may not be there.
func (m *machine) connect(b *boxdir.Box) (*client.Client, *http.Transport) {
	t := client.Transport(func(ctx context.Context) (net.Conn, error) {
		conn, err := b.Dial(ctx)
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", errNoKeeper, err)
		}
		return conn, err
	})
	return client.New(t, "http://keeper", client.Options{}), t
}

// lease connects to the keeper and takes a lease.
func (m *machine) lease(ctx context.Context, b *boxdir.Box) (*session, error) {
	s := &session{ended: make(chan struct{})}
	s.client, s.transport = m.connect(b)
	// The lease outlives the call that took it, but taking it does not
	// outlive the caller.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	hold, err := s.client.Hold(life, false)
	if !stop() && err == nil {
		_ = hold.Close()
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		s.transport.CloseIdleConnections()
		return nil, err
	}
	s.hold = hold
	s.watcher.Go(func() {
		defer cancel()
		_, _, _ = hold.Wait()
		close(s.ended)
	})
	return s, nil
}

func (s *session) close() error {
	err := s.hold.Close()
	s.watcher.Wait()
	if cerr := s.client.Close(); err == nil {
		err = cerr
	}
	s.transport.CloseIdleConnections()
	return err
}

func (s *session) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// awake returns a session with the running box, booting it when it does not
// run.
func (m *machine) awake(ctx context.Context) (*session, error) { return m.up(ctx, wake) }

func (m *machine) up(ctx context.Context, how bootMode) (*session, error) {
	if s := m.current(); s != nil {
		return s, nil
	}
	s, err := m.bootAsked(ctx, how)
	if err != nil {
		return nil, err
	}
	return m.keep(s)
}

// bootAsked is boot for somebody who waits for the box; spares wait for that.
func (m *machine) bootAsked(ctx context.Context, how bootMode) (*session, error) {
	booted := m.d.warm.booting()
	s, err := m.boot(ctx, how)
	booted(err == nil)
	return s, err
}

// current returns the session if the box still runs in it.
func (m *machine) current() *session {
	m.mu.Lock()
	s := m.held
	if s == nil || !s.over() {
		m.mu.Unlock()
		return s
	}
	m.held = nil
	m.mu.Unlock()
	_ = s.close()
	return nil
}

// drop ends a session whose keeper turned out to be gone, so that the next call
// boots the box.
func (m *machine) drop(s *session) {
	m.mu.Lock()
	if m.held == s {
		m.held = nil
	}
	m.mu.Unlock()
	_ = s.close() // there is nobody to tell
}

// keep makes s the session, unless another goroutine was first.
func (m *machine) keep(s *session) (*session, error) {
	if err := m.d.register(m); err != nil {
		_ = s.close()
		return nil, err
	}
	m.mu.Lock()
	old := m.held
	if old != nil && !old.over() {
		m.mu.Unlock()
		_ = s.close()
		return old, nil
	}
	m.held = s
	m.mu.Unlock()
	if old != nil {
		_ = old.close()
	}
	return s, nil
}

// bootMode says what a boot is for.
type bootMode int

const (
	wake   bootMode = iota // a call needs the box: a main command that has finished is left at that
	start                  // the box is to do its work: its main command runs
	follow                 // as start, but a running box is refused, and the command waits for a follower
)

// boot connects to the box's keeper, and starts one when there is none.
func (m *machine) boot(ctx context.Context, how bootMode) (*session, error) {
	b, err := m.d.box(m.id)
	if err != nil {
		return nil, err
	}
	wait := time.Millisecond
	for {
		if how != follow {
			s, err := m.lease(ctx, b)
			if err == nil || !errors.Is(err, errNoKeeper) && box.KindOf(err) != box.Unavailable {
				return s, err
			}
		}
		if !b.Alive() {
			s, again, err := m.startKeeper(ctx, b, how)
			if err != nil || s != nil {
				return s, err
			}
			if !again {
				continue
			}
		} else if how == follow {
			// One that has stopped has a keeper for a moment longer.
			if rec, err := b.Load(); err == nil && (rec.State == box.Running || rec.State == box.Starting) {
				return nil, &box.Error{Kind: box.Conflict, Op: "start", Object: rec.Name, Err: errors.New("it is running"), Hint: "attach to it instead"}
			}
		}
		// A keeper is coming or going.
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
		wait = min(wait*2, 20*time.Millisecond)
	}
}

// startKeeper starts a keeper, unless somebody else is about to; then again is
// true.
func (m *machine) startKeeper(ctx context.Context, b *boxdir.Box, how bootMode) (s *session, again bool, err error) {
	lock, err := b.LockStart(ctx)
	if err != nil {
		return nil, false, err
	}
	defer lock.Close()
	if b.Alive() {
		return nil, true, nil
	}
	rec, err := b.Load()
	if err != nil {
		return nil, false, err
	}
	if err := m.d.canBoot(rec); err != nil {
		return nil, false, err
	}
	log, err := openLog(b.Path("keeper.log"))
	if err != nil {
		return nil, false, err
	}
	defer log.Close()
	p, err := helper.Start(ctx, helper.Keeper, helper.Options{
		Path: m.d.helper, Log: log,
		Request: helper.KeeperRequest{Home: m.d.home.Dir(), ID: m.id, Main: how != wake, HoldMain: how == follow, Secrets: m.d.secretsOf(m.id)},
	})
	if errors.Is(err, box.ErrConflict) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	// The keeper may outlive this process; while it does not, somebody has to
	// reap it. This goroutine ends with the keeper.
	go func() { _ = p.Wait() }()
	s, err = m.lease(ctx, b)
	if err != nil && (errors.Is(err, errNoKeeper) || box.KindOf(err) == box.Unavailable) {
		// A main command that is done already.
		switch how {
		case follow:
			return nil, false, err
		case start:
			return nil, false, errEnded
		}
		return nil, true, nil
	}
	return s, false, err
}

// canBoot refuses what this user's helper could not boot.
func (d *driver) canBoot(rec boxdir.Record) error {
	if _, err := os.Stat(rec.Tree); err != nil {
		return &box.Error{Kind: box.Unavailable, Op: "start", Object: rec.Name, Err: fmt.Errorf("its image %s is gone: %w", rec.Image, err),
			Hint: "create the box anew"}
	}
	return nil
}

func openLog(path string) (*os.File, error) {
	if fi, err := os.Stat(path); err == nil && fi.Size() > 1<<20 {
		_ = os.Rename(path, path+".1")
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// Info describes the box.
func (m *machine) Info(ctx context.Context) (box.Info, error) {
	rec, err := m.d.load(ctx, m.id)
	if err != nil {
		return box.Info{}, err
	}
	return rec.Info(), nil
}

// Start boots the box.
func (m *machine) Start(ctx context.Context) error {
	_, err := m.up(ctx, start)
	if errors.Is(err, errEnded) {
		return nil
	}
	return err
}

// StartMain boots the box and follows its main command from the first byte.
func (m *machine) StartMain(ctx context.Context, opts box.AttachOptions) (box.ProcessStream, error) {
	rec, err := m.d.load(ctx, m.id)
	if err != nil {
		return nil, err
	}
	if len(rec.Main) == 0 {
		return nil, &box.Error{Kind: box.Invalid, Op: "start", Object: rec.Name, Err: errors.New("it has no main command"), Hint: "create it with a command"}
	}
	s, err := m.bootAsked(ctx, follow)
	if err != nil {
		return nil, err
	}
	if s, err = m.keep(s); err != nil {
		return nil, err
	}
	return s.client.AttachProcess(ctx, "main", opts)
}

// Stop ends the box.
func (m *machine) Stop(ctx context.Context, grace time.Duration) error {
	rec, err := m.d.load(ctx, m.id)
	if errors.Is(err, box.ErrNotFound) {
		return err
	}
	if err != nil {
		return err
	}
	if grace < 0 {
		if grace = rec.Spec.StopTimeout; grace == 0 {
			grace = box.DefaultStopTimeout
		}
	}
	return m.end(ctx, func(c *client.Client) error { return c.Stop(ctx, grace) })
}

// Kill ends the box at once.
func (m *machine) Kill(ctx context.Context) error {
	if _, err := m.d.load(ctx, m.id); err != nil {
		return err
	}
	return m.kill(ctx)
}

// kill asks the keeper, and if that does not answer, ends the keeper: its
// process namespace takes everything of the box with it.
func (m *machine) kill(ctx context.Context) error {
	ask, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	err := m.end(ask, func(c *client.Client) error { return c.Kill(ask) })
	if err == nil || ctx.Err() != nil || errors.Is(err, box.ErrNotFound) {
		return err
	}
	b, berr := m.d.box(m.id)
	if berr != nil {
		return berr
	}
	if rec, lerr := b.Load(); lerr == nil && rec.Pid > 0 && b.Alive() {
		if kerr := syscall.Kill(rec.Pid, syscall.SIGKILL); kerr != nil && !errors.Is(kerr, syscall.ESRCH) {
			return errors.Join(err, kerr)
		}
	}
	life, lerr := waitLife(ctx, b)
	if lerr != nil {
		return lerr
	}
	defer life.Close()
	_, _, err = b.SettleLocked(ctx)
	return err
}

// end runs ask against the keeper until no keeper is left.
func (m *machine) end(ctx context.Context, ask func(*client.Client) error) error {
	b, err := m.d.box(m.id)
	if err != nil {
		return err
	}
	for b.Alive() {
		c, t := m.connect(b)
		err := ask(c)
		_ = c.Close()
		t.CloseIdleConnections()
		if err != nil && box.KindOf(err) != box.Unavailable {
			return err
		}
		// Answered, or it went away; either way it now ends. A keeper that is
		// still booting has no socket yet.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
	_, err = m.d.load(ctx, m.id)
	if errors.Is(err, box.ErrNotFound) {
		return nil // it was one that removes itself
	}
	return err
}

// waitLife waits until no keeper has the box, and keeps others from it.
func waitLife(ctx context.Context, b *boxdir.Box) (*os.File, error) {
	for {
		f, ok, err := b.LockLife()
		if err != nil || ok {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// Wait waits for the box to stop.
func (m *machine) Wait(ctx context.Context) (*box.ExitStatus, error) {
	b, err := m.d.box(m.id)
	if err != nil {
		return nil, err
	}
	for {
		rec, err := m.d.load(ctx, m.id)
		if err != nil {
			return nil, err
		}
		if !b.Alive() {
			return rec.Exit, nil
		}
		c, t := m.connect(b)
		hold, err := c.Hold(ctx, true)
		if err == nil {
			var exit *box.ExitStatus
			_, exit, err = hold.Wait()
			_ = hold.Close()
			if err == nil {
				_ = c.Close()
				t.CloseIdleConnections()
				return exit, nil
			}
		}
		_ = c.Close()
		t.CloseIdleConnections()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if box.KindOf(err) != box.Unavailable {
			return nil, err
		}
		// The keeper boots, ends, or died; the record tells which.
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Pause freezes the box.
func (m *machine) Pause(ctx context.Context) error {
	return m.running(ctx, "pause", func(c *client.Client) error { return c.Pause(ctx) })
}

// Resume thaws it.
func (m *machine) Resume(ctx context.Context) error {
	return m.running(ctx, "resume", func(c *client.Client) error { return c.Resume(ctx) })
}

// running calls the keeper of a box that must run already.
func (m *machine) running(ctx context.Context, op string, call func(*client.Client) error) error {
	rec, err := m.d.load(ctx, m.id)
	if err != nil {
		return err
	}
	b, err := m.d.box(m.id)
	if err != nil {
		return err
	}
	if rec.State != box.Running {
		return &box.Error{Kind: box.Conflict, Op: op, Object: rec.Name, Err: fmt.Errorf("it is %s", rec.State), Hint: "start it first"}
	}
	c, t := m.connect(b)
	defer t.CloseIdleConnections()
	defer func() { _ = c.Close() }()
	return call(c)
}

// Stats of a running box; it does not wake one.
func (m *machine) Stats(ctx context.Context) (st box.Stats, err error) {
	err = m.running(ctx, "stats", func(c *client.Client) error {
		st, err = c.Stats(ctx)
		return err
	})
	return st, err
}

// Logs reads the box's folder; the box need not run.
func (m *machine) Logs(ctx context.Context, opts box.LogOptions) iter.Seq2[box.LogEntry, error] {
	b, err := m.d.box(m.id)
	if err != nil {
		return func(yield func(box.LogEntry, error) bool) { yield(box.LogEntry{}, err) }
	}
	return b.Logs(ctx, opts)
}

// Close gives up the lease.
func (m *machine) Close() error {
	m.d.forget(m)
	m.mu.Lock()
	s := m.held
	m.held = nil
	m.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.close()
}
