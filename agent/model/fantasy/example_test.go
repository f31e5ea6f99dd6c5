package fantasy_test

import (
	"fmt"

	"github.com/hutch-sandbox/hutch/agent/model/fantasy"
)

// A missing key is an error that says what to set.
func ExampleNew() {
	_, err := fantasy.New("anthropic:claude-opus-5-5", fantasy.Options{
		Getenv: func(string) string { return "" }, // an empty environment
	})
	fmt.Println(err)
	// Output: model is not configured: anthropic:claude-opus-5-5 needs a key: set ANTHROPIC_API_KEY
}
