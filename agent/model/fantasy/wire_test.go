package fantasy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/agent/model/fantasy"
)

// reply is what a fake provider answers to one request.
type reply struct {
	status int // 0 means 200
	header map[string]string
	body   string // not a stream

	thinking string
	text     string
	calls    [][2]string // tool, arguments as they are
	finish   string      // in the wire's words; empty means what fits
	cut      bool        // the connection breaks before the end
	midError bool        // the stream ends with an error event
}

// server is a fake provider: it speaks one wire format and plays replies.
type server struct {
	*httptest.Server
	wire wire

	mu       sync.Mutex
	replies  []reply
	requests []map[string]any
	headers  []http.Header
	paths    []string
}

// wire is a provider's format.
type wire struct {
	name   string // the provider's
	model  string
	key    func(http.Header) string
	stream func(w io.Writer, r reply)
	error  func(message string) string
}

func serve(t *testing.T, w wire, replies ...reply) *server {
	t.Helper()
	s := &server{wire: w, replies: replies}
	s.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Errorf("the request's body: %v", err)
		}
		var v map[string]any
		if err := json.Unmarshal(body, &v); err != nil {
			t.Errorf("the request is no JSON: %v", err)
		}
		s.mu.Lock()
		s.requests, s.headers, s.paths = append(s.requests, v), append(s.headers, req.Header.Clone()), append(s.paths, req.URL.Path)
		n := len(s.requests) - 1
		s.mu.Unlock()
		if n >= len(s.replies) {
			http.Error(rw, `{"error":{"message":"no more replies"}}`, http.StatusTeapot)
			return
		}
		r := s.replies[n]
		for k, v := range r.header {
			rw.Header().Set(k, v)
		}
		if r.status != 0 {
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(r.status)
			io.WriteString(rw, strings.Replace(r.body, `"code":400`, fmt.Sprintf(`"code":%d`, r.status), 1))
			return
		}
		rw.Header().Set("Content-Type", "text/event-stream")
		w.stream(rw, r)
		if r.cut {
			rw.(http.Flusher).Flush()
			panic(http.ErrAbortHandler) // closes the connection in the middle
		}
	}))
	t.Cleanup(s.Close)
	return s
}

const testKey = "sk-secret-0123456789"

