package environ_test

import (
	"slices"
	"testing"

	"github.com/hutch-sandbox/hutch/internal/x/environ"
)

func TestMerge(t *testing.T) {
	for _, tc := range []struct {
		layers [][]string
		want   []string
	}{
		{nil, nil},
		{[][]string{nil, {}}, nil},
		{[][]string{{"A=1", "B=2"}, {"C=3", "A=4"}}, []string{"A=4", "B=2", "C=3"}},
		{[][]string{{"A=1", "A=2"}}, []string{"A=2"}},
		{[][]string{{"A=x=y", "B="}, {"B=\xff\n"}}, []string{"A=x=y", "B=\xff\n"}},
		{[][]string{{"AB=1"}, {"A=2"}}, []string{"AB=1", "A=2"}},
	} {
		if got := environ.Merge(tc.layers...); !slices.Equal(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.layers, got, tc.want)
		}
	}
	base := []string{"A=1"}
	environ.Merge(base, []string{"A=2"})
	if base[0] != "A=1" {
		t.Error("a layer was changed")
	}
}
