package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/workspace"
)

// Run is one run of an agent, as its tools and hooks see it. It is made by the
// loop; the zero Run is of no use.
type Run struct {
	id       string
	agent    *Agent
	model    model.Model
	config   Config
	opts     options
	caps     []Capability
	hooks    []Hooks
	tools    []*boundTool
	meter    *meter
	emit     func(Event)
	ws       *workspace.Workspace
	closeWS  bool           // the run made the backend, so it lets go of it
	earlier  *workspace.Ref // what the history says, for a run that has no workspace
	prompt   string
	spans    *spans
	attempts map[string]int // consecutive retries by tool; of the loop only

	mu       sync.Mutex
	messages []model.Message
}

// ID returns the run's id.
func (r *Run) ID() string { return r.id }

// Agent returns the agent.
func (r *Run) Agent() *Agent { return r.agent }

// Model returns the model that this run asks.
func (r *Run) Model() model.Model { return r.model }

// Prompt returns the text that the run was started with.
func (r *Run) Prompt() string { return r.prompt }

// Deps returns what WithDeps gave, nil when nothing.
func (r *Run) Deps() any { return r.opts.deps }

// Deps returns what WithDeps gave to a run as a T; false when it gave none of
// that type.
func Deps[T any](r *Run) (T, bool) {
	v, ok := r.opts.deps.(T)
	return v, ok
}

// Workspace returns what the run works in; never nil. When nobody supplied
// one, using it is workspace.ErrUnavailable.
func (r *Run) Workspace() *workspace.Workspace { return r.ws }

// Usage returns what was used so far.
func (r *Run) Usage() model.Usage { return r.meter.usage() }

// Limits returns the run's limits.
func (r *Run) Limits() Limits { return r.meter.limits }

// Logger returns where to log to.
func (r *Run) Logger() *slog.Logger { return r.config.logger() }

// Emit yields an event to whoever streams the run. It waits until the event is
// taken.
func (r *Run) Emit(e Event) { r.emit(e) }

// Depth returns how many runs this one is a part of: 0 for a run of its own,
// 1 for that of a sub-agent.
func (r *Run) Depth() int {
	n := 0
	for m := r.meter.parent; m != nil; m = m.parent {
		n++
	}
	return n
}

// Ask asks the run's model something beside the conversation, for example for
// a summary. It counts for the run's usage and limits. No hooks see it.
func (r *Run) Ask(ctx context.Context, req *model.Request) (*model.Response, error) {
	if err := r.meter.request(); err != nil {
		return nil, err
	}
	ctx, done := r.spans.request(ctx, r, req)
	res, err := model.Collect(model.Stream(ctx, r.model, req))
	done(res, err)
	if err != nil {
		return nil, err
	}
	return res, r.meter.response(res.Usage)
}

// Messages returns the conversation so far.
func (r *Run) Messages() []model.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.messages)
}

// ReplaceMessages puts another conversation in the place of the one so far,
// for good: it is how a capability makes a long one shorter. It has to pass
// model.Validate. It is for hooks around model requests, when no tool runs.
func (r *Run) ReplaceMessages(messages []model.Message) error {
	if err := model.Validate(messages); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = slices.Clone(messages)
	return nil
}

// Result returns a result with the run's conversation, usage and workspace as
// they are now, for a hook that recovers a run.
func (r *Run) Result(output string) *Result {
	return &Result{Output: output, Usage: r.Usage(), Workspace: r.ws, RunID: r.id, messages: r.Messages()}
}

func (r *Run) push(m model.Message) {
	m.Time, m.Run = time.Now().UTC().Truncate(time.Millisecond), r.id
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, m)
}

