package keeper

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// maxChannels is how many connections to the guest agent there may be. All
// calls share one or two, unless the agent lets them not, or keeps connections
// that it takes no calls on.
const maxChannels = 64

// channel is the keeper's connections to the guest agent. The agent is part of
// the box: it may keep them open and take nothing, for ever.
type channel struct {
	dial func(ctx context.Context) (net.Conn, error)

	mu     sync.Mutex // guards the fields below
	open   map[*channelConn]struct{}
	dialed int // connections that are open or being made
	down   bool
}

var (
	errChannels = errors.New("the guest agent keeps too many connections open")
	errCut      = errors.New("the box has been taken down")
)

// Dial connects to the agent.
func (c *channel) Dial(ctx context.Context) (net.Conn, error) {
	c.mu.Lock()
	switch {
	case c.down:
		c.mu.Unlock()
		return nil, errCut
	case c.dialed >= maxChannels:
		c.mu.Unlock()
		return nil, errChannels
	}
	c.dialed++
	c.mu.Unlock()
	conn, err := c.dial(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.dialed--
		return nil, err
	}
	if c.down {
		c.dialed--
		_ = conn.Close()
		return nil, errCut
	}
	cc := &channelConn{Conn: conn, c: c}
	if c.open == nil {
		c.open = map[*channelConn]struct{}{}
	}
	c.open[cc] = struct{}{}
	return cc, nil
}

// cut ends all connections, and who waits for them, and refuses new ones.
func (c *channel) cut() {
	c.mu.Lock()
	c.down = true
	open := make([]*channelConn, 0, len(c.open))
	for cc := range c.open {
		open = append(open, cc)
	}
	c.mu.Unlock()
	for _, cc := range open {
		// Closing alone leaves a write waiting for room.
		_ = cc.SetDeadline(time.Unix(1, 0))
		_ = cc.Close()
	}
}

// channelConn is one of the connections.
type channelConn struct {
	net.Conn
	c *channel
}

// Close closes the connection and no longer counts it.
func (cc *channelConn) Close() error {
	cc.c.mu.Lock()
	if _, ok := cc.c.open[cc]; ok {
		delete(cc.c.open, cc)
		cc.c.dialed--
	}
	cc.c.mu.Unlock()
	return cc.Conn.Close()
}
