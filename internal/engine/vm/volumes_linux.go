package vm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/vmboot"
	"github.com/hutch-sandbox/hutch/internal/x/console"
)

// volumes is what serves a machine's volumes: one virtiofsd for all of them.
// Each is mounted under a number in a folder that virtiofsd then takes for its
// root; the host's kernel holds what is read-only.
type volumes struct {
	socket *os.File // nil without volumes
	seen   string   // the socket's name, as QEMU sees it
	mounts []vmboot.Mount

	dir    string
	bound  []string
	cmd    *exec.Cmd
	exited chan struct{}
	log    *console.Log // of what virtiofsd says; nil before it starts
}

// startVolumes mounts and serves the volumes. Without any it does nothing.
func startVolumes(l *layout, stateDir string, mounts []engine.Mount, log *console.Log) (_ *volumes, err error) {
	v := &volumes{}
	if len(mounts) == 0 {
		return v, nil
	}
	defer func() {
		if err != nil {
			v.end()
		}
	}()
	program, err := virtiofsd()
	if err != nil {
		return nil, err
	}
	v.dir = filepath.Join(stateDir, "shared")
	if err := os.Mkdir(v.dir, 0o755); err != nil {
		return nil, err
	}
	// A volume inside of another one comes after it, however they were named.
	mounts = slices.Clone(mounts)
	slices.SortStableFunc(mounts, func(a, b engine.Mount) int {
		return strings.Count(path.Clean(a.Target), "/") - strings.Count(path.Clean(b.Target), "/")
	})
	for n, m := range mounts {
		if err := v.bind(n, m); err != nil {
			return nil, fmt.Errorf("volume %s: %w", m.Target, err)
		}
	}
	// The socket lies in QEMU's folder, and only QEMU's user may connect.
	at := filepath.Join(l.dir, "volumes")
	listener, err := listenUnix(at)
	if err != nil {
		return nil, fmt.Errorf("volumes: %w", err)
	}
	if err := l.give(at); err != nil {
		listener.Close()
		return nil, err
	}
	v.socket, v.seen = listener, l.seen("volumes")
	said, out, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("volumes: %w", err)
	}
	defer out.Close()
	v.log = log
	log.Follow(said)
	v.cmd = &exec.Cmd{
		Path: program,
		Args: []string{"virtiofsd", "--fd=3", "-o", "source=" + v.dir, "-o", "sandbox=namespace", "-o", "cache=auto", "-o", "announce_submounts"},
		Env:  []string{"PATH=/usr/bin:/bin"}, Dir: "/", Stdout: out, Stderr: out,
		ExtraFiles:  []*os.File{listener},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if err := v.cmd.Start(); err != nil {
		v.cmd = nil
		return nil, fmt.Errorf("volumes: %w", err)
	}
	v.exited = make(chan struct{})
	go func() { // ends with virtiofsd, which end kills
		_ = v.cmd.Wait()
		close(v.exited)
	}()
	return v, nil
}

// bind mounts one volume below the shared folder.
func (v *volumes) bind(n int, m engine.Mount) error {
	fi, err := os.Stat(m.Source)
	if err != nil {
		return err
	}
	name := strconv.Itoa(n)
	at := filepath.Join(v.dir, name)
	file := !fi.IsDir()
	if file {
		err = os.WriteFile(at, nil, 0o600)
	} else {
		err = os.Mkdir(at, 0o700)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(m.Source, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	v.bound = append(v.bound, at)
	if m.ReadOnly {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(unix.AT_FDCWD, at, unix.AT_RECURSIVE, &attr); err != nil {
			return err
		}
	}
	v.mounts = append(v.mounts, vmboot.Mount{Name: name, Target: m.Target, ReadOnly: m.ReadOnly, File: file})
	return nil
}

// end ends virtiofsd, waits for it and takes the mounts away. It may be called
// twice.
func (v *volumes) end() {
	if v.cmd != nil {
		_ = unix.Kill(-v.cmd.Process.Pid, unix.SIGKILL)
		<-v.exited
		v.cmd = nil
	}
	if v.log != nil {
		v.log.Wait()
	}
	if v.socket != nil {
		v.socket.Close()
	}
	for n := len(v.bound) - 1; n >= 0; n-- {
		_ = unix.Unmount(v.bound[n], unix.MNT_DETACH)
	}
	v.bound = nil
}

// listenUnix makes a listening socket that a deep home cannot make too long.
func listenUnix(at string) (*os.File, error) {
	dir, err := unix.Open(filepath.Dir(at), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(at)), Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	return l.File()
}

// virtiofsd finds the program that serves volumes.
func virtiofsd() (string, error) {
	for _, p := range []string{"/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd", "/usr/lib/virtiofsd", "/usr/libexec/qemu/virtiofsd"} {
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	if p, err := exec.LookPath("virtiofsd"); err == nil {
		return p, nil
	}
	return "", &box.Error{Kind: box.Unsupported, Op: "boot", Object: "volumes", Err: errors.New("virtiofsd is missing"), Hint: installHint("virtiofsd")}
}
