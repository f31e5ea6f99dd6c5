package boxfake_test

import (
	"io"
	"net"
	"testing"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/boxtest"
	"github.com/hutch-sandbox/hutch/internal/boxfake"
)

func TestSuite(t *testing.T) {
	boxtest.Run(t, boxtest.Harness{
		New:     func(*testing.T) box.Driver { return boxfake.New(boxfake.Config{}) },
		Another: func(_ *testing.T, d box.Driver) box.Driver { return d.(*boxfake.Driver).Another() },
		TTY:     true, TTYSize: []string{"stty", "size"}, Pause: true, Images: true,
		Bulk: 8 << 20, Rounds: 3, // the sizes of a unit test
		Crash: func(_ *testing.T, d box.Driver, b *box.Box) { d.(*boxfake.Driver).Crash(b.ID()) },
		Serve: func(_ *testing.T, d box.Driver, b *box.Box) (network, addr string) {
			// The rule that starts it is not the last one to use it.
			l := d.(*boxfake.Driver).Listen(b.ID(), "tcp", "localhost:7")
			t.Cleanup(func() { l.Close() })
			echo(l)
			return "tcp", "127.0.0.1:7"
		},
	})
}

// echo serves until the listener is closed.
func echo(l net.Listener) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}
