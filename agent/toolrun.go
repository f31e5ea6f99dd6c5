package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/workspace"
)

// outcome is what became of the tool calls of one response.
type outcome struct {
	parts    []model.Part // one for each call, in their order
	deferred []Deferred

	done  bool // the output tool was called with a good value
	value any
	text  string
}

// finished is what became of one call.
type finished struct {
	part     model.Part
	err      error // ends the run
	deferred *Deferred
	value    any
	text     string
	done     bool
}

// runTools runs the calls of a response: in parallel, but a Sequential tool
// alone and the output tool last. It always returns a part for each call.
func (r *Run) runTools(ctx context.Context, calls []model.ToolCall, offered []*boundTool) (outcome, error) {
	byName := map[string]*boundTool{}
	for _, t := range offered {
		byName[t.Name] = t
	}
	work := 0
	for _, c := range calls {
		if t := byName[c.Name]; t == nil || !t.output {
			work++
		}
	}
	if work > 0 {
		if err := r.meter.calls(work); err != nil {
			return outcome{parts: unanswered(calls, err)}, err
		}
	}

	results := make([]finished, len(calls))
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	one := func(i int) {
		results[i] = r.call(ctx, calls[i], byName[calls[i].Name], false)
		if err := results[i].err; err != nil {
			stop(err) // the others end too
		}
	}
	var last []int // output tools
	var group []int
	flush := func() {
		r.parallel(ctx, group, one)
		group = nil
	}
	for i, c := range calls {
		switch t := byName[c.Name]; {
		case t != nil && t.output:
			last = append(last, i)
		case t != nil && t.Sequential:
			flush()
			r.parallel(ctx, []int{i}, one)
		default:
			group = append(group, i)
		}
	}
	flush()
	done := false
	for _, i := range last {
		if done {
			results[i].part = model.ToolReturn{ID: calls[i].ID, Name: calls[i].Name, Text: "Not used: the final answer was given already."}
			continue
		}
		r.parallel(ctx, []int{i}, one)
		done = results[i].done
	}

	out := outcome{}
	var first error
	for i, f := range results {
		if f.part == nil {
			f.part = interrupted(calls[i], context.Cause(ctx))
		}
		if f.err != nil && (first == nil || errors.Is(first, context.Canceled) && !errors.Is(f.err, context.Canceled)) {
			first = f.err
		}
		if f.deferred != nil {
			out.deferred = append(out.deferred, *f.deferred)
		}
		if f.done {
			out.done, out.value, out.text = true, f.value, f.text
		}
		out.parts = append(out.parts, f.part)
	}
	if first == nil {
		first = context.Cause(ctx)
	}
	if first != nil {
		return out, first
	}
	return out, r.budget(out.parts, byName)
}

