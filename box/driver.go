package box

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"net"
	"time"
)

// Driver is what a Runtime stands on: boxes on this machine, boxes on a
// server, or boxes in memory for tests. Package box/boxtest has the suite that
// every driver passes. Callers use Runtime and Box, which check arguments and
// offer the comfortable forms; a driver may rely on that.
//
// All methods may be called concurrently. Errors are as the package says. A
// context given to a method that returns a stream, an open file, or a reader
// bounds that too, except for Dial, where it bounds only the dialing.
type Driver interface {
	// Create checks spec whole, makes the box durable and returns it in state
	// Created, or Running where it was booted ahead. It does not boot it.
	// Half-made boxes do not stay behind.
	Create(ctx context.Context, spec Spec) (Info, error)
	// Get finds a box by id, unique beginning of an id (at least 4
	// characters) or name.
	Get(ctx context.Context, ref string) (Info, error)
	// List returns boxes, newest first.
	List(ctx context.Context, opts ListOptions) ([]Info, error)
	// Remove deletes the box and its disk. A running box is refused
	// (Conflict) unless force. A box that is not there is no error.
	Remove(ctx context.Context, id string, force bool) error
	Rename(ctx context.Context, id, name string) error
	// Machine returns the box's operations. It does no I/O and never fails; a
	// box that does not exist shows in the first operation.
	Machine(id string) Machine
	Images() ImageDriver
	// Events yields what happens from now on, until ctx ends.
	Events(ctx context.Context) iter.Seq2[Event, error]
	Host(ctx context.Context) (HostInfo, error)
	Metrics(ctx context.Context) (Metrics, error)
	// Close gives up everything that this driver holds. Boxes that are not
	// detached and that nobody else uses stop. It may be called twice.
	Close() error
}

// Machine is one box seen from a driver. Every method from StartProcess on
// boots the box first when it does not run (it "wakes" it), and takes a lease
// that lasts until Close.
type Machine interface {
	Info(ctx context.Context) (Info, error)
	// Start boots the box and takes a lease. A running box is no error.
	Start(ctx context.Context) error
	// StartMain is Start for a caller that wants all of the main command's
	// output: the main command is not started before the returned stream
	// reads. It refuses a box that runs already (Conflict) or that has no
	// main command (Invalid).
	StartMain(ctx context.Context, opts AttachOptions) (ProcessStream, error)
	// Stop ends commands (TERM, KILL after grace), then the box. Negative
	// grace: the spec's. A stopped box is no error.
	Stop(ctx context.Context, grace time.Duration) error
	// Kill ends the box at once.
	Kill(ctx context.Context) error
	// Wait waits until the box has stopped and returns its main command's
	// status (nil without one).
	Wait(ctx context.Context) (*ExitStatus, error)
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	Logs(ctx context.Context, opts LogOptions) iter.Seq2[LogEntry, error]
	// Close gives up the lease. The handle may be used again afterwards.
	Close() error

	NetworkMachine

	StartProcess(ctx context.Context, spec ProcessSpec) (ProcessStream, error)
	AttachProcess(ctx context.Context, id string, opts AttachOptions) (ProcessStream, error)
	// WriteInput writes to a command's input; eof closes it after data. A
	// negative offset means the input's end, whoever else writes to it; else
	// it is the number of bytes written before, and a repeated call does no
	// harm. It returns when the command has the data, or with EPIPE when the
	// input is closed or the command has ended, at once.
	WriteInput(ctx context.Context, id string, offset int64, data []byte, eof bool) error
	SignalProcess(ctx context.Context, id string, sig int, tree bool) error
	ResizeProcess(ctx context.Context, id string, rows, cols int) error
	Processes(ctx context.Context) ([]ProcessInfo, error)
	Top(ctx context.Context) ([]OSProcess, error)
	Stats(ctx context.Context) (Stats, error)

	Stat(ctx context.Context, path string, follow bool) (FileInfo, error)
	ReadDir(ctx context.Context, path string) ([]FileInfo, error)
	// ReadFile streams a file from offset; length 0 means to the end. The
	// info is that of the open file.
	ReadFile(ctx context.Context, path string, offset, length int64) (FileInfo, io.ReadCloser, error)
	WriteFile(ctx context.Context, path string, r io.Reader, opts WriteOptions) (FileInfo, error)
	OpenFile(ctx context.Context, path string, flag int, perm fs.FileMode) (FileHandle, error)
	Mkdir(ctx context.Context, path string, perm fs.FileMode, parents bool) error
	RemoveFile(ctx context.Context, path string, recursive bool) error
	RenameFile(ctx context.Context, oldPath, newPath string) error
	Chmod(ctx context.Context, path string, mode fs.FileMode) error
	// Chown changes owners; -1 leaves one.
	Chown(ctx context.Context, path string, uid, gid int, follow bool) error
	Chtimes(ctx context.Context, path string, atime, mtime time.Time) error
	Symlink(ctx context.Context, target, path string) error
	Link(ctx context.Context, oldPath, newPath string) error
	Readlink(ctx context.Context, path string) (string, error)
	Realpath(ctx context.Context, path string) (string, error)
	// Watch yields changes below path, until ctx ends. It returns when the
	// watch is in place.
	Watch(ctx context.Context, path string, recursive bool) (iter.Seq2[FileEvent, error], error)
	// Pack returns a tar of path.
	Pack(ctx context.Context, path string, opts PackOptions) (io.ReadCloser, error)
	// Unpack writes a tar below an existing directory.
	Unpack(ctx context.Context, dir string, tar io.Reader, opts UnpackOptions) error

	// Dial connects to a server in the box. The connection has CloseWrite.
	Dial(ctx context.Context, network, addr string) (net.Conn, error)
}

