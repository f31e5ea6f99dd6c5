package boxdir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

// Record is box.json: what a box is and where it is in its life.
type Record struct {
	Version int      `json:"version"`
	ID      string   `json:"id"`
	Name    string   `json:"name"`
	Spec    box.Spec `json:"spec"`

	// Resolved when the box was created, so that it never changes under it.
	Image       string          `json:"image"`            // the name, normalised
	Digest      string          `json:"digest,omitempty"` // of the manifest
	Tree        string          `json:"tree"`             // the unpacked root file system
	Config      box.ImageConfig `json:"config"`
	Main        []string        `json:"main,omitempty"`
	Hostname    string          `json:"hostname"`
	Engine      string          `json:"engine"`
	Isolation   box.Isolation   `json:"isolation"`
	Accelerator string          `json:"accelerator,omitempty"`

	State     box.State       `json:"state"`
	Reason    string          `json:"reason,omitempty"`
	OOM       bool            `json:"oom,omitempty"` // it stopped because its memory was used up
	Kernel    string          `json:"kernel,omitempty"`
	Limits    box.Limits      `json:"limits"`
	CreatedAt time.Time       `json:"createdAt"`
	StartedAt time.Time       `json:"startedAt,omitzero"`
	StoppedAt time.Time       `json:"stoppedAt,omitzero"`
	Exit      *box.ExitStatus `json:"exit,omitempty"`
	Restarts  int             `json:"restarts,omitempty"`
	MainExec  string          `json:"mainExec,omitempty"` // the main command's exec id in this boot
	MainDone  bool            `json:"mainDone,omitempty"` // it ended by itself, and the box with it
	Pid       int             `json:"pid,omitempty"`      // the keeper's, as the host counts
	Ports     []box.Port      `json:"ports,omitempty"`    // that are published now

	// Spare says that nobody asked for this box yet: it was booted ahead, has
	// no name, and is shown to no caller before Adopt.
	Spare bool `json:"spare,omitempty"`
}

// Info is the record as callers see it.
func (r Record) Info() box.Info {
	info := box.Info{
		ID: r.ID, Name: r.Name, State: r.State, Reason: r.Reason,
		Image: r.Image, Digest: r.Digest, Engine: r.Engine, Isolation: r.Isolation, Accelerator: r.Accelerator, Kernel: r.Kernel,
		Hostname: r.Hostname, Limits: r.Limits,
		CreatedAt: r.CreatedAt, StartedAt: r.StartedAt, StoppedAt: r.StoppedAt,
		Exit: r.Exit, Restarts: r.Restarts, Labels: r.Spec.Labels, Main: r.Main, Spec: r.Spec,
	}
	if r.State == box.Running || r.State == box.Starting || r.State == box.Stopping {
		info.Pid, info.Ports = r.Pid, r.Ports
	}
	return info
}

// Box is the folder of one box. It holds no descriptors; its methods may be
// called concurrently.
type Box struct {
	home *Home
	id   string
	dir  string
}

// ID is the box's id.
func (b *Box) ID() string { return b.id }

// Path joins names below the box's folder.
func (b *Box) Path(names ...string) string {
	return filepath.Join(append([]string{b.dir}, names...)...)
}

// Load reads the record. A box that is not there is NotFound.
func (b *Box) Load() (Record, error) {
	var r Record
	// The newer one, of a box that lives. After a power cut it may be
	// anything; then what was last synced counts.
	if data, err := os.ReadFile(b.Path(volatileFile)); err == nil && json.Unmarshal(data, &r) == nil && r.ID == b.id {
		return r.mapStrings(fromText), nil
	}
	r = Record{}
	data, err := os.ReadFile(b.Path(recordFile))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return r, &box.Error{Kind: box.NotFound, Op: "find box", Object: b.id, Err: errors.New("no such box"), Hint: "hutch ps -a lists them"}
		}
		return r, fmt.Errorf("read box %s: %w", b.id, err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read box %s: %w", b.id, err)
	}
	return r.mapStrings(fromText), nil
}

// Update changes the record, alone among all processes, and returns the new
// one. change may refuse; then nothing is written.
func (b *Box) Update(change func(*Record) error) (Record, error) { return b.update(change, true) }

// UpdateVolatile is Update for what only means something while the keeper
// lives: it does not wait for the disk, and a power cut may bring the last
// record of Update back. A reader sees the old record or the new.
func (b *Box) UpdateVolatile(change func(*Record) error) (Record, error) {
	return b.update(change, false)
}

func (b *Box) update(change func(*Record) error, durable bool) (Record, error) {
	f, err := flock(context.Background(), b.Path("write"))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			_, err = b.Load()
		}
		return Record{}, err
	}
	defer f.Close()
	r, err := b.Load()
	if err != nil {
		return r, err
	}
	if err := change(&r); err != nil {
		return r, err
	}
	return r, writeRecord(b.dir, r, durable)
}

const (
	recordFile   = "box.json"
	volatileFile = "live.json"
)

