package box

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// MainProcess is the id of a box's main command among its commands.
const MainProcess = "main"

// ErrWaitDelay is returned by Cmd.Wait when the command ended well but a
// writer did not take its output within Cmd.WaitDelay.
var ErrWaitDelay error = &Error{Kind: Timeout, Op: "exec", Err: errors.New("WaitDelay passed before all output was taken")}

// killTime bounds both the kill that a context's end causes, and the wait for
// the last output after it. Cutting the stream, which follows, kills too.
const killTime = 2 * time.Second

// inputGrace bounds the wait for the answer to input that was under way when the
// command ended.
const inputGrace = 2 * time.Second

// Cmd is a command in a box. It is used like os/exec's Cmd: fill in fields,
// then Run, Output, or Start and Wait, once.
//
// When the context given to Box.Command ends, the command's whole process tree
// in the box is killed, children in sessions of their own included, and Wait
// returns an *Error of kind Canceled or Timeout. A command that Box.Attach
// follows, and one with Detach, is left alone instead.
//
// How it can end: nil; an *ExitError (a status other than zero, a signal, out
// of memory, not found); an *Error of kind Timeout (Timeout, or the context's
// deadline, passed), Canceled, or Unavailable (the box went away meanwhile).
type Cmd struct {
	// Args is the program and its arguments. The program is looked up in the
	// PATH of the command's environment.
	Args []string
	// Env is "KEY=value", laid over the box's environment; the last of a name
	// wins.
	Env []string
	// ClearEnv makes Env the whole environment.
	ClearEnv bool
	// Dir is the working directory; empty: the box's; relative: below it.
	Dir string
	// User is "name", "uid", "name:group" or "uid:gid"; empty: the box's.
	User string
	// TTY runs the command on a terminal of Rows and Cols (zero: 24 and 80).
	// Stdout then gets everything, and Stderr nothing.
	TTY        bool
	Rows, Cols int

	// Stdin is copied to the command's standard input until it ends; nil:
	// /dev/null. Wait does not wait for a Read that never returns: the
	// goroutine which copies ends when that Read does.
	Stdin io.Reader
	// Stdout and Stderr get the output; nil: it is dropped. The two are
	// independent: a writer that blocks does not hold up the other. What a
	// writer or pipe has not taken is kept, 1 MiB in memory and then up to
	// 1 GiB in a temporary file, before the command itself has to wait. When
	// both are the same comparable value, one goroutine at a time writes to
	// it, in the order of arrival. A writer that fails gets no more, and the
	// command gets SIGPIPE when it writes more.
	Stdout io.Writer
	Stderr io.Writer

	// Timeout kills the command's process tree after this long in the box,
	// booting not included; zero: never.
	Timeout time.Duration
	// Detach lets the command go on when this program dies, or when the
	// context ends. See Box.Attach and ID.
	Detach bool
	// WaitDelay bounds how long Wait waits for writers once the command has
	// ended; zero: without bound.
	WaitDelay time.Duration

	ctx      context.Context
	box      *Box
	attached bool               // follows a command that somebody else started
	stream   ProcessStream      // set by Attach before Start
	release  context.CancelFunc // ends the stream
	unwatch  func() bool        // of an attached Cmd that was not started
	// inputCtx is the context of input. It outlives the stream for a moment: the
	// input that made the command end was taken, and its writer is to hear so.
	inputCtx context.Context
	endInput context.CancelFunc

	out, err     *spool // the queues; the same one when the writers are
	outPipe      bool
	errPipe      bool
	input        *inputPipe
	pumps        sync.WaitGroup
	pumped       chan struct{} // closed when pumps are done
	ended        chan struct{} // closed when the stream has ended
	killed       chan struct{} // closed when the reaction to ctx's end is done
	stopWatching func() bool
	sigpiped     bool

	mu       sync.Mutex
	started  bool
	waited   bool
	status   *ExitStatus
	canceled bool // the context ended before the command did
	skipped  int64
	broken   error // why the stream ended without a status
	copyErr  error // of a writer
	inputErr error // of Stdin
}

// Command returns a Cmd that runs name with args in the box when it is started.
// No shell is involved.
func (b *Box) Command(ctx context.Context, name string, args ...string) *Cmd {
	return &Cmd{Args: append([]string{name}, args...), ctx: ctx, box: b}
}

