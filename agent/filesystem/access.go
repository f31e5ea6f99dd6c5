package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/hutch-sandbox/hutch/agent"
)

// Pattern matches paths, for Options.
type Pattern struct {
	text string
	re   *regexp.Regexp
}

// Compile reads a pattern. In it `*` stands for any text, slashes included,
// `?` for one character and `[a-z]` for one of a set. A pattern without a
// slash is for a name at any depth; one with a slash is for a whole path below
// the root, and a leading `**/` also matches no directory at all. A pattern
// that matches a directory covers all that is in it.
func Compile(text string) (Pattern, error) {
	rest := strings.TrimSuffix(strings.TrimPrefix(text, "./"), "/")
	rest = strings.TrimSuffix(rest, "/**")
	if rest == "" || strings.HasPrefix(rest, "/") {
		return Pattern{}, fmt.Errorf("pattern %q: it has to be relative to the root", text)
	}
	var b strings.Builder
	b.WriteString("^")
	if inner, ok := strings.CutPrefix(rest, "**/"); ok {
		rest = inner
		b.WriteString("(?:.*/)?")
	} else if !strings.Contains(rest, "/") {
		b.WriteString("(?:.*/)?")
	}
	for i := 0; i < len(rest); i++ {
		switch c := rest[i]; c {
		case '*':
			for i+1 < len(rest) && rest[i+1] == '*' {
				i++
			}
			b.WriteString(".*")
		case '?':
			b.WriteString(".")
		case '[':
			end := strings.IndexByte(rest[i+1:], ']')
			if end < 1 {
				return Pattern{}, fmt.Errorf("pattern %q: a [ has no ]", text)
			}
			class := rest[i+1 : i+1+end]
			if strings.HasPrefix(class, "!") {
				class = "^" + class[1:]
			}
			b.WriteString("[" + strings.ReplaceAll(class, `\`, `\\`) + "]")
			i += end + 1
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	re, err := regexp.Compile("(?s)" + b.String() + "$")
	if err != nil {
		return Pattern{}, fmt.Errorf("pattern %q: %w", text, err)
	}
	return Pattern{text: text, re: re}, nil
}

// Match reports whether the pattern is for a path below the root, or for a
// directory above it.
func (p Pattern) Match(rel string) bool {
	for at := rel; at != "." && at != "/" && at != ""; at = path.Dir(at) {
		if p.re.MatchString(at) {
			return true
		}
	}
	return false
}

func matchAny(list []Pattern, rel string) (Pattern, bool) {
	for _, p := range list {
		if p.Match(rel) {
			return p, true
		}
	}
	return Pattern{}, false
}

// place is a path that may be used.
type place struct {
	given string // as the model wrote it
	path  string // absolute, cleaned
	real  string // without symbolic links
}

// access says what a path is to be used for.
type access int

const (
	reads access = iota
	lists        // a directory, whose entries are filtered and which itself is not
	writes
)

// bounds finds the root and the working directory, once a run. Calls that
// come at the same time may both ask; the answer is the same.
func (s *session) bounds(ctx context.Context) (root, dir string, err error) {
	s.mu.Lock()
	root, dir = s.root, s.dir
	s.mu.Unlock()
	if root != "" {
		return root, dir, nil
	}
	if dir, err = s.ws.WorkingDir(ctx); err != nil {
		return "", "", err
	}
	root = dir
	if s.fs.opt.Root != "" {
		if root, err = s.ws.Realpath(ctx, s.fs.opt.Root); err != nil {
			return "", "", err
		}
	}
	real, err := s.ws.Realpath(ctx, dir)
	if err != nil {
		return "", "", err
	}
	if !below(root, real) {
		return "", "", fmt.Errorf("%w: filesystem: the root %s does not contain the working directory %s", agent.ErrUsage, root, dir)
	}
	if s.fs.opt.Root == "" {
		root = real
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.root, s.dir = root, dir
	return root, dir, nil
}

// below reports whether name is dir or in it; both are absolute and clean.
func below(dir, name string) bool {
	return dir == "/" || name == dir || strings.HasPrefix(name, dir+"/")
}

func relative(root, name string) string {
	if root == "/" {
		return strings.TrimPrefix(name, "/")
	}
	return strings.TrimPrefix(strings.TrimPrefix(name, root), "/")
}

// check resolves a path and applies the policy to it. Its errors are ready for
// the loop.
func (s *session) check(ctx context.Context, name string, mode access) (place, error) {
	if name == "" {
		return place{}, errEmptyPath()
	}
	full, err := s.ws.Resolve(ctx, name)
	if err != nil {
		return place{}, tell(err)
	}
	real, err := s.ws.Realpath(ctx, full)
	if err != nil {
		return place{}, tell(err)
	}
	return s.permit(ctx, name, full, real, mode)
}

func errEmptyPath() error { return agent.Retryf("the path is empty") }

// permit applies the policy to a path whose absolute form is full and which
// leads to real.
func (s *session) permit(ctx context.Context, name, full, real string, mode access) (place, error) {
	root, dir, err := s.bounds(ctx)
	if err != nil {
		return place{}, tell(err)
	}
	if !below(root, real) {
		return place{}, agent.Retryf("%s is outside of %s, which these tools are confined to", name, root)
	}
	// The working directory may be spelled with links; its own names count too.
	names := []string{relative(root, real)}
	if below(root, full) {
		names = append(names, relative(root, full))
	} else if below(dir, full) {
		names = append(names, relative(dir, full))
	}
	if err := s.policy(name, names, mode); err != nil {
		return place{}, err
	}
	return place{given: name, path: full, real: real}, nil
}

func (s *session) policy(name string, rels []string, mode access) error {
	for i, rel := range rels {
		if rel == "" || rel == "." {
			continue
		}
		if p, ok := matchAny(s.fs.deny, rel); ok {
			return agent.Retryf("access to %s is denied (%s)", name, p.text)
		}
		// What is allowed is what the path leads to, not what it is called.
		if _, ok := matchAny(s.fs.allow, rel); i == 0 && !ok && len(s.fs.allow) > 0 && mode != lists {
			return agent.Retryf("access to %s is not allowed", name)
		}
		if mode == writes {
			if p, ok := matchAny(s.fs.readOnly, rel); ok {
				return agent.Retryf("%s may be read but not changed (%s)", name, p.text)
			}
		}
	}
	return nil
}

// visible reports whether an entry that a walk came upon may be shown. rel is
// below the root and free of links.
func (s *session) visible(rel string) bool {
	if rel == "" {
		return true
	}
	if _, ok := matchAny(s.fs.deny, rel); ok {
		return false
	}
	if len(s.fs.allow) > 0 {
		_, ok := matchAny(s.fs.allow, rel)
		return ok
	}
	return true
}

// tell turns an error into what the loop should do with it: what the model can
// mend it is asked to, and everything else ends the run.
func tell(err error) error {
	var path *fs.PathError
	switch {
	case err == nil:
		return nil
	case !agent.Correctable(err):
		return err
	case errors.As(err, &path):
		return agent.Retryf("%s: %w", path.Path, path.Err)
	}
	return agent.Retryf("%w", err)
}

// short shows a path as the model is likely to write it: relative to the
// working directory where it is in there.
func (s *session) short(full string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir != "" && s.dir != "/" && strings.HasPrefix(full, s.dir+"/") {
		return full[len(s.dir)+1:]
	}
	if full == s.dir {
		return "."
	}
	return full
}
