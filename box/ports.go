package box

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Port publishes a port of a box on the host. A server in the box is reached
// wherever it listens: on all addresses or, for TCP, on the box's loopback
// alone.
type Port struct {
	// IP is the host address to listen on. Empty: 127.0.0.1, so that only the
	// host itself can connect; "0.0.0.0" or "::" opens it to others.
	IP string `json:"ip,omitempty"`
	// Host is the port on the host. Zero: a free one is chosen at every start
	// and shown in Info.Ports.
	Host int `json:"host,omitempty"`
	// Box is the port in the box.
	Box int `json:"box"`
	// Proto is "tcp" or "udp". Empty: "tcp".
	Proto string `json:"proto,omitempty"`
}

// Protocol returns Proto with its default.
func (p Port) Protocol() string {
	if p.Proto == "" {
		return "tcp"
	}
	return p.Proto
}

// HostAddr is the address on the host, as net.Dial takes it.
func (p Port) HostAddr() string {
	ip := p.IP
	if ip == "" {
		ip = "127.0.0.1"
	}
	return net.JoinHostPort(ip, strconv.Itoa(p.Host))
}

// String is the port as ParsePorts reads it.
func (p Port) String() string {
	s := fmt.Sprintf("%s:%d", p.HostAddr(), p.Box)
	if p.Proto == "udp" {
		s += "/udp"
	}
	return s
}

// maxPorts bounds the ports of a box.
const maxPorts = 1000

// ParsePorts reads "[IP:]HOST:BOX[/udp]". HOST may be 0 for any free port; HOST
// and BOX may be ranges of the same length, "8000-8010:80-90", which make a
// Port each.
func ParsePorts(s string) ([]Port, error) {
	rest, proto := s, ""
	if r, ok := strings.CutSuffix(rest, "/udp"); ok {
		rest, proto = r, "udp"
	} else if r, ok := strings.CutSuffix(rest, "/tcp"); ok {
		rest = r
	}
	left, inBox, ok := cutLast(rest, ':')
	if !ok {
		return nil, errors.New("write HOST:BOX, such as 8080:80, or 0:80 for any free host port")
	}
	ip, onHost, withIP := cutLast(left, ':')
	if !withIP {
		ip, onHost = "", left
	} else {
		if inner, ok := strings.CutPrefix(ip, "["); ok {
			if ip, ok = strings.CutSuffix(inner, "]"); !ok {
				return nil, fmt.Errorf("%q has an open bracket", clip(s))
			}
		}
		a, err := netip.ParseAddr(ip)
		if err != nil {
			return nil, fmt.Errorf("%q is not an address of this host; write for example 127.0.0.1:8080:80", clip(ip))
		}
		ip = a.String()
	}
	hostLow, hostHigh, err := portSpan(onHost, true)
	if err != nil {
		return nil, err
	}
	boxLow, boxHigh, err := portSpan(inBox, false)
	if err != nil {
		return nil, err
	}
	n := boxHigh - boxLow
	if hostLow != 0 && hostHigh-hostLow != n {
		return nil, fmt.Errorf("the ranges %s and %s have different lengths", clip(onHost), clip(inBox))
	}
	if n >= maxPorts {
		return nil, fmt.Errorf("the range %s has more than %d ports", clip(inBox), maxPorts)
	}
	ports := make([]Port, 0, n+1)
	for i := range n + 1 {
		p := Port{IP: ip, Box: boxLow + i, Proto: proto}
		if hostLow != 0 {
			p.Host = hostLow + i
		}
		ports = append(ports, p)
	}
	return ports, nil
}

func cutLast(s string, sep byte) (before, after string, ok bool) {
	if i := strings.LastIndexByte(s, sep); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return s, "", false
}

func portSpan(s string, zero bool) (low, high int, err error) {
	if zero && s == "0" {
		return 0, 0, nil
	}
	a, b, isRange := strings.Cut(s, "-")
	if !isRange {
		b = a
	}
	l, err := parsePort(a)
	if err != nil {
		return 0, 0, err
	}
	h, err := parsePort(b)
	if err != nil {
		return 0, 0, err
	}
	if h < l {
		return 0, 0, fmt.Errorf("the range of ports %s runs backwards", clip(s))
	}
	return int(l), int(h), nil
}

// Validate reports what is wrong with the port by itself.
func (p Port) Validate() error { return validatePort("port", p) }

