package image

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// fileLock is a held flock. The kernel drops it with the process, whatever
// ends that. Two descriptors of one process exclude each other as two
// processes do, so goroutines need no other lock.
type fileLock struct{ f *os.File }

// unlock may be called twice.
func (l *fileLock) unlock() {
	if l != nil {
		l.f.Close()
	}
}

// lockFile waits for the lock on path, a file that is made if need be.
func lockFile(ctx context.Context, path string, how int) (*fileLock, error) {
	wait := time.Millisecond
	for {
		l, err := tryLockFile(path, how)
		if l != nil || err != nil {
			return l, err
		}
		// flock cannot wait for a context.
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		case <-t.C:
		}
		wait = min(wait*2, 50*time.Millisecond)
	}
}

// tryLockFile returns nil when somebody else holds the lock.
func tryLockFile(path string, how int) (*fileLock, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		ok, err := flock(f, how)
		if err != nil || !ok {
			f.Close()
			return nil, err
		}
		if isAt(f, path) {
			return &fileLock{f}, nil
		}
		f.Close() // its holder removed the file we waited for: lock the new one
	}
}

// flock takes the lock on f without waiting.
func flock(f *os.File, how int) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		default:
			return false, os.NewSyscallError("flock", err)
		}
	}
}

// isAt reports whether f is the file at path.
func isAt(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}
