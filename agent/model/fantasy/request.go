package fantasy

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	llm "charm.land/fantasy"
	"charm.land/fantasy/providers/anthropic"
	"charm.land/fantasy/providers/google"
	"charm.land/fantasy/providers/openai"
	"charm.land/fantasy/providers/openaicompat"
	"charm.land/fantasy/providers/openrouter"

	"github.com/hutch-sandbox/hutch/agent/model"
)

// call turns a request into the layer below's form.
func (m *Model) call(req *model.Request) (llm.Call, error) {
	prompt := m.prompt(req)
	if len(prompt) == 0 {
		return llm.Call{}, &model.Error{Model: m.name, Message: "the conversation is empty"}
	}
	call := llm.Call{Prompt: prompt}
	for _, t := range req.Tools {
		schema, err := schemaMap(t.Schema)
		if err != nil {
			return llm.Call{}, fmt.Errorf("tool %s: schema: %w", t.Name, err)
		}
		call.Tools = append(call.Tools, llm.FunctionTool{Name: t.Name, Description: t.Description, InputSchema: schema})
	}
	if n := len(call.Tools); n > 0 {
		if c := choice(req.Choice); c != nil {
			call.ToolChoice = c
		}
		if m.caches(req) {
			last := call.Tools[n-1].(llm.FunctionTool)
			last.ProviderOptions = cacheHere()
			call.Tools[n-1] = last
		}
	}
	s := req.Settings
	if s.MaxTokens > 0 {
		call.MaxOutputTokens = &s.MaxTokens
	} else if m.proto == protoAnthropic {
		n := anthropicMax(m.id) // this provider has no default of its own
		call.MaxOutputTokens = &n
	}
	call.Temperature, call.TopP, call.TopK = s.Temperature, s.TopP, s.TopK
	if s.Effort != "" {
		call.ProviderOptions = m.effort(s.Effort)
	}
	return call, nil
}

// anthropicMax is the longest response to ask for: what all current models can
// do, and what the old ones could.
func anthropicMax(id string) int64 {
	switch {
	case strings.Contains(id, "claude-3-5"), strings.Contains(id, "claude-3-7"):
		return 8192
	case strings.Contains(id, "claude-3"), strings.Contains(id, "claude-2"):
		return 4096
	}
	return 32_000
}

func choice(c model.Choice) *llm.ToolChoice {
	var out llm.ToolChoice
	switch c.Mode {
	case model.ChooseRequired:
		out = llm.ToolChoiceRequired
	case model.ChooseNone:
		out = llm.ToolChoiceNone
	case model.ChooseTool:
		out = llm.SpecificToolChoice(c.Name)
	default:
		return nil
	}
	return &out
}

func (m *Model) effort(level string) llm.ProviderOptions {
	switch m.proto {
	case protoAnthropic:
		e := anthropic.Effort(level)
		return anthropic.NewProviderOptions(&anthropic.ProviderOptions{Effort: &e})
	case protoChat:
		e := openai.ReasoningEffort(level)
		return openai.NewProviderOptions(&openai.ProviderOptions{ReasoningEffort: &e})
	case protoResponses:
		e := openai.ReasoningEffort(level)
		return openai.NewResponsesProviderOptions(&openai.ResponsesProviderOptions{ReasoningEffort: &e})
	case protoGoogle:
		t := strings.ToUpper(level)
		return llm.ProviderOptions{google.Name: &google.ProviderOptions{ThinkingConfig: &google.ThinkingConfig{ThinkingLevel: &t}}}
	case protoOpenRouter:
		e := openrouter.ReasoningEffort(level)
		return openrouter.NewProviderOptions(&openrouter.ProviderOptions{Reasoning: &openrouter.ReasoningOptions{Effort: &e}})
	}
	e := openai.ReasoningEffort(level)
	return openaicompat.NewProviderOptions(&openaicompat.ProviderOptions{ReasoningEffort: &e})
}

// caches reports whether the provider has to be told what to cache.
func (m *Model) caches(req *model.Request) bool {
	return !req.Settings.NoCache && (m.proto == protoAnthropic || m.proto == protoOpenRouter && strings.Contains(m.id, "claude"))
}

func cacheHere() llm.ProviderOptions {
	return anthropic.NewProviderCacheControlOptions(&anthropic.ProviderCacheControlOptions{CacheControl: anthropic.CacheControl{Type: "ephemeral"}})
}

// prompt turns the conversation into messages. The prompt is marked for
// caching at its fixed part (tools and instructions) and at its last two
// messages: the one before last was the last of the request before, so it is
// found in the cache, and the last is for the request to come. That makes four
// marks, which is what Anthropic allows.
func (m *Model) prompt(req *model.Request) llm.Prompt {
	var out llm.Prompt
	system := req.Instructions
	for _, msg := range req.Messages {
		for _, p := range msg.Parts {
			if s, ok := p.(model.System); ok && s.Text != "" {
				system = strings.TrimSpace(s.Text + "\n\n" + system)
			}
		}
	}
	if system != "" {
		msg := llm.NewSystemMessage(system)
		if m.caches(req) {
			msg.ProviderOptions = cacheHere()
		}
		out = append(out, msg)
	}
	first := len(out)
	add := func(role llm.MessageRole, parts []llm.MessagePart) {
		if len(parts) == 0 {
			return
		}
		if n := len(out) - 1; n >= first && out[n].Role == role {
			out[n].Content = append(out[n].Content, parts...)
			return
		}
		out = append(out, llm.Message{Role: role, Content: parts})
	}
	for _, msg := range req.Messages {
		if msg.Kind == model.KindResponse {
			add(llm.MessageRoleAssistant, assistant(msg.Parts))
			continue
		}
		// Results come before everything else: providers want them right after
		// the calls.
		results, rest := user(msg.Parts)
		add(llm.MessageRoleTool, results)
		add(llm.MessageRoleUser, rest)
	}
	if m.caches(req) {
		for n, i := 0, len(out)-1; i >= first && n < 2; i-- {
			if out[i].Role != llm.MessageRoleAssistant {
				out[i].ProviderOptions = cacheHere()
				n++
			}
		}
	}
	return out
}

