package box

import (
	"time"
)

// Spec says what box to create. The zero value is a box with the builtin
// image, no network and the default size.
type Spec struct {
	// Name is how people call the box: letters, digits, '_', '.', '-', at most
	// 63, starting with a letter or digit. Empty: a name is made up.
	Name string `json:"name,omitempty"`
	// Labels are free keys and values to find the box by.
	Labels map[string]string `json:"labels,omitempty"`

	// Image is an OCI image reference ("python:3.12-slim"), a local image's
	// name or digest, or "" or "builtin" for the small userland that is part
	// of Hutch. A missing image is pulled, see Pull.
	Image string `json:"image,omitempty"`
	// RootFS is a host folder used as the root file system instead of an
	// image. It is only read; writes go to the box's own layer.
	RootFS string `json:"rootfs,omitempty"`
	// Platform chooses among the platforms of an image, for example
	// "linux/arm64"; empty: this machine's.
	Platform string `json:"platform,omitempty"`
	// Pull says when to ask the registry: PullMissing (the zero value),
	// PullAlways or PullNever.
	Pull PullPolicy `json:"pull,omitempty"`

	// CPUs is how much CPU time the box may use, in CPUs: 0.5 is half of one.
	// Zero: no limit.
	CPUs float64 `json:"cpus,omitempty"`
	// Memory is the box's memory in bytes. Zero: DefaultMemory.
	Memory int64 `json:"memory,omitempty"`
	// Disk bounds the writable layer, in bytes; full means ENOSPC in the box.
	// Zero: DefaultDisk where this host can bound it, else no limit
	// (Info.Limits says which).
	Disk int64 `json:"disk,omitempty"`
	// Pids is how many processes and threads the box's commands may have
	// together. Zero: DefaultPids.
	Pids int `json:"pids,omitempty"`

	// Env is "KEY=value", laid over the image's environment, for every command.
	Env []string `json:"env,omitempty"`
	// Dir is the working directory of commands; empty: the image's, else "/".
	// A missing one is created.
	Dir string `json:"dir,omitempty"`
	// User is "name", "uid", "name:group" or "uid:gid" by the image's own
	// passwd and group files; empty: the image's, else root.
	User string `json:"user,omitempty"`
	// Hostname in the box; empty: the box's name.
	Hostname string `json:"hostname,omitempty"`

	// Entrypoint and Cmd make the main command, as docker's: the image's
	// values where nil. A box with a main command stops when it ends; its
	// status is in Info and from Wait.
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	// Main asks for a main command from the image alone. It is implied by
	// Entrypoint or Cmd. Without a main command the box idles until stopped.
	Main bool `json:"main,omitempty"`
	// TTY runs the main command on a terminal.
	TTY bool `json:"tty,omitempty"`
	// Stdin keeps the main command's standard input open for Attach.
	Stdin bool `json:"stdin,omitempty"`

	// Volumes are mounted into the box.
	Volumes []Volume `json:"volumes,omitempty"`

	// Network says what the box may reach. Zero: nothing.
	Network Network `json:"network,omitzero"`
	// Ports are published on the host while the box runs.
	Ports []Port `json:"ports,omitempty"`
	// Links open single ports of other boxes.
	Links []Link `json:"links,omitempty"`
	// Secrets are used by the box without its having them.
	Secrets []Secret `json:"secrets,omitempty"`

	// Engine is "gvisor", "vm", or "" or "auto" for the best that works here.
	Engine string `json:"engine,omitempty"`
	// Isolation is the least isolation that will do: "" (any),
	// IsolationKernel or IsolationHardware. An engine that gives less is refused.
	Isolation Isolation `json:"isolation,omitempty"`

	// Restart says what happens when the main command ends.
	Restart RestartPolicy `json:"restart,omitzero"`
	// Detach lets the box run on when nobody uses it. Without it, the box
	// stops when the last handle on it is closed or its program dies.
	Detach bool `json:"detach,omitempty"`
	// Ephemeral removes the box when it stops.
	Ephemeral bool `json:"ephemeral,omitempty"`
	// StopTimeout is how long Stop waits between asking commands to end and
	// killing them. Zero: DefaultStopTimeout. It is kept in whole milliseconds.
	StopTimeout time.Duration `json:"stopTimeout,omitempty"`
}

// Defaults of a Spec's zero values.
const (
	DefaultMemory      = 2 << 30
	DefaultDisk        = 10 << 30
	DefaultPids        = 1024
	DefaultStopTimeout = 10 * time.Second
	BuiltinImage       = "builtin"
)

// PullPolicy says when an image is asked for at its registry.
type PullPolicy string

// The pull policies.
const (
	PullMissing PullPolicy = ""       // when it is not here
	PullAlways  PullPolicy = "always" // always, to see a moved tag
	PullNever   PullPolicy = "never"  // never
)

