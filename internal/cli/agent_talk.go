package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/filesystem"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/shell"
)

// maxPrompt bounds what is read for one prompt, in bytes.
const maxPrompt = 4 << 20

// prompts is where the user's words come from.
type prompts struct {
	env     *env
	one     string        // the only prompt; empty when lines are read
	lines   *bufio.Reader // of a terminal
	release func()
}

// agentPrompts finds out: the flag, else a terminal's lines, else all of
// standard input.
func (e *env) agentPrompts(ctx context.Context, flag string) (*prompts, error) {
	p := &prompts{env: e, one: flag, release: func() {}}
	if flag != "" {
		return p, nil
	}
	if e.term.in != nil && e.json {
		return nil, usagef("--json: the results are for programs; add -p, or redirect the prompt to standard input")
	}
	in, release, err := readerWithContext(ctx, e.Stdin)
	if err != nil {
		return nil, err
	}
	if e.term.in != nil {
		p.lines, p.release = bufio.NewReader(in), release
		return p, nil
	}
	defer release()
	data, err := io.ReadAll(io.LimitReader(in, maxPrompt+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxPrompt:
		return nil, usagef("standard input has more than 4 MiB; put it into a file of the folder that you give with --dir")
	case strings.TrimSpace(string(data)) == "":
		return nil, usagef("--prompt: there is nothing to do; say it with -p, or on standard input")
	}
	p.one = strings.ToValidUTF8(string(data), "\uFFFD")
	return p, nil
}

func (p *prompts) close() { p.release() }

// each answers the prompts one after the other. From a terminal, a failure is
// shown and the next prompt asked for.
func (p *prompts) each(ctx context.Context, answer func(context.Context, string) error) error {
	if p.lines == nil {
		return answer(ctx, p.one)
	}
	e := p.env
	for {
		fmt.Fprint(e.Stderr, "> ")
		line, err := readLine(p.lines)
		if errors.Is(err, io.EOF) && line == "" {
			fmt.Fprintln(e.Stderr)
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		err = p.stoppable(ctx, line, answer)
		var out *outputError
		var end *exitError
		switch {
		case err == nil:
		case ctx.Err() != nil, errors.As(err, &out), errors.As(err, &end) && end.code > 128:
			return err
		default:
			e.complain(err)
		}
	}
}

// readLine reads a line, without its end. A longer one than a prompt may be is
// an error.
func readLine(r *bufio.Reader) (string, error) {
	var b []byte
	for {
		part, err := r.ReadSlice('\n')
		b = append(b, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(b) <= maxPrompt:
			continue
		case errors.Is(err, bufio.ErrBufferFull):
			return "", usagef("a line has more than 4 MiB; put it into a file")
		}
		return strings.ToValidUTF8(strings.TrimSuffix(string(b), "\n"), "\uFFFD"), err
	}
}

// stoppable answers one prompt. Ctrl-C stops that, and not the conversation;
// other signals end it.
func (p *prompts) stoppable(ctx context.Context, line string, answer func(context.Context, string) error) error {
	c, release := p.env.signals.take()
	defer release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	ended := make(chan syscall.Signal, 1)
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case sig := <-c:
				n, ok := sig.(syscall.Signal)
				if !ok || n == syscall.SIGQUIT || n == syscall.SIGUSR1 || n == syscall.SIGUSR2 {
					continue
				}
				if n != syscall.SIGINT {
					select {
					case ended <- n:
					default:
					}
				}
				cancel(errStopped)
			}
		}
	}()
	err := answer(ctx, line)
	close(done)
	if n, ok := <-ended; ok {
		return &exitError{code: 128 + int(n)}
	}
	p.env.signals.forgive()
	return err
}

// errStopped says that the user stopped a run.
var errStopped = errors.New("stopped; the conversation is kept, say what to do next")

// agentScreen shows a run: the model's words on standard output, what it does
// on standard error.
type agentScreen struct {
	env     *env
	tame    bool              // standard output is a terminal: nothing in the text may steer it
	dim     [2]string         // around what the agent does, on a terminal
	mid     bool              // the text stands in the middle of a line
	partial map[string]string // lines of commands' output that have not ended, by call and stream
}

func (e *env) newAgentScreen() *agentScreen {
	s := &agentScreen{env: e, tame: e.term.out != nil, partial: map[string]string{}}
	if _, plain := e.getenv("NO_COLOR"); e.onTerminal(e.Stderr) && !plain {
		s.dim = [2]string{"\x1b[2m", "\x1b[0m"}
	}
	return s
}

// show shows one event. An error means that nobody reads standard output.
func (s *agentScreen) show(event agent.Event) error { return s.event(event, 0) }

