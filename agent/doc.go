// Package agent runs a language model in a loop with tools: an agent.
//
//	a := agent.New(m, coder.New(coder.Options{}), provider) // of workspaces, such as one of workspace/sandbox
//	res, err := a.Run(ctx, "Write a script that prints the first 10 primes, and run it.")
//	fmt.Println(res.Output)
//	more, err := a.Run(ctx, "Now the first 100.", agent.WithHistory(res.Messages()))
//
// # What an agent is made of
//
// An Agent is a model and a list of capabilities. A capability is any value
// that implements one or more of the small interfaces of this package: it
// brings tools ([ToolProvider]), instructions ([Instructor]), a place to work in
// (workspace.Provider), or looks into the loop at one of its hooks
// ([BeforeRunner] and the like, or the functions of a [Hooks]). [New] finds out
// which. A capability that keeps state during a run implements [PerRun].
//
// A tool is a Go function, wrapped by [NewTool], which makes the JSON Schema
// from the argument struct. How a tool fails is one of three:
//
//   - [Retryf]: the model is told, and may try again, a few times in a row;
//   - [Failedf]: the model is told that this is final;
//   - any other error ends the run.
//
// Failures of the workspace layer itself that a model can react to (a time
// limit, too much output, a read-only place, a missing path) count as the
// second kind even when a tool returns them as they are; workspace.ErrUnavailable
// and a context's end are of the third.
//
// # The loop
//
// A run sends the conversation to the model, runs the tools that the response
// calls, in parallel, sends their results, and ends when the model answers
// without calling any, or through the output tool when [WithOutput] asks for a
// Go value. [Agent.Run] returns the result; [Agent.Stream] yields what happens
// on the way.
//
// However a run ends, its history is valid and can be continued: calls that
// did not finish are answered with what is known, and a notice tells the model
// that the run before was cut short, and why. A Result is returned with an
// error too, for its messages.
//
// # Order
//
// Capabilities of the run come before those of the agent for workspaces, and
// after them for all else. At each point that has hooks (the run, each model
// request, each tool call): the before hooks in the order of the list; then the
// wrap hooks, the first outermost; within them the thing itself; then the after
// hooks in reverse. When anything of that fails, the on-error hooks in reverse,
// and the first that returns a result recovers.
//
// # Workspaces
//
// Which place a run works in is decided before it starts, without I/O: what
// [WithWorkspace], [WithRef] or [WithNewWorkspace] says; else the ref on the
// latest response of the history; else a new place from the first capability
// that is a workspace.Provider; else none, and using it is an error. The ref is
// recorded on each response, so that the history alone leads back. A run never
// destroys a place.
//
// Agents are safe for concurrent use. A Run belongs to its tools and hooks
// while it lasts; its methods are safe for concurrent use.
package agent
