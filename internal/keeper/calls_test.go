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

// Between the last user's end and the box's nobody gets a lease: his command
// would die with the box.
func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l leases
		expired := 0
		l.start(false, func(stopRequest) { expired++ })
		if !l.take() || !l.take() {
			t.Fatal("a lease was refused while the box is to run")
		}
		if l.drop(false) != nil || l.close() {
			t.Error("the box is to stop although somebody uses it")
		}
		if l.drop(true) != nil || !l.take() {
			t.Error("a box that outlives its users is to stop, or refuses them")
		}
		if l.drop(false) == nil || l.take() {
			t.Error("the last user went, and the box does not stop or is still to be had")
		}
		time.Sleep(2 * firstLease)
		synctest.Wait()
		if expired != 0 {
			t.Error("the first lease was missed")
		}
		var unused leases
		unused.start(false, func(stopRequest) { expired++ })
		time.Sleep(2 * firstLease)
		synctest.Wait()
		if expired != 1 || unused.take() {
			t.Errorf("nobody came: it expired %d times, and a lease is refused: %v", expired, !unused.take())
		}
		// What ends by itself ends when its users have gone.
		var ending leases
		if !ending.take() || ending.end(stopRequest{reason: "done"}) || !ending.take() {
			t.Error("a box in use ends, or refuses another user")
		}
		if ending.drop(true) != nil {
			t.Error("it ends with its first user")
		}
		if r := ending.drop(true); r == nil || r.reason != "done" || ending.take() {
			t.Errorf("its last user went, and it ends for %+v", r)
		}
		// Whoever woke the box is still to come.
		var awaited leases
		reason := ""
		awaited.start(false, func(r stopRequest) { reason = r.reason })
		if awaited.end(stopRequest{reason: "done"}) || !awaited.take() || awaited.drop(false) == nil {
			t.Error("who woke a box does not get it")
		}
		var missed leases
		missed.start(false, func(r stopRequest) { reason = r.reason })
		missed.end(stopRequest{reason: "done"})
		time.Sleep(2 * firstLease)
		synctest.Wait()
		if reason != "done" || missed.take() {
			t.Errorf("nobody came: it ends for %q", reason)
		}
		var lasting leases
		lasting.start(true, func(stopRequest) { t.Error("a box that outlives its users ends for want of them") })
		time.Sleep(2 * firstLease)
		synctest.Wait()
		if !lasting.take() {
			t.Error("a box that outlives its users refuses one")
		}
		if free := new(leases); !free.end(stopRequest{}) || free.take() {
			t.Error("a box that nobody uses does not end")
		}
	})
}
