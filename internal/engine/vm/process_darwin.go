package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// jailed says that QEMU runs confined on this system. macOS has no way that an
// ordinary program could use.
const jailed = false

// firstFD is the first descriptor of the files that QEMU gets.
const firstFD = 3

// layout is where a machine's files are, and how QEMU calls them.
type layout struct{ dir string }

// prepareLayout makes the folder of a start below the boot's folder.
func prepareLayout(stateDir, _ string) (*layout, error) {
	l := &layout{dir: filepath.Join(stateDir, "qemu")}
	return l, os.MkdirAll(l.dir, 0o700)
}

// give does nothing: QEMU runs as the user himself.
func (*layout) give(string) error { return nil }

// seen is how QEMU calls a file of the private folder.
func (l *layout) seen(name string) string { return filepath.Join(l.dir, name) }

// seenKernel is how QEMU calls the kernel's files.
func (*layout) seenKernel(file, _ string) string { return file }

// startQEMU starts QEMU. Stderr gets what it says.
func (l *layout) startQEMU(program string, c *command, _ bool, _ map[string]string, stderr *os.File) (*exec.Cmd, error) {
	cmd := &exec.Cmd{
		Path: program, Args: append([]string{filepath.Base(program)}, c.args...), Dir: l.dir,
		Env: []string{"PATH=/usr/bin:/bin"}, Stdout: stderr, Stderr: stderr, ExtraFiles: c.files,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	return cmd, cmd.Start()
}

// IsHelper reports whether this process was started by the engine. Here none is.
func IsHelper([]string) bool { return false }

// RunHelper is never called here.
func RunHelper() { os.Exit(1) }
