package filesystem

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/workspace"
)

// bom is the byte order mark that some programs put before UTF-8.
const bom = "\uFEFF"

// hashOf returns the 12 digits by which a model names a version of a file.
func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])[:12]
}

func binary(head []byte) bool {
	return bytes.IndexByte(head[:min(len(head), BinaryProbe)], 0) >= 0
}

type readArgs struct {
	Path   string `json:"path" jsonschema:"the file, relative to the working directory or absolute"`
	Offset int    `json:"offset,omitempty" jsonschema:"lines to skip before reading; 0 when left out"`
	Limit  int    `json:"limit,omitempty" jsonschema:"most lines to read; 2000 when left out"`
}

// open opens a file that may be read. The policy is applied to the file that
// was opened, which also spares a way to the box and back; where there is none,
// the path decides whether that may be said. An error is ready for the loop;
// syscall.EISDIR is in that of a directory.
func (s *session) open(ctx context.Context, name string) (place, workspace.Entry, io.ReadCloser, error) {
	if name == "" {
		return place{}, workspace.Entry{}, nil, errEmptyPath()
	}
	full, err := s.ws.Resolve(ctx, name)
	if err != nil {
		return place{}, workspace.Entry{}, nil, tell(err)
	}
	info, f, err := s.ws.OpenFile(ctx, full, 0)
	if err != nil {
		if _, cerr := s.check(ctx, name, reads); cerr != nil {
			return place{}, workspace.Entry{}, nil, cerr
		}
		return place{}, workspace.Entry{}, nil, tell(err)
	}
	p, err := s.permit(ctx, name, full, info.Path, reads)
	if err != nil {
		_ = f.Close() // nothing was read
		return place{}, workspace.Entry{}, nil, err
	}
	return p, info, f, nil
}

func (s *session) readFile(ctx context.Context, _ *agent.Call, a readArgs) (string, error) {
	if a.Offset < 0 || a.Limit < 0 {
		return "", agent.Retryf("offset and limit must not be negative")
	}
	if a.Limit == 0 {
		a.Limit = DefaultLines
	}
	p, info, f, err := s.open(ctx, a.Path)
	if errors.Is(err, syscall.EISDIR) {
		return "", agent.Retryf("%s is a directory: list it instead", a.Path)
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 64<<10)
	head, err := r.Peek(BinaryProbe)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", tell(err)
	}
	if binary(head) {
		return fmt.Sprintf("[binary file, %s]", size(info.Size)), nil
	}
	if len(head) == 0 {
		return "(empty file)", nil
	}
	// A small file is read as a whole, for its hash and its number of lines.
	var sum hash
	small := info.Size >= 0 && info.Size <= MaxSearchFile
	if small {
		sum = newHash()
	}
	w := &window{skip: a.Offset, lines: a.Limit, chars: s.fs.opt.MaxReadChars - 300} // the header and the hint have their share
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if w.full && !small {
			break
		}
		text, length, err := line(r, sum, w.chars+1)
		if err != nil && !errors.Is(err, io.EOF) {
			return "", tell(err)
		}
		if length == 0 && err != nil {
			break
		}
		if n == 0 {
			text = strings.TrimPrefix(text, bom)
		}
		w.add(text, length)
		if err != nil {
			break
		}
	}
	if w.next == 0 && w.total <= a.Offset {
		return "", agent.Retryf("offset %d is past the end of %s, which has %d lines", a.Offset, a.Path, w.total)
	}
	var b strings.Builder
	if !s.fs.opt.NoHashes {
		fmt.Fprintf(&b, "%s (lines %d-%d", s.short(p.path), a.Offset+1, w.last)
		if small {
			fmt.Fprintf(&b, " of %d, hash %s", w.total, sum.sum())
		}
		b.WriteString(")\n")
	}
	b.WriteString(w.out.String())
	switch {
	case w.full && small:
		fmt.Fprintf(&b, "[%d more lines; go on with offset=%d]\n", w.total-w.last, w.last)
	case w.full:
		fmt.Fprintf(&b, "[there is more; go on with offset=%d; the file has %s]\n", w.last, size(info.Size))
	}
	return b.String(), nil
}

// window collects the lines that were asked for.
type window struct {
	skip, lines, chars int

	out   strings.Builder
	total int  // lines so far
	next  int  // lines in out
	last  int  // number of the last line that was shown or named, from 1
	used  int  // characters
	full  bool // the next line does not fit, or is not wanted
}

