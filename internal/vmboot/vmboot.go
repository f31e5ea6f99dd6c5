// Package vmboot is what the vm engine and the first program of its machines
// say to each other before and beside the guest protocol.
//
// They have a virtio-serial port called Port. The machine's kernel starts the
// guest agent as /init of an initramfs; it loads the kernel's modules, opens
// the port and sends a Report with Stage Loaded. The engine answers with a
// Plan: what the machine is made of. The machine mounts and configures it, and
// reports Ready, or what failed. A machine that was captured before it got its
// plan is a template: whoever restores it sends the plan.
//
// Later the engine may send an Adopt: the machine is a copy of another one and
// takes an identity of its own. It reports Ready again.
//
// Each message is one frame: its length in four bytes, big-endian, and JSON.
// The engine asks, the machine answers; there is never more than one question
// open. Neither trusts the other: lengths are bounded.
//
// The package imports only the standard library and is shared by both sides.
package vmboot

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Port is the name of the virtio-serial port.
const Port = "hutch.boot"

// Serial numbers of the machine's disks, by which it tells them apart.
const (
	SerialImage   = "hutch-image"   // the image, EROFS, read-only
	SerialDisk    = "hutch-disk"    // the box's own layer, ext4
	SerialModules = "hutch-modules" // the kernel's modules, EROFS, read-only
)

// VolumesTag is the name of the virtio-fs device that has all volumes.
const VolumesTag = "hutch-volumes"

// ModulesOrder is the file of the initramfs that lists the kernel modules to
// load, one path a line.
const ModulesOrder = "/modules/order"

// Limits of a frame's length.
const (
	// MaxPlan bounds what the engine sends: the agent's configuration may be
	// 16 MiB, and grows by a third.
	MaxPlan = 24 << 20
	// MaxReport bounds what the machine sends.
	MaxReport = 64 << 10
)

// Stage is how far a machine has come.
type Stage string

// The stages.
const (
	Loaded Stage = "loaded" // the kernel's modules are loaded; it waits for its plan
	Ready  Stage = "ready"  // the plan, or the new identity, is in force
	Failed Stage = "failed" // Report.Error says why
)

// Report is what the machine says.
type Report struct {
	Stage   Stage  `json:"stage"`
	Error   string `json:"error,omitempty"`
	Release string `json:"release,omitempty"` // of the kernel
}

// Message is what the engine says; one field is set.
type Message struct {
	Plan  *Plan  `json:"plan,omitempty"`
	Adopt *Adopt `json:"adopt,omitempty"`
	// Clock is the host's time in nanoseconds since 1970, for a machine that
	// stood still. It may also be sent before the plan.
	Clock int64 `json:"clock,omitempty"`
}

// Plan is everything that a machine is made of.
type Plan struct {
	Identity
	Net    Net     `json:"net"`
	Mounts []Mount `json:"mounts,omitempty"`
}

// Adopt makes a restored machine one of its own.
type Adopt struct {
	Identity
}

// Identity is what no two machines share.
type Identity struct {
	// Time is the host's clock in nanoseconds since 1970.
	Time int64 `json:"time"`
	// Entropy seeds the kernel's random numbers.
	Entropy []byte `json:"entropy"`
	// Agent is the guest agent's configuration, as package guest/boot writes it.
	Agent []byte `json:"agent"`
}

// Net is the machine's one interface. Its default routes lead to the gateways.
type Net struct {
	Address  string `json:"address"` // with the length of its prefix
	Gateway  string `json:"gateway"`
	Address6 string `json:"address6,omitempty"` // of IPv6; empty: none
	Gateway6 string `json:"gateway6,omitempty"`
	MAC      string `json:"mac"`
	PeerMAC  string `json:"peerMAC"`
	MTU      int    `json:"mtu"`
}

// Mount is a part of the volumes' file system, in the box.
type Mount struct {
	Name     string `json:"name"` // below the root of the volumes' file system
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	File     bool   `json:"file,omitempty"` // a single file
}

// Write writes v as one frame.
func Write(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("boot message: %w", err)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(data)), uint32(len(data)))
	if _, err := w.Write(append(frame, data...)); err != nil {
		return fmt.Errorf("boot message: %w", err)
	}
	return nil
}

// ErrTooLong says that the other side announced a frame beyond the bound.
var ErrTooLong = errors.New("boot message: longer than allowed")

// Read reads one frame of at most limit bytes into v.
func Read(r io.Reader, limit int, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return fmt.Errorf("boot message: %w", err)
	}
	n := binary.BigEndian.Uint32(head[:])
	if int64(n) > int64(limit) {
		return ErrTooLong
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return fmt.Errorf("boot message: %w", err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("boot message: %w", err)
	}
	return nil
}