func assistant(parts []model.Part) []llm.MessagePart {
	var out []llm.MessagePart
	for _, p := range parts {
		switch p := p.(type) {
		case model.Text:
			if strings.TrimSpace(p.Text) != "" { // an empty text block is refused
				out = append(out, llm.TextPart{Text: p.Text, ProviderOptions: options(p.Provider)})
			}
		case model.Thinking:
			// Without its provider's data, thinking cannot be sent back.
			if opts := options(p.Provider); opts != nil {
				out = append(out, llm.ReasoningPart{Text: p.Text, ProviderOptions: opts})
			}
		case model.ToolCall:
			out = append(out, llm.ToolCallPart{ToolCallID: p.ID, ToolName: p.Name, Input: object(p.Args), ProviderOptions: options(p.Provider)})
		case model.File:
			out = append(out, llm.FilePart{Filename: p.Name, Data: p.Data, MediaType: p.MediaType, ProviderOptions: options(p.Provider)})
		}
	}
	return out
}

// object makes of a call's arguments what a provider takes back: an object.
// What the model wrote instead is kept in it, for the model to see.
func object(args string) string {
	if strings.TrimSpace(args) == "" {
		return "{}"
	}
	var v map[string]json.RawMessage
	if json.Unmarshal([]byte(args), &v) == nil && v != nil {
		return args
	}
	data, err := json.Marshal(map[string]string{"malformed_arguments": args})
	if err != nil {
		return "{}"
	}
	return string(data)
}

func user(parts []model.Part) (results, rest []llm.MessagePart) {
	for _, p := range parts {
		switch p := p.(type) {
		case model.User:
			for _, c := range p.Content {
				if c.File != nil {
					rest = append(rest, llm.FilePart{Filename: c.File.Name, Data: c.File.Data, MediaType: c.File.MediaType})
				} else if strings.TrimSpace(c.Text) != "" {
					rest = append(rest, llm.TextPart{Text: c.Text})
				}
			}
		case model.Notice:
			rest = append(rest, llm.TextPart{Text: "[notice] " + p.Text})
		case model.Retry:
			text := p.Text + "\n\nFix the error and try again."
			if p.ID == "" {
				rest = append(rest, llm.TextPart{Text: text})
				continue
			}
			results = append(results, failed(p.ID, text))
		case model.ToolReturn:
			text := p.Text
			if text == "" {
				text = "(no output)" // an empty result is refused by some
			}
			if p.Outcome != model.OK {
				results = append(results, failed(p.ID, text))
				continue
			}
			result := llm.ToolResultPart{ToolCallID: p.ID, Output: llm.ToolResultOutputContentText{Text: text}}
			for i, f := range p.Files {
				if i == 0 && strings.HasPrefix(f.MediaType, "image/") {
					result.Output = llm.ToolResultOutputContentMedia{Data: base64.StdEncoding.EncodeToString(f.Data), MediaType: f.MediaType, Text: p.Text}
					continue
				}
				// A result holds one picture; the others follow it.
				rest = append(rest, llm.FilePart{Filename: f.Name, Data: f.Data, MediaType: f.MediaType})
			}
			results = append(results, result)
		}
	}
	return results, rest
}

func failed(id, text string) llm.ToolResultPart {
	return llm.ToolResultPart{ToolCallID: id, Output: llm.ToolResultOutputContentError{Error: errors.New(text)}}
}

// options gives a provider its data back. Data of another provider, or that
// this version does not know, is left out.
func options(data model.ProviderData) llm.ProviderOptions {
	var out llm.ProviderOptions
	for name, raw := range data {
		v, err := llm.UnmarshalProviderOptions(map[string]json.RawMessage{name: raw})
		if err != nil || v[name] == nil {
			continue
		}
		if out == nil {
			out = llm.ProviderOptions{}
		}
		out[name] = v[name]
	}
	return out
}

// schemaMap decodes a schema into the types that the layer below looks for.
func schemaMap(raw json.RawMessage) (map[string]any, error) {
	if len(raw) == 0 {
		return map[string]any{"type": "object", "properties": map[string]any{}}, nil
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	if m["properties"] == nil {
		m["properties"] = map[string]any{}
	}
	if list, ok := m["required"].([]any); ok {
		names := make([]string, 0, len(list))
		for _, v := range list {
			if s, ok := v.(string); ok {
				names = append(names, s)
			}
		}
		m["required"] = names
	}
	return m, nil
}
