// Package engine is the contract of what gives a box its kernel.
//
// An engine boots a machine from resolved values: folders, limits, mounts and
// one network link. It knows nothing of images' names, policies, boxes' states
// or clients; those belong to the keeper, which owns the one Instance of its
// process. Implementations are subpackages; package enginetest has the suite
// that each of them passes. Only package keeper names concrete engines.
//
// Life of an instance: Probe says whether the engine works here at all. Boot
// returns once the machine's kernel has started the guest agent (which may not
// answer yet) and undoes everything it did when it fails. Done closes when the
// machine is gone, however that came about; Exit says how. Kill ends it, waits
// for every process, mount and control group of the instance, and may be
// called at any time, twice, and after the machine has ended by itself.
package engine

import (
	"context"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

// Engine makes machines. Its methods may be called concurrently.
type Engine interface {
	// Name is the word users choose it by, for example "gvisor".
	Name() string
	// Form says which form of an image's content Boot wants.
	Form() Form
	// Checksums says that frames on the link must carry checksums. Without it
	// both sides trust what they share.
	Checksums() bool
	// Probe finds out whether the engine works on this host. It may be slow
	// the first time, and answers within the context's deadline. What it found
	// out it may keep in cacheDir, which is that of Config.
	Probe(ctx context.Context, cacheDir string) Report
	// Boot starts a machine.
	Boot(ctx context.Context, cfg Config) (Instance, error)
	// Restore starts a machine from what Instance.Capture left in the folder
	// from, which it only reads: any number of machines can start from it. The
	// new machine goes on where the captured one was, with the identity of cfg:
	// before Restore returns, its agent knows no other token, and its commands
	// start from cfg's environment. Cfg must have the image, limits and mounts of
	// the captured machine; its DiskDir is empty and becomes a copy of the
	// captured disk.
	Restore(ctx context.Context, cfg Config, from string) (Instance, error)
}

// Form is a form of an image's content.
type Form string

// The forms.
const (
	Tree  Form = "tree"  // an unpacked folder
	EROFS Form = "erofs" // an EROFS image, uncompressed
)

// Report is what Probe found.
type Report struct {
	Usable    bool
	Reason    string // why not usable, in words for people
	Fix       string // the command that mends it, where there is one
	Version   string
	Isolation box.Isolation
	// Accelerator is what runs a virtual machine's instructions, for example
	// "kvm"; empty for engines without virtual machines.
	Accelerator string
	// Explicit: it works, but not well enough to be chosen unasked.
	Explicit bool
	// Note is what a user of the engine should know on this host.
	Note string
	// Limits says, for each resource, what would enforce a limit here.
	Limits box.Limits
	// Pause says that Instance.Pause and Resume work; without it they return
	// an error that is errors.ErrUnsupported.
	Pause bool
	// Capture says that Instance.Capture and Engine.Restore work; without it
	// they return an error that is errors.ErrUnsupported.
	Capture bool
}

// Config is everything a machine is made of. Boot does not keep it.
type Config struct {
	// ID names the machine: 12 letters and digits, unique on the host.
	ID       string
	Hostname string

	// Image is the read-only root file system in the engine's form.
	Image string
	// DiskDir is the folder of the box's writable layer: empty at first boot,
	// as the last boot left it afterwards. It lives as long as the box.
	DiskDir string
	// CacheDir is a folder that outlives boxes and that all of them share, for
	// what can be made once.
	CacheDir string
	// StateDir is an empty private folder for this boot.
	StateDir string
	// Mounts are mounted over the root, in order.
	Mounts []Mount

	Limits Limits

	// Agent is the host path of the guest agent's binary, whose name no other
	// build of it has, and AgentConfig what the agent reads on its standard
	// input, to the end (package guest/boot).
	Agent       string
	AgentConfig []byte
	// Nobody is the same for a machine that is no box's yet; NobodyKey is equal
	// for the machines that such a one can become by adopting their AgentConfig.
	// An engine that starts boxes as copies of booted machines gives it to
	// those. Empty: the box is not to start so.
	Nobody    []byte
	NobodyKey string
	// AgentPort is where the agent listens on the link, for engines that reach
	// it there.
	AgentPort uint16

	// Link is the box's side of the network link: a SOCK_SEQPACKET socket that
	// carries one Ethernet frame per message. The keeper has the other end.
	Link *os.File
	// Net is the machine's address on the link.
	Net Net
	// DialLink connects to a port of the machine through the keeper's end.
	DialLink func(ctx context.Context, port uint16) (net.Conn, error)

	// Console receives what the machine's kernel and engine say.
	Console *os.File
}

// Net is the addressing of a link. The machine's default routes lead to the
// gateways, which see every packet and decide.
type Net struct {
	Addr     netip.Prefix
	Gateway  netip.Addr
	Addr6    netip.Prefix // zero: no IPv6
	Gateway6 netip.Addr
	MAC      net.HardwareAddr // the machine's
	PeerMAC  net.HardwareAddr // the keeper's
	MTU      int
}

// Mount is a host folder or file in the machine.
type Mount struct {
	Source   string
	Target   string
	ReadOnly bool
}

// Limits are the resources of a machine. Zero means no limit, for Memory and
// Pids as well.
type Limits struct {
	CPUs   float64
	Memory int64
	Disk   int64
	Pids   int
}

// Instance is one running machine. Its methods may be called concurrently.
type Instance interface {
	// DialGuest connects to the guest agent.
	DialGuest(ctx context.Context) (net.Conn, error)
	// Limits says what is enforced, and by what.
	Limits() box.Limits
	// Stats is what the machine uses of the host.
	Stats(ctx context.Context) (Stats, error)
	// Pause freezes the machine; Resume lets it go on. Both may be called
	// when there is nothing to do.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Capture writes the machine as it is at one moment, memory and disk, to the
	// empty folder dir, which no other user may enter, for Engine.Restore. The machine goes on afterwards, or
	// stays paused if it was. Frames that are under way on the link belong to
	// neither.
	Capture(ctx context.Context, dir string) error
	// Done is closed when the machine is gone.
	Done() <-chan struct{}
	// Exit says how it ended; only to be called after Done.
	Exit() Exit
	// Kill ends the machine and frees all it holds.
	Kill(ctx context.Context) error
	// MemoryPressure receives a value whenever the machine has come close to
	// its memory limit, so that the agent can choose a victim before the host
	// does. It is never closed; nil if the engine cannot tell.
	MemoryPressure() <-chan struct{}
}

// Stats is what a machine uses.
type Stats struct {
	CPU       time.Duration
	Memory    int64 // bytes of the host's memory
	Disk      int64 // bytes of the writable layer, -1 if unknown
	Processes int   // host processes and threads, -1 if unknown
}

// Exit is how a machine ended.
type Exit struct {
	// OutOfMemory: the host or the engine killed it at its memory limit.
	OutOfMemory bool
	// Killed: Kill ended it.
	Killed bool
	// Detail in words.
	Detail string
}