// ProcessSpec is a command for Machine.StartProcess.
type ProcessSpec struct {
	ID       string // chosen by the caller; empty: by the box
	Args     []string
	Env      []string // laid over the box's environment
	ClearEnv bool     // use Env alone
	Dir      string
	User     string
	TTY      bool
	Rows     int
	Cols     int
	Stdin    bool // keep the input open for WriteInput; else /dev/null
	Detach   bool
	Timeout  time.Duration
}

// AttachOptions says where to begin and when to end.
type AttachOptions struct {
	Offset   int64 // in both streams together; zero: the oldest byte kept
	NoFollow bool  // end with what is there
}

// ProcessStream follows one command. Recv and Close may be called from
// different goroutines, Recv from one at a time.
type ProcessStream interface {
	// ID is the command's id.
	ID() string
	// Recv returns the next event. After the event with Exit it returns
	// io.EOF; io.EOF never stands for anything else. Data is the caller's.
	Recv() (ProcessEvent, error)
	// Close stops following. On the stream that started a command which is
	// not detached and has not ended, it kills the command's tree. It waits
	// for nothing in the box and may be called twice.
	Close() error
}

// ProcessEvent is one event: output, a gap, or the end.
type ProcessEvent struct {
	Stderr  bool
	Data    []byte
	Skipped int64 // bytes before this point that are no longer kept
	Exit    *ExitStatus
}

// FileInfo describes a file in a box.
type FileInfo struct {
	FileName string
	FileSize int64
	FileMode fs.FileMode
	Modified time.Time
	UID, GID int
	User     string // names where the box knows them
	Group    string
	Inode    uint64
	Links    uint64
	Target   string // of a symbolic link that was not followed
	// RealPath is set by ReadStream only: the absolute path, without symbolic
	// links, of the file that was opened. Empty if it was moved or removed
	// meanwhile.
	RealPath string
}

// FileHandle is an open file in a box.
type FileHandle interface {
	io.ReaderAt
	io.WriterAt
	// Append writes at the end; only for files opened with os.O_APPEND.
	Append(p []byte) (int, error)
	Stat() (FileInfo, error)
	Truncate(size int64) error
	Sync() error
	Close() error
}

