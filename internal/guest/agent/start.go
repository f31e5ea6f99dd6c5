//go:build linux

package agent

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hutch-sandbox/hutch/box"
)

// defaultPath is the PATH of a command when neither the image nor the request
// sets one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// program is a command made ready to start.
type program struct {
	args []string
	env  []string
	dir  string
	acc  account
	path string // of the PATH variable
}

// notStarted is a command that cannot be run, as opposed to an agent that
// cannot run it. Code is 127 or 126, as with a shell.
type notStarted struct {
	code int
	msg  string
}

func (e *notStarted) Error() string { return e.msg }

func lookupEnv(env []string, key string) string {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v
		}
	}
	return ""
}

// checkStrings refuses what the kernel cannot take.
func checkStrings(field string, list [][]byte, env bool) ([]string, error) {
	out := make([]string, len(list))
	for i, b := range list {
		name := fmt.Sprintf("%s[%d]", field, i)
		if bytes.IndexByte(b, 0) >= 0 {
			return nil, invalid("exec", name, "contains a zero byte", "")
		}
		if env && bytes.IndexByte(b, '=') <= 0 {
			return nil, invalid("exec", name, fmt.Sprintf("%q is not KEY=value", b), "write KEY=value")
		}
		out[i] = string(b)
	}
	return out, nil
}

// checkDir refuses a working directory that is not one, with the words that
// the errno of an execve would not give.
func checkDir(dir string) error {
	var st syscall.Stat_t
	err := syscall.Stat(dir, &st)
	switch {
	case err == syscall.ENOENT:
		return &notStarted{126, fmt.Sprintf("working directory %s does not exist", dir)}
	case err != nil:
		return &notStarted{126, fmt.Sprintf("working directory %s: %v", dir, err)}
	case st.Mode&syscall.S_IFMT != syscall.S_IFDIR:
		return &notStarted{126, fmt.Sprintf("working directory %s is not a directory", dir)}
	}
	return nil
}

// find resolves the command's name as execvp does, with the PATH and directory
// of the command. It returns candidates in order, best first; the kernel has
// the last word on each.
func (p *program) find() ([]string, error) {
	name := p.args[0]
	if name == "" {
		return nil, &notStarted{127, "empty command name: command not found"}
	}
	if strings.Contains(name, "/") {
		full := name
		if !filepath.IsAbs(full) {
			full = p.dir + "/" + full
		}
		var st syscall.Stat_t
		switch err := syscall.Stat(full, &st); {
		case err == syscall.ENOENT || err == syscall.ENOTDIR:
			return nil, &notStarted{127, name + ": no such file or directory"}
		case err != nil:
			return nil, &notStarted{126, fmt.Sprintf("%s: %v", name, err)}
		case st.Mode&syscall.S_IFMT == syscall.S_IFDIR:
			return nil, &notStarted{126, name + ": is a directory"}
		case !p.acc.mayExec(&st):
			return nil, &notStarted{126, name + ": permission denied"}
		}
		return []string{full}, nil
	}
	var found []string
	denied := false
	for dir := range strings.SplitSeq(p.path, ":") {
		if !filepath.IsAbs(dir) {
			dir = p.dir + "/" + dir
		}
		full := strings.TrimSuffix(dir, "/") + "/" + name
		var st syscall.Stat_t
		err := syscall.Stat(full, &st)
		switch {
		case err == syscall.EACCES:
			denied = true
		case err != nil || st.Mode&syscall.S_IFMT == syscall.S_IFDIR:
		case p.acc.mayExec(&st):
			found = append(found, full)
		default:
			denied = true
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	if denied {
		return nil, &notStarted{126, name + ": permission denied"}
	}
	return nil, &notStarted{127, name + ": command not found"}
}

// start forks and executes p. Sys and files are the child's.
func (p *program) start(sys *syscall.SysProcAttr, files []uintptr) (int, error) {
	candidates, err := p.find()
	if err != nil {
		return 0, err
	}
	attr := &syscall.ProcAttr{Dir: p.dir, Env: p.env, Files: files, Sys: sys}
	var first error
	for _, path := range candidates {
		pid, err := syscall.ForkExec(path, p.args, attr)
		if errors.Is(err, syscall.ENOEXEC) {
			pid, err = p.script(path, attr)
		}
		if err == nil {
			return pid, nil
		}
		first = cmp.Or(first, p.explain(path, err))
		// As execvp: what cannot be executed here may be further on.
		if !errors.Is(err, syscall.EACCES) && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ENOTDIR) {
			break
		}
	}
	return 0, first
}

// script runs a file without a #! line by /bin/sh, as execvp does, unless it
// is plainly no text.
func (p *program) script(path string, attr *syscall.ProcAttr) (int, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return 0, syscall.ENOEXEC
	}
	head := make([]byte, 256)
	n, _ := f.Read(head)
	f.Close()
	line, _, _ := bytes.Cut(head[:n], []byte("\n"))
	if bytes.HasPrefix(head[:n], []byte("\x7fELF")) || bytes.IndexByte(line, 0) >= 0 {
		return 0, syscall.ENOEXEC
	}
	argv := append([]string{"/bin/sh", path}, p.args[1:]...)
	return syscall.ForkExec("/bin/sh", argv, attr)
}

// explain turns the errno of a fork and exec into an error that says who is
// at fault: the command, the request or the box.
func (p *program) explain(path string, err error) error {
	name := p.args[0]
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return err
	}
	switch errno {
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE:
		return &box.Error{
			Kind: box.Exhausted, Op: "exec", Object: name, Err: err,
			Hint: "end other commands in the box, or give it more processes or memory",
		}
	case syscall.E2BIG:
		return invalid("exec", name, "arguments and environment are too large together", "pass large data by standard input or a file")
	case syscall.ENOENT:
		return &notStarted{127, name + ": not found (its interpreter or loader is missing: see the #! line of " + path + ")"}
	case syscall.ENOEXEC:
		return &notStarted{126, name + ": exec format error"}
	case syscall.EPERM, syscall.EINVAL:
		if os.Geteuid() != int(p.acc.uid) {
			return &box.Error{
				Kind: box.Unsupported, Op: "exec", Object: name,
				Err:  fmt.Errorf("this box cannot run processes as user id %d, group id %d: %w", p.acc.uid, p.acc.gid, err),
				Hint: "run the command as the box's own user",
			}
		}
	case syscall.EACCES:
		return &notStarted{126, name + ": permission denied"}
	}
	return &notStarted{126, fmt.Sprintf("%s: %v", name, err)}
}

func invalid(op, object, msg, hint string) error {
	return &box.Error{Kind: box.Invalid, Op: op, Object: object, Err: errors.New(msg), Hint: hint}
}
