package box

import (
	"fmt"
	"slices"
	"strings"
)

// Network says what a box may reach. The zero value is nothing: the box has
// its own loopback and a resolver that refuses every name.
//
//	box.Network{Allow: []string{"pypi.org", "*.pythonhosted.org:443", "10.1.0.0/16:5432"}}
//	box.Network{Preset: box.NetInternet, Deny: []string{"*.example.com"}}
//
// The grammar of a rule is that of ParseRule. A deny rule wins over every
// allow rule and over the preset. See docs/network.md for what each rule does
// and does not stop.
type Network struct {
	// Preset is NetOff, NetInternet or NetAll. Empty: nothing but Allow.
	Preset NetPreset `json:"preset,omitempty"`
	// Allow are rules that open something, in addition to the preset.
	Allow []string `json:"allow,omitempty"`
	// Deny are rules that close something which Allow or the preset opened.
	Deny []string `json:"deny,omitempty"`
}

// NetPreset is a word for much of the world at once.
type NetPreset string

// The presets.
const (
	// NetOff is nothing at all, and says so: it goes with no rules.
	NetOff NetPreset = "off"
	// NetInternet is every public address and every name. What is private,
	// loopback, link-local, shared, multicast, reserved, a cloud's metadata
	// service or an address of the host itself needs an address rule.
	NetInternet NetPreset = "internet"
	// NetAll is NetInternet and the local networks that the host can reach:
	// private, unique local and shared address space. Loopback, link-local,
	// metadata services and the host itself still need a rule.
	NetAll NetPreset = "all"
)

// HostName is the name by which a box reaches services on the host's
// loopback: "host.hutch.internal:8080" as an allow rule opens that port.
const HostName = "host.hutch.internal"

// maxRules bounds each list: every new connection is compared with every rule.
const maxRules = 1000

// Validate reports the first rule that is wrong, or a contradiction, as an
// *Error of kind Invalid whose Object is the field, such as
// "network.allow[2]".
func (n Network) Validate() error {
	_, err := n.Compile()
	return err
}

// Merge returns n and more together: the rules of both, and the preset of more
// where it has one. The result is validated.
func (n Network) Merge(more Network) (Network, error) {
	out := n.clone()
	if more.Preset != "" {
		out.Preset = more.Preset
	}
	add := func(to []string, from []string) []string {
		for _, s := range from {
			if !slices.Contains(to, s) {
				to = append(to, s)
			}
		}
		return to
	}
	out.Allow, out.Deny = add(out.Allow, more.Allow), add(out.Deny, more.Deny)
	return out, out.Validate()
}

// String is one line for people, such as "allow pypi.org:443; deny 10.0.0.0/8".
func (n Network) String() string {
	var parts []string
	switch n.Preset {
	case "":
		if len(n.Allow) == 0 {
			parts = append(parts, string(NetOff))
		}
	case NetAll:
		parts = append(parts, "all, local networks too")
	default:
		parts = append(parts, string(n.Preset))
	}
	if len(n.Allow) > 0 {
		parts = append(parts, "allow "+strings.Join(n.Allow, ", "))
	}
	if len(n.Deny) > 0 {
		parts = append(parts, "deny "+strings.Join(n.Deny, ", "))
	}
	return strings.Join(parts, "; ")
}

func (n Network) clone() Network {
	n.Allow, n.Deny = slices.Clone(n.Allow), slices.Clone(n.Deny)
	return n
}

// Compile checks n and returns it in the form that answers questions.
func (n Network) Compile() (*Policy, error) {
	const (
		allowHint = "write a name, *.name, an address or a range such as 10.1.0.0/16, each with optional :ports and /tcp or /udp"
		offHint   = "leave the rules out, or leave the preset out"
	)
	p := &Policy{preset: n.Preset}
	switch n.Preset {
	case "", NetOff, NetInternet, NetAll:
	default:
		return nil, fieldError("network.preset", `use "off", "internet" or "all", or leave it out`, "unknown preset %q", clip(string(n.Preset)))
	}
	for _, list := range []struct {
		field string
		from  []string
		to    *[]Rule
	}{{"network.allow", n.Allow, &p.allow}, {"network.deny", n.Deny, &p.deny}} {
		if len(list.from) > maxRules {
			return nil, fieldError(list.field, "use wildcards or ranges", "%d rules are more than %d", len(list.from), maxRules)
		}
		for i, s := range list.from {
			r, err := ParseRule(s)
			if err != nil {
				return nil, fieldError(fmt.Sprintf("%s[%d]", list.field, i), allowHint, "%w", err)
			}
			if list.field == "network.allow" {
				if err := r.checkAllow(); err != nil {
					return nil, fieldError(fmt.Sprintf("%s[%d]", list.field, i), "open it by its address, if it must be", "%w", err)
				}
			}
			*list.to = append(*list.to, r)
		}
	}
	switch {
	case n.Preset == NetOff && len(n.Allow) > 0:
		return nil, fieldError("network.allow", offHint, "rules and preset off contradict each other")
	case n.Preset == NetOff && len(n.Deny) > 0:
		return nil, fieldError("network.deny", offHint, "rules and preset off contradict each other")
	case n.Preset == "" && n.Allow != nil && len(n.Allow) == 0:
		return nil, fieldError("network.allow", `list what may be reached, leave it nil, or set preset "internet"`, "it is empty, and no preset opens anything")
	case n.Preset == "" && len(n.Allow) == 0 && len(n.Deny) > 0:
		return nil, fieldError("network.deny", `set preset "internet" or allow something`, "nothing is open that it could close")
	}
	return p, nil
}
