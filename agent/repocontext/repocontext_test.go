package repocontext_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/filesystem"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/agent/repocontext"
	"github.com/hutch-sandbox/hutch/workspace/hostdir"
)

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func instructions(t *testing.T, dir string, opt repocontext.Options) (string, error) {
	t.Helper()
	d, err := hostdir.New(dir, hostdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m := scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		return scripted.Say("I: " + req.Instructions), nil
	})
	res, err := agent.New(m, repocontext.New(opt)).Run(t.Context(), "go", agent.WithWorkspace(d))
	if err != nil {
		return "", err
	}
	return res.Output, nil
}

func TestInstructions(t *testing.T) {
	dir := tree(t, map[string]string{
		"AGENTS.md": "from the top", "CLAUDE.md": "from the top", // the same text counts once
		"repo/AGENTS.md": "from the repo", "repo/sub/CLAUDE.md": "from below",
	})
	if err := os.Symlink("AGENTS.md", filepath.Join(dir, "repo", "CLAUDE.md")); err != nil {
		t.Fatal(err)
	}
	got, err := instructions(t, filepath.Join(dir, "repo"), repocontext.Options{})
	if err != nil || strings.Count(got, "from the repo") != 1 || strings.Contains(got, "top") || strings.Contains(got, "below") {
		t.Errorf("%q, %v", got, err)
	}
	got, err = instructions(t, filepath.Join(dir, "repo"), repocontext.Options{Ceiling: dir})
	if err != nil || strings.Count(got, "from the top") != 1 || strings.Index(got, "from the top") > strings.Index(got, "from the repo") {
		t.Errorf("ancestors first: %q, %v", got, err)
	}
	if _, err = instructions(t, filepath.Join(dir, "repo"), repocontext.Options{Ceiling: filepath.Join(dir, "repo/sub")}); !errors.Is(err, agent.ErrUsage) {
		t.Errorf("error %v", err)
	}
	if got, err = instructions(t, t.TempDir(), repocontext.Options{}); err != nil || got != "I: " {
		t.Errorf("none: %q, %v", got, err)
	}
	long := tree(t, map[string]string{"AGENTS.md": strings.Repeat("x", repocontext.MaxFile+100)})
	if got, err = instructions(t, long, repocontext.Options{}); err != nil || len(got) > repocontext.MaxFile+1000 || !strings.Contains(got, "cut after") {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestNested(t *testing.T) {
	dir := tree(t, map[string]string{"a/AGENTS.md": "rules of a", "a/b/x.txt": "x", "a/b/AGENTS.md": "rules of b"})
	d, err := hostdir.New(dir, hostdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for nested, want := range map[repocontext.Nested][]string{
		repocontext.NestedIgnore:   nil,
		repocontext.NestedPointer:  {"a/AGENTS.md has instructions", "a/b/AGENTS.md has instructions"},
		repocontext.NestedContents: {"rules of a", "rules of b"},
	} {
		read := scripted.Call("1", "read_file", `{"path":"a/b/x.txt"}`)
		a := agent.New(scripted.Sequence(read, read, scripted.Say("ok")), filesystem.New(filesystem.Options{}), repocontext.New(repocontext.Options{Nested: nested}))
		res, err := a.Run(t.Context(), "go", agent.WithWorkspace(d))
		if err != nil {
			t.Fatal(err)
		}
		first, second := res.Messages()[2].Parts[0].(model.ToolReturn).Text, res.Messages()[4].Parts[0].(model.ToolReturn).Text
		for _, w := range want {
			if !strings.Contains(first, w) {
				t.Errorf("%d: %q lacks %q", nested, first, w)
			}
		}
		if len(want) == 0 && strings.Contains(first, "AGENTS") || strings.Contains(second, "AGENTS") {
			t.Errorf("%d: %q, %q", nested, first, second)
		}
	}
}

func TestInventory(t *testing.T) {
	dir := tree(t, map[string]string{".claude/skills/x/SKILL.md": "x", ".codex/config.toml": "y", "other/z": "z"})
	if err := os.Symlink("..", filepath.Join(dir, ".claude", "loop")); err != nil {
		t.Fatal(err)
	}
	d, err := hostdir.New(dir, hostdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := agent.New(scripted.Sequence(scripted.Call("1", "repo_inventory", `{}`), scripted.Say("ok")), repocontext.New(repocontext.Options{Inventory: true}))
	res, err := a.Run(t.Context(), "go", agent.WithWorkspace(d))
	if err != nil {
		t.Fatal(err)
	}
	if got := res.Messages()[2].Parts[0].(model.ToolReturn).Text; got != ".claude/skills/x/SKILL.md\n.codex/config.toml" {
		t.Errorf("%q", got)
	}
}
