// Package helper starts the helper program: the hutch binary, or a program
// that made itself its own helper, in another mode.
//
// The helper is what links the engines. A program that uses boxes does not; it
// starts one helper process for each box it boots (a keeper), one for each
// image it unpacks, and now and then one that looks at the host. Each gets its
// request as JSON on standard input and answers with one JSON line on
// descriptor 3, and each lives in namespaces of its own: a mount namespace, so
// that its mounts end with it; a process namespace, so that everything it
// started ends with it, even by SIGKILL; and for an ordinary user a user
// namespace, in which it is root.
package helper

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

// Version of Hutch, set when it is linked.
var version = "0.1.0-dev"

// Version returns the version of Hutch in this program.
func Version() string { return version }

// protocol is the version of what a program and its helper say to each other.
// It changes with any change of the requests or of the keeper's services.
const protocol = "2"

// Mode is what a helper process is started for. It is its argv[0].
type Mode string

// The modes.
const (
	Keeper Mode = "hutch-keeper" // own one running box
	Unpack Mode = "hutch-unpack" // make the tree of an image
	Probe  Mode = "hutch-probe"  // find out what the host can do
	userns Mode = "hutch-userns" // wait for the id maps, then become another mode
)

// answerFD is where a helper answers; syncFD where it waits for its id maps.
const (
	answerFD = 3
	syncFD   = 4
)

// Answer is a helper's one answer.
type Answer struct {
	Error *Error          `json:"error,omitempty"`
	Data  json.RawMessage `json:"data,omitempty"`
}

// Error carries a box.Error between processes.
type Error struct {
	Kind    box.Kind `json:"kind"`
	Op      string   `json:"op"`
	Object  string   `json:"object"`
	Message string   `json:"message"`
	Hint    string   `json:"hint"`
}

func newError(err error) *Error {
	var e *box.Error
	if !errors.As(err, &e) || e.Err == nil {
		return &Error{Kind: box.KindOf(err), Message: err.Error()}
	}
	// What was wrapped around it is worth keeping.
	out := &Error{Kind: e.Kind, Op: e.Op, Object: e.Object, Message: e.Err.Error(), Hint: e.Hint}
	if prefix, ok := strings.CutSuffix(err.Error(), e.Error()); ok && prefix != "" {
		out.Op = strings.TrimSuffix(strings.TrimSpace(prefix), ":")
		out.Object, out.Message = "", strings.TrimSuffix(e.Error(), "; "+e.Hint)
	}
	return out
}

func (e *Error) box() error {
	return &box.Error{Kind: e.Kind, Op: e.Op, Object: e.Object, Err: errors.New(e.Message), Hint: e.Hint}
}

// Dispatch tells a helper process what it is: the mode, and its request. Other
// processes get "". For the mode that waits for id maps it does not return.
func Dispatch(args []string) Mode {
	if len(args) == 0 {
		return ""
	}
	switch m := Mode(args[0]); m {
	case Keeper, Unpack, Probe:
		closeInherited()
		return m
	case userns:
		becomeMode(args)
	}
	return ""
}

// closeInherited closes what the program that started this process had open
// and did not mean to pass on. A keeper would hold it for as long as the box
// lives. What this process opened itself closes on exec, which tells the two
// apart.
func closeInherited() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= answerFD {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
}

// becomeMode waits until the parent has written the id maps and starts this
// program anew: only then does it have the rights of the namespace's root.
func becomeMode(args []string) {
	gate := os.NewFile(syncFD, "id maps")
	_, err := io.ReadFull(gate, make([]byte, 1))
	gate.Close()
	if err != nil || len(args) < 2 {
		os.Exit(1) // the parent gave up
	}
	err = syscall.Exec("/proc/self/exe", args[1:], os.Environ())
	fmt.Fprintln(os.Stderr, "hutch: start in user namespace:", err)
	os.Exit(1)
}

// Request reads the request of this helper process.
func Request(v any) error {
	if len(os.Args) < 2 || os.Args[1] != protocol {
		return &box.Error{Kind: box.Unsupported, Op: "helper", Err: fmt.Errorf("it is of Hutch %s and does not fit the program that started it", version),
			Hint: "install the hutch command of the same version as the program's module, or call embed.Init in the program"}
	}
	if err := json.NewDecoder(os.Stdin).Decode(v); err != nil {
		return fmt.Errorf("helper: read request: %w", err)
	}
	// Nothing that this process starts shall have the pipe.
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	return syscall.Dup3(int(null.Fd()), 0, 0)
}

// Respond answers the program that started this process, once.
func Respond(data any, failure error) error {
	f := os.NewFile(answerFD, "answer")
	defer f.Close()
	var a Answer
	if failure != nil {
		a.Error = newError(failure)
	} else {
		raw, err := json.Marshal(data)
		if err != nil {
			return err
		}
		a.Data = raw
	}
	return json.NewEncoder(f).Encode(a)
}

// CloseOnExec keeps the answer descriptor from this process's children.
func CloseOnExec() { syscall.CloseOnExec(answerFD) }

// readAnswer waits for the answer. A helper that ends without one failed.
func readAnswer(ctx context.Context, r *os.File, out any) error {
	stop := context.AfterFunc(ctx, func() { r.Close() })
	defer stop()
	line, err := bufio.NewReader(io.LimitReader(r, 16<<20)).ReadBytes('\n')
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return errNoAnswer
	}
	var a Answer
	if err := json.Unmarshal(line, &a); err != nil {
		return fmt.Errorf("helper: answer: %w", err)
	}
	if a.Error != nil {
		return a.Error.box()
	}
	if out == nil || len(a.Data) == 0 {
		return nil
	}
	return json.Unmarshal(a.Data, out)
}

var errNoAnswer = errors.New("the helper process ended without an answer")
