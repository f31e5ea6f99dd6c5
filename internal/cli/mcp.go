package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/coder"
	"github.com/hutch-sandbox/hutch/agent/filesystem"
	"github.com/hutch-sandbox/hutch/agent/limits"
	"github.com/hutch-sandbox/hutch/agent/shell"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/cli/mcpserve"
	"github.com/hutch-sandbox/hutch/workspace"
)

// minToken is the length of the shortest token that --token-file may hold.
const minToken = 16

func (e *env) mcpCommand() *cobra.Command {
	var (
		f      placeFlags
		tools  = "coder"
		listen string
		file   string
		rm     bool
	)
	cmd := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Offer a box's files and commands as an MCP server",
		Long: `For Claude Code, Codex and others that speak the Model Context Protocol: over standard
input and output, or with --listen over HTTP to any number of clients that have the token.
The box is a new one, made at the first call, or that of --ref; docs/mcp.md says more.`,
		Example: `  claude mcp add box -- hutch mcp --dir .
  hutch mcp --image python:3.12-slim --allow pypi.org --rm
  hutch mcp --ref dev --listen 127.0.0.1:7777`,
		DisableFlagsInUseLine: true,
		Args:                  unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch err := f.check(); {
			case err != nil:
				return err
			case e.json:
				return usagef("--json: the output is the protocol's; leave it out")
			case rm && f.ref != "":
				return usagef("--rm: the box of --ref is not this command's to remove; leave out one of them")
			case listen == "" && file != "":
				return usagef("--token-file: only HTTP has a token; add --listen, or leave it out")
			case listen == "" && e.term.in != nil:
				return usagef("standard input is a terminal, and a program that speaks MCP is to be there; let one start this command, or add --listen")
			}
			return e.serveMCP(cmd.Context(), &mcpJob{place: &f, tools: tools, listen: listen, tokenFile: file, rm: rm})
		},
	}
	fs := cmd.Flags()
	f.register(fs)
	parsed(fs, &tools, "tools", "", "set", "coder (default), what a coding agent has, or all", oneOf("coder", "all"))
	parsed(fs, &listen, "listen", "", "[host]:port", "serve HTTP there instead; port 0: any free", parseListen)
	parsed(fs, &file, "token-file", "", "file", "the clients' token (default: made up and printed)", someText)
	fs.BoolVar(&rm, "rm", false, "remove the new box at the end")
	return cmd
}

