package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/box"
)

// App is everything a hutch command may touch of the process it runs in.
type App struct {
	// Args are the arguments without the program's name.
	Args []string
	// Environ is the environment as "KEY=value"; the last of a key wins.
	Environ []string
	// Dir is the absolute working directory, which relative host paths start
	// from. Empty: "/".
	Dir string

	// Stdin is standard input; nil: empty. A terminal is recognised when it
	// is an *os.File.
	Stdin io.Reader
	// Stdout and Stderr are standard output and error; nil: dropped.
	Stdout, Stderr io.Writer

	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Notify subscribes to signals of the process until stop is called. Nil:
	// no signal ever comes.
	Notify func(sigs ...os.Signal) (c <-chan os.Signal, stop func())

	// Open opens the runtime that a command works on. It is called at most
	// once, by the first command that needs boxes or images; Main closes it.
	Open func(ctx context.Context, opts OpenOptions) (*box.Runtime, error)

	// Models makes the model with a name of the form "provider:model", for
	// 'hutch agent', which has done nothing yet. home is as in OpenOptions,
	// getenv reads Environ. Nil: there are only scripted models.
	Models func(name, home string, getenv func(string) string) (model.Model, error)

	// Kernels opens the store of kernels below a home folder (empty: the
	// default). Nil: the kernel commands are refused.
	Kernels func(home string) (Kernels, error)

	// Version of this program; empty: "devel".
	Version string
}

// OpenOptions says which runtime to open.
type OpenOptions struct {
	// Home is Hutch's home folder, absolute; empty: the default.
	Home string
}

// Main runs one command and returns the exit status. It prints what went wrong
// as one line on app.Stderr. It returns when the command has ended and every
// goroutine of it, with two exceptions: a read of a standard input that is not
// a file, and a third SIGINT or SIGTERM, after which it waits for nothing.
func Main(ctx context.Context, app App) int {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	e := newEnv(app)
	stopSignals := e.signals.start(app.Notify, cancel)
	defer stopSignals()

	done := make(chan error, 1)
	go func() {
		defer e.guard()
		err := e.execute(ctx)
		if cerr := e.close(); err == nil {
			err = cerr
		}
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-e.signals.forced:
		err = errForced
	}
	e.term.restore()
	return e.report(ctx, err)
}

// env is an App at work: one command's state.
type env struct {
	App

	stdout  *outWriter
	term    *terminal
	signals *signals

	home       string // --home
	json       bool   // --json
	noProgress bool   // --no-progress
	failure    int    // the status of a failure that has none of its own

	runtime *box.Runtime // see open
}

func newEnv(app App) *env {
	if app.Dir == "" {
		app.Dir = "/"
	}
	if app.Stdin == nil {
		app.Stdin = bytes.NewReader(nil)
	}
	if app.Stdout == nil {
		app.Stdout = io.Discard
	}
	if app.Stderr == nil {
		app.Stderr = io.Discard
	}
	if app.Now == nil {
		app.Now = time.Now
	}
	if app.Version == "" {
		app.Version = "devel"
	}
	return &env{
		App:     app,
		stdout:  &outWriter{w: app.Stdout},
		term:    newTerminal(app.Stdin, app.Stdout),
		signals: &signals{forced: make(chan struct{})},
		failure: ExitFailure,
	}
}

// guard gives the terminal back before a panic ends the program; defer it at
// the top of every goroutine.
func (e *env) guard() {
	if r := recover(); r != nil {
		e.term.restore()
		panic(r)
	}
}

// getenv returns a variable of the caller's environment.
func (e *env) getenv(key string) (string, bool) {
	value, ok := "", false
	for _, kv := range e.Environ {
		if k, v, found := strings.Cut(kv, "="); found && k == key {
			value, ok = v, true
		}
	}
	return value, ok
}

// hostPath makes a path of the command line absolute. It keeps a trailing
// slash or "/.", which mean something to cp.
func (e *env) hostPath(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return strings.TrimSuffix(e.Dir, "/") + "/" + path
}

// open returns the runtime, opening it at the first call.
func (e *env) open(ctx context.Context) (*box.Runtime, error) {
	if e.runtime != nil {
		return e.runtime, nil
	}
	rt, err := e.Open(ctx, OpenOptions{Home: e.homeDir()})
	if err != nil {
		return nil, err
	}
	e.runtime = rt
	return rt, nil
}

// homeDir is the home that the command works on; empty: the default.
func (e *env) homeDir() string {
	home := e.home
	if home == "" {
		home, _ = e.getenv("HUTCH_HOME")
	}
	if home != "" {
		home = filepath.Clean(e.hostPath(home))
	}
	return home
}

func (e *env) close() error {
	if e.runtime == nil {
		return nil
	}
	return e.runtime.Close()
}

