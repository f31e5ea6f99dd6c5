//go:build linux

package gvisor_test

import (
	"os"
	"testing"

	"github.com/hutch-sandbox/hutch/internal/engine/enginetest"
	"github.com/hutch-sandbox/hutch/internal/engine/gvisor"
	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

func TestMain(m *testing.M) {
	if gvisor.IsHelper(os.Args) {
		gvisor.RunHelper()
	}
	enginetest.Namespaces()
	os.Exit(m.Run())
}

func TestEngine(t *testing.T) {
	realengine.Need(t, gvisor.Name)
	enginetest.Run(t, gvisor.New(), enginetest.Options{})
}
