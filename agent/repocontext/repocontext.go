// Package repocontext tells an agent what a repository says about itself: the
// AGENTS.md and CLAUDE.md files of the working directory and, when Options name
// a ceiling, of the directories above it.
//
// They are read once, at the start of a run, which therefore uses the workspace
// even when no tool does, and become part of the instructions. Files of
// directories further down can be pointed out, or shown, when the model first
// looks there.
package repocontext

import (
	"context"
	"crypto/sha256"
	_ "embed" // the tool's description
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/workspace"
)

// Limits.
const (
	MaxFile      = 64 << 10  // bytes of one file that are used
	MaxTotal     = 256 << 10 // bytes of all of them
	MaxLevels    = 64        // directories between the working directory and the ceiling
	MaxInventory = 1000      // files that the inventory lists
	MaxDepth     = 8         // levels that the inventory goes down
)

// Nested says what to do with files of directories below the working
// directory.
type Nested int

// What there is to do.
const (
	NestedIgnore   Nested = iota // nothing
	NestedPointer                // say that they exist, when the model first looks there
	NestedContents               // show them then
)

// Options say what to read. The zero value reads the working directory's files.
type Options struct {
	// Names are the files to look for; nil means AGENTS.md and CLAUDE.md.
	Names []string
	// Ceiling is the highest directory to look in, absolute; it has to be the
	// working directory or above it. Empty means the working directory only.
	Ceiling string
	// Nested says what to do with files further down.
	Nested Nested
	// Inventory offers the tool repo_inventory.
	Inventory bool
}

// RepoContext is the capability.
type RepoContext struct{ opt Options }

// New makes the capability.
func New(opt Options) *RepoContext {
	if opt.Names == nil {
		opt.Names = []string{"AGENTS.md", "CLAUDE.md"}
	}
	return &RepoContext{opt}
}

// NeedsWorkspace returns the capability's name.
func (c *RepoContext) NeedsWorkspace() string { return "repocontext" }

// ForRun returns the capability for one run.
func (c *RepoContext) ForRun(_ context.Context, run *agent.Run) (agent.Capability, error) {
	return &loaded{opt: c.opt, ws: run.Workspace(), sums: map[[32]byte]bool{}, seen: map[string]bool{}}, nil
}

// loaded is the capability in one run.
type loaded struct {
	opt Options
	ws  *workspace.Workspace

	text string // instructions; set before the first request

	mu   sync.Mutex
	dir  string            // working directory
	seen map[string]bool   // real paths of files, and directories that were looked at
	sums map[[32]byte]bool // contents
	size int               // bytes so far
}

// BeforeRun reads the files.
func (l *loaded) BeforeRun(ctx context.Context, _ *agent.Run) error {
	dir, err := l.ws.WorkingDir(ctx)
	if err != nil {
		return err
	}
	l.dir = dir
	dirs := []string{dir}
	if top := l.opt.Ceiling; top != "" {
		top = path.Clean(top)
		if !path.IsAbs(top) || !within(top, dir) {
			return fmt.Errorf("%w: repocontext: the ceiling %s is not above the working directory %s", agent.ErrUsage, l.opt.Ceiling, dir)
		}
		for at := dir; at != top && len(dirs) < MaxLevels; {
			at = path.Dir(at)
			dirs = append(dirs, at)
		}
	}
	slices.Reverse(dirs) // what is more general comes first
	var b strings.Builder
	for _, d := range dirs {
		for _, name := range l.opt.Names {
			text, err := l.read(ctx, path.Join(d, name))
			if err != nil {
				return err
			}
			if text != "" {
				fmt.Fprintf(&b, "<file path=%q>\n%s\n</file>\n", path.Join(d, name), text)
			}
		}
		l.seen[d+"/"] = true
	}
	if b.Len() > 0 {
		l.text = "The repository has these instructions for those who work in it. Those further down in the list are more specific. What the user says goes before them.\n" + b.String()
	}
	return nil
}

func within(top, dir string) bool {
	return top == "/" || dir == top || strings.HasPrefix(dir, top+"/")
}

