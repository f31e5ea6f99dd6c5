//go:build linux

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/guest/boot"
)

// prepare makes what every program expects of a Linux machine and what an
// image or an engine may not have brought. It only adds, and goes on after a
// failure: a box without /dev/shm is better than no box.
func prepare(conf boot.Config, logf func(string, ...any)) {
	try := func(what string, err error) {
		if err != nil {
			logf("%s: %v", what, err)
		}
	}
	for _, m := range []struct {
		dir, probe, fstype, data string
		flags                    uintptr
		mode                     os.FileMode
	}{
		{"/proc", "/proc/self", "proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, 0o555},
		{"/sys", "/sys/kernel", "sysfs", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, 0o555},
		{"/dev", "/dev/null", "devtmpfs", "mode=0755", unix.MS_NOSUID, 0o755},
		{"/dev/pts", "/dev/pts/ptmx", "devpts", "newinstance,ptmxmode=0666,mode=0620", unix.MS_NOSUID | unix.MS_NOEXEC, 0o755},
		{"/dev/shm", "", "tmpfs", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV, 0o777 | os.ModeSticky},
		{"/tmp", "", "", "", 0, 0o777 | os.ModeSticky},
	} {
		probe := m.probe
		if probe == "" {
			probe = m.dir
		}
		if _, err := os.Lstat(probe); err == nil {
			continue
		}
		if err := os.MkdirAll(m.dir, m.mode); err != nil {
			try("make "+m.dir, err)
			continue
		}
		try("chmod "+m.dir, os.Chmod(m.dir, m.mode))
		if m.fstype != "" {
			try("mount "+m.dir, unix.Mount(m.fstype, m.dir, m.fstype, m.flags, m.data))
		}
	}
	for _, l := range [][2]string{
		{"pts/ptmx", "/dev/ptmx"},
		{"/proc/self/fd", "/dev/fd"},
		{"/proc/self/fd/0", "/dev/stdin"},
		{"/proc/self/fd/1", "/dev/stdout"},
		{"/proc/self/fd/2", "/dev/stderr"},
	} {
		if _, err := os.Lstat(l[1]); os.IsNotExist(err) {
			try("link "+l[1], os.Symlink(l[0], l[1]))
		}
	}
	try("host name", setHostname(conf.Hostname))
	if conf.Nameserver != "" {
		try("/etc/resolv.conf", resolvConf(conf.Nameserver))
	}
	try("loopback", loopbackUp())
	try("uncover /tmp", uncoverTmp())
}

// setHostname names the machine, unless name is empty, and writes down what it
// is called.
func setHostname(name string) error {
	var errs []error
	have, err := os.Hostname()
	if name == "" {
		name = have
	} else if have != name {
		// An engine may have set it, and may have kept the right to.
		if err = unix.Sethostname([]byte(name)); err != nil {
			name = have
		}
	}
	errs = append(errs, err)
	if name != "" {
		errs = append(errs,
			setFile("/etc/hostname", []byte(name+"\n"), func([]byte) bool { return true }),
			setFile("/etc/hosts", hostsFile(name), defaultHosts))
	}
	return errors.Join(errs...)
}

// uncoverTmp takes away the memory file system that gVisor lays over an empty
// /tmp. Files there are files like any others: they count as disk and outlast
// the boot.
func uncoverTmp() error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == "/tmp" && f[2] == "tmpfs" {
			if err := unix.Unmount("/tmp", 0); err != nil {
				return err
			}
			return os.Chmod("/tmp", 0o777|os.ModeSticky)
		}
	}
	return nil
}

const hostsMark = "# Written at boot. Change a line, and it is yours: it then stays.\n"

func hostsFile(name string) []byte {
	return fmt.Appendf(nil, "%s127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t%s\n", hostsMark, name)
}

// defaultHosts reports whether an /etc/hosts says no more than every such file
// does, or is one that was written at an earlier boot.
func defaultHosts(old []byte) bool {
	if rest, ok := bytes.CutPrefix(old, []byte(hostsMark)); ok {
		f := strings.Fields(string(rest))
		return len(f) > 0 && bytes.Equal(old, hostsFile(f[len(f)-1]))
	}
	common := []string{"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", "ip6-localnet",
		"ip6-mcastprefix", "ip6-allnodes", "ip6-allrouters", "ip6-allhosts", "buildkitsandbox"}
	for line := range strings.Lines(string(old)) {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		for i, name := range f {
			if i > 0 && !slices.Contains(common, name) {
				return false
			}
		}
	}
	return true
}

// setFile gives a file of the box new content if it is missing or replace
// says so. The box's disk may hold anything in its place.
func setFile(path string, data []byte, replace func(old []byte) bool) error {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	switch {
	case err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil // somebody's intent
	case err == nil:
		f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		old, err := io.ReadAll(io.LimitReader(f, 1<<20))
		if err != nil || bytes.Equal(old, data) || !replace(old) {
			return err
		}
		// In place, since an engine may have mounted the file.
		if _, err := f.WriteAt(data, 0); err != nil {
			return err
		}
		return f.Truncate(int64(len(data)))
	case err != unix.ENOENT:
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := createFile(path, os.O_WRONLY, 0o644, account{})
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(data)
	return err
}

// loopbackUp brings up lo.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return err
	}
	if ifr.Uint16()&unix.IFF_UP != 0 {
		return nil
	}
	ifr.SetUint16(ifr.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// inGVisor reports whether the kernel is gVisor's.
func inGVisor() bool {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false
	}
	return strings.Contains(strings.ToLower(unix.ByteSliceToString(u.Release[:])+unix.ByteSliceToString(u.Version[:])), "gvisor")
}