// request adds parts for the model: to the last message when that is a request
// of this run, else in a new one.
func (r *Run) request(parts ...model.Part) {
	r.mu.Lock()
	if n := len(r.messages) - 1; n >= 0 && r.messages[n].Kind == model.KindRequest && r.messages[n].Run == r.id {
		r.messages[n].Parts = append(slices.Clone(r.messages[n].Parts), parts...)
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()
	r.push(model.Message{Kind: model.KindRequest, Parts: parts})
}

// ref returns what a response is to record as the run's workspace.
func (r *Run) ref() *workspace.Ref {
	if ref, ok := r.ws.Ref(); ok {
		return &ref
	}
	return r.earlier
}

// note records the workspace on the run's latest response: a tool may have
// been the first to use it, and if the run ends here, the place must not be
// lost.
func (r *Run) note() {
	ref := r.ref()
	if ref == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.messages) - 1; i >= 0; i-- {
		if m := &r.messages[i]; m.Kind == model.KindResponse {
			if m.Run == r.id {
				m.Workspace = ref
			}
			return
		}
	}
}

func (a *Agent) run(ctx context.Context, prompt string, opts []Option, emit func(Event)) (*Result, error) {
	r, err := a.prepare(prompt, opts, emit)
	if err != nil {
		return nil, err
	}
	if d := r.meter.limits.Time; d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d, &LimitError{Limit: "time", Most: d.Milliseconds()})
		defer cancel()
	}
	ctx, done := r.spans.run(ctx, r)
	res, err := r.execute(ctx)
	if r.closeWS {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		if cerr := r.ws.Close(closing); cerr != nil {
			r.Logger().WarnContext(ctx, "agent: letting go of the workspace", "run", r.id, "error", cerr)
		}
		cancel()
	}
	done(res, err)
	return res, err
}

// prepare does all that needs no I/O and can fail before anything happens.
func (a *Agent) prepare(prompt string, opts []Option, emit func(Event)) (*Run, error) {
	var o options
	for _, f := range a.defaults {
		f(&o)
	}
	o.workspace = 0 // the run's own choice replaces a default one
	for _, f := range opts {
		f(&o)
	}
	if o.workspace > 1 {
		return nil, usageErrorf("WithWorkspace, WithRef and WithNewWorkspace contradict each other: give one")
	}
	if err := model.Validate(o.history); err != nil {
		return nil, usageErrorf("WithHistory: %w", err)
	}
	r := &Run{
		id: o.id, agent: a, model: a.model, config: a.config, opts: o, emit: emit, prompt: prompt,
		attempts: map[string]int{}, messages: slices.Clone(o.history),
	}
	if r.id == "" {
		r.id = newID()
	}
	if o.model != nil {
		r.model = o.model
	}
	extra := flatten(o.caps)
	for _, c := range extra {
		if err := check(c); err != nil {
			return nil, usageErrorf("WithCapabilities: %w", err)
		}
	}
	r.config.collect(extra)
	r.caps = append(slices.Clone(a.caps), extra...)
	r.meter = &meter{limits: r.config.Limits}
	if o.limits != nil {
		r.meter.limits = *o.limits
	}
	if p := o.parent; p != nil {
		r.meter.parent = p.meter
		up, name, call := p.emit, r.config.Name, p.CallID
		r.emit = func(e Event) {
			emit(e)
			up(Nested{Run: r.id, Agent: name, Call: call, Event: e})
		}
	}
	r.spans = newSpans(r.config)
	return r, r.chooseWorkspace(append(extra, a.caps...))
}

// chooseWorkspace follows the rules of the package comment. It does no I/O.
func (r *Run) chooseWorkspace(caps []Capability) error {
	var providers []workspace.Provider
	for _, c := range caps {
		if p, ok := c.(workspace.Provider); ok {
			providers = append(providers, p)
		}
	}
	r.ws = workspace.Unavailable("the agent has no capability that supplies one; attach one, or give WithWorkspace")
	history := model.LatestWorkspace(r.opts.history)
	switch o := r.opts; {
	case o.backend != nil:
		r.ws = workspace.New(o.backend)
		return nil
	case o.fresh:
		if len(providers) == 0 {
			return usageErrorf("WithNewWorkspace: no capability supplies a workspace")
		}
		r.ws, r.closeWS = workspace.New(providers[0].New()), true
		return nil
	case o.ref != nil:
		return r.attach(providers, *o.ref, "WithRef")
	case history != nil && len(providers) > 0:
		return r.attach(providers, *history, "the history")
	case history != nil:
		// Kept for a later run that has a provider.
		r.earlier = history
		return nil
	case len(providers) > 0:
		r.ws, r.closeWS = workspace.New(providers[0].New()), true
	}
	return nil
}

