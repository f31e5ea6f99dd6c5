// Package changes takes back what was done to a copy of a host folder: it
// lists a folder as a tar shows it, compares two lists, says which of the
// differences can be made on the host, shows them as a patch, and makes them.
//
//	base, err := changes.Read(tar of the folder, as it was copied)
//	now, err := changes.Read(tar of the copy, later)
//	for _, c := range changes.Compare(base, now) { … }
//
// The copy is a stranger's: its tar is taken to be hostile. A [Folder] changes
// nothing outside of itself, goes through no symbolic link, makes none that
// leads out, and makes no devices. What git runs or obeys, all that is below a
// name ".git", is not taken back at all.
package changes

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// MaxEntries bounds a list.
const MaxEntries = 1 << 20

// Kind is what there is under a name.
type Kind string

// The kinds.
const (
	File  Kind = "file"
	Dir   Kind = "dir"
	Link  Kind = "link"  // a symbolic link
	Other Kind = "other" // a device, a pipe: never made
)

// Entry is what is known of one name.
type Entry struct {
	Kind   Kind        `json:"kind"`
	Mode   fs.FileMode `json:"mode,omitempty"`   // of a file: permission bits
	Size   int64       `json:"size,omitempty"`   // of a file, in bytes
	Sum    string      `json:"sum,omitempty"`    // of a file: SHA-256 of its content, in hexadecimal
	Target string      `json:"target,omitempty"` // of a link
}

// Listing is a folder's content, by paths relative to it, with slashes, clean.
// The folder itself is not in it.
type Listing map[string]Entry

// Read lists a tar whose top is the folder itself, to its end.
func Read(ctx context.Context, r io.Reader) (Listing, error) {
	list := Listing{}
	tr := tar.NewReader(r)
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			// The rest is padding; the sender wants to be heard to its end.
			_, err := io.Copy(io.Discard, r)
			return list, err
		}
		if err != nil {
			return nil, fmt.Errorf("read the tar: %w", err)
		}
		if err := list.add(h, tr); err != nil {
			return nil, fmt.Errorf("%q: %w", h.Name, err)
		}
	}
}

func (l Listing) add(h *tar.Header, r io.Reader) error {
	name, err := clean(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return errors.New("this is no folder")
		}
		return nil
	}
	if len(l) >= MaxEntries {
		return fmt.Errorf("there are more than %d files and folders", MaxEntries)
	}
	if _, twice := l[name]; twice {
		return errors.New("the name comes twice")
	}
	e := Entry{Kind: Other}
	switch h.Typeflag {
	case tar.TypeDir:
		e = Entry{Kind: Dir}
	case tar.TypeSymlink:
		e = Entry{Kind: Link, Target: h.Linkname}
	case tar.TypeReg:
		sum := sha256.New()
		n, err := io.Copy(sum, r)
		if err != nil {
			return err
		}
		e = Entry{Kind: File, Mode: fs.FileMode(h.Mode) & fs.ModePerm, Size: n, Sum: hex.EncodeToString(sum.Sum(nil))}
	case tar.TypeLink: // another name of a file
		first, err := clean(h.Linkname)
		if err != nil {
			return fmt.Errorf("hard link to %q: %w", h.Linkname, err)
		}
		known, ok := l[first]
		if !ok || known.Kind != File {
			return fmt.Errorf("hard link to %q, which is no file before it", h.Linkname)
		}
		e = known
	}
	l[name] = e
	return nil
}

// clean checks a name and returns it in its one form.
func clean(name string) (string, error) {
	out := path.Clean(strings.TrimSuffix(name, "/"))
	if name == "" || strings.HasPrefix(name, "/") || out == ".." || strings.HasPrefix(out, "../") || strings.IndexByte(name, 0) >= 0 {
		return "", errors.New("the name points outside of the folder")
	}
	return out, nil
}

// Change is a difference: a name that came (Before is nil), went (After is
// nil), or is something else now.
type Change struct {
	Path          string
	Before, After *Entry
}

// Word says what happened: "added", "removed", "changed" or "mode changed".
func (c Change) Word() string {
	switch {
	case c.Before == nil:
		return "added"
	case c.After == nil:
		return "removed"
	case c.Before.Kind == c.After.Kind && c.Before.Sum == c.After.Sum && c.Before.Target == c.After.Target:
		return "mode changed"
	}
	return "changed"
}

// Compare lists the differences, by name. What is below a name ".git" and what
// Hutch itself keeps in a workspace, ".hutch", is not looked at; Guarded counts
// the former.
func Compare(before, after Listing) []Change {
	var out []Change
	for _, name := range names(before, after) {
		if ours(name) || gits(name) {
			continue
		}
		if c, differs := compare(before, after, name); differs {
			out = append(out, c)
		}
	}
	return out
}

// Guarded counts the differences below names ".git", which are never taken back.
func Guarded(before, after Listing) int {
	n := 0
	for _, name := range names(before, after) {
		if _, differs := compare(before, after, name); differs && gits(name) {
			n++
		}
	}
	return n
}

func names(before, after Listing) []string {
	all := maps.Clone(before)
	if all == nil {
		all = Listing{}
	}
	maps.Copy(all, after)
	return slices.Sorted(maps.Keys(all))
}

func compare(before, after Listing, name string) (Change, bool) {
	c := Change{Path: name}
	if e, ok := before[name]; ok {
		c.Before = &e
	}
	if e, ok := after[name]; ok {
		c.After = &e
	}
	return c, c.Before == nil || c.After == nil || !same(*c.Before, *c.After)
}

// same reports whether two entries are one. Of a folder only that it is one
// counts: what is in it has names of its own.
func same(a, b Entry) bool {
	a.Size, b.Size = 0, 0 // the sum says it
	return a == b
}

// gits reports whether a name is a repository's own. Git runs programs that are
// named there, so whoever may write there may run anything.
func gits(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if strings.EqualFold(part, ".git") {
			return true
		}
	}
	return false
}

func ours(name string) bool { return name == ".hutch" || strings.HasPrefix(name, ".hutch/") }

// Within reports whether a path is one of those given, or below one. Without
// any, every path is.
func Within(name string, of []string) bool {
	for _, p := range of {
		if name == p || p == "." || strings.HasPrefix(name, p+"/") {
			return true
		}
	}
	return len(of) == 0
}