func writeRecord(dir string, r Record, durable bool) error {
	r.Version = 1
	data, err := json.MarshalIndent(r.mapStrings(toText), "", "\t")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if !durable {
		return writeFile(filepath.Join(dir, volatileFile), data, 0o600, false)
	}
	if err := writeFile(filepath.Join(dir, recordFile), data, 0o600, true); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, volatileFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// LockLife takes the lock that says "a keeper lives". It does not wait: the
// second result is false when another process has it. The lock lasts until the
// file is closed or the process ends.
func (b *Box) LockLife() (*os.File, bool, error) {
	f, err := os.OpenFile(b.Path("lock"), os.O_RDWR, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			_, err = b.Load()
		}
		return nil, false, err
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		f.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return nil, false, nil
		}
		return nil, false, fmt.Errorf("lock box %s: %w", b.id, err)
	}
	// The folder may have been removed, and even made anew, in between.
	var a, c unix.Stat_t
	if unix.Fstat(int(f.Fd()), &a) != nil || unix.Stat(b.Path("lock"), &c) != nil || a.Ino != c.Ino {
		f.Close()
		_, err := b.Load()
		return nil, false, err
	}
	return f, true, nil
}

// LockStart waits for the right to start or remove the box.
func (b *Box) LockStart(ctx context.Context) (*os.File, error) {
	f, err := flock(ctx, b.Path("start"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, lerr := b.Load(); lerr != nil {
			err = lerr
		}
	}
	return f, err
}

// Alive reports whether a keeper has the box. It only looks: taking the lock
// for a moment could turn a keeper away that starts just then.
func (b *Box) Alive() bool {
	f, err := os.OpenFile(b.Path("lock"), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	l := unix.Flock_t{Type: unix.F_WRLCK}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l) == nil && l.Type != unix.F_UNLCK
}

// inDir calls f with a short path to the box's folder: socket addresses end at
// 107 bytes, and a home may lie deep.
func (b *Box) inDir(f func(dir string) error) error {
	d, err := unix.Open(b.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: b.dir, Err: err}
	}
	defer unix.Close(d)
	return f(fmt.Sprintf("/proc/self/fd/%d", d))
}

// Dial connects to the keeper.
func (b *Box) Dial(ctx context.Context) (conn net.Conn, err error) {
	err = b.inDir(func(dir string) error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "unix", filepath.Join(dir, "keeper.sock"))
		return err
	})
	return conn, err
}

// Listen makes the keeper's socket. Only the holder of LockLife may.
func (b *Box) Listen() (l net.Listener, err error) {
	_ = os.Remove(b.Path("keeper.sock"))
	err = b.inDir(func(dir string) error {
		ul, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "keeper.sock"), Net: "unix"})
		if err == nil {
			ul.SetUnlinkOnClose(false) // the short path is only good now
			l = ul
		}
		return err
	})
	return l, err
}

// Delete removes the folder and frees the name. The caller holds LockLife. It
// may be repeated after a crash.
func (b *Box) Delete() error {
	rec, err := b.Load()
	if err == nil {
		b.home.dropName(rec.Name, b.id)
	}
	// Out of sight in one step, then at leisure.
	gone := b.home.Path("tmp", "gone-"+b.id)
	if err := os.Rename(b.dir, gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove box %s: %w", b.id, err)
	}
	return b.home.remove(gone)
}

func (h *Home) dropName(name, id string) {
	if data, err := os.ReadFile(h.Path("names", name)); err == nil && string(data) == id+"\n" {
		_ = os.Remove(h.Path("names", name))
	}
}

// RemoveAll is os.RemoveAll that also enters folders whose mode keeps their
// owner out, which images and boxes may well contain. It refuses when anything
// is mounted at or below path: in a keeper, a user's own folders are mounted
// there, and they are not ours to remove.
func RemoveAll(path string) error {
	mounted, err := mountsBelow(path)
	if err != nil {
		return err
	}
	if len(mounted) > 0 {
		return fmt.Errorf("remove %s: %s is mounted there", path, mounted[0])
	}
	err = os.RemoveAll(path)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
	return os.RemoveAll(path)
}

// mountsBelow lists the mount points of this process at or below path.
func mountsBelow(path string) ([]string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		abs = filepath.Join(real, filepath.Base(abs))
	}
	// Those of this very thread. /proc/self shows the main thread, which in a
	// keeper the engine's code may have left in a namespace of its own.
	runtime.LockOSThread()
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	runtime.UnlockOSThread()
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		at := unescapeMount(f[4])
		if at == abs || strings.HasPrefix(at, abs+"/") {
			found = append(found, at)
		}
	}
	return found, nil
}

// unescapeMount undoes the kernel's \ooo for white space and backslashes.
func unescapeMount(s string) string {
	return mountEscapes.Replace(s)
}

var mountEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// UnmountBelow takes away every mount below path, deepest first, so that
// RemoveAll can follow. Only a process in a mount namespace of its own calls
// it.
func UnmountBelow(path string) error {
	mounted, err := mountsBelow(path)
	if err != nil {
		return err
	}
	for n := len(mounted) - 1; n >= 0; n-- {
		if err := unix.Unmount(mounted[n], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", mounted[n], err)
		}
	}
	return nil
}
