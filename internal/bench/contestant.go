package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// contestant is something that runs commands in isolation. Methods may be
// called concurrently.
type contestant interface {
	name() string
	// how is what is done here, for the report: settings, and why.
	how() []string
	// prepare gets ready, and returns an error when this machine cannot run it.
	prepare(ctx context.Context) error
	// first makes a new one, runs echo in it and returns the time to the first
	// byte of output. Removing it again is not timed.
	first(ctx context.Context) (time.Duration, error)
	// settle waits for the end of what first has set going beside its own
	// machine, so that the next one's turn is not measured beside it.
	settle(ctx context.Context) error
	// start makes one that idles.
	start(ctx context.Context) (machine, error)
	// close removes everything, whatever state it is in.
	close(ctx context.Context) error
}

// machine is one that runs and idles.
type machine interface {
	// exec runs a command and returns its output; a status other than zero is
	// an error.
	exec(ctx context.Context, args ...string) (string, error)
	// copyIn and copyOut copy one file.
	copyIn(ctx context.Context, host, path string) error
	copyOut(ctx context.Context, path, host string) error
	// processes returns the ids of all host processes that exist for it.
	processes() ([]int, error)
	remove(ctx context.Context) error
}

// word is what first prints in the box.
const word = "ready"

// idle returns the command of a machine that does nothing.
func idle() []string { return []string{"sleep", "1000000"} }

// program is a command line tool that is started for each operation.
type program struct {
	args  []string // before those of each call
	spawn func(func() error) error
}

// command makes a process that is not in this process's group: the interrupt
// key ends the measuring, and the clean-up that follows still needs them.
func (p program) command(ctx context.Context, args ...string) *exec.Cmd {
	all := append(p.args[:len(p.args):len(p.args)], args...)
	cmd := exec.CommandContext(ctx, all[0], all[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func (p program) start(cmd *exec.Cmd) error {
	if p.spawn == nil {
		return cmd.Start()
	}
	return p.spawn(cmd.Start)
}

// run runs the tool with files as its input and output, nil for none.
func (p program) run(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
	var stderr bytes.Buffer
	cmd := p.command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, &stderr
	err := p.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return p.failure(ctx, err, stderr.String(), args)
	}
	return nil
}

// output runs the tool and returns what it printed.
func (p program) output(ctx context.Context, args ...string) (string, error) {
	var stdout bytes.Buffer
	err := p.run(ctx, nil, &stdout, args...)
	return stdout.String(), err
}

// detach runs a tool that leaves something running which keeps its standard
// output and error: they are a file, since nobody could wait for a pipe's end.
func (p program) detach(ctx context.Context, log string, args ...string) error {
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := p.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = f, f
	if err = p.start(cmd); err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		said, _ := os.ReadFile(log)
		return p.failure(ctx, err, string(said), args)
	}
	return nil
}

func (p program) failure(ctx context.Context, err error, stderr string, args []string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	last := lines[len(lines)-1]
	if len(last) > 300 {
		last = last[:300] + "…"
	}
	return fmt.Errorf("%s %s: %w: %s", p.args[0], args[0], err, last)
}

// firstByte runs the tool and returns the time until it printed the first byte
// of word.
func (p program) firstByte(ctx context.Context, args ...string) (time.Duration, error) {
	var stderr bytes.Buffer
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	cmd := p.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = w, &stderr
	start := time.Now()
	err = p.start(cmd)
	w.Close()
	if err != nil {
		return 0, err
	}
	took, got, rerr := timeFirst(start, r)
	if err := cmd.Wait(); err != nil {
		return 0, p.failure(ctx, err, stderr.String(), args)
	}
	if rerr != nil {
		return 0, rerr
	}
	return took, checkWord(got)
}

// timeFirst reads r to its end; took is the time from start to its first byte.
func timeFirst(start time.Time, r io.Reader) (took time.Duration, all string, err error) {
	br := bufio.NewReader(io.LimitReader(r, 1<<20))
	if _, err := br.Peek(1); err != nil {
		return 0, "", fmt.Errorf("no output: %w", err)
	}
	took = time.Since(start)
	data, err := io.ReadAll(br)
	return took, string(data), err
}

func checkWord(got string) error {
	if strings.TrimSpace(got) != word {
		return fmt.Errorf("the command printed %q instead of %q", got, word)
	}
	return nil
}
