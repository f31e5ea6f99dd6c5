// Package layer turns the layers of an OCI image into a directory tree.
//
// Layers come from strangers, so this package treats them as an attack until
// proven otherwise. It has two walls. The first is [Unpack] itself: it walks
// every path of a layer component by component from an open descriptor of the
// destination, follows symbolic links by hand and inside the destination only,
// bounds everything that a layer can claim or expand to, and compares what it
// read with the digest that the image promises. The second wall is the process
// it runs in: with [Job].Confine set, Unpack shuts the calling process into the
// destination (chroot, Landlock, dropped capabilities) before it reads the
// first byte of a layer. A process that confines itself cannot be used for
// anything else afterwards, so a [Helper] starts one for each job.
//
// The package knows nothing of registries, stores or boxes.
package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

// Defaults of [Limits].
const (
	DefaultLayerBytes = 20 << 30 // 20 GiB
	DefaultTotalBytes = 64 << 30 // 64 GiB
	DefaultEntries    = 2_000_000
)

// What no image needs more of. Real images have fewer than 128 layers, paths
// far below PATH_MAX and directories a few dozen deep.
const (
	maxLayers   = 512
	maxPathLen  = 4096
	maxDepth    = 256
	maxSymlinks = 64
)

// Owners says what becomes of the numeric owners that a layer records.
type Owners string

// The ways to treat owners.
const (
	// KeepOwners gives every file the owner the layer records, as seen in the
	// user namespace of the process that unpacks. It needs CAP_CHOWN there.
	// An id that the namespace does not map is counted in Result.Owners, and
	// the file loses its setuid and setgid bits, since they would now mean
	// another user.
	KeepOwners Owners = "keep"
	// OneOwner leaves every file with the process that unpacks. Files that
	// should have had another owner are counted in Result.Owners.
	OneOwner Owners = "one"
)

// Limits bound what unpacking may cost. A zero field means its default; there
// is no way to ask for no limit.
type Limits struct {
	LayerBytes int64 `json:"layerBytes,omitempty"` // one layer, decompressed, and the sum of the sizes its files claim
	TotalBytes int64 `json:"totalBytes,omitempty"` // the same over all layers
	Entries    int64 `json:"entries,omitempty"`    // headers in all layers together
}

// Blob is one layer as it lies on the disk.
type Blob struct {
	Path   string `json:"path"`   // of the file that holds it: a tar, plain or compressed with gzip or zstd
	Digest string `json:"digest"` // of the file, used in messages only
	DiffID string `json:"diffID"` // digest of the decompressed tar, verified while reading
	Size   int64  `json:"size"`   // of the file in bytes; a file of another size is refused
}

// Job is a whole unpacking. It can be sent to another process as JSON.
type Job struct {
	Dest    string `json:"dest"`              // an existing, empty directory
	Layers  []Blob `json:"layers"`            // lowest first
	Owners  Owners `json:"owners"`            // "" means OneOwner
	Limits  Limits `json:"limits,omitzero"`   // see Limits
	Confine bool   `json:"confine,omitempty"` // shut this process into Dest first; it is of no other use afterwards
}

// Result says what a finished job did, and what it left out.
type Result struct {
	Entries int64 `json:"entries"` // headers read
	Bytes   int64 `json:"bytes"`   // bytes of file content written, later layers counted again
	Devices int64 `json:"devices"` // device nodes left out (a box gets its /dev from its engine)
	Owners  int64 `json:"owners"`  // entries that do not have the owner the layer records
	Xattrs  int64 `json:"xattrs"`  // extended attributes left out
	// Confined names the walls that were put up around the process: chroot,
	// landlock, capabilities. It is empty when the job did not ask for it.
	Confined []string `json:"confined,omitempty"`
}

