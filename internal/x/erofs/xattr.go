//go:build linux || darwin

package erofs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// xattrHeader is the length of what comes before an inode's attributes.
const xattrHeader = 12

// prefixes of attributes' names, which the format numbers. Longer ones first.
var prefixes = []struct {
	name  string
	index byte
}{
	{"system.posix_acl_access", 2},
	{"system.posix_acl_default", 3},
	{"security.", 6},
	{"trusted.", 4},
	{"user.", 1},
}

// maxXattrs is how much an inode's attributes may take: their length is kept
// in 16 bits, in words.
const maxXattrs = 4 * 65535

// readXattrs returns the encoded attributes of a file, nil without any.
// Attributes that the format has no number for are left out: nothing but the
// host's own kernel sets them.
func readXattrs(path string) ([]byte, error) {
	list, err := xattrCall(func(buf []byte) (int, error) { return unix.Llistxattr(path, buf) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "list attributes", Path: path, Err: err}
	}
	names := strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00")
	slices.Sort(names)
	var out []byte
	for _, name := range names {
		n := slices.IndexFunc(prefixes, func(p struct {
			name  string
			index byte
		}) bool {
			return strings.HasPrefix(name, p.name)
		})
		if n < 0 || name == "security.selinux" {
			continue
		}
		value, err := xattrCall(func(buf []byte) (int, error) { return unix.Lgetxattr(path, name, buf) })
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "read attribute " + name, Path: path, Err: err}
		}
		suffix := name[len(prefixes[n].name):]
		if len(suffix) > 255 {
			return nil, fmt.Errorf("%s: the attribute %s has too long a name", path, name)
		}
		if out == nil {
			out = make([]byte, xattrHeader)
		}
		out = append(out, byte(len(suffix)), prefixes[n].index)
		out = binary.LittleEndian.AppendUint16(out, uint16(len(value)))
		out = append(out, suffix...)
		out = append(out, value...)
		for len(out)%4 != 0 {
			out = append(out, 0)
		}
	}
	if len(out) > maxXattrs {
		return nil, fmt.Errorf("%s: its attributes take more than %d bytes", path, maxXattrs)
	}
	return out, nil
}

// xattrCall calls until the buffer is large enough.
func xattrCall(call func([]byte) (int, error)) ([]byte, error) {
	for size := 256; ; {
		buf := make([]byte, size)
		n, err := call(buf)
		if errors.Is(err, unix.ERANGE) && size < 1<<20 {
			size *= 8
			continue
		}
		if err != nil {
			return nil, err
		}
		return buf[:n], nil
	}
}