// parallel runs f for each index, a bounded number at a time, and waits. None
// is begun once ctx has ended.
func (r *Run) parallel(ctx context.Context, indexes []int, f func(int)) {
	most := r.config.Parallel
	if most <= 0 {
		most = 8
	}
	slots := make(chan struct{}, most)
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, i := range indexes {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		if ctx.Err() != nil {
			return
		}
		wg.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
}

// budget counts the responses in a row in which a tool asked for a retry, and
// ends the run when there were too many.
func (r *Run) budget(parts []model.Part, tools map[string]*boundTool) error {
	retried := map[string]string{}
	names := map[string]bool{}
	for _, p := range parts {
		switch p := p.(type) {
		case model.Retry:
			retried[p.Name], names[p.Name] = p.Text, true
		case model.ToolReturn:
			names[p.Name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		text, failed := retried[name]
		if !failed {
			r.attempts[name] = 0
			continue
		}
		most := r.config.retries()
		if t := tools[name]; t != nil && t.Retries > 0 {
			most = t.Retries
		} else if t != nil && t.Retries < 0 {
			most = 0
		}
		if r.attempts[name]++; r.attempts[name] > most {
			return modelErrorf("tool %s: %d attempts in a row failed, the last with: %s", name, r.attempts[name], clip(text, 500))
		}
	}
	return nil
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// call runs one tool call, with its hooks, and turns whatever happens into a
// part for the model.
func (r *Run) call(ctx context.Context, c model.ToolCall, t *boundTool, approved bool) finished {
	begin := time.Now()
	call := &Call{Run: r, CallID: c.ID, Tool: c.Name, Args: json.RawMessage(c.Args), Attempt: r.attempts[c.Name], Approved: approved}
	ctx, done := r.spans.tool(ctx, call, t)
	r.emit(ToolStarted{c})
	var f finished
	out, err := r.invoke(ctx, c, call, t, &f)
	if err == nil {
		f.part = model.ToolReturn{ID: c.ID, Name: c.Name, Text: out.Text, Files: out.Files}
	} else {
		f.done = false
		f.fail(ctx, c, err)
	}
	done(f.part, err)
	r.emit(ToolFinished{Call: c, Part: f.part, Took: time.Since(begin)})
	return f
}

// fail sorts an error into the kinds that the package comment lists.
func (f *finished) fail(ctx context.Context, c model.ToolCall, err error) {
	var retry *RetryError
	var failed *FailedError
	var wait *DeferredError
	ret := model.ToolReturn{ID: c.ID, Name: c.Name, Outcome: model.Failure}
	switch {
	case errors.As(err, &retry) && !gone(err):
		f.part = model.Retry{ID: c.ID, Name: c.Name, Text: retry.Message}
		return
	case errors.As(err, &failed) && !gone(err):
		ret.Text = failed.Message
		if failed.Outcome != "" {
			ret.Outcome = failed.Outcome
		}
	case errors.As(err, &wait):
		ret.Outcome = model.Deferred
		ret.Text = "This call has not run yet: it waits for an answer."
		f.deferred = &Deferred{Call: c, Reason: wait.Reason}
	case ctx.Err() != nil:
		f.part, f.err = interrupted(c, context.Cause(ctx)), err
		return
	case Correctable(err):
		ret.Text = err.Error()
	default:
		f.part, f.err = interrupted(c, err), fmt.Errorf("tool %s: %w", c.Name, err)
		return
	}
	f.part = ret
}

// gone reports whether an error is that of a lost workspace, which ends the
// run whatever a tool makes of it.
func gone(err error) bool { return errors.Is(err, workspace.ErrUnavailable) }

// interrupted is the result of a call that did not get to its end.
func interrupted(c model.ToolCall, err error) model.Part {
	text := "This call did not finish, because of an error that ended the run. What it did so far is not known."
	var limit *LimitError
	switch {
	case errors.As(err, &limit), errors.Is(err, context.DeadlineExceeded):
		text = "This call did not finish, because the run reached its limit. What it did so far is not known."
	case errors.Is(err, workspace.ErrUnavailable):
		text = "This call did not finish, because the workspace is no longer available."
	case errors.Is(err, context.Canceled):
		text = "This call did not finish, because the run was cancelled. What it did so far is not known."
	}
	return model.ToolReturn{ID: c.ID, Name: c.Name, Outcome: model.Interrupted, Text: text}
}

// unanswered are the results of calls that were not begun.
func unanswered(calls []model.ToolCall, err error) []model.Part {
	reason, _, _ := ending(err)
	parts := make([]model.Part, len(calls))
	for i, c := range calls {
		parts[i] = model.ToolReturn{ID: c.ID, Name: c.Name, Outcome: model.Interrupted, Text: "This call was not run: the run ended first (" + reason + ")."}
	}
	return parts
}

// invoke is the call with its hooks.
func (r *Run) invoke(ctx context.Context, c model.ToolCall, call *Call, t *boundTool, f *finished) (ToolOutput, error) {
	if t == nil {
		names := make([]string, 0, len(r.tools))
		for _, t := range r.tools {
			names = append(names, t.Name)
		}
		return ToolOutput{}, Retryf("there is no tool named %q; there are: %s", clip(c.Name, 100), strings.Join(names, ", "))
	}
	if _, err := parseObject(c.Args); err != nil && strings.TrimSpace(c.Args) != "" {
		for _, capability := range r.caps {
			if p, ok := capability.(ArgsRepairer); ok {
				if mended, ok := p.RepairArgs(c); ok {
					call.Args = json.RawMessage(mended)
					break
				}
			}
		}
	}
	st := stage[ToolOutput]{final: func(err error) bool { return ctx.Err() != nil }}
	for _, h := range r.hooks {
		if f := h.BeforeTool; f != nil {
			st.before = append(st.before, func(ctx context.Context) error { return f(ctx, call) })
		}
		if f := h.AfterTool; f != nil {
			st.after = append(st.after, func(ctx context.Context, out *ToolOutput) error { return f(ctx, call, out) })
		}
		if f := h.OnToolError; f != nil {
			st.failed = append(st.failed, func(ctx context.Context, err error) (*ToolOutput, error) { return f(ctx, call, err) })
		}
	}
	// The arguments are checked after the before hooks, which may change them,
	// and outside of the wrap hooks, which see good ones only.
	core := func(ctx context.Context) (ToolOutput, error) {
		args, err := t.validate(string(call.Args))
		if err != nil {
			return ToolOutput{}, err
		}
		call.Args = args
		next := func(ctx context.Context) (ToolOutput, error) {
			if t.output {
				v, text, err := r.opts.output.output(ctx, r, args)
				if err != nil {
					return ToolOutput{}, err
				}
				f.value, f.text, f.done = v, text, true
				return ToolOutput{Text: "The final answer was taken."}, nil
			}
			return t.protected(ctx, call, call.Args)
		}
		for i := len(r.hooks) - 1; i >= 0; i-- {
			if wrap := r.hooks[i].WrapTool; wrap != nil {
				inner := next
				next = func(ctx context.Context) (ToolOutput, error) { return wrap(ctx, call, inner) }
			}
		}
		return next(ctx)
	}
	return st.do(ctx, core)
}

// protected calls the tool's function with its time limit. A panic ends the
// run and not the program.
func (t *boundTool) protected(ctx context.Context, call *Call, args json.RawMessage) (out ToolOutput, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("it panicked: %v\n%s", v, debug.Stack())
		}
	}()
	if t.Timeout <= 0 {
		return t.Call(ctx, call, args)
	}
	limited, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	out, err = t.Call(limited, call, args)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return out, Failedf("the tool %s did not finish within %v", t.Name, t.Timeout)
	}
	return out, err
}

// pending is a deferred call of the history for which there is an answer.
type pending struct {
	call   model.ToolCall
	part   int // index in the message that holds the results
	answer Answer
}

// answers finds the calls that WithAnswers is about. It returns nil when there
// are none to look for.
func (r *Run) answers() ([]pending, error) {
	if r.opts.answers == nil {
		return nil, nil
	}
	n := len(r.messages) - 1
	for n >= 0 && r.messages[n].Kind == model.KindRequest && !hasDeferred(r.messages[n]) {
		n-- // a notice may have come after
	}
	if n < 1 || !hasDeferred(r.messages[n]) {
		return nil, usageErrorf("WithAnswers: no call of the history's last response waits for an answer")
	}
	calls := map[string]model.ToolCall{}
	for _, c := range r.messages[n-1].Calls() {
		calls[c.ID] = c
	}
	out := []pending{}
	found := map[string]bool{}
	for i, p := range r.messages[n].Parts {
		ret, ok := p.(model.ToolReturn)
		if !ok || ret.Outcome != model.Deferred {
			continue
		}
		if a, ok := r.opts.answers[ret.ID]; ok {
			out = append(out, pending{calls[ret.ID], i, a})
			found[ret.ID] = true
		}
	}
	for id := range r.opts.answers {
		if !found[id] {
			return nil, usageErrorf("WithAnswers: no call with the id %q waits for an answer", id)
		}
	}
	return out, nil
}

func hasDeferred(m model.Message) bool {
	return slices.ContainsFunc(m.Parts, func(p model.Part) bool {
		ret, ok := p.(model.ToolReturn)
		return ok && ret.Outcome == model.Deferred
	})
}

// resume runs what was approved and puts the results where the waiting ones
// were.
func (r *Run) resume(ctx context.Context, answered []pending) error {
	results := make([]finished, len(answered))
	offered, err := r.offered(ctx)
	if err != nil {
		return err
	}
	byName := map[string]*boundTool{}
	for _, t := range offered {
		byName[t.Name] = t
	}
	var run []int
	for i, p := range answered {
		ret := model.ToolReturn{ID: p.call.ID, Name: p.call.Name}
		switch {
		case p.answer.Result != nil:
			ret.Text, ret.Files = p.answer.Result.Text, p.answer.Result.Files
		case !p.answer.Approve:
			ret.Outcome, ret.Text = model.Denied, "The user denied this call."
			if p.answer.Message != "" {
				ret.Text = p.answer.Message
			}
		default:
			run = append(run, i)
			continue
		}
		results[i].part = ret
	}
	if len(run) > 0 {
		if err := r.meter.calls(len(run)); err != nil {
			return err // they go on waiting
		}
	}
	r.parallel(ctx, run, func(i int) {
		results[i] = r.call(ctx, answered[i].call, byName[answered[i].call.Name], true)
	})
	r.mu.Lock()
	n := len(r.messages) - 1
	for n > 0 && !hasDeferred(r.messages[n]) {
		n--
	}
	parts := slices.Clone(r.messages[n].Parts)
	var first error
	for i, p := range answered {
		if results[i].part == nil {
			continue // not begun: it goes on waiting
		}
		parts[p.part] = results[i].part
		if first == nil {
			first = results[i].err
		}
	}
	r.messages[n].Parts = parts
	r.mu.Unlock()
	r.note()
	if first == nil {
		first = ctx.Err()
	}
	return first
}

// waiting lists the calls that still wait for an answer.
func (r *Run) waiting() []Deferred {
	messages := r.Messages()
	var out []Deferred
	for i := len(messages) - 1; i > 0; i-- {
		if messages[i].Kind == model.KindResponse {
			break
		}
		calls := map[string]model.ToolCall{}
		for _, c := range messages[i-1].Calls() {
			calls[c.ID] = c
		}
		for _, p := range messages[i].Parts {
			if ret, ok := p.(model.ToolReturn); ok && ret.Outcome == model.Deferred {
				out = append(out, Deferred{Call: calls[ret.ID], Reason: "it has no answer yet"})
			}
		}
	}
	return out
}