func (s *agentScreen) event(event agent.Event, depth int) error {
	switch v := event.(type) {
	case agent.Nested:
		return s.event(v.Event, depth+1)
	case agent.TextDelta:
		if depth == 0 {
			return s.text(v.Text)
		}
	case agent.Restarted:
		s.line(depth, "~ the answer starts over: "+v.Reason)
	case agent.Responded:
		if depth == 0 {
			return s.newline()
		}
	case agent.ToolStarted:
		if err := s.newline(); err != nil {
			return err
		}
		s.line(depth, "* "+v.Call.Name+" "+gist(v.Call.Args))
	case shell.Output:
		s.output(depth, v)
	case shell.Finished:
		s.flush(depth, v.Call)
		if v.ExitCode != 0 {
			s.line(depth, fmt.Sprintf("  exit code %d", v.ExitCode))
		}
	case filesystem.Changed:
		for l := range strings.SplitSeq(strings.TrimSuffix(v.Diff, "\n"), "\n") {
			if l != "" {
				s.line(depth, "  "+l)
			}
		}
	case agent.ToolFinished:
		switch part := v.Part.(type) {
		case model.Retry:
			s.line(depth, "  it is to try again: "+firstLine(part.Text))
		case model.ToolReturn:
			if part.Outcome != "" {
				s.line(depth, "  "+string(part.Outcome)+": "+firstLine(part.Text))
			}
		}
	}
	return nil
}

// text prints what the model says.
func (s *agentScreen) text(text string) error {
	if s.env.json || text == "" {
		return nil
	}
	s.mid = !strings.HasSuffix(text, "\n")
	if s.tame {
		text = tame(text)
	}
	_, err := io.WriteString(s.env.stdout, text)
	return err
}

// newline ends the line that the text stands in.
func (s *agentScreen) newline() error {
	if !s.mid {
		return nil
	}
	s.mid = false
	_, err := io.WriteString(s.env.stdout, "\n")
	return err
}

// line prints a line about what the agent does.
func (s *agentScreen) line(depth int, text string) {
	fmt.Fprintf(s.env.Stderr, "%s%s%s%s\n", s.dim[0], strings.Repeat("  ", depth), printable(strings.TrimRight(text, " ")), s.dim[1])
}

// output shows a piece of a command's output, in whole lines.
func (s *agentScreen) output(depth int, o shell.Output) {
	key := o.Call + "\x00" + o.Stream
	text := s.partial[key] + o.Data
	for {
		l, rest, ok := strings.Cut(text, "\n")
		if !ok {
			break
		}
		s.line(depth, "  | "+strings.TrimSuffix(l, "\r"))
		text = rest
	}
	s.partial[key] = text // bounded: events have only the beginning of an output
}

// flush shows what is left of a command's output.
func (s *agentScreen) flush(depth int, call string) {
	for _, stream := range []string{"stdout", "stderr"} {
		key := call + "\x00" + stream
		if l := s.partial[key]; l != "" {
			s.line(depth, "  | "+l)
		}
		delete(s.partial, key)
	}
}

// end shows how a run ended, where programs read that.
func (s *agentScreen) end(file string, res *agent.Result, err error) error {
	if nerr := s.newline(); nerr != nil {
		return nerr
	}
	clear(s.partial)
	if !s.env.json {
		return nil
	}
	doc := agentResult{Output: res.Output, Run: res.RunID, History: file, Usage: res.Usage}
	if ref, ok := res.Workspace.Ref(); ok {
		doc.Box = ref.ID
	}
	if err != nil {
		doc.Error = err.Error()
	}
	return s.env.record(doc)
}

// agentResult is a run, for --json.
type agentResult struct {
	Output  string      `json:"output"`
	Box     string      `json:"box,omitempty"`
	History string      `json:"history"`
	Run     string      `json:"run"`
	Usage   model.Usage `json:"usage"`
	Error   string      `json:"error,omitempty"`
}

// gist is what a tool call is about, in one line.
func gist(args string) string {
	const most = 160
	text := args
	var fields map[string]any
	if json.Unmarshal([]byte(args), &fields) == nil {
		for _, key := range []string{"command", "path", "pattern", "task", "prompt"} {
			if v, ok := fields[key].(string); ok && v != "" {
				text = v
				break
			}
		}
		if len(fields) == 0 {
			text = ""
		}
	}
	if r := []rune(text); len(r) > most {
		text = string(r[:most-1]) + "…"
	}
	return text
}

func firstLine(s string) string {
	l, _, _ := strings.Cut(s, "\n")
	if r := []rune(l); len(r) > 300 {
		l = string(r[:299]) + "…"
	}
	return l
}

// tame is printable for text of several lines: line ends and tabs stay.
func tame(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == '\n' || r == '\t' || unicode.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			b.WriteString(s[:n])
		} else {
			b.WriteString(printable(s[:n]))
		}
		s = s[n:]
	}
	return b.String()
}
