package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) netCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "net",
		Short:   "Show and change what a box may reach",
		Example: "  hutch net explain web https://pypi.org",
		Args:    func(cmd *cobra.Command, args []string) error { return unknownCommand(cmd, args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			e.commandHelp(cmd)
			return nil
		},
	}
	cmd.AddCommand(e.netShowCommand(), e.netSetCommand(), e.netExplainCommand(), e.netPublishCommand(), e.netUnpublishCommand(), e.netSecretCommand())
	return cmd
}

// netRecord is the document of "net show" and "net set".
type netRecord struct {
	ID      string       `json:"id"`
	Name    string       `json:"name"`
	Network box.Network  `json:"network"`
	Ports   []box.Port   `json:"ports"`
	Links   []box.Link   `json:"links"`
	Secrets []box.Secret `json:"secrets"`
}

func (e *env) printNetwork(info box.Info) error {
	s := info.Spec
	ports := info.Ports
	if ports == nil {
		ports = s.Ports
	}
	if e.json {
		r := netRecord{ID: info.ID, Name: info.Name, Network: s.Network, Ports: []box.Port{}, Links: []box.Link{}, Secrets: []box.Secret{}}
		r.Ports, r.Links, r.Secrets = append(r.Ports, ports...), append(r.Links, s.Links...), append(r.Secrets, s.Secrets...)
		return e.document(r)
	}
	lines := []string{"network: " + s.Network.String()}
	for _, p := range ports {
		lines = append(lines, "port: "+p.String())
	}
	for _, l := range s.Links {
		lines = append(lines, "link: "+l.String())
	}
	for _, sec := range s.Secrets {
		lines = append(lines, sec.String())
	}
	for _, line := range lines {
		if err := e.println(line); err != nil {
			return err
		}
	}
	return nil
}

func (e *env) netShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show BOX",
		Short:   "Show what a box may reach",
		Example: "  hutch net show web",
		Args:    need(1, 1, "BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, info, err := e.find(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return e.printNetwork(info)
		},
		ValidArgsFunction: e.completeBoxes,
	}
}

func (e *env) netSetCommand() *cobra.Command {
	var (
		f   networkFlags
		add bool
	)
	cmd := &cobra.Command{
		Use:   "set [flags] BOX",
		Short: "Change what a box may reach, also while it runs",
		Long: `The flags replace what was set before, or with --add come in addition. Connections
that are no longer allowed are cut. Without flags the box may reach nothing.`,
		Example: `  hutch net set --allow pypi.org --allow '*.pythonhosted.org' web
  hutch net set --net off web`,
		Args: need(1, 1, "BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			n := f.network()
			if err := n.Validate(); err != nil {
				return &usageError{err.Error()}
			}
			b, info, err := e.find(ctx, args[0])
			if err != nil {
				return err
			}
			if add {
				if n, err = info.Spec.Network.Merge(n); err != nil {
					return err
				}
			}
			if err := b.SetNetwork(ctx, n); err != nil {
				return err
			}
			if info, err = b.Info(ctx); err != nil {
				return err
			}
			return e.printNetwork(info)
		},
		ValidArgsFunction: e.completeBoxes,
	}
	f.register(cmd.Flags())
	cmd.Flags().BoolVar(&add, "add", false, "keep what is open already")
	return cmd
}

