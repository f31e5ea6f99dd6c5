//go:build linux

package agent

import (
	"strings"

	"golang.org/x/sys/unix"
)

// maxXattrs bounds what is read of one file's attributes.
const maxXattrs = 64 << 10

// listXattrs returns the names of a file's extended attributes; a symbolic
// link is not followed. A file system without them has none.
func listXattrs(path string) []string {
	buf := make([]byte, 1024)
	for {
		n, err := unix.Llistxattr(path, buf)
		if err == unix.ERANGE && len(buf) < maxXattrs {
			buf = make([]byte, maxXattrs)
			continue
		}
		if err != nil {
			return nil
		}
		var names []string
		for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
			if name != "" {
				names = append(names, name)
			}
		}
		return names
	}
}

func getXattr(path, name string) ([]byte, error) {
	buf := make([]byte, 1024)
	for {
		n, err := unix.Lgetxattr(path, name, buf)
		if err == unix.ERANGE && len(buf) < maxXattrs {
			buf = make([]byte, maxXattrs)
			continue
		}
		if err != nil {
			return nil, err
		}
		return buf[:n], nil
	}
}
