package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) eventsCommand() *cobra.Command {
	var filters []filter
	cmd := &cobra.Command{
		Use:   "events [flags]",
		Short: "Show what happens to boxes, from now on",
		Long: `Filters of different kinds must all match, of one kind any of them: box=NAME or ID,
event=ACTION (create, start, stop, exit, oom, fail, rename, remove, restart).`,
		Example: `  hutch events --filter event=oom --filter event=fail`,
		Args:    need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			rt, err := e.open(ctx)
			if err != nil {
				return err
			}
			for ev, err := range rt.Events(ctx) {
				if err != nil {
					return err
				}
				if !eventMatches(filters, ev) {
					continue
				}
				if e.json {
					err = e.record(ev)
				} else {
					err = e.println(eventText(ev))
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	repeated(cmd.Flags(), &filters, "filter", "f", "key=value", "only these boxes or events", parseFilter("box", "event"))
	return cmd
}

func eventMatches(filters []filter, ev box.Event) bool {
	pass := map[string]bool{}
	for _, f := range filters {
		switch f.key {
		case "box":
			pass[f.key] = pass[f.key] || f.value == ev.ID || f.value == ev.Name
		case "event":
			pass[f.key] = pass[f.key] || f.value == ev.Action
		}
	}
	for _, ok := range pass {
		if !ok {
			return false
		}
	}
	return true
}

func eventText(ev box.Event) string {
	attrs := []string{"name=" + ev.Name}
	for _, k := range sortedKeys(ev.Attrs) {
		attrs = append(attrs, k+"="+ev.Attrs[k])
	}
	return ev.Time.Local().Format("2006-01-02T15:04:05.000000000Z07:00") + " box " + ev.Action + " " + ev.ID + " (" + strings.Join(attrs, ", ") + ")"
}
