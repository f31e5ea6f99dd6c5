//go:build linux

package agent

import (
	"fmt"
	"testing"
	"time"
)

// ended makes an exec that ended some time ago and wrote size bytes.
func ended(id string, ago time.Duration, detach bool, size int) *exec {
	x := &exec{id: id, detach: detach, log: newOutputLog(), done: make(chan struct{}), ended: time.Now().Add(-ago)}
	x.log.append(stdout, make([]byte, size), nil)
	x.log.close()
	close(x.done)
	return x
}

func (t *table) put(x *exec) {
	t.byID[x.id] = x
	t.order = append(t.order, x)
}

func TestEndedExecsAreBounded(t *testing.T) {
	var tab table
	tab.init()
	tab.put(ended("old", keepFor+time.Minute, false, 1))
	tab.put(ended("old-detached", keepFor+time.Minute, true, 1))
	tab.put(ended("ancient-detached", keepForLong+time.Minute, true, 1))
	running := &exec{id: "running", log: newOutputLog(), done: make(chan struct{})}
	tab.put(running)
	tab.sweep(time.Now())
	for id, want := range map[string]bool{"old": false, "old-detached": true, "ancient-detached": false, "running": true} {
		if _, err := tab.get(id); (err == nil) != want {
			t.Errorf("%s: %v", id, err)
		}
	}
	for i := range keepEnded + 50 {
		tab.put(ended(fmt.Sprint(i), 0, false, 1))
	}
	tab.sweep(time.Now().Add(2 * sweepAtLeast))
	if n := len(tab.list()); n != keepEnded+1 {
		t.Errorf("%d execs are known, want the running one and %d", n, keepEnded)
	}
	if _, err := tab.get(fmt.Sprint(keepEnded + 49)); err != nil {
		t.Error("the newest was forgotten")
	}
	if _, err := tab.get("running"); err != nil {
		t.Error("a running exec was forgotten")
	}

	tab = table{}
	tab.init()
	for i := range 2 * keepBytes / logMax {
		tab.put(ended(fmt.Sprint(i), 0, true, logMax))
	}
	tab.sweep(time.Now())
	if n := len(tab.order); n != keepBytes/logMax {
		t.Errorf("%d full logs are kept, want %d", n, keepBytes/logMax)
	}
}
