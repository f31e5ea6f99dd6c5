package scripted

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/hutch-sandbox/hutch/agent/model"
)

// Script is a conversation that was written down: the model's side of it. Its
// JSON form is what Load reads:
//
//	{"steps": [
//	  {"text": "I write it first.", "calls": [{"tool": "write_file", "args": {"path": "a.py", "content": "print(1)\n"}}]},
//	  {"expect": "Created", "calls": [{"tool": "shell", "args": {"command": "python3 a.py"}}]},
//	  {"expect": "^1\n", "text": "It prints 1."},
//	  {"text": "The answer to the follow-up."}
//	]}
//
// Each step is one response. A script holds the responses of a whole
// conversation: a step without calls ends a run, and the step after it begins
// the next run that is given the history.
type Script struct {
	// Steps are the responses.
	Steps []Step `json:"steps,omitempty"`
	// Others are scripts for other conversations that the same model has, for
	// example those of sub-agents: the first whose When matches the
	// conversation's first user message is played instead of Steps.
	Others []Other `json:"others,omitempty"`
}

// Other is a script for conversations of one kind.
type Other struct {
	When  string `json:"when"` // regular expression
	Steps []Step `json:"steps"`
}

// Step is one response of a Script.
type Step struct {
	// Expect is a regular expression that the results of the tools called
	// before must match; else the request fails, and so does the run. Without
	// it anything goes.
	Expect string `json:"expect,omitempty"`
	// Text is what the model says; Thinking what it thinks.
	Text     string `json:"text,omitempty"`
	Thinking string `json:"thinking,omitempty"`
	// Calls are the tools it calls, at the same time.
	Calls []ScriptCall `json:"calls,omitempty"`
}

// ScriptCall is a tool call of a Step.
type ScriptCall struct {
	Tool string          `json:"tool"`
	Args json.RawMessage `json:"args,omitempty"` // empty means {}
	Raw  string          `json:"raw,omitempty"`  // the arguments as text, to show malformed ones
}

// maxScript bounds a script file, in bytes.
const maxScript = 16 << 20

// Load reads a script from a file and returns the model that plays it, named
// "scripted:" and the file's name.
func Load(file string) (model.Model, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	if info.Size() > maxScript {
		return nil, fmt.Errorf("script %s: it has %d bytes, of %d at most", file, info.Size(), maxScript)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	m, err := Parse(filepath.Base(file), data)
	if err != nil {
		return nil, fmt.Errorf("script %s: %w", file, err)
	}
	return m, nil
}

// Parse is Load for a script that is at hand.
func Parse(name string, data []byte) (model.Model, error) {
	var s Script
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return nil, err
	}
	p := &player{name: "scripted:" + name}
	var err error
	if p.steps, err = compile(s.Steps); err != nil {
		return nil, err
	}
	for i, o := range s.Others {
		when, err := regexp.Compile(o.When)
		if err != nil {
			return nil, fmt.Errorf("others[%d].when: %w", i, err)
		}
		steps, err := compile(o.Steps)
		if err != nil {
			return nil, fmt.Errorf("others[%d]: %w", i, err)
		}
		p.others = append(p.others, other{when, steps})
	}
	if len(p.steps) == 0 && len(p.others) == 0 {
		return nil, fmt.Errorf("it has no steps")
	}
	return p, nil
}

func compile(steps []Step) ([]step, error) {
	out := make([]step, len(steps))
	for i, s := range steps {
		out[i].Step = s
		if s.Expect != "" {
			re, err := regexp.Compile("(?s)" + s.Expect)
			if err != nil {
				return nil, fmt.Errorf("steps[%d].expect: %w", i, err)
			}
			out[i].expect = re
		}
		if s.Text == "" && len(s.Calls) == 0 {
			return nil, fmt.Errorf("steps[%d]: it has neither text nor calls", i)
		}
		for j, c := range s.Calls {
			if c.Tool == "" {
				return nil, fmt.Errorf("steps[%d].calls[%d]: it names no tool", i, j)
			}
		}
	}
	return out, nil
}

type step struct {
	Step
	expect *regexp.Regexp
}

type other struct {
	when  *regexp.Regexp
	steps []step
}

// player plays a script. It has no state: where it is, the conversation says.
type player struct {
	name   string
	steps  []step
	others []other
}

// Name returns "scripted:" and the script's name.
func (p *player) Name() string { return p.name }

// Generate returns the next step.
func (p *player) Generate(ctx context.Context, req *model.Request) (*model.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	steps := p.steps
	first := firstUser(req.Messages)
	for _, o := range p.others {
		if o.when.MatchString(first) {
			steps = o.steps
			break
		}
	}
	n := position(req.Messages)
	if n >= len(steps) {
		return nil, p.errorf("the script has %d steps, and this is request %d", len(steps), n+1)
	}
	s := steps[n]
	if got := results(req); s.expect != nil && !s.expect.MatchString(got) {
		const most = 2000
		if len(got) > most {
			got = got[:most] + "…"
		}
		return nil, p.errorf("step %d expects results that match %q, and they are %q", n+1, s.Expect, got)
	}
	res := &model.Response{Usage: model.Usage{Input: int64(len(first)), Output: int64(len(s.Text))}}
	if s.Thinking != "" {
		res.Parts = append(res.Parts, model.Thinking{Text: s.Thinking})
	}
	if s.Text != "" {
		res.Parts = append(res.Parts, model.Text{Text: s.Text})
	}
	for i, c := range s.Calls {
		args := string(c.Args)
		if c.Raw != "" {
			args = c.Raw
		}
		if args == "" {
			args = "{}"
		}
		res.Parts = append(res.Parts, model.ToolCall{ID: fmt.Sprintf("call_%d_%d", n+1, i+1), Name: c.Tool, Args: args})
	}
	return finished(res), nil
}

func (p *player) errorf(format string, args ...any) error {
	return &model.Error{Model: p.name, Message: fmt.Sprintf(format, args...)}
}

func firstUser(messages []model.Message) string {
	for _, m := range messages {
		for _, p := range m.Parts {
			if u, ok := p.(model.User); ok {
				return u.Text()
			}
		}
	}
	return ""
}

// results joins what tools and notices told the model last.
func results(req *model.Request) string {
	var b strings.Builder
	if len(req.Messages) == 0 {
		return ""
	}
	for _, p := range req.Messages[len(req.Messages)-1].Parts {
		var text string
		switch p := p.(type) {
		case model.ToolReturn:
			text = p.Text
		case model.Retry:
			text = p.Text
		case model.Notice:
			text = p.Text
		default:
			continue
		}
		b.WriteString(text)
		b.WriteByte('\n')
	}
	return b.String()
}
