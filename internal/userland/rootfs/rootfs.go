// Package rootfs lays out the root file system of the builtin image: one
// program under many names, and the few files that programs expect on any
// Linux machine.
package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Names are the names of the program in the builtin image. They are those of
// userland.Names; the list stands here again so that who only lays the image
// out does not link the utilities. A test compares the two.
func Names() []string { return append([]string(nil), names...) }

var names = []string{
	"[", "arch", "awk", "base64", "basename", "cat", "chgrp", "chmod", "chown", "chroot", "clear",
	"cmp", "comm", "cp", "cut", "date", "dd", "df", "diff", "dirname", "du", "echo", "egrep", "env",
	"expr", "false", "fgrep", "find", "fold", "free", "grep", "groups", "gunzip", "gzip", "head",
	"hexdump", "hostname", "id", "install", "kill", "ln", "logname", "ls", "md5sum", "mkdir",
	"mkfifo", "mktemp", "mount", "mv", "nice", "nl", "nohup", "nproc", "od", "paste", "pgrep",
	"pkill", "printenv", "printf", "ps", "pwd", "readlink", "realpath", "rev", "rm", "rmdir", "sed",
	"seq", "setsid", "sh", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "shuf",
	"sleep", "sort", "split", "stat", "strings", "stty", "sync", "tac", "tail", "tar", "tee", "test",
	"timeout", "touch", "tr", "true", "truncate", "tty", "umount", "uname", "uniq", "uptime", "wc",
	"which", "whoami", "xargs", "yes", "zcat",
}

// The users of the image. Everybody may use the user box; commands run as root
// unless they ask for another.
const (
	passwd = `root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/false
box:x:1000:1000:box:/home/box:/bin/sh
`
	group = `root:x:0:
tty:x:5:
nogroup:x:65534:
box:x:1000:
`
	boxID = 1000
)

type dir struct {
	path string
	mode fs.FileMode
}

var dirs = []dir{
	{"bin", 0o755}, {"etc", 0o755}, {"etc/ssl", 0o755}, {"etc/ssl/certs", 0o755}, {"home", 0o755}, {"home/box", 0o755},
	{"proc", 0o555}, {"sys", 0o555}, {"dev", 0o755}, {"root", 0o700}, {"run", 0o755}, {"tmp", 0o777 | fs.ModeSticky},
	{"usr", 0o755}, {"usr/local", 0o755}, {"usr/local/bin", 0o755}, {"usr/share", 0o755},
	{"var", 0o755}, {"var/log", 0o755}, {"var/tmp", 0o777 | fs.ModeSticky}, {"workspace", 0o755},
}

var files = map[string]string{
	"etc/passwd":        passwd,
	"etc/group":         group,
	"etc/hosts":         "127.0.0.1\tlocalhost\n::1\tlocalhost\n",
	"etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
	"etc/os-release":    "ID=hutch\nNAME=\"Hutch builtin\"\nPRETTY_NAME=\"Hutch builtin userland\"\n",
	"etc/profile":       "export PATH=/usr/local/bin:/usr/bin:/bin\n",
	"etc/shells":        "/bin/sh\n",
}

var links = map[string]string{
	"sbin":     "bin",
	"usr/bin":  "../bin",
	"usr/sbin": "../bin",
	"var/run":  "../run",
}

// Write lays the file system out in dir, which must exist and be empty, with
// program as the one program. The result is the same each time. Owners other
// than the caller are set where the caller may.
func Write(root string, program []byte) error {
	if len(program) == 0 {
		return errors.New("builtin image: the program is empty")
	}
	if entries, err := os.ReadDir(root); err != nil {
		return fmt.Errorf("builtin image: %w", err)
	} else if len(entries) > 0 {
		return fmt.Errorf("builtin image: %s is not empty", root)
	}
	if err := write(root, program); err != nil {
		return fmt.Errorf("builtin image: %w", err)
	}
	return nil
}

func write(root string, program []byte) error {
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	for _, d := range dirs {
		path := filepath.Join(root, d.path)
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(path, d.mode); err != nil { // the umask took bits away
			return err
		}
	}
	if err := writeFile(filepath.Join(root, "bin/hutch-userland"), program, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Symlink("hutch-userland", filepath.Join(root, "bin", name)); err != nil {
			return err
		}
	}
	for name, content := range files {
		if err := writeFile(filepath.Join(root, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	if err := os.Lchown(filepath.Join(root, "home/box"), boxID, boxID); err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	epoch := time.Unix(0, 0)
	for _, d := range dirs {
		if err := os.Chtimes(filepath.Join(root, d.path), epoch, epoch); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(path string, data []byte, mode fs.FileMode) error {
	if err := os.WriteFile(path, data, mode); err != nil {
		return err
	}
	if err := os.Chmod(path, mode); err != nil {
		return err
	}
	epoch := time.Unix(0, 0)
	return os.Chtimes(path, epoch, epoch)
}