// WriteOptions says how Machine.WriteFile writes.
type WriteOptions struct {
	Perm      fs.FileMode // for a new file; zero: 0644. An existing file keeps its mode and owner.
	Atomic    bool        // a reader sees the old content or the new
	Append    bool
	Exclusive bool // refuse an existing file
	Parents   bool // create missing parent directories
	Sync      bool
	User      string // owner of a new file; empty: the box's user
}

// FileEvent is a change that Watch saw.
type FileEvent struct {
	Path string
	Op   string // create, write, remove, rename, chmod, overflow (events were lost)
}

// PackOptions says how a tar is made.
type PackOptions struct {
	// Name of the top entry; empty: the path's base name; ".": the content of
	// a directory without a top entry of its own.
	Name string
	// Follow a symbolic link at the path itself.
	Follow bool
}

// UnpackOptions says how a tar is unpacked.
type UnpackOptions struct {
	KeepOwner      bool   // keep the tar's numeric owners
	User           string // owner otherwise; empty: the box's user
	NoOverwriteDir bool   // refuse to replace a directory by a file or the reverse
}

// ImageDriver is the images of a runtime.
type ImageDriver interface {
	Pull(ctx context.Context, ref string, opts PullOptions) (Image, error)
	Get(ctx context.Context, ref string) (Image, error)
	List(ctx context.Context) ([]Image, error)
	// Load reads a docker archive, an OCI archive (both also gzip or zstd).
	Load(ctx context.Context, r io.Reader) ([]Image, error)
	// LoadDir reads an OCI layout folder on the runtime's host.
	LoadDir(ctx context.Context, dir string) ([]Image, error)
	// Save writes an archive; format is "oci" (also "") or "docker".
	Save(ctx context.Context, w io.Writer, format string, refs ...string) error
	// Import makes an image of a root file system tar (also gzip or zstd).
	Import(ctx context.Context, r io.Reader, name string, cfg ImageConfig) (Image, error)
	Tag(ctx context.Context, ref, name string) error
	// Remove removes a name, and the image with its last name. An image that
	// a box uses is refused (Conflict).
	Remove(ctx context.Context, ref string) error
	// Prune removes what no name and no box uses and returns the bytes freed.
	// all: also named images that no box uses.
	Prune(ctx context.Context, all bool) (int64, error)
	Debian(ctx context.Context, name string, opts DebianOptions) (Image, error)
}

// Image is an image in a runtime's store.
type Image struct {
	Names    []string    `json:"names"`
	Digest   string      `json:"digest"` // of the manifest
	Platform string      `json:"platform"`
	Size     int64       `json:"size"` // of the compressed blobs, in bytes
	Created  time.Time   `json:"created,omitzero"`
	Layers   int         `json:"layers"`
	Config   ImageConfig `json:"config"`
}

// ImageConfig is the part of an image's configuration that boxes follow.
type ImageConfig struct {
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Env        []string          `json:"env,omitempty"`
	Dir        string            `json:"dir,omitempty"`
	User       string            `json:"user,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	StopSignal string            `json:"stopSignal,omitempty"`
}

// PullOptions are for ImageDriver.Pull.
type PullOptions struct {
	Platform string     // empty: this machine's
	Policy   PullPolicy // PullMissing answers from the store where it can
	// Progress, when set, is called from several goroutines, one at a time,
	// often.
	Progress func(PullProgress)
}

// PullProgress is the state of one layer.
type PullProgress struct {
	Layer string // its digest
	Phase string // waiting, downloading, done, cached, unpacking
	Done  int64  // bytes
	Total int64
}

// DebianOptions are for ImageDriver.Debian, which builds an image from
// Debian's archive with mmdebstrap.
type DebianOptions struct {
	Suite    string    // default "bookworm"
	Mirror   string    // default: mmdebstrap's
	Include  []string  // package names
	Progress io.Writer // mmdebstrap's messages; nil: dropped
}