// Shell returns a Cmd that runs script with the box's /bin/sh.
func (b *Box) Shell(ctx context.Context, script string) *Cmd {
	return b.Command(ctx, "/bin/sh", "-c", script)
}

// Result is what a command that ran to its end left.
type Result struct {
	ExitStatus
	Stdout []byte
	Stderr []byte
}

// Exec runs a command to its end and returns its status and output, whatever
// the status is. An error means that there is no such result: the box could
// not be reached, the context ended. All output is held in memory.
func (b *Box) Exec(ctx context.Context, name string, args ...string) (Result, error) {
	return b.Command(ctx, name, args...).Result()
}

// Result runs the command as Box.Exec does.
func (c *Cmd) Result() (Result, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return Result{}, c.misuse("Stdout or Stderr already set")
	}
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	var exit *ExitError
	if err != nil && !errors.As(err, &exit) {
		return Result{}, err
	}
	return Result{ExitStatus: *c.Status(), Stdout: stdout.Bytes(), Stderr: stderr.Bytes()}, nil
}

// Attach follows a command that was started before, by this or another
// program; its id is from Cmd.ID or Box.Processes. The Cmd is used like one
// that was not started yet: set Stdout and so on, then Start, Run or Output,
// which now follow instead of starting. Output that the box no longer keeps is
// counted in Cmd.Skipped. The context's end leaves the command alone. A Cmd that
// is not started after all holds its stream until the context ends.
func (b *Box) Attach(ctx context.Context, execID string, opts AttachOptions) (*Cmd, error) {
	if execID == "" {
		return nil, &Error{Kind: Invalid, Op: "attach", Object: b.Name(), Err: errors.New("no command named"), Hint: "give the id of a command"}
	}
	return b.follow(ctx, func(ctx context.Context) (ProcessStream, error) {
		return b.machine.AttachProcess(ctx, execID, opts)
	})
}

// AttachMain follows the box's main command. When the box does not run it is
// booted, and the main command does not start before its first output can be
// read.
func (b *Box) AttachMain(ctx context.Context, opts AttachOptions) (*Cmd, error) {
	return b.follow(ctx, func(ctx context.Context) (ProcessStream, error) {
		s, err := b.machine.StartMain(ctx, opts)
		if errors.Is(err, ErrConflict) {
			return b.machine.AttachProcess(ctx, MainProcess, opts)
		}
		return s, err
	})
}

func (b *Box) follow(ctx context.Context, open func(context.Context) (ProcessStream, error)) (*Cmd, error) {
	c := &Cmd{ctx: ctx, box: b, attached: true}
	if err := c.open(open); err != nil {
		return nil, b.wrap("attach", err)
	}
	// A Cmd that is never started must not keep the stream beyond ctx.
	stream, release := c.stream, c.release
	c.unwatch = context.AfterFunc(ctx, func() {
		_ = stream.Close()
		release()
	})
	return c, nil
}

// open opens the stream so that ctx can end the opening, but not the stream
// itself: its end is arranged, to have the output up to the kill.
func (c *Cmd) open(open func(context.Context) (ProcessStream, error)) error {
	if c.ctx.Err() != nil {
		return contextError(c.ctx, "exec", c.box.Name())
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.ctx))
	stop := context.AfterFunc(c.ctx, cancel)
	stream, err := open(ctx)
	if !stop() {
		if err == nil {
			_ = stream.Close()
		}
		err = contextError(c.ctx, "exec", c.box.Name())
	}
	if err != nil {
		cancel()
		return err
	}
	c.stream, c.release = stream, cancel
	return nil
}

// String returns the command's arguments, for people.
func (c *Cmd) String() string { return strings.Join(c.Args, " ") }

// ID returns the command's id in the box, empty before Start.
func (c *Cmd) ID() string {
	if c.stream == nil {
		return ""
	}
	return c.stream.ID()
}

// Status returns how the command ended; nil before Wait has returned, and when
// that is not known because the box went away.
func (c *Cmd) Status() *ExitStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.waited {
		return nil
	}
	return c.status
}

// Skipped returns how many bytes of output, before those that were delivered,
// an attached Cmd could not get any more.
func (c *Cmd) Skipped() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.skipped
}

