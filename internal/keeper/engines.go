package keeper

import (
	"fmt"
	"strings"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/engine/gvisor"
	"github.com/hutch-sandbox/hutch/internal/engine/vm"
)

// Engines lists every engine there is, best first.
func Engines() []engine.Engine {
	return []engine.Engine{vm.New(), gvisor.New()}
}

func engineNamed(name string) (engine.Engine, error) {
	var names []string
	for _, e := range Engines() {
		if e.Name() == name {
			return e, nil
		}
		names = append(names, e.Name())
	}
	return nil, &box.Error{Kind: box.Unsupported, Op: "boot", Object: "engine " + name,
		Err: fmt.Errorf("this program has no such engine"), Hint: "it has: " + strings.Join(names, ", ")}
}

// RunEngineProcess becomes one of an engine's own processes, if this process
// was started as one; then it does not return. It must be the very first thing
// that main does.
func RunEngineProcess(args []string) {
	if vm.IsHelper(args) {
		vm.RunHelper()
	}
	if gvisor.IsHelper(args) {
		gvisor.RunHelper()
	}
}
