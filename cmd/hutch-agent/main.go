// Command hutch-agent is the hutch command with the providers of models. It is
// part of hutch, which goes on as this program when a model is asked for that is
// no script; see cmd/hutch. It links no engine: hutch is its helper.
package main

import (
	"os"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/fantasy"
	"github.com/hutch-sandbox/hutch/cmd/internal/program"
)

func main() {
	os.Exit(program.Run(func(name, _ string, getenv func(string) string) (model.Model, error) {
		return fantasy.New(name, fantasy.Options{Getenv: getenv})
	}, nil))
}
