package agent

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/hutch-sandbox/hutch/agent/model"
)

// spans makes a run's OpenTelemetry spans, by the conventions for generative
// AI: one for the run, and below it one for each model request and each tool
// call. What is said is not in them unless Config.TraceContent asks for it.
type spans struct {
	tracer  trace.Tracer
	content bool
	name    string
}

func newSpans(c Config) *spans {
	return &spans{tracer: c.tracer(), content: c.TraceContent, name: c.Name}
}

// maxAttribute bounds a content attribute, in bytes.
const maxAttribute = 64 << 10

func (s *spans) run(ctx context.Context, r *Run) (context.Context, func(*Result, error)) {
	name := "invoke_agent"
	attrs := []attribute.KeyValue{
		attribute.String("gen_ai.operation.name", "invoke_agent"),
		attribute.String("hutch.run.id", r.id),
	}
	attrs = append(attrs, modelAttributes(r.model.Name())...)
	if s.name != "" {
		name += " " + s.name
		attrs = append(attrs, attribute.String("gen_ai.agent.name", s.name))
	}
	ctx, span := s.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(attrs...))
	if s.content && span.IsRecording() {
		span.SetAttributes(attribute.String("gen_ai.input.messages", encoded(r.opts.history, r.prompt)))
	}
	return ctx, func(res *Result, err error) {
		if ref, ok := r.ws.Ref(); ok {
			span.SetAttributes(
				attribute.String("hutch.workspace.provider", ref.Provider),
				attribute.String("hutch.workspace.id", ref.ID))
		}
		span.SetAttributes(usageAttributes(r.Usage())...)
		if s.content && span.IsRecording() && res != nil {
			span.SetAttributes(attribute.String("gen_ai.output.messages", clip(res.Output, maxAttribute)))
		}
		s.end(span, err)
	}
}

func (s *spans) request(ctx context.Context, r *Run, req *model.Request) (context.Context, func(*model.Response, error)) {
	_, name, _ := strings.Cut(r.model.Name(), ":")
	attrs := append(modelAttributes(r.model.Name()), attribute.String("gen_ai.operation.name", "chat"))
	if n := req.Settings.MaxTokens; n > 0 {
		attrs = append(attrs, attribute.Int64("gen_ai.request.max_tokens", n))
	}
	if v := req.Settings.Temperature; v != nil {
		attrs = append(attrs, attribute.Float64("gen_ai.request.temperature", *v))
	}
	ctx, span := s.tracer.Start(ctx, "chat "+name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
	if s.content && span.IsRecording() {
		span.SetAttributes(
			attribute.String("gen_ai.system_instructions", clip(req.Instructions, maxAttribute)),
			attribute.String("gen_ai.input.messages", encoded(req.Messages, "")))
	}
	return ctx, func(res *model.Response, err error) {
		if res != nil {
			span.SetAttributes(usageAttributes(res.Usage)...)
			span.SetAttributes(attribute.StringSlice("gen_ai.response.finish_reasons", []string{string(res.Finish)}))
			if res.ID != "" {
				span.SetAttributes(attribute.String("gen_ai.response.id", res.ID))
			}
			if res.Model != "" {
				span.SetAttributes(attribute.String("gen_ai.response.model", res.Model))
			}
			if s.content && span.IsRecording() {
				span.SetAttributes(attribute.String("gen_ai.output.messages",
					encoded([]model.Message{{Kind: model.KindResponse, Parts: res.Parts, Finish: res.Finish}}, "")))
			}
		}
		s.end(span, err)
	}
}

func (s *spans) tool(ctx context.Context, call *Call, t *boundTool) (context.Context, func(model.Part, error)) {
	// The name is the model's until it is known to be that of a tool.
	name := "unknown"
	if t != nil {
		name = t.Name
	}
	ctx, span := s.tracer.Start(ctx, "execute_tool "+name, trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(
		attribute.String("gen_ai.operation.name", "execute_tool"),
		attribute.String("gen_ai.tool.name", name),
		attribute.String("gen_ai.tool.type", "function"),
		attribute.String("gen_ai.tool.call.id", clip(call.CallID, 256)),
	))
	if s.content && span.IsRecording() {
		span.SetAttributes(attribute.String("gen_ai.tool.call.arguments", clip(string(call.Args), maxAttribute)))
	}
	return ctx, func(p model.Part, err error) {
		if ret, ok := p.(model.ToolReturn); ok {
			if ret.Outcome != model.OK {
				span.SetAttributes(attribute.String("hutch.tool.outcome", string(ret.Outcome)))
			}
			if s.content && span.IsRecording() {
				span.SetAttributes(attribute.String("gen_ai.tool.call.result", clip(ret.Text, maxAttribute)))
			}
		}
		s.end(span, err)
	}
}

// kindOf names an error without its text.
func kindOf(err error) string {
	var retry *RetryError
	var failed *FailedError
	var wait *DeferredError
	switch {
	case errors.As(err, &retry):
		return "retry"
	case errors.As(err, &failed):
		return "failed"
	case errors.As(err, &wait):
		return "deferred"
	}
	reason, _, _ := ending(err)
	return reason
}

// end ends a span. An error's text may quote what was said, so it counts as
// content; its kind does not.
func (s *spans) end(span trace.Span, err error) {
	if err != nil {
		text := kindOf(err)
		span.SetAttributes(attribute.String("error.type", text))
		if s.content {
			text = clip(err.Error(), 1000)
		}
		span.SetStatus(codes.Error, text)
	}
	span.End()
}

// modelAttributes takes "provider:model" apart.
func modelAttributes(name string) []attribute.KeyValue {
	provider, id, ok := strings.Cut(name, ":")
	if !ok {
		id = name
	}
	if provider == "google" {
		provider = "gcp.gemini" // the conventions' name for it
	}
	return []attribute.KeyValue{
		attribute.String("gen_ai.provider.name", provider),
		attribute.String("gen_ai.request.model", id),
	}
}

func usageAttributes(u model.Usage) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.Int64("gen_ai.usage.input_tokens", u.Input),
		attribute.Int64("gen_ai.usage.output_tokens", u.Output),
	}
}

func encoded(messages []model.Message, prompt string) string {
	if prompt != "" {
		messages = append(messages[:len(messages):len(messages)], model.Message{Kind: model.KindRequest, Parts: []model.Part{model.UserText(prompt)}})
	}
	data, err := json.Marshal(messages)
	if err != nil {
		return ""
	}
	return clip(string(data), maxAttribute)
}
