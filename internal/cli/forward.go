package cli

import (
	"net"
	"strconv"
	"sync"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) forwardCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "forward BOX [[IP:]HOST:]PORT...",
		Short: "Connect to servers in a box while this runs",
		Long: `It listens on the host's loopback, prints where, and passes TCP connections on to the
port on the box's own loopback, until it is interrupted. Nothing is published.`,
		Example: `  hutch forward web 8080
  hutch forward web 0:8080`,
		Args: need(2, -1, "PORT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var ports []box.Port
			for _, arg := range args[1:] {
				text := arg
				if n, err := strconv.Atoi(arg); err == nil {
					text = strconv.Itoa(n) + ":" + arg
				}
				p, err := box.ParsePorts(text)
				if err != nil {
					return usagef("PORT: %v", err)
				}
				for _, p := range p {
					if p.Protocol() != "tcp" {
						return usagef("PORT: %s: only TCP can be forwarded; publish UDP with 'hutch net publish'", arg)
					}
				}
				ports = append(ports, p...)
			}
			ctx := cmd.Context()
			b, _, err := e.find(ctx, args[0])
			if err != nil {
				return err
			}
			if err := b.Start(ctx); err != nil {
				return err
			}
			var (
				lc   net.ListenConfig
				work sync.WaitGroup
				mu   sync.Mutex
				fail error
			)
			defer work.Wait()
			for _, p := range ports {
				l, err := lc.Listen(ctx, "tcp", p.HostAddr())
				if err != nil {
					return &box.Error{Kind: box.Exists, Op: "forward", Object: p.HostAddr(), Err: err, Hint: "choose another port with HOST:PORT, or 0:PORT for any free one"}
				}
				p.Host = l.Addr().(*net.TCPAddr).Port
				if e.json {
					err = e.record(p)
				} else {
					err = e.println(p.HostAddr() + " -> " + b.Name() + ":" + strconv.Itoa(p.Box))
				}
				if err != nil {
					l.Close()
					return err
				}
				work.Go(func() {
					defer e.guard()
					if err := b.Forward(ctx, l, "tcp", "localhost:"+strconv.Itoa(p.Box)); err != nil {
						mu.Lock()
						fail = err
						mu.Unlock()
					}
				})
			}
			work.Wait()
			mu.Lock()
			defer mu.Unlock()
			return fail
		},
		ValidArgsFunction: e.completeBoxes,
	}
}
