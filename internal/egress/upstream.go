package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// hostResolver asks as the host would: its hosts file first, then the resolvers
// of its resolv.conf. Both are read again when they change.
type hostResolver struct {
	mu      sync.Mutex
	looked  time.Time
	hosts   confFile
	conf    confFile
	names   map[string][]netip.Addr
	servers []string
}

// confFile is a file that may change.
type confFile struct {
	mod  time.Time
	size int64
}

const (
	hostsFile  = "/etc/hosts"
	resolvConf = "/etc/resolv.conf"
	// hostsTTL is how long an address of the hosts file is good, in seconds.
	hostsTTL = 30
)

// changed reads a file if it is not as it was.
func (c *confFile) changed(path string) ([]byte, bool) {
	fi, err := os.Stat(path)
	if err != nil || fi.ModTime().Equal(c.mod) && fi.Size() == c.size || fi.Size() > 4<<20 {
		return nil, false
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, false
	}
	c.mod, c.size = fi.ModTime(), fi.Size()
	return data, true
}

// settings returns what the host is configured to.
func (h *hostResolver) settings() (names map[string][]netip.Addr, servers []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.looked) > 2*time.Second {
		h.looked = time.Now()
		if data, ok := h.hosts.changed(hostsFile); ok {
			h.names = parseHosts(data)
		}
		if data, ok := h.conf.changed(resolvConf); ok {
			h.servers = parseServers(data)
		}
		if len(h.servers) == 0 {
			h.servers = []string{"127.0.0.1:53"} // as resolv.conf(5) says
		}
	}
	return h.names, h.servers
}

func parseHosts(data []byte) map[string][]netip.Addr {
	names := map[string][]netip.Addr{}
	for line := range bytes.Lines(data) {
		text, _, _ := strings.Cut(string(line), "#")
		f := strings.Fields(text)
		if len(f) < 2 {
			continue
		}
		addr, err := netip.ParseAddr(f[0])
		if err != nil || addr.Zone() != "" {
			continue
		}
		for _, name := range f[1:] {
			names[normal(name)] = append(names[normal(name)], addr)
		}
	}
	return names
}

func parseServers(data []byte) []string {
	var servers []string
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) >= 2 && f[0] == "nameserver" && len(servers) < 3 {
			if a, err := netip.ParseAddr(f[1]); err == nil {
				servers = append(servers, net.JoinHostPort(a.String(), "53"))
			}
		}
	}
	return servers
}

// Exchange asks the hosts file and then each resolver in turn.
func (h *hostResolver) Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	names, servers := h.settings()
	asked := q.Question[0]
	if addrs := names[normal(asked.Name)]; len(addrs) > 0 && (asked.Qtype == dns.TypeA || asked.Qtype == dns.TypeAAAA) {
		return hostsAnswer(q, addrs), nil
	}
	var last error
	for range 2 {
		for _, server := range servers {
			resp, err := exchange(ctx, q, server)
			if err == nil && resp.Rcode != dns.RcodeServerFailure && resp.Rcode != dns.RcodeRefused {
				return resp, nil
			}
			if err == nil {
				err = fmt.Errorf("the host's resolver said %s", strings.ToLower(dns.RcodeToString[resp.Rcode]))
			}
			if last = err; ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
	}
	return nil, last
}

func hostsAnswer(q *dns.Msg, addrs []netip.Addr) *dns.Msg {
	asked := q.Question[0]
	m := new(dns.Msg)
	m.SetReply(q)
	for _, a := range addrs {
		hdr := dns.RR_Header{Name: asked.Name, Rrtype: asked.Qtype, Class: dns.ClassINET, Ttl: hostsTTL}
		switch {
		case a.Is4() && asked.Qtype == dns.TypeA:
			m.Answer = append(m.Answer, &dns.A{Hdr: hdr, A: a.AsSlice()})
		case a.Is6() && asked.Qtype == dns.TypeAAAA:
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: hdr, AAAA: a.AsSlice()})
		}
	}
	return m
}

// exchange asks one resolver, over TCP where the answer does not fit.
func exchange(ctx context.Context, q *dns.Msg, server string) (*dns.Msg, error) {
	for _, network := range []string{"udp", "tcp"} {
		q = q.Copy()
		q.Id = dns.Id() // one that nobody can have seen
		c := dns.Client{Net: network, Timeout: 2 * time.Second, UDPSize: 1232}
		resp, _, err := c.ExchangeContext(ctx, q, server)
		if err != nil {
			return nil, fmt.Errorf("the host's resolver: %w", err)
		}
		if len(resp.Question) != 1 || !strings.EqualFold(resp.Question[0].Name, q.Question[0].Name) || resp.Question[0].Qtype != q.Question[0].Qtype {
			return nil, errors.New("the host's resolver answered another question")
		}
		if !resp.Truncated {
			return resp, nil
		}
	}
	return nil, errors.New("the host's resolver has only a part of the answer")
}
