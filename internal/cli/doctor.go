package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check what this machine can do, and say what mends what it cannot",
		Long: `It fails when no engine works here. Other findings only limit what boxes can be
asked for.`,
		Example: `  hutch doctor`,
		Args:    need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			rt, err := e.open(cmd.Context())
			if err != nil {
				return err
			}
			h, err := rt.Host(cmd.Context())
			if err != nil {
				return err
			}
			usable := slices.ContainsFunc(h.Engines, func(en box.EngineInfo) bool { return en.Usable })
			if err := e.printFindings(h); err != nil {
				return err
			}
			if !usable {
				return errors.New("doctor: no engine works on this machine, so no box can run; mend the findings above")
			}
			return nil
		},
	}
}

func (e *env) printFindings(h box.HostInfo) error {
	if e.json {
		return e.document(struct {
			Engines []box.EngineInfo `json:"engines"`
			Checks  []box.Check      `json:"checks"`
		}{append([]box.EngineInfo{}, h.Engines...), append([]box.Check{}, h.Checks...)})
	}
	var b strings.Builder
	finding := func(ok bool, name, detail, fix string) {
		mark := "ok  "
		if !ok {
			mark = "--  "
		}
		fmt.Fprintf(&b, "%s%s: %s\n", mark, printable(name), printable(detail))
		if !ok && fix != "" {
			fmt.Fprintf(&b, "    mend it: %s\n", printable(fix))
		}
	}
	for _, en := range h.Engines {
		finding(en.Usable, "engine", engineText(en), "")
	}
	for _, c := range h.Checks {
		finding(c.OK, c.Name, c.Detail, c.Fix)
	}
	_, err := e.stdout.Write([]byte(b.String()))
	return err
}
