//go:build linux

package vm_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/internal/engine/enginetest"
	"github.com/hutch-sandbox/hutch/internal/engine/vm"
	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

// BenchmarkFork copies a running machine, idle and with much memory in use.
// "make bench" runs it and puts the medians into docs/benchmarks.md.
func BenchmarkFork(b *testing.B) {
	realengine.Need(b, vm.Name)
	for _, inUse := range []int64{0, 512} {
		b.Run(fmt.Sprintf("%dMiB", inUse), func(b *testing.B) {
			all := enginetest.Fork(b, vm.New(), enginetest.Options{Cache: realengine.Cache(b)}, inUse<<20, b.N)
			report := func(unit string, of func(enginetest.Forked) float64) {
				var values []float64
				for _, f := range all {
					values = append(values, of(f))
				}
				slices.Sort(values)
				b.ReportMetric(values[len(values)/2], unit)
			}
			report("stall-ms", func(f enginetest.Forked) float64 { return float64(f.Stall) / float64(time.Millisecond) })
			report("answer-ms", func(f enginetest.Forked) float64 { return float64(f.Answer) / float64(time.Millisecond) })
			report("copy-MB", func(f enginetest.Forked) float64 { return float64(f.Idle) / 1e6 })
			b.ReportMetric(0, "ns/op")
		})
	}
}
