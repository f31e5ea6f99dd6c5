package box

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Rule is one parsed rule of a Network. The zero value matches nothing.
type Rule struct {
	name     string       // lower case, without final dot; of "*.name" the part after the dot
	wildcard bool         // "*.name"
	prefix   netip.Prefix // of an address rule
	ports    []portRange  // sorted, apart; empty: all
	proto    string       // "tcp", "udp", or "" for the default of the kind of rule
}

type portRange struct{ low, high uint16 }

// ParseRule reads a rule:
//
//	rule  = what [ ":" ports ] [ "/" ( "tcp" | "udp" ) ]
//	what  = name | "*." name | address | address "/" bits
//	ports = port [ "-" port ] { "," port [ "-" port ] }
//
// An IPv6 address or range with ports stands in brackets: [2001:db8::/32]:443.
// A name rule is about exactly that name, "*.name" about every name below it at
// any depth and not about the name itself. Without ports a rule is about all of
// them. Without a protocol, a name rule is about TCP and an address rule about
// TCP and UDP.
func ParseRule(s string) (Rule, error) {
	var r Rule
	bad := func(format string, args ...any) (Rule, error) {
		return Rule{}, fmt.Errorf("rule %q: "+format, append([]any{clip(s)}, args...)...)
	}
	what := s
	switch {
	case s == "":
		return Rule{}, errors.New("the rule is empty")
	case len(s) > 1024:
		return bad("it is longer than 1024 bytes")
	case strings.Contains(s, "://"):
		return bad("a rule has no scheme or path; write for example pypi.org:443")
	}
	for _, proto := range []string{"tcp", "udp"} {
		if rest, ok := strings.CutSuffix(what, "/"+proto); ok {
			what, r.proto = rest, proto
		}
	}
	what, ports, hasPorts, err := cutPorts(what)
	if err != nil {
		return bad("%w", err)
	}
	if hasPorts {
		if r.ports, err = parsePorts(ports); err != nil {
			return bad("%w", err)
		}
	}
	if r.prefix, err = parsePrefix(what); err == nil {
		return r, nil
	} else if err != errNoAddress {
		return bad("%w", err)
	}
	name := what
	if name, r.wildcard = strings.CutPrefix(what, "*."); !r.wildcard && strings.Contains(what, "*") {
		if what == "*" {
			return bad(`it would open everything; use the preset "internet"`)
		}
		return bad("a star stands only before a dot at the beginning, as in *.example.com")
	}
	if r.name, err = normalName(name); err != nil {
		return bad("%w", err)
	}
	return r, nil
}

// cutPorts splits "what:ports", taking brackets off.
func cutPorts(s string) (what, ports string, ok bool, err error) {
	if rest, found := strings.CutPrefix(s, "["); found {
		what, after, closed := strings.Cut(rest, "]")
		if !closed {
			return "", "", false, errors.New("the bracket is not closed")
		}
		if after == "" {
			return what, "", false, nil
		}
		ports, found := strings.CutPrefix(after, ":")
		if !found {
			return "", "", false, errors.New("after the bracket comes :ports or nothing")
		}
		if !strings.Contains(what, ":") {
			return "", "", false, errors.New("brackets are for IPv6 addresses")
		}
		return what, ports, true, nil
	}
	if strings.Count(s, ":") > 1 {
		return s, "", false, nil // a bare IPv6 address or range
	}
	what, ports, ok = strings.Cut(s, ":")
	return what, ports, ok, nil
}