func (s *server) open(t *testing.T) *fantasy.Model {
	t.Helper()
	m, err := fantasy.New(s.wire.name+":"+s.wire.model, fantasy.Options{
		APIKey: testKey, BaseURL: s.URL, Delay: time.Millisecond, Attempts: 3,
		Getenv: func(string) string { return "" },
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func event(w io.Writer, name string, data any) {
	text, ok := data.(string)
	if !ok {
		raw, err := json.Marshal(data)
		if err != nil {
			panic(err)
		}
		text = string(raw)
	}
	if name != "" {
		fmt.Fprintf(w, "event: %s\n", name)
	}
	fmt.Fprintf(w, "data: %s\n\n", text)
}

type object = map[string]any

// halves splits a text in two pieces, as streams do anywhere.
func halves(s string) []string {
	if len(s) < 2 {
		return []string{s}
	}
	return []string{s[:len(s)/2], s[len(s)/2:]}
}

func bearer(h http.Header) string { return strings.TrimPrefix(h.Get("Authorization"), "Bearer ") }

func wires() []wire {
	chat := func(name, model string) wire {
		return wire{name: name, model: model, key: bearer, stream: chatStream, error: func(m string) string {
			return fmt.Sprintf(`{"error":{"message":%q,"type":"invalid_request_error","code":null,"param":null}}`, m)
		}}
	}
	return []wire{
		{name: "anthropic", model: "claude-opus-5-5", key: func(h http.Header) string { return h.Get("X-Api-Key") }, stream: anthropicStream,
			error: func(m string) string {
				return fmt.Sprintf(`{"type":"error","error":{"type":"invalid_request_error","message":%q}}`, m)
			}},
		chat("openai-chat", "gpt-4o"),
		{name: "openai", model: "gpt-5", key: bearer, stream: responsesStream, error: func(m string) string {
			return fmt.Sprintf(`{"error":{"message":%q,"type":"invalid_request_error","code":null,"param":null}}`, m)
		}},
		{name: "google", model: "gemini-3-pro", key: func(h http.Header) string { return h.Get("X-Goog-Api-Key") }, stream: googleStream,
			error: func(m string) string {
				return fmt.Sprintf(`{"error":{"code":400,"message":%q,"status":"INVALID_ARGUMENT"}}`, m)
			}},
		chat("openrouter", "anthropic/claude-opus-5-5"),
		chat("openai-compatible", "local"),
		chat("ollama", "qwen"),
	}
}

func anthropicStream(w io.Writer, r reply) {
	event(w, "message_start", object{"type": "message_start", "message": object{
		"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": []any{}, "stop_reason": nil,
		"usage": object{"input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 1}}})
	i := 0
	block := func(start object, deltas ...object) {
		event(w, "content_block_start", object{"type": "content_block_start", "index": i, "content_block": start})
		for _, d := range deltas {
			event(w, "content_block_delta", object{"type": "content_block_delta", "index": i, "delta": d})
		}
		event(w, "content_block_stop", object{"type": "content_block_stop", "index": i})
		i++
	}
	if r.thinking != "" {
		block(object{"type": "thinking", "thinking": "", "signature": ""},
			object{"type": "thinking_delta", "thinking": r.thinking}, object{"type": "signature_delta", "signature": "c2ln"})
	}
	if r.text != "" {
		var deltas []object
		for _, h := range halves(r.text) {
			deltas = append(deltas, object{"type": "text_delta", "text": h})
		}
		block(object{"type": "text", "text": ""}, deltas...)
	}
	for n, c := range r.calls {
		var deltas []object
		for _, h := range halves(c[1]) {
			deltas = append(deltas, object{"type": "input_json_delta", "partial_json": h})
		}
		block(object{"type": "tool_use", "id": fmt.Sprintf("toolu_%d", n), "name": c[0], "input": object{}}, deltas...)
	}
	if r.cut {
		return
	}
	if r.midError {
		event(w, "error", object{"type": "error", "error": object{"type": "overloaded_error", "message": "Overloaded"}})
		return
	}
	stop := "end_turn"
	if len(r.calls) > 0 {
		stop = "tool_use"
	}
	if r.finish != "" {
		stop = r.finish
	}
	event(w, "message_delta", object{"type": "message_delta", "delta": object{"stop_reason": stop}, "usage": object{"output_tokens": 7}})
	event(w, "message_stop", object{"type": "message_stop"})
}

func chatStream(w io.Writer, r reply) {
	chunk := func(delta object, finish any) {
		event(w, "", object{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
			"choices": []any{object{"index": 0, "delta": delta, "finish_reason": finish}}})
	}
	chunk(object{"role": "assistant", "content": ""}, nil)
	if r.text != "" {
		for _, h := range halves(r.text) {
			chunk(object{"content": h}, nil)
		}
	}
	for n, c := range r.calls {
		chunk(object{"tool_calls": []any{object{"index": n, "id": fmt.Sprintf("call_%d", n), "type": "function",
			"function": object{"name": c[0], "arguments": ""}}}}, nil)
		for _, h := range halves(c[1]) {
			chunk(object{"tool_calls": []any{object{"index": n, "function": object{"arguments": h}}}}, nil)
		}
	}
	if r.cut {
		return
	}
	if r.midError {
		event(w, "", object{"error": object{"type": "server_error", "message": "Overloaded", "code": "server_error"}})
		return
	}
	finish := "stop"
	if len(r.calls) > 0 {
		finish = "tool_calls"
	}
	if r.finish != "" {
		finish = r.finish
	}
	chunk(object{}, finish)
	event(w, "", object{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []any{},
		"usage": object{"prompt_tokens": 130, "completion_tokens": 7, "total_tokens": 137,
			"prompt_tokens_details": object{"cached_tokens": 100}, "completion_tokens_details": object{"reasoning_tokens": 2}}})
	event(w, "", "[DONE]")
}

func responsesStream(w io.Writer, r reply) {
	seq := 0
	send := func(kind string, fields object) {
		fields["type"], fields["sequence_number"] = kind, seq
		seq++
		event(w, kind, fields)
	}
	response := func(status string) object {
		return object{"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5", "status": status, "output": []any{},
			"usage": object{"input_tokens": 130, "output_tokens": 7, "total_tokens": 137,
				"input_tokens_details": object{"cached_tokens": 100}, "output_tokens_details": object{"reasoning_tokens": 2}}}
	}
	send("response.created", object{"response": response("in_progress")})
	index := 0
	if r.thinking != "" {
		item := object{"id": "rs_1", "type": "reasoning", "summary": []any{}, "encrypted_content": "c2VjcmV0"}
		send("response.output_item.added", object{"output_index": index, "item": item})
		send("response.reasoning_summary_part.added", object{"item_id": "rs_1", "output_index": index, "summary_index": 0, "part": object{"type": "summary_text", "text": ""}})
		send("response.reasoning_summary_text.delta", object{"item_id": "rs_1", "output_index": index, "summary_index": 0, "delta": r.thinking})
		item["summary"] = []any{object{"type": "summary_text", "text": r.thinking}}
		send("response.output_item.done", object{"output_index": index, "item": item})
		index++
	}
	if r.text != "" {
		item := object{"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []any{}}
		send("response.output_item.added", object{"output_index": index, "item": item})
		for _, h := range halves(r.text) {
			send("response.output_text.delta", object{"item_id": "msg_1", "output_index": index, "content_index": 0, "delta": h})
		}
		item["status"] = "completed"
		item["content"] = []any{object{"type": "output_text", "text": r.text, "annotations": []any{}}}
		send("response.output_item.done", object{"output_index": index, "item": item})
		index++
	}
	for n, c := range r.calls {
		item := object{"id": fmt.Sprintf("fc_%d", n), "type": "function_call", "call_id": fmt.Sprintf("call_%d", n), "name": c[0], "arguments": "", "status": "in_progress"}
		send("response.output_item.added", object{"output_index": index, "item": item})
		for _, h := range halves(c[1]) {
			send("response.function_call_arguments.delta", object{"item_id": item["id"], "output_index": index, "delta": h})
		}
		item["arguments"], item["status"] = c[1], "completed"
		send("response.output_item.done", object{"output_index": index, "item": item})
		index++
	}
	if r.cut {
		return
	}
	if r.midError {
		send("error", object{"code": "server_error", "message": "Overloaded", "param": nil})
		return
	}
	if r.finish != "" {
		res := response("incomplete")
		res["incomplete_details"] = object{"reason": r.finish}
		send("response.incomplete", object{"response": res})
		return
	}
	send("response.completed", object{"response": response("completed")})
}

func googleStream(w io.Writer, r reply) {
	chunk := func(parts []any, finish string) {
		candidate := object{"index": 0, "content": object{"role": "model", "parts": parts}}
		out := object{"candidates": []any{candidate}, "responseId": "r1", "modelVersion": "gemini"}
		if finish != "" {
			candidate["finishReason"] = finish
			out["usageMetadata"] = object{"promptTokenCount": 130, "cachedContentTokenCount": 100, "candidatesTokenCount": 7, "totalTokenCount": 137}
		}
		event(w, "", out)
	}
	if r.thinking != "" {
		chunk([]any{object{"text": r.thinking, "thought": true}}, "")
	}
	if r.text != "" {
		for i, h := range halves(r.text) {
			part := object{"text": h}
			if i == 0 && r.thinking != "" {
				part["thoughtSignature"] = "c2ln" // on what comes after the thought
			}
			chunk([]any{part}, "")
		}
	}
	for _, c := range r.calls {
		chunk([]any{object{"functionCall": object{"name": c[0], "args": json.RawMessage(c[1])}}}, "")
	}
	if r.cut {
		return
	}
	if r.midError {
		fmt.Fprint(w, `data: {"error":{"code":503,"message":"Overloaded","status":"UNAVAILABLE"}}`+"\n\n")
		return
	}
	finish := "STOP"
	if r.finish != "" {
		finish = r.finish
	}
	chunk([]any{}, finish)
}
