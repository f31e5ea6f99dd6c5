package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) topCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "top BOX",
		Short:   "List the processes in a box",
		Example: `  hutch top web`,
		Args:    need(1, 1, "BOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			b, info, err := e.find(ctx, args[0])
			if err != nil {
				return err
			}
			if info.State != box.Running {
				return notRunning("top", args[0], info)
			}
			ps, err := b.Top(ctx)
			if err != nil {
				return err
			}
			if e.json {
				if ps == nil {
					ps = []box.OSProcess{}
				}
				return e.document(ps)
			}
			t := newTable(e.stdout, "PID", "PPID", "USER", "STATE", "RSS", "TIME", "EXEC", "COMMAND")
			for _, p := range ps {
				exec := p.ExecID
				if exec == "" {
					exec = "-"
				}
				t.row(strconv.Itoa(p.Pid), strconv.Itoa(p.PPid), p.User, p.State, size(p.RSS), cpuTime(p.CPU), exec, p.Command)
			}
			return t.flush()
		},
		ValidArgsFunction: e.completeBoxes,
	}
}

// cpuTime is "01:02:03", as ps has it.
func cpuTime(d time.Duration) string {
	s := int64(d / time.Second)
	return fmt.Sprintf("%02d:%02d:%02d", s/3600, s/60%60, s%60)
}
