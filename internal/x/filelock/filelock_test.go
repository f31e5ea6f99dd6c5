//go:build linux || darwin

package filelock_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/hutch-sandbox/hutch/internal/x/filelock"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := filelock.Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := filelock.Lock(ended, path); !errors.Is(err, context.Canceled) {
		t.Errorf("a lock that another has: %v", err)
	}
	got := make(chan error)
	go func() {
		f, err := filelock.Lock(t.Context(), path)
		if err == nil {
			err = f.Close()
		}
		got <- err
	}()
	first.Close()
	if err := <-got; err != nil {
		t.Errorf("after it was given back: %v", err)
	}
}
