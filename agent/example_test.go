package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
)

// A tool is a Go function; its schema comes from the argument struct.
func ExampleNewTool() {
	type args struct {
		City string `json:"city" jsonschema:"name of the city"`
	}
	weather := agent.NewTool("weather", "Tell the weather of a city.",
		func(_ context.Context, _ *agent.Call, a args) (string, error) {
			if a.City == "" {
				return "", agent.Retryf("which city?")
			}
			return "sunny in " + a.City, nil
		})
	// A real program takes its model from package fantasy.
	m := scripted.Sequence(
		scripted.Call("1", "weather", `{"city":"Lima"}`),
		scripted.Say("It is sunny."),
	)
	res, err := agent.New(m, weather).Run(context.Background(), "How is the weather in Lima?")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Output)
	for _, m := range res.Messages() {
		fmt.Println(m.Kind, len(m.Parts))
	}
	// Output:
	// It is sunny.
	// request 1
	// response 1
	// request 1
	// response 1
}

// The history of a run makes the next one a follow-up.
func ExampleWithHistory() {
	m := scripted.Sequence(scripted.Say("2, 3, 5"), scripted.Say("7, 11"))
	a := agent.New(m)
	ctx := context.Background()
	first, err := a.Run(ctx, "Three primes.")
	if err != nil {
		log.Fatal(err)
	}
	stored, err := model.Encode(first.Messages())
	if err != nil {
		log.Fatal(err)
	}
	// Later, perhaps in another process:
	history, err := model.Decode(stored)
	if err != nil {
		log.Fatal(err)
	}
	second, err := a.Run(ctx, "Two more.", agent.WithHistory(history))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first.Output)
	fmt.Println(second.Output)
	// Output:
	// 2, 3, 5
	// 7, 11
}

// The answer can be a Go value.
func ExampleRunAs() {
	type city struct {
		Name   string `json:"name"`
		People int    `json:"people"`
	}
	m := scripted.Sequence(scripted.Call("1", "final_result", `{"name":"Lima","people":10000000}`))
	res, err := agent.RunAs[city](context.Background(), agent.New(m), "The largest city of Peru.")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Value.Name, res.Value.People)
	// Output: Lima 10000000
}

// Stream yields what happens, and at the end the result.
func ExampleAgent_Stream() {
	m := scripted.Sequence(scripted.Call("1", "now", ""), scripted.Say("It is noon."))
	now := agent.NewTool("now", "Tell the time.", func(context.Context, *agent.Call, struct{}) (string, error) { return "12:00", nil })
	for event, err := range agent.New(m, now).Stream(context.Background(), "What time is it?") {
		if err != nil {
			log.Fatal(err)
		}
		switch e := event.(type) {
		case agent.ToolStarted:
			fmt.Println("calls", e.Call.Name)
		case agent.TextDelta:
			fmt.Println("says", e.Text)
		case agent.Finished:
			fmt.Println("requests:", e.Result.Usage.Requests)
		}
	}
	// Output:
	// calls now
	// says It is noon.
	// requests: 2
}

// An on-error hook sees every run that fails, and can clean up after it.
func ExampleHooks() {
	cleanUp := agent.Hooks{
		OnRunError: func(_ context.Context, run *agent.Run, err error) (*agent.Result, error) {
			if _, ok := run.Workspace().Ref(); !ok {
				fmt.Println("nothing to destroy")
			}
			return nil, nil // the error stays what it is
		},
	}
	failing := scripted.Func(func(context.Context, *model.Request) (*model.Response, error) {
		return nil, errors.New("no network")
	})
	res, err := agent.New(failing, cleanUp).Run(context.Background(), "hello")
	fmt.Println(err)
	fmt.Println("can be continued:", model.Validate(res.Messages()) == nil)
	// Output:
	// nothing to destroy
	// no network
	// can be continued: true
}