// find returns a box by name, id or the beginning of an id.
func (e *env) find(ctx context.Context, ref string) (*box.Box, box.Info, error) {
	if ref == "" {
		return nil, box.Info{}, usagef("BOX: must not be empty; see 'hutch ps -a' for names")
	}
	rt, err := e.open(ctx)
	if err != nil {
		return nil, box.Info{}, err
	}
	b, err := rt.Get(ctx, ref)
	if err != nil {
		return nil, box.Info{}, err
	}
	info, err := b.Info(ctx)
	return b, info, err
}

// each runs one for every ref, prints the failures, and fails at the end if
// there was one.
func (e *env) each(ctx context.Context, refs []string, one func(ref string) error) error {
	failed := false
	for _, ref := range refs {
		if err := one(ref); err != nil {
			var out *outputError
			if ctx.Err() != nil || errors.As(err, &out) || len(refs) == 1 {
				return err
			}
			e.complain(err)
			failed = true
		}
	}
	if failed {
		return &exitError{code: ExitFailure}
	}
	return nil
}

// complain prints an error as one line on standard error.
func (e *env) complain(err error) {
	fmt.Fprintf(e.Stderr, "hutch: %s\n", printable(errorText(err)))
}

// errorText is err's message. A remedy is added to a failure that has none:
// what helps is the same for every error of a kind.
func errorText(err error) string {
	msg := err.Error()
	if box.HintOf(err) != "" || strings.Contains(msg, "; ") {
		return msg
	}
	var hint string
	switch box.KindOf(err) {
	case box.NotFound:
		var e *box.Error
		if errors.As(err, &e) {
			hint = "see 'hutch ps -a' and 'hutch images' for what there is"
		} else {
			hint = "check the path"
		}
	case box.Exists:
		hint = "choose another name, or remove the other first"
	case box.Conflict:
		hint = "see 'hutch ps -a' for the box's state"
	case box.Unavailable, box.Timeout:
		hint = "try again; 'hutch doctor' tells whether this machine is able"
	case box.Exhausted:
		hint = "free some, or create the box with a higher limit"
	case box.Permission:
		hint = "check who owns it and who you are with 'hutch info'"
	case box.Unauthenticated:
		hint = "check your credentials"
	case box.Unsupported:
		hint = "'hutch doctor' tells what this machine can do"
	case box.Invalid:
		hint = "correct it and try again"
	default:
		hint = "'hutch doctor' may tell why"
	}
	return msg + "; " + hint
}

// report prints err and returns the exit status it means.
func (e *env) report(ctx context.Context, err error) int {
	var (
		out   *outputError
		sig   *signalError
		exit  *exitError
		usage *usageError
	)
	switch {
	case err == nil, errors.Is(err, errDetached):
		return ExitOK
	case errors.Is(err, errForced):
		e.complain(err)
		return ExitFailure
	case errors.As(err, &out) && errors.Is(out.err, syscall.EPIPE):
		return ExitPipe
	case errors.As(context.Cause(ctx), &sig):
		return 128 + int(sig.sig)
	case errors.As(err, &exit):
		if exit.err != nil {
			e.complain(exit.err)
		}
		return exit.code
	case errors.As(err, &usage):
		e.complain(err)
		return ExitUsage
	}
	e.complain(err)
	return e.failure
}

// outWriter is standard output; it marks its errors.
type outWriter struct{ w io.Writer }

func (w *outWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if err != nil {
		err = &outputError{err}
	}
	return n, err
}

// signals decides what a signal to this process does. Usually it cancels the
// command. While a command follows another one in a box it takes the signals
// and passes them on. The third SIGINT or SIGTERM always gives up.
type signals struct {
	forced chan struct{} // closed at the third

	mu    sync.Mutex
	taker chan os.Signal
	count int
}

// start listens until the returned function is called.
func (s *signals) start(notify func(...os.Signal) (<-chan os.Signal, func()), cancel context.CancelCauseFunc) (stop func()) {
	if notify == nil {
		return func() {}
	}
	c, unsubscribe := notify(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-quit:
				return
			case sig := <-c:
				s.deliver(sig, cancel)
			}
		}
	})
	return func() {
		unsubscribe()
		close(quit)
		wg.Wait()
	}
}

func (s *signals) deliver(sig os.Signal, cancel context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sig == syscall.SIGINT || sig == syscall.SIGTERM {
		if s.count++; s.count == 3 {
			cancel(errForced)
			close(s.forced)
			return
		}
	}
	if s.taker != nil {
		select {
		case s.taker <- sig:
		default: // sixteen wait already; one more would say nothing new
		}
		return
	}
	if n, ok := sig.(syscall.Signal); ok {
		cancel(&signalError{n})
	}
}

// forgive begins the count anew: what the signals were about is over.
func (s *signals) forgive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count = 0
}

// take hands the signals to the caller until release.
func (s *signals) take() (c <-chan os.Signal, release func()) {
	ch := make(chan os.Signal, 16)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taker = ch
	return ch, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taker = nil
	}
}