// parseListen reads an address to listen on. Without a host, it is this machine
// alone.
func parseListen(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil || port == "" {
		return "", errors.New("write HOST:PORT, for example 127.0.0.1:7777, or :7777")
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// mcpJob is one "hutch mcp".
type mcpJob struct {
	place             *placeFlags
	tools             string
	listen, tokenFile string
	rm                bool
}

func (e *env) serveMCP(ctx context.Context, j *mcpJob) (err error) {
	token, err := e.mcpToken(j.tokenFile)
	if err != nil {
		return err
	}
	if err := j.place.dir.resolve(e); err != nil {
		return err
	}
	var l net.Listener
	if j.listen != "" {
		if l, err = j.open(ctx); err != nil {
			return err
		}
		defer func() { _ = l.Close() }() // the server has closed it when there was one
	}
	rt, err := e.open(ctx)
	if err != nil {
		return err
	}
	places, err := j.place.places(e, rt)
	if err != nil {
		return err
	}
	// A context of its own for the end: ctx is over then.
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		if cerr := places.Close(closing); err == nil {
			err = cerr
		}
	}()
	opts, text, err := e.mcpPlace(ctx, j, rt, places)
	if err != nil {
		return err
	}
	var tools *agent.Toolbox
	srv, err := mcpserve.New(ctx, mcpserve.Options{Version: e.Version, Instructions: text}, func(events func(agent.Event)) (*agent.Toolbox, error) {
		tools, err = agent.OpenToolbox(ctx, events, append(j.capabilities(), places), opts...)
		return tools, err
	})
	if err != nil {
		return err
	}
	defer func() {
		srv.Close()
		if derr := j.end(ctx, e, places, tools.Workspace()); err == nil {
			err = derr
		}
	}()
	if l == nil {
		in, release, err := readerWithContext(ctx, e.Stdin)
		if err != nil {
			return err
		}
		defer release()
		if err := srv.Streams(ctx, in, e.stdout); err != nil {
			return err
		}
		return context.Cause(ctx)
	}
	e.note("MCP at http://%s%s", l.Addr(), mcpserve.Path)
	if j.tokenFile == "" {
		e.note("token, for the header Authorization: Bearer %s", token)
	}
	if err := srv.Serve(ctx, l, token); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// open listens. Elsewhere than on this machine alone, the token has to be one
// that was agreed on.
func (j *mcpJob) open(ctx context.Context) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", j.listen)
	if err != nil {
		return nil, usagef("--listen: %v; choose another address", err)
	}
	if addr, ok := l.Addr().(*net.TCPAddr); (!ok || !addr.IP.IsLoopback()) && j.tokenFile == "" {
		_ = l.Close()
		return nil, usagef("--listen: others than this machine reach %s; add --token-file with a token that the clients have", l.Addr())
	}
	return l, nil
}

// mcpToken reads the token, or makes one up.
func (e *env) mcpToken(file string) (string, error) {
	if file == "" {
		return rand.Text(), nil
	}
	data, err := os.ReadFile(e.hostPath(file))
	if err != nil {
		return "", usagef("--token-file: %v; name a file that can be read", err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < minToken || len(token) > 4096 || strings.ContainsFunc(token, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsGraphic(r) || r == ' ' }) {
		return "", usagef("--token-file: %s holds no token; write %d or more letters and digits into it, for example with: head -c 24 /dev/urandom | base64", file, minToken)
	}
	return token, nil
}

// capabilities are the tools.
func (j *mcpJob) capabilities() []agent.Capability {
	files := filesystem.Options{Tools: []string{"read_file", "write_file", "edit_file", "list_files", "grep"}, NoHashes: true}
	commands := shell.Options{Tools: []string{"shell"}, Deny: []string{}, Interactive: true}
	if j.tools == "all" {
		files.NoHashes = false
		files.Tools = append(files.Tools, "list_directory", "find_files", "search_files", "create_directory", "file_info")
		commands.Tools = append(commands.Tools, "run_command", "start_command", "check_command", "stop_command")
	}
	return []agent.Capability{
		filesystem.New(files), shell.New(commands),
		limits.Outputs(limits.OutputOptions{MaxChars: coder.MaxResultChars}),
	}
}

// mcpPlace decides which box the tools work in, and what a model is to know
// about it.
func (e *env) mcpPlace(ctx context.Context, j *mcpJob, rt *box.Runtime, places *places) ([]agent.Option, string, error) {
	host, err := rt.Host(ctx)
	if err != nil {
		return nil, "", err
	}
	agents := filepath.Join(host.Home, "agents")
	spec, folder := box.Spec{Image: j.place.image, Network: j.place.net.network()}, j.place.dir
	if j.place.ref == "" {
		if folder.path != "" && folder.how == "copy" {
			if err := places.copyIn(ctx, e, folder.path, agents); err != nil {
				return nil, "", err
			}
		}
		return []agent.Option{agent.WithNewWorkspace()}, about(spec, folder), nil
	}
	ref, err := places.open(ctx)
	if err != nil {
		return nil, "", err
	}
	if spec, folder, err = places.describe(ctx, agents, ref.ID); err != nil {
		return nil, "", err
	}
	return []agent.Option{agent.WithRef(ref)}, about(spec, folder), nil
}

// describe says how a box was made.
func (p *places) describe(ctx context.Context, agents, name string) (box.Spec, folderFlag, error) {
	b, err := p.rt.Get(ctx, name)
	if err != nil {
		return box.Spec{}, folderFlag{}, err
	}
	info, err := b.Info(ctx)
	if err != nil {
		return box.Spec{}, folderFlag{}, err
	}
	var folder folderFlag
	if _, err := readCopy(agents, name); err == nil {
		folder.how = "copy"
		p.markCopied(name)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return box.Spec{}, folderFlag{}, err
	}
	return info.Spec, folder, nil
}

// end removes the box, or says how to come back to it.
func (j *mcpJob) end(ctx context.Context, e *env, places *places, ws *workspace.Workspace) error {
	ref, ok := ws.Ref()
	switch {
	case !ok:
		return nil // nothing was called
	case j.rm:
		if err := places.Destroy(ctx, ref); err != nil {
			return fmt.Errorf("mcp: box %s is left: %w", ref.ID, err)
		}
		return nil
	}
	e.note("box %s is kept; come back to it with: hutch mcp --ref %s", ref, shellWord(ref.ID))
	if places.copied(ref.ID) {
		e.note("changes: hutch agent apply --dry-run %s", ref.ID)
	}
	return nil
}