func (r *Run) attach(providers []workspace.Provider, ref workspace.Ref, from string) error {
	if err := ref.Validate(); err != nil {
		return usageErrorf("%s: %w", from, err)
	}
	for _, p := range providers {
		b, err := p.Backend(ref)
		switch {
		case errors.Is(err, workspace.ErrUnknownRef):
			continue
		case err != nil:
			return usageErrorf("%s names the workspace %s: %w; give the workspace itself again, or WithNewWorkspace", from, ref, err)
		}
		r.ws, r.closeWS = workspace.New(b), true
		return nil
	}
	return usageErrorf("%s names the workspace %s, which no capability of this agent knows; add the one that made it, or give WithNewWorkspace", from, ref)
}

// execute is the whole run, with its hooks and its ending.
func (r *Run) execute(ctx context.Context) (*Result, error) {
	r.emit(Started{Run: r.id, Agent: r.config.Name, Model: r.model.Name()})
	if err := r.compose(ctx); err != nil {
		return r.Result(""), err
	}
	answered, err := r.answers()
	if err != nil {
		return r.Result(""), err
	}
	if err := r.ask(answered != nil); err != nil {
		return r.Result(""), err
	}
	st := stage[*Result]{
		onErr: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		},
		final: func(err error) bool { return ctx.Err() != nil },
	}
	for _, h := range r.hooks {
		if f := h.BeforeRun; f != nil {
			st.before = append(st.before, func(ctx context.Context) error { return f(ctx, r) })
		}
		if f := h.WrapRun; f != nil {
			st.wrap = append(st.wrap, func(ctx context.Context, next func(context.Context) (*Result, error)) (*Result, error) {
				return f(ctx, r, next)
			})
		}
		if f := h.AfterRun; f != nil {
			st.after = append(st.after, func(ctx context.Context, res **Result) error { return f(ctx, r, *res) })
		}
		if f := h.OnRunError; f != nil {
			st.failed = append(st.failed, func(ctx context.Context, err error) (**Result, error) {
				r.end(err) // the hook sees a history that can be continued
				res, err := f(ctx, r, err)
				if res == nil {
					return nil, err
				}
				return &res, err
			})
		}
	}
	res, err := st.do(ctx, func(ctx context.Context) (*Result, error) {
		res, err := r.loop(ctx, answered)
		return res, cause(ctx, err)
	})
	if err != nil {
		r.end(err)
		return r.Result(""), err
	}
	if res == nil {
		return r.Result(""), usageErrorf("a hook returned neither a result nor an error")
	}
	r.note()
	res.Usage, res.messages = r.Usage(), r.Messages()
	if res.Workspace == nil {
		res.Workspace = r.ws
	}
	if res.RunID == "" {
		res.RunID = r.id
	}
	return res, nil
}

// cause adds to a context's error why the context ended, which for a time
// limit is a *LimitError.
func cause(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	if c := context.Cause(ctx); c != nil && !errors.Is(err, c) {
		return fmt.Errorf("%w: %w", c, err)
	}
	return err
}

// end makes the history of a run that failed one that can be continued, and
// says in it what happened. Doing it twice changes nothing.
func (r *Run) end(err error) {
	reason, text, finish := ending(err)
	r.mu.Lock()
	n := len(r.messages) - 1
	ended, answered := false, false
	for i := n; i >= 0 && r.messages[i].Run == r.id; i-- {
		if r.messages[i].Kind == model.KindResponse {
			answered = true
		}
		for _, p := range r.messages[i].Parts {
			if notice, ok := p.(model.Notice); ok && i == n && notice.Reason == reason {
				ended = true
			}
		}
	}
	known := model.LatestWorkspace(r.messages)
	r.mu.Unlock()
	if ref, ok := r.ws.Ref(); ok && !answered && (known == nil || *known != ref) {
		// Somewhere the workspace has to be recorded.
		r.push(model.Message{Kind: model.KindResponse, Model: r.model.Name(), Finish: finish, Workspace: r.ref()})
	}
	r.note()
	if !ended {
		r.request(model.Notice{Reason: reason, Text: text})
	}
}

