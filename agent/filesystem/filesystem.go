// Package filesystem gives an agent tools for files: to read, write and edit
// them, to list, find and search. They work on whatever workspace the run has.
//
//	a := agent.New(m, sandbox.New(rt, …), filesystem.New(filesystem.Options{}))
//
// # What it may touch
//
// Paths are confined to a root, the working directory unless Options say
// otherwise: symbolic links are resolved before each access, and what leads
// out is refused. Patterns deny paths or make them read-only, by the name that
// is used and by where it leads. This guards against accidents. It is no
// boundary: between the check and the use a command may change what a path
// means, and commands, where an agent has them, are not held by it at all. The
// boundary is the workspace.
//
// # Changes
//
// An edit names text that occurs exactly once; several edits of a file are all
// made or none. Line endings, a byte order mark, the file's mode and bytes that
// are no UTF-8 are kept. Changes of one file by one FileSystem come one after
// the other, also when the model asks for them at the same time, and a file
// that changed between reading and writing is not written. Each change is an
// event with a diff, and Options.Review can refuse it.
//
// # Limits
//
// The constants of this package are all of them. What does not fit is cut at a
// whole line or entry and says so, with how to get the rest.
package filesystem

import (
	"context"
	_ "embed" // the tools' descriptions
	"fmt"
	"slices"
	"sync"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/workspace"
)

// Limits of the tools.
const (
	MaxReadChars   = 50_000    // characters that read_file returns, where Options do not say
	DefaultLines   = 2000      // lines that read_file returns, where the model does not say
	MaxEntries     = 1000      // entries, files or matches that one call returns
	MaxSearchFile  = 10 << 20  // bytes of a file that is searched, hashed, counted or edited
	MaxWalkDirs    = 10_000    // directories that one call visits
	MaxWalkEntries = 100_000   // entries that one call looks at
	MaxGrepOutput  = 8 << 20   // bytes that a search program may write
	MaxLineChars   = 500       // characters of a line in search results
	MaxContext     = 20        // lines around a match
	MaxDiffChars   = 8192      // characters of the diff in a Changed event
	MaxDiffSource  = 32_768    // characters of a file for which there is a diff
	BinaryProbe    = 8192      // bytes at the beginning in which a NUL makes a file binary
	MaxSearchBytes = 256 << 20 // bytes that one search without ripgrep reads
)

// Options say what the tools may do. The zero value is the default.
type Options struct {
	// Root is the directory that paths are confined to. It has to contain the
	// working directory. Empty means the working directory; "/" means no
	// confinement.
	Root string
	// Tools are the names of the tools to offer; nil means all but list_files
	// and grep, which do much the same as find_files and search_files, only
	// faster and for larger trees.
	Tools []string
	// NoHashes leaves out the headers and hashes that tell the model which
	// version of a file it saw.
	NoHashes bool
	// MaxReadChars bounds what read_file returns; 0 means the constant.
	MaxReadChars int
	// Allow limits access to paths that match one of the patterns; nil means
	// all. See Patterns in the documentation of Match.
	Allow []string
	// Deny refuses all access to paths that match.
	Deny []string
	// ReadOnly refuses changes to paths that match; nil means
	// DefaultReadOnly, an empty list none.
	ReadOnly []string
	// Retries is the tools' budget, as agent.Tool.Retries.
	Retries int
	// Review is asked before each change, and refuses it with an error, which
	// the model is told. It may take its time; the file is checked again
	// afterwards.
	Review func(ctx context.Context, call *agent.Call, change Changed) error
}

// DefaultReadOnly are the patterns of paths that an agent should not change:
// where secrets and the history of a repository usually are, and where this
// module keeps the files of background commands.
func DefaultReadOnly() []string {
	return []string{".git", ".env*", "*.pem", "*.key", "secrets*", ".hutch"}
}

// Changed is the event of a file or directory that a tool changed.
type Changed struct {
	Path string // absolute
	Kind string // "created", "changed" or "directory"
	Diff string // unified; empty for large and binary files; bounded by MaxDiffChars
}

// EventName returns "file_changed".
func (Changed) EventName() string { return "file_changed" }

// FileSystem is the capability. It is safe for concurrent use.
type FileSystem struct {
	opt                   Options
	allow, deny, readOnly []Pattern
	err                   error // a pattern that is none

	mu    sync.Mutex
	locks map[string]*lock // by workspace and real path
}

type lock struct {
	ch    chan struct{} // holds one token when free
	users int           // guarded by FileSystem.mu
}

var (
	_ agent.ToolProvider    = (*FileSystem)(nil)
	_ agent.WorkspaceNeeder = (*FileSystem)(nil)
)

