package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxfake"
)

// The scripts in testdata/script run hutch in this process, over a driver in
// memory. Besides testscript's own commands they have:
//
//	hutch ARG...          run it; it must succeed, or with ! fail
//	code N                the last hutch ended with this status
//	input FILE            standard input of the next hutch
//	bg NAME ARG...        run hutch in the background
//	signal NAME SIGNAL    send it a signal
//	output NAME TEXT      wait until its output has the text
//	join NAME             wait for it; its outputs and status become the last
//	spec                  print the spec of the last box that was created
//	calls                 print what was asked of the driver, then forget it
//	crash BOX             the box's kernel dies
//	await BOX STATE       wait until the box is in this state
//	nothing               no box exists
//	private FILE          it is for its owner alone
//
// $LAST is the name of the box that was created last.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireUniqueNames:  true,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			w := newWorld()
			env.Values[worldKey{}] = w
			env.Setenv("ESC", "\x1b")
			env.Defer(w.close)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"hutch": func(ts *testscript.TestScript, neg bool, args []string) {
				w := world(ts)
				var stdout, stderr bytes.Buffer
				app := w.app(ts)
				app.Args, app.Stdout, app.Stderr = args, &stdout, &stderr
				w.finish(ts, neg, Main(context.Background(), app), &stdout, &stderr)
			},
			"code": func(ts *testscript.TestScript, neg bool, args []string) {
				w := world(ts)
				if want, err := strconv.Atoi(args[0]); err != nil || (want == w.code) == neg {
					ts.Fatalf("hutch ended with %d, want %s", w.code, args[0])
				}
			},
			"input": func(ts *testscript.TestScript, _ bool, args []string) {
				world(ts).input = ts.ReadFile(args[0])
			},
			"bg":     background,
			"signal": sendSignal,
			"output": awaitOutput,
			"join": func(ts *testscript.TestScript, neg bool, args []string) {
				w := world(ts)
				job := w.job(ts, args[0])
				select {
				case code := <-job.done:
					w.finish(ts, neg, code, &job.stdout.buf, &job.stderr.buf)
				case <-time.After(10 * time.Second):
					ts.Fatalf("%s does not end", args[0])
				}
			},
			"spec": func(ts *testscript.TestScript, _ bool, _ []string) {
				data, err := json.MarshalIndent(world(ts).rec.lastSpec(), "", "  ")
				ts.Check(err)
				fmt.Fprintf(ts.Stdout(), "%s\n", data)
			},
			"calls": func(ts *testscript.TestScript, _ bool, _ []string) {
				for _, c := range world(ts).rec.take() {
					fmt.Fprintln(ts.Stdout(), c)
				}
			},
			"crash": func(ts *testscript.TestScript, _ bool, args []string) {
				w := world(ts)
				info, err := w.fake.Get(context.Background(), args[0])
				ts.Check(err)
				w.fake.Crash(info.ID)
			},
			"await": func(ts *testscript.TestScript, _ bool, args []string) {
				w := world(ts)
				poll(ts.Fatalf, args[0]+" to be "+args[1], func() bool {
					info, err := w.fake.Get(context.Background(), args[0])
					return err == nil && string(info.State) == args[1] || errors.Is(err, box.ErrNotFound) && args[1] == "removed"
				})
			},
			"private": func(ts *testscript.TestScript, _ bool, args []string) {
				fi, err := os.Stat(ts.MkAbs(args[0]))
				ts.Check(err)
				if fi.Mode().Perm() != 0o600 {
					ts.Fatalf("%s has mode %v, want 0600", args[0], fi.Mode())
				}
			},
			"nothing": func(ts *testscript.TestScript, _ bool, _ []string) {
				infos, err := world(ts).fake.List(context.Background(), box.ListOptions{})
				ts.Check(err)
				for _, info := range infos {
					ts.Fatalf("box %s is there, %s", info.Name, info.State)
				}
			},
		},
	})
}

