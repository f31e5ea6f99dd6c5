// Command hutch runs untrusted commands in boxes. "hutch help" says how.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/box/local/embed"
	"github.com/hutch-sandbox/hutch/cmd/internal/program"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
	"github.com/hutch-sandbox/hutch/internal/payload"
)

func main() {
	embed.Init()
	os.Exit(program.Run(goOn, openKernels))
}

// goOn goes on as the hutch-agent command, which knows the providers of models.
// It is part of this program, and yet another one: what it links is larger than
// all else here and is set up at each start of a process, also of those that
// run boxes. It returns only with an error.
func goOn(name, home string, _ func(string) string) (model.Model, error) {
	path, err := extract(home)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	environ := os.Environ()
	if os.Getenv("HUTCH_HELPER") == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		environ = append(environ, "HUTCH_HELPER="+self)
	}
	return nil, fmt.Errorf("start %s: %w", path, syscall.Exec(path, append([]string{"hutch"}, os.Args[1:]...), environ))
}

// extract puts the command into the home's cache, where it stays for the next
// time. Those of other builds are removed.
func extract(home string) (string, error) {
	if home == "" {
		var err error
		if home, err = boxdir.Default(); err != nil {
			return "", err
		}
	}
	h, err := boxdir.Open(home)
	if err != nil {
		return "", err
	}
	path, err := payload.Extract(payload.Agents, h.Path("cache"))
	if err != nil {
		return "", err
	}
	// A glob of the home's own path could have patterns in it.
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), string(payload.Agents)+"-") && e.Name() != filepath.Base(path) {
			_ = os.Remove(filepath.Join(filepath.Dir(path), e.Name())) // the next time will do
		}
	}
	return path, nil
}
