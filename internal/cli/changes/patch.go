package changes

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"unicode"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"
)

// MaxShown is how large a file may be of which a patch shows the lines, in
// bytes.
const MaxShown = 1 << 20

// Patch writes a change as git shows one: "git apply" and "patch -p1" take it,
// but for binary and very large files, of which it only says that they differ.
func (f *Folder) Patch(w io.Writer, c Change, content Source) error {
	if c.After != nil && c.After.Kind == Dir || c.After == nil && c.Before.Kind == Dir {
		return nil // folders come and go with what is in them
	}
	// What is on the host now is what the reader knows, and is not always what
	// was copied.
	now, err := f.look(c.Path)
	if err != nil {
		return err
	}
	c.Before = now
	if equal(c.Before, c.After) {
		return nil
	}
	before, beforeText, err := f.side(c.Before, func() (io.ReadCloser, error) { return f.root.Open(c.Path) })
	if err != nil {
		return err
	}
	after, afterText, err := f.side(c.After, func() (io.ReadCloser, error) { return content(c.Path) })
	if err != nil {
		return err
	}
	var b bytes.Buffer
	oldName, newName := quote("a/"+c.Path), quote("b/"+c.Path)
	fmt.Fprintf(&b, "diff --git %s %s\n", oldName, newName)
	switch oldMode, newMode := gitMode(c.Before), gitMode(c.After); {
	case oldMode == "":
		fmt.Fprintf(&b, "new file mode %s\n", newMode)
		oldName = "/dev/null"
	case newMode == "":
		fmt.Fprintf(&b, "deleted file mode %s\n", oldMode)
		newName = "/dev/null"
	case oldMode != newMode:
		fmt.Fprintf(&b, "old mode %s\nnew mode %s\n", oldMode, newMode)
	}
	switch {
	case c.Word() == "mode changed":
	case beforeText && afterText:
		// Its first line is for another form of patch.
		_, lines, _ := bytes.Cut(diff.Diff(oldName, before, newName, after), []byte("\n"))
		b.Write(lines)
	default:
		fmt.Fprintf(&b, "Binary files %s and %s differ\n", oldName, newName)
	}
	_, err = w.Write(b.Bytes())
	return err
}

// side is one side of a patch, and whether its lines can be shown.
func (f *Folder) side(e *Entry, open func() (io.ReadCloser, error)) ([]byte, bool, error) {
	switch {
	case e == nil || e.Kind == Dir:
		return nil, true, nil
	case e.Kind == Link:
		return []byte(e.Target), true, nil
	case e.Kind != File || e.Size > MaxShown:
		return nil, false, nil
	}
	r, err := open()
	if err != nil {
		return nil, false, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, MaxShown+1))
	return data, len(data) <= MaxShown && utf8.Valid(data) && bytes.IndexByte(data, 0) < 0, err
}

// gitMode is an entry's mode as git writes it; empty for nothing.
func gitMode(e *Entry) string {
	switch {
	case e == nil || e.Kind == Dir:
		return ""
	case e.Kind == Link:
		return "120000"
	case e.Mode&0o100 != 0:
		return "100755"
	}
	return "100644"
}

// quote writes a name with characters in it that would confuse a reader as git
// does.
func quote(name string) string {
	for _, r := range name {
		if r == '"' || r == '\\' || r == utf8.RuneError || !unicode.IsPrint(r) {
			return strconv.Quote(name)
		}
	}
	return name
}
