//go:build linux

package agent

import (
	"strings"
	"testing"
)

func TestBundleWith(t *testing.T) {
	const theirs = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	one := string(bundleWith([]byte(theirs), []byte("ONE\n")))
	if !strings.HasPrefix(one, theirs) || strings.Count(one, "ONE") != 1 {
		t.Errorf("the first time: %q", one)
	}
	two := string(bundleWith([]byte(one+"LATER\n"), []byte("TWO")))
	if !strings.HasPrefix(two, theirs) || strings.Contains(two, "ONE") || strings.Count(two, "TWO\n") != 1 || !strings.Contains(two, "LATER\n") {
		t.Errorf("the second time: %q", two)
	}
	if again := string(bundleWith([]byte(two), []byte("TWO"))); again != two {
		t.Errorf("the third time: %q, was %q", again, two)
	}
	if got := string(bundleWith([]byte("no end of line"), []byte("X"))); !strings.HasPrefix(got, "no end of line\n"+caBegin) {
		t.Errorf("a bundle without an end of line: %q", got)
	}
}
