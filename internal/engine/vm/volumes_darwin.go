package vm

import (
	"errors"
	"os"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/vmboot"
	"github.com/hutch-sandbox/hutch/internal/x/console"
)

// volumes is what serves a machine's volumes. On macOS nothing can.
type volumes struct {
	socket *os.File
	seen   string
	mounts []vmboot.Mount
}

// startVolumes refuses volumes: QEMU for macOS has no virtio-fs.
func startVolumes(_ *layout, _ string, mounts []engine.Mount, _ *console.Log) (*volumes, error) {
	if len(mounts) > 0 {
		return nil, &box.Error{Kind: box.Unsupported, Op: "boot", Object: "volumes", Err: errors.New("QEMU on macOS cannot share folders with a machine"), Hint: "copy files in with hutch cp"}
	}
	return &volumes{}, nil
}

func (*volumes) end() {}
