package local

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/boxtest"
	"github.com/hutch-sandbox/hutch/box/local/embed"
	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

// The test program is its own helper, and a server in a box.
func TestMain(m *testing.M) {
	embed.Init()
	if len(os.Args) == 2 && os.Args[1] == "echo-server" {
		echoServer()
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "warm-holder" {
		fmt.Fprintln(os.Stderr, holdWarm(os.Args[2]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// echoServer sends back what it receives, in the box.
func echoServer() {
	l, err := net.Listen("tcp", "127.0.0.1:7007")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready")
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			buf := make([]byte, 64<<10)
			for {
				n, err := c.Read(buf)
				if _, werr := c.Write(buf[:n]); err != nil || werr != nil {
					return
				}
			}
		}()
	}
}

// testHome is a short-lived home. It is made by hand, since a box's files may
// have modes that t.TempDir cannot remove.
func testHome(t *testing.T) string {
	dir, err := os.MkdirTemp("", "hutch-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { checkClean(t, dir) })
	return dir
}

// checkClean removes what is left of a home and fails if something of it
// still runs, is mounted or is limited.
func checkClean(t *testing.T, home string) {
	d, err := newDriver(context.Background(), Config{Home: home})
	if err != nil {
		t.Error(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	infos, err := d.List(ctx, box.ListOptions{})
	if err != nil {
		t.Error(err)
	}
	for _, info := range infos {
		if err := d.Remove(ctx, info.ID, true); err != nil {
			t.Errorf("remove %s: %v", info.Name, err)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	for _, p := range leftovers(home, infos) {
		t.Errorf("left behind: %s", p)
	}
	if err := (unpacker{d.helper}).Remove(ctx, home); err != nil {
		t.Errorf("remove the home: %v", err)
	}
}

// leftovers looks for processes, mounts, loop devices and control groups that
// belong to a home.
func leftovers(home string, boxes []box.Info) []string {
	var found []string
	deadline := time.Now().Add(5 * time.Second)
	for {
		found = nil
		procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, p := range procs {
			data, err := os.ReadFile(p)
			if err != nil || filepath.Base(filepath.Dir(p)) == strconv.Itoa(os.Getpid()) {
				continue
			}
			for _, info := range boxes {
				if strings.Contains(string(data), info.ID) {
					found = append(found, "process "+p+" "+strings.ReplaceAll(string(data), "\x00", " "))
				}
			}
		}
		if data, err := os.ReadFile("/proc/self/mounts"); err == nil && strings.Contains(string(data), home) {
			found = append(found, "a mount below "+home)
		}
		loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
		for _, l := range loops {
			if data, err := os.ReadFile(l); err == nil && strings.HasPrefix(string(data), home) {
				found = append(found, "loop device "+l)
			}
		}
		for _, info := range boxes {
			groups, _ := filepath.Glob("/sys/fs/cgroup/*/hutch/" + info.ID)
			found = append(found, groups...)
		}
		// The kernel frees mounts and loop devices on its own time.
		if len(found) == 0 || time.Now().After(deadline) {
			return found
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestDriver(t *testing.T) {
	realengine.Need(t, "gvisor")
	boxtest.Run(t, boxtest.Harness{
		New: func(t *testing.T) box.Driver { return open(t, testHome(t)) },
		Another: func(t *testing.T, d box.Driver) box.Driver {
			return open(t, d.(*driver).home.Dir())
		},
		RealProcesses: true,
		TTY:           true, TTYSize: []string{"stty", "size"},
		Pause: true,
		// A million system calls of one byte each take a while on a busy machine.
		Patience: 6 * time.Minute,
		Serve:    serveEcho,
		Crash: func(t *testing.T, d box.Driver, b *box.Box) {
			info, err := b.Info(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			killEngine(t, info.Pid, "runsc-sandbox")
		},
	})
}

// vmHome is a home whose boxes can be virtual machines.
func vmHome(t *testing.T) string {
	home := testHome(t)
	realengine.Kernel(t, home)
	return home
}

// TestVM runs the same rules on virtual machines, emulated where the host has
// no KVM. Bulk and rounds are small then: it is about correctness.
func TestVM(t *testing.T) {
	realengine.Need(t, "vm")
	open := func(t *testing.T, home string) box.Driver {
		d, err := newDriver(context.Background(), Config{Home: home, Engine: "vm"})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	boxtest.Run(t, boxtest.Harness{
		New:           func(t *testing.T) box.Driver { return open(t, vmHome(t)) },
		Another:       func(t *testing.T, d box.Driver) box.Driver { return open(t, d.(*driver).home.Dir()) },
		RealProcesses: true,
		TTY:           true, TTYSize: []string{"stty", "size"},
		Pause:    true,
		Patience: 10 * time.Minute,
		Bulk:     4 << 20,
		Rounds:   2,
		Serve:    serveEcho,
		Crash: func(t *testing.T, d box.Driver, b *box.Box) {
			info, err := b.Info(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			killEngine(t, info.Pid, "qemu-system-")
		},
	})
}

func open(t *testing.T, home string) *driver {
	d, err := newDriver(context.Background(), Config{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// serveEcho copies this program into the box and has it serve there.
func serveEcho(t *testing.T, _ box.Driver, b *box.Box) (network, addr string) {
	ctx := context.Background()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	if _, err := b.WriteStream(ctx, "/root/server", self, box.WriteOptions{Perm: 0o755}); err != nil {
		t.Fatal(err)
	}
	cmd := b.Command(ctx, "/root/server", "echo-server")
	cmd.Detach = true // until the box ends: several tests use it
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if n, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatalf("the server in the box said %d bytes: %v", n, err)
	}
	return "tcp", "127.0.0.1:7007"
}

// killEngine ends the engine's process below the keeper, whose command line
// begins with name.
func killEngine(t *testing.T, keeper int, name string) {
	t.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", keeper))
	for _, file := range files {
		data, _ := os.ReadFile(file)
		for _, field := range strings.Fields(string(data)) {
			cmdline, _ := os.ReadFile("/proc/" + field + "/cmdline")
			if strings.HasPrefix(string(cmdline), name) {
				pid, _ := strconv.Atoi(field)
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
	}
	t.Fatalf("keeper %d has no process %s", keeper, name)
}