// Isolation is how a box is kept from its host.
type Isolation string

// The isolations, weakest first.
const (
	IsolationEmulation Isolation = "emulation"               // a kernel of its own on an emulated machine: slow, and the emulator was not made to resist attacks
	IsolationKernel    Isolation = "application kernel"      // a kernel of its own in user space (gVisor)
	IsolationHardware  Isolation = "hardware virtualization" // a kernel of its own behind a hypervisor
)

// Volume is a host folder or file, or a named volume, in a box.
type Volume struct {
	// Host is an absolute host path to a folder or file that exists.
	// Exactly one of Host and Name is set.
	Host string `json:"host,omitempty"`
	// Name is a volume that Hutch keeps in its home, created on first use.
	Name string `json:"name,omitempty"`
	// Target is the absolute path in the box.
	Target string `json:"target"`
	// ReadOnly keeps the box, root in it included, from writing.
	ReadOnly bool `json:"readOnly,omitempty"`
}

// RestartPolicy says when the main command is started again.
type RestartPolicy struct {
	// When is RestartNo (the zero value), RestartOnFailure or RestartAlways.
	When RestartWhen `json:"when,omitempty"`
	// Max bounds the restarts in a row of RestartOnFailure. Zero: no bound.
	// A command that ran for ten seconds starts the count anew.
	Max int `json:"max,omitempty"`
}

// RestartWhen is the condition of a RestartPolicy.
type RestartWhen string

// The restart conditions.
const (
	RestartNo        RestartWhen = ""
	RestartOnFailure RestartWhen = "on-failure"
	RestartAlways    RestartWhen = "always"
)

// State is where a box is in its life.
type State string

// The states.
const (
	Created  State = "created"  // written down, never booted
	Starting State = "starting" // booting
	Running  State = "running"  // the guest agent answered
	Stopping State = "stopping" // commands are being ended
	Stopped  State = "stopped"  // not running; the disk is kept
	Failed   State = "failed"   // it could not boot, see Info.Reason; starting it again may work
	Removed  State = "removed"  // gone
)

// Info describes a box at one moment.
type Info struct {
	ID    string `json:"id"` // 12 lower-case letters and digits
	Name  string `json:"name"`
	State State  `json:"state"`
	// Reason says in words why the box stopped or failed.
	Reason string `json:"reason,omitempty"`

	Image  string `json:"image"`            // as it was asked for, normalised
	Digest string `json:"digest,omitempty"` // of the image's manifest

	Engine    string    `json:"engine"`
	Isolation Isolation `json:"isolation"`
	// Accelerator is what runs a virtual machine's instructions: "kvm", "hvf",
	// or "tcg" where QEMU emulates them. Empty for other engines.
	Accelerator string `json:"accelerator,omitempty"`
	Kernel      string `json:"kernel,omitempty"` // as uname -r says in the box; empty before the first boot
	Hostname    string `json:"hostname"`
	Limits      Limits `json:"limits"`

	CreatedAt time.Time `json:"createdAt"`
	StartedAt time.Time `json:"startedAt,omitzero"`
	StoppedAt time.Time `json:"stoppedAt,omitzero"`

	// Exit is how the main command ended the last time; nil without a main
	// command, or when it has not ended.
	Exit *ExitStatus `json:"exit,omitempty"`
	// Restarts counts the restarts of the main command since Start.
	Restarts int `json:"restarts,omitempty"`
	// Pid is the keeper's process id on the host; zero when not running here.
	Pid int `json:"pid,omitempty"`

	// Ports are published now, each with its host port.
	Ports []Port `json:"ports,omitempty"`

	Labels map[string]string `json:"labels,omitempty"`
	// Main is the resolved main command; nil without one.
	Main []string `json:"mainCommand,omitempty"`
	Spec Spec     `json:"spec"`
}

// Limits says, for each resource, the limit and who enforces it.
type Limits struct {
	CPUs   Limit `json:"cpus"`
	Memory Limit `json:"memory"`
	Disk   Limit `json:"disk"`
	Pids   Limit `json:"pids"`
}

// Limit is one limit. The zero value is "no limit".
type Limit struct {
	// Value in the resource's unit (CPUs, bytes, processes); zero: none.
	Value float64 `json:"value,omitempty"`
	// By is the mechanism that enforces it, for example "cgroup v1"; empty:
	// nothing does.
	By string `json:"by,omitempty"`
	// Note says what is missing, where By is empty or enforcement is partial.
	Note string `json:"note,omitempty"`
}