func validatePort(field string, p Port) error {
	switch {
	case p.Box < 1 || p.Box > 65535:
		return fieldError(field+".box", "use 1 to 65535", "%d is not a port", p.Box)
	case p.Host < 0 || p.Host > 65535:
		return fieldError(field+".host", "use 1 to 65535, or 0 for any free one", "%d is not a port", p.Host)
	case p.Proto != "" && p.Proto != "tcp" && p.Proto != "udp":
		return fieldError(field+".proto", `use "tcp" or "udp"`, "unknown protocol %q", clip(p.Proto))
	}
	if p.IP != "" {
		if _, err := netip.ParseAddr(p.IP); err != nil {
			return fieldError(field+".ip", "use an address of the host, or leave it out for 127.0.0.1", "%q is not an address", clip(p.IP))
		}
	}
	return nil
}

func validatePorts(s Spec) error {
	if len(s.Ports) > maxPorts {
		return fieldError("ports", fmt.Sprintf("use at most %d", maxPorts), "%d ports are too many", len(s.Ports))
	}
	type place struct{ addr, proto string }
	seen := map[place]bool{}
	for i, p := range s.Ports {
		field := fmt.Sprintf("ports[%d]", i)
		if err := validatePort(field, p); err != nil {
			return err
		}
		at := place{p.HostAddr(), p.Protocol()}
		if p.Host != 0 && seen[at] {
			return fieldError(field, "give every port a host port of its own", "%s/%s is used twice", at.addr, at.proto)
		}
		seen[at] = true
	}
	return nil
}

// Link opens one port of another box, and nothing else of it, under a name.
type Link struct {
	// Name is what the box calls it; only this name resolves to it.
	Name string `json:"name"`
	// Box is the other box: a name or an id of the same home, looked up at each
	// connection. It must be running then.
	Box string `json:"box"`
	// Port is the TCP port in the other box, and the one to connect to.
	Port int `json:"port"`
}

// ParseLink reads "NAME=BOX:PORT".
func ParseLink(s string) (Link, error) {
	name, target, ok := strings.Cut(s, "=")
	ref, port, ok2 := cutLast(target, ':')
	if !ok || !ok2 || name == "" || ref == "" {
		return Link{}, errors.New("write NAME=BOX:PORT, such as db=postgres:5432")
	}
	n, err := parsePort(port)
	if err != nil {
		return Link{}, err
	}
	return Link{Name: name, Box: ref, Port: int(n)}, nil
}

// String is the link as ParseLink reads it.
func (l Link) String() string { return fmt.Sprintf("%s=%s:%d", l.Name, l.Box, l.Port) }

const maxLinks = 100

func validateLinks(s Spec) error {
	if len(s.Links) > maxLinks {
		return fieldError("links", fmt.Sprintf("use at most %d", maxLinks), "%d links are too many", len(s.Links))
	}
	seen := map[string]bool{}
	for i, l := range s.Links {
		field := fmt.Sprintf("links[%d]", i)
		name, err := normalName(l.Name)
		switch {
		case err != nil:
			return fieldError(field+".name", "use a host name such as db", "%w", err)
		case name == HostName:
			return fieldError(field+".name", "choose another name", "%s is the host's loopback", HostName)
		case seen[name]:
			return fieldError(field+".name", "give every link a name of its own", "%s is used twice", name)
		case l.Box == "" || strings.ContainsAny(l.Box, "/\x00"):
			return fieldError(field+".box", "use a box's name or id", "%q is not a box", clip(l.Box))
		case l.Port < 1 || l.Port > 65535:
			return fieldError(field+".port", "use 1 to 65535", "%d is not a port", l.Port)
		}
		seen[name] = true
	}
	return nil
}

// WithoutPort returns ports without the one that p names: the one with p's host
// address, host port and protocol or, where ports leaves the choice of the host
// port open, with its box port.
func WithoutPort(ports []Port, p Port) []Port {
	var out []Port
	found := false
	for _, pass := range []bool{true, false} {
		out = out[:0:0]
		for _, q := range ports {
			same := q.Protocol() == p.Protocol() && (p.Box == 0 || q.Box == p.Box)
			if pass {
				same = same && q.HostAddr() == p.HostAddr()
			} else {
				same = same && q.Host == 0
			}
			if same && !found {
				found = true
				continue
			}
			out = append(out, q)
		}
		if found {
			break
		}
	}
	return out
}