// compose collects what the capabilities bring to this run.
func (r *Run) compose(ctx context.Context) error {
	var tools []Tool
	for i, c := range r.caps {
		if p, ok := c.(PerRun); ok {
			own, err := p.ForRun(ctx, r)
			if err != nil {
				return fmt.Errorf("%s: %w", capabilityName(c), err)
			}
			if err := check(own); err != nil {
				return usageErrorf("%s: for a run: %w", capabilityName(c), err)
			}
			r.caps[i], c = own, own
		}
		if n, ok := c.(WorkspaceNeeder); ok && !r.ws.Attached() {
			if who := n.NeedsWorkspace(); who != "" {
				return usageErrorf("%s needs a workspace and the run has none: add a capability that supplies one, such as workspace/sandbox, or give WithWorkspace", who)
			}
		}
		r.hooks = append(r.hooks, asHooks(c))
		if t, ok := c.(Tool); ok {
			tools = append(tools, t)
		}
		if p, ok := c.(ToolProvider); ok {
			more, err := p.Tools(ctx, r)
			if err != nil {
				return fmt.Errorf("%s: tools: %w", capabilityName(c), err)
			}
			tools = append(tools, more...)
		}
	}
	seen := map[string]bool{}
	if r.opts.output != nil {
		tools = append(tools, Tool{
			Name: outputTool, Schema: r.opts.output.schema,
			Description: "Give the final answer. Call it once, when you are done.",
			Call:        func(context.Context, *Call, json.RawMessage) (ToolOutput, error) { return ToolOutput{}, nil },
		})
	}
	for _, t := range tools {
		if seen[t.Name] {
			return usageErrorf("two tools are named %s", t.Name)
		}
		seen[t.Name] = true
		b, err := bind(t)
		if err != nil {
			return err
		}
		b.output = r.opts.output != nil && t.Name == outputTool
		r.tools = append(r.tools, b)
	}
	return nil
}

// ask adds what the user says to the conversation.
func (r *Run) ask(goesOn bool) error {
	var parts []model.Part
	if old := model.LatestWorkspace(r.opts.history); old != nil && r.opts.fresh {
		parts = append(parts, model.Notice{Reason: "new_workspace", Text: "From here on the workspace is a new one. Files and processes of the earlier workspace are not in it."})
	}
	var content []model.Content
	if r.prompt != "" {
		content = append(content, model.Content{Text: r.prompt})
	}
	if content = append(content, r.opts.content...); len(content) > 0 {
		parts = append(parts, model.User{Content: content})
	}
	if len(parts) == 0 {
		n := len(r.messages)
		if goesOn || n > 0 && r.messages[n-1].Kind == model.KindRequest {
			return nil // the conversation as it is asks for a response
		}
		return usageErrorf("the prompt is empty, and the history does not wait for the model")
	}
	r.push(model.Message{Kind: model.KindRequest, Parts: parts})
	return nil
}

// loop asks the model and runs tools until there is an answer.
func (r *Run) loop(ctx context.Context, answered []pending) (*Result, error) {
	if answered != nil {
		if err := r.resume(ctx, answered); err != nil {
			return nil, err
		}
		if waiting := r.waiting(); len(waiting) > 0 {
			res := r.Result("")
			res.Deferred = waiting
			return res, nil
		}
	}
	empty, text := 0, ""
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		msg, offered, err := r.respond(ctx)
		if err != nil {
			return nil, err
		}
		if t := msg.Text(); strings.TrimSpace(t) != "" {
			text = t
		}
		calls := msg.Calls()
		if len(calls) == 0 {
			again, err := r.answer(msg, text, &empty)
			if err != nil {
				return nil, err
			}
			if again != "" {
				r.push(model.Message{Kind: model.KindRequest, Parts: []model.Part{model.Retry{Text: again}}})
				continue
			}
			return r.Result(text), nil
		}
		empty = 0
		out, err := r.runTools(ctx, calls, offered)
		r.push(model.Message{Kind: model.KindRequest, Parts: out.parts})
		r.note()
		if err != nil {
			return nil, err
		}
		if len(out.deferred) > 0 {
			res := r.Result("")
			res.Deferred = out.deferred
			return res, nil
		}
		if out.done {
			res := r.Result(out.text)
			res.Value = out.value
			return res, nil
		}
	}
}

