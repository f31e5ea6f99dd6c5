package changes

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// Folder is the host's folder that changes are made in.
type Folder struct{ root *os.Root }

// Open opens a folder.
func Open(dir string) (*Folder, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Folder{root}, nil
}

// Close releases the folder.
func (f *Folder) Close() error { return f.root.Close() }

// ErrNever is in a Problem that no force overcomes.
var ErrNever = errors.New("it is never taken back")

// Problem is a change that cannot simply be made.
type Problem struct {
	Path string
	Err  error // ErrNever matches those that stay
}

// Check looks at the host's folder and sorts changes into those to make and
// those that are a problem: because the host's file is not any more what it was
// when it was copied, or because the change must never be made. What is on the
// host already as it should be is in neither.
func (f *Folder) Check(ctx context.Context, list []Change) (ready []Change, problems []Problem, err error) {
	for _, c := range list {
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		if err := never(c); err != nil {
			problems = append(problems, Problem{c.Path, err})
			continue
		}
		now, err := f.look(c.Path)
		if p, ok := errors.AsType[*parentError](err); ok && c.Before == nil && becomesDir(ready, p.name) {
			now, err = nil, nil // it makes room for a folder first
		}
		_, blocked := errors.AsType[*parentError](err)
		switch {
		case blocked && c.After == nil: // what is no folder has nothing in it to remove
		case blocked:
			problems = append(problems, Problem{c.Path, fmt.Errorf("%w: %w", ErrNever, err)})
		case err != nil:
			return nil, nil, fmt.Errorf("%s: %w", c.Path, err)
		case equal(now, c.After):
		case equal(now, c.Before):
			ready = append(ready, c)
		default:
			problems = append(problems, Problem{c.Path, conflict(c, now)})
		}
	}
	return ready, problems, nil
}

// conflict says how the host's file stands against a change.
func conflict(c Change, now *Entry) error {
	switch {
	case now == nil:
		return errors.New("it was removed on this machine since it was copied")
	case c.Before == nil:
		return errors.New("there is one on this machine by now")
	}
	return errors.New("it was changed on this machine since it was copied")
}

// never says why a change must not be made on any host.
func never(c Change) error {
	if c.After == nil {
		return nil
	}
	switch c.After.Kind {
	case Other:
		return fmt.Errorf("%w: it is a device or a pipe", ErrNever)
	case Link:
		to := c.After.Target
		at := path.Join(path.Dir(c.Path), to)
		if to == "" || path.IsAbs(to) || at == ".." || strings.HasPrefix(at, "../") {
			return fmt.Errorf("%w: it is a symbolic link that leads out of the folder", ErrNever)
		}
		if gits(at) {
			return fmt.Errorf("%w: it is a symbolic link into a repository's own files", ErrNever)
		}
	}
	return nil
}

func equal(a, b *Entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	return same(*a, *b)
}

// parentError says that what should be a folder above a name is none.
type parentError struct{ name string }

func (e *parentError) Error() string { return e.name + " is no folder on this machine" }

// becomesDir reports whether one of the changes puts a folder where there is
// something else.
func becomesDir(list []Change, name string) bool {
	return slices.ContainsFunc(list, func(c Change) bool { return c.Path == name && c.After != nil && c.After.Kind == Dir })
}

// look says what there is on the host under a name; nil when nothing.
func (f *Folder) look(name string) (*Entry, error) {
	for i, c := range name {
		if c != '/' {
			continue
		}
		fi, err := f.root.Lstat(name[:i])
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if !fi.IsDir() {
			return nil, &parentError{name[:i]}
		}
	}
	fi, err := f.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	switch mode := fi.Mode(); {
	case mode.IsDir():
		return &Entry{Kind: Dir}, nil
	case mode&fs.ModeSymlink != 0:
		to, err := f.root.Readlink(name)
		return &Entry{Kind: Link, Target: to}, err
	case mode.IsRegular():
		file, err := f.root.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		sum := sha256.New()
		n, err := io.Copy(sum, file)
		return &Entry{Kind: File, Mode: mode.Perm(), Size: n, Sum: hex.EncodeToString(sum.Sum(nil))}, err
	}
	return &Entry{Kind: Other}, nil
}

// Source gives the new content of a file of the copy.
type Source func(name string) (io.ReadCloser, error)

// Apply makes changes that Check found ready, or, with force, also those whose
// host's file was changed. It stops at the first that fails; those before it
// are made and returned. Each file is written beside its place and renamed, so
// that a name has the old content or the new.
func (f *Folder) Apply(ctx context.Context, list []Change, content Source, force bool) (done []Change, err error) {
	// What goes makes room for what comes: from the deepest name up.
	for _, c := range slices.Backward(list) {
		if c.Before == nil || c.After != nil && c.After.Kind == c.Before.Kind {
			continue
		}
		if err := f.begin(ctx, c, force); err != nil {
			return done, err
		}
		if err := f.remove(c); err != nil {
			return done, fmt.Errorf("%s: %w", c.Path, err)
		}
		if c.After == nil {
			done = append(done, c)
		}
	}
	for _, c := range list {
		if c.After == nil {
			continue
		}
		replaced := c.Before != nil && c.Before.Kind != c.After.Kind
		if replaced {
			c.Before = nil // it is gone
		}
		if err := f.begin(ctx, c, force); err != nil {
			return done, err
		}
		if err := f.make(c, content); err != nil {
			return done, fmt.Errorf("%s: %w", c.Path, err)
		}
		done = append(done, c)
	}
	return done, nil
}

// begin looks once more: time has passed since Check.
func (f *Folder) begin(ctx context.Context, c Change, force bool) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := never(c); err != nil {
		return fmt.Errorf("%s: %w", c.Path, err)
	}
	now, err := f.look(c.Path)
	if err == nil && !force && !equal(now, c.Before) && !equal(now, c.After) {
		err = conflict(c, now)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.Path, err)
	}
	return nil
}

func (f *Folder) remove(c Change) error {
	err := f.root.Remove(c.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil && c.Before.Kind == Dir && c.After == nil:
		return nil // there is something of the host's own in it
	}
	return err
}

func (f *Folder) make(c Change, content Source) error {
	if c.After.Kind == Dir {
		err := f.root.Mkdir(c.Path, 0o777)
		if errors.Is(err, fs.ErrExist) {
			if fi, lerr := f.root.Lstat(c.Path); lerr == nil && fi.IsDir() {
				return nil
			}
		}
		return err
	}
	if dir := path.Dir(c.Path); dir != "." {
		// Usually there: it is a change of its own, or was there before. It may
		// have been removed on the host, or not be among the changes asked for.
		if err := f.root.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	temp := path.Join(path.Dir(c.Path), ".hutch-"+rand.Text())
	undo := func() { _ = f.root.Remove(temp) }
	if c.After.Kind == Link {
		if err := f.root.Symlink(c.After.Target, temp); err != nil {
			return err
		}
	} else if err := f.write(temp, c, content); err != nil {
		undo()
		return err
	}
	if err := f.root.Rename(temp, c.Path); err != nil {
		undo()
		return err
	}
	return nil
}

func (f *Folder) write(temp string, c Change, content Source) error {
	in, err := content(c.Path)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := f.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, sum), in)
	if err == nil && hex.EncodeToString(sum.Sum(nil)) != c.After.Sum {
		err = errors.New("its content changed while it was copied; try again when nothing writes in the box")
	}
	if err == nil {
		err = out.Chmod(c.After.Mode)
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return err
}
