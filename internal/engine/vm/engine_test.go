//go:build linux

package vm_test

import (
	"os"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/internal/engine/enginetest"
	"github.com/hutch-sandbox/hutch/internal/engine/vm"
	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

func TestMain(m *testing.M) {
	if vm.IsHelper(os.Args) {
		vm.RunHelper()
	}
	if len(os.Args) == 5 && os.Args[1] == standInArg {
		standIn(os.Args[2:])
		return
	}
	enginetest.Namespaces()
	os.Exit(m.Run())
}

func TestEngine(t *testing.T) {
	realengine.Need(t, vm.Name)
	enginetest.Run(t, vm.New(), enginetest.Options{Cache: realengine.Cache(t)})
}

// TestTrial: what decides whether an accelerator is real takes a kernel that
// boots for one, and one that has no time to for none. The emulator stands in
// for the accelerator.
func TestTrial(t *testing.T) {
	realengine.Need(t, vm.Name)
	dir := realengine.Cache(t)
	if err := vm.Try(t.Context(), dir, "tcg", 3*time.Minute); err != nil {
		t.Errorf("a kernel that boots: %v", err)
	}
	if err := vm.Try(t.Context(), dir, "tcg", 50*time.Millisecond); err == nil {
		t.Error("a kernel that had no time to boot is believed to have")
	}
	if err := vm.Try(t.Context(), dir, "none", time.Minute); err == nil {
		t.Error("an accelerator that does not exist is believed to work")
	}
}
