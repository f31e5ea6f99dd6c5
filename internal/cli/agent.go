package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/coder"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/sandbox"
)

// defaultModel is asked when neither --model nor HUTCH_MODEL names another.
const defaultModel = "anthropic:claude-opus-5-5"

func (e *env) agentCommand() *cobra.Command {
	var (
		f       placeFlags
		name    string
		resume  string
		prompt  string
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "agent [flags]",
		Short: "Let a coding agent work in a box",
		Long: `It works in a new box, which is kept. Without -p it asks for prompts, or takes what
is on standard input for one. What the model says goes to standard output, what it does
to standard error. Ctrl-C stops the run and keeps box and conversation; --resume goes on.
Models are provider:model, their keys come from the environment; scripted:FILE needs none.`,
		Example: `  hutch agent --dir . -p 'Fix the failing test.' && hutch agent apply --dry-run
  hutch agent --image python:3.12-slim --allow pypi.org --allow files.pythonhosted.org
  hutch agent --resume talk.json -p 'Now make it faster.'`,
		DisableFlagsInUseLine: true,
		Args:                  unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if cmd.Flags().Changed("prompt") && strings.TrimSpace(prompt) == "" {
				return usagef("--prompt: it is empty; say what is to be done, or leave the flag out")
			}
			m, err := e.agentModel(name)
			if err != nil {
				return err
			}
			s := &agentSession{env: e, model: m, flags: &f, timeout: timeout}
			if resume != "" {
				if s.history, err = openHistory(e.hostPath(resume)); err != nil {
					return err
				}
			}
			return s.serve(cmd.Context(), prompt)
		},
	}
	fs := cmd.Flags()
	parsed(fs, &name, "model", "", "provider:model", "model to ask ($HUTCH_MODEL, else "+defaultModel+")", someText)
	f.register(fs)
	parsed(fs, &resume, "resume", "", "file", "the conversation: go on with it, and keep it there", someText)
	parsed(fs, &prompt, "prompt", "p", "text", "what to do; then end", anyText)
	parsed(fs, &timeout, "timeout", "", "duration", "stop a run after this long, with status 124", parsePositiveDuration)
	cmd.AddCommand(e.agentApplyCommand())
	return cmd
}

// agentModel makes the model that --model names.
func (e *env) agentModel(name string) (model.Model, error) {
	if name == "" {
		name, _ = e.getenv("HUTCH_MODEL")
	}
	if name == "" {
		name = defaultModel
	}
	if file, ok := strings.CutPrefix(name, "scripted:"); ok {
		m, err := scripted.Load(e.hostPath(file))
		if err != nil {
			return nil, usagef("--model: %v; name a script, see the documentation of agent/model/scripted", err)
		}
		return m, nil
	}
	if e.Models == nil {
		return nil, usagef("--model: this program knows no providers; use scripted:FILE")
	}
	m, err := e.Models(name, e.homeDir(), func(key string) string {
		value, _ := e.getenv(key)
		return value
	})
	if err != nil {
		return nil, usagef("--model: %v; or name another model", err)
	}
	return m, nil
}

// note prints a line for the user beside the output.
func (e *env) note(format string, args ...any) {
	fmt.Fprintf(e.Stderr, "hutch: %s\n", printable(fmt.Sprintf(format, args...)))
}

// about tells a model where it works, which it could else only try out.
func about(spec box.Spec, folder folderFlag) string {
	var b strings.Builder
	b.WriteString("You work in a box: a machine of its own, apart from the user's. You may change anything in it.")
	switch n := spec.Network; {
	case n.Preset == box.NetInternet || n.Preset == box.NetAll:
		b.WriteString(" It reaches the internet.")
	case len(n.Allow) > 0:
		b.WriteString(" Of the network it reaches only: " + strings.Join(n.Allow, ", ") + ".")
	default:
		b.WriteString(" It has no network.")
	}
	if spec.Image == "" || spec.Image == box.BuiltinImage {
		b.WriteString(" It has a POSIX shell and the usual small utilities (awk, sed, grep, find, tar, diff and the like), and no compilers, interpreters or package manager.")
	}
	switch folder.how {
	case "copy":
		b.WriteString(" The working directory is a copy of the user's folder; the user will look at your changes and take them over.")
	case "rw":
		b.WriteString(" The working directory is the user's own folder: changes there are real at once.")
	case "ro":
		b.WriteString(" The working directory is the user's folder and cannot be written to; write elsewhere, such as to /tmp.")
	}
	return b.String()
}

// agentSession is one "hutch agent".
type agentSession struct {
	env     *env
	model   model.Model
	flags   *placeFlags
	timeout time.Duration
	history *history

	places *places
	agent  *agent.Agent
	first  []agent.Option // of the first run
	screen *agentScreen
}

