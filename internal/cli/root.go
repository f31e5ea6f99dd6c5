package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hutch-sandbox/hutch/box"
)

// help is what "hutch help" prints; it fits a screen of 24 lines of 80.
const help = `Hutch runs untrusted commands in boxes: machines with a kernel, a file system
and a network of their own.

  hutch run python:3.12-slim python -c 'print(6*7)'     one command in a new box
  hutch run -it --rm                                    a shell, no download

Run      run  exec  attach             start a command, in a new or an old box
Boxes    create  start  stop  restart  kill  rm  rename  pause  unpause  wait
Look     ps  inspect  logs  top  stats  events  netlog
Files    cp                            BOX:PATH to here and back; - is a tar
Network  net  forward                  net: show set explain publish unpublish
                                       secret
Agents   agent  mcp                    a coding agent, or its tools, in a box
Images   pull  images  image           image: load save import tag rm prune
                                       debian inspect
Machine  info  doctor  kernel  version  completion

Every command:  --help      what it does, its flags, an example
                --json      print data as JSON
                --home DIR  where boxes and images are kept ($HUTCH_HOME)
                --no-progress  no progress bars

Exit status: the command's own for run and exec; 125 when Hutch failed, 126 or
127 when the command cannot be run, 124 after --timeout, 2 for wrong usage.
`

// execute parses the arguments and runs the command they name.
func (e *env) execute(ctx context.Context) error {
	root := e.rootCommand()
	root.SetArgs(append([]string{}, e.Args...))
	return root.ExecuteContext(ctx)
}

func (e *env) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:               "hutch",
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              unknownCommand,
		RunE:              func(*cobra.Command, []string) error { return e.printHelp() },
	}
	root.SetOut(e.stdout)
	root.SetErr(e.Stderr)
	root.SetIn(e.Stdin)
	g := root.PersistentFlags()
	parsed(g, &e.home, "home", "", "dir", "folder of boxes and images ($HUTCH_HOME)", someText)
	g.BoolVar(&e.json, "json", false, "print data as JSON")
	g.BoolVar(&e.noProgress, "no-progress", false, "no progress bars")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return flagError(cmd.CommandPath(), err) })
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { e.commandHelp(cmd) })
	root.SetHelpCommand(e.helpCommand(root))

	root.AddCommand(
		e.runCommand(), e.execCommand(), e.attachCommand(),
		e.createCommand(), e.startCommand(), e.stopCommand(), e.restartCommand(), e.killCommand(),
		e.rmCommand(), e.renameCommand(), e.pauseCommand(), e.unpauseCommand(), e.waitCommand(),
		e.psCommand(), e.inspectCommand(), e.logsCommand(), e.topCommand(), e.statsCommand(), e.eventsCommand(),
		e.cpCommand(), e.netCommand(), e.netlogCommand(), e.forwardCommand(),
		e.pullCommand(), e.imagesCommand(), e.imageCommand(),
		e.agentCommand(), e.mcpCommand(),
		e.infoCommand(), e.doctorCommand(), e.kernelCommand(), e.versionCommand(), e.completionCommand(root),
	)
	return root
}

func (e *env) printHelp() error {
	_, err := io.WriteString(e.stdout, help)
	return err
}

func (e *env) helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show what a command does",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return e.printHelp()
			}
			cmd, rest, err := root.Find(args)
			if err != nil || cmd == root {
				return unknownCommand(root, args)
			}
			if len(rest) > 0 {
				return unknownCommand(cmd, rest)
			}
			e.commandHelp(cmd)
			return nil
		},
	}
}

// commandHelp prints the help of one command.
func (e *env) commandHelp(cmd *cobra.Command) {
	if !cmd.HasParent() {
		_ = e.printHelp() // a broken pipe is the reader's choice
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage: %s\n", cmd.Short, cmd.UseLine())
	if cmd.Long != "" {
		fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(cmd.Long))
	}
	if subs := cmd.Commands(); len(subs) > 0 {
		b.WriteString("\nCommands:\n")
		for _, sub := range subs {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(&b, "  %-10s %s\n", sub.Name(), sub.Short)
			}
		}
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, "\nExample:\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	if cmd.HasAvailableLocalFlags() {
		fmt.Fprintf(&b, "\nFlags:\n%s", cmd.LocalNonPersistentFlags().FlagUsagesWrapped(80))
	}
	b.WriteString("\nFlags of every command: --home, --json, --no-progress\n")
	_, _ = io.WriteString(e.stdout, b.String())
}

// unknownCommand refuses arguments of a command that only has subcommands.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	help := cmd.CommandPath() + " --help"
	if !cmd.HasParent() {
		help = "hutch help"
	}
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return usagef("%q: no such command; did you mean %q? See '%s'", clip(args[0]), near[0], help)
	}
	return usagef("%q: no such command; see '%s'", clip(args[0]), help)
}

// need checks the number of arguments; high -1: any. what names them.
func need(low, high int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < low:
			return usagef("%s: missing; see '%s --help'", what, cmd.CommandPath())
		case high == 0 && len(args) > 0:
			return usagef("%q: %s takes no arguments; see '%s --help'", clip(args[0]), cmd.Name(), cmd.CommandPath())
		case high >= 0 && len(args) > high:
			return usagef("%q: one argument too many; see '%s --help'", clip(args[high]), cmd.CommandPath())
		}
		return nil
	}
}

// docker is how docker parses flags before a command to run: the first
// argument that is no flag ends them.
func docker(fs *pflag.FlagSet) { fs.SetInterspersed(false) }

// withoutDashes drops the "--" that may stand between a box or an image and
// the command.
func withoutDashes(args []string) []string {
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}

// completeBoxes completes names of boxes.
func (e *env) completeBoxes(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	rt, err := e.open(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	infos, err := rt.List(cmd.Context(), box.ListOptions{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := make([]string, len(infos))
	for i, info := range infos {
		names[i] = info.Name
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeImages completes names of images.
func (e *env) completeImages(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	rt, err := e.open(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	imgs, err := rt.Images().List(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, img := range imgs {
		names = append(names, img.Names...)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