// Run starts the command and waits for its end.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the command and returns its standard output. When Stderr is not
// set, the beginning and end of the standard error are in ExitError.Stderr.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, c.misuse("Stdout already set")
	}
	var stdout bytes.Buffer
	c.Stdout = &stdout
	var saved *ends
	if c.Stderr == nil {
		saved = &ends{}
		c.Stderr = saved
	}
	err := c.Run()
	var exit *ExitError
	if saved != nil && errors.As(err, &exit) {
		exit.Stderr = saved.bytes()
	}
	return stdout.Bytes(), err
}

// CombinedOutput runs the command and returns its standard output and standard
// error in the order of arrival.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil {
		return nil, c.misuse("Stdout already set")
	}
	if c.Stderr != nil {
		return nil, c.misuse("Stderr already set")
	}
	var both bytes.Buffer
	c.Stdout, c.Stderr = &both, &both
	err := c.Run()
	return both.Bytes(), err
}

// StdinPipe returns a pipe to the command's standard input. Write waits for
// Start; Close makes the command see the end of its input.
func (c *Cmd) StdinPipe() (io.WriteCloser, error) {
	switch {
	case c.Stdin != nil || c.input != nil:
		return nil, c.misuse("Stdin already set")
	case c.isStarted():
		return nil, c.misuse("StdinPipe after the command was started")
	}
	c.input = &inputPipe{cmd: c, ready: make(chan struct{})}
	return c.input, nil
}

// StdoutPipe returns a pipe from the command's standard output. Unlike with
// os/exec, it may be read after Wait. Close it when not reading to the end.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) {
	switch {
	case c.Stdout != nil || c.outPipe:
		return nil, c.misuse("Stdout already set")
	case c.isStarted():
		return nil, c.misuse("StdoutPipe after the command was started")
	}
	c.outPipe = true
	c.out = newSpool(spoolMemory, spoolDisk)
	return c.out, nil
}

// StderrPipe returns a pipe from the command's standard error, as StdoutPipe.
func (c *Cmd) StderrPipe() (io.ReadCloser, error) {
	switch {
	case c.Stderr != nil || c.errPipe:
		return nil, c.misuse("Stderr already set")
	case c.isStarted():
		return nil, c.misuse("StderrPipe after the command was started")
	}
	c.errPipe = true
	c.err = newSpool(spoolMemory, spoolDisk)
	return c.err, nil
}

func (c *Cmd) isStarted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.started
}

// Start starts the command, booting the box when necessary, and returns when it
// has started. A program that is not there shows in Wait, as an *ExitError with
// status 127. A Start that failed is not repeated: make a new Cmd.
func (c *Cmd) Start() error {
	c.mu.Lock()
	already := c.started
	c.started = true
	c.mu.Unlock()
	if already {
		return c.misuse("already started")
	}
	err := c.start()
	if err != nil {
		err = c.box.wrap("exec", err)
		for _, s := range []*spool{c.out, c.err} {
			if s != nil {
				s.closeWrite(err)
			}
		}
	}
	if c.input != nil {
		c.input.open(err)
	}
	return err
}

func (c *Cmd) start() error {
	if err := c.check(); err != nil {
		return err
	}
	if !c.attached {
		spec := ProcessSpec{
			Args: slices.Clone(c.Args), Env: slices.Clone(c.Env), ClearEnv: c.ClearEnv,
			Dir: c.Dir, User: c.User, TTY: c.TTY, Rows: c.Rows, Cols: c.Cols,
			Stdin: c.Stdin != nil || c.input != nil, Detach: c.Detach, Timeout: c.Timeout,
		}
		err := c.open(func(ctx context.Context) (ProcessStream, error) {
			return c.box.machine.StartProcess(ctx, spec)
		})
		if err != nil {
			return err
		}
	} else if !c.unwatch() {
		return contextError(c.ctx, "attach", c.box.Name())
	}

	c.inputCtx, c.endInput = context.WithCancel(context.WithoutCancel(c.ctx))
	c.ended, c.pumped = make(chan struct{}), make(chan struct{})
	if c.Stdout != nil {
		c.out = newSpool(spoolMemory, spoolDisk)
		c.pump(c.out, c.Stdout)
	}
	if c.Stderr != nil {
		if c.Stdout != nil && sameWriter(c.Stdout, c.Stderr) {
			c.err = c.out
		} else {
			c.err = newSpool(spoolMemory, spoolDisk)
			c.pump(c.err, c.Stderr)
		}
	}
	go func() {
		c.pumps.Wait()
		close(c.pumped)
	}()
	c.killed = make(chan struct{})
	c.stopWatching = context.AfterFunc(c.ctx, c.kill)
	go c.read()
	if c.Stdin != nil {
		go c.copyInput()
	}
	return nil
}