func (e *env) netExplainCommand() *cobra.Command {
	var f networkFlags
	cmd := &cobra.Command{
		Use:   "explain [flags] [BOX] TARGET",
		Short: "Say whether a box may reach something, without trying",
		Long: `TARGET is a URL, a name or an address with :port and /udp; the port is 443 if none
is given. With BOX it is about that box, else about the flags. It ends with 1 if the
answer is no.`,
		Example: `  hutch net explain web https://pypi.org
  hutch net explain --net internet 10.0.0.1:22`,
		Args: need(1, 2, "TARGET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n := f.network()
			if len(args) == 2 {
				if cmd.Flags().Changed("net") || cmd.Flags().Changed("allow") || cmd.Flags().Changed("deny") {
					return usagef("BOX: has rules of its own; leave out the box or the flags")
				}
				_, info, err := e.find(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				n = info.Spec.Network
			}
			x, err := n.Explain(args[len(args)-1])
			if box.KindOf(err) == box.Invalid {
				return &usageError{err.Error()}
			}
			if err != nil {
				return err
			}
			if e.json {
				err = e.document(x)
			} else {
				err = e.println(explained(x))
			}
			if err == nil && !x.Allowed {
				err = &exitError{code: ExitFailure}
			}
			return err
		},
		ValidArgsFunction: e.completeBoxes,
	}
	f.register(cmd.Flags())
	return cmd
}

func explained(x box.Explanation) string {
	verdict := "no"
	if x.Allowed {
		verdict = "yes"
	}
	target := fmt.Sprintf("%s port %d/%s", x.Host, x.Port, x.Proto)
	text := fmt.Sprintf("%s: %s: %s", verdict, target, x.Reason)
	if x.Rule != "" {
		text += " (" + x.Rule + ")"
	}
	for _, note := range x.Notes {
		text += "; " + note
	}
	return text
}

func (e *env) netPublishCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "publish BOX [IP:]HOST:BOX[/udp]...",
		Short:   "Publish ports of a box, also while it runs",
		Example: "  hutch net publish web 8080:80",
		Args:    need(2, -1, "PORT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.changePorts(cmd, args, func(b *box.Box, p box.Port) error {
				got, err := b.Publish(cmd.Context(), p)
				if err != nil || e.json {
					return err
				}
				return e.println(got.String())
			})
		},
		ValidArgsFunction: e.completeBoxes,
	}
}

func (e *env) netUnpublishCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "unpublish BOX [IP:]HOST:BOX[/udp]...",
		Short:   "Take published ports of a box away",
		Example: "  hutch net unpublish web 8080:80",
		Args:    need(2, -1, "PORT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.changePorts(cmd, args, func(b *box.Box, p box.Port) error { return b.Unpublish(cmd.Context(), p) })
		},
		ValidArgsFunction: e.completeBoxes,
	}
}

// changePorts does something for each port, and shows the ports with --json.
func (e *env) changePorts(cmd *cobra.Command, args []string, one func(*box.Box, box.Port) error) error {
	var ports []box.Port
	for _, arg := range args[1:] {
		p, err := box.ParsePorts(arg)
		if err != nil {
			return usagef("PORT: %v", err)
		}
		ports = append(ports, p...)
	}
	ctx := cmd.Context()
	b, info, err := e.find(ctx, args[0])
	if err != nil {
		return err
	}
	for _, p := range ports {
		if err := one(b, p); err != nil {
			return err
		}
	}
	if !e.json {
		return nil
	}
	if info, err = b.Info(ctx); err != nil {
		return err
	}
	return e.printNetwork(info)
}

func (e *env) netSecretCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "secret BOX NAME[=SOURCE]...",
		Short: "Hand values of secrets to a running box",
		Long: `For a box that was started by a program without them, or to replace them. SOURCE is
env:VAR (default: the variable NAME), file:PATH or - for standard input. Values are kept
in the memory of the box's keeper until it stops.`,
		Example: "  hutch net secret web OPENAI_API_KEY=file:key.txt",
		Args:    need(2, -1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var flags []secretFlag
			for _, arg := range args[1:] {
				f, err := parseValue(arg)
				if err != nil {
					return usagef("NAME: %v", err)
				}
				flags = append(flags, f)
			}
			values, err := e.readValues(flags)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			b, info, err := e.find(ctx, args[0])
			if err != nil {
				return err
			}
			if info.State != box.Running {
				return notRunning("net secret", args[0], info)
			}
			r := &results{env: e}
			if err = b.SetSecrets(ctx, values); err == nil {
				err = r.add(args[0], result{ID: info.ID, Name: info.Name})
			}
			return r.finish(err)
		},
		ValidArgsFunction: e.completeBoxes,
	}
}
