package keeper

import (
	"testing"
	"testing/synctest"
	"time"
)

// A box that stops takes no more calls, and waits for those it took.
func TestCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c calls
		start := time.Now()
		if !c.begin(true) || !c.begin(false) {
			t.Fatal("a call was refused before the end")
		}
		c.shut()
		if c.begin(true) || c.begin(false) {
			t.Error("a call was taken after shut")
		}
		go func() {
			time.Sleep(time.Second)
			c.end()
		}()
		c.wait(time.Minute)
		if d := time.Since(start); d != time.Second {
			t.Errorf("waited %v, want until the call ended, one second", d)
		}
		c.wait(time.Minute) // nothing is under way any more
		if d := time.Since(start); d != time.Second {
			t.Errorf("waited on, until %v", d)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var c calls
		start := time.Now()
		c.begin(true)
		c.shut()
		c.wait(time.Minute)
		if d := time.Since(start); d != time.Minute {
			t.Errorf("waited %v for a call that does not end, want a minute", d)
		}
		c.end() // late, after nobody waits
	})
}

func TestWhichCallsAreRefused(t *testing.T) {
	for _, row := range []struct {
		path             string
		refused, counted bool
	}{
		{"/hutch.v1.Files/Read", true, true},
		{"/hutch.v1.Files/Watch", true, false},
		{"/hutch.v1.Tunnel/Open", true, false},
		{"/hutch.v1.Process/Start", true, false},
		{"/hutch.v1.Process/Attach", false, false},
		{"/hutch.v1.Process/Signal", false, false},
		{"/hutch.v1.System/Hello", false, false},
	} {
		if got := refusable(row.path); got != row.refused {
			t.Errorf("%s: refused is %v, want %v", row.path, got, row.refused)
		}
		if got := waitedFor(row.path); got != row.counted {
			t.Errorf("%s: waited for is %v, want %v", row.path, got, row.counted)
		}
	}
}
