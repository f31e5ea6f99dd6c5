// Package embed makes the calling program its own helper, so that it needs no
// hutch command beside it. It links the engines, about 40 MB.
//
//	func main() {
//		embed.Init()
//		...
//	}
package embed

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/helper"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
	"github.com/hutch-sandbox/hutch/internal/keeper"
	"github.com/hutch-sandbox/hutch/internal/payload"
	"github.com/hutch-sandbox/hutch/internal/userland/rootfs"
)

// Init must be the first statement of main. In a process that was started as a
// helper it does the helper's work and does not return; in the program itself
// it returns at once.
//
// It must come before flags are read, files opened or goroutines started: an
// engine's process gives up all its rights, and must hold nothing then. For
// the same reason the program should do little in package variables and init
// functions.
func Init() {
	keeper.RunEngineProcess(os.Args)
	switch helper.Dispatch(os.Args) {
	case helper.Keeper:
		os.Exit(keeper.Main())
	case helper.Unpack:
		os.Exit(unpack())
	case helper.Probe:
		os.Exit(probe())
	}
	helper.MarkSelf()
}

// unpack is the life of a helper that works on an image's files.
func unpack() int {
	helper.CloseOnExec()
	var req helper.UnpackRequest
	var answer helper.UnpackAnswer
	err := helper.Request(&req)
	if err == nil {
		err = helper.SetUp()
	}
	if err == nil {
		answer.Result, err = unpackOne(req)
	}
	return respond(answer, err)
}

func unpackOne(req helper.UnpackRequest) (layer.Result, error) {
	switch {
	case req.Layers != nil:
		return layer.Unpack(context.Background(), *req.Layers)
	case req.Remove != "":
		return layer.Result{}, layer.RemoveAll(req.Remove)
	case req.Builtin != "":
		var program bytes.Buffer
		if err := payload.Write(payload.Userland, &program); err != nil {
			return layer.Result{}, err
		}
		return layer.Result{}, rootfs.Write(req.Builtin, program.Bytes())
	}
	return layer.Result{}, &box.Error{Kind: box.Invalid, Op: "helper", Err: fmt.Errorf("an empty request")}
}

// probeTime bounds how long an engine may take to find out whether it works.
const probeTime = 10 * time.Second

// probe is the life of a helper that looks at the host.
func probe() int {
	helper.CloseOnExec()
	var req helper.ProbeRequest
	if err := helper.Request(&req); err != nil {
		return respond(nil, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	answer := helper.ProbeAnswer{Version: helper.Version()}
	chosen := false
	for _, e := range keeper.Engines() {
		r := e.Probe(ctx, req.CacheDir)
		info := box.EngineInfo{
			Name: e.Name(), Usable: r.Usable, Reason: r.Reason, Isolation: r.Isolation,
			Version: r.Version, Limits: r.Limits, Default: r.Usable && !r.Explicit && !chosen,
			Accelerator: r.Accelerator, Explicit: r.Explicit, Note: r.Note,
		}
		chosen = chosen || info.Default
		answer.Engines = append(answer.Engines, info)
		answer.Fixes = append(answer.Fixes, r.Fix)
	}
	var err error
	answer.Builtin, err = payload.Key(payload.Userland)
	return respond(answer, err)
}

func respond(answer any, err error) int {
	if rerr := helper.Respond(answer, err); rerr != nil || err != nil {
		return 1
	}
	return 0
}
