package test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/local"
	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

const (
	recordsFile = "/root/records"
	recordSize  = 64
)

// crashRounds is how often each process is killed.
func crashRounds(t *testing.T) int {
	if v := os.Getenv("HUTCH_CRASH_ROUNDS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			t.Fatalf("HUTCH_CRASH_ROUNDS=%s: want a number from 1 on", v)
		}
		return n
	}
	switch {
	case testing.Short():
		return 5
	case os.Getenv(asVar) != "":
		return 5
	}
	return 50
}

// Each process of a box is killed again and again, at random moments: while
// the box boots, and while it writes records and a client uses it. Every time,
// after the next open, nothing of the box is left on the host, it boots again,
// and it has every record that it said was on its disk.
func TestCrash(t *testing.T) {
	everyone(t, func(t *testing.T) {
		for n, victim := range []string{"client", "keeper", "sandbox", "gofer"} {
			t.Run(victim, func(t *testing.T) {
				t.Parallel()
				c := &crasher{h: newHome(t), victim: victim, process: "runsc-" + victim, rand: rand.New(rand.NewPCG(1, uint64(n)))}
				c.id = c.h.create(t, c.h.open(t), box.Spec{Name: "b", Volumes: []box.Volume{guest(t)}}).ID()
				c.rounds(t, crashRounds(t))
			})
		}
	})
}

