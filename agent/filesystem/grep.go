package filesystem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/workspace"
)

// searchTimeout bounds a search program.
const searchTimeout = 120 * time.Second

// ripgrep reports whether the workspace has rg, which is asked once a run.
func (s *session) ripgrep(ctx context.Context) (bool, error) {
	if !s.ws.Supports(workspace.Commands) {
		return false, nil
	}
	s.mu.Lock()
	known := s.rg
	s.mu.Unlock()
	if known != 0 {
		return known > 0, nil
	}
	res, err := s.ws.Run(ctx, workspace.Command{Args: []string{"rg", "--version"}, Timeout: 30 * time.Second})
	if err != nil && !agent.Correctable(err) {
		return false, err
	}
	known = -1
	if err == nil && res.OK() && strings.HasPrefix(res.Stdout, "ripgrep ") {
		known = 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rg = known
	return known > 0, nil
}

// errFull stops a program that writes more than is held.
var errFull = errors.New("too much output")

// bounded keeps what a program writes, up to a limit.
type bounded struct {
	bytes.Buffer
	most int
	full bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if room := b.most - b.Len(); len(p) > room {
		b.Buffer.Write(p[:room])
		b.full = true
		return room, errFull
	}
	return b.Buffer.Write(p)
}

// program runs a search program in the working directory. A status of 1 says
// that nothing was found; 2 with output, that not all could be read.
func (s *session) program(ctx context.Context, args []string) (out []byte, full bool, errText string, err error) {
	stdout, stderr := &bounded{most: MaxGrepOutput}, &bounded{most: 4096}
	res, err := s.ws.Run(ctx, workspace.Command{Args: args, Timeout: searchTimeout, Stdout: stdout, Stderr: tolerant{stderr}})
	switch {
	case stdout.full:
		return stdout.Bytes(), true, "", nil
	case err != nil:
		return nil, false, "", err
	case res.ExitCode > 1:
		return stdout.Bytes(), false, strings.TrimSpace(workspace.Text(stderr.Bytes())), nil
	}
	return stdout.Bytes(), false, "", nil
}

// tolerant takes more than it keeps.
type tolerant struct{ b *bounded }

func (t tolerant) Write(p []byte) (int, error) {
	if _, err := t.b.Write(p); err != nil && !errors.Is(err, errFull) {
		return 0, err
	}
	return len(p), nil
}

// operand is a path for a program, which must not read it as an option.
func operand(p string) string {
	switch {
	case p == ".":
		return "./"
	case strings.HasPrefix(p, "/"):
		return p
	}
	return "./" + p
}

// shown takes operand's prefix off again.
func shown(p string) string { return strings.TrimPrefix(p, "./") }

// fromRoot turns a path as a program wrote it into one below the root.
func (s *session) fromRoot(p string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !path.IsAbs(p) {
		p = path.Join(s.dir, p)
	}
	return relative(s.root, path.Clean(p))
}

// listed is what both list_files and grep search.
type listed struct {
	path string // relative to the working directory, or absolute
}

// tracked lists files the way git sees them, when the directory is in a
// repository: false when it is not, or there is no git.
func (s *session) tracked(ctx context.Context, base place) ([]listed, bool, error) {
	if !s.ws.Supports(workspace.Commands) {
		return nil, false, nil
	}
	args := []string{"git", "-c", "core.fsmonitor=false", "-C", base.path, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"}
	out, _, errText, err := s.program(ctx, args)
	if err != nil {
		if agent.Correctable(err) {
			return nil, false, nil
		}
		return nil, false, err
	}
	if errText != "" || len(out) == 0 {
		return nil, false, nil
	}
	var files []listed
	for f := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if hiddenPath(f) {
			continue
		}
		files = append(files, listed{s.short(path.Join(base.path, f))})
	}
	slices.SortFunc(files, func(a, b listed) int { return strings.Compare(a.path, b.path) })
	return files, true, nil
}

func hiddenPath(p string) bool {
	return strings.HasPrefix(p, ".") || strings.Contains(p, "/.")
}

func (s *session) listFiles(ctx context.Context, _ *agent.Call, a struct {
	Path string `json:"path,omitempty" jsonschema:"the directory; the working directory when left out"`
	Glob string `json:"glob,omitempty" jsonschema:"only files that match, for example *.go"`
}) (string, error) {
	var include *regexp.Regexp
	var err error
	if a.Glob != "" {
		if include, err = anywhere(a.Glob); err != nil {
			return "", err
		}
	}
	base, err := s.directory(ctx, a.Path)
	if err != nil {
		return "", err
	}
	var names []string
	note := ""
	rg, err := s.ripgrep(ctx)
	if err != nil {
		return "", err
	}
	if rg {
		out, full, errText, err := s.program(ctx, []string{"rg", "--no-config", "--files", "--null", "--sort=path", "--", operand(s.short(base.path))})
		if err != nil {
			return "", tell(err)
		}
		if full {
			note = "[the list is cut: list a smaller directory]"
		} else if errText != "" {
			note = "[not all could be read: " + clipLine(errText) + "]"
		}
		all := strings.Split(string(out), "\x00")
		for _, f := range all[:len(all)-1] { // the last is empty, or cut
			names = append(names, shown(f))
		}
	} else {
		files, ok, err := s.tracked(ctx, base)
		if err != nil {
			return "", err
		}
		if ok {
			for _, f := range files {
				names = append(names, f.path)
			}
		} else if note, err = s.walk(ctx, base, func(e workspace.Entry, _ string) error {
			names = append(names, s.short(e.Path))
			return nil
		}); err != nil {
			return "", tell(err)
		}
	}
	prefix := s.short(base.path) + "/"
	if prefix == "./" {
		prefix = ""
	}
	slices.Sort(names)
	var b strings.Builder
	n := 0
	for _, f := range names {
		if include != nil && !include.MatchString(strings.TrimPrefix(f, prefix)) || !s.visible(s.fromRoot(f)) {
			continue
		}
		if n++; n <= MaxEntries {
			b.WriteString(name(workspace.Text([]byte(f))) + "\n")
		}
	}
	if n == 0 {
		b.WriteString("(no files)\n")
	}
	if n > MaxEntries {
		fmt.Fprintf(&b, "[%d more files are not shown: give a glob or a smaller directory]\n", n-MaxEntries)
	}
	if note != "" {
		b.WriteString(note + "\n")
	}
	return b.String(), nil
}

type grepArgs struct {
	Pattern    string `json:"pattern" jsonschema:"regular expression, or text with literal"`
	Path       string `json:"path,omitempty" jsonschema:"file or directory; the working directory when left out"`
	Glob       string `json:"glob,omitempty" jsonschema:"only files that match, for example *.go"`
	FileType   string `json:"file_type,omitempty" jsonschema:"only files of this kind, for example go or py"`
	IgnoreCase bool   `json:"ignore_case,omitempty" jsonschema:"upper and lower case are the same"`
	Literal    bool   `json:"literal,omitempty" jsonschema:"the pattern is plain text"`
	Context    int    `json:"context,omitempty" jsonschema:"lines to show around each match, 0 to 20"`
}

// fileTypes are the kinds of file that grep knows, by the ends of their names.
func fileTypes() map[string][]string {
	return map[string][]string{
		"c": {".c", ".h"}, "cpp": {".cpp", ".cc", ".cxx", ".hpp", ".hh", ".h"}, "cs": {".cs"}, "css": {".css", ".scss"},
		"go": {".go"}, "html": {".html", ".htm"}, "java": {".java"}, "js": {".js", ".jsx", ".mjs", ".cjs"}, "json": {".json"},
		"kotlin": {".kt", ".kts"}, "lua": {".lua"}, "markdown": {".md", ".markdown"}, "md": {".md", ".markdown"}, "php": {".php"},
		"proto": {".proto"}, "py": {".py", ".pyi"}, "python": {".py", ".pyi"}, "ruby": {".rb"}, "rust": {".rs"}, "scala": {".scala"},
		"sh": {".sh", ".bash"}, "sql": {".sql"}, "swift": {".swift"}, "toml": {".toml"}, "ts": {".ts", ".tsx", ".mts", ".cts"},
		"txt": {".txt"}, "xml": {".xml"}, "yaml": {".yaml", ".yml"},
	}
}

func (s *session) grep(ctx context.Context, _ *agent.Call, a grepArgs) (string, error) {
	if a.Pattern == "" {
		return "", agent.Retryf("the pattern is empty")
	}
	if a.Context < 0 || a.Context > MaxContext {
		return "", agent.Retryf("context is %d, and has to be from 0 to %d", a.Context, MaxContext)
	}
	text := a.Pattern
	if a.Literal {
		text = regexp.QuoteMeta(text)
	}
	if a.IgnoreCase {
		text = "(?i)" + text
	}
	// The syntax is the same with ripgrep and without, so a pattern is judged
	// before it is known which of them searches.
	re, err := regexp.Compile(text)
	if err != nil {
		return "", agent.Retryf("the pattern is no regular expression: %w; use literal for plain text", err)
	}
	var include *regexp.Regexp
	if a.Glob != "" {
		if include, err = anywhere(a.Glob); err != nil {
			return "", err
		}
	}
	var ends []string
	if a.FileType != "" {
		if ends = fileTypes()[a.FileType]; ends == nil {
			return "", agent.Retryf("file_type %q is not known; use a glob", a.FileType)
		}
	}
	name := a.Path
	if name == "" {
		name = "."
	}
	base, err := s.check(ctx, name, lists)
	if err != nil {
		return "", err
	}
	info, err := s.ws.Stat(ctx, base.path)
	if err != nil {
		return "", tell(err)
	}
	if !info.Dir {
		if base, err = s.check(ctx, name, reads); err != nil {
			return "", err
		}
	}
	prefix := s.short(base.path) + "/"
	if prefix == "./" {
		prefix = ""
	}
	wanted := func(file string) bool {
		if include != nil && !include.MatchString(strings.TrimPrefix(file, prefix)) {
			return false
		}
		if ends != nil && !slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(file, end) }) {
			return false
		}
		return s.visible(s.fromRoot(file))
	}
	rg, err := s.ripgrep(ctx)
	if err != nil {
		return "", err
	}
	if rg {
		return s.grepProgram(ctx, a, base, ends, wanted)
	}
	q := &search{s: s, re: re, context: a.Context}
	if !info.Dir {
		info.Path = base.path
		if err := q.file(ctx, info); err != nil && !errors.Is(err, errEnough) {
			return "", tell(err)
		}
		return q.result(""), nil
	}
	files, ok, err := s.tracked(ctx, base)
	if err != nil {
		return "", err
	}
	note := ""
	if ok {
		for _, f := range files {
			if !wanted(f.path) {
				continue
			}
			e, err := s.ws.Stat(ctx, f.path)
			if err == nil && !e.Dir {
				err = q.file(ctx, e)
			}
			if errors.Is(err, errEnough) {
				break
			}
			if err != nil && !agent.Correctable(err) { // a tracked file may be gone
				return "", err
			}
		}
	} else if note, err = s.walk(ctx, base, func(e workspace.Entry, _ string) error {
		if !wanted(s.short(e.Path)) {
			return nil
		}
		return q.file(ctx, e)
	}); err != nil {
		return "", tell(err)
	}
	return q.result(note), nil
}

