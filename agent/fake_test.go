package agent_test

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/workspace"
)

// places is a provider of workspaces that are maps. It counts what it made.
type places struct {
	name string

	mu     sync.Mutex
	made   int
	live   map[string]map[string]string
	closed int
}

func newPlaces(name string) *places {
	return &places{name: name, live: map[string]map[string]string{}}
}

func (p *places) New() workspace.Backend { return &place{of: p} }

func (p *places) Backend(ref workspace.Ref) (workspace.Backend, error) {
	if ref.Provider != p.name {
		return nil, fmt.Errorf("%w: %s", workspace.ErrUnknownRef, ref)
	}
	if !strings.HasPrefix(ref.ID, "id-") {
		return nil, fmt.Errorf("%w: %s was not made here", workspace.ErrInvalid, ref)
	}
	return &place{of: p, id: ref.ID}, nil
}

func (p *places) destroy(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, id)
}

func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made
}

type place struct {
	of *places
	mu sync.Mutex
	id string
}

func (p *place) Ref() (workspace.Ref, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return workspace.Ref{Provider: p.of.name, ID: p.id}, p.id != ""
}

// files creates on first use, and returns the place's files.
func (p *place) files(context.Context) (map[string]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.id == "" {
		p.of.made++
		p.id = fmt.Sprintf("id-%s-%d", p.of.name, p.of.made)
		p.of.live[p.id] = map[string]string{}
	}
	files, ok := p.of.live[p.id]
	if !ok {
		return nil, fmt.Errorf("%w: %s is gone", workspace.ErrUnavailable, p.id)
	}
	return files, nil
}

func (p *place) Close(context.Context) error {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.of.closed++
	return nil
}

func (p *place) WorkingDir(ctx context.Context) (string, error) {
	_, err := p.files(ctx)
	return "/work", err
}

func (p *place) ReadFile(ctx context.Context, name string) ([]byte, error) {
	files, err := p.files(ctx)
	if err != nil {
		return nil, err
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	text, ok := files[name]
	if !ok {
		return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.ENOENT}
	}
	return []byte(text), nil
}

func (p *place) WriteFile(ctx context.Context, name string, data []byte) error {
	files, err := p.files(ctx)
	if err != nil {
		return err
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	files[name] = string(data)
	return nil
}

func (p *place) Stat(ctx context.Context, name string) (workspace.Entry, error) {
	data, err := p.ReadFile(ctx, name)
	return workspace.Entry{Name: path.Base(name), Path: name, Size: int64(len(data))}, err
}

func (p *place) ReadDir(ctx context.Context, name string) ([]workspace.Entry, error) {
	_, err := p.files(ctx)
	return nil, err
}
func (p *place) MkdirAll(ctx context.Context, _ string) error { _, err := p.files(ctx); return err }
func (p *place) Remove(ctx context.Context, name string) error {
	files, err := p.files(ctx)
	if err == nil {
		delete(files, name)
	}
	return err
}

func (p *place) Exists(ctx context.Context, name string) (bool, error) {
	_, err := p.ReadFile(ctx, name)
	return err == nil, nil
}

// note and recall are tools that use the workspace.
func note() agent.Tool {
	type args struct {
		Text string `json:"text"`
	}
	return agent.NewTool("note", "Write a note.", func(ctx context.Context, c *agent.Call, a args) (string, error) {
		return "noted", c.Workspace().WriteText(ctx, "note", a.Text)
	})
}

func recall() agent.Tool {
	return agent.NewTool("recall", "Read the note.", func(ctx context.Context, c *agent.Call, _ struct{}) (string, error) {
		return c.Workspace().ReadText(ctx, "note")
	})
}

// valid fails the test unless a run's history can be continued and stored.
func valid(t *testing.T, res *agent.Result) []model.Message {
	t.Helper()
	if res == nil {
		t.Fatal("no result")
	}
	messages := res.Messages()
	if err := model.Validate(messages); err != nil {
		t.Fatalf("the history is not valid: %v", err)
	}
	data, err := model.Encode(messages)
	if err != nil {
		t.Fatal(err)
	}
	again, err := model.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	twice, err := model.Encode(again)
	if err != nil || string(twice) != string(data) {
		t.Fatalf("the history does not round-trip: %v\n%s\n%s", err, data, twice)
	}
	return again
}

// told joins everything that the last request of a conversation says.
func told(m model.Message) string {
	var b strings.Builder
	for _, p := range m.Parts {
		switch p := p.(type) {
		case model.ToolReturn:
			fmt.Fprintf(&b, "[%s %s] %s\n", p.Name, p.Outcome, p.Text)
		case model.Retry:
			fmt.Fprintf(&b, "[%s retry] %s\n", p.Name, p.Text)
		case model.Notice:
			fmt.Fprintf(&b, "[notice %s] %s\n", p.Reason, p.Text)
		case model.User:
			fmt.Fprintf(&b, "[user] %s\n", p.Text())
		}
	}
	return b.String()
}
