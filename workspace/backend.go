package workspace

import (
	"context"
	"io"
	"time"
)

// Backend is a place to work in. Everything that it can do beyond saying where
// it is, it says by the optional interfaces below. These interfaces do not grow:
// a new ability is a new interface.
//
// Making a backend does no I/O. Its first operation creates the place, or
// attaches to it, once, however many callers come at the same time. All methods
// may be called concurrently.
type Backend interface {
	// Ref names the place. It is false until there is something to name, and
	// from then on always the same. It does no I/O.
	Ref() (Ref, bool)
	// WorkingDir is the absolute directory, free of symbolic links, in which
	// commands start and to which relative paths belong. It never changes.
	WorkingDir(ctx context.Context) (string, error)
}

// Runner is a Backend that runs commands.
type Runner interface {
	// Run runs a command to its end. A status other than zero is a Result:
	// 127 for a program that is not there, 126 for one that cannot be run,
	// 128+N for signal N. An error means that there is no result; it is a
	// *CommandError with the output so far when the command had begun.
	//
	// Standard input is at its end. When ctx ends, the time limit passes or
	// the output is too much, the command and what it started are killed;
	// the time limit does not run while the place is being made ready. Run
	// returns when the command itself has ended, two seconds later at most
	// when others still hold its output open.
	//
	// The Workspace has checked the command. A Capture does what is said
	// about output.
	Run(ctx context.Context, cmd Command) (Result, error)
}

// Files is a Backend with file operations of its own, on the file system that
// its commands see. Paths are absolute and cleaned. Path faults are
// *fs.PathErrors with a syscall.Errno.
type Files interface {
	// ReadFile returns the content of a regular file; others are refused
	// (EISDIR, EINVAL) without waiting for a writer. A file of more than
	// MaxFile bytes is ErrOutputLimit.
	ReadFile(ctx context.Context, path string) ([]byte, error)
	// WriteFile replaces the content of a file and makes its missing parents.
	// An existing file keeps its mode, and a symbolic link stays one. What is
	// not a regular file is refused.
	WriteFile(ctx context.Context, path string, data []byte) error
	// Stat follows symbolic links.
	Stat(ctx context.Context, path string) (Entry, error)
	// ReadDir lists a directory's direct entries, sorted by name. An entry
	// that leads nowhere is listed as if it were a file.
	ReadDir(ctx context.Context, path string) ([]Entry, error)
	// MkdirAll makes a directory and its missing parents. A directory that
	// exists is no error; a file is (EEXIST).
	MkdirAll(ctx context.Context, path string) error
	// Remove removes a file, a symbolic link itself, or a directory with all
	// in it. A missing path is an error. The Workspace has refused the working
	// directory and those above it.
	Remove(ctx context.Context, path string) error
	// Exists follows symbolic links. That there is no answer is an error.
	Exists(ctx context.Context, path string) (bool, error)
}

// Streams is a Backend that moves the content of files without holding it.
type Streams interface {
	// Open reads a regular file from offset; one beyond the end reads
	// nothing. It ends with ctx. Close it, also before its end.
	Open(ctx context.Context, path string, offset int64) (io.ReadCloser, error)
	// WriteFrom is Files.WriteFile with all of r. When r fails, the file
	// keeps its old content, or does not exist, where the backend can see to
	// that.
	WriteFrom(ctx context.Context, path string, r io.Reader) error
}

// Described is what Open may return: a reader that knows which file it reads,
// whatever the path leads to meanwhile. It spares Workspace.OpenFile two more
// ways to the place.
type Described interface {
	io.ReadCloser
	// Entry describes the file. Its Path is the one without symbolic links;
	// an empty one says that it could not be told.
	Entry() Entry
}

// Realpather is a Backend that resolves symbolic links.
type Realpather interface {
	// Realpath resolves every symbolic link of an absolute path, which is
	// not cleaned: "link/.." leads above the link's target. Elements that do
	// not exist are kept. A loop is an error (ELOOP).
	Realpath(ctx context.Context, path string) (string, error)
}

