package box

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Policy is a compiled Network. It never changes and may be used by any number
// of goroutines. The questions it answers need no network: what a name
// resolves to is for the caller to know.
type Policy struct {
	preset      NetPreset
	allow, deny []Rule
}

// Verdict is an answer of a Policy.
type Verdict struct {
	Allowed bool `json:"allowed"`
	// Rule that decided, such as "allow *.example.com:443", "deny 10.0.0.0/8" or
	// "preset internet"; empty: no rule did, and what no rule opens is closed.
	Rule string `json:"rule,omitempty"`
	// Reason in words.
	Reason string `json:"reason"`
}

// Name says whether the resolver answers for a name at all. Names are as
// NormalName returns them.
func (p *Policy) Name(name string) Verdict {
	if v := p.deniedName(name, 0, ""); v != nil {
		return *v
	}
	for _, r := range p.allow {
		if r.matchName(name) && (r.isHost() || !resolverNames[name]) {
			return Verdict{true, "allow " + r.String(), "a rule names it"}
		}
	}
	if name == HostName {
		return Verdict{false, "", "the host's loopback needs a rule of its own"}
	}
	if p.preset == NetInternet || p.preset == NetAll {
		return Verdict{true, "preset " + string(p.preset), "the preset opens every name"}
	}
	if resolverNames[name] {
		return Verdict{false, "", "a resolver over HTTPS would be a way around this one"}
	}
	return Verdict{false, "", "no rule names it"}
}

// NameFlow says whether a connection to a name is allowed, if the name resolves
// to an address that Resolved allows. Proto is "tcp" or "udp".
func (p *Policy) NameFlow(name string, port uint16, proto string) Verdict {
	if v := p.deniedName(name, port, proto); v != nil {
		return *v
	}
	for _, r := range p.allow {
		if !r.matchName(name) || !r.matchPort(port, proto) {
			continue
		}
		if !r.isHost() {
			if what := closedToNames(port, proto); what != "" {
				return Verdict{false, "allow " + r.String(), what + " to a name is always closed"}
			}
			if resolverNames[name] {
				continue
			}
		}
		return Verdict{true, "allow " + r.String(), "a rule names it"}
	}
	return Verdict{false, "", "no rule opens that name and port"}
}

// OnlyByName says whether nothing but the name of a connection opens it, so
// that the name has to be checked.
func (p *Policy) OnlyByName() bool { return p.preset == "" || p.preset == NetOff }

// HasNames reports whether any rule is about names.
func (p *Policy) HasNames() bool {
	for _, r := range p.allow {
		if r.name != "" {
			return true
		}
	}
	return p.DeniesNames()
}

// DeniesNames reports whether a deny rule is about names, so that connections
// have to be looked into even where addresses are open.
func (p *Policy) DeniesNames() bool {
	for _, r := range p.deny {
		if r.name != "" {
			return true
		}
	}
	return false
}

// DeniedName returns the verdict of the deny rule that closes a name's port,
// or nil.
func (p *Policy) DeniedName(name string, port uint16, proto string) *Verdict {
	return p.deniedName(name, port, proto)
}

func (p *Policy) deniedName(name string, port uint16, proto string) *Verdict {
	for _, r := range p.deny {
		if r.matchName(name) && r.denies(port, proto) {
			return &Verdict{false, "deny " + r.String(), "a rule closes the name"}
		}
	}
	return nil
}

// Address says whether a connection to an address is allowed whatever its
// name. Own says that the address belongs to the host itself; proto is "tcp" or
// "udp".
func (p *Policy) Address(a netip.Addr, port uint16, proto string, own bool) Verdict {
	for _, r := range p.deny {
		// The two forms of an address are one place.
		if (r.matchAddr(a) || r.matchAddr(a.Unmap())) && r.denies(port, proto) {
			return Verdict{false, "deny " + r.String(), "a rule closes the address"}
		}
	}
	class, block := classify(a)
	if own && class == "" {
		class, block = "the host itself", netip.PrefixFrom(a, a.BitLen())
	}
	for _, r := range p.allow {
		if !r.matchAddr(a) || !r.matchPort(port, proto) {
			continue
		}
		// What is special needs a rule of its own, not one that covers it by
		// being wide.
		if class != "" && (r.prefix.Bits() < block.Bits() || !block.Contains(r.prefix.Addr())) {
			continue
		}
		return Verdict{true, "allow " + r.String(), "a rule names the address"}
	}
	switch {
	case class != "" && (p.preset != NetAll || !localClass(class)):
		return Verdict{false, "", class + " needs an address rule of its own"}
	case p.preset == NetInternet, p.preset == NetAll:
		return Verdict{true, "preset " + string(p.preset), "the preset opens the address"}
	}
	return Verdict{false, "", "no rule opens the address"}
}

// Resolved says whether an address may be the answer for an allowed name: a
// public one may, any other needs an address rule, so that no name can lead
// into a local network.
func (p *Policy) Resolved(a netip.Addr, own bool) Verdict {
	for _, r := range p.deny {
		if (r.matchAddr(a) || r.matchAddr(a.Unmap())) && r.denies(0, "") {
			return Verdict{false, "deny " + r.String(), "a rule closes the address"}
		}
	}
	class, _ := classify(a)
	if class == "" && !own {
		return Verdict{true, "", "a public address"}
	}
	return p.Address(a, 0, "", own)
}

// NormalName checks a DNS name and returns it in lower case without final dot.
// Spellings that programs take for addresses are refused.
func NormalName(s string) (string, error) { return normalName(s) }

