package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

// noRuntime fails the test when a command opens a runtime.
func noRuntime(t *testing.T) func(context.Context, OpenOptions) (*box.Runtime, error) {
	return func(context.Context, OpenOptions) (*box.Runtime, error) {
		t.Error("the command opened the runtime")
		return nil, &box.Error{Kind: box.Internal, Op: "open"}
	}
}

func TestHelpFitsAScreen(t *testing.T) {
	lines := strings.Split(strings.TrimSuffix(help, "\n"), "\n")
	if len(lines) > 24 {
		t.Errorf("help has %d lines, a screen 24", len(lines))
	}
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > 80 {
			t.Errorf("%d columns, a screen has 80: %s", n, line)
		}
	}
}

func TestHelpNamesEveryCommand(t *testing.T) {
	e := newEnv(App{})
	words := strings.Fields(help)
	for _, cmd := range append(append(e.rootCommand().Commands(), e.imageCommand().Commands()...), e.netCommand().Commands()...) {
		found := false
		for _, w := range words {
			found = found || w == cmd.Name()
		}
		// help itself, and the two image commands with a short form.
		if !found && cmd.Name() != "help" && cmd.Name() != "ls" {
			t.Errorf("help does not name %q", cmd.CommandPath())
		}
	}
}

// commands calls f for every command.
func commands(cmd *cobra.Command, f func(*cobra.Command)) {
	for _, sub := range cmd.Commands() {
		f(sub)
		commands(sub, f)
	}
}

func TestEveryCommandExplainsItself(t *testing.T) {
	root := newEnv(App{}).rootCommand()
	commands(root, func(cmd *cobra.Command) {
		if cmd.Name() == "help" {
			return
		}
		if cmd.Example == "" || cmd.Short == "" {
			t.Errorf("%s has no example or no summary", cmd.CommandPath())
		}
		for line := range strings.SplitSeq(cmd.Example, "\n") {
			if !strings.Contains(line, "hutch ") {
				t.Errorf("%s: the example line %q shows no hutch command", cmd.CommandPath(), line)
			}
		}
		var out bytes.Buffer
		code := Main(t.Context(), App{Args: append(strings.Fields(cmd.CommandPath())[1:], "--help"), Stdout: &out, Open: noRuntime(t)})
		if code != ExitOK {
			t.Errorf("%s --help ends with %d", cmd.CommandPath(), code)
		}
		if !strings.Contains(out.String(), cmd.Example) || !strings.Contains(out.String(), "Usage: hutch ") {
			t.Errorf("%s --help lacks the example or the usage:\n%s", cmd.CommandPath(), out.String())
		}
		for line := range strings.SplitSeq(out.String(), "\n") {
			if n := utf8.RuneCountInString(line); n > 96 {
				t.Errorf("%s --help: %d columns: %s", cmd.CommandPath(), n, line)
			}
		}
	})
}
