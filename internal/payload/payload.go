// Package payload is other programs as part of this one, for each architecture,
// compressed: those that run inside boxes, the guest agent and the builtin
// image's userland, and the command that knows the providers of models.
//
// The files are built by `make build` (they are no sources, so they are not
// checked in). A program that was built without them still works where they
// lie beside it, or on the PATH.
package payload

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/hutch-sandbox/hutch/box"
)

//go:embed files
var files embed.FS

// Program is one of the programs.
type Program string

// The programs.
const (
	Agent    Program = "hutch-guest"
	Userland Program = "hutch-userland"
	Agents   Program = "hutch-agent"
)

// maxSize bounds a decompressed program, in bytes.
const maxSize = 128 << 20

// Key tells one build of a program from another: it is part of the names of
// what is made from it.
func Key(p Program) (string, error) {
	// Made at build time: hashing megabytes at every boot of a box shows.
	if key, err := files.ReadFile(embedded(p) + ".key"); err == nil {
		return strings.TrimSpace(string(key)), nil
	}
	data, err := compressed(p)
	if err != nil {
		return "", err
	}
	return KeyOf(data), nil
}

// KeyOf is the key of a program whose compressed file has this content.
func KeyOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

func embedded(p Program) string { return "files/" + string(p) + "-" + runtime.GOARCH + ".zst" }

// compressed returns the embedded file, or that of a program found elsewhere.
func compressed(p Program) ([]byte, error) {
	data, err := files.ReadFile(embedded(p))
	if err == nil {
		return data, nil
	}
	path, lerr := lookup(p)
	if lerr != nil {
		return nil, lerr
	}
	return os.ReadFile(path)
}

func lookup(p Program) (string, error) {
	if exe, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(exe), string(p))
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	if path, err := exec.LookPath(string(p)); err == nil {
		return path, nil
	}
	return "", &box.Error{Kind: box.Unsupported, Op: "find", Object: string(p),
		Err: errors.New("it is not part of this build"), Hint: "build with make build, or put it on the PATH"}
}

// Write writes a program to w.
func Write(p Program, w io.Writer) error {
	data, err := compressed(p)
	if err != nil {
		return err
	}
	if len(data) > 4 && string(data[:4]) == "\x7fELF" {
		_, err := w.Write(data)
		return err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxSize), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer dec.Close()
	out, err := dec.DecodeAll(data, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	_, err = w.Write(out)
	return err
}

// Extract puts a program into dir, once for each build of it, and returns its
// path. Many processes may do so at once.
func Extract(p Program, dir string) (string, error) {
	key, err := Key(p)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, string(p)+"-"+key)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	f, err := os.CreateTemp(dir, "."+string(p)+".*")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	err = Write(p, f)
	if err == nil {
		err = f.Chmod(0o755)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return "", err
	}
	return path, os.Rename(f.Name(), path)
}
