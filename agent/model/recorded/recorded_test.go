package recorded_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/recorded"
	"github.com/hutch-sandbox/hutch/agent/model/scripted"
)

func ask(text string, at time.Time) *model.Request {
	return &model.Request{Instructions: "be <brief>", Messages: []model.Message{
		{Kind: model.KindRequest, Time: at, Run: at.String(), Parts: []model.Part{model.UserText(text)}}}}
}

func TestRecordOnceThenReplay(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sub", "r.json")
	var asked atomic.Int64
	live := scripted.Func(func(_ context.Context, req *model.Request) (*model.Response, error) {
		asked.Add(1)
		return scripted.Say("answer to " + req.Messages[0].Parts[0].(model.User).Text()), nil
	})
	m, err := recorded.Open(file, recorded.Options{Model: live})
	if err != nil {
		t.Fatal(err)
	}
	if !m.Recording() {
		t.Error("a file that does not exist is not recorded")
	}
	for _, q := range []string{"one", "two"} {
		if _, err := m.Generate(t.Context(), ask(q, time.Now())); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}

	m, err = recorded.Open(file, recorded.Options{Model: live})
	if err != nil {
		t.Fatal(err)
	}
	if m.Recording() || m.Name() != "scripted:func" {
		t.Errorf("recording %v, name %q", m.Recording(), m.Name())
	}
	for _, q := range []string{"two", "one"} { // another order, another time
		res, err := m.Generate(t.Context(), ask(q, time.Now().Add(time.Hour)))
		if err != nil {
			t.Fatal(err)
		}
		if res.Text() != "answer to "+q {
			t.Errorf("%s: %q", q, res.Text())
		}
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if asked.Load() != 2 {
		t.Errorf("the live model was asked %d times", asked.Load())
	}

	if m, err = recorded.Open(file, recorded.Options{}); err != nil {
		t.Fatal(err)
	}
	_, err = m.Generate(t.Context(), ask("one more", time.Now()))
	if !errors.Is(err, recorded.ErrChanged) || !strings.Contains(err.Error(), `-            "text": "one"`) && !strings.Contains(err.Error(), `-              "text": "one"`) {
		t.Errorf("another request: %v", err)
	}
	if err := m.Close(); !errors.Is(err, recorded.ErrChanged) {
		t.Errorf("requests that were not made: %v", err)
	}

	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m, err = recorded.Open(file, recorded.Options{Model: live, Record: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Generate(t.Context(), ask("three", time.Now())); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(before) == string(after) || !strings.Contains(string(after), "three") {
		t.Error("recording again changed nothing")
	}
}

func TestScrub(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.json")
	opt := recorded.Options{
		Model: scripted.Sequence(scripted.Say("ok")),
		Scrub: func(r *model.Request) { r.Instructions = "" },
	}
	m, err := recorded.Open(file, opt)
	if err != nil {
		t.Fatal(err)
	}
	req := ask("x", time.Now())
	if _, err := m.Generate(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if req.Instructions == "" {
		t.Error("the caller's request was scrubbed")
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if m, err = recorded.Open(file, opt); err != nil {
		t.Fatal(err)
	}
	req.Instructions = "something else"
	if _, err := m.Generate(t.Context(), req); err != nil {
		t.Error(err)
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string]string{"bad": "{", "version": `{"version":9}`} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := recorded.Open(file, recorded.Options{}); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
	if _, err := recorded.Open(filepath.Join(dir, "none"), recorded.Options{}); err == nil {
		t.Error("a missing file was opened without a model")
	}
	if _, err := recorded.Open(filepath.Join(dir, "none"), recorded.Options{Record: true}); err == nil {
		t.Error("recording without a model")
	}
}
