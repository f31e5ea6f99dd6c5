// Package recorded keeps what a real model said in a file and says it again:
// a test that needed a provider once needs none from then on, and fails with a
// diff when it asks something else than it did.
//
//	m, err := recorded.Open("testdata/fix.json", recorded.Options{
//		Model:  live,                              // nil when there is no key: replay only
//		Record: os.Getenv("HUTCH_RECORD") != "",   // ask again, write the file anew
//	})
//	...
//	res, err := agent.New(m).Run(ctx, "…")
//	...
//	err = m.Close()
//
// A file that does not exist is recorded, when there is a model to ask; one
// that does is replayed, and the model is not asked. Requests are told apart
// by what they say, not by their order, so that parallel sub-agents replay
// too. Times, run ids and workspace refs are left out of the comparison and of
// the file, since they differ each time; [Options.Scrub] leaves out more.
//
// The file has every request and response as indented JSON: it is meant to be
// read, and reviewed as a diff. It has no credentials, which are not part of
// requests, but whatever the conversation says.
package recorded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/hutch-sandbox/hutch/agent/model"
)

// ErrChanged is matched by the error of a request that was not recorded.
var ErrChanged = errors.New("the request is not the recorded one")

// Options says how to open a recording. The zero value replays.
type Options struct {
	// Model is asked when there is no recording. Nil makes a missing file an
	// error.
	Model model.Model
	// Record asks Model even when there is a recording, and replaces it.
	Record bool
	// Scrub changes a request, which it owns, before it is compared and
	// written: to take out a temporary directory's name, for example.
	Scrub func(*model.Request)
}

// Model is a recording, played or made. It is safe for concurrent use.
type Model struct {
	file  string
	live  model.Model // nil when replaying
	scrub func(*model.Request)

	mu    sync.Mutex
	name  string
	turns []turn
	used  []bool
}

type cassette struct {
	Version int    `json:"version"`
	Model   string `json:"model"`
	Turns   []turn `json:"turns"`
}

type turn struct {
	Request  model.Request  `json:"request"`
	Response model.Response `json:"response"`

	key []byte // Request as indented JSON
}

const version = 1

// maxRecording bounds what is read, in bytes.
const maxRecording = 256 << 20

// Open opens a recording as the options say.
func Open(file string, opt Options) (*Model, error) {
	m := &Model{file: file, scrub: opt.Scrub}
	if opt.Record {
		if opt.Model == nil {
			return nil, fmt.Errorf("recording %s: there is no model to record", file)
		}
		m.live, m.name = opt.Model, opt.Model.Name()
		return m, nil
	}
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist) && opt.Model != nil:
		m.live, m.name = opt.Model, opt.Model.Name()
		return m, nil
	case err != nil:
		return nil, fmt.Errorf("recording: %w; it is made by a run with a model", err)
	case info.Size() > maxRecording:
		return nil, fmt.Errorf("recording %s: it has %d bytes, of %d at most", file, info.Size(), maxRecording)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("recording: %w", err)
	}
	var c cassette
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("recording %s: %w", file, err)
	}
	if c.Version != version {
		return nil, fmt.Errorf("recording %s: version %d is not known (this program reads version %d); record it again", file, c.Version, version)
	}
	for i := range c.Turns {
		if c.Turns[i].key, err = indented(c.Turns[i].Request); err != nil {
			return nil, fmt.Errorf("recording %s: %w", file, err)
		}
	}
	m.name, m.turns, m.used = c.Model, c.Turns, make([]bool, len(c.Turns))
	return m, nil
}

// Name returns the name of the model that was recorded.
func (m *Model) Name() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.name
}

// Recording reports whether answers come from a live model.
func (m *Model) Recording() bool { return m.live != nil }

// Generate replays the answer to the request, or asks and records.
func (m *Model) Generate(ctx context.Context, req *model.Request) (*model.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	plain, err := m.plain(req)
	if err != nil {
		return nil, err
	}
	key, err := indented(plain)
	if err != nil {
		return nil, err
	}
	if m.live == nil {
		return m.replay(key)
	}
	res, err := model.Collect(model.Stream(ctx, m.live, req))
	if err != nil {
		return nil, err // failures are not recorded: they are the provider's of that day
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turns = append(m.turns, turn{Request: plain, Response: *res, key: key})
	return res, nil
}

func (m *Model) replay(key []byte) (*model.Response, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := -1
	for i, t := range m.turns {
		if m.used[i] {
			continue
		}
		if bytes.Equal(t.key, key) {
			m.used[i] = true
			res := t.Response
			return &res, nil
		}
		if next < 0 {
			next = i
		}
	}
	if next < 0 {
		return nil, fmt.Errorf("%w: %s has no more than %d requests; record it again\n%s", ErrChanged, m.file, len(m.turns), key)
	}
	d := diff.Diff(fmt.Sprintf("recorded request %d", next+1), m.turns[next].key, "this request", key)
	return nil, fmt.Errorf("%w: %s; record it again if the change is meant\n%s", ErrChanged, m.file, d)
}

// Close writes a recording that was made. For one that was played it reports
// requests that were recorded and not made. It may be called twice.
func (m *Model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.live == nil {
		unused := 0
		for _, u := range m.used {
			if !u {
				unused++
			}
		}
		if unused > 0 {
			return fmt.Errorf("%w: %s has %d requests that were not made; record it again if the change is meant", ErrChanged, m.file, unused)
		}
		return nil
	}
	turns := m.turns
	if turns == nil {
		turns = []turn{}
	}
	data, err := indented(cassette{version, m.name, turns})
	if err != nil {
		return fmt.Errorf("recording %s: %w", m.file, err)
	}
	return write(m.file, data)
}

// write replaces a file as a whole.
func write(file string, data []byte) (err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".recording-*")
	if err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("recording: %w", err), os.Remove(f.Name()))
		}
	}()
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Chmod(0o644); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// plain returns a copy of a request without what differs each time. The copy
// shares nothing with the original, so that Scrub may do what it likes.
func (m *Model) plain(req *model.Request) (model.Request, error) {
	data, err := json.Marshal(req)
	if err != nil {
		return model.Request{}, fmt.Errorf("recording %s: %w", m.file, err)
	}
	var out model.Request
	if err := json.Unmarshal(data, &out); err != nil {
		return model.Request{}, fmt.Errorf("recording %s: %w", m.file, err)
	}
	for i := range out.Messages {
		msg := &out.Messages[i]
		msg.Time, msg.Run, msg.Workspace = time.Time{}, "", nil
	}
	if m.scrub != nil {
		m.scrub(&out)
	}
	return out, nil
}

func indented(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
