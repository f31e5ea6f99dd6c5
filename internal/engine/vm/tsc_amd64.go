package vm

import "time"

// readTSC reads the processor's time stamp counter.
func readTSC() uint64

// tscKHz measures how fast the time stamp counter runs, in kHz.
//
// A kernel in an emulated machine measures that itself against an emulated
// timer. On a busy host it fails, takes the counter for broken, and then waits
// for ever for a tick that comes too rarely: that is what boots that hung
// without a word were. The counter of an emulated machine is the host's, so
// the host can tell.
func tscKHz() int {
	const window = 50 * time.Millisecond
	t0, c0 := tscSample()
	time.Sleep(window)
	t1, c1 := tscSample()
	return int(float64(c1-c0) / float64(t1.Sub(t0).Nanoseconds()) * 1e6)
}

// tscSample reads counter and clock at the same moment: of several tries the
// one that was interrupted least.
func tscSample() (time.Time, uint64) {
	var at time.Time
	var count uint64
	best := time.Hour
	for range 50 {
		a := time.Now()
		c := readTSC()
		b := time.Now()
		if d := b.Sub(a); d < best {
			best, at, count = d, a.Add(d/2), c
		}
	}
	return at, count
}
