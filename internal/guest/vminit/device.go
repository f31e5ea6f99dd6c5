//go:build linux

package vminit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/vmboot"
)

// deviceTime is how long a device may take to appear. Under emulation on a
// busy host the kernel is slow.
const deviceTime = 20 * time.Second

// await calls look until it finds something or the time is over.
func await(what string, look func() (string, bool)) (string, error) {
	deadline := time.Now().Add(deviceTime)
	for wait := time.Millisecond; ; wait = min(wait*2, 20*time.Millisecond) {
		if found, ok := look(); ok {
			return found, nil
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("%s did not appear", what)
		}
		time.Sleep(wait)
	}
}

// port is a virtio-serial port. The kernel lets only one process open it, and
// this one never closes it.
type port struct{ fd int }

func openPort(name string) (*port, error) {
	path, err := await("the engine's port", func() (string, bool) {
		files, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, f := range files {
			if got, err := readLine(f); err == nil && got == name {
				path := "/dev/" + filepath.Base(filepath.Dir(f))
				_, err := os.Stat(path)
				return path, err == nil
			}
		}
		return "", false
	})
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &port{fd: fd}, nil
}

// Read waits for bytes. While the engine's side is not there, the kernel
// reports an end of file; for a machine that is just a pause.
func (p *port) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(p.fd, b)
		switch {
		case n > 0:
			return n, nil
		case err == nil, errors.Is(err, unix.EPIPE):
			time.Sleep(5 * time.Millisecond)
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		default:
			return 0, fmt.Errorf("read the engine's port: %w", err)
		}
	}
}

// Write writes all of b.
func (p *port) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := unix.Write(p.fd, b[done:])
		if n > 0 {
			done += n
		}
		switch {
		case err == nil, errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EPIPE):
			time.Sleep(5 * time.Millisecond)
		default:
			return done, fmt.Errorf("write the engine's port: %w", err)
		}
	}
	return done, nil
}

func (p *port) send(r vmboot.Report) error { return vmboot.Write(p, r) }

const virtioBus = "/sys/bus/virtio"

// stopProbing keeps the kernel from taking disks by itself. A disk that was
// taken in a template would keep the template's size in every copy.
func stopProbing() error {
	if err := os.WriteFile(virtioBus+"/drivers_autoprobe", []byte("0"), 0); err != nil {
		return fmt.Errorf("virtio bus: %w", err)
	}
	return nil
}
