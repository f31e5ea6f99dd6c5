package scripted

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/hutch-sandbox/hutch/agent/model"
)

// Tester is a model that tries an agent out: it calls every tool once, all in
// one response, with the simplest arguments that fit each tool's schema, and
// then answers. The zero value works. Set the fields before the first use.
type Tester struct {
	// Tools are the names of the tools to call; nil means all.
	Tools []string
	// Args are arguments, as JSON, for tools that need sensible ones, by name.
	Args map[string]string
	// Text is the final answer; empty means a JSON object of the tools' names
	// and what they returned. With an output tool it is not used.
	Text string
	// Output are the arguments of the output tool, as JSON; empty means the
	// simplest that fit.
	Output string

	mu   sync.Mutex
	last *model.Request
}

// Name returns "scripted:test".
func (t *Tester) Name() string { return "scripted:test" }

// LastRequest returns the request that was made last, nil before the first.
// It is safe to call at any time.
func (t *Tester) LastRequest() *model.Request {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// Generate answers as the type says.
func (t *Tester) Generate(ctx context.Context, req *model.Request) (*model.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	keep := *req
	keep.Messages = slices.Clone(req.Messages)
	t.mu.Lock()
	t.last = &keep
	t.mu.Unlock()

	called, results := t.sofar(req.Messages)
	var calls []model.ToolCall
	var output *model.Tool
	for i, tool := range req.Tools {
		if tool.Output {
			output = &req.Tools[i]
			continue
		}
		if called[tool.Name] || t.Tools != nil && !slices.Contains(t.Tools, tool.Name) {
			continue
		}
		args, ok := t.Args[tool.Name]
		if !ok {
			var err error
			if args, err = Arguments(tool.Schema); err != nil {
				return nil, fmt.Errorf("scripted:test: tool %s: %w", tool.Name, err)
			}
		}
		calls = append(calls, model.ToolCall{ID: "call_" + tool.Name, Name: tool.Name, Args: args})
	}
	if len(calls) > 0 {
		return Calls(calls...), nil
	}
	if output != nil {
		args := t.Output
		if args == "" {
			var err error
			if args, err = Arguments(output.Schema); err != nil {
				return nil, fmt.Errorf("scripted:test: tool %s: %w", output.Name, err)
			}
		}
		return Call("call_"+output.Name, output.Name, args), nil
	}
	if t.Text != "" {
		return Say(t.Text), nil
	}
	data, err := json.Marshal(results)
	if err != nil {
		return nil, err
	}
	return Say(string(data)), nil
}

// sofar says which tools were called since the last thing the user said, and
// what they returned.
func (t *Tester) sofar(messages []model.Message) (called map[string]bool, results map[string]string) {
	called, results = map[string]bool{}, map[string]string{}
	for _, m := range messages {
		for _, p := range m.Parts {
			switch p := p.(type) {
			case model.User:
				clear(called)
				clear(results)
			case model.ToolCall:
				called[p.Name] = true
			case model.ToolReturn:
				results[p.Name] = p.Text
			case model.Retry:
				if p.Name != "" {
					results[p.Name] = p.Text
				}
			}
		}
	}
	return called, results
}

// Arguments returns the simplest JSON object that fits a schema: the required
// properties only, with defaults, constants and first choices where the schema
// has them.
func Arguments(schema json.RawMessage) (string, error) {
	var root map[string]any
	if err := json.Unmarshal(schema, &root); err != nil {
		return "", fmt.Errorf("schema: %w", err)
	}
	v := example(root, root, 0)
	if _, ok := v.(map[string]any); !ok {
		v = map[string]any{}
	}
	data, err := json.Marshal(v)
	return string(data), err
}

// example makes a value for a schema. Depth is bounded, since schemas may
// refer to themselves.
func example(s, root map[string]any, depth int) any {
	if depth > 20 {
		return nil
	}
	if ref, ok := s["$ref"].(string); ok {
		if target := resolve(ref, root); target != nil {
			return example(target, root, depth+1)
		}
	}
	if v, ok := s["const"]; ok {
		return v
	}
	if v, ok := s["default"]; ok {
		return v
	}
	for _, key := range []string{"enum", "examples"} {
		if list, ok := s[key].([]any); ok && len(list) > 0 {
			return list[0]
		}
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		if list, ok := s[key].([]any); ok && len(list) > 0 {
			if first, ok := list[0].(map[string]any); ok {
				return example(first, root, depth+1)
			}
		}
	}
	switch typeOf(s) {
	case "object":
		out := map[string]any{}
		props, _ := s["properties"].(map[string]any)
		required, _ := s["required"].([]any)
		for _, r := range required {
			name, _ := r.(string)
			p, _ := props[name].(map[string]any)
			out[name] = example(p, root, depth+1)
		}
		return out
	case "array":
		n := int(number(s, "minItems", 0))
		out := make([]any, 0, min(n, 100))
		item, _ := s["items"].(map[string]any)
		for range min(n, 100) {
			out = append(out, example(item, root, depth+1))
		}
		return out
	case "integer", "number":
		low := number(s, "minimum", 0)
		if x := number(s, "exclusiveMinimum", -1); x >= low {
			low = x + 1
		}
		return min(max(low, 0), number(s, "maximum", max(low, 0)))
	case "boolean":
		return false
	case "null":
		return nil
	}
	text := "a"
	if n := int(number(s, "minLength", 1)); n > 1 {
		text = strings.Repeat("a", min(n, 10_000))
	}
	return text
}

func typeOf(s map[string]any) string {
	switch t := s["type"].(type) {
	case string:
		return t
	case []any:
		for _, v := range t {
			if name, _ := v.(string); name != "null" {
				return name
			}
		}
	}
	if _, ok := s["properties"]; ok {
		return "object"
	}
	return "string"
}

func number(s map[string]any, key string, otherwise float64) float64 {
	if v, ok := s[key].(float64); ok {
		return v
	}
	return otherwise
}

func resolve(ref string, root map[string]any) map[string]any {
	path, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil
	}
	at := root
	for _, key := range strings.Split(strings.TrimPrefix(path, "/"), "/") {
		if key == "" {
			continue
		}
		next, ok := at[key].(map[string]any)
		if !ok {
			return nil
		}
		at = next
	}
	return at
}
