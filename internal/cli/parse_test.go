package cli

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/box"
)

// accepts checks what a parser makes of good input; bad input is TestUsage's.
func accepts[T any](t *testing.T, parse func(string) (T, error), want map[string]T) {
	t.Helper()
	for in, w := range want {
		got, err := parse(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
		} else if diff := cmp.Diff(w, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
}

func TestParsers(t *testing.T) {
	accepts(t, parseSize, map[string]int64{"512m": 512 << 20, "2g": 2 << 30, "1.5G": 3 << 29, "64MiB": 64 << 20, "1048576": 1 << 20, "1kb": 1024, "3b": 3})
	accepts(t, parseCPUs, map[string]float64{"0.5": 0.5, "2": 2, "1e1": 10})
	accepts(t, parseDuration, map[string]time.Duration{"0": 0, "10": 10 * time.Second, "1.5": 1500 * time.Millisecond, "1m30s": 90 * time.Second, "5ms": 5 * time.Millisecond})
	accepts(t, parseSignal, map[string]syscall.Signal{"TERM": syscall.SIGTERM, "SIGHUP": syscall.SIGHUP, "usr1": syscall.SIGUSR1, "9": syscall.SIGKILL, "64": 64})
	accepts(t, parseTail, map[string]int{"all": -1, "0": 0, "20": 20})
	accepts(t, parseRestart, map[string]box.RestartPolicy{
		"no": {}, "always": {When: box.RestartAlways}, "on-failure": {When: box.RestartOnFailure},
		"on-failure:3": {When: box.RestartOnFailure, Max: 3},
	})
	accepts(t, parseVolume, map[string]box.Volume{
		"/a:/b": {Host: "/a", Target: "/b"}, "./a:/b:ro": {Host: "./a", Target: "/b", ReadOnly: true},
		"a/b:/c:rw": {Host: "a/b", Target: "/c"}, "cache:/c": {Name: "cache", Target: "/c"}, "..:/c": {Host: "..", Target: "/c"},
	})
	accepts(t, parseWords, map[string][]string{"a": {"a"}, "a,b,c": {"a", "b", "c"}})
	accepts(t, parseDetachKeys, map[string][]byte{
		"": nil, "ctrl-p,ctrl-q": {16, 17}, "a,ctrl-@": {'a', 0}, "ctrl-[,ctrl-\\,ctrl-],ctrl-^,ctrl-_": {27, 28, 29, 30, 31}, "ctrl-A": {1},
	})
	accepts(t, parseKeyValue, map[string][2]string{"a=b=c": {"a", "b=c"}, "a": {"a", ""}, "a=": {"a", ""}})

	e := newEnv(App{Now: func() time.Time { return time.Unix(1000, 0) }})
	for in, want := range map[string]time.Time{
		"10m": time.Unix(400, 0), "500": time.Unix(500, 0), "1970-01-01T00:10:00Z": time.Unix(600, 0), "0.5": time.Unix(0, 5e8),
	} {
		if got, err := e.parseSince(in); err != nil || !got.Equal(want) {
			t.Errorf("since %q is %v (%v), want %v", in, got, err, want)
		}
	}
}

func TestImageChanges(t *testing.T) {
	var got box.ImageConfig
	for _, line := range []string{
		`CMD ["sh", "-l"]`, "ENTRYPOINT exec server", "ENV A=b c", "env B=", "LABEL k=v=w", "USER 1:2", "WORKDIR /w", "STOPSIGNAL SIGINT",
	} {
		if err := applyChange(&got, line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	want := box.ImageConfig{
		Cmd: []string{"sh", "-l"}, Entrypoint: []string{"/bin/sh", "-c", "exec server"}, Env: []string{"A=b c", "B="},
		Labels: map[string]string{"k": "v=w"}, User: "1:2", Dir: "/w", StopSignal: "SIGINT",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, line := range []string{"", "CMD", "CMD [", "CMD []", "ENV A", "ENV =a", "LABEL a", "LABEL =a", "STOPSIGNAL x", "WORKDIR w", "RUN x"} {
		if err := applyChange(&box.ImageConfig{}, line); err == nil {
			t.Errorf("%q was taken", line)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain ü 漢":       "plain ü 漢",
		"\x1b[31mred\a":   `\x1b[31mred\a`,
		"two\nlines\t.":   `two\nlines\t.`,
		"\xff\xfe":        `\xff\xfe`,
		"rtl\u202eoverr":  `rtl\u202eoverr`,
		"real\ufffdrune":  "real\ufffdrune",
		"zero\u200bwidth": `zero\u200bwidth`,
	} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) is %q, want %q", in, got, want)
		}
	}
}

func TestStatus(t *testing.T) {
	now := time.Unix(100000, 0)
	e := newEnv(App{Now: func() time.Time { return now }})
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for want, info := range map[string]box.Info{
		"Created":                           {State: box.Created},
		"Up 2 minutes":                      {State: box.Running, StartedAt: ago(2 * time.Minute)},
		"Exited (3) About an hour ago":      {State: box.Stopped, StoppedAt: ago(time.Hour), Exit: &box.ExitStatus{Code: 3, Reason: box.Exited}},
		"Out of memory (137) 5 seconds ago": {State: box.Stopped, StoppedAt: ago(5 * time.Second), Exit: &box.ExitStatus{Code: 137, Reason: box.OutOfMemory}},
		"Stopped 3 days ago":                {State: box.Stopped, StoppedAt: ago(72 * time.Hour)},
		"Failed: no engine":                 {State: box.Failed, Reason: "no engine"},
	} {
		if got := e.status(info); got != want {
			t.Errorf("%+v shows as %q, want %q", info, got, want)
		}
	}
}

func TestStatusError(t *testing.T) {
	for _, tt := range []struct {
		status box.ExitStatus
		code   int
		line   string // in the message; empty: none is printed
	}{
		{box.ExitStatus{Reason: box.Exited}, 0, ""},
		{box.ExitStatus{Reason: box.Exited, Code: 7}, 7, ""},
		{box.ExitStatus{Reason: box.Exited, Code: 137, Signal: 9}, 137, ""},
		{box.ExitStatus{Reason: box.Exited, Signal: 15}, 143, ""},
		{box.ExitStatus{Reason: box.NotStarted, Code: 127, Message: "nosuch: not found"}, 127, "nosuch: not found; "},
		{box.ExitStatus{Reason: box.NotStarted, Code: 127, Message: "x: not found"}, 127, "hutch: run: x: not found; "},
		{box.ExitStatus{Reason: box.NotStarted, Code: 126}, 126, "executable"},
		{box.ExitStatus{Reason: box.TimedOut, Code: 137, Signal: 9}, 124, "--timeout"},
		{box.ExitStatus{Reason: box.OutOfMemory, Code: 137, Signal: 9}, 137, "--memory"},
		{box.ExitStatus{Reason: box.Killed, Code: 137, Signal: 9}, 137, ""},
	} {
		var stderr strings.Builder
		e := newEnv(App{Stderr: &stderr})
		if code := e.report(t.Context(), statusError("run: x", tt.status)); code != tt.code {
			t.Errorf("%+v ends with %d, want %d", tt.status, code, tt.code)
		}
		if got := stderr.String(); (got == "") != (tt.line == "") || !strings.Contains(got, tt.line) {
			t.Errorf("%+v prints %q, want %q in it", tt.status, got, tt.line)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string][2]string{
		"docker.io/library/python:3.12-slim": {"python", "3.12-slim"},
		"index.docker.io/library/python:3":   {"python", "3"},
		"docker.io/me/app:1":                 {"me/app", "1"},
		"localhost:5000/app":                 {"localhost:5000/app", "<none>"},
		"localhost:5000/app:2":               {"localhost:5000/app", "2"},
		"app@sha256:00":                      {"app", "sha256:00"},
		"dev":                                {"dev", "<none>"},
	} {
		if r, tag := splitName(name); r != want[0] || tag != want[1] {
			t.Errorf("%s splits into %q and %q, want %q", name, r, tag, want)
		}
	}
}

func TestResolveEnvironment(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{
		"a.env": "\xef\xbb\xbf# comment\n\n  A=1\nB=two words = \"kept\"  \nHOST\nABSENT\n#C=3\nD=\n",
		"b.env": "A=again\r\n",
	})
	e := newEnv(App{Dir: dir, Environ: []string{"HOST=h", "SECRET=s", "E=old", "E=new"}})
	v := environment{files: []string{"a.env", "b.env"}, vars: []string{"A=flag", "E", "NOT_THERE", "F=", "G=a=b\nc"}}
	got, err := v.resolve(e)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"A=1", `B=two words = "kept"  `, "HOST=h", "D=", "A=again", "A=flag", "E=new", "F=", "G=a=b\nc"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
