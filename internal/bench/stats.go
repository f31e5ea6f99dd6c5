package main

import (
	"fmt"
	"slices"
	"time"
)

// sample is what one contestant gave in one row: values in the row's unit, of
// the attempts that worked.
type sample struct {
	values   []float64
	attempts int
	failure  string // the first one
	skip     string // why there is nothing
}

// ok adds a value.
func (s *sample) ok(v float64) {
	s.attempts++
	s.values = append(s.values, v)
}

// fail adds an attempt that did not work.
func (s *sample) fail(err error) {
	s.attempts++
	if s.failure == "" {
		s.failure = err.Error()
	}
}

func (s *sample) add(v float64, err error) {
	if err != nil {
		s.fail(err)
		return
	}
	s.ok(v)
}

// merge adds what another sample has.
func (s *sample) merge(o sample) {
	s.values = append(s.values, o.values...)
	s.attempts += o.attempts
	if s.failure == "" {
		s.failure = o.failure
	}
}

// quantile returns the value below which the share q of the values lies, by
// nearest rank: for the few values there are here, one that was measured.
func (s *sample) quantile(q float64) float64 {
	if len(s.values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s.values))
	n := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(n, 0), len(sorted)-1)]
}

// median is the middle value, or the mean of the two middle ones.
func (s *sample) median() float64 {
	if len(s.values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s.values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// cell is the sample in the table.
func (s *sample) cell() string {
	switch {
	case s == nil:
		return "–"
	case s.skip != "":
		return "– (" + s.skip + ")"
	case len(s.values) == 0:
		return "failed: " + s.failure
	}
	text := number(s.median())
	if len(s.values) > 1 {
		text = fmt.Sprintf("**%s** (p95 %s; %s–%s)", text, number(s.quantile(0.95)), number(slices.Min(s.values)), number(slices.Max(s.values)))
	} else {
		text = "**" + text + "**"
	}
	if len(s.values) < s.attempts {
		text += fmt.Sprintf("; %d of %d worked", len(s.values), s.attempts)
	}
	return text
}

// number writes v with about three digits.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
