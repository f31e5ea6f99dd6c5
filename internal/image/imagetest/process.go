package imagetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
)

// Process is a layer.Helper that starts a process for each call, which must
// call [Main] with its standard input and output: usually the test program
// itself, told so by its environment.
type Process func(ctx context.Context) *exec.Cmd

// request is what Process sends to Main: one of the two is set.
type request struct {
	Unpack *layer.Job
	Remove string
}

// reply is the answer: Kind is "" when it went well.
type reply struct {
	Result       layer.Result
	Kind         box.Kind
	Object, What string
	Hint         string
}

// Unpack implements [layer.Helper].
func (p Process) Unpack(ctx context.Context, job layer.Job) (layer.Result, error) {
	return p.call(ctx, request{Unpack: &job})
}

// Remove implements [layer.Helper].
func (p Process) Remove(ctx context.Context, dir string) error {
	_, err := p.call(ctx, request{Remove: dir})
	return err
}

func (p Process) call(ctx context.Context, req request) (layer.Result, error) {
	in, err := json.Marshal(req)
	if err != nil {
		return layer.Result{}, err
	}
	var out, said bytes.Buffer
	cmd := p(ctx)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &said
	err = cmd.Run()
	if ctx.Err() != nil {
		return layer.Result{}, ctx.Err()
	}
	if err != nil {
		return layer.Result{}, fmt.Errorf("the helper: %w: %s", err, said.String())
	}
	var r reply
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return layer.Result{}, err
	}
	if r.Kind != "" {
		return r.Result, &box.Error{Kind: r.Kind, Op: "unpack", Object: r.Object, Err: errors.New(r.What), Hint: r.Hint}
	}
	return r.Result, nil
}

// Main is the whole life of the process that Process starts.
func Main(ctx context.Context, r io.Reader, w io.Writer) error {
	var req request
	var out reply
	err := json.NewDecoder(r).Decode(&req)
	switch {
	case err != nil:
		return err
	case req.Unpack != nil:
		out.Result, err = layer.Unpack(ctx, *req.Unpack)
	default:
		err = layer.RemoveAll(req.Remove)
	}
	var e *box.Error
	switch {
	case errors.As(err, &e):
		out.Kind, out.Object, out.What, out.Hint = e.Kind, e.Object, fmt.Sprint(e.Err), e.Hint
	case err != nil:
		out.Kind, out.What = box.Internal, err.Error()
	}
	return json.NewEncoder(w).Encode(out)
}
