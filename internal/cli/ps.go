package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

// filter is one --filter of ps or events.
type filter struct{ key, value string }

// parseFilter reads "key=value" with one of the keys.
func parseFilter(keys ...string) func(string) (filter, error) {
	return func(s string) (filter, error) {
		k, v, ok := strings.Cut(s, "=")
		if !ok || v == "" || !slices.Contains(keys, k) {
			return filter{}, fmt.Errorf("write one of %s=VALUE", strings.Join(keys, "=VALUE, "))
		}
		return filter{k, v}, nil
	}
}

// parseStates reads a state by our name or docker's.
func parseState(s string) (box.State, error) {
	switch s {
	case "exited":
		return box.Stopped, nil
	case string(box.Created), string(box.Starting), string(box.Running), string(box.Stopping), string(box.Stopped), string(box.Failed):
		return box.State(s), nil
	}
	return "", usagef("--filter: unknown status %q; use created, starting, running, stopping, stopped or failed", clip(s))
}

func (e *env) psCommand() *cobra.Command {
	var (
		all, quiet, full bool
		format           = "table"
		filters          []filter
	)
	cmd := &cobra.Command{
		Use:   "ps [flags]",
		Short: "List boxes",
		Long: `Without -a only boxes that run. Filters of different kinds must all match, of one
kind any of them: label=KEY, label=KEY=VALUE, name=PART, id=START, status=STATE.`,
		Example: `  hutch ps -a --filter label=team=ml`,
		Args:    need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			opts := box.ListOptions{}
			for _, f := range filters {
				switch f.key {
				case "label":
					k, v, _ := strings.Cut(f.value, "=")
					if opts.Labels == nil {
						opts.Labels = map[string]string{}
					}
					opts.Labels[k] = v
				case "status":
					state, err := parseState(f.value)
					if err != nil {
						return err
					}
					opts.States = append(opts.States, state)
				}
			}
			if !all && opts.States == nil {
				opts.States = []box.State{box.Starting, box.Running, box.Stopping}
			}
			rt, err := e.open(ctx)
			if err != nil {
				return err
			}
			infos, err := rt.List(ctx, opts)
			if err != nil {
				return err
			}
			infos = slices.DeleteFunc(infos, func(info box.Info) bool { return !matches(filters, info.ID, info.Name) })
			switch {
			case e.json:
				if infos == nil {
					infos = []box.Info{}
				}
				return e.document(infos)
			case format == "json":
				for _, info := range infos {
					if err := e.record(info); err != nil {
						return err
					}
				}
				return nil
			case quiet:
				for _, info := range infos {
					if err := e.println(info.ID); err != nil {
						return err
					}
				}
				return nil
			}
			return e.psTable(infos, full)
		},
	}
	fs := cmd.Flags()
	fs.BoolVarP(&all, "all", "a", false, "also boxes that do not run")
	fs.BoolVarP(&quiet, "quiet", "q", false, "only ids")
	fs.BoolVar(&full, "no-trunc", false, "do not shorten commands")
	parsed(fs, &format, "format", "", "how", "table or json, one line a box", oneOf("table", "json"))
	repeated(fs, &filters, "filter", "f", "key=value", "only boxes with this label, name, id or status", parseFilter("label", "name", "id", "status"))
	return cmd
}

// matches reports whether a box passes the filters by name and id.
func matches(filters []filter, id, name string) bool {
	pass := map[string]bool{}
	for _, f := range filters {
		switch f.key {
		case "name":
			pass[f.key] = pass[f.key] || strings.Contains(name, f.value)
		case "id":
			pass[f.key] = pass[f.key] || strings.HasPrefix(id, f.value)
		}
	}
	for _, ok := range pass {
		if !ok {
			return false
		}
	}
	return true
}

func (e *env) psTable(infos []box.Info, full bool) error {
	t := newTable(e.stdout, "BOX ID", "IMAGE", "COMMAND", "CREATED", "STATUS", "NAME")
	for _, info := range infos {
		t.row(info.ID, info.Image, mainCommand(info, full), e.ago(info.CreatedAt), e.status(info), info.Name)
	}
	return t.flush()
}
