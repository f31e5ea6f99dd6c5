package limits_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/limits"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
	"github.com/hutch-sandbox/hutch/workspace/hostdir"
)

var handle = regexp.MustCompile(`go on with read_result, id=([0-9a-f]{32}), offset=([0-9]+)\]$`)
var more = regexp.MustCompile(`^\[(?:[0-9]+ more bytes; go on with offset=([0-9]+)|end of the result)\]$`)

// TestEveryByteOfALongResult: a result of 20 MB costs the model at most the
// bound, and paging gives the rest to the last byte, with a workspace and
// without.
func TestEveryByteOfALongResult(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	letters := []string{"a", "b", "c", "d", "e", "f", "g", "é", "世", "\n", "😀", " "}
	for b.Len() < 20<<20 {
		b.WriteString(letters[r.IntN(len(letters))])
	}
	whole := b.String()
	const most = 200_000
	for _, where := range []string{"workspace", "memory"} {
		t.Run(where, func(t *testing.T) {
			long := agent.NewTool("long", "", func(context.Context, *agent.Call, struct{}) (string, error) { return whole, nil })
			var got strings.Builder
			m := scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
				last := scripted.Returns(req)
				if len(last) == 0 {
					return scripted.Call("long", "long", "{}"), nil
				}
				text := last[0].Text
				if n := utf8.RuneCountInString(text); n > most {
					t.Errorf("a result of %d characters", n)
				}
				at := strings.LastIndexByte(text, '\n') // the note has the last line for itself
				if h := handle.FindStringSubmatch(text[at+1:]); h != nil {
					got.WriteString(text[:at])
					return scripted.Call("p0", "read_result", fmt.Sprintf(`{"id":%q,"offset":%s}`, h[1], h[2])), nil
				}
				p := more.FindStringSubmatch(text[at+1:])
				if p == nil {
					return nil, fmt.Errorf("no note at the end: %q", text[max(0, len(text)-200):])
				}
				got.WriteString(text[:at])
				if p[1] == "" {
					return scripted.Say("ok"), nil
				}
				// The id is in the call before.
				calls := req.Messages[len(req.Messages)-2].Calls()
				id := calls[0].Args[strings.Index(calls[0].Args, `"id":"`)+6:][:32]
				return scripted.Call("p", "read_result", fmt.Sprintf(`{"id":%q,"offset":%s}`, id, p[1])), nil
			})
			opts := []agent.Option{agent.WithLimits(agent.Limits{Requests: -1})}
			if where == "workspace" {
				d, err := hostdir.New(t.TempDir(), hostdir.Options{})
				if err != nil {
					t.Fatal(err)
				}
				opts = append(opts, agent.WithWorkspace(d))
			}
			if _, err := agent.New(m, long, limits.Outputs(limits.OutputOptions{MaxChars: most})).Run(t.Context(), "go", opts...); err != nil {
				t.Fatal(err)
			}
			if got.String() != whole {
				t.Errorf("the pages together have %d bytes of %d, or others", got.Len(), len(whole))
			}
		})
	}
}

func TestReadResultRefusesWhatItDoesNotKnow(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret.txt"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := hostdir.New(dir, hostdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{`{"id":"../../secret"}`, `{"id":"` + strings.Repeat("0", 32) + `"}`, `{"id":"x","offset":-1}`} {
		a := agent.New(scripted.Sequence(scripted.Call("1", "read_result", args), scripted.Say("ok")), limits.Outputs(limits.OutputOptions{}))
		res, err := a.Run(t.Context(), "go", agent.WithWorkspace(d))
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := res.Messages()[2].Parts[0].(model.Retry); !ok {
			t.Errorf("%s: %+v", args, r)
		}
	}
}

