package cli

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// testApp returns an App on a world of its own.
func testApp(t *testing.T, args ...string) (App, *scriptWorld) {
	w := newWorld()
	t.Cleanup(w.close)
	return App{
		Args: args, Dir: t.TempDir(),
		Open: func(context.Context, OpenOptions) (*box.Runtime, error) {
			return box.New(&recordingDriver{Driver: w.fake.Another(), rec: w.rec}), nil
		},
	}, w
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

// finishes waits for a hutch and returns its status.
func finishes(t *testing.T, app App) <-chan int {
	t.Helper()
	done := make(chan int, 1)
	go func() { done <- Main(context.Background(), app) }()
	return done
}

func want(t *testing.T, done <-chan int, code int) {
	t.Helper()
	select {
	case got := <-done:
		if got != code {
			t.Errorf("ended with %d, want %d", got, code)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("hutch does not end")
	}
}

func TestBytesAreExact(t *testing.T) {
	t.Parallel()
	data := make([]byte, 5<<20+3)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(data)
	app, _ := testApp(t, "run", "--rm", "-i", "--", "cat")
	var out bytes.Buffer
	app.Stdin, app.Stdout = bytes.NewReader(data), &out
	want(t, finishes(t, app), ExitOK)
	if !bytes.Equal(out.Bytes(), data) {
		t.Errorf("%d bytes came back for %d, or others", out.Len(), len(data))
	}
}

// TestOneOutputIsRead reads only standard error at first, while much more than
// a pipe holds waits on standard output.
func TestOneOutputIsRead(t *testing.T) {
	t.Parallel()
	app, _ := testApp(t, "run", "--rm", "--", "sh", "-c", "head -c 3000000 /dev/zero; echo done >&2")
	outR, outW := pipe(t)
	errR, errW := pipe(t)
	app.Stdout, app.Stderr = outW, errW
	done := finishes(t, app)
	line := make([]byte, 5)
	if _, err := io.ReadFull(errR, line); err != nil || string(line) != "done\n" {
		t.Fatalf("standard error has %q, %v", line, err)
	}
	n := make(chan int64, 1)
	go func() {
		got, _ := io.Copy(io.Discard, outR)
		n <- got
	}()
	want(t, done, ExitOK)
	_ = outW.Close()
	if got := <-n; got != 3000000 {
		t.Errorf("%d bytes on standard output, want 3000000", got)
	}
}

// TestOutputsKeepTheirOrder writes both outputs to one file, as a terminal or
// 2>&1 does.
func TestOutputsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	app, _ := testApp(t, "run", "--rm", "--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo out $i; echo err $i >&2; done")
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	app.Stdout, app.Stderr = f, f
	want(t, finishes(t, app), ExitOK)
	got, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	var order strings.Builder
	for i := '1'; i <= '9'; i++ {
		order.WriteString("out " + string(i) + "\nerr " + string(i) + "\n")
	}
	if string(got) != order.String() {
		t.Errorf("the order is\n%s", got)
	}
}

// TestNobodyReads is "hutch ... | head -1": it ends quietly and leaves nothing.
func TestNobodyReads(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"run":  {"run", "--rm", "--", "yes"},
		"help": {"help"},
		"ps":   {"ps", "-a"},
		"json": {"ps", "-a", "--json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			app, w := testApp(t, args...)
			r, out := pipe(t)
			_ = r.Close()
			var stderr bytes.Buffer
			app.Stdout, app.Stderr = out, &stderr
			want(t, finishes(t, app), ExitPipe)
			if stderr.Len() > 0 {
				t.Errorf("it complains: %s", stderr.String())
			}
			infos, err := w.fake.List(t.Context(), box.ListOptions{})
			if err != nil || len(infos) > 0 {
				t.Errorf("boxes are left: %v %v", infos, err)
			}
		})
	}
}

// TestInputThatNeverEnds must not keep hutch from ending with its command.
func TestInputThatNeverEnds(t *testing.T) {
	t.Parallel()
	file, _ := pipe(t)
	other, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() })
	for name, in := range map[string]io.Reader{"file": file, "other": other} {
		app, _ := testApp(t, "run", "--rm", "-i", "--", "sh", "-c", "exit 3")
		app.Stdin = in
		t.Log(name)
		want(t, finishes(t, app), 3)
	}
}

// TestCanceledBeforeTheBoxIsThere leaves nothing.
func TestCanceledBeforeTheBoxIsThere(t *testing.T) {
	t.Parallel()
	app, w := testApp(t, "run", "--rm", "--", "true")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&signalError{2})
	if code := Main(ctx, app); code != 130 {
		t.Errorf("ended with %d, want 130", code)
	}
	infos, err := w.fake.List(t.Context(), box.ListOptions{})
	if err != nil || len(infos) > 0 {
		t.Errorf("boxes are left: %v %v", infos, err)
	}
}

// TestDriverFailures: what the driver refuses or breaks is one line, and the
// status is docker's.
func TestDriverFailures(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind box.Kind
		hint string
		args string
		code int
	}{
		{box.Unavailable, "", "run -- true", ExitHutch},
		{box.Exhausted, "", "create", ExitHutch},
		{box.Internal, "", "exec b true", ExitHutch},
		{box.Permission, "", "ps", ExitFailure},
		{box.Unsupported, "", "info", ExitFailure},
		{box.Unauthenticated, "", "images", ExitFailure},
		{box.Timeout, "", "stop b", ExitFailure},
		{box.Conflict, "", "start b", ExitFailure},
		{box.Exists, "", "pull x", ExitFailure},
		{box.NotFound, "", "rm b", ExitFailure},
		{box.Invalid, "do this", "wait b", ExitFailure},
	} {
		var stdout, stderr bytes.Buffer
		code := Main(t.Context(), App{
			Args: strings.Fields(tt.args), Stdout: &stdout, Stderr: &stderr,
			Open: func(context.Context, OpenOptions) (*box.Runtime, error) {
				return nil, &box.Error{Kind: tt.kind, Op: "open", Object: "the\nhome", Hint: tt.hint}
			},
		})
		if code != tt.code {
			t.Errorf("%s: ended with %d, want %d", tt.args, code, tt.code)
		}
		line := stderr.String()
		if !strings.HasPrefix(line, `hutch: open the\nhome: `+string(tt.kind)+"; "+tt.hint) || strings.Count(line, "\n") != 1 {
			t.Errorf("%s: not one line with a remedy: %q", tt.args, line)
		}
	}
}

func TestPanicGivesTheTerminalBack(t *testing.T) {
	t.Parallel()
	_, slave := openPTY(t)
	e := newEnv(App{Stdin: slave})
	before := mode(t, slave)
	if err := e.term.raw(); err != nil {
		t.Fatal(err)
	}
	if mode(t, slave) == before {
		t.Fatal("raw mode changes nothing")
	}
	func() {
		defer func() { _ = recover() }()
		defer e.guard()
		panic("fault")
	}()
	if mode(t, slave) != before {
		t.Error("the terminal is still raw")
	}
}
