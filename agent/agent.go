package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"iter"
	"log/slog"
	"slices"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/workspace"
)

// Agent is a model with capabilities. It holds nothing of its runs.
type Agent struct {
	model    model.Model
	caps     []Capability
	config   Config
	defaults []Option
}

// Config is a capability that sets what an agent has one of. The fields that
// are set in a later Config of the list replace those of an earlier one.
type Config struct {
	// Name is the agent's, for telemetry and logs.
	Name string
	// Settings go with each model request.
	Settings model.Settings
	// Retries is how often in a row a tool, or the output, may be asked for
	// again, where it does not say itself: 0 means 1, negative means never.
	Retries int
	// Parallel is how many tools run at the same time; 0 means 8.
	Parallel int
	// Limits are those of runs that are not given any.
	Limits Limits
	// Tracer makes the spans; nil means the one that the program set for
	// OpenTelemetry, which is none unless it did.
	Tracer trace.TracerProvider
	// TraceContent puts what is said, and tools' arguments and results, into
	// spans. They may hold secrets.
	TraceContent bool
	// Logger gets what has nowhere else to go; nil means slog.Default().
	Logger *slog.Logger
}

// Defaults is a Config that gives way to every Config, wherever that is in the
// list. It is for packages that compose agents.
type Defaults Config

// Limits bound a run, those of its sub-agents included. A field that is 0
// means no limit, except for Requests.
type Limits struct {
	Requests     int64         // model requests; 0 means DefaultRequests, negative no limit
	ToolCalls    int64         // tool calls
	InputTokens  int64         // tokens sent
	OutputTokens int64         // tokens received
	TotalTokens  int64         // both
	Time         time.Duration // from start to end
}

// DefaultRequests is the limit of model requests when none is set.
const DefaultRequests = 50

func (c *Config) merge(d Config) {
	if d.Name != "" {
		c.Name = d.Name
	}
	if d.Settings != (model.Settings{}) {
		c.Settings = d.Settings
	}
	if d.Retries != 0 {
		c.Retries = d.Retries
	}
	if d.Parallel != 0 {
		c.Parallel = d.Parallel
	}
	if d.Limits != (Limits{}) {
		c.Limits = d.Limits
	}
	if d.Tracer != nil {
		c.Tracer = d.Tracer
	}
	if d.TraceContent {
		c.TraceContent = true
	}
	if d.Logger != nil {
		c.Logger = d.Logger
	}
}

// collect merges what a list of capabilities has of them.
func (c *Config) collect(caps []Capability) {
	explicit := *c
	for _, x := range caps {
		if d, ok := x.(Defaults); ok {
			c.merge(Config(d))
		}
	}
	c.merge(explicit)
	for _, x := range caps {
		if d, ok := x.(Config); ok {
			c.merge(d)
		}
	}
}

func (c Config) retries() int {
	switch {
	case c.Retries < 0:
		return 0
	case c.Retries == 0:
		return 1
	}
	return c.Retries
}

func (c Config) tracer() trace.Tracer {
	p := c.Tracer
	if p == nil {
		p = otel.GetTracerProvider()
	}
	return p.Tracer("github.com/hutch-sandbox/hutch/agent")
}

func (c Config) logger() *slog.Logger {
	if c.Logger != nil {
		return c.Logger
	}
	return slog.Default()
}

// New makes an agent. It does no I/O. It panics when the model is nil or a
// capability is none, since nothing could mend that at run time.
func New(m model.Model, caps ...Capability) *Agent {
	if m == nil {
		panic("agent.New: the model is nil")
	}
	a := &Agent{model: m, caps: flatten(caps)}
	for _, c := range a.caps {
		if err := check(c); err != nil {
			panic("agent.New: " + err.Error())
		}
	}
	a.config.collect(a.caps)
	return a
}

// Name returns the agent's name; it may be empty.
func (a *Agent) Name() string { return a.config.Name }

// Model returns the agent's model.
func (a *Agent) Model() model.Model { return a.model }

// With returns a copy of the agent whose runs have the options, before those
// that are given to the run itself. It is how a test gives an agent another
// model or workspace.
func (a *Agent) With(opts ...Option) *Agent {
	b := *a
	b.defaults = append(slices.Clone(a.defaults), opts...)
	return &b
}

// Option changes a run.
type Option func(*options)

type options struct {
	history   []model.Message
	backend   workspace.Backend
	ref       *workspace.Ref
	fresh     bool
	caps      []Capability
	deps      any
	limits    *Limits
	model     model.Model
	output    *OutputType
	content   []model.Content
	answers   map[string]Answer
	parent    *Call
	id        string
	workspace int // how many options chose one
}

// WithHistory continues a conversation: what Result.Messages returned. It has
// to pass model.Validate. From an untrusted client, use model.FromClient first.
func WithHistory(messages []model.Message) Option {
	return func(o *options) { o.history = messages }
}