// read returns a file's text, "" when there is none, or it was read before
// under whatever name.
func (l *loaded) read(ctx context.Context, file string) (string, error) {
	real, err := l.ws.Realpath(ctx, file)
	if err != nil {
		return "", skip(err)
	}
	f, err := l.ws.Open(ctx, real, 0)
	if err != nil {
		return "", skip(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return "", skip(err)
	}
	cut := len(data) > MaxFile
	if cut {
		data = data[:MaxFile]
	}
	text := strings.TrimSpace(workspace.Text(data))
	sum := sha256.Sum256([]byte(text))
	l.mu.Lock()
	defer l.mu.Unlock()
	if text == "" || l.seen[real] || l.sums[sum] || l.size+len(text) > MaxTotal {
		return "", nil
	}
	l.seen[real], l.sums[sum] = true, true
	l.size += len(text)
	if cut {
		text += fmt.Sprintf("\n[cut after %d bytes]", MaxFile)
	}
	return text, nil
}

// skip passes on only what ends the run: that a file is not there, or is no
// file, is nothing to speak of.
func skip(err error) error {
	if agent.Correctable(err) {
		return nil
	}
	return err
}

// Instructions returns what was read.
func (l *loaded) Instructions(context.Context, *agent.Run) (string, error) { return l.text, nil }

// AfterTool adds a note to the result of a tool that looks into a directory
// for the first time.
func (l *loaded) AfterTool(ctx context.Context, call *agent.Call, out *agent.ToolOutput) error {
	if l.opt.Nested == NestedIgnore || !slices.Contains([]string{"read_file", "list_directory", "list_files", "edit_file", "write_file"}, call.Tool) {
		return nil
	}
	var args struct {
		Path string `json:"path"`
	}
	if json.Unmarshal(call.Args, &args) != nil || args.Path == "" {
		return nil
	}
	full, err := l.ws.Resolve(ctx, args.Path)
	if err != nil {
		return skip(err)
	}
	if call.Tool == "read_file" || call.Tool == "edit_file" || call.Tool == "write_file" {
		full = path.Dir(full)
	}
	var dirs []string
	for at := full; at != l.dir && within(l.dir, at); at = path.Dir(at) {
		l.mu.Lock()
		known := l.seen[at+"/"]
		l.seen[at+"/"] = true
		l.mu.Unlock()
		if !known {
			dirs = append(dirs, at)
		}
	}
	slices.Reverse(dirs)
	for _, d := range dirs {
		for _, name := range l.opt.Names {
			file := path.Join(d, name)
			if path.Join(full, path.Base(args.Path)) == file {
				continue // it is what the model is reading
			}
			if l.opt.Nested == NestedPointer {
				ok, err := l.ws.Exists(ctx, file)
				if err != nil {
					return skip(err)
				}
				if ok {
					out.Text += fmt.Sprintf("\n[%s has instructions for this directory]", file)
				}
				continue
			}
			text, err := l.read(ctx, file)
			if err != nil {
				return err
			}
			if text != "" {
				out.Text += fmt.Sprintf("\n<file path=%q>\n%s\n</file>", file, text)
			}
		}
	}
	return nil
}

//go:embed repo_inventory.md
var inventoryDoc string

// Tools returns repo_inventory, when Options ask for it.
func (l *loaded) Tools(context.Context, *agent.Run) ([]agent.Tool, error) {
	if !l.opt.Inventory {
		return nil, nil
	}
	return []agent.Tool{agent.NewTool("repo_inventory", inventoryDoc, l.inventory)}, nil
}

func (l *loaded) inventory(ctx context.Context, _ *agent.Call, _ struct{}) (string, error) {
	var files []string
	var walk func(dir string, depth int) error
	walk = func(dir string, depth int) error {
		if depth > MaxDepth || len(files) > MaxInventory {
			return nil
		}
		entries, err := l.ws.ReadDir(ctx, dir)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return skip(err)
		}
		for _, e := range entries {
			name := path.Join(dir, e.Name)
			if !e.Dir {
				files = append(files, name)
				continue
			}
			// Links are not followed: depth alone does not bound a tree of them.
			real, err := l.ws.Realpath(ctx, e.Path)
			if err != nil {
				return skip(err)
			}
			if real != e.Path {
				continue
			}
			if err := walk(name, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	for _, dir := range []string{".claude", ".agents", ".codex", ".grok"} {
		if err := walk(dir, 1); err != nil {
			return "", err
		}
	}
	if len(files) == 0 {
		return "(none)", nil
	}
	more := ""
	if len(files) > MaxInventory {
		more = fmt.Sprintf("\n[more than %d files]", MaxInventory)
		files = files[:MaxInventory]
	}
	return strings.Join(files, "\n") + more, nil
}
