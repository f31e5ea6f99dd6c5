//go:build linux

package vm_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/engine/vm"
)

// standInArg makes this program play a QEMU that a box has taken over.
const standInArg = "jail-stand-in"

// standIn tries what such a program would, and prints what came of it. It gets
// the address of a server on the host, the name of an abstract socket, and a
// file of the host's.
func standIn(args []string) {
	try := func(name string, err error) {
		result := "works"
		if err != nil {
			result = "refused"
		}
		fmt.Printf("%s: %s\n", name, result)
	}
	open := func(path string, flags int) error {
		fd, err := unix.Open(path, flags, 0o600)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	dial := func(network, addr string) error {
		c, err := net.Dial(network, addr)
		if err == nil {
			c.Close()
		}
		return err
	}
	try("own folder", open("/box/mine", unix.O_WRONLY|unix.O_CREAT))
	try("null device", open("/dev/null", unix.O_RDWR))
	try("write below /usr", open("/usr/bin/mine", unix.O_WRONLY|unix.O_CREAT))
	try("write to the root", open("/mine", unix.O_WRONLY|unix.O_CREAT))
	try("the host's passwords", open("/etc/shadow", unix.O_RDONLY))
	try("the host's users", open("/etc/passwd", unix.O_RDONLY))
	try("a home", open("/root", unix.O_RDONLY))
	try("a file of the host's", open(args[2], unix.O_RDONLY))
	try("processes", open("/proc/self/status", unix.O_RDONLY))
	try("a program in the own folder", func() error {
		if err := os.WriteFile("/box/program", []byte("#!/bin/true\n"), 0o755); err != nil {
			return nil // then the check below tells
		}
		return unix.Access("/box/program", unix.X_OK)
	}())
	try("a server on the host", dial("tcp", args[0]))
	try("an abstract socket", dial("unix", args[1]))
	try("mount", unix.Mount("tmpfs", "/box", "tmpfs", 0, ""))
	try("new namespaces", unix.Unshare(unix.CLONE_NEWNS))
	try("become root", unix.Setresuid(0, 0, 0))
	try("a device", unix.Mknod("/box/mem", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1))))
	try("any other process", unix.Kill(-1, 0))
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	err := unix.Capget(&header, &caps[0])
	if err == nil && caps == [2]unix.CapUserData{} {
		err = io.EOF // none, as it should be
	}
	try("any capability", err)
	bounding, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_ADMIN, 0, 0, 0)
	if err == nil && bounding == 0 {
		err = io.EOF
	}
	try("a capability to gain", err)
	nnp, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err == nil && nnp == 1 {
		err = io.EOF
	}
	try("new privileges by executing", err)
}

// TestJail: what took QEMU over finds nothing but its own folder.
func TestJail(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	abstract := fmt.Sprintf("@hutch-jail-test-%d", os.Getpid())
	socket, err := net.Listen("unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	args := []string{standInArg, server.Addr().String(), abstract, secret}
	cmd, uid, err := vm.StartJailed(filepath.Join(dir, "state"), self, args, out)
	if err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	said, _ := os.ReadFile(out.Name())
	if err != nil {
		t.Fatalf("the stand-in: %v\n%s", err, said)
	}
	if os.Getuid() == 0 && uid <= 0 {
		t.Errorf("QEMU would run as user %d", uid)
	}
	works := map[string]bool{"own folder": true, "null device": true}
	seen := 0
	for line := range bytes.Lines(said) {
		name, result, _ := strings.Cut(strings.TrimSpace(string(line)), ": ")
		want := "refused"
		if works[name] {
			want = "works"
		}
		if result != want {
			t.Errorf("%s: %s, want %s", name, result, want)
		}
		seen++
	}
	if seen < 19 {
		t.Errorf("only %d attempts were made:\n%s", seen, said)
	}
}
