// Package boxdir is a home folder on disk: the boxes, their names, states and
// logs, the named volumes and the event log. ARCHITECTURE.md lists every file.
//
// Any number of processes use one home at once, so nothing here trusts memory.
// Files are written whole (beside, synced, renamed). Three kinds of lock are
// taken, always in this order and none across a call that waits for a box:
//
//	boxes/<id>/lock   held by the keeper as long as the box lives (LockLife)
//	boxes/<id>/start  held by whoever starts a keeper or removes the box
//	boxes/<id>/write  held while box.json is read, changed and written
//
// A process that dies drops its locks; what it left half done is finished or
// undone by the next process that opens the home (Recover).
package boxdir

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

// formatVersion of a home. A later version must still read older homes.
const formatVersion = "1"

// Home is an open home folder. It holds no descriptors; its methods may be
// called concurrently.
type Home struct {
	dir string
	// Remover, when set, removes folders that this user alone may not: those
	// of an ordinary user's boxes have owners from his range of ids.
	Remover func(dir string) error
}

// remove deletes a folder of the home, whoever owns what is in it.
func (h *Home) remove(dir string) error {
	err := RemoveAll(dir)
	if err != nil && errors.Is(err, fs.ErrPermission) && h.Remover != nil {
		return h.Remover(dir)
	}
	return err
}

// Default returns the home that is used when none is named: $HUTCH_HOME, else
// $XDG_DATA_HOME/hutch, else ~/.local/share/hutch.
func Default() (string, error) {
	if dir := os.Getenv("HUTCH_HOME"); dir != "" {
		return filepath.Abs(dir)
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "hutch"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", &box.Error{Kind: box.Invalid, Op: "open home", Err: err, Hint: "set HUTCH_HOME"}
	}
	return filepath.Join(home, ".local", "share", "hutch"), nil
}

// Open makes the home folder where it is missing, and checks its version.
func Open(dir string) (*Home, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	h := &Home{dir: dir}
	fail := func(err error) (*Home, error) {
		kind := box.Internal
		if errors.Is(err, fs.ErrPermission) {
			kind = box.Permission
		}
		return nil, &box.Error{Kind: kind, Op: "open home", Object: dir, Err: err, Hint: "choose another with --home or HUTCH_HOME"}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(err)
	}
	// Resolved, since mount tables and loop devices show resolved names.
	if h.dir, err = filepath.EvalSymlinks(dir); err != nil {
		return fail(err)
	}
	for _, sub := range []string{"boxes", "names", "volumes", "images", "cache", "tmp"} {
		if err := os.Mkdir(filepath.Join(h.dir, sub), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fail(err)
		}
	}
	file := filepath.Join(h.dir, "version")
	data, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := WriteFile(file, []byte(formatVersion+"\n"), 0o600); err != nil {
			return fail(err)
		}
	case err != nil:
		return fail(err)
	case strings.TrimSpace(string(data)) != formatVersion:
		return nil, &box.Error{Kind: box.Unsupported, Op: "open home", Object: dir,
			Err:  fmt.Errorf("it has format %q, this program knows %q", strings.TrimSpace(string(data)), formatVersion),
			Hint: "use a newer hutch"}
	}
	return h, nil
}

// Dir is the home's path, with symbolic links resolved.
func (h *Home) Dir() string { return h.dir }

// Path joins names below the home.
func (h *Home) Path(names ...string) string {
	return filepath.Join(append([]string{h.dir}, names...)...)
}

// Box returns the folder of a box. It does no I/O.
func (h *Home) Box(id string) *Box { return &Box{home: h, id: id, dir: h.Path("boxes", id)} }

// VolumeDir returns the folder of a named volume, made when missing.
func (h *Home) VolumeDir(name string) (string, error) {
	dir := h.Path("volumes", name)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, nil
}

// newID returns 12 characters that are not easily misread.
func newID() string {
	const letters = "abcdefghjkmnpqrstuvwxyz23456789"
	raw := make([]byte, 12)
	_, _ = rand.Read(raw) // never fails
	for i, b := range raw {
		raw[i] = letters[int(b)%len(letters)]
	}
	return string(raw)
}

