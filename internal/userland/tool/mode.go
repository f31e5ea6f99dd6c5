package tool

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseMode applies a file mode, octal or symbolic ("u+x,go-w", "a=rX"), to
// the permission bits cur (with setuid, setgid and sticky) of a file or
// directory. umask matters for clauses that name nobody ("+x").
func ParseMode(spec string, cur uint32, dir bool, umask uint32) (uint32, error) {
	bad := fmt.Errorf("invalid mode: '%s'", spec)
	if n, err := strconv.ParseUint(spec, 8, 32); err == nil {
		if n > 0o7777 {
			return 0, bad
		}
		if dir && len(spec) < 5 {
			// As in coreutils, a short octal mode keeps setuid and setgid of
			// a directory.
			n |= uint64(cur & 0o6000)
		}
		return uint32(n), nil
	}
	for _, clause := range strings.Split(spec, ",") {
		i := 0
		var who uint32
		for i < len(clause) && strings.IndexByte("ugoa", clause[i]) >= 0 {
			who |= map[byte]uint32{'u': 0o4700, 'g': 0o2070, 'o': 0o1007, 'a': 0o7777}[clause[i]]
			i++
		}
		masked := who == 0
		if masked {
			who = 0o7777
		}
		if i >= len(clause) {
			return 0, bad
		}
		for i < len(clause) {
			op := clause[i]
			if op != '+' && op != '-' && op != '=' {
				return 0, bad
			}
			i++
			var bits uint32
			for i < len(clause) && strings.IndexByte("+-=", clause[i]) < 0 {
				switch clause[i] {
				case 'r':
					bits |= 0o444
				case 'w':
					bits |= 0o222
				case 'x':
					bits |= 0o111
				case 'X':
					if dir || cur&0o111 != 0 {
						bits |= 0o111
					}
				case 's':
					bits |= 0o6000
				case 't':
					bits |= 0o1000
				case 'u':
					bits |= cur >> 6 & 7 * 0o111
				case 'g':
					bits |= cur >> 3 & 7 * 0o111
				case 'o':
					bits |= cur & 7 * 0o111
				default:
					return 0, bad
				}
				i++
			}
			scope := who
			if who&0o7000 != 0 && who != 0o7777 {
				// The sticky bit belongs to everybody and to others.
				scope |= who & 0o1000
			}
			bits &= scope
			if masked {
				bits &^= umask
			}
			switch op {
			case '+':
				cur |= bits
			case '-':
				cur &^= bits
			case '=':
				keep := ^scope
				if dir {
					keep |= 0o6000
				}
				cur = cur&keep | bits
			}
		}
	}
	return cur, nil
}
