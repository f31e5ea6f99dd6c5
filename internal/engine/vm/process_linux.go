package vm

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// jailed says that QEMU runs confined on this system.
const jailed = true

// firstFD is the first descriptor of the files that QEMU gets: before it comes
// what the jail is to do.
const firstFD = 4

// qemuUser is who QEMU runs as: nobody else's id, so that one that broke out of
// its machine finds nothing that is its own. An ordinary user without a range
// of ids has only one, his own; then -1.
func qemuUser(id string) (uid, gid int) {
	data, err := os.ReadFile("/proc/self/uid_map")
	if err != nil || os.Geteuid() != 0 {
		return -1, -1
	}
	var most uint64
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		start, err1 := strconv.ParseUint(f[0], 10, 64)
		count, err2 := strconv.ParseUint(f[2], 10, 64)
		if err1 == nil && err2 == nil {
			most = max(most, start+count)
		}
	}
	switch {
	case most > 1<<31:
		h := fnv.New32a()
		_, _ = h.Write([]byte(id))
		n := 0x7000_0000 + int(h.Sum32()&0xff_ffff)
		return n, n
	case most > 65533:
		return 65533, 65533
	}
	return -1, -1
}

// layout is where a machine's files are, and how QEMU calls them.
type layout struct {
	dir  string // the private folder
	jail string // the folder of the new root
	uid  int
	gid  int
}

// prepareLayout makes the folders of a start below the boot's folder.
func prepareLayout(stateDir, id string) (*layout, error) {
	l := &layout{dir: filepath.Join(stateDir, "qemu"), jail: filepath.Join(stateDir, "jail")}
	l.uid, l.gid = qemuUser(id)
	for _, dir := range []string{l.dir, l.jail} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	return l, l.give(l.dir)
}

// give makes a file in the private folder QEMU's own.
func (l *layout) give(path string) error {
	if l.uid < 0 {
		return nil
	}
	return os.Chown(path, l.uid, l.gid)
}

// seen is how QEMU calls a file of the private folder.
func (l *layout) seen(name string) string { return "/box/" + name }

// seenKernel is how QEMU calls the kernel's files.
func (l *layout) seenKernel(_, name string) string { return "/boot/" + name }

// startQEMU starts QEMU in its jail. Stderr gets what both say.
func (l *layout) startQEMU(program string, c *command, kvm bool, files map[string]string, stderr *os.File) (*exec.Cmd, error) {
	spec := jailSpec{
		Root: l.jail, Private: l.dir, Files: map[string]string{}, KVM: kvm,
		Program: program, Args: c.args, UID: l.uid, GID: l.gid,
	}
	for name, file := range files {
		spec.Files["/boot/"+name] = file
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("jail", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("jail: %w", err)
	}
	f := os.NewFile(uintptr(fd), "jail")
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return nil, fmt.Errorf("jail: %w", err)
	}
	if _, err := f.Seek(0, 0); err != nil {
		return nil, fmt.Errorf("jail: %w", err)
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{jailArg}, Env: []string{}, Dir: "/",
		Stdout: stderr, Stderr: stderr,
		ExtraFiles: append([]*os.File{f}, c.files...),
		SysProcAttr: &syscall.SysProcAttr{
			// No death signal: that is for the end of a thread. The keeper's
			// process namespace ends QEMU with the keeper.
			Setsid:     true,
			Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWPID,
		},
	}
	return cmd, cmd.Start()
}