// answer decides what a response without tool calls is: the answer, or one
// that has to be asked for again, for the reason it returns.
func (r *Run) answer(msg model.Message, text string, empty *int) (again string, err error) {
	switch {
	case r.opts.output != nil && msg.Finish != model.ContentFilter:
		again = "Give the final answer by calling the tool " + outputTool + "."
	case text != "":
		return "", nil
	case msg.Finish == model.ContentFilter:
		return "", modelErrorf("the provider refused to answer (content filter)")
	case msg.Finish == model.Length:
		return "", modelErrorf("the response reached its token limit before it said anything; raise Settings.MaxTokens")
	default:
		again = "The response was empty. Answer, or call a tool."
	}
	if *empty++; *empty > r.config.retries() {
		return "", modelErrorf("no answer after %d attempts", *empty)
	}
	return again, nil
}

// respond makes one model request, with its hooks, and records the response
// whatever becomes of it.
func (r *Run) respond(ctx context.Context) (model.Message, []*boundTool, error) {
	if err := r.meter.request(); err != nil {
		return model.Message{}, nil, err
	}
	req, offered, err := r.build(ctx)
	if err != nil {
		return model.Message{}, nil, err
	}
	var partial model.Response
	st := stage[*model.Response]{final: func(error) bool { return ctx.Err() != nil }}
	for _, h := range r.hooks {
		if f := h.BeforeModelRequest; f != nil {
			st.before = append(st.before, func(ctx context.Context) error { return f(ctx, r, req) })
		}
		if f := h.WrapModelRequest; f != nil {
			st.wrap = append(st.wrap, func(ctx context.Context, next func(context.Context) (*model.Response, error)) (*model.Response, error) {
				return f(ctx, r, req, func(ctx context.Context, changed *model.Request) (*model.Response, error) {
					req = changed
					return next(ctx)
				})
			})
		}
		if f := h.AfterModelRequest; f != nil {
			st.after = append(st.after, func(ctx context.Context, res **model.Response) error { return f(ctx, r, *res) })
		}
		if f := h.OnModelError; f != nil {
			st.failed = append(st.failed, func(ctx context.Context, err error) (**model.Response, error) {
				res, err := f(ctx, r, err)
				if res == nil {
					return nil, err
				}
				return &res, err
			})
		}
	}
	res, err := st.do(ctx, func(ctx context.Context) (*model.Response, error) { return r.stream(ctx, req, &partial) })
	if err == nil && res == nil {
		err = usageErrorf("a hook returned neither a response nor an error")
	}
	if err != nil {
		_, _, finish := ending(cause(ctx, err))
		r.push(model.Message{
			Kind: model.KindResponse, Parts: partial.Parts, Model: r.model.Name(), Finish: finish,
			Usage: model.Usage{Requests: 1}, Workspace: r.ref(),
		})
		return model.Message{}, nil, err
	}
	msg := r.record(res)
	r.emit(Responded{msg})
	// Tokens are counted after the response is in the history: they are spent.
	if err := r.meter.response(res.Usage); err != nil {
		if calls := msg.Calls(); len(calls) > 0 {
			r.push(model.Message{Kind: model.KindRequest, Parts: unanswered(calls, err)})
		}
		return model.Message{}, nil, err
	}
	return msg, offered, nil
}