// WithWorkspace makes the run work in a backend, which may be a
// *workspace.Workspace, as it is. The run does not close it.
func WithWorkspace(b workspace.Backend) Option {
	return func(o *options) { o.backend, o.ref, o.fresh = b, nil, false; o.workspace++ }
}

// WithRef makes the run work in the place that a ref names. One of the
// capabilities has to know it.
func WithRef(ref workspace.Ref) Option {
	return func(o *options) { o.ref, o.backend, o.fresh = &ref, nil, false; o.workspace++ }
}

// WithNewWorkspace makes the run work in a new place, whatever the history
// says. One of the capabilities has to supply it.
func WithNewWorkspace() Option {
	return func(o *options) { o.fresh, o.backend, o.ref = true, nil, nil; o.workspace++ }
}

// WithCapabilities adds capabilities to one run.
func WithCapabilities(caps ...Capability) Option {
	return func(o *options) { o.caps = append(slices.Clone(o.caps), caps...) }
}

// WithDeps gives tools and hooks what they depend on; see Deps.
func WithDeps(v any) Option { return func(o *options) { o.deps = v } }

// WithLimits bounds the run.
func WithLimits(l Limits) Option { return func(o *options) { o.limits = &l } }

// WithModel runs with another model than the agent's.
func WithModel(m model.Model) Option { return func(o *options) { o.model = m } }

// WithContent adds images, files or more text to the prompt.
func WithContent(content ...model.Content) Option {
	return func(o *options) { o.content = append(slices.Clone(o.content), content...) }
}

// WithRunID gives the run an id, instead of a random one. Ids derived from it,
// such as those of background jobs, are then the same when a run is repeated.
func WithRunID(id string) Option { return func(o *options) { o.id = id } }

// WithParent makes the run a part of the one that a tool call belongs to: its
// usage counts there, that run's limits hold for it, and its events appear
// there as Nested. It does not choose a workspace.
func WithParent(call *Call) Option { return func(o *options) { o.parent = call } }

// Answer is what somebody outside said about a deferred call.
type Answer struct {
	// Approve runs the call. Otherwise the model is told that it was denied.
	Approve bool
	// Message is for the model: why it was denied. With Result it is not used.
	Message string
	// Result, when not nil, is the call's result: it was run elsewhere.
	Result *ToolOutput
}

// WithAnswers gives answers, by call id, to calls that an earlier run deferred;
// its history is needed too. Calls without an answer go on waiting. The prompt
// may be empty. The answers become part of the message that held the waiting
// calls, so store Result.Messages afterwards and not only the new ones.
func WithAnswers(answers map[string]Answer) Option {
	return func(o *options) { o.answers = answers }
}

// Result is how a run went.
type Result struct {
	Output    string               // the model's final text; with an output type, its JSON
	Value     any                  // with an output type, the value; see RunAs
	Deferred  []Deferred           // calls that wait for an answer; the run then has no output
	Usage     model.Usage          // of this run, its sub-agents' included
	Workspace *workspace.Workspace // what it worked in; never nil, see Workspace.Attached
	RunID     string

	messages []model.Message
}

// Deferred is a tool call that waits for an answer.
type Deferred struct {
	Call   model.ToolCall
	Reason string
}

// Messages returns the whole conversation, history included. Store it, or its
// model.Encode, to continue later.
func (r *Result) Messages() []model.Message { return slices.Clone(r.messages) }

// NewMessages returns the messages that this run made.
func (r *Result) NewMessages() []model.Message {
	var out []model.Message
	for _, m := range r.messages {
		if m.Run == r.RunID {
			out = append(out, m)
		}
	}
	return out
}

// Run runs the agent to its end. With an error it returns a Result too, which
// has the conversation so far, the usage and the workspace; only with ErrUsage
// it may be nil. When ctx ends, the run stops what it is doing and returns.
func (a *Agent) Run(ctx context.Context, prompt string, opts ...Option) (*Result, error) {
	return a.run(ctx, prompt, opts, func(Event) {})
}

// Stream runs the agent and yields what happens. The last pair is a Finished
// and the run's error. The run goes no faster than its events are taken.
// Whoever stops ranging early cancels the run, and waits for its end.
func (a *Agent) Stream(ctx context.Context, prompt string, opts ...Option) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		events := make(chan Event)
		left := make(chan struct{}) // closed when nobody listens any more
		var res *Result
		var err error
		go func() {
			defer close(events) // whoever ranges waits for this
			res, err = a.run(ctx, prompt, opts, func(e Event) {
				select {
				case events <- e:
				case <-left:
				}
			})
		}()
		listening := true
		for e := range events {
			if listening && !yield(e, nil) {
				listening = false
				close(left)
				cancel()
			}
		}
		if listening {
			yield(Finished{res}, err)
		}
	}
}

func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
