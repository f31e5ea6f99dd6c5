package agent

import (
	"time"

	"github.com/hutch-sandbox/hutch/agent/model"
)

// Event is something that happens during a run, as Stream yields it. Those of
// this package are below; capabilities add their own.
type Event interface {
	// EventName names the kind of event, for logs and switches over JSON.
	EventName() string
}

// The events of the loop itself.
type (
	// Started is the first event of a run.
	Started struct {
		Run   string // the run's id
		Agent string // the agent's name; may be empty
		Model string // the model's name
	}
	// TextDelta is more of the text that the model is saying.
	TextDelta struct{ Text string }
	// ThinkingDelta is more of the model's thinking.
	ThinkingDelta struct{ Text string }
	// CallDelta is more of a tool call that the model is writing.
	CallDelta struct{ ID, Name, Args string }
	// Restarted says that the deltas of the current response are void: the
	// request is sent again.
	Restarted struct{ Reason string }
	// Responded is a whole response.
	Responded struct{ Message model.Message }
	// ToolStarted is a tool call that begins to run.
	ToolStarted struct{ Call model.ToolCall }
	// ToolFinished is a tool call that has ended. Part is the
	// model.ToolReturn or model.Retry that the model will see.
	ToolFinished struct {
		Call model.ToolCall
		Part model.Part
		Took time.Duration
	}
	// Nested is an event of a run within this one, a sub-agent's.
	Nested struct {
		Run   string // the inner run's id
		Agent string // its agent's name
		Call  string // the id of the tool call that started it
		Event Event
	}
	// Finished is the last event. With an error, the result has what there is.
	Finished struct{ Result *Result }
)

// EventName returns "started".
func (Started) EventName() string { return "started" }

// EventName returns "text".
func (TextDelta) EventName() string { return "text" }

// EventName returns "thinking".
func (ThinkingDelta) EventName() string { return "thinking" }

// EventName returns "call".
func (CallDelta) EventName() string { return "call" }

// EventName returns "restarted".
func (Restarted) EventName() string { return "restarted" }

// EventName returns "responded".
func (Responded) EventName() string { return "responded" }

// EventName returns "tool_started".
func (ToolStarted) EventName() string { return "tool_started" }

// EventName returns "tool_finished".
func (ToolFinished) EventName() string { return "tool_finished" }

// EventName returns "nested".
func (Nested) EventName() string { return "nested" }

// EventName returns "finished".
func (Finished) EventName() string { return "finished" }