// poll waits for something that comes by itself.
func poll(fatalf func(string, ...any), what string, ok func() bool) {
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			fatalf("waited in vain for %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

type worldKey struct{}

func world(ts *testscript.TestScript) *scriptWorld { return ts.Value(worldKey{}).(*scriptWorld) }

// scriptWorld is a machine with boxes that a script's commands share.
type scriptWorld struct {
	fake  *boxfake.Driver
	rec   *recorder
	input string
	code  int
	jobs  map[string]*job
}

func newWorld() *scriptWorld {
	return &scriptWorld{
		fake: boxfake.New(boxfake.Config{Registry: map[string]box.ImageConfig{
			"python:3":   {Entrypoint: []string{"echo", "python"}, Cmd: []string{"repl"}, Env: []string{"LANG=C"}},
			"alpine":     {Cmd: []string{"sh"}},
			"other:1":    {Cmd: []string{"true"}},
			"evil\x1b:1": {Cmd: []string{"true"}},
		}}),
		rec: &recorder{}, jobs: map[string]*job{},
	}
}

func (w *scriptWorld) close() {
	ctx := context.Background()
	for _, j := range w.jobs {
		for range 3 {
			j.signals <- syscall.SIGTERM
		}
	}
	infos, _ := w.fake.List(ctx, box.ListOptions{})
	for _, info := range infos {
		_ = w.fake.Remove(ctx, info.ID, true)
	}
	w.fake.Quiesce()
	_ = w.fake.Close()
}

func (w *scriptWorld) app(ts *testscript.TestScript) App {
	input := strings.NewReader(w.input)
	w.input = ""
	var environ []string
	for _, k := range []string{"FOO", "EMPTY", "API_KEY", "HUTCH_HOME", "HUTCH_MODEL"} {
		if v := ts.Getenv(k); v != "" {
			environ = append(environ, k+"="+v)
		}
	}
	return App{
		Environ: environ, Dir: ts.MkAbs("."), Stdin: input, Version: "v1.2.3",
		Open: func(_ context.Context, opts OpenOptions) (*box.Runtime, error) {
			w.rec.add("open %q", strings.TrimPrefix(opts.Home, ts.MkAbs(".")))
			return box.New(&recordingDriver{w.fake.Another(), w.rec, filepath.Join(ts.Getenv("WORK"), "home")}), nil
		},
	}
}

func (w *scriptWorld) finish(ts *testscript.TestScript, neg bool, code int, stdout, stderr *bytes.Buffer) {
	w.code = code
	ts.Setenv("LAST", w.rec.lastSpec().Name)
	_, _ = ts.Stdout().Write(stdout.Bytes())
	_, _ = ts.Stderr().Write(stderr.Bytes())
	if (code != 0) != neg {
		ts.Fatalf("hutch ended with %d: %s", code, stderr.String())
	}
}

// job is a hutch in the background.
type job struct {
	stdout, stderr safeBuffer
	signals        chan os.Signal
	done           chan int
}

func (w *scriptWorld) job(ts *testscript.TestScript, name string) *job {
	j := w.jobs[name]
	if j == nil {
		ts.Fatalf("no job %s", name)
	}
	return j
}

func background(ts *testscript.TestScript, _ bool, args []string) {
	w := world(ts)
	j := &job{signals: make(chan os.Signal, 16), done: make(chan int, 1)}
	w.jobs[args[0]] = j
	app := w.app(ts)
	app.Args, app.Stdout, app.Stderr = args[1:], &j.stdout, &j.stderr
	app.Notify = func(sigs ...os.Signal) (<-chan os.Signal, func()) {
		if len(sigs) == 1 { // of the window
			return nil, func() {}
		}
		return j.signals, func() {}
	}
	go func() { j.done <- Main(context.Background(), app) }()
}

func sendSignal(ts *testscript.TestScript, _ bool, args []string) {
	sig, err := parseSignal(args[1])
	ts.Check(err)
	world(ts).job(ts, args[0]).signals <- sig
}

func awaitOutput(ts *testscript.TestScript, _ bool, args []string) {
	j := world(ts).job(ts, args[0])
	poll(ts.Fatalf, fmt.Sprintf("%q in the output of %s", args[1], args[0]), func() bool {
		return strings.Contains(j.stdout.String(), args[1])
	})
}

// safeBuffer is a buffer that may be read while it is written.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// recorder remembers what was asked of a driver.
type recorder struct {
	mu    sync.Mutex
	spec  box.Spec
	calls []string
}

func (r *recorder) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

func (r *recorder) lastSpec() box.Spec {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spec
}

type recordingDriver struct {
	box.Driver
	rec  *recorder
	home string
}

// Host has a home that exists: the fake's own does not.
func (d *recordingDriver) Host(ctx context.Context) (box.HostInfo, error) {
	h, err := d.Driver.Host(ctx)
	if d.home != "" {
		h.Home = d.home
	}
	return h, err
}

func (d *recordingDriver) Create(ctx context.Context, spec box.Spec) (box.Info, error) {
	d.rec.mu.Lock()
	d.rec.spec = spec
	d.rec.mu.Unlock()
	// The fake has no host to mount from and one engine.
	spec.Volumes, spec.Platform = nil, ""
	if spec.Engine == "vm" {
		spec.Engine = ""
	}
	return d.Driver.Create(ctx, spec)
}

func (d *recordingDriver) Machine(id string) box.Machine {
	return &recordingMachine{d.Driver.Machine(id), d.rec}
}

func (d *recordingDriver) Images() box.ImageDriver { return &recordingImages{d.Driver.Images(), d.rec} }

type recordingMachine struct {
	box.Machine
	rec *recorder
}

func (m *recordingMachine) Stop(ctx context.Context, grace time.Duration) error {
	m.rec.add("stop %v", grace)
	return m.Machine.Stop(ctx, grace)
}

func (m *recordingMachine) Kill(ctx context.Context) error {
	m.rec.add("kill")
	return m.Machine.Kill(ctx)
}

func (m *recordingMachine) StartProcess(ctx context.Context, spec box.ProcessSpec) (box.ProcessStream, error) {
	data, _ := json.Marshal(spec)
	m.rec.add("exec %s", data)
	return m.Machine.StartProcess(ctx, spec)
}

func (m *recordingMachine) AttachProcess(ctx context.Context, id string, opts box.AttachOptions) (box.ProcessStream, error) {
	m.rec.add("attach %s %+v", id, opts)
	return m.Machine.AttachProcess(ctx, id, opts)
}

func (m *recordingMachine) SignalProcess(ctx context.Context, id string, sig int, tree bool) error {
	m.rec.add("signal %s %d %v", id, sig, tree)
	return m.Machine.SignalProcess(ctx, id, sig, tree)
}

func (m *recordingMachine) ResizeProcess(ctx context.Context, id string, rows, cols int) error {
	m.rec.add("resize %d %d", rows, cols)
	return m.Machine.ResizeProcess(ctx, id, rows, cols)
}

func (m *recordingMachine) Pause(ctx context.Context) error {
	m.rec.add("pause")
	return m.Machine.Pause(ctx)
}

func (m *recordingMachine) Resume(ctx context.Context) error {
	m.rec.add("resume")
	return m.Machine.Resume(ctx)
}

func (m *recordingMachine) Unpack(ctx context.Context, dir string, r io.Reader, opts box.UnpackOptions) error {
	m.rec.add("unpack %s %+v", dir, opts)
	return m.Machine.Unpack(ctx, dir, r, opts)
}

func (m *recordingMachine) Pack(ctx context.Context, path string, opts box.PackOptions) (io.ReadCloser, error) {
	m.rec.add("pack %s %+v", path, opts)
	return m.Machine.Pack(ctx, path, opts)
}

type recordingImages struct {
	box.ImageDriver
	rec *recorder
}

func (i *recordingImages) Pull(ctx context.Context, ref string, opts box.PullOptions) (box.Image, error) {
	i.rec.add("pull %s platform=%q policy=%q progress=%v", ref, opts.Platform, opts.Policy, opts.Progress != nil)
	return i.ImageDriver.Pull(ctx, ref, opts)
}

func (i *recordingImages) LoadDir(_ context.Context, dir string) ([]box.Image, error) {
	i.rec.add("loaddir %s", filepath.Base(dir))
	return []box.Image{{Names: []string{"fromdir"}}}, nil
}

func (i *recordingImages) Save(ctx context.Context, w io.Writer, format string, refs ...string) error {
	i.rec.add("save %q %v", format, refs)
	return i.ImageDriver.Save(ctx, w, format, refs...)
}

func (i *recordingImages) Import(_ context.Context, r io.Reader, name string, cfg box.ImageConfig) (box.Image, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return box.Image{}, err
	}
	text, _ := json.Marshal(cfg)
	i.rec.add("import %s %q %s", name, data, text)
	return box.Image{Names: []string{name}, Digest: "sha256:imported"}, nil
}

func (i *recordingImages) Prune(ctx context.Context, all bool) (int64, error) {
	i.rec.add("prune %v", all)
	return i.ImageDriver.Prune(ctx, all)
}

func (i *recordingImages) Debian(_ context.Context, name string, opts box.DebianOptions) (box.Image, error) {
	if opts.Progress != nil {
		fmt.Fprintln(opts.Progress, "building")
	}
	i.rec.add("debian %s %s %s %v", name, opts.Suite, opts.Mirror, opts.Include)
	return box.Image{Names: []string{name}, Digest: "sha256:debian"}, nil
}
