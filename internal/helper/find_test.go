package helper

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/box"
)

func executable(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFindOrder(t *testing.T) {
	dir := t.TempDir()
	configured, named, onPath := executable(t, dir, "configured"), executable(t, dir, "named"), executable(t, dir, "hutch")
	t.Setenv("PATH", dir)
	t.Setenv("HUTCH_HELPER", "")
	for _, row := range []struct{ config, env, want string }{
		{"", "", onPath},
		{"", named, named},
		{configured, named, configured},
	} {
		t.Setenv("HUTCH_HELPER", row.env)
		got, err := Find(row.config)
		if err != nil || got != row.want {
			t.Errorf("Find(%q) with HUTCH_HELPER=%q: %q, %v, want %q", row.config, row.env, got, err, row.want)
		}
	}
}

func TestFindRefuses(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	for _, row := range []struct {
		config, env string
		kind        box.Kind
		says        string
	}{
		{config: plain, kind: box.Invalid, says: "Config.Helper: not an executable"},
		{config: dir, kind: box.Invalid, says: "not an executable"},
		{env: filepath.Join(dir, "missing"), kind: box.Invalid, says: "HUTCH_HELPER"},
		{kind: box.Unsupported, says: "no hutch command"},
	} {
		t.Setenv("HUTCH_HELPER", row.env)
		_, err := Find(row.config)
		var e *box.Error
		if !errors.As(err, &e) || e.Kind != row.kind || !strings.Contains(err.Error(), row.says) || e.Hint == "" {
			t.Errorf("Find(%q) with HUTCH_HELPER=%q: %v", row.config, row.env, err)
		}
	}
}

// A program that needs a loader cannot start itself anew in an empty root.
func TestLoaderOf(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\nfunc main() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	cmd := exec.Command("go", "build", "-o", program, "main.go")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := loaderOf(program); got != "" {
		t.Errorf("a static program: %q", got)
	}
	// Distributions link theirs dynamically.
	if got := loaderOf("/bin/sh"); !strings.HasPrefix(got, "/lib") {
		t.Errorf("/bin/sh: %q, want a loader in /lib or /lib64", got)
	}
	if got := loaderOf(filepath.Join(dir, "main.go")); got != "" {
		t.Errorf("no program at all: %q", got)
	}
}
