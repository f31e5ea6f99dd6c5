package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// OutputType says what Go value a run is to return. OutputOf makes one.
type OutputType struct {
	schema  json.RawMessage
	wrapped bool // T is no struct, so it is the field "value" of one
	decode  func(ctx context.Context, run *Run, raw json.RawMessage) (any, error)
}

// outputTool is the name of the tool through which the model answers.
const outputTool = "final_result"

// OutputOf returns the type of runs that return a T: the model gives its answer
// by calling a tool whose arguments are T, as in NewTool. Each validator may
// refuse the value: its error goes to the model, which tries again, as often
// in a row as Config.Retries says. An error that is a *FailedError, or is
// about a context or a lost workspace, ends the run instead. It panics when no schema can be
// made from T.
func OutputOf[T any](validators ...func(ctx context.Context, run *Run, v T) error) OutputType {
	var o OutputType
	schema, err := jsonschema.For[T](nil)
	if err != nil {
		panic(fmt.Sprintf("agent.OutputOf: %v", err))
	}
	withoutNull(schema)
	optionalPointers(reflect.TypeFor[T](), schema)
	if schema.Type != "object" {
		o.wrapped = true
		schema = &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{"value": schema}, Required: []string{"value"}}
	}
	if o.schema, err = json.Marshal(schema); err != nil {
		panic(fmt.Sprintf("agent.OutputOf: %v", err))
	}
	o.decode = func(ctx context.Context, run *Run, raw json.RawMessage) (any, error) {
		var v T
		if err := json.Unmarshal(raw, &v); err != nil {
			return nil, Retryf("the answer does not fit: %w", err)
		}
		for _, check := range validators {
			if err := check(ctx, run, v); err != nil {
				var retry *RetryError
				var failed *FailedError
				if errors.As(err, &retry) || errors.As(err, &failed) || ctx.Err() != nil || gone(err) {
					return nil, err
				}
				return nil, Retryf("the answer is not accepted: %w", err)
			}
		}
		return v, nil
	}
	return o
}

// WithOutput makes the run return a Go value.
func WithOutput(o OutputType) Option { return func(opt *options) { opt.output = &o } }

// ResultOf is the Result of a run that returns a T.
type ResultOf[T any] struct {
	*Result
	Value T // the zero T when calls were deferred
}

// RunAs is Agent.Run for a Go value: a string, a number, a struct, a slice.
//
//	res, err := agent.RunAs[[]City](ctx, a, "The three largest cities of Peru.")
//	for _, c := range res.Value { … }
func RunAs[T any](ctx context.Context, a *Agent, prompt string, opts ...Option) (*ResultOf[T], error) {
	// The type comes first, so that an option may bring one with validators.
	res, err := a.Run(ctx, prompt, append([]Option{WithOutput(OutputOf[T]())}, opts...)...)
	out := &ResultOf[T]{Result: res}
	if err != nil {
		return out, err
	}
	if res.Value == nil && len(res.Deferred) > 0 {
		return out, nil
	}
	v, ok := res.Value.(T)
	if !ok {
		return out, usageErrorf("the run returned a %T, not a %s: a hook or another WithOutput replaced it", res.Value, reflect.TypeFor[T]())
	}
	out.Value = v
	return out, nil
}

// output turns the arguments of the output tool into the value and its JSON.
func (o *OutputType) output(ctx context.Context, run *Run, args json.RawMessage) (any, string, error) {
	raw := args
	if o.wrapped {
		var box struct {
			Value json.RawMessage `json:"value"`
		}
		if err := json.Unmarshal(args, &box); err != nil {
			return nil, "", Retryf("the answer does not fit: %w", err)
		}
		raw = box.Value
	}
	v, err := o.decode(ctx, run, raw)
	return v, strings.TrimSpace(string(raw)), err
}
