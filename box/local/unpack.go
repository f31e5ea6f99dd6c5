package local

import (
	"context"

	"github.com/hutch-sandbox/hutch/internal/helper"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
)

// unpacker does in a helper process what touches the files of images: layers
// come from strangers, and an ordinary user's files have owners that only his
// user namespace knows. It implements layer.Helper.
type unpacker struct{ path string }

func (u unpacker) run(ctx context.Context, req helper.UnpackRequest) (layer.Result, error) {
	var answer helper.UnpackAnswer
	p, err := helper.Start(ctx, helper.Unpack, helper.Options{Path: u.path, Request: req, Answer: &answer})
	if err != nil {
		return answer.Result, err
	}
	return answer.Result, p.Wait()
}

// Unpack unpacks layers.
func (u unpacker) Unpack(ctx context.Context, job layer.Job) (layer.Result, error) {
	return u.run(ctx, helper.UnpackRequest{Layers: &job})
}

// Remove removes a folder.
func (u unpacker) Remove(ctx context.Context, dir string) error {
	_, err := u.run(ctx, helper.UnpackRequest{Remove: dir})
	return err
}

// builtin lays the builtin image out in dir.
func (u unpacker) builtin(ctx context.Context, dir string) error {
	_, err := u.run(ctx, helper.UnpackRequest{Builtin: dir})
	return err
}