func (w *window) add(text string, length int) {
	w.total++
	if w.total <= w.skip || w.full {
		return
	}
	if w.next >= w.lines {
		w.full = true
		return
	}
	row := fmt.Sprintf("%6d\t%s\n", w.total, strings.TrimRight(text, "\r\n"))
	n := utf8.RuneCountInString(row)
	if n > w.chars {
		// It does not fit into any result: name it, and go on after it.
		row = fmt.Sprintf("%6d\t[this line has %d bytes, too long to show; skip it with offset=%d, or use a command to see parts of it]\n", w.total, length, w.total)
		n = utf8.RuneCountInString(row)
	}
	if w.used+n > w.chars {
		w.full = true
		return
	}
	w.out.WriteString(row)
	w.used += n
	w.next++
	w.last = w.total
}

// line reads one line. Of one that is long it returns only as many bytes as
// could matter, and its whole length.
func line(r *bufio.Reader, sum hash, most int) (text string, length int, err error) {
	var kept []byte
	for {
		part, err := r.ReadSlice('\n')
		if sum.h != nil {
			sum.h.Write(part) // never fails
		}
		length += len(part)
		if room := most*utf8.UTFMax - len(kept); room > 0 {
			kept = append(kept, part[:min(len(part), room)]...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return workspace.Text(kept), length, err
	}
}

func size(n int64) string {
	if n < 0 {
		return "size not known"
	}
	return fmt.Sprintf("%d bytes", n)
}

// content is a whole file, for a change.
type content struct {
	data   []byte
	exists bool
}

// whole reads a file that is to be changed.
func (s *session) whole(ctx context.Context, p place) (content, error) {
	info, err := s.ws.Stat(ctx, p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return content{}, nil
	}
	if err != nil {
		return content{}, tell(err)
	}
	if info.Dir {
		return content{}, agent.Retryf("%s is a directory", p.given)
	}
	if info.Size > MaxSearchFile {
		return content{}, agent.Retryf("%s has %d bytes; these tools change files of at most %d: use a command", p.given, info.Size, MaxSearchFile)
	}
	data, err := s.ws.ReadFile(ctx, p.path)
	if err != nil {
		return content{}, tell(err)
	}
	return content{data: data, exists: true}, nil
}

func (c content) expect(p place, want string) error {
	if want == "" {
		return nil
	}
	if !c.exists {
		return agent.Retryf("%s does not exist, although expected_hash is given", p.given)
	}
	if got := hashOf(c.data); got != want {
		return agent.Retryf("%s has changed since you read it (its hash is now %s): read it again", p.given, got)
	}
	return nil
}

// put writes a changed file, after a review, unless somebody else changed it
// meanwhile. The caller has the file's turn.
func (s *session) put(ctx context.Context, call *agent.Call, p place, old content, data []byte) error {
	change := Changed{Path: p.path, Kind: "changed", Diff: s.diff(p, old.data, data)}
	if !old.exists {
		change.Kind = "created"
	}
	if err := s.review(ctx, call, change); err != nil {
		return err
	}
	now, err := s.whole(ctx, p)
	if err != nil {
		return err
	}
	if now.exists != old.exists || !bytes.Equal(now.data, old.data) {
		return agent.Retryf("%s was changed by somebody else meanwhile: read it again", p.given)
	}
	if err := s.ws.WriteFile(ctx, p.path, data); err != nil {
		return tell(err)
	}
	call.Emit(change)
	return nil
}

func (s *session) review(ctx context.Context, call *agent.Call, change Changed) error {
	if s.fs.opt.Review == nil {
		return nil
	}
	if err := s.fs.opt.Review(ctx, call, change); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return agent.Deniedf("the change of %s was refused: %v", s.short(change.Path), err)
	}
	return nil
}

func (s *session) diff(p place, before, after []byte) string {
	if len(before) > MaxDiffSource || len(after) > MaxDiffSource || binary(before) || binary(after) {
		return ""
	}
	name := s.short(p.path)
	text := workspace.Text(diff.Diff("a/"+name, before, "b/"+name, after))
	if len(text) > MaxDiffChars {
		const mark = "\n[diff cut]\n"
		text = strings.ToValidUTF8(text[:MaxDiffChars-len(mark)], "") + mark
	}
	return text
}

// toChange finds the file that a tool is to change, as it is now. Until done is
// called, no other tool changes it.
func (s *session) toChange(ctx context.Context, name string) (p place, old content, done func(), err error) {
	if p, err = s.check(ctx, name, writes); err != nil {
		return p, old, nil, err
	}
	if done, err = s.exclusive(ctx, p.real); err != nil {
		return p, old, nil, err
	}
	if old, err = s.whole(ctx, p); err != nil {
		done()
		return p, old, nil, err
	}
	return p, old, done, nil
}

type writeArgs struct {
	Path         string `json:"path" jsonschema:"the file"`
	Content      string `json:"content" jsonschema:"all of its new text"`
	ExpectedHash string `json:"expected_hash,omitempty" jsonschema:"refuse the write unless the file still has this hash"`
}

func (s *session) writeFile(ctx context.Context, call *agent.Call, a writeArgs) (string, error) {
	p, old, done, err := s.toChange(ctx, a.Path)
	if err != nil {
		return "", err
	}
	defer done()
	if err := old.expect(p, a.ExpectedHash); err != nil {
		return "", err
	}
	if !old.exists {
		parent, err := s.ws.Stat(ctx, path.Dir(p.real))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "", agent.Retryf("the directory %s does not exist: create it first", s.short(path.Dir(p.path)))
		case err != nil:
			return "", tell(err)
		case !parent.Dir:
			return "", agent.Retryf("%s is not a directory", s.short(path.Dir(p.path)))
		}
	}
	data := []byte(a.Content)
	if err := s.put(ctx, call, p, old, data); err != nil {
		return "", err
	}
	verb := "Wrote"
	if !old.exists {
		verb = "Created"
	}
	return s.wrote(verb, p, data, ""), nil
}

