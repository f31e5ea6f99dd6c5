package cli

import (
	"fmt"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) netlogCommand() *cobra.Command {
	opts := box.LogOptions{Tail: -1}
	cmd := &cobra.Command{
		Use:     "netlog [flags] BOX",
		Short:   "Show what a box asked for and connected to",
		Long:    `Every name, every connection that was made or refused, and the rule that decided.`,
		Example: `  hutch netlog -f --tail 20 web`,
		Args:    need(1, 1, "BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			b, _, err := e.find(ctx, args[0])
			if err != nil {
				return err
			}
			if e.fromNow(&opts) {
				return nil
			}
			for r, err := range b.NetLog(ctx, opts) {
				if err == nil {
					if e.json {
						err = e.record(r)
					} else {
						err = e.println(netLine(r))
					}
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
		ValidArgsFunction: e.completeBoxes,
	}
	e.logFlags(cmd.Flags(), &opts)
	return cmd
}

// netLine is a record for people: time, verdict, what, why.
func netLine(r box.NetRecord) string {
	verdict := "deny "
	if r.Allowed {
		verdict = "allow"
	}
	parts := []string{r.Time.UTC().Format("2006-01-02T15:04:05.000Z"), verdict, string(r.Kind)}
	switch r.Kind {
	case box.NetDNS:
		parts = append(parts, r.Proto, r.Name)
		if r.Addr != "" {
			parts = append(parts, r.Addr)
		}
	case box.NetChanged, box.NetLost:
		parts[1] = "-    "
	default:
		where := fmt.Sprintf("%s:%d/%s", r.Addr, r.Port, r.Proto)
		if strings.Contains(r.Addr, ":") {
			where = fmt.Sprintf("[%s]:%d/%s", r.Addr, r.Port, r.Proto)
		}
		parts = append(parts, where)
		if r.Name != "" {
			parts = append(parts, r.Name)
		}
	}
	if r.Kind == box.NetEnd {
		parts[1] = "-    "
		parts = append(parts, fmt.Sprintf("sent %s received %s", units.BytesSize(float64(r.Sent)), units.BytesSize(float64(r.Received))))
	}
	if r.Kind == box.NetLost {
		parts = append(parts, fmt.Sprint(r.Count))
	}
	if r.Rule != "" {
		parts = append(parts, "("+r.Rule+")")
	}
	if r.Reason != "" && (!r.Allowed || r.Kind != box.NetFlow) {
		parts = append(parts, r.Reason)
	}
	return strings.Join(parts, " ")
}