func parsePorts(s string) ([]portRange, error) {
	var out []portRange
	parts := strings.Split(s, ",")
	if len(parts) > 100 {
		return nil, errors.New("more than 100 ports; use ranges")
	}
	for _, part := range parts {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		l, err := parsePort(low)
		if err != nil {
			return nil, err
		}
		h, err := parsePort(high)
		if err != nil {
			return nil, err
		}
		if h < l {
			return nil, fmt.Errorf("the range of ports %s runs backwards", part)
		}
		out = append(out, portRange{l, h})
	}
	slices.SortFunc(out, func(a, b portRange) int { return int(a.low) - int(b.low) })
	merged := out[:1]
	for _, p := range out[1:] {
		if last := &merged[len(merged)-1]; int(p.low) <= int(last.high)+1 {
			last.high = max(last.high, p.high)
		} else {
			merged = append(merged, p)
		}
	}
	return merged, nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '+' {
		return 0, fmt.Errorf("%q is not a port from 1 to 65535", clip(s))
	}
	return uint16(n), nil
}

// errNoAddress says that a text is meant as a name.
var errNoAddress = errors.New("not an address")

func parsePrefix(s string) (netip.Prefix, error) {
	addr, bits, isRange := strings.Cut(s, "/")
	if !isRange {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, errNoAddress
		}
		if a.Zone() != "" {
			return netip.Prefix{}, errors.New("an address has no zone here")
		}
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not an address; after a name comes only /tcp or /udp", clip(addr))
	}
	n, err := strconv.Atoi(bits)
	if err != nil || n < 0 || n > a.BitLen() || bits != strconv.Itoa(n) || a.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%q is not a number of bits", clip(bits))
	}
	p := netip.PrefixFrom(a, n)
	if p.Masked() != p {
		return netip.Prefix{}, fmt.Errorf("%s has bits below its mask; write %s", p, p.Masked())
	}
	return p, nil
}

// normalName lower-cases a name, takes a final dot off and checks it.
func normalName(s string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(s, "."))
	switch {
	case name == "":
		return "", errors.New("there is no name")
	case len(name) > 253:
		return "", errors.New("the name is longer than 253 bytes")
	}
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return "", fmt.Errorf("the name %q has an empty part", clip(s))
		case len(label) > 63:
			return "", fmt.Errorf("the name %q has a part of more than 63 bytes", clip(s))
		case label[0] == '-' || label[len(label)-1] == '-':
			return "", fmt.Errorf("the name %q has a part that begins or ends with a hyphen", clip(s))
		}
		for i := range len(label) {
			switch c := label[i]; {
			case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
			case c >= 0x80:
				return "", fmt.Errorf("the name %q is not ASCII; write it as xn--", clip(s))
			default:
				return "", fmt.Errorf("the name %q has a character that no name has", clip(s))
			}
		}
	}
	if looksNumeric(name) {
		return "", fmt.Errorf("%q is an unusual way to write an address; write it as four decimal numbers", clip(s))
	}
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return "", fmt.Errorf("%q is the box itself; the host's loopback is %s", clip(s), HostName)
	}
	return name, nil
}

