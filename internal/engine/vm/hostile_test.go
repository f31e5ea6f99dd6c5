//go:build linux

package vm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hutch-sandbox/hutch/internal/engine/vm/qmp"
	"github.com/hutch-sandbox/hutch/internal/vmboot"
	"github.com/hutch-sandbox/hutch/internal/x/console"
)

// TestTellHostile: whatever a machine does on its boot port, who tells it
// something gets an error, at the latest when his time is up.
func TestTellHostile(t *testing.T) {
	read := func(c net.Conn) { _ = vmboot.Read(c, vmboot.MaxPlan, new(vmboot.Message)) }
	again := func(c net.Conn, what []byte) {
		for {
			if _, err := c.Write(what); err != nil {
				return
			}
		}
	}
	for _, tt := range []struct {
		name    string
		patient bool
		attack  func(c net.Conn)
		want    error
	}{
		{"reads nothing", true, func(c net.Conn) { again(c, make([]byte, 100)) }, nil},
		{"silence", true, func(c net.Conn) { read(c); _, _ = io.Copy(io.Discard, c) }, nil},
		{"half a length", true, func(c net.Conn) { read(c); _, _ = c.Write([]byte{0, 0}); _, _ = io.Copy(io.Discard, c) }, nil},
		{"half a message", true, func(c net.Conn) {
			read(c)
			_, _ = c.Write([]byte("\x00\x00\xff\x00{"))
			_, _ = io.Copy(io.Discard, c)
		}, nil},
		{"closes", false, func(c net.Conn) { read(c) }, io.EOF},
		{"closes in the middle", false, func(c net.Conn) { read(c); _, _ = c.Write([]byte("\x00\x00\xff\x00{")) }, io.ErrUnexpectedEOF},
		{"a huge length", false, func(c net.Conn) { read(c); again(c, []byte("\xff\xff\xff\xff")) }, vmboot.ErrTooLong},
		{"no JSON", false, func(c net.Conn) { read(c); again(c, []byte("\x00\x00\x00\x01x")) }, nil},
		{"out of turn", false, func(c net.Conn) { read(c); _ = vmboot.Write(c, vmboot.Report{Stage: vmboot.Loaded}) }, nil},
		{"an unknown stage", false, func(c net.Conn) { read(c); _ = vmboot.Write(c, vmboot.Report{Stage: "\x1b[2J"}) }, nil},
		{"a long failure", false, func(c net.Conn) {
			read(c)
			_ = vmboot.Write(c, vmboot.Report{Stage: vmboot.Failed, Error: strings.Repeat("x", 60<<10)})
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				var work sync.WaitGroup
				work.Go(func() {
					defer theirs.Close()
					tt.attack(theirs)
				})
				p := &vmProcess{boot: ours}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := p.tell(ctx, vmboot.Message{Clock: 1})
				if late := ctx.Err() != nil; err == nil || late != tt.patient {
					t.Errorf("it gives %v, and took its time: %v", err, late)
				}
				if tt.want != nil && !errors.Is(err, tt.want) {
					t.Errorf("it gives %v, want %v", err, tt.want)
				}
				if err != nil && len(err.Error()) > 2<<10 {
					t.Errorf("an error of %d bytes", len(err.Error()))
				}
				_ = ours.Close()
				work.Wait()
			})
		})
	}
}

// TestEventFlood: QEMU says again and again that the host has no space. One
// goroutine waits for it, and the machine goes on when there is some.
func TestEventFlood(t *testing.T) {
	disk, err := os.Create(t.TempDir() + "/disk")
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		con := console.New(nil, 0)
		i := &instance{
			p:    &vmProcess{monitor: qmp.New(ours), console: con},
			disk: disk, noSpace: make(chan struct{}, 1), turn: make(chan struct{}, 1),
		}
		i.turn <- struct{}{}
		var work sync.WaitGroup
		went := make(chan string)
		work.Go(func() { // QEMU's answers
			buf := make([]byte, 4096)
			for {
				n, err := theirs.Read(buf)
				if err != nil {
					return
				}
				went <- string(buf[:n])
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		work.Go(i.events)
		work.Go(func() { i.awaitSpace(ctx) })
		before := runtime.NumGoroutine()
		flood := bytes.Repeat([]byte(`{"event":"BLOCK_IO_ERROR","data":{"action":"stop","nospace":true}}`+"\n"), 1000)
		if _, err := theirs.Write(flood); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > 0 {
			t.Errorf("%d goroutines more", n)
		}
		if n := bytes.Count(con.End(), []byte("paused:")); n < 1 || n > 10 {
			t.Errorf("the console says %d times that the machine is paused", n)
		}
		if line := <-went; !strings.Contains(line, `"cont"`) {
			t.Errorf("QEMU is asked to %s", line)
		}
		if _, err := io.WriteString(theirs, `{"return":{}}`+"\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		_ = i.p.monitor.Close()
		_ = theirs.Close()
		work.Wait()
	})
}