// Unpack runs job in this process. When it fails, it empties Dest again; an
// error is a *box.Error of kind Invalid (the layer is malformed or not the one
// the image names), Exhausted (a limit or the disk), Canceled or Internal.
//
// Nobody else may write below Dest meanwhile.
func Unpack(ctx context.Context, job Job) (res Result, err error) {
	if err := job.check(); err != nil {
		return Result{}, err
	}
	files := make([]*os.File, len(job.Layers))
	defer func() {
		for _, f := range files {
			if f != nil {
				f.Close()
			}
		}
	}()
	for i, b := range job.Layers {
		if files[i], err = openBlob(b); err != nil {
			return Result{}, err
		}
	}
	rootFD, err := unix.Open(job.Dest, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return Result{}, fail(box.Internal, job.Dest, os.NewSyscallError("open", err))
	}
	defer unix.Close(rootFD)
	if empty, err := isEmpty(rootFD); err != nil || !empty {
		if err == nil {
			err = errors.New("the directory is not empty")
		}
		return Result{}, fail(box.Internal, job.Dest, err)
	}

	x := newExtractor(rootFD, job)
	defer x.close()
	if job.Confine {
		if x.res.Confined, err = Confine(job.Dest); err != nil {
			return Result{}, fail(box.Internal, job.Dest, err)
		}
	}
	defer func() {
		if err != nil {
			x.forget()
			// The destination is the caller's, what we put into it is not.
			err = errors.Join(err, removeChildren(rootFD, 0))
		}
	}()
	for i, b := range job.Layers {
		x.first = i == 0
		if err := x.layer(ctx, files[i], b); err != nil {
			return Result{}, layerError(ctx, b, err)
		}
	}
	if err := x.settle(); err != nil {
		return Result{}, fail(box.Internal, job.Dest, err)
	}
	return x.res, nil
}

func (job *Job) check() error {
	switch job.Owners {
	case "":
		job.Owners = OneOwner
	case KeepOwners, OneOwner:
	default:
		return fail(box.Invalid, "", fmt.Errorf("owners %q: must be %q or %q", job.Owners, KeepOwners, OneOwner))
	}
	if len(job.Layers) > maxLayers {
		return fail(box.Exhausted, "", fmt.Errorf("the image has %d layers, at most %d are allowed", len(job.Layers), maxLayers))
	}
	if job.Limits.LayerBytes <= 0 {
		job.Limits.LayerBytes = DefaultLayerBytes
	}
	if job.Limits.TotalBytes <= 0 {
		job.Limits.TotalBytes = max(DefaultTotalBytes, job.Limits.LayerBytes)
	}
	if job.Limits.Entries <= 0 {
		job.Limits.Entries = DefaultEntries
	}
	return nil
}

func openBlob(b Blob) (*os.File, error) {
	f, err := os.OpenFile(b.Path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fail(box.Internal, "layer "+b.Digest, err)
	}
	st, err := f.Stat()
	switch {
	case err != nil:
	case !st.Mode().IsRegular():
		err = errors.New("not a regular file")
	case st.Size() != b.Size:
		err = fmt.Errorf("the file has %d bytes, the image says %d", st.Size(), b.Size)
	}
	if err != nil {
		f.Close()
		return nil, fail(box.Internal, "layer "+b.Digest, err)
	}
	return f, nil
}

// limitError says that a layer asked for more than it may have.
type limitError string

func (e limitError) Error() string { return string(e) }

// malformed is an error about what a layer holds, as opposed to one of this
// machine.
type malformed struct{ err error }

func (e malformed) Error() string { return e.err.Error() }
func (e malformed) Unwrap() error { return e.err }

func malformedf(format string, args ...any) error {
	return malformed{fmt.Errorf(format, args...)}
}

func fail(kind box.Kind, object string, err error) error {
	return &box.Error{Kind: kind, Op: "unpack", Object: object, Err: err}
}

// layerError classifies err, which came up while b was unpacked.
func layerError(ctx context.Context, b Blob, err error) error {
	var limit limitError
	var bad malformed
	kind, hint := box.Internal, ""
	switch {
	case ctx.Err() != nil:
		return fail(box.KindOf(ctx.Err()), "layer "+b.Digest, ctx.Err())
	case errors.As(err, &limit):
		kind = box.Exhausted
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		kind, hint = box.Exhausted, "free some disk space; hutch image prune removes what is not needed"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		kind = box.Exhausted
	case errors.As(err, &bad),
		// What the kernel says to a name, link or nesting that only the layer
		// can be responsible for.
		errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EILSEQ),
		errors.Is(err, unix.EINVAL), errors.Is(err, unix.EMLINK), errors.Is(err, unix.ELOOP):
		kind = box.Invalid
	}
	// One line, whatever the layer's names hold: they are quoted where they
	// are formatted, but a *fs.PathError would not quote.
	return &box.Error{Kind: kind, Op: "unpack", Object: "layer " + b.Digest, Hint: hint,
		Err: errors.New(strings.ToValidUTF8(oneLine(err.Error()), "?"))}
}

func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}
