package helper

import (
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
)

// KeeperRequest is the request of mode Keeper.
type KeeperRequest struct {
	Home string `json:"home"`
	ID   string `json:"id"`
	// Main: run the main command even if it has ended before. Without it, a
	// box that is woken to look at what a finished command left runs idle.
	Main bool `json:"main,omitempty"`
	// HoldMain: do not start the main command before a client follows it.
	HoldMain bool `json:"holdMain,omitempty"`
	// Secrets are the values of the box's secrets, by name, as far as the
	// starter has them. They come through memory only.
	Secrets map[string]string `json:"secrets,omitempty"`
}

// KeeperAnswer is the answer of mode Keeper, given when the box runs.
type KeeperAnswer struct {
	Kernel string `json:"kernel"`
}

// UnpackRequest is the request of mode Unpack; one field is set.
type UnpackRequest struct {
	Layers  *layer.Job `json:"layers,omitempty"`  // unpack an image's layers
	Remove  string     `json:"remove,omitempty"`  // remove a folder
	Builtin string     `json:"builtin,omitempty"` // lay the builtin image out in this folder
}

// UnpackAnswer is the answer of mode Unpack.
type UnpackAnswer struct {
	Result layer.Result `json:"result"`
}

// ProbeRequest is the request of mode Probe.
type ProbeRequest struct {
	CacheDir string `json:"cacheDir"` // what engines keep, see engine.Config
}

// ProbeAnswer is the answer of mode Probe.
type ProbeAnswer struct {
	Engines []box.EngineInfo `json:"engines"`
	Fixes   []string         `json:"fixes"`   // for each engine, the command that mends it
	Builtin string           `json:"builtin"` // key of the builtin image that the helper carries
	Version string           `json:"version"`
}