func (s *session) wrote(verb string, p place, data []byte, more string) string {
	text := fmt.Sprintf("%s %s: %s%d characters, %d lines", verb, s.short(p.path), more, utf8.RuneCount(data), lines(data))
	if !s.fs.opt.NoHashes {
		text += ", hash " + hashOf(data)
	}
	return text + "."
}

func lines(data []byte) int {
	n := bytes.Count(data, []byte("\n"))
	if len(data) > 0 && data[len(data)-1] != '\n' {
		n++
	}
	return n
}

type replacement struct {
	OldText string `json:"old_text" jsonschema:"text that is in the file exactly once"`
	NewText string `json:"new_text" jsonschema:"what to put in its place"`
}

type editArgs struct {
	Path         string        `json:"path" jsonschema:"the file"`
	OldText      *string       `json:"old_text" jsonschema:"text that is in the file exactly once"`
	NewText      *string       `json:"new_text" jsonschema:"what to put in its place"`
	Replacements []replacement `json:"replacements,omitempty" jsonschema:"several changes, instead of old_text and new_text"`
	ExpectedHash string        `json:"expected_hash,omitempty" jsonschema:"refuse the edit unless the file still has this hash"`
}

func (s *session) editFile(ctx context.Context, call *agent.Call, a editArgs) (string, error) {
	edits := a.Replacements
	switch {
	case a.OldText != nil && len(edits) > 0:
		return "", agent.Retryf("give either old_text and new_text, or replacements")
	case a.OldText != nil && a.NewText != nil:
		edits = []replacement{{*a.OldText, *a.NewText}}
	case a.OldText != nil:
		return "", agent.Retryf("new_text is missing; to delete text, give an empty one")
	case len(edits) == 0:
		return "", agent.Retryf("give old_text and new_text, or replacements")
	}
	p, old, done, err := s.toChange(ctx, a.Path)
	if err != nil {
		return "", err
	}
	defer done()
	if !old.exists {
		return "", agent.Retryf("%s does not exist: write it instead", a.Path)
	}
	if binary(old.data) {
		return "", agent.Retryf("%s is a binary file, which cannot be edited as text", a.Path)
	}
	if err := old.expect(p, a.ExpectedHash); err != nil {
		return "", err
	}
	data, err := replace(old.data, edits)
	if err != nil {
		return "", err
	}
	if len(data) > MaxSearchFile {
		return "", agent.Retryf("%s would have %d bytes; these tools change files of at most %d", a.Path, len(data), MaxSearchFile)
	}
	if err := s.put(ctx, call, p, old, data); err != nil {
		return "", err
	}
	what := "1 replacement, "
	if len(edits) > 1 {
		what = fmt.Sprintf("%d replacements, ", len(edits))
	}
	return s.wrote("Edited", p, data, what), nil
}