// Closer is a Backend that holds something while it is used.
type Closer interface {
	// Close lets go of what this backend holds: connections, a running
	// machine. It destroys nothing, and a later operation is allowed and
	// attaches anew. It may be called twice.
	Close(ctx context.Context) error
}

// Forker is a Backend whose place can be copied, with its files and running
// processes as they are.
type Forker interface {
	// Fork makes the copy and names it. It belongs to the caller, who
	// destroys it at the provider.
	Fork(ctx context.Context) (Ref, error)
}

// Provider makes backends of one kind. The methods do no I/O.
type Provider interface {
	// New returns a backend whose first operation creates a place.
	New() Backend
	// Backend returns a backend for the place that ref names. A ref of
	// another provider is ErrUnknownRef, so that the next one can be asked; a
	// ref that this provider cannot have made is ErrInvalid.
	Backend(ref Ref) (Backend, error)
}

// Command is a command for Run.
type Command struct {
	// Args is the program, looked up in the command's own PATH, and its
	// arguments. No shell is involved.
	Args []string
	// Shell is a script for /bin/sh. Exactly one of Args and Shell is set. To
	// start elsewhere than in the working directory, begin it with
	// "cd " + Quote(dir) + " && ".
	Shell string
	// Env is laid over the backend's environment. Names are identifiers.
	Env map[string]string
	// Timeout kills the command after this long; zero: never.
	Timeout time.Duration
	// Stdout and Stderr, when set, get the output as it arrives, byte for
	// byte, instead of the Result; it then does not count for OutputLimit.
	// Writes to each come one at a time, and to both when they are the same.
	// A writer that blocks holds up the command in the end; one that fails
	// stops it, and Run returns that failure.
	Stdout, Stderr io.Writer
}

// Result is a command that ran.
type Result struct {
	// ExitCode is the status as a shell reports it.
	ExitCode int
	// Stdout and Stderr are the whole output as text: each byte that is not
	// UTF-8 is U+FFFD. Empty where Command has a writer.
	Stdout, Stderr string
}

// OK reports whether the status is zero.
func (r Result) OK() bool { return r.ExitCode == 0 }

// Entry describes a file or directory.
type Entry struct {
	// Name is the last element of the path.
	Name string
	// Path is absolute.
	Path string
	// Dir says that it is a directory, or a link to one.
	Dir bool
	// Size in bytes; negative when it is not known, also for files.
	Size int64
}

// Limits that every backend keeps.
const (
	// OutputLimit is how many bytes of output, of both streams together, a
	// Result holds. A command that writes more is killed: ErrOutputLimit.
	OutputLimit = 10 << 20
	// PreviewLimit is how many bytes of each stream the *CommandError of such
	// a command holds.
	PreviewLimit = 64 << 10
	// MaxFile is the largest file that ReadFile returns, in bytes. Use Open
	// for larger ones.
	MaxFile = 256 << 20
)

// Feature is something that a backend may be able to do.
type Feature string

// The features, one for each optional interface.
const (
	Commands  Feature = "commands"   // Runner
	FileOps   Feature = "files"      // Files
	Streaming Feature = "streams"    // Streams
	Realpaths Feature = "real paths" // Realpather
	Closing   Feature = "close"      // Closer
	Forking   Feature = "fork"       // Forker
)

// Supporter is for a Backend that has an optional interface's methods and yet
// may not be able to serve them, for example because it passes them on to
// another. A backend without it supports what it implements.
type Supporter interface {
	// Supports reports whether f works. It does no I/O.
	Supports(f Feature) bool
}

// Supports reports whether b itself offers a feature. Workspace.Supports also
// counts what the Workspace supplies.
func Supports(b Backend, f Feature) bool {
	ok := false
	switch f {
	case Commands:
		_, ok = b.(Runner)
	case FileOps:
		_, ok = b.(Files)
	case Streaming:
		_, ok = b.(Streams)
	case Realpaths:
		_, ok = b.(Realpather)
	case Closing:
		_, ok = b.(Closer)
	case Forking:
		_, ok = b.(Forker)
	}
	if s, limited := b.(Supporter); ok && limited {
		return s.Supports(f)
	}
	return ok
}