// Stats is what a running box uses.
type Stats struct {
	CPU         time.Duration `json:"cpu"` // CPU time of the whole box on the host since boot
	Memory      int64         `json:"memory"`
	MemoryLimit int64         `json:"memoryLimit,omitempty"`
	Disk        int64         `json:"disk"` // the writable layer
	DiskLimit   int64         `json:"diskLimit,omitempty"`
	Processes   int           `json:"processes"`
	Execs       int           `json:"execs"` // commands that run now
	Uptime      time.Duration `json:"uptime"`
	Leases      int           `json:"leases"` // handles that use the box now
	// Network counts since boot.
	Network NetStats `json:"network"`
}

// NetStats counts what went through a box's gateway since it booted.
type NetStats struct {
	Sent     int64 `json:"sent"`     // bytes from the box
	Received int64 `json:"received"` // bytes to the box
	Flows    int   `json:"flows"`    // connections that are open now
	Allowed  int64 `json:"allowed"`  // connections
	Denied   int64 `json:"denied"`   // connections
	Queries  int64 `json:"queries"`  // names answered
	Refused  int64 `json:"refused"`  // names refused
}

// ProcessInfo describes a command that a box's agent started and still knows.
type ProcessInfo struct {
	ID       string      `json:"id"`
	Pid      int         `json:"pid"`
	Args     []string    `json:"args"`
	User     string      `json:"user"`
	TTY      bool        `json:"tty,omitempty"`
	Detached bool        `json:"detached,omitempty"`
	Running  bool        `json:"running"`
	Exit     *ExitStatus `json:"exit,omitempty"`
	Started  time.Time   `json:"started"`
	Ended    time.Time   `json:"ended,omitzero"`
	Output   int64       `json:"output"` // bytes of output so far
}

// OSProcess is one process in a box, as ps shows it.
type OSProcess struct {
	Pid     int           `json:"pid"`
	PPid    int           `json:"ppid"`
	User    string        `json:"user"`
	State   string        `json:"state"`
	RSS     int64         `json:"rss"`
	CPU     time.Duration `json:"cpu"`
	Command string        `json:"command"`
	ExecID  string        `json:"execId,omitempty"`
}

// Event is something that happened to a box.
type Event struct {
	Time   time.Time         `json:"time"`
	Action string            `json:"action"` // create, start, stop, exit, oom, fail, rename, remove, restart
	ID     string            `json:"id"`
	Name   string            `json:"name"`
	Attrs  map[string]string `json:"attrs,omitempty"`
}

// ListOptions selects boxes. The zero value selects all.
type ListOptions struct {
	// Labels must all match; an empty value matches any value of the key.
	Labels map[string]string
	// States selects by state; empty: any.
	States []State
}

// LogOptions selects from the output of the main command.
type LogOptions struct {
	Follow bool      // wait for more until the box stops
	Tail   int       // only the last N lines; zero or negative: all
	Since  time.Time // only from then on; zero: all
}

// LogEntry is a piece of the main command's output, usually a line with its
// newline.
type LogEntry struct {
	Time   time.Time
	Stderr bool
	Data   []byte
}

// HostInfo is what a runtime's host can do.
type HostInfo struct {
	Version string       `json:"version"` // of Hutch
	Home    string       `json:"home"`
	OS      string       `json:"os"`
	Arch    string       `json:"arch"`
	Kernel  string       `json:"kernel"`
	CPUs    int          `json:"cpus"`
	Memory  int64        `json:"memory"`
	User    string       `json:"user"`
	Engines []EngineInfo `json:"engines"`
	Checks  []Check      `json:"checks"`
	Boxes   int          `json:"boxes"`
	Running int          `json:"running"`
	Images  int          `json:"images"`
}

// EngineInfo says whether an engine works on a host.
type EngineInfo struct {
	Name      string    `json:"name"`
	Usable    bool      `json:"usable"`
	Default   bool      `json:"default,omitempty"` // what "auto" chooses
	Reason    string    `json:"reason,omitempty"`  // why not usable
	Isolation Isolation `json:"isolation"`
	Version   string    `json:"version,omitempty"`
	// Accelerator is what would run a virtual machine's instructions.
	Accelerator string `json:"accelerator,omitempty"`
	// Explicit: the engine works here, but is only used when a Spec names it.
	Explicit bool `json:"explicit,omitempty"`
	// Note is what its user should know on this host.
	Note string `json:"note,omitempty"`
	// Limits tells what this engine can enforce here, and how.
	Limits Limits `json:"limits"`
}

// Check is one finding about a host.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // the command that mends it
}

// Metrics counts what a runtime of this process did since it was opened,
// and what there is now.
type Metrics struct {
	Created  int64 `json:"created"`
	Failed   int64 `json:"failed"`
	Commands int64 `json:"commands"`
	Boxes    int   `json:"boxes"`
	Running  int   `json:"running"`
	// Warm is how many booted boxes wait for a Create; see local.Config.
	Warm int `json:"warm"`
}
