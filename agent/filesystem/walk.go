package filesystem

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/workspace"
)

func (s *session) listDirectory(ctx context.Context, _ *agent.Call, a struct {
	Path string `json:"path,omitempty" jsonschema:"the directory; the working directory when left out"`
}) (string, error) {
	if a.Path == "" {
		a.Path = "."
	}
	p, err := s.check(ctx, a.Path, lists)
	if err != nil {
		return "", err
	}
	entries, err := s.ws.ReadDir(ctx, p.path)
	if err != nil {
		return "", tell(err)
	}
	rel := relative(s.rootNow(), p.real)
	var b strings.Builder
	shown, hidden := 0, 0
	for _, e := range entries {
		if !e.Dir && !s.visible(path.Join(rel, e.Name)) || e.Dir && s.denied(path.Join(rel, e.Name)) {
			hidden++
			continue
		}
		if shown++; shown > MaxEntries {
			continue
		}
		if e.Dir {
			fmt.Fprintf(&b, "%s/\n", name(e.Name))
		} else {
			fmt.Fprintf(&b, "%s (%s)\n", name(e.Name), size(e.Size))
		}
	}
	switch {
	case shown > MaxEntries:
		fmt.Fprintf(&b, "[%d more entries are not shown: use find_files or a command]\n", shown-MaxEntries)
	case shown == 0 && hidden == 0:
		return "(empty directory)", nil
	}
	if hidden > 0 {
		fmt.Fprintf(&b, "[%d entries are not accessible]\n", hidden)
	}
	return b.String(), nil
}

// denied reports whether a directory may not be looked into.
func (s *session) denied(rel string) bool {
	_, ok := matchAny(s.fs.deny, rel)
	return ok
}

// name shows a name that may hold anything, on one line.
func name(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }) {
		return fmt.Sprintf("%q", s)
	}
	return s
}

// errEnough ends a walk that has found what it may.
var errEnough = errors.New("enough")

// walk calls f for each file below a directory, sorted, without names that
// begin with a dot. It visits each directory once, whatever links lead to it,
// and none outside of the root. The note that it returns says what it left
// out.
func (s *session) walk(ctx context.Context, base place, f func(e workspace.Entry, rel string) error) (note string, err error) {
	root := s.rootNow()
	dirs, entries, unread := 0, 0, 0
	seen := map[string]bool{}
	var visit func(dir, real, rel string) error
	visit = func(dir, real, rel string) error {
		if seen[real] {
			return nil
		}
		seen[real] = true
		if dirs++; dirs > MaxWalkDirs {
			note = fmt.Sprintf("[stopped after %d directories: search a smaller one]", MaxWalkDirs)
			return errEnough
		}
		list, err := s.ws.ReadDir(ctx, dir)
		if err != nil {
			if rel != "" && agent.Correctable(err) {
				unread++ // one directory that cannot be read does not hide the others
				return nil
			}
			return err
		}
		for _, e := range list {
			if strings.HasPrefix(e.Name, ".") {
				continue
			}
			if entries++; entries > MaxWalkEntries {
				note = fmt.Sprintf("[stopped after %d entries: search a smaller directory]", MaxWalkEntries)
				return errEnough
			}
			below1 := path.Join(rel, e.Name)
			fromRoot := relative(root, path.Join(real, e.Name))
			if !e.Dir {
				if !s.visible(fromRoot) {
					continue
				}
				if err := f(e, below1); err != nil {
					return err
				}
				continue
			}
			if s.denied(fromRoot) {
				continue
			}
			sub, err := s.ws.Realpath(ctx, e.Path)
			if err != nil {
				if !agent.Correctable(err) {
					return err
				}
				continue
			}
			if !below(root, sub) || s.denied(relative(root, sub)) {
				continue // a link that leads out
			}
			if err := visit(e.Path, sub, below1); err != nil {
				return err
			}
		}
		return nil
	}
	err = visit(base.path, base.real, "")
	if errors.Is(err, errEnough) {
		err = nil
	}
	if unread > 0 && note == "" {
		note = fmt.Sprintf("[%d directories could not be read]", unread)
	}
	return note, err
}

// readable reports whether a file that a walk came upon, perhaps by a link, is
// one that may be read.
func (s *session) readable(ctx context.Context, e workspace.Entry) (bool, error) {
	real, err := s.ws.Realpath(ctx, e.Path)
	if err != nil {
		if agent.Correctable(err) {
			return false, nil
		}
		return false, err
	}
	root := s.rootNow()
	return below(root, real) && s.visible(relative(root, real)), nil
}