func (c *Cmd) check() error {
	if c.attached {
		return nil
	}
	if len(c.Args) == 0 || c.Args[0] == "" {
		return &Error{Kind: Invalid, Op: "exec", Object: c.box.Name(), Err: errNoCommand, Hint: "name a program"}
	}
	if err := checkArgs("args", c.Args); err != nil {
		return err
	}
	if err := checkEnv("env", c.Env); err != nil {
		return err
	}
	if err := checkUser(c.User); err != nil {
		return err
	}
	if strings.IndexByte(c.Dir, 0) >= 0 {
		return fieldError("dir", "remove it", "%q has a NUL byte", clip(c.Dir))
	}
	if c.Timeout < 0 {
		return fieldError("timeout", "use 0 for no timeout", "%v is negative", c.Timeout)
	}
	return checkSize(c.Rows, c.Cols)
}

func checkSize(rows, cols int) error {
	if rows < 0 || cols < 0 || rows > 0xffff || cols > 0xffff {
		return fieldError("terminal size", "use 1 to 65535 rows and columns", "%d by %d", rows, cols)
	}
	return nil
}

// pump passes one queue on to a writer.
func (c *Cmd) pump(s *spool, w io.Writer) {
	c.pumps.Go(func() {
		_, err := s.WriteTo(w)
		_ = s.Close()
		// The stream's own failure is reported as such, by Wait.
		c.mu.Lock()
		defer c.mu.Unlock()
		if err != nil && !errors.Is(err, os.ErrClosed) && (c.broken == nil || !errors.Is(err, c.broken)) && c.copyErr == nil {
			c.copyErr = err
		}
	})
}

// read follows the stream to its end.
func (c *Cmd) read() {
	defer close(c.ended)
	var broken error
	for {
		ev, err := c.stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = &Error{Kind: Unavailable, Op: "exec", Object: c.box.Name(), Err: errors.New("the command's stream ended without a status")}
			}
			broken = c.box.wrap("exec", err)
			break
		}
		if ev.Skipped > 0 {
			c.mu.Lock()
			c.skipped += ev.Skipped
			c.mu.Unlock()
		}
		if len(ev.Data) > 0 {
			c.deliver(ev)
		}
		if ev.Exit != nil {
			c.mu.Lock()
			c.status = ev.Exit
			c.mu.Unlock()
			break
		}
	}
	if broken != nil && c.ctx.Err() != nil {
		broken = contextError(c.ctx, "exec", c.box.Name())
	}
	c.mu.Lock()
	c.broken = broken
	c.mu.Unlock()
	for _, s := range []*spool{c.out, c.err} {
		if s != nil {
			s.closeWrite(broken)
		}
	}
	_ = c.stream.Close()
	c.release()
	if c.Stdin == nil && c.input == nil {
		c.endInput()
		return
	}
	time.AfterFunc(inputGrace, c.endInput)
}

// owns reports whether the command is to end with its context.
func (c *Cmd) owns() bool { return !c.attached && !c.Detach }

func (c *Cmd) deliver(ev ProcessEvent) {
	s := c.out
	if ev.Stderr {
		s = c.err
	}
	if s == nil {
		return
	}
	if s.write(ev.Data) == nil || !c.owns() || c.sigpiped {
		return
	}
	// Nobody reads this output any more. On one machine the command would
	// get SIGPIPE now; give it that.
	c.sigpiped = true
	_ = c.signal(int(syscall.SIGPIPE), false)
}

// kill reacts to the end of the context: it kills the tree and gives the
// stream a little time to bring the last output, then cuts it.
func (c *Cmd) kill() {
	defer close(c.killed)
	c.mu.Lock()
	c.canceled = c.status == nil
	c.mu.Unlock()
	for _, s := range []*spool{c.out, c.err} {
		if s != nil {
			s.makeLossy()
		}
	}
	if c.owns() {
		if c.signalWithin(killTime, int(syscall.SIGKILL), true) == nil {
			t := time.NewTimer(killTime)
			select {
			case <-c.ended:
			case <-t.C:
			}
			t.Stop()
		}
	}
	_ = c.stream.Close()
	c.release()
	c.endInput()
}

