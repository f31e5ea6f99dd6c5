package agent_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
)

func TestSpans(t *testing.T) {
	for _, content := range []bool{false, true} {
		recorder := tracetest.NewSpanRecorder()
		provider := trace.NewTracerProvider(trace.WithSpanProcessor(recorder))
		fail := agent.NewTool("fail", "", func(context.Context, *agent.Call, struct{}) (string, error) {
			return "", agent.Failedf("the password is hunter2")
		})
		first := scripted.Call("c1", "note", `{"text":"hunter2"}`)
		first.Usage.Input, first.Usage.Output, first.ID = 7, 3, "resp"
		a := agent.New(scripted.Sequence(first, scripted.Call("c2", "fail", "{}"), scripted.Say("hunter2")),
			newPlaces("a"), note(), fail, agent.Config{Name: "scribe", Tracer: provider, TraceContent: content}, agent.Instructions("hunter2"))
		if _, err := a.Run(t.Context(), "hunter2"); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		var all strings.Builder
		for _, s := range recorder.Ended() {
			var attrs []string
			for _, kv := range s.Attributes() {
				attrs = append(attrs, fmt.Sprintf("%s=%s", kv.Key, kv.Value.String()))
			}
			if _, twice := got[s.Name()]; !twice {
				got[s.Name()] = strings.Join(attrs, " ") + " "
			}
			fmt.Fprintln(&all, s.Name(), attrs, s.Status(), s.Events())
		}
		for span, wants := range map[string][]string{
			"invoke_agent scribe": {"gen_ai.operation.name=invoke_agent ", "gen_ai.agent.name=scribe ", "hutch.workspace.provider=a ", "hutch.workspace.id=id-a-1 ", "gen_ai.usage.input_tokens=7 "},
			"chat func":           {"gen_ai.operation.name=chat ", "gen_ai.provider.name=scripted ", "gen_ai.request.model=func ", "gen_ai.usage.output_tokens=3 ", `gen_ai.response.finish_reasons=["tool_calls"] `, "gen_ai.response.id=resp "},
			"execute_tool note":   {"gen_ai.operation.name=execute_tool ", "gen_ai.tool.name=note ", "gen_ai.tool.call.id=c1 "},
			"execute_tool fail":   {"error.type=failed ", "hutch.tool.outcome=failed "},
		} {
			for _, want := range wants {
				if !strings.Contains(got[span], want) {
					t.Errorf("span %s has no %s: %s", span, want, got[span])
				}
			}
		}
		if strings.Contains(all.String(), "hunter2") != content {
			t.Errorf("content %v, and the spans say:\n%s", content, all.String())
		}
	}
}