// New makes the capability.
func New(opt Options) *FileSystem {
	fs := &FileSystem{opt: opt, locks: map[string]*lock{}}
	if fs.opt.MaxReadChars <= 0 {
		fs.opt.MaxReadChars = MaxReadChars
	}
	if opt.ReadOnly == nil {
		fs.opt.ReadOnly = DefaultReadOnly()
	}
	for _, set := range []struct {
		from []string
		to   *[]Pattern
	}{{opt.Allow, &fs.allow}, {opt.Deny, &fs.deny}, {fs.opt.ReadOnly, &fs.readOnly}} {
		for _, text := range set.from {
			p, err := Compile(text)
			if err != nil {
				fs.err = err
				continue
			}
			*set.to = append(*set.to, p)
		}
	}
	return fs
}

// NeedsWorkspace returns the capability's name.
func (fs *FileSystem) NeedsWorkspace() string { return "filesystem" }

//go:embed read_file.md
var readFileDoc string

//go:embed write_file.md
var writeFileDoc string

//go:embed edit_file.md
var editFileDoc string

//go:embed list_directory.md
var listDirectoryDoc string

//go:embed find_files.md
var findFilesDoc string

//go:embed search_files.md
var searchFilesDoc string

//go:embed create_directory.md
var createDirectoryDoc string

//go:embed file_info.md
var fileInfoDoc string

//go:embed list_files.md
var listFilesDoc string

//go:embed grep.md
var grepDoc string

// Tools returns the tools. In a workspace that is read-only, those that change
// something are left out.
func (fs *FileSystem) Tools(_ context.Context, run *agent.Run) ([]agent.Tool, error) {
	if fs.err != nil {
		return nil, fmt.Errorf("%w: filesystem: %w", agent.ErrUsage, fs.err)
	}
	s := &session{fs: fs, ws: run.Workspace()}
	retries := agent.Retries(fs.opt.Retries)
	type offer struct {
		tool   agent.Tool
		writes bool
		extra  bool // only when asked for
	}
	all := []offer{
		{tool: agent.NewTool("read_file", readFileDoc, s.readFile, retries)},
		{tool: agent.NewTool("write_file", writeFileDoc, s.writeFile, retries), writes: true},
		{tool: agent.NewTool("edit_file", editFileDoc, s.editFile, retries), writes: true},
		{tool: agent.NewTool("list_directory", listDirectoryDoc, s.listDirectory, retries)},
		{tool: agent.NewTool("find_files", findFilesDoc, s.findFiles, retries)},
		{tool: agent.NewTool("search_files", searchFilesDoc, s.searchFiles, retries)},
		{tool: agent.NewTool("create_directory", createDirectoryDoc, s.createDirectory, retries), writes: true},
		{tool: agent.NewTool("file_info", fileInfoDoc, s.fileInfo, retries)},
		{tool: agent.NewTool("list_files", listFilesDoc, s.listFiles, retries), extra: true},
		{tool: agent.NewTool("grep", grepDoc, s.grep, retries), extra: true},
	}
	var out []agent.Tool
	known := map[string]bool{}
	for _, o := range all {
		known[o.tool.Name] = true
		wanted := !o.extra
		if fs.opt.Tools != nil {
			wanted = slices.Contains(fs.opt.Tools, o.tool.Name)
		}
		if wanted && !(o.writes && run.Workspace().ReadOnly()) {
			out = append(out, o.tool)
		}
	}
	for _, name := range fs.opt.Tools {
		if !known[name] {
			return nil, fmt.Errorf("%w: filesystem has no tool %q", agent.ErrUsage, name)
		}
	}
	return out, nil
}

// session is the capability in one run.
type session struct {
	fs *FileSystem
	ws *workspace.Workspace

	mu   sync.Mutex
	root string // real path of the root; empty until it is known
	dir  string // working directory
	rg   int    // whether ripgrep is there: 0 unknown, 1 yes, -1 no
}

// exclusive waits for the file's turn. The returned function ends it.
func (s *session) exclusive(ctx context.Context, real string) (func(), error) {
	key := real
	if ref, ok := s.ws.Ref(); ok {
		key = ref.String() + "\x00" + real
	}
	fs := s.fs
	fs.mu.Lock()
	l := fs.locks[key]
	if l == nil {
		l = &lock{ch: make(chan struct{}, 1)}
		l.ch <- struct{}{}
		fs.locks[key] = l
	}
	l.users++
	fs.mu.Unlock()
	leave := func() {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(fs.locks, key)
		}
	}
	select {
	case <-l.ch:
		return func() { l.ch <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
