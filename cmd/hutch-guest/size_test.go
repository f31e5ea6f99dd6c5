//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// sizeBudget is what the agent may add to every box.
const sizeBudget = 10_000_000

// TestSize builds the agent as it is shipped. It must be static and small.
func TestSize(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program twice")
	}
	for _, arch := range []string{"amd64", "arm64"} {
		out := filepath.Join(t.TempDir(), "hutch-guest")
		cmd := exec.Command("go", "build", "-trimpath",
			"-gcflags=crypto/...=-l", "-gcflags=regexp/...=-l", "-gcflags=google.golang.org/protobuf/encoding/...=-l",
			"-ldflags=-s -w -funcalign=16", "-o", out, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		if msg, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", arch, err, msg)
		}
		fi, err := os.Stat(out)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes", arch, fi.Size())
		if fi.Size() > sizeBudget {
			t.Errorf("%s: %d bytes, the budget is %d", arch, fi.Size(), sizeBudget)
		}
	}
}