// Wait waits until the command has ended and its output is with Stdout and
// Stderr. It does not wait for pipes to be read. A process that the command left
// behind with its output open does not delay it by more than two seconds.
func (c *Cmd) Wait() error {
	c.mu.Lock()
	started, waited := c.started && c.ended != nil, c.waited
	c.mu.Unlock()
	switch {
	case waited:
		return c.misuse("Wait was already called")
	case !started:
		return c.misuse("not started")
	}
	<-c.ended
	if !c.stopWatching() {
		<-c.killed
	}
	late := c.drain()

	c.mu.Lock()
	defer c.mu.Unlock()
	c.waited = true
	if c.status == nil {
		return c.broken
	}
	if err := c.outcomeLocked(); err != nil {
		return err
	}
	switch {
	case c.copyErr != nil:
		return wrap("exec", "output", c.copyErr)
	case c.inputErr != nil:
		return wrap("exec", "input", c.inputErr)
	case late:
		return ErrWaitDelay
	}
	return nil
}

// drain waits for the writers, and reports whether it gave up on one.
func (c *Cmd) drain() (late bool) {
	if c.WaitDelay <= 0 {
		<-c.pumped
		return false
	}
	t := time.NewTimer(c.WaitDelay)
	defer t.Stop()
	select {
	case <-c.pumped:
		return false
	case <-t.C:
	}
	if c.Stdout != nil {
		_ = c.out.Close()
	}
	if c.Stderr != nil {
		_ = c.err.Close()
	}
	return true
}

func (c *Cmd) outcomeLocked() error {
	s := *c.status
	if s.Success() {
		return nil
	}
	if c.owns() && c.canceled && s.Reason != NotStarted {
		return contextError(c.ctx, "exec", c.box.Name())
	}
	switch s.Reason {
	case TimedOut:
		msg := "the command's time limit passed"
		if c.Timeout > 0 {
			msg = fmt.Sprintf("the command did not end within %v", c.Timeout)
		}
		return &Error{Kind: Timeout, Op: "exec", Object: c.box.Name(), Err: errors.New(msg)}
	}
	return &ExitError{ExitStatus: s, OutOfMemory: s.Reason == OutOfMemory}
}

// Signal sends a signal, a syscall.Signal, to the command's process group.
func (c *Cmd) Signal(sig os.Signal) error {
	s, ok := sig.(syscall.Signal)
	if !ok {
		return c.misuse("unknown kind of signal")
	}
	if !c.isRunning() {
		return c.misuse("not started, or ended already")
	}
	return c.box.wrap("signal", c.signal(int(s), false))
}

// Kill kills every process of the command's tree. Wait then reports an
// *ExitError with SIGKILL.
func (c *Cmd) Kill() error {
	if !c.isRunning() {
		return c.misuse("not started, or ended already")
	}
	return c.box.wrap("kill", c.signal(int(syscall.SIGKILL), true))
}

// Resize changes the size of the command's terminal.
func (c *Cmd) Resize(rows, cols int) error {
	if err := checkSize(rows, cols); err != nil {
		return err
	}
	if !c.isRunning() {
		return c.misuse("not started, or ended already")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), undo)
	defer cancel()
	return c.box.wrap("resize", c.box.machine.ResizeProcess(ctx, c.stream.ID(), rows, cols))
}

func (c *Cmd) isRunning() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.started && c.ended != nil && c.status == nil
}

func (c *Cmd) signal(sig int, tree bool) error { return c.signalWithin(undo, sig, tree) }

func (c *Cmd) signalWithin(most time.Duration, sig int, tree bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), most)
	defer cancel()
	return c.box.machine.SignalProcess(ctx, c.stream.ID(), sig, tree)
}

func (c *Cmd) misuse(what string) error {
	return &Error{Kind: Invalid, Op: "exec", Object: c.String(), Err: errors.New(what), Hint: "use each Cmd once"}
}

// sameWriter is a == b, except for types that cannot be compared.
func sameWriter(a, b io.Writer) bool {
	defer func() { _ = recover() }()
	return a == b
}