// The same for a virtual machine, whose process is one.
func TestCrashVM(t *testing.T) {
	realengine.Need(t, "vm")
	h := vmHome(t)
	b := h.create(t, h.open(t), box.Spec{Name: "b", Engine: "vm"})
	// Not a volume: machines with one boot their kernels themselves.
	program, err := os.ReadFile(guestProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.WriteFile(t.Context(), "/guest", program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(t.Context(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	c := &crasher{h: h, id: b.ID(), victim: "qemu", process: "qemu-system", rand: rand.New(rand.NewPCG(1, 9))}
	c.rounds(t, crashRounds(t))
}

// rounds kills the victim that often.
func (c *crasher) rounds(t *testing.T, rounds int) {
	c.h.remember(t)
	for round := range rounds {
		c.round(t, round)
		if t.Failed() {
			t.Fatalf("round %d of %d", round, rounds)
		}
	}
	b, err := c.h.open(t).Get(t.Context(), c.id)
	if err != nil {
		t.Fatal(err)
	}
	// The last kill may still be bringing the box down; what counts is the
	// boot after it.
	if err := b.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.check(t.Context(), b); err != nil {
		t.Error(err)
	}
	t.Logf("%d rounds, %d of them while booting, %d records; it was noticed within %v", rounds, c.booting, c.acked.Load()+1, c.noticed)
}

// crasher kills one kind of process of one box.
type crasher struct {
	h       *home
	id      string
	victim  string
	process string // how its command line begins
	rand    *rand.Rand
	boot    time.Duration // how long a boot takes, more or less
	booting int           // rounds in which it was killed before it wrote
	acked   atomic.Int64  // the last record known to be on the disk, plus what is in this round
	next    int           // number of the next record
	over    time.Time     // when the command of a round had ended for its client
	noticed time.Duration // the longest time until a running command's client knew
}

// check compares the records with what was acknowledged, cuts a record that
// the crash tore, and sets the next number.
func (c *crasher) check(ctx context.Context, b *box.Box) error {
	data, err := b.ReadFile(ctx, recordsFile)
	if errors.Is(err, os.ErrNotExist) && c.acked.Load() == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the records: %w", err)
	}
	whole := len(data) / recordSize
	for n := range whole {
		if got, want := string(data[n*recordSize:][:recordSize]), fmt.Sprintf("%063d\n", n); got != want {
			return fmt.Errorf("record %d is %q", n, got)
		}
	}
	if int64(whole) < c.acked.Load() {
		return fmt.Errorf("%d records were on the disk before the kill, %d are there now", c.acked.Load(), whole)
	}
	c.next = whole
	if len(data) == whole*recordSize {
		return nil
	}
	f, err := b.OpenFile(ctx, recordsFile, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = f.Truncate(int64(whole * recordSize))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// use boots the box and uses it until it goes away. It returns how the
// command that writes records ended.
func (c *crasher) use(ctx context.Context, rt *box.Runtime, acks io.Writer) (used bool, err error) {
	b, err := rt.Get(ctx, c.id)
	if err != nil {
		return false, err
	}
	if err := b.Start(ctx); err != nil {
		return false, err
	}
	if err := c.check(ctx, b); err != nil {
		var e *box.Error
		if errors.As(err, &e) && e.Kind == box.Unavailable {
			return false, err // killed meanwhile
		}
		return true, err
	}
	// What else the box is used for meanwhile may fail at any time from now on,
	// and may boot it again; what counts is that it returns.
	others, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; others.Err() == nil; n++ {
			_ = b.WriteFile(others, "/tmp/file", fmt.Appendf(nil, "%d", n), 0o600)
			_, _ = b.Exec(others, "cat", "/tmp/file")
		}
	})
	cmd := b.Command(ctx, "/guest", "records", strconv.Itoa(c.next), recordsFile)
	cmd.Stdout = acks
	err = cmd.Run()
	c.over = time.Now()
	cancel()
	wg.Wait()
	return true, err
}

// programCrash HOME BOX ACKED is the client that is killed.
func programCrash(ctx context.Context, args []string) error {
	rt, err := local.Open(ctx, local.Config{Home: args[0]})
	if err != nil {
		return err
	}
	c := &crasher{id: args[1]}
	acked, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return err
	}
	c.acked.Store(acked)
	_, err = c.use(ctx, rt, os.Stdout)
	return err
}

// round boots the box, kills the victim at some moment, and looks at what is
// left.
func (c *crasher) round(t *testing.T, n int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// A client that is killed and one that sees others die are the same
	// program; only the former needs a process.
	acks, acksW := io.Pipe()
	var client *exec.Cmd
	var rt *box.Runtime
	var ended = make(chan error, 1)
	if c.victim == "client" {
		client = c.h.other(t, "program-crash", c.id, fmt.Sprint(c.acked.Load()))
		client.Stdout = acksW
		if err := client.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			err := client.Wait()
			acksW.Close()
			ended <- err
		}()
	} else {
		var err error
		if rt, err = local.Open(ctx, local.Config{Home: c.h.dir}); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := c.use(ctx, rt, acksW)
			acksW.Close()
			ended <- err
		}()
	}
	wrote := make(chan struct{})
	var readers sync.WaitGroup
	readers.Go(func() {
		first := true
		for s := bufio.NewScanner(acks); s.Scan(); {
			// A line cut by the kill is a smaller number at most.
			if v, err := strconv.ParseInt(s.Text(), 10, 64); err == nil {
				c.acked.Store(max(c.acked.Load(), v+1))
			}
			if first {
				close(wrote)
				first = false
			}
		}
	})
	start := time.Now()
	early := n > 0 && n%4 == 0
	if early {
		c.booting++
		time.Sleep(time.Duration(c.rand.Int64N(int64(c.boot))))
	} else {
		select {
		case <-wrote:
		case err := <-ended:
			t.Errorf("the client ended by itself: %v", err)
			cancel()
			return
		case <-ctx.Done():
			t.Error("no record was written")
		}
		c.boot = time.Since(start)
		time.Sleep(time.Duration(c.rand.Int64N(int64(60 * time.Millisecond))))
	}
	if client != nil {
		if err := client.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	} else if !c.kill(t, ctx) {
		t.Errorf("there was no %s to kill", c.victim)
	}
	killed := time.Now()
	limit := time.After(20 * time.Second)
	var err error
wait:
	for {
		select {
		case err = <-ended:
			break wait
		case <-time.After(time.Second):
			// A call that did not reach the box is made again, and boots it; and
			// a machine whose template failed boots in another way.
			if pid := c.pid(); early && client == nil && pid != 0 {
				killed, limit = time.Now(), time.After(20*time.Second)
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		case <-limit:
			t.Errorf("the client does not notice that the %s died", c.victim)
			cancel()
			err = <-ended
			break wait
		}
	}
	noticed := time.Since(killed)
	if !early && client == nil {
		c.noticed = max(c.noticed, c.over.Sub(killed))
	}
	readers.Wait()
	var exit *box.ExitError
	switch {
	case client != nil:
	case err == nil:
		t.Errorf("the command ended well although the %s died", c.victim)
	case errors.As(err, &exit):
		t.Errorf("the command got a status although the %s died: %v", c.victim, err)
	case !errors.Is(err, box.ErrUnavailable) && !early:
		t.Errorf("the client's error is of kind %q: %v", box.KindOf(err), err)
	}
	if rt != nil {
		if err := rt.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if noticed > 10*time.Second {
		t.Errorf("the client noticed after %v", noticed)
	}

	next, err := local.Open(ctx, local.Config{Home: c.h.dir})
	if err != nil {
		t.Errorf("the next open: %v", err)
		return
	}
	defer next.Close()
	// Now and then the next boot comes at once; else all has to be gone first.
	if n%5 == 4 {
		return
	}
	b, err := next.Get(ctx, c.id)
	if err != nil {
		t.Error(err)
		return
	}
	if _, err := b.Wait(ctx); err != nil {
		t.Errorf("wait for the end: %v", err)
	}
	info, err := b.Info(ctx)
	if err != nil || info.State != box.Stopped && info.State != box.Failed && info.State != box.Created {
		t.Errorf("the box is %s (%s), %v", info.State, info.Reason, err)
	}
	c.h.checkNoTraces(t)
}

// kill kills the victim as soon as there is one.
func (c *crasher) kill(t *testing.T, ctx context.Context) bool {
	return eventually(20*time.Second, func() bool {
		pid := c.pid()
		if pid == 0 || ctx.Err() != nil {
			return false
		}
		err := syscall.Kill(pid, syscall.SIGKILL)
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Errorf("kill the %s: %v", c.victim, err)
		}
		return err == nil
	})
}

// pid is the victim's process id; zero while there is none.
func (c *crasher) pid() int {
	keeper := 0
	if rt, err := local.Open(context.Background(), local.Config{Home: c.h.dir}); err == nil {
		if b, err := rt.Get(context.Background(), c.id); err == nil {
			if info, err := b.Info(context.Background()); err == nil {
				keeper = info.Pid
			}
		}
		_ = rt.Close()
	}
	if keeper == 0 || c.victim == "keeper" {
		return keeper
	}
	return childNamed(keeper, c.process)
}

// childNamed finds a child of a process by the beginning of its command line.
func childNamed(parent int, name string) int {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	for _, file := range files {
		data, _ := os.ReadFile(file)
		for _, field := range strings.Fields(string(data)) {
			cmdline, _ := os.ReadFile("/proc/" + field + "/cmdline")
			if strings.HasPrefix(string(cmdline), name) {
				pid, _ := strconv.Atoi(field)
				return pid
			}
		}
	}
	return 0
}