func TestTruncate(t *testing.T) {
	long := agent.NewTool("long", "", func(context.Context, *agent.Call, struct{}) (string, error) {
		return strings.Repeat("line\n", 10_000), nil
	})
	a := agent.New(scripted.Sequence(scripted.Call("1", "long", "{}"), scripted.Say("ok")), long, limits.Outputs(limits.OutputOptions{MaxChars: 5000, Truncate: true}))
	res, err := a.Run(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	text := res.Messages()[2].Parts[0].(model.ToolReturn).Text
	if len(text) > 5000 || !strings.HasSuffix(text, "of 50000 bytes are shown]") {
		t.Errorf("%d: %q", len(text), text[len(text)-100:])
	}
}

// talk is a model that calls a tool a number of times and counts what it is sent.
func talk(times int, usage func(n int) model.Usage, seen func(n int, req *model.Request)) model.Model {
	n := 0
	return scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		if req.Choice.Mode == model.ChooseNone {
			return scripted.Say("SUMMARY of it"), nil
		}
		n++
		seen(n, req)
		res := scripted.Say("done")
		if n <= times {
			res = scripted.Call(fmt.Sprint(n), "big", "{}")
		}
		res.Usage = usage(n)
		return res, nil
	})
}

func big() agent.Tool {
	return agent.NewTool("big", "", func(context.Context, *agent.Call, struct{}) (string, error) { return strings.Repeat("x", 4000), nil })
}

func count(req *model.Request, text string) int {
	n := 0
	for _, m := range req.Messages {
		for _, p := range m.Parts {
			switch p := p.(type) {
			case model.ToolReturn:
				n += strings.Count(p.Text, text)
			case model.Notice:
				n += strings.Count(p.Text, text)
			}
		}
	}
	return n
}

func TestClearResults(t *testing.T) {
	worst := 0
	var last *model.Request
	m := talk(30, func(int) model.Usage { return model.Usage{} }, func(_ int, req *model.Request) {
		last = req
		worst = max(worst, count(req, "xxxx"))
	})
	res, err := agent.New(m, big(), limits.ClearResults{Window: 10_000, Keep: 3}).Run(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	// 7000 tokens are 28000 characters: 7 results, and what there is besides.
	if worst > 8*1000 || count(last, "was removed") == 0 {
		t.Errorf("at most %d results at once", worst/1000)
	}
	if err := model.Validate(res.Messages()); err != nil {
		t.Error(err)
	}
}

func TestCompact(t *testing.T) {
	asked := 0
	m := talk(20, func(n int) model.Usage { return model.Usage{Input: int64(n) * 1000} }, func(n int, req *model.Request) {
		asked = n
		if err := model.Validate(req.Messages); err != nil {
			t.Error(err)
		}
	})
	d, err := hostdir.New(t.TempDir(), hostdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	res, err := agent.New(m, big(), limits.Compact{Window: 12_000, Keep: 4}).Run(t.Context(), "go", agent.WithWorkspace(d))
	if err != nil {
		t.Fatal(err)
	}
	messages := res.Messages()
	if n, ok := messages[0].Parts[0].(model.Notice); !ok || !strings.Contains(n.Text, "SUMMARY of it") {
		t.Errorf("the conversation begins with %+v", messages[0].Parts[0])
	}
	if len(messages) >= 42 || res.Usage.Requests <= int64(asked) {
		t.Errorf("%d messages; %d requests of which %d were not for summaries", len(messages), res.Usage.Requests, asked)
	}
	if model.LatestWorkspace(messages) == nil {
		t.Error("the workspace was lost")
	}
}

func TestWarn(t *testing.T) {
	warned := map[int]bool{}
	m := talk(5, func(int) model.Usage { return model.Usage{} }, func(n int, req *model.Request) { warned[n] = count(req, "You have used") > 0 })
	res, err := agent.New(m, big(), limits.Warn{Share: 0.75}).Run(t.Context(), "go", agent.WithLimits(agent.Limits{Requests: 8}))
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 6; n++ {
		if warned[n] != (n >= 6) {
			t.Errorf("request %d of 8: warned %v", n, warned[n])
		}
	}
	if count(&model.Request{Messages: res.Messages()}, "You have used") != 0 {
		t.Error("the warning is in the history")
	}
}
