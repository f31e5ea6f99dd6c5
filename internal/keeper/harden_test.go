package keeper

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// hardenVar tells the test program that it is the one to be hardened.
const hardenVar = "HUTCH_TEST_HARDEN"

// A process that was hardened works on, with many threads, and can neither
// start programs nor make namespaces; its threads have no capability that is
// not kept.
func TestHarden(t *testing.T) {
	if os.Getenv(hardenVar) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestHarden$", "-test.v")
		cmd.Env = append(os.Environ(), hardenVar+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	runtime.LockOSThread()
	// Threads from before.
	var before sync.WaitGroup
	release := make(chan struct{})
	for range 5 {
		ready := make(chan struct{})
		before.Go(func() {
			runtime.LockOSThread()
			close(ready)
			<-release
		})
		<-ready
	}
	withCgo := false
	if err := harden(); errors.Is(err, errCgo) {
		withCgo = true
	} else if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"unshare": unix.Unshare(unix.CLONE_NEWUSER),
		"mount":   unix.Mount("none", "/", "tmpfs", 0, ""),
		"ptrace":  unix.PtraceAttach(os.Getpid()),
		"execve":  unix.Exec("/bin/true", []string{"true"}, nil),
		"setuid":  unix.Setuid(os.Getuid()),
		"program": exec.Command("/proc/self/exe", "-test.run=^$").Run(),
	} {
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v, want %v", what, err, unix.EPERM)
		}
	}
	// Files, sockets and threads are as ever.
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Error(err)
	}
	var after sync.WaitGroup
	for range 5 {
		after.Go(func() { runtime.LockOSThread() })
	}
	after.Wait()
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(tasks) < 6 {
		t.Fatalf("threads: %q, %v", tasks, err)
	}
	var caps uint64
	for _, path := range tasks {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it ended
		}
		for _, want := range []string{`(?m)^NoNewPrivs:\s1$`, `(?m)^Seccomp:\s2$`} {
			if !regexp.MustCompile(want).Match(data) {
				t.Errorf("%s has no %s:\n%s", path, want, data)
			}
		}
		if m := regexp.MustCompile(`(?m)^CapPrm:\s(\w+)$`).FindSubmatch(data); m == nil {
			t.Errorf("%s has no capabilities:\n%s", path, data)
		} else if _, err := fmt.Sscanf(string(m[1]), "%x", &caps); err != nil || !withCgo && caps&^keptCapabilities != 0 {
			t.Errorf("%s: capabilities %s, %v", path, m[1], err)
		}
	}
	close(release)
	before.Wait()
}