// record puts a response into the history. Calls without an id of their own,
// or with one that another call of the response has, get one.
func (r *Run) record(res *model.Response) model.Message {
	seen := map[string]bool{}
	parts := make([]model.Part, 0, len(res.Parts))
	for i, p := range res.Parts {
		if c, ok := p.(model.ToolCall); ok {
			if c.ID == "" || seen[c.ID] {
				c.ID = fmt.Sprintf("call_%s_%d", newID()[:12], i)
			}
			seen[c.ID] = true
			p = c
		}
		parts = append(parts, p)
	}
	usage := res.Usage
	usage.Requests = 1
	name := r.model.Name()
	r.push(model.Message{
		Kind: model.KindResponse, Parts: parts, Model: name, ID: res.ID, Usage: usage, Finish: res.Finish, Workspace: r.ref(),
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.messages[len(r.messages)-1]
}

// stream is the request itself. partial gets what arrived of a response that
// does not arrive whole; tool calls among it are left out, since they may be
// half a call.
func (r *Run) stream(ctx context.Context, req *model.Request, partial *model.Response) (*model.Response, error) {
	ctx, done := r.spans.request(ctx, r, req)
	var text, thinking strings.Builder
	var res *model.Response
	var err error
	for d, serr := range model.Stream(ctx, r.model, req) {
		if serr != nil {
			err = serr
			break
		}
		switch {
		case d.Restart:
			text.Reset()
			thinking.Reset()
			r.emit(Restarted{d.Reason})
		case d.Response != nil:
			res = d.Response
		case d.Text != "":
			text.WriteString(d.Text)
			r.emit(TextDelta{d.Text})
		case d.Thinking != "":
			thinking.WriteString(d.Thinking)
			r.emit(ThinkingDelta{d.Thinking})
		case d.CallID != "" || d.CallName != "" || d.CallArgs != "":
			r.emit(CallDelta{d.CallID, d.CallName, d.CallArgs})
		}
		if res != nil {
			break
		}
	}
	if err == nil && res == nil {
		if err = ctx.Err(); err == nil {
			err = modelErrorf("%s: the stream ended without a response", r.model.Name())
		}
	}
	if err != nil {
		partial.Parts = nil
		if text.Len() > 0 {
			partial.Parts = []model.Part{model.Text{Text: text.String()}}
		}
		res = nil
	}
	done(res, err)
	return res, err
}

// build makes the request for the conversation as it is.
func (r *Run) build(ctx context.Context) (*model.Request, []*boundTool, error) {
	var texts []string
	for _, c := range r.caps {
		i, ok := c.(Instructor)
		if !ok {
			continue
		}
		text, err := i.Instructions(ctx, r)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: instructions: %w", capabilityName(c), err)
		}
		if text = strings.TrimSpace(text); text != "" {
			texts = append(texts, text)
		}
	}
	offered, err := r.offered(ctx)
	if err != nil {
		return nil, nil, err
	}
	req := &model.Request{
		Messages: r.Messages(), Instructions: strings.Join(texts, "\n\n"), Settings: r.config.Settings,
	}
	for _, t := range offered {
		req.Tools = append(req.Tools, model.Tool{Name: t.Name, Description: t.Description, Schema: t.Schema, Output: t.output})
		if t.output {
			req.Choice = model.Choice{Mode: model.ChooseRequired}
		}
	}
	return req, offered, nil
}

// offered asks the capabilities which of the run's tools a request has.
func (r *Run) offered(ctx context.Context) ([]*boundTool, error) {
	offered := r.tools
	for _, c := range r.caps {
		p, ok := c.(ToolPreparer)
		if !ok {
			continue
		}
		plain := make([]Tool, 0, len(offered))
		for _, t := range offered {
			if !t.output {
				plain = append(plain, t.Tool)
			}
		}
		kept, err := p.PrepareTools(ctx, r, plain)
		if err != nil {
			return nil, fmt.Errorf("%s: tools: %w", capabilityName(c), err)
		}
		var next []*boundTool
		for _, k := range kept {
			b, err := bind(k) // it may have another description or schema now
			if err != nil {
				return nil, err
			}
			next = append(next, b)
		}
		for _, t := range offered {
			if t.output {
				next = append(next, t)
			}
		}
		offered = next
	}
	return offered, nil
}
