package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/hutch-sandbox/hutch/agent/model"
)

// Tool is something that a model can call. NewTool makes one from a Go
// function. A Tool is a capability by itself.
type Tool struct {
	Name        string          // 1 to 64 letters, digits, _ and -; unique in an agent
	Description string          // for the model: what it does, when to use it
	Schema      json.RawMessage // JSON Schema of the arguments, an object; empty means no arguments

	// Call runs the tool with arguments that fit the schema. It may be called
	// at the same time for several calls of one response. See the package
	// comment for what its errors mean.
	Call func(ctx context.Context, call *Call, args json.RawMessage) (ToolOutput, error)

	// Retries is how often in a row the model may be asked to try again; the
	// response after that ends the run. 0 means Config.Retries; negative means
	// not once.
	Retries int
	// Sequential keeps the tool from running at the same time as others of
	// the same response.
	Sequential bool
	// Timeout ends a call, as a failure that the model is told of; 0 means
	// never.
	Timeout time.Duration
}

// ToolOutput is what a tool returns to the model.
type ToolOutput struct {
	Text  string
	Files []model.File // images and documents to look at, where the model can
}

// Call is a tool call while it runs.
type Call struct {
	*Run

	CallID string          // the model's id of the call
	Tool   string          // the tool's name
	Args   json.RawMessage // the arguments
	// Attempt counts how often in a row the model was asked to try again
	// before this call; the first has 0.
	Attempt int
	// Approved says that somebody outside said yes to this call, which an
	// earlier run deferred.
	Approved bool
}

// ToolOption changes a Tool that NewTool makes.
type ToolOption func(*Tool)

// Retries sets Tool.Retries.
func Retries(n int) ToolOption { return func(t *Tool) { t.Retries = n } }

// Sequential sets Tool.Sequential.
func Sequential() ToolOption { return func(t *Tool) { t.Sequential = true } }

// Timeout sets Tool.Timeout.
func Timeout(d time.Duration) ToolOption { return func(t *Tool) { t.Timeout = d } }

// NewTool makes a tool from a function. A is a struct: its fields are the
// arguments, with their names from json tags and their descriptions from
// jsonschema tags; a field with omitempty or omitzero, or of pointer type, may
// be left out by the model.
//
//	type args struct {
//		Code    string `json:"code" jsonschema:"the program"`
//		Seconds int    `json:"seconds,omitempty" jsonschema:"time limit; 10 when left out"`
//	}
//
// R is a string or a ToolOutput, which the model gets as it is, or anything
// else, which it gets as JSON. NewTool panics when a schema cannot be made
// from A, or the name is no tool name.
func NewTool[A, R any](name, description string, fn func(ctx context.Context, call *Call, args A) (R, error), opts ...ToolOption) Tool {
	if !toolName.MatchString(name) {
		panic(fmt.Sprintf("agent.NewTool: %q is no name for a tool: use 1 to 64 letters, digits, _ and -", name))
	}
	schema, err := schemaFor[A]()
	if err != nil {
		panic(fmt.Sprintf("agent.NewTool: tool %s: %v", name, err))
	}
	t := Tool{Name: name, Description: strings.TrimSpace(description), Schema: schema}
	t.Call = func(ctx context.Context, call *Call, raw json.RawMessage) (ToolOutput, error) {
		var args A
		if err := json.Unmarshal(raw, &args); err != nil {
			return ToolOutput{}, Retryf("the arguments do not fit: %w", err)
		}
		res, err := fn(ctx, call, args)
		if err != nil {
			return ToolOutput{}, err
		}
		switch v := any(res).(type) {
		case string:
			return ToolOutput{Text: v}, nil
		case ToolOutput:
			return v, nil
		}
		data, err := compact(res)
		if err != nil {
			return ToolOutput{}, fmt.Errorf("tool %s: its result is no JSON: %w", name, err)
		}
		return ToolOutput{Text: string(data)}, nil
	}
	for _, o := range opts {
		o(&t)
	}
	return t
}

