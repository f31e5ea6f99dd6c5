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

// Who does not wait is told that somebody has the lock, and gets it afterwards.
func TestTryLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := filelock.TryLock(path)
	if err != nil || first == nil {
		t.Fatalf("a free lock: %v, %v", first, err)
	}
	if second, err := filelock.TryLock(path); err != nil || second != nil {
		t.Errorf("a lock that somebody has: %v, %v", second, err)
	}
	first.Close()
	third, err := filelock.TryLock(path)
	if err != nil || third == nil {
		t.Fatalf("a lock that was given back: %v, %v", third, err)
	}
	third.Close()
}
