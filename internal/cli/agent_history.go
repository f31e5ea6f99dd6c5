package cli

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/agent/model"
)

// maxHistory bounds a conversation's file, in bytes.
const maxHistory = 1 << 30

// history is a conversation in a file. It is used by one goroutine at a time.
type history struct {
	file     string
	messages []model.Message
	saved    bool        // the file is there
	disk     fs.FileInfo // as of our last look; nil: there is none
}

// openHistory reads a conversation. A file that is not there is one that
// begins.
func openHistory(file string) (*history, error) {
	h := &history{file: file}
	fi, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if dir := filepath.Dir(file); !isDir(dir) {
			return nil, usagef("--resume: there is no folder %s; create it first", dir)
		}
		return h, nil
	case err != nil:
		return nil, usagef("--resume: %v; name a file that can be read", err)
	case !fi.Mode().IsRegular() || fi.Size() > maxHistory:
		return nil, usagef("--resume: %s is no conversation; name a file that 'hutch agent' wrote, or one that is not there yet", file)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, usagef("--resume: %v; name a file that can be read", err)
	}
	if h.messages, err = model.Decode(data); err == nil {
		err = model.Validate(h.messages)
	}
	if err != nil {
		return nil, usagef("--resume: %s: %v; name a file that 'hutch agent' wrote, or one that is not there yet", file, err)
	}
	h.saved, h.disk = true, fi
	return h, nil
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// newHistory names a new conversation's file in a folder of the home, which is
// made when missing.
func newHistory(dir string, now time.Time) (*history, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	name := now.UTC().Format("20060102-150405") + "-" + strings.ToLower(rand.Text()[:6]) + ".json"
	return &history{file: filepath.Join(dir, name)}, nil
}

// save writes the conversation. When somebody else wrote the file meanwhile,
// theirs stays and ours gets another name.
func (h *history) save(messages []model.Message) error {
	data, err := model.Encode(messages)
	if err != nil {
		return err
	}
	fi, err := os.Stat(h.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && (h.disk == nil || !os.SameFile(fi, h.disk) || !fi.ModTime().Equal(h.disk.ModTime()) || fi.Size() != h.disk.Size()) {
		h.file += "." + strings.ToLower(rand.Text()[:6])
	}
	if err := writeWhole(h.file, data); err != nil {
		return fmt.Errorf("keep the conversation: %w; name another file with --resume", err)
	}
	h.messages, h.saved = messages, true
	h.disk, err = os.Stat(h.file)
	return err
}

// writeWhole replaces a file, for this user alone to read: it has the old
// content or the new, also after a crash.
func writeWhole(file string, data []byte) error {
	dir := filepath.Dir(file)
	f, err := os.CreateTemp(dir, ".hutch-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