// Explanation is what Explain says about a target.
type Explanation struct {
	Verdict
	Host  string `json:"host"` // a name or an address
	Port  uint16 `json:"port"`
	Proto string `json:"proto"`
	// Notes are conditions that only the network knows, and what the gateway
	// will check.
	Notes []string `json:"notes,omitempty"`
}

// Explain says what would happen to a connection, without making one. The
// target is a URL, "host", "host:port" or "host:port/udp"; without a port it is
// that of the URL's scheme, else 443.
func (n Network) Explain(target string) (Explanation, error) {
	p, err := n.Compile()
	if err != nil {
		return Explanation{}, err
	}
	host, port, proto, err := parseTarget(target)
	if err != nil {
		return Explanation{}, &Error{Kind: Invalid, Op: "explain", Object: clip(target), Err: err, Hint: "write a URL, host:port or address:port/udp"}
	}
	e := Explanation{Host: host, Port: port, Proto: proto}
	a, err := netip.ParseAddr(host)
	if err != nil {
		if odd, ok := oddAddress(host); ok {
			e.Notes = append(e.Notes, fmt.Sprintf("programs take %s for the address %s", host, odd))
			a, e.Host = odd, odd.String()
		} else {
			return p.explainName(e)
		}
	}
	e.Verdict = p.Address(a, port, proto, false)
	if a.Unmap().IsLoopback() {
		e.Notes = append(e.Notes, "in a box this is the box itself, which is always open; the host's loopback is "+HostName)
	}
	if !e.Allowed && p.HasNames() && e.Rule == "" {
		e.Notes = append(e.Notes, "it is open while it is the resolver's answer for a name that a rule opens")
	}
	if e.Allowed && p.DeniesNames() {
		e.Notes = append(e.Notes, "a TLS or HTTP connection is closed if it names a denied name")
	}
	return e, nil
}

func (p *Policy) explainName(e Explanation) (Explanation, error) {
	name, err := normalName(e.Host)
	if err != nil {
		return e, &Error{Kind: Invalid, Op: "explain", Object: clip(e.Host), Err: err, Hint: "write a name or an address"}
	}
	e.Host = name
	if e.Verdict = p.Name(name); !e.Allowed {
		e.Notes = append(e.Notes, "the resolver refuses it")
		return e, nil
	}
	if name == HostName {
		e.Verdict = p.NameFlow(name, e.Port, e.Proto)
		return e, nil
	}
	flow := p.NameFlow(name, e.Port, e.Proto)
	byPreset := p.preset == NetInternet || p.preset == NetAll
	switch {
	case flow.Allowed && !byPreset:
		e.Notes = append(e.Notes, "the name must resolve to a public address, or to one that an address rule opens",
			"a TLS connection must name it (SNI), an HTTP request too (Host)")
	case byPreset && p.deniedName(name, e.Port, e.Proto) == nil:
		e.Notes = append(e.Notes, "the name must resolve to an address that the preset or a rule opens")
		flow = e.Verdict
	case !flow.Allowed && flow.Rule == "":
		for _, r := range p.allow {
			if r.prefix.IsValid() && r.matchPort(e.Port, e.Proto) {
				e.Notes = append(e.Notes, "it is open if the name resolves to "+r.String())
			}
		}
	}
	e.Verdict = flow
	return e, nil
}

var schemePorts = map[string]uint16{"http": 80, "ws": 80, "https": 443, "wss": 443, "ssh": 22, "git": 9418, "ftp": 21, "postgres": 5432, "postgresql": 5432, "redis": 6379, "mysql": 3306}

func parseTarget(s string) (host string, port uint16, proto string, err error) {
	port, proto = 443, "tcp"
	if strings.Contains(s, "://") {
		u, err := url.Parse(s)
		if err != nil || u.Hostname() == "" {
			return "", 0, "", errors.New("it is not a URL with a host")
		}
		known, ok := schemePorts[strings.ToLower(u.Scheme)]
		if !ok && u.Port() == "" {
			return "", 0, "", fmt.Errorf("scheme %q has no port known here", clip(u.Scheme))
		}
		port = known
		if u.Port() != "" {
			if port, err = parsePort(u.Port()); err != nil {
				return "", 0, "", err
			}
		}
		return u.Hostname(), port, proto, nil
	}
	for _, p := range []string{"tcp", "udp"} {
		if rest, ok := strings.CutSuffix(s, "/"+p); ok {
			s, proto = rest, p
		}
	}
	host, ports, ok, err := cutPorts(s)
	if err == nil && ok {
		port, err = parsePort(ports)
	}
	if err == nil && host == "" {
		err = errors.New("there is no host")
	}
	return host, port, proto, err
}

// oddAddress reads an IPv4 address as inet_aton does: one to four parts, each
// decimal, octal or hexadecimal, the last one filling what is left.
func oddAddress(s string) (netip.Addr, bool) {
	parts := strings.Split(strings.TrimSuffix(strings.ToLower(s), "."), ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var v uint64
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 0, 32)
		if part == "" || err != nil || strings.ContainsAny(part, "_ob") {
			return netip.Addr{}, false
		}
		if i < len(parts)-1 {
			if n > 255 {
				return netip.Addr{}, false
			}
			v |= n << (8 * (3 - i))
		} else {
			if n >= 1<<(8*(4-i)) {
				return netip.Addr{}, false
			}
			v |= n
		}
	}
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), true
}
