package payload

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/hutch-sandbox/hutch/box"
)

// A program that no build embeds, so that it is looked for on the PATH.
const loose Program = "hutch-test-program"

// onPath makes data the program on the PATH.
func onPath(t *testing.T, data []byte) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, string(loose)), data, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
}

func compress(t *testing.T, data []byte) []byte {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	return enc.EncodeAll(data, nil)
}

func TestWrite(t *testing.T) {
	program := append([]byte("\x7fELF"), bytes.Repeat([]byte("program"), 1000)...)
	for name, data := range map[string][]byte{"as it is": program, "compressed": compress(t, program)} {
		onPath(t, data)
		var out bytes.Buffer
		if err := Write(loose, &out); err != nil || !bytes.Equal(out.Bytes(), program) {
			t.Errorf("%s: %d bytes, %v; want %d", name, out.Len(), err, len(program))
		}
	}
	for name, data := range map[string][]byte{
		"neither a program nor compressed": []byte("#!/bin/sh\n"),
		"cut short":                        compress(t, program)[:20],
		"more than a program can be":       compress(t, make([]byte, maxSize+1)),
	} {
		onPath(t, data)
		var out bytes.Buffer
		if err := Write(loose, &out); err == nil || out.Len() != 0 {
			t.Errorf("%s: %d bytes, error %v", name, out.Len(), err)
		}
	}
}

func TestMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, kerr := Key(loose)
	_, xerr := Extract(loose, t.TempDir())
	for _, err := range []error{kerr, xerr, Write(loose, &bytes.Buffer{})} {
		var e *box.Error
		if !errors.As(err, &e) || e.Kind != box.Unsupported || e.Hint == "" {
			t.Errorf("error %v, want Unsupported with a hint", err)
		}
	}
}

// Each build has a file of its own, made once however many ask for it at once.
func TestExtract(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	for _, content := range []string{"\x7fELF one", "\x7fELF two"} {
		onPath(t, []byte(content))
		key, err := Key(loose)
		if err != nil || key != KeyOf([]byte(content)) {
			t.Errorf("key %q, %v", key, err)
		}
		var wg sync.WaitGroup
		got := make([]string, 8)
		for i := range got {
			wg.Go(func() {
				path, err := Extract(loose, dir)
				if err != nil {
					t.Error(err)
				}
				got[i] = path
			})
		}
		wg.Wait()
		for _, path := range got {
			if path != got[0] {
				t.Errorf("paths %q", got)
			}
		}
		data, err := os.ReadFile(got[0])
		if err != nil || string(data) != content {
			t.Errorf("%q, %v; want %q", data, err, content)
		}
		if fi, err := os.Stat(got[0]); err != nil || fi.Mode().Perm() != 0o755 {
			t.Errorf("mode %v, %v", fi.Mode(), err)
		}
		paths = append(paths, got[0])
	}
	if paths[0] == paths[1] {
		t.Errorf("two builds are one file: %s", paths[0])
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%d files, %v; want the two programs alone", len(entries), err)
	}
	if _, err := Extract(loose, filepath.Join(dir, "missing")); err == nil {
		t.Error("no error without the folder")
	}
}
