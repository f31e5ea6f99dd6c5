package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/cli/changes"
	"github.com/hutch-sandbox/hutch/internal/cli/hosttar"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
)

// folderCopy is the record of a folder that was copied into a box, in
// agents/copies/BOX.json of the home. It is what tells the agent's changes from
// the user's.
type folderCopy struct {
	Version int             `json:"version"` // 1
	Box     string          `json:"box"`     // its name
	Dir     string          `json:"dir"`     // on this machine, without links
	Into    string          `json:"into"`    // in the box, without links
	Time    time.Time       `json:"time"`
	Files   changes.Listing `json:"files"` // as of the copy, or of the last apply
}

// maxCopyRecord bounds the file of a record, in bytes.
const maxCopyRecord = 1 << 30

func copiesDir(agents string) string { return filepath.Join(agents, "copies") }

func copyFileOf(agents, name string) string { return filepath.Join(copiesDir(agents), name+".json") }

// readCopy reads the record of a box; fs.ErrNotExist when nothing was copied
// into it.
func readCopy(agents, name string) (*folderCopy, error) {
	if strings.ContainsAny(name, "/\x00") {
		return nil, fs.ErrNotExist
	}
	file := copyFileOf(agents, name)
	fi, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	var data []byte
	if fi.Size() > maxCopyRecord {
		err = errors.New("it is too large")
	} else {
		data, err = os.ReadFile(file)
	}
	var c folderCopy
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err == nil && (c.Version != 1 || c.Box != name) {
		err = fmt.Errorf("it is of version %d for box %q, and this program reads version 1", c.Version, clip(c.Box))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; it cannot be used: take the files with 'hutch cp'", file, err)
	}
	return &c, nil
}

func (c *folderCopy) save(agents string) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return writeWhole(copyFileOf(agents, c.Box), append(data, '\n'))
}

// copied reports whether a folder was copied into a box by this session, or
// one before it.
func (p *places) copied(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.copies[name]
}

func (p *places) markCopied(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.copies[name] = true
}

// copyIn makes the next new box and copies a folder into it. When that fails,
// there is no box.
func (p *places) copyIn(ctx context.Context, e *env, dir, agents string) (err error) {
	h := &held{p.Provider.New().(*sandbox.Backend)}
	b, err := h.Box(ctx)
	if err != nil {
		return err
	}
	ref, _ := h.Ref()
	defer func() {
		if err != nil {
			if derr := p.Destroy(ctx, ref); derr != nil {
				err = fmt.Errorf("%w (and box %s is left: %w)", err, ref.ID, derr)
			}
		}
	}()
	into, err := h.WorkingDir(ctx)
	if err != nil {
		return err
	}
	list, err := copyFolder(ctx, e, b, dir, into)
	if err != nil {
		return fmt.Errorf("copy %s into the box: %w", dir, err)
	}
	if err := os.MkdirAll(copiesDir(agents), 0o700); err != nil {
		return err
	}
	p.forgetCopies(ctx, agents)
	c := &folderCopy{Version: 1, Box: b.Name(), Dir: dir, Into: into, Time: e.Now().UTC(), Files: list}
	if err := c.save(agents); err != nil {
		return err
	}
	e.note("copied %s, %d files and folders", dir, len(list))
	p.markCopied(b.Name())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.held[b.Name()] = h, h
	return nil
}

// copyFolder copies a folder's content, and lists what really was sent.
func copyFolder(ctx context.Context, e *env, b *box.Box, dir, into string) (changes.Listing, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	packed, pack := io.Pipe()
	sent, send := io.Pipe()
	var list changes.Listing
	perr, lerr := make(chan error, 1), make(chan error, 1)
	go func() {
		defer e.guard()
		err := hosttar.Pack(ctx, pack, dir, ".", false)
		pack.CloseWithError(err)
		perr <- err
	}()
	go func() {
		defer e.guard()
		var err error
		list, err = changes.Read(ctx, io.TeeReader(packed, send))
		send.CloseWithError(err)
		_ = packed.CloseWithError(io.ErrClosedPipe) // a reader that stopped early must not leave the packer waiting
		lerr <- err
	}()
	err := b.CopyIn(ctx, into, sent, box.UnpackOptions{NoOverwriteDir: true})
	_ = sent.CloseWithError(io.ErrClosedPipe)
	// The first that failed is the cause, the others fail for want of it.
	for _, other := range []error{<-lerr, <-perr} {
		if other != nil && !errors.Is(other, io.ErrClosedPipe) {
			err = other
		}
	}
	return list, err
}

// forgetCopies removes the records of boxes that are gone.
func (p *places) forgetCopies(ctx context.Context, agents string) {
	entries, err := os.ReadDir(copiesDir(agents))
	if err != nil {
		return // the next time will do
	}
	for _, d := range entries {
		name, ok := strings.CutSuffix(d.Name(), ".json")
		if !ok {
			continue
		}
		if _, err := p.rt.Get(ctx, name); errors.Is(err, box.ErrNotFound) {
			_ = os.Remove(filepath.Join(copiesDir(agents), d.Name()))
		}
	}
}
