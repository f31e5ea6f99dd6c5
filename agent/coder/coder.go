// Package coder makes a coding agent: instructions, tools for files and
// commands, what the repository says about itself, sub-agents, and bounds that
// keep long sessions going. It is a composition of the other packages, with
// settings that suit the work:
//
//	a := agent.New(m, provider, coder.New(coder.Options{}))
//
// The tools are read_file, write_file, edit_file, list_files, grep, shell and
// delegate_task. In a read-only workspace there are no shell and no writers.
// The run needs a workspace and uses it from the start, to read the
// repository's AGENTS.md; Options.NoRepoContext leaves that to the tools.
package coder

import (
	_ "embed" // the instructions

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/filesystem"
	"github.com/hutch-sandbox/hutch/agent/limits"
	"github.com/hutch-sandbox/hutch/agent/repocontext"
	"github.com/hutch-sandbox/hutch/agent/shell"
	"github.com/hutch-sandbox/hutch/agent/subagent"
)

// Settings that differ from the defaults of the parts.
const (
	MaxResultChars = 64_000 // of any tool's result, after which it is cut
	ToolRetries    = 5      // of the file tools and the shell, in a row
	MaxRequests    = 500    // model requests of a run, where nothing else is said
)

// Options change the composition. The zero value is the default.
type Options struct {
	// Instructions are added to those of the package.
	Instructions string
	// Unrestricted lets the file tools go anywhere in the workspace, and
	// write anything, as the shell does anyway.
	Unrestricted bool
	// NoRepoContext leaves the repository's instructions out.
	NoRepoContext bool
	// RepoContext are the options for them.
	RepoContext repocontext.Options
	// NoSubAgents leaves delegate_task out.
	NoSubAgents bool
	// Window is the size of the model's window, in tokens; 0 means
	// limits.DefaultWindow.
	Window int64
	// Files are options for the file tools. What this package sets itself, see
	// New, takes the place of theirs.
	Files filesystem.Options
	// Shell are options for the shell. What this package sets itself, see
	// New, takes their place where they are zero.
	Shell shell.Options
}

//go:embed coder.md
var instructions string

// New makes the capability. It sets Files.Tools, NoHashes and Retries, and
// Shell.Tools, Deny (none), Interactive and Retries.
func New(opt Options) agent.Capability {
	files := opt.Files
	files.Tools = []string{"read_file", "write_file", "edit_file", "list_files", "grep"}
	files.NoHashes = true
	files.Retries = ToolRetries
	if opt.Unrestricted {
		files.Root = "/"
		files.ReadOnly = []string{}
	}
	sh := opt.Shell
	sh.Tools = []string{"shell"}
	if sh.Deny == nil && sh.Allow == nil {
		sh.Deny = []string{}
	}
	sh.Interactive = true
	sh.Retries = ToolRetries

	text := instructions
	if opt.Instructions != "" {
		text += "\n" + opt.Instructions
	}
	parts := []agent.Capability{
		need{},
		agent.Defaults{Limits: agent.Limits{Requests: MaxRequests}},
		agent.Instructions(text),
		filesystem.New(files),
		shell.New(sh),
	}
	if !opt.NoRepoContext {
		parts = append(parts, repocontext.New(opt.RepoContext))
	}
	if !opt.NoSubAgents {
		parts = append(parts, subagent.New(subagent.Options{Self: true, Limits: agent.Limits{Requests: MaxRequests}}))
	}
	parts = append(parts,
		limits.Outputs(limits.OutputOptions{MaxChars: MaxResultChars, Truncate: true}),
		limits.ClearResults{Window: opt.Window},
		limits.Warn{Window: opt.Window},
		agent.RepairJSON{},
	)
	return agent.Join(parts...)
}

// need makes the error of a run without a workspace name this package.
type need struct{}

func (need) NeedsWorkspace() string { return "coder" }
