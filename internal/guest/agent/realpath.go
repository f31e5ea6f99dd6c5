//go:build linux

package agent

import (
	"strings"

	"golang.org/x/sys/unix"
)

// realpathOf is realpath of a path that led to the open file st describes, or
// nothing where it leads elsewhere by now.
func realpathOf(path string, st *unix.Stat_t) string {
	real, err := realpath(path)
	if err != nil {
		return ""
	}
	var now unix.Stat_t
	err = ignoringEINTR(func() error { return unix.Lstat(real, &now) })
	if err != nil || now.Dev != st.Dev || now.Ino != st.Ino {
		return ""
	}
	return real
}

// realpath resolves every link in an absolute path, whose last element must
// exist. It walks the path itself: /proc/self/fd would be quicker, but adds
// " (deleted)" to names and cannot be told from a file so called.
func realpath(path string) (string, error) {
	rest := path
	var done []string
	for links := 0; rest != ""; {
		var elem string
		elem, rest, _ = strings.Cut(rest, "/")
		switch elem {
		case "", ".":
			continue
		case "..":
			if len(done) > 0 {
				done = done[:len(done)-1]
			}
			continue
		}
		here := "/" + strings.Join(append(done[:len(done):len(done)], elem), "/")
		var st unix.Stat_t
		if err := ignoringEINTR(func() error { return unix.Lstat(here, &st) }); err != nil {
			return "", err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			if links++; links > 40 {
				return "", unix.ELOOP
			}
			target, err := readlinkAt(unix.AT_FDCWD, here)
			if err != nil {
				return "", err
			}
			if strings.HasPrefix(target, "/") {
				done = nil
			}
			rest = target + "/" + rest
			continue
		case unix.S_IFDIR:
		default:
			if strings.Trim(rest, "/") != "" {
				return "", unix.ENOTDIR
			}
		}
		done = append(done, elem)
	}
	return "/" + strings.Join(done, "/"), nil
}