// serve runs the session to its end.
func (s *agentSession) serve(ctx context.Context, prompt string) (err error) {
	e := s.env
	var known *workspace.Ref
	if s.history != nil {
		known = model.LatestWorkspace(s.history.messages)
	}
	isNew := s.flags.fresh || s.flags.ref == "" && known == nil
	if !isNew {
		if err := s.flags.refuseNew("the conversation has a box already"); err != nil {
			return err
		}
	}
	if err := s.flags.dir.resolve(e); err != nil {
		return err
	}
	prompts, err := e.agentPrompts(ctx, prompt)
	if err != nil {
		return err
	}
	defer prompts.close()

	rt, err := e.open(ctx)
	if err != nil {
		return err
	}
	host, err := rt.Host(ctx)
	if err != nil {
		return err
	}
	if s.history == nil {
		if s.history, err = newHistory(filepath.Join(host.Home, "agents"), e.Now()); err != nil {
			return err
		}
	}
	if isNew && s.flags.image != "" && s.flags.image != box.BuiltinImage {
		if _, err := e.pull(ctx, s.flags.image, box.PullOptions{Policy: box.PullMissing}, false); err != nil {
			return err
		}
	}
	if s.places, err = s.flags.places(e, rt); err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		if cerr := s.places.Close(closing); err == nil {
			err = cerr
		}
	}()
	if err := s.prepare(ctx, isNew, known, filepath.Join(host.Home, "agents")); err != nil {
		return err
	}
	s.screen = e.newAgentScreen()
	defer s.farewell()
	return prompts.each(ctx, func(ctx context.Context, prompt string) error { return s.run(ctx, prompt) })
}

// prepare decides which box the first run gets, and puts the agent together.
func (s *agentSession) prepare(ctx context.Context, isNew bool, known *workspace.Ref, home string) error {
	spec, folder := box.Spec{Image: s.flags.image, Network: s.flags.net.network()}, s.flags.dir
	switch {
	case s.flags.ref != "":
		ref, err := s.places.open(ctx)
		if err != nil {
			return err
		}
		s.first, known = []agent.Option{agent.WithRef(ref)}, &ref
	case s.flags.fresh:
		s.first = []agent.Option{agent.WithNewWorkspace()}
	}
	if isNew && folder.path != "" && folder.how == "copy" {
		if err := s.places.copyIn(ctx, s.env, folder.path, home); err != nil {
			return err
		}
	}
	if !isNew {
		if known.Provider != sandbox.ProviderName {
			return fmt.Errorf("agent: the conversation's workspace is %s, which is no box of this machine; add --new for a new one", known)
		}
		var err error
		if spec, folder, err = s.places.describe(ctx, home, known.ID); err != nil {
			if errors.Is(err, box.ErrNotFound) && s.flags.ref == "" {
				return fmt.Errorf("agent: the conversation's box %s is gone; add --new to go on in a new one", known.ID)
			}
			return err
		}
	}
	s.agent = agent.New(s.model,
		agent.Config{Name: "hutch", Logger: slog.New(&noteHandler{env: s.env})},
		s.places,
		coder.New(coder.Options{Instructions: about(spec, folder)}),
		agent.Hooks{Name: "history", BeforeModelRequest: func(_ context.Context, run *agent.Run, _ *model.Request) error {
			if run.Depth() > 0 {
				return nil // a sub-agent's conversation is its own
			}
			return s.history.save(run.Messages()) // a crash loses what comes after
		}},
	)
	return nil
}

// run answers one prompt.
func (s *agentSession) run(ctx context.Context, prompt string) error {
	opts := append(slices.Clone(s.first), agent.WithHistory(s.history.messages))
	if s.timeout > 0 {
		opts = append(opts, agent.WithLimits(agent.Limits{Requests: coder.MaxRequests, Time: s.timeout}))
	}
	var res *agent.Result
	var err, shown error
	for event, rerr := range s.agent.Stream(ctx, prompt, opts...) {
		if fin, ok := event.(agent.Finished); ok {
			res, err = fin.Result, rerr
		} else if shown = s.screen.show(event); shown != nil {
			break
		}
	}
	if res == nil && shown == nil {
		if err == nil {
			err = errors.New("it ended without a result")
		}
		return fmt.Errorf("agent: %w", err)
	}
	if shown != nil {
		return shown // nobody reads; the history is as of the last request
	}
	s.first = nil
	if serr := s.history.save(res.Messages()); serr != nil {
		return serr
	}
	if serr := s.screen.end(s.history.file, res, err); serr != nil {
		return serr
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	var limit *agent.LimitError
	if errors.As(err, &limit) && limit.Limit == "time" {
		return &exitError{ExitTimeout, fmt.Errorf("agent: stopped after %v; give it longer with --timeout, or go on with --resume", s.timeout)}
	}
	return fmt.Errorf("agent: %w; the conversation is kept, go on with --resume", err)
}

// farewell says how to come back. Nothing is said of a conversation that did
// not begin.
func (s *agentSession) farewell() {
	if !s.history.saved {
		return
	}
	e, where := s.env, shellWord(s.history.file)
	ref := model.LatestWorkspace(s.history.messages)
	if ref == nil {
		e.note("go on: hutch agent --resume %s", where)
		return
	}
	again := "hutch agent --resume " + where
	if !madeHere.MatchString(ref.ID) {
		again += " --ref " + shellWord(ref.ID) // a conversation alone must not lead to any box
	}
	e.note("box %s is kept; go on: %s", ref, again)
	if s.places.copied(ref.ID) {
		e.note("changes: hutch agent apply --dry-run %s", ref.ID)
	}
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellWord writes a word so that a shell reads it as one.
func shellWord(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return workspace.Quote(s)
}