// looksNumeric reports whether programs would take the name for an address
// although no address is written so: its last part is a number, also an octal
// or hexadecimal one.
func looksNumeric(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if last == "" {
		return false
	}
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// checkAllow refuses name rules that could not keep what they promise.
func (r Rule) checkAllow() error {
	switch {
	case r.name == "":
		return nil
	case r.isHost() && len(r.ports) == 0:
		return fmt.Errorf("%s needs a port, as in %s:8080", HostName, HostName)
	case r.isHost():
		return nil
	case !r.wildcard && resolverNames[r.name]:
		return fmt.Errorf("%s resolves names for whoever asks, encrypted: opening it would open DNS as a way out", r.name)
	case r.proto == "udp" && len(r.ports) == 0:
		return errors.New("a name with /udp needs ports")
	}
	if len(r.ports) > 0 && !slices.ContainsFunc(r.ports, func(p portRange) bool {
		for port := int(p.low); port <= int(p.high); port++ {
			if closedToNames(uint16(port), r.protocol()) == "" {
				return true
			}
		}
		return false
	}) {
		return fmt.Errorf("%s to a name is always closed", closedToNames(r.ports[0].low, r.protocol()))
	}
	return nil
}

// closedToNames says what a name rule never opens: what would hide the name
// that it is about. Empty: it may be opened.
func closedToNames(port uint16, proto string) string {
	switch {
	case port == 53:
		return "DNS"
	case port == 853:
		return "encrypted DNS"
	case proto == "udp" && (port == 443 || port == 80 || port == 8443):
		return "QUIC"
	}
	return ""
}

// resolverNames are well-known resolvers over HTTPS. No name rule opens them,
// wildcards included.
var resolverNames = map[string]bool{
	"dns.google": true, "dns.google.com": true, "8888.google": true, "dns64.dns.google": true,
	"cloudflare-dns.com": true, "mozilla.cloudflare-dns.com": true, "chrome.cloudflare-dns.com": true, "one.one.one.one": true,
	"security.cloudflare-dns.com": true, "family.cloudflare-dns.com": true, "1dot1dot1dot1.cloudflare-dns.com": true, "dns.cloudflare.com": true,
	"dns.quad9.net": true, "dns9.quad9.net": true, "dns10.quad9.net": true, "dns11.quad9.net": true,
	"doh.opendns.com": true, "dns.opendns.com": true, "doh.familyshield.opendns.com": true, "dns.umbrella.com": true,
	"dns.adguard.com": true, "dns.adguard-dns.com": true, "unfiltered.adguard-dns.com": true, "dns.nextdns.io": true, "firefox.dns.nextdns.io": true,
	"doh.cleanbrowsing.org": true, "doh.dns.apple.com": true, "dns.alidns.com": true, "doh.pub": true, "dns.mullvad.net": true, "doh.dns.sb": true,
}

// protocol is the protocol of a name rule.
func (r Rule) protocol() string {
	if r.proto == "" {
		return "tcp"
	}
	return r.proto
}

func (r Rule) isHost() bool { return r.name == HostName && !r.wildcard }

// String is the rule as ParseRule reads it, in its plainest form.
func (r Rule) String() string {
	var b strings.Builder
	switch {
	case r.wildcard:
		b.WriteString("*." + r.name)
	case r.name != "":
		b.WriteString(r.name)
	case !r.prefix.IsValid():
		return ""
	default:
		text := r.prefix.String()
		if r.prefix.IsSingleIP() {
			text = r.prefix.Addr().String()
		}
		if r.prefix.Addr().Is6() && len(r.ports) > 0 {
			text = "[" + text + "]"
		}
		b.WriteString(text)
	}
	for i, p := range r.ports {
		b.WriteByte(":,"[min(i, 1)])
		b.WriteString(strconv.Itoa(int(p.low)))
		if p.high != p.low {
			b.WriteString("-" + strconv.Itoa(int(p.high)))
		}
	}
	if r.proto != "" {
		b.WriteString("/" + r.proto)
	}
	return b.String()
}

// matchName reports whether the rule is about the name, which is normal.
func (r Rule) matchName(name string) bool {
	if r.name == "" {
		return false
	}
	if r.wildcard && name != HostName { // that one is only ever named whole
		return len(name) > len(r.name)+1 && strings.HasSuffix(name, r.name) && name[len(name)-len(r.name)-1] == '.'
	}
	return name == r.name && !r.wildcard
}

func (r Rule) matchAddr(a netip.Addr) bool { return r.prefix.IsValid() && r.prefix.Contains(a) }

// matchPort reports whether the rule is about the port. Port 0 stands for any
// one, and an empty protocol for either.
func (r Rule) matchPort(port uint16, proto string) bool {
	if own := r.proto; proto != "" {
		if own == "" && r.name != "" {
			own = "tcp"
		}
		if own != "" && own != proto {
			return false
		}
	}
	return port == 0 || len(r.ports) == 0 || slices.ContainsFunc(r.ports, func(p portRange) bool { return p.low <= port && port <= p.high })
}

// denies is matchPort for a deny rule: a name rule without protocol closes
// both, and for port 0 only a rule about every port counts.
func (r Rule) denies(port uint16, proto string) bool {
	if r.proto != "" && r.proto != proto {
		return false
	}
	return len(r.ports) == 0 || port != 0 && r.matchPort(port, "")
}
