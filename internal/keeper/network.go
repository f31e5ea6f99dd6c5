package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
	"github.com/hutch-sandbox/hutch/internal/egress"
	"github.com/hutch-sandbox/hutch/internal/guest/client"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

// startNetwork makes the box's gateway and publishes its ports, and returns the
// box's end of the link. What it made is in m, and ended by close.
func (m *machine) startNetwork(home *boxdir.Home, b *boxdir.Box, rec boxdir.Record, values map[string]string, checksums bool) (*os.File, error) {
	secrets := slices.Clone(rec.Spec.Secrets)
	for i := range secrets {
		secrets[i].Value = values[secrets[i].Name]
	}
	if len(secrets) > 0 {
		// A core dump would be a file with the values in it.
		if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
			return nil, fmt.Errorf("forbid core dumps: %w", err)
		}
	}
	var err error
	if m.netlog, err = b.OpenNetLog(); err != nil {
		return nil, fmt.Errorf("network log: %w", err)
	}
	gateway, link, err := egress.NewLink(egress.Config{
		Network: rec.Spec.Network, Links: rec.Spec.Links, Secrets: secrets, ID: rec.ID, Checksums: checksums,
		Record: m.netlog.Record,
		DialBox: func(ctx context.Context, ref string, port int) (net.Conn, error) {
			return dialOther(ctx, home, ref, port)
		},
		DialInside: func(ctx context.Context, port int) (net.Conn, error) {
			agent := m.up.Load()
			if agent == nil {
				return nil, errors.New("the box is not up yet")
			}
			return agent.Dial(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		},
	})
	if err != nil {
		return nil, err
	}
	m.gateway = gateway
	for _, p := range rec.Spec.Ports {
		if _, err := gateway.Publish(p); err != nil {
			link.Close()
			return nil, err
		}
	}
	return link, nil
}

// placeholders is what the box sees of its secrets.
func placeholders(rec boxdir.Record) [][]byte {
	var env [][]byte
	for _, s := range rec.Spec.Secrets {
		env = append(env, []byte(s.Name+"="+egress.Placeholder(rec.ID, s.Name)))
	}
	return env
}

// dialOther connects to a port on the loopback of another box of the home,
// which must be running.
func dialOther(ctx context.Context, home *boxdir.Home, ref string, port int) (net.Conn, error) {
	id, err := home.Find(ref)
	if err != nil {
		return nil, err
	}
	other := home.Box(id)
	if !other.Alive() {
		return nil, fmt.Errorf("box %s is not running", ref)
	}
	t := client.Transport(other.Dial)
	c := client.New(t, "http://keeper", client.Options{})
	conn, err := c.Dial(ctx, "tcp", fmt.Sprintf("localhost:%d", port))
	if err != nil {
		_ = c.Close()
		t.CloseIdleConnections()
		return nil, err
	}
	return &otherConn{Conn: conn, client: c, transport: t}, nil
}

// otherConn is a connection into another box, with the client that made it.
type otherConn struct {
	net.Conn
	client    *client.Client
	transport *http.Transport
}

func (c *otherConn) CloseWrite() error {
	return c.Conn.(interface{ CloseWrite() error }).CloseWrite()
}

func (c *otherConn) Close() error {
	err := c.Conn.Close()
	_ = c.client.Close()
	c.transport.CloseIdleConnections()
	return err
}

// SetNetwork replaces what the box may reach, now and at its next boots.
func (s *boxService) SetNetwork(_ context.Context, req *connect.Request[hutchv1.SetNetworkRequest]) (*connect.Response[hutchv1.SetNetworkResponse], error) {
	n := wire.Network(req.Msg.GetNetwork())
	err := n.Validate()
	if err == nil {
		// On disk first: what is closed must not be open again after a crash.
		_, err = s.k.b.Update(func(r *boxdir.Record) error {
			r.Spec.Network = n
			return r.Spec.Validate()
		})
	}
	if err == nil {
		err = s.k.m.gateway.SetNetwork(n)
	}
	if err != nil {
		return nil, wire.Encode(err)
	}
	return connect.NewResponse(&hutchv1.SetNetworkResponse{}), nil
}

// Publish adds a port, now and at the next boots.
func (s *boxService) Publish(_ context.Context, req *connect.Request[hutchv1.PublishRequest]) (*connect.Response[hutchv1.PublishResponse], error) {
	want := wire.Port(req.Msg.GetPort())
	got, err := s.k.m.gateway.Publish(want)
	if err == nil {
		if err = s.k.changePorts(func(r *boxdir.Record) error {
			r.Spec.Ports = append(slices.Clone(r.Spec.Ports), want)
			return r.Spec.Validate()
		}); err != nil {
			_ = s.k.m.gateway.Unpublish(got)
		}
	}
	if err != nil {
		return nil, wire.Encode(err)
	}
	return connect.NewResponse(&hutchv1.PublishResponse{Port: wire.PortMessage(got)}), nil
}

// Unpublish takes a port away, now and at the next boots.
func (s *boxService) Unpublish(_ context.Context, req *connect.Request[hutchv1.UnpublishRequest]) (*connect.Response[hutchv1.UnpublishResponse], error) {
	p := wire.Port(req.Msg.GetPort())
	err := s.k.m.gateway.Unpublish(p)
	if err == nil {
		err = s.k.changePorts(func(r *boxdir.Record) error {
			r.Spec.Ports = box.WithoutPort(r.Spec.Ports, p)
			return nil
		})
	}
	if err != nil {
		return nil, wire.Encode(err)
	}
	return connect.NewResponse(&hutchv1.UnpublishResponse{}), nil
}

// changePorts writes down what is published.
func (k *keeper) changePorts(change func(*boxdir.Record) error) error {
	_, err := k.b.Update(func(r *boxdir.Record) error {
		if err := change(r); err != nil {
			return err
		}
		r.Ports = k.m.gateway.Ports()
		return nil
	})
	return err
}

// SetSecrets hands over values.
func (s *boxService) SetSecrets(_ context.Context, req *connect.Request[hutchv1.SetSecretsRequest]) (*connect.Response[hutchv1.SetSecretsResponse], error) {
	if err := s.k.m.gateway.SetSecrets(req.Msg.GetValues()); err != nil {
		return nil, wire.Encode(err)
	}
	return connect.NewResponse(&hutchv1.SetSecretsResponse{}), nil
}

// networkStats are the gateway's counters.
func networkStats(s box.NetStats) *hutchv1.NetworkStats {
	return &hutchv1.NetworkStats{
		Sent: uint64(s.Sent), Received: uint64(s.Received), Flows: uint32(s.Flows),
		Allowed: uint64(s.Allowed), Denied: uint64(s.Denied), Queries: uint64(s.Queries), Refused: uint64(s.Refused),
	}
}
