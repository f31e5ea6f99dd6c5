package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) infoCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "info",
		Short:   "Show what this machine offers and what is kept on it",
		Example: `  hutch info --json`,
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
			if e.json {
				return e.document(h)
			}
			var b strings.Builder
			line := func(name, value string) { fmt.Fprintf(&b, "%-9s %s\n", name+":", printable(value)) }
			line("Version", h.Version)
			line("Home", h.Home)
			line("System", h.OS+"/"+h.Arch+", kernel "+h.Kernel)
			line("CPUs", strconv.Itoa(h.CPUs))
			line("Memory", size(h.Memory))
			line("User", h.User)
			line("Boxes", fmt.Sprintf("%d, %d running", h.Boxes, h.Running))
			line("Images", strconv.Itoa(h.Images))
			for _, en := range h.Engines {
				line("Engine", engineText(en))
			}
			_, err = e.stdout.Write([]byte(b.String()))
			return err
		},
	}
}

// engineText describes an engine in one line.
func engineText(en box.EngineInfo) string {
	s := en.Name
	if en.Version != "" {
		s += " " + en.Version
	}
	s += ", " + string(en.Isolation)
	switch {
	case !en.Usable:
		s += ", not usable: " + en.Reason
	case en.Default:
		s += ", used by default"
	case en.Explicit:
		s += ", used only when asked for"
	}
	return s
}