// replace makes all edits or none. The model sees and writes lines that end in
// \n; in a file whose lines all end in \r\n that is what they go on to do. The
// file's other bytes are not touched, whether they are text or not.
func replace(data []byte, edits []replacement) ([]byte, error) {
	text := string(data)
	mark := ""
	if strings.HasPrefix(text, bom) {
		mark, text = bom, text[len(bom):]
	}
	breaks := strings.Count(text, "\n")
	crlf := breaks > 0 && strings.Count(text, "\r\n") == breaks
	plain := func(s string) string { return s }
	if crlf {
		plain = func(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }
	}
	text = plain(text)
	for i, e := range edits {
		which := ""
		if len(edits) > 1 {
			which = fmt.Sprintf("replacement %d of %d: ", i+1, len(edits))
		}
		before, after := plain(e.OldText), plain(e.NewText)
		if before == "" {
			return nil, agent.Retryf("%sold_text is empty; nothing was changed", which)
		}
		if before == after {
			return nil, agent.Retryf("%sold_text and new_text are the same; nothing was changed", which)
		}
		switch n := occurrences(text, before); n {
		case 1:
			text = strings.Replace(text, before, after, 1)
		case 0:
			return nil, agent.Retryf("%sold_text was found 0 times; nothing was changed. It has to be exactly as in the file, with its white space", which)
		default:
			return nil, agent.Retryf("%sold_text was found %d times; nothing was changed. Give more of the text around it, so that it is found once", which, n)
		}
	}
	if crlf {
		text = strings.ReplaceAll(text, "\n", "\r\n")
	}
	return []byte(mark + text), nil
}

// occurrences counts also those that overlap: each is a place that could be
// meant.
func occurrences(text, sub string) int {
	n := 0
	for at := 0; ; {
		i := strings.Index(text[at:], sub)
		if i < 0 {
			return n
		}
		n++
		at += i + 1
	}
}

type pathArgs struct {
	Path string `json:"path" jsonschema:"the path, relative to the working directory or absolute"`
}

func (s *session) createDirectory(ctx context.Context, call *agent.Call, a pathArgs) (string, error) {
	p, err := s.check(ctx, a.Path, writes)
	if err != nil {
		return "", err
	}
	exists, err := s.ws.Exists(ctx, p.path)
	if err != nil {
		return "", tell(err)
	}
	change := Changed{Path: p.path, Kind: "directory"}
	if !exists {
		if err := s.review(ctx, call, change); err != nil {
			return "", err
		}
	}
	if err := s.ws.MkdirAll(ctx, p.path); err != nil {
		return "", tell(err)
	}
	if exists {
		return fmt.Sprintf("%s exists.", s.short(p.path)), nil
	}
	call.Emit(change)
	return fmt.Sprintf("Created %s.", s.short(p.path)), nil
}

func (s *session) fileInfo(ctx context.Context, _ *agent.Call, a pathArgs) (string, error) {
	p, err := s.check(ctx, a.Path, lists)
	if err != nil {
		return "", err
	}
	info, err := s.ws.Stat(ctx, p.path)
	if err != nil {
		return "", tell(err)
	}
	var b strings.Builder
	kind := "file"
	if info.Dir {
		kind = "directory"
	}
	fmt.Fprintf(&b, "path: %s\nkind: %s\n", s.short(p.path), kind)
	if dir, err := s.ws.Realpath(ctx, path.Dir(p.path)); err == nil && path.Join(dir, path.Base(p.path)) != p.real {
		fmt.Fprintf(&b, "symbolic link to: %s\n", p.real)
	}
	if info.Dir {
		return b.String(), nil
	}
	fmt.Fprintf(&b, "size: %s\n", size(info.Size))
	if info.Size > MaxSearchFile || info.Size < 0 {
		b.WriteString("lines and hash: not computed for a file of this size\n")
		return b.String(), nil
	}
	// Reading it is an access of its own.
	if err := s.policy(a.Path, []string{relative(s.rootNow(), p.real)}, reads); err != nil {
		return "", err
	}
	data, err := s.ws.ReadFile(ctx, p.path)
	if err != nil {
		return "", tell(err)
	}
	if binary(data) {
		b.WriteString("content: binary\n")
	} else {
		fmt.Fprintf(&b, "lines: %d\n", lines(data))
	}
	fmt.Fprintf(&b, "hash: %s\n", hashOf(data))
	return b.String(), nil
}

func (s *session) rootNow() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.root
}
