package regex_test

import (
	"testing"

	"github.com/hutch-sandbox/hutch/internal/userland/regex"
)

func TestMatches(t *testing.T) {
	bre, ere := regex.Flags{}, regex.Flags{Extended: true}
	for _, c := range []struct {
		pattern string
		f       regex.Flags
		text    string
		lo, hi  int // lo < 0: no match
	}{
		{"abc", bre, "xabcx", 1, 4},
		{"a*", bre, "aaab", 0, 3},
		{"*a", bre, "x*a", 1, 3},
		{`a\{2,3\}`, bre, "aaaa", 0, 3},
		{"a{2}", bre, "aa{2}", 1, 5},
		{"a{2}", ere, "xaa", 1, 3},
		{"a{x", ere, "a{x", 0, 3},
		{`\(ab\)*c`, bre, "ababc", 0, 5},
		{`(a|ab)(c|bcd)`, ere, "abcd", 0, 4}, // leftmost-longest
		{`a\|b`, bre, "xb", 1, 2},
		{"a|b", bre, "a|b", 0, 3},
		{"a+", bre, "a+", 0, 2},
		{`a\+`, bre, "caa", 1, 3},
		{"^ab$", bre, "ab", 0, 2},
		{"a^b", bre, "a^b", 0, 3},
		{"a$b", bre, "a$b", 0, 3},
		{"[]a]*", bre, "]a]b", 0, 3},
		{"[^]]", bre, "]x", 1, 2},
		{"[a-c]", bre, "zb", 1, 2},
		{`[\]`, bre, `a\`, 1, 2},
		{"[[:digit:]]+", ere, "ab12", 2, 4},
		{"[a-]", bre, "-", 0, 1},
		{`\bfoo\b`, ere, "a foo", 2, 5},
		{`\<foo`, bre, "xfoo foo", 5, 8},
		{`\w+`, ere, "  ab_1", 2, 6},
		{`\(.\)\1`, bre, "abccd", 2, 4},
		{`(a*)b\1`, ere, "aabaa", 0, 5},
		{".", bre, "\xff", 0, 1},
		{"é", bre, "caf\u00e9", 3, 5},
		{"zz", bre, "abc", -1, 0},
		{"A", regex.Flags{Fold: true}, "xa", 1, 2},
		{"b", regex.Flags{Line: true}, "ab", -1, 0},
		{"^b", regex.Flags{Multiline: true}, "a\nb", 2, 3},
		{`a\nb`, regex.Flags{Escapes: true}, "a\nb", 0, 3},
		{`[\n]`, regex.Flags{Escapes: true}, "a\n", 1, 2},
		{"()", ere, "x", 0, 0},
		{"a**", bre, "aa", 0, 2},
	} {
		re, err := regex.Compile(c.pattern, c.f)
		if err != nil {
			t.Errorf("%q: %v", c.pattern, err)
			continue
		}
		m := re.Find([]byte(c.text))
		switch {
		case m == nil && c.lo >= 0:
			t.Errorf("%q does not match %q", c.pattern, c.text)
		case m != nil && (c.lo < 0 || m[0] != c.lo || m[1] != c.hi):
			t.Errorf("%q on %q matches [%d,%d), want [%d,%d)", c.pattern, c.text, m[0], m[1], c.lo, c.hi)
		}
		if re.Match([]byte(c.text)) != (c.lo >= 0) {
			t.Errorf("%q: Match and Find disagree on %q", c.pattern, c.text)
		}
	}
}

func TestBadPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern string
		f       regex.Flags
	}{
		{`\(a`, regex.Flags{}}, {`a\)`, regex.Flags{}}, {"(a", regex.Flags{Extended: true}}, {"[a", regex.Flags{}},
		{"[[:nope:]]", regex.Flags{}}, {`a\{2,1\}`, regex.Flags{}}, {`\1`, regex.Flags{}}, {`a\`, regex.Flags{}}, {"[z-a]", regex.Flags{}},
	} {
		if _, err := regex.Compile(c.pattern, c.f); err == nil {
			t.Errorf("%q is accepted", c.pattern)
		}
	}
}

func TestQuoteMatchesItself(t *testing.T) {
	for _, f := range []regex.Flags{{}, {Extended: true}} {
		for _, s := range []string{"a.b*c", "[x]", `\(`, "a+b?{1}|^$", "-]^"} {
			f.Line = true
			re, err := regex.Compile(regex.Quote(s, f), f)
			if err != nil || !re.Match([]byte(s)) {
				t.Errorf("quoted %q does not match itself: %v", s, err)
			}
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, s := range []string{"a*", `\(x\)\1`, "[[:alpha:]]", "a{1,2}", `\`, "[", "(|)"} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, p string, extended bool) {
		re, err := regex.Compile(p, regex.Flags{Extended: extended})
		if err == nil {
			re.Find([]byte("some text aab"))
		}
	})
}
