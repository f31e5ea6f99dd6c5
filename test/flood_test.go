package test

import (
	"bufio"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

// A box that floods its consoles and its network, as root, fills no file of the
// host, is itself still to be used, stops when it is told, and costs no other
// box anything.
func TestFloods(t *testing.T) {
	if !root() {
		t.Skip("needs root")
	}
	for _, engine := range []string{"gvisor", "vm"} {
		t.Run(engine, func(t *testing.T) {
			realengine.Need(t, engine)
			h := newHome(t)
			if engine == "vm" {
				h = vmHome(t)
			}
			h.engine = engine
			b, other := h.box(t, box.Spec{Name: "loud"}), h.box(t, box.Spec{Name: "quiet"})
			program, err := os.Open(guestProgram(t))
			if err != nil {
				t.Fatal(err)
			}
			defer program.Close()
			in := b.Shell(t.Context(), "cat > /guest; chmod 755 /guest") // a volume would take another boot
			in.Stdin = program
			if err := in.Run(); err != nil {
				t.Fatal(err)
			}
			cmd := b.Command(t.Context(), "/guest", "flood")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ways := map[string]bool{}
			for s := bufio.NewScanner(out); s.Scan() && s.Text() != "flooding"; {
				ways[s.Text()] = true
			}
			t.Logf("it floods %v", ways)
			if len(ways) < 3 {
				t.Error("there is not much of a flood")
			}
			for range 5 {
				if got := sh(t, b, "echo heard"); got != "heard" {
					t.Errorf("the box says %q", got)
				}
				if got := sh(t, other, "echo heard"); got != "heard" {
					t.Errorf("the other box says %q", got)
				}
			}
			if _, err := b.Stats(t.Context()); err != nil {
				t.Errorf("stats: %v", err)
			}
			if err := b.Stop(t.Context(), time.Second); err != nil {
				t.Errorf("stop: %v", err)
			}
			if err := cmd.Wait(); err == nil {
				t.Error("the flood ended well")
			}
			info, err := b.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for name, most := range map[string]int64{"console.log": 3 << 20, "keeper.log": 5 << 20, "net.log": 5 << 20} {
				fi, err := os.Stat(filepath.Join(h.dir, "boxes", info.ID, name))
				if err != nil || fi.Size() > most {
					t.Errorf("%s has %d bytes: %v", name, fi.Size(), err)
				} else {
					t.Logf("%s has %d bytes", name, fi.Size())
				}
			}
			if got := sh(t, other, "echo heard"); got != "heard" {
				t.Errorf("afterwards the other box says %q", got)
			}
		})
	}
}
