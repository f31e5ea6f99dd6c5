package workspace

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"unicode/utf8"
)

// file prepares a file operation: it says whether there are files, and the
// absolute path.
func (w *Workspace) file(ctx context.Context, op, name string) (string, error) {
	if w.files == nil {
		return "", w.noFiles
	}
	p, err := w.Resolve(ctx, name)
	if err != nil {
		return "", err
	}
	return p, ContextError(ctx, op)
}

// ReadFile returns the content of a regular file; see Files.ReadFile.
func (w *Workspace) ReadFile(ctx context.Context, name string) ([]byte, error) {
	p, err := w.file(ctx, "read", name)
	if err != nil {
		return nil, err
	}
	return w.files.ReadFile(ctx, p)
}

// ReadText is ReadFile for a file that has to be UTF-8; one that is not is
// ErrNotText. Line endings stay as they are.
func (w *Workspace) ReadText(ctx context.Context, name string) (string, error) {
	data, err := w.ReadFile(ctx, name)
	if err != nil {
		return "", err
	}
	if !utf8.Valid(data) {
		at := 0
		for at < len(data) {
			r, n := utf8.DecodeRune(data[at:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			at += n
		}
		return "", &Error{Kind: ErrNotText, Op: "read", Object: name, Err: fmt.Errorf("byte %d is not UTF-8", at)}
	}
	return string(data), nil
}

// WriteFile replaces the content of a file and makes its missing parents; see
// Files.WriteFile.
func (w *Workspace) WriteFile(ctx context.Context, name string, data []byte) error {
	p, err := w.file(ctx, "write", name)
	if err != nil {
		return err
	}
	return w.files.WriteFile(ctx, p, data)
}

// WriteText is WriteFile with the bytes of a string.
func (w *Workspace) WriteText(ctx context.Context, name, text string) error {
	return w.WriteFile(ctx, name, []byte(text))
}

// Open reads a regular file from offset, without holding it; see Streams. A
// backend that can only read whole files is asked for the whole.
func (w *Workspace) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	p, err := w.file(ctx, "open", name)
	if err != nil {
		return nil, err
	}
	if offset < 0 {
		return nil, &Error{Kind: ErrInvalid, Op: "open", Object: name, Err: fmt.Errorf("offset %d is negative", offset)}
	}
	if w.streams != nil {
		return w.streams.Open(ctx, p, offset)
	}
	data, err := w.files.ReadFile(ctx, p)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data[min(offset, int64(len(data))):])), nil
}

// OpenFile is Open that also tells which file was opened: the entry's Path is
// the one without symbolic links. Whoever allows some paths and not others checks
// that one, not the name.
func (w *Workspace) OpenFile(ctx context.Context, name string, offset int64) (Entry, io.ReadCloser, error) {
	p, err := w.file(ctx, "open", name)
	if err != nil {
		return Entry{}, nil, err
	}
	r, err := w.Open(ctx, p, offset)
	if err != nil {
		return Entry{}, nil, err
	}
	if d, ok := r.(Described); ok {
		if e := d.Entry(); e.Path != "" {
			return e, r, nil
		}
	}
	// What the backend cannot tell of the open file it is asked of the path.
	var real string
	var rerr error
	var wg sync.WaitGroup
	wg.Go(func() { real, rerr = w.Realpath(ctx, p) })
	e, err := w.Stat(ctx, p)
	wg.Wait()
	if err := cmp.Or(err, rerr); err != nil {
		_ = r.Close() // it was only read
		return Entry{}, nil, err
	}
	e.Path, e.Name = real, path.Base(real)
	return e, r, nil
}

// WriteFrom is WriteFile with all of r; see Streams. For a backend that can only
// write whole files, at most MaxFile bytes are collected first.
func (w *Workspace) WriteFrom(ctx context.Context, name string, r io.Reader) error {
	p, err := w.file(ctx, "write", name)
	if err != nil {
		return err
	}
	if w.streams != nil {
		return w.streams.WriteFrom(ctx, p, r)
	}
	data, err := ReadAll(r, name)
	if err != nil {
		return err
	}
	return w.files.WriteFile(ctx, p, data)
}

// ReadAll reads r, the content of the file called name, to its end. More than
// MaxFile bytes are ErrOutputLimit. It is for backends.
func ReadAll(r io.Reader, name string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxFile {
		return nil, TooLarge(name)
	}
	return data, nil
}

// TooLarge is the error for a file of more than MaxFile bytes. It is for
// backends.
func TooLarge(name string) error {
	return &Error{Kind: ErrOutputLimit, Op: "read", Object: name, Err: fmt.Errorf("the file has more than %d bytes", MaxFile), Hint: "read it in parts with Open"}
}

// Stat describes what name leads to.
func (w *Workspace) Stat(ctx context.Context, name string) (Entry, error) {
	p, err := w.file(ctx, "stat", name)
	if err != nil {
		return Entry{}, err
	}
	return w.files.Stat(ctx, p)
}

// ReadDir lists a directory's direct entries, sorted by name.
func (w *Workspace) ReadDir(ctx context.Context, name string) ([]Entry, error) {
	p, err := w.file(ctx, "list", name)
	if err != nil {
		return nil, err
	}
	return w.files.ReadDir(ctx, p)
}

// MkdirAll makes a directory and its missing parents.
func (w *Workspace) MkdirAll(ctx context.Context, name string) error {
	p, err := w.file(ctx, "mkdir", name)
	if err != nil {
		return err
	}
	return w.files.MkdirAll(ctx, p)
}

// Remove removes a file, a symbolic link itself, or a directory with all in it.
// A missing path is an error. The working directory and those above it are
// refused with ErrInvalid, also under other names that lead to them.
func (w *Workspace) Remove(ctx context.Context, name string) error {
	p, err := w.file(ctx, "remove", name)
	if err != nil {
		return err
	}
	dir, err := w.WorkingDir(ctx)
	if err != nil {
		return err
	}
	refuse := func() error {
		return &Error{Kind: ErrInvalid, Op: "remove", Object: name, Err: errors.New("the working directory is in it"), Hint: "remove what is in the directory"}
	}
	if within(dir, p) {
		return refuse()
	}
	if w.realpath != nil {
		// The link itself is removed when p is one, so only its parent counts.
		parent, err := w.realpath.Realpath(ctx, path.Dir(p))
		if err != nil {
			return err
		}
		if within(dir, path.Join(parent, path.Base(p))) {
			return refuse()
		}
	}
	return w.files.Remove(ctx, p)
}

// Exists reports whether name leads to something. That there is no answer is an
// error.
func (w *Workspace) Exists(ctx context.Context, name string) (bool, error) {
	p, err := w.file(ctx, "exists", name)
	if err != nil {
		return false, err
	}
	return w.files.Exists(ctx, p)
}
