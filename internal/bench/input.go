package main

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
)

// writeRandom makes a file of n bytes that do not compress, the same ones each
// time, and returns their digest.
func writeRandom(name string, n int64) (string, error) {
	f, err := os.Create(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(f, h), rand.NewChaCha8([32]byte{1}), n); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), f.Close()
}

func checkSum(name, want string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("the copy differs: sha256 %s, want %s", got, want)
	}
	return nil
}

// writeTree makes a folder of files in dir, as a source tree is: 100 a folder,
// 0.5 to 11 KiB of text each, a git repository where this machine has git.
// It then packs it into a tar archive in which all belongs to root, and
// removes the folder.
func writeTree(ctx context.Context, archive, dir string, files int) (hasGit bool, err error) {
	defer os.RemoveAll(dir)
	rnd := rand.New(rand.NewPCG(1, 2))
	for n := range files {
		sub := filepath.Join(dir, fmt.Sprintf("part%03d", n/100))
		if n%100 == 0 {
			if err := os.MkdirAll(sub, 0o755); err != nil {
				return false, err
			}
		}
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("file%02d.txt", n%100)), text(rnd, 512+rnd.IntN(11<<10)), 0o644); err != nil {
			return false, err
		}
	}
	if _, err := exec.LookPath("git"); err == nil {
		git := program{args: []string{"git", "-C", dir, "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"}}
		for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"commit", "-q", "-m", "files"}, {"repack", "-q", "-a", "-d"}} {
			if err := git.run(ctx, nil, nil, args...); err != nil {
				return false, err
			}
		}
		hasGit = true
	}
	return hasGit, pack(archive, dir)
}

// text returns n bytes of lines of lower-case words.
func text(rnd *rand.Rand, n int) []byte {
	data := make([]byte, n)
	for i := range data {
		switch c := rnd.IntN(64); {
		case c < 52:
			data[i] = byte('a' + c%26)
		case c < 63:
			data[i] = ' '
		default:
			data[i] = '\n'
		}
	}
	return data
}

// pack writes the folder under its own name.
func pack(archive, dir string) (err error) {
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buf := bufio.NewWriterSize(f, 1<<20)
	w := tar.NewWriter(buf)
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		h, err := tar.FileInfoHeader(fi, "")
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(filepath.Dir(dir), name)
		if err != nil {
			return err
		}
		if h.Name = rel; d.IsDir() {
			h.Name += "/"
		}
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "root", "root"
		if err := w.WriteHeader(h); err != nil || !d.Type().IsRegular() {
			return err
		}
		src, err := os.Open(name)
		if err != nil {
			return err
		}
		defer src.Close()
		_, err = io.Copy(w, src)
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(w.Close(), buf.Flush())
}
