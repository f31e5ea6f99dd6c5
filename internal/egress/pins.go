package egress

import (
	"container/list"
	"net/netip"
	"slices"
	"time"
)

const (
	// maxPinned bounds the addresses that stand for names. The one that was
	// used least recently goes first.
	maxPinned = 16384
	// maxNames bounds the names of one address: a content network has many.
	maxNames = 64
	// pinTime is how long an address stands for a name after its answer has run
	// out: programs keep answers longer than they should. It only says what a
	// connection is for; what is dialled is a current answer.
	pinTime = time.Hour
)

// pins remember which addresses the box was given for which names. They are
// guarded by the resolver's mutex.
type pins struct {
	byAddr map[netip.Addr]*list.Element // of *pinned
	recent *list.List                   // most recently used first
}

type pinned struct {
	addr  netip.Addr
	names []pinnedName // newest first
}

type pinnedName struct {
	name  string
	until time.Time // the end of the answer's own time
}

func newPins() pins { return pins{byAddr: map[netip.Addr]*list.Element{}, recent: list.New()} }

// add says that addr was an answer for name.
func (p *pins) add(addr netip.Addr, name string, until time.Time) {
	e := p.byAddr[addr]
	if e == nil {
		e = p.recent.PushFront(&pinned{addr: addr})
		p.byAddr[addr] = e
		if p.recent.Len() > maxPinned {
			last := p.recent.Back()
			delete(p.byAddr, last.Value.(*pinned).addr)
			p.recent.Remove(last)
		}
	}
	p.recent.MoveToFront(e)
	at := e.Value.(*pinned)
	at.names = slices.DeleteFunc(at.names, func(n pinnedName) bool { return n.name == name })
	at.names = slices.Insert(at.names, 0, pinnedName{name, until})
	if len(at.names) > maxNames {
		at.names = at.names[:maxNames]
	}
}

// names returns what addr stands for, the newest first.
func (p *pins) names(addr netip.Addr, now time.Time) []string {
	e := p.byAddr[addr]
	if e == nil {
		return nil
	}
	p.recent.MoveToFront(e)
	var out []string
	for _, n := range e.Value.(*pinned).names {
		if now.Before(n.until.Add(pinTime)) {
			out = append(out, n.name)
		}
	}
	return out
}

// current reports whether addr is an answer for one of the names whose time
// has not run out.
func (p *pins) current(addr netip.Addr, names []string, now time.Time) bool {
	e := p.byAddr[addr]
	return e != nil && slices.ContainsFunc(e.Value.(*pinned).names, func(n pinnedName) bool {
		return now.Before(n.until) && slices.Contains(names, n.name)
	})
}
