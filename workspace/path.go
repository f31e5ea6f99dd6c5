package workspace

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"
)

// Resolve joins name to base, which is absolute, and cleans the result. It is
// about text alone: it follows no link, and ".." may lead anywhere.
func Resolve(base, name string) (string, error) {
	joined, err := join(base, name)
	if err != nil {
		return "", err
	}
	return path.Clean(joined), nil
}

func join(base, name string) (string, error) {
	switch {
	case strings.IndexByte(name, 0) >= 0 || strings.IndexByte(base, 0) >= 0:
		return "", &Error{Kind: ErrInvalid, Op: "path", Err: fmt.Errorf("%q has a NUL byte", clip(name))}
	case path.IsAbs(name):
		return name, nil
	case !path.IsAbs(base):
		return "", &Error{Kind: ErrInvalid, Op: "path", Err: fmt.Errorf("%q is not an absolute directory to resolve %q in", clip(base), clip(name))}
	}
	return base + "/" + name, nil
}

// Quote returns s as one word of a POSIX shell script.
func Quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// maxLinks is how many symbolic links a path may lead through, as in Linux.
const maxLinks = 40

// WalkLinks resolves an absolute path as Realpather.Realpath is to, for
// backends without an operation for that. readlink returns the target of the
// link that an absolute path names, and "" when it names something else or
// nothing.
func WalkLinks(name string, readlink func(name string) (target string, err error)) (string, error) {
	rest, done, links := name, "", 0
	for rest != "" {
		var elem string
		elem, rest, _ = strings.Cut(rest, "/")
		switch elem {
		case "", ".":
			continue
		case "..":
			done = done[:max(0, strings.LastIndexByte(done, '/'))]
			continue
		}
		here := done + "/" + elem
		target, err := readlink(here)
		if err != nil {
			return "", err
		}
		if target == "" {
			done = here
			continue
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "realpath", Path: name, Err: syscall.ELOOP}
		}
		if path.IsAbs(target) {
			done = ""
		}
		rest = target + "/" + rest
	}
	if done == "" {
		return "/", nil
	}
	return done, nil
}

// within reports whether p is dir or below it. Both are clean.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
