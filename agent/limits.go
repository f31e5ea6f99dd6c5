package agent

import (
	"sync"

	"github.com/hutch-sandbox/hutch/agent/model"
)

// meter counts what a run uses and holds it to its limits, and to those of the
// run that it is a part of.
type meter struct {
	parent *meter
	limits Limits

	mu   sync.Mutex
	used model.Usage
}

func (m *meter) usage() model.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// request takes one model request, if all limits allow.
func (m *meter) request() error {
	return m.take(model.Usage{Requests: 1}, func(l Limits, u model.Usage) error {
		most := l.Requests
		if most == 0 {
			most = DefaultRequests
		}
		if err := over("requests", most, u.Requests); most > 0 && err != nil {
			return err
		}
		return tokens(l, u)
	})
}

// calls takes n tool calls, if all limits allow.
func (m *meter) calls(n int) error {
	return m.take(model.Usage{ToolCalls: int64(n)}, func(l Limits, u model.Usage) error {
		return over("tool calls", l.ToolCalls, u.ToolCalls)
	})
}

// response counts tokens, which are spent already.
func (m *meter) response(u model.Usage) error {
	u.Requests, u.ToolCalls = 0, 0
	var first error
	for at := m; at != nil; at = at.parent {
		at.mu.Lock()
		at.used = at.used.Add(u)
		if err := tokens(at.limits, at.used); err != nil && first == nil {
			first = err
		}
		at.mu.Unlock()
	}
	return first
}

func tokens(l Limits, u model.Usage) error {
	if err := over("input tokens", l.InputTokens, u.Input); err != nil {
		return err
	}
	if err := over("output tokens", l.OutputTokens, u.Output); err != nil {
		return err
	}
	return over("total tokens", l.TotalTokens, u.Total())
}

func over(name string, most, got int64) error {
	if most > 0 && got > most {
		return &LimitError{Limit: name, Most: most, Got: got}
	}
	return nil
}

// take adds to all meters of the chain or to none. Locks are taken from the
// inner run outwards.
func (m *meter) take(u model.Usage, allowed func(Limits, model.Usage) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := allowed(m.limits, m.used.Add(u)); err != nil {
		return err
	}
	if m.parent != nil {
		if err := m.parent.take(u, allowed); err != nil {
			return err
		}
	}
	m.used = m.used.Add(u)
	return nil
}
