package tool_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

func TestParseMode(t *testing.T) {
	for _, c := range []struct {
		spec string
		cur  uint32
		dir  bool
		want uint32
	}{
		{"644", 0, false, 0o644}, {"0755", 0o2000, true, 0o2755}, {"00755", 0o2000, true, 0o755}, {"u+x", 0o644, false, 0o744}, {"go-r", 0o644, false, 0o600},
		{"a=r", 0o777, false, 0o444}, {"+x", 0o600, false, 0o711}, {"u=rwx,g=rx,o=", 0, false, 0o750}, {"a+X", 0o600, false, 0o600}, {"a+X", 0o600, true, 0o711},
		{"g=u", 0o700, false, 0o770}, {"u+s", 0o755, false, 0o4755}, {"+t", 0o777, true, 0o1777}, {"o+t", 0o777, true, 0o1777}, {"g-s", 0o2755, false, 0o755}, {"u+rw-x", 0o100, false, 0o600},
	} {
		if got, err := tool.ParseMode(c.spec, c.cur, c.dir, 0o022); err != nil || got != c.want {
			t.Errorf("%s on %o (directory: %v) is %o, %v; want %o", c.spec, c.cur, c.dir, got, err, c.want)
		}
	}
	for _, bad := range []string{"", "8", "u", "u+q", "77777", "+x,"} {
		if _, err := tool.ParseMode(bad, 0, false, 0); err == nil && bad != "" {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{"5": 5, "1b": 512, "2K": 2048, "2k": 2048, "1KB": 1000, "1KiB": 1024, "3M": 3 << 20, "1G": 1 << 30} {
		if got, err := tool.ParseSize(s); err != nil || got != want {
			t.Errorf("%s is %d, %v; want %d", s, got, err, want)
		}
	}
	for _, bad := range []string{"", "-1", "1X", "x", "99999999999999999999", "9999999999G"} {
		if n, err := tool.ParseSize(bad); err == nil {
			t.Errorf("%q is accepted as %d", bad, n)
		}
	}
}

func TestHumanSize(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 1023: "1023", 1024: "1.0K", 1025: "1.1K", 10240: "10K", 10241: "11K", 1 << 20: "1.0M", 1<<20 - 1: "1.0M", 5 << 30: "5.0G"} {
		if got := tool.HumanSize(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}

func TestDates(t *testing.T) {
	now := time.Date(2024, 3, 15, 12, 0, 0, 0, time.UTC)
	for s, want := range map[string]string{
		"@0": "1970-01-01 00:00:00", "2024-02-29": "2024-02-29 00:00:00", "2024-02-29 01:02": "2024-02-29 01:02:00", "2024-02-29T01:02:03Z": "2024-02-29 01:02:03",
		"yesterday": "2024-03-14 12:00:00", "1 hour ago": "2024-03-15 11:00:00", "+2 days": "2024-03-17 12:00:00", "2024-01-01 +1 month": "2024-02-01 00:00:00", "next week": "2024-03-22 12:00:00", "10:30": "2024-03-15 10:30:00",
		"Fri, 01 Mar 2024 10:00:00 +0100": "2024-03-01 09:00:00",
	} {
		got, err := tool.ParseDate(s, now, time.UTC)
		if err != nil || got.UTC().Format("2006-01-02 15:04:05") != want {
			t.Errorf("%q is %v, %v; want %s", s, got, err, want)
		}
	}
	for _, bad := range []string{"nonsense", "2024-13-01", "@x", "5 parsecs"} {
		if _, err := tool.ParseDate(bad, now, time.UTC); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestOptions(t *testing.T) {
	parse := func(args ...string) (string, int, bool) {
		var errs bytes.Buffer
		c := &tool.Context{Name: "t", Args: args, Stdin: strings.NewReader(""), Stdout: tool.NewOutput(&bytes.Buffer{}), Stderr: &errs}
		opts, ops, code, ok := c.Parse(tool.Spec{Short: "ab:c::", Long: []string{"all|a", "base=|b", "color?", "colossal"}, Fail: 2})
		s := ""
		for _, o := range opts {
			s += o.Name + "(" + o.Arg + ") "
		}
		return s + strings.Join(ops, ","), code, ok
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-ab", "x", "op"}, "a() b(x) op"}, {[]string{"-bx", "op", "-a"}, "b(x) a() op"}, {[]string{"--base=q", "--al"}, "b(q) a() "},
		{[]string{"--", "-a"}, "-a"}, {[]string{"-cval", "-c", "x"}, "c(val) c() x"}, {[]string{"--color", "-"}, "color() -"}, {[]string{"--base", "v"}, "b(v) "},
	} {
		if got, _, ok := parse(c.args...); !ok || got != c.want {
			t.Errorf("%q gives %q, want %q", c.args, got, c.want)
		}
	}
	for _, bad := range [][]string{{"-z"}, {"--nope"}, {"-b"}, {"--base"}, {"--col"}, {"--all=x"}} {
		if _, code, ok := parse(bad...); ok || code != 2 {
			t.Errorf("%q: status %d, accepted %v; want a refusal with 2", bad, code, ok)
		}
	}
}