// row is a line of ripgrep's output after the file's name.
var row = regexp.MustCompile(`^([0-9]+)([:-])`)

func (s *session) grepProgram(ctx context.Context, a grepArgs, base place, ends []string, wanted func(string) bool) (string, error) {
	args := []string{"rg", "--no-config", "--no-heading", "--with-filename", "--line-number", "--null", "--color=never", "--sort=path",
		"--max-columns=" + strconv.Itoa(MaxLineChars), "--max-columns-preview"}
	if a.IgnoreCase {
		args = append(args, "--ignore-case")
	}
	if a.Literal {
		args = append(args, "--fixed-strings")
	}
	if a.Context > 0 {
		args = append(args, "--context="+strconv.Itoa(a.Context))
	}
	for _, end := range ends { // only to read less; wanted decides
		args = append(args, "--glob=*"+end)
	}
	args = append(args, "--regexp="+a.Pattern, "--", operand(s.short(base.path)))
	out, full, errText, err := s.program(ctx, args)
	if err != nil {
		return "", tell(err)
	}
	if errText != "" && len(out) == 0 {
		return "", agent.Retryf("the search failed: %s", clipLine(errText))
	}
	var b strings.Builder
	matches, more := 0, false
	lines := strings.Split(workspace.Text(out), "\n")
	if full {
		lines = lines[:len(lines)-1] // it may be cut
	}
	for _, l := range lines {
		file, rest, ok := strings.Cut(l, "\x00")
		if !ok {
			if l == "--" && !strings.HasSuffix(b.String(), "--\n") && b.Len() > 0 {
				b.WriteString("--\n")
			}
			continue
		}
		file = shown(file)
		m := row.FindStringSubmatch(rest)
		if m == nil || !wanted(file) {
			continue
		}
		if m[2] == ":" {
			if matches++; matches > MaxEntries {
				more = true
				break
			}
		}
		fmt.Fprintf(&b, "%s%s%s%s%s\n", name(file), m[2], m[1], m[2], clipLine(rest[len(m[0]):]))
	}
	text := strings.TrimSuffix(b.String(), "--\n")
	if matches == 0 {
		text = "(no matches)\n"
	}
	switch {
	case more:
		text += fmt.Sprintf("[more than %d matches: narrow the search]\n", MaxEntries)
	case full:
		text += fmt.Sprintf("[stopped after %d bytes of results: narrow the search]\n", MaxGrepOutput)
	}
	if errText != "" {
		text += "[not all could be searched: " + clipLine(errText) + "]\n"
	}
	return text, nil
}