// glob compiles a pattern for paths below a directory: * and ? within a name,
// ** any number of directories, {a,b} one of several.
func glob(pattern string) (*regexp.Regexp, error) {
	switch {
	case pattern == "":
		return nil, agent.Retryf("the pattern is empty")
	case strings.HasPrefix(pattern, "/"):
		return nil, agent.Retryf("the pattern %s is absolute; it has to be relative to path", pattern)
	case slices.Contains(strings.Split(pattern, "/"), ".."):
		return nil, agent.Retryf("the pattern %s has .. in it; give the directory as path", pattern)
	}
	pattern = strings.TrimPrefix(pattern, "./")
	var b strings.Builder
	b.WriteString("(?s)^")
	depth := 0
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; c {
		case '*':
			if !strings.HasPrefix(pattern[i:], "**") {
				b.WriteString("[^/]*")
				continue
			}
			i++
			if i+1 < len(pattern) && pattern[i+1] == '/' {
				i++
				b.WriteString("(?:.*/)?")
			} else {
				b.WriteString(".*")
			}
		case '?':
			b.WriteString("[^/]")
		case '[':
			end := strings.IndexByte(pattern[i+1:], ']')
			if end < 1 {
				return nil, agent.Retryf("the pattern %s has a [ without a ]", pattern)
			}
			class := pattern[i+1 : i+1+end]
			if class[0] == '!' {
				class = "^" + class[1:]
			}
			b.WriteString("[" + strings.ReplaceAll(class, `\`, `\\`) + "]")
			i += end + 1
		case '{':
			depth++
			b.WriteString("(?:")
		case '}':
			if depth == 0 {
				b.WriteString(`\}`)
				continue
			}
			depth--
			b.WriteString(")")
		case ',':
			if depth > 0 {
				b.WriteString("|")
			} else {
				b.WriteString(",")
			}
		default:
			b.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		}
	}
	b.WriteString("$")
	re, err := regexp.Compile(b.String())
	if err != nil {
		return nil, agent.Retryf("the pattern %s is malformed", pattern)
	}
	return re, nil
}

func (s *session) findFiles(ctx context.Context, _ *agent.Call, a struct {
	Pattern string `json:"pattern" jsonschema:"pattern for the path below the directory, for example **/*.go"`
	Path    string `json:"path,omitempty" jsonschema:"the directory; the working directory when left out"`
}) (string, error) {
	re, err := glob(a.Pattern)
	if err != nil {
		return "", err
	}
	base, err := s.directory(ctx, a.Path)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	found := 0
	note, err := s.walk(ctx, base, func(e workspace.Entry, rel string) error {
		if !re.MatchString(rel) {
			return nil
		}
		if found++; found > MaxEntries {
			return errEnough
		}
		b.WriteString(name(s.short(e.Path)) + "\n")
		return nil
	})
	if err != nil {
		return "", tell(err)
	}
	if found > MaxEntries {
		fmt.Fprintf(&b, "[more than %d files match: narrow the pattern]\n", MaxEntries)
	}
	if found == 0 {
		b.WriteString("(no files match)\n")
		if !strings.Contains(a.Pattern, "**") {
			b.WriteString("[the pattern is for the top of the directory; begin it with **/ to look below]\n")
		}
	}
	if note != "" {
		b.WriteString(note + "\n")
	}
	return b.String(), nil
}

// directory is a base for searches.
func (s *session) directory(ctx context.Context, name string) (place, error) {
	if name == "" {
		name = "."
	}
	p, err := s.check(ctx, name, lists)
	if err != nil {
		return place{}, err
	}
	info, err := s.ws.Stat(ctx, p.path)
	if err != nil {
		return place{}, tell(err)
	}
	if !info.Dir {
		return place{}, agent.Retryf("%s is not a directory", name)
	}
	return p, nil
}

// search goes through the lines of files.
type search struct {
	s       *session
	re      *regexp.Regexp
	context int // lines around a match

	out           strings.Builder
	matches       int
	read          int64
	large, unread int
	binaries      int
	stopped       string
}

func (q *search) file(ctx context.Context, e workspace.Entry) error {
	ok, err := q.s.readable(ctx, e)
	if err != nil || !ok {
		return err
	}
	if e.Size > MaxSearchFile {
		q.large++
		return nil
	}
	if q.read += max(e.Size, 0); q.read > MaxSearchBytes {
		q.stopped = fmt.Sprintf("[stopped after reading %d bytes: search a smaller directory]", MaxSearchBytes)
		return errEnough
	}
	f, err := q.s.ws.Open(ctx, e.Path, 0)
	if err != nil {
		if !agent.Correctable(err) {
			return err
		}
		q.unread++
		return nil
	}
	defer f.Close()
	r := bufio.NewReaderSize(io.LimitReader(f, MaxSearchFile), 64<<10)
	head, err := r.Peek(BinaryProbe)
	if err != nil && !errors.Is(err, io.EOF) {
		return q.skip(err)
	}
	if binary(head) {
		q.binaries++
		return nil
	}
	return q.lines(ctx, r, q.s.short(e.Path))
}

func (q *search) skip(err error) error {
	if agent.Correctable(err) {
		q.unread++
		return nil
	}
	return err
}

// lines searches one file. Lines before a match are kept until it is known
// whether they are wanted.
func (q *search) lines(ctx context.Context, r *bufio.Reader, file string) error {
	type kept struct {
		n    int
		text string
	}
	var before []kept
	after, last := 0, 0
	show := func(n int, sep, text string) {
		if q.context > 0 && q.out.Len() > 0 && (last == 0 || n > last+1) {
			q.out.WriteString("--\n")
		}
		fmt.Fprintf(&q.out, "%s%s%d%s%s\n", name(file), sep, n, sep, clipLine(text))
		last = n
	}
	for n := 1; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		// A file of one line is held as a whole: it has MaxSearchFile bytes at most.
		text, length, err := line(r, hash{}, MaxSearchFile)
		if err != nil && !errors.Is(err, io.EOF) {
			return q.skip(err)
		}
		if length == 0 {
			return nil
		}
		text = strings.TrimRight(text, "\r\n")
		switch {
		case q.re.MatchString(text):
			if q.matches++; q.matches > MaxEntries {
				q.stopped = fmt.Sprintf("[more than %d matches: narrow the search]", MaxEntries)
				return errEnough
			}
			for _, k := range before {
				show(k.n, "-", k.text)
			}
			before = nil
			if at := q.re.FindStringIndex(text); at != nil && len(text) > MaxLineChars*4 {
				text = around(text, at[0])
			}
			show(n, ":", text)
			after = q.context
		case after > 0:
			after--
			show(n, "-", text)
		case q.context > 0:
			before = append(before, kept{n, clipLine(text)})
			if len(before) > q.context {
				before = before[1:]
			}
		}
		if q.out.Len() > MaxGrepOutput {
			q.stopped = fmt.Sprintf("[stopped after %d bytes of results: narrow the search]", MaxGrepOutput)
			return errEnough
		}
		if err != nil {
			return nil
		}
	}
}

// around cuts a huge line to the part with the match.
func around(text string, at int) string {
	from := max(0, at-100)
	to := min(len(text), from+MaxLineChars)
	cut := strings.ToValidUTF8(text[from:to], "")
	if from > 0 {
		cut = "…" + cut
	}
	return cut + " [line cut]"
}

func clipLine(text string) string {
	if strings.HasSuffix(text, " [line cut]") || utf8.RuneCountInString(text) <= MaxLineChars {
		return text
	}
	n := 0
	for i := range text {
		if n++; n > MaxLineChars {
			return text[:i] + " [line cut]"
		}
	}
	return text
}

func (q *search) result(note string) string {
	var b strings.Builder
	b.WriteString(q.out.String())
	if q.matches == 0 {
		b.WriteString("(no matches)\n")
	}
	for _, text := range []string{q.stopped, note} {
		if text != "" {
			b.WriteString(text + "\n")
		}
	}
	if q.large > 0 {
		fmt.Fprintf(&b, "[%d files of more than %d bytes were skipped]\n", q.large, MaxSearchFile)
	}
	if q.unread > 0 {
		fmt.Fprintf(&b, "[%d files could not be read]\n", q.unread)
	}
	return b.String()
}

func (s *session) searchFiles(ctx context.Context, _ *agent.Call, a struct {
	Pattern     string `json:"pattern" jsonschema:"regular expression"`
	Path        string `json:"path,omitempty" jsonschema:"the directory; the working directory when left out"`
	IncludeGlob string `json:"include_glob,omitempty" jsonschema:"only files whose path below the directory matches, for example **/*.py"`
}) (string, error) {
	re, err := regexp.Compile(a.Pattern)
	if err != nil {
		return "", agent.Retryf("the pattern is no regular expression: %w", err)
	}
	var include *regexp.Regexp
	if a.IncludeGlob != "" {
		if include, err = anywhere(a.IncludeGlob); err != nil {
			return "", err
		}
	}
	base, err := s.directory(ctx, a.Path)
	if err != nil {
		return "", err
	}
	q := &search{s: s, re: re}
	note, err := s.walk(ctx, base, func(e workspace.Entry, rel string) error {
		if include != nil && !include.MatchString(rel) {
			return nil
		}
		return q.file(ctx, e)
	})
	if err != nil {
		return "", tell(err)
	}
	return q.result(note), nil
}

// anywhere is glob, but a pattern without a slash is for names at any depth.
func anywhere(pattern string) (*regexp.Regexp, error) {
	if !strings.Contains(pattern, "/") {
		pattern = "**/" + pattern
	}
	return glob(pattern)
}
