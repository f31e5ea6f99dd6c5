// Package realengine is for tests that need a real engine. It says whether
// they can run, makes a missing engine a failure where it is required, and
// notes which engines ran, for the last lines of `make test`.
package realengine

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/internal/payload"
)

// Need skips the test when this build has no programs to run in a box, which
// is so in a plain `go test ./...`, or when the machine lacks what the engine
// is made of. Where REQUIRE_ENGINES names the engine, it fails instead.
func Need(t testing.TB, engine string) {
	t.Helper()
	if err := missing(engine); err != nil {
		if slices.Contains(strings.Split(os.Getenv("REQUIRE_ENGINES"), ","), engine) {
			t.Fatalf("engine %s is required: %v", engine, err)
		}
		t.Skipf("engine %s cannot run: %v", engine, err)
	}
	t.Cleanup(func() {
		if !t.Failed() && !t.Skipped() {
			note(t, engine)
		}
	})
}

// missing says what keeps the engine from running in tests.
func missing(engine string) error {
	if _, err := payload.Key(payload.Agent); err != nil {
		return err
	}
	if engine != "vm" {
		return nil
	}
	qemu := "qemu-system-x86_64"
	if runtime.GOARCH == "arm64" {
		qemu = "qemu-system-aarch64"
	}
	_, err := exec.LookPath(qemu)
	return err
}

// note adds a line to the file that HUTCH_ENGINES_RAN names.
func note(t testing.TB, engine string) {
	path := os.Getenv("HUTCH_ENGINES_RAN")
	if path == "" {
		return
	}
	who := "user"
	if u, err := user.Current(); err == nil && u.Uid == "0" {
		who = "root"
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "%s (%s)\n", engine, who); err != nil {
		t.Error(err)
	}
}