// IDs returns the ids of all boxes, in no order.
func (h *Home) IDs() ([]string, error) {
	entries, err := os.ReadDir(h.Path("boxes"))
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Find returns the id for a name, an id or the beginning of an id of at least
// four characters.
func (h *Home) Find(ref string) (string, error) {
	notFound := &box.Error{Kind: box.NotFound, Op: "find box", Object: ref, Err: errors.New("no such box"), Hint: "hutch ps -a lists them"}
	if ref == "" || strings.ContainsAny(ref, "/\x00") || strings.HasPrefix(ref, ".") {
		return "", notFound
	}
	if data, err := os.ReadFile(h.Path("names", ref)); err == nil {
		id := strings.TrimSpace(string(data))
		if _, err := h.Box(id).Load(); err == nil {
			return id, nil
		}
	}
	ids, err := h.IDs()
	if err != nil {
		return "", err
	}
	var found []string
	for _, id := range ids {
		if id == ref {
			return id, nil
		}
		if len(ref) >= 4 && strings.HasPrefix(id, ref) {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return "", notFound
	case 1:
		return found[0], nil
	}
	return "", &box.Error{Kind: box.Invalid, Op: "find box", Object: ref, Err: fmt.Errorf("%d boxes begin with it", len(found)), Hint: "use more of the id"}
}

// Create makes a box of rec durable and gives it its id and name. An empty
// name becomes one that is made up, except that a spare box gets none.
func (h *Home) Create(rec Record) (*Box, Record, error) {
	for range 50 {
		rec.ID = newID()
		name := rec.Name
		if name == "" && !rec.Spare {
			name = madeUpName()
		}
		b := h.Box(rec.ID)
		tmp := h.Path("tmp", "box-"+rec.ID)
		r := rec
		r.Name = name
		if r.Hostname == "" {
			r.Hostname = cmp.Or(name, r.ID)
		}
		if err := prepare(tmp, r); err != nil {
			_ = os.RemoveAll(tmp)
			return nil, rec, fmt.Errorf("create box: %w", err)
		}
		// The folder first, then the name: a name without a box is dropped by
		// anybody who sees it, a box without its name would be lost.
		if err := os.Rename(tmp, b.dir); err != nil {
			_ = os.RemoveAll(tmp)
			if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
				continue
			}
			return nil, rec, fmt.Errorf("create box: %w", err)
		}
		if r.Spare {
			return b, r, nil
		}
		err := h.claimName(name, r.ID)
		if err == nil {
			return b, r, syncDir(h.Path("boxes"))
		}
		_ = os.RemoveAll(b.dir)
		if !errors.Is(err, fs.ErrExist) {
			return nil, rec, fmt.Errorf("create box: %w", err)
		}
		if rec.Name != "" {
			return nil, rec, nameTaken(name)
		}
	}
	return nil, rec, errNoFreeName
}

var errNoFreeName = &box.Error{Kind: box.Internal, Op: "create box", Err: errors.New("no free id or name found")}

func nameTaken(name string) error {
	return &box.Error{Kind: box.Exists, Op: "create box", Object: name, Err: errors.New("the name is taken"),
		Hint: fmt.Sprintf("choose another name or remove that box: hutch rm %s", name)}
}

// ErrNoSpare says that a spare box went away before it could be adopted.
var ErrNoSpare = errors.New("the spare box is gone")

// Adopt makes the running spare box with this id the box that want describes,
// and returns its record. settle is called with the box's names before anybody
// can see the box; when it fails, the box stays a spare. A spare that has
// ended meanwhile is ErrNoSpare.
func (h *Home) Adopt(id string, want Record, settle func(Record) error) (Record, error) {
	b := h.Box(id)
	for range 50 {
		name := cmp.Or(want.Name, madeUpName())
		err := h.claimName(name, id)
		if errors.Is(err, fs.ErrExist) {
			if want.Name != "" {
				return Record{}, nameTaken(name)
			}
			continue
		}
		if err != nil {
			return Record{}, fmt.Errorf("create box: %w", err)
		}
		r := want
		r.Name, r.Hostname = name, cmp.Or(want.Hostname, name)
		if err := settle(r); err != nil {
			h.dropName(name, id)
			return Record{}, err
		}
		rec, err := b.Update(func(have *Record) error {
			if !have.Spare || have.State != box.Running {
				return ErrNoSpare
			}
			have.Spare, have.Name, have.Hostname = false, r.Name, r.Hostname
			have.Spec, have.CreatedAt = r.Spec, r.CreatedAt
			return nil
		})
		if err != nil {
			h.dropName(name, id)
			return Record{}, err
		}
		return rec, nil
	}
	return Record{}, errNoFreeName
}

func prepare(tmp string, rec Record) error {
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(tmp, "disk"), 0o700); err != nil {
		return err
	}
	for _, name := range []string{"lock", "start", "write"} {
		f, err := os.OpenFile(filepath.Join(tmp, name), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		f.Close()
	}
	return writeRecord(tmp, rec, true)
}

// claimName points a name at a box, exclusively.
func (h *Home) claimName(name, id string) error {
	path := h.Path("names", name)
	for range 3 {
		// Complete content from the first moment: a link is made or not.
		tmp := h.Path("tmp", "name-"+id)
		if err := os.WriteFile(tmp, []byte(id+"\n"), 0o600); err != nil {
			return err
		}
		err := os.Link(tmp, path)
		_ = os.Remove(tmp)
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		if !h.dropStaleName(name) {
			return err
		}
	}
	return fs.ErrExist
}

// dropStaleName removes a name whose box is gone, or goes by another name.
func (h *Home) dropStaleName(name string) bool {
	path := h.Path("names", name)
	data, err := os.ReadFile(path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	rec, err := h.Box(strings.TrimSpace(string(data))).Load()
	if err == nil && rec.Name == name {
		return false
	}
	if err != nil && !errors.Is(err, box.ErrNotFound) {
		return false
	}
	return os.Remove(path) == nil
}

// Rename gives a box another name.
func (h *Home) Rename(id, name string) error {
	b := h.Box(id)
	rec, err := b.Load()
	if err != nil {
		return err
	}
	if rec.Name == name {
		return nil
	}
	if err := h.claimName(name, id); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return &box.Error{Kind: box.Exists, Op: "rename box", Object: name, Err: errors.New("the name is taken"), Hint: "choose another name"}
		}
		return fmt.Errorf("rename box: %w", err)
	}
	if _, err := b.Update(func(r *Record) error { r.Name = name; return nil }); err != nil {
		_ = os.Remove(h.Path("names", name))
		return err
	}
	_ = os.Remove(h.Path("names", rec.Name))
	return nil
}

// WriteFile writes a file whole: a reader, or the machine after a crash, sees
// the old content or the new.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	return writeFile(path, data, perm, true)
}

func writeFile(path string, data []byte, perm fs.FileMode, durable bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(perm)
	}
	if err == nil && durable {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// flock takes an exclusive lock, waiting until ctx ends.
func flock(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	wait := time.Millisecond
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(wait):
		}
		wait = min(wait*2, 20*time.Millisecond)
	}
}