var toolName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func compact(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// schemaFor makes the schema of a struct. Pointers and slices may be nil in Go
// and hence null in JSON; a schema that says so confuses models and is refused
// by some providers, so it says only what the field is.
func schemaFor[A any]() (json.RawMessage, error) {
	schema, err := jsonschema.For[A](nil)
	if err != nil {
		return nil, err
	}
	if schema.Type != "object" {
		return nil, fmt.Errorf("arguments are a struct or a map, and %s is not", reflect.TypeFor[A]())
	}
	withoutNull(schema)
	optionalPointers(reflect.TypeFor[A](), schema)
	return json.Marshal(schema)
}

func withoutNull(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if n := len(s.Types); n > 0 {
		s.Types = slices.DeleteFunc(s.Types, func(t string) bool { return t == "null" })
		if len(s.Types) == 1 {
			s.Type, s.Types = s.Types[0], nil
		}
	}
	for _, p := range s.Properties {
		withoutNull(p)
	}
	withoutNull(s.Items)
	withoutNull(s.AdditionalProperties)
}

// optionalPointers takes pointer fields off the list of required properties.
func optionalPointers(t reflect.Type, s *jsonschema.Schema) {
	if t.Kind() != reflect.Struct {
		return
	}
	for f := range t.Fields() {
		if f.Type.Kind() != reflect.Pointer {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			name = f.Name
		}
		s.Required = slices.DeleteFunc(s.Required, func(r string) bool { return r == name })
	}
}

// boundTool is a tool of one run, with its schema ready for use.
type boundTool struct {
	Tool
	resolved *jsonschema.Resolved
	required map[string]bool
	output   bool // the way to give the final answer
}

func bind(t Tool) (*boundTool, error) {
	if !toolName.MatchString(t.Name) {
		return nil, usageErrorf("%q is no name for a tool: use 1 to 64 letters, digits, _ and -", t.Name)
	}
	if t.Call == nil {
		return nil, usageErrorf("tool %s has no function", t.Name)
	}
	if len(t.Schema) == 0 {
		t.Schema = json.RawMessage(`{"type":"object","properties":{}}`)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(t.Schema, &s); err != nil {
		return nil, usageErrorf("tool %s: its schema: %w", t.Name, err)
	}
	if s.Type != "object" {
		return nil, usageErrorf("tool %s: its schema is not of an object", t.Name)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		return nil, usageErrorf("tool %s: its schema: %w", t.Name, err)
	}
	b := &boundTool{Tool: t, resolved: resolved, required: map[string]bool{}}
	for _, r := range s.Required {
		b.required[r] = true
	}
	return b, nil
}

// validate turns the model's text into arguments that fit the schema. Its
// errors are for the model.
func (t *boundTool) validate(raw string) (json.RawMessage, error) {
	if strings.TrimSpace(raw) == "" {
		raw = "{}" // what providers send for a tool without arguments
	}
	args, err := parseObject(raw)
	if err != nil {
		return nil, Retryf("the arguments are not valid JSON: %w", err)
	}
	var left []string
	for name, v := range args {
		if v == nil && !t.required[name] {
			delete(args, name) // some models write null for what they leave out
			left = append(left, name)
		}
	}
	if err := t.resolved.Validate(args); err != nil {
		return nil, Retryf("the arguments do not fit the schema of %s: %w", t.Name, err)
	}
	// The tool gets what the model wrote: numbers here are not exact.
	if left == nil {
		return json.RawMessage(raw), nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(raw), &fields); err != nil {
		return nil, err
	}
	for _, name := range left {
		delete(fields, name)
	}
	return json.Marshal(fields)
}

func parseObject(raw string) (map[string]any, error) {
	dec := json.NewDecoder(strings.NewReader(raw))
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the end of the object")
	}
	args, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("they are not an object")
	}
	return args, nil
}
