package helper

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/hutch-sandbox/hutch/box"
)

// self is set when this program said that it can be its own helper. It is the
// one thing here that a process learns about itself, once, before main runs
// on.
var self atomic.Bool

// MarkSelf says that this program is its own helper.
func MarkSelf() { self.Store(true) }

// Find returns the helper program: the configured one, $HUTCH_HELPER, this
// program if it is its own helper, "hutch" beside this program, "hutch" on the
// PATH.
func Find(configured string) (string, error) {
	check := func(path, from string) (string, error) {
		abs, err := filepath.Abs(path)
		if err == nil {
			var fi os.FileInfo
			if fi, err = os.Stat(abs); err == nil && (fi.IsDir() || fi.Mode()&0o111 == 0) {
				err = errors.New("not an executable file")
			}
		}
		if err != nil {
			return "", &box.Error{Kind: box.Invalid, Op: "find helper", Object: path, Err: fmt.Errorf("%s: %w", from, err),
				Hint: "name the hutch command there"}
		}
		return abs, nil
	}
	if configured != "" {
		return check(configured, "Config.Helper")
	}
	if path := os.Getenv("HUTCH_HELPER"); path != "" {
		return check(path, "HUTCH_HELPER")
	}
	exe, err := os.Executable()
	if err == nil && self.Load() {
		if loader := loaderOf(exe); loader != "" {
			return "", &box.Error{Kind: box.Unsupported, Op: "find helper", Object: exe,
				Err:  fmt.Errorf("this program is to be its own helper, but is not static: an engine starts itself anew where there is no %s", loader),
				Hint: "build it with CGO_ENABLED=0, or set HUTCH_HELPER to a hutch command"}
		}
		return exe, nil
	}
	if err == nil {
		beside := filepath.Join(filepath.Dir(exe), "hutch")
		if path, err := check(beside, ""); err == nil && path != exe {
			return path, nil
		}
	}
	if path, err := exec.LookPath("hutch"); err == nil {
		return check(path, "PATH")
	}
	return "", &box.Error{Kind: box.Unsupported, Op: "find helper", Err: errors.New("no hutch command was found"),
		Hint: "install it (go install github.com/hutch-sandbox/hutch/cmd/hutch), set HUTCH_HELPER, or call embed.Init first in main"}
}

// loaderOf returns the program that loads a dynamically linked program, "" for
// a static one.
func loaderOf(path string) string {
	f, err := elf.Open(path)
	if err != nil {
		return "" // not Linux's; whoever starts it will see
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP && p.Filesz < 4096 {
			name := make([]byte, p.Filesz)
			if _, err := p.ReadAt(name, 0); err == nil {
				return strings.TrimRight(string(name), "\x00")
			}
		}
	}
	return ""
}
