package box

import "net/netip"

// special is an address block that is not a public place.
type special struct {
	block netip.Prefix
	class string
}

const (
	classPrivate  = "a private address"
	classShared   = "a shared (CGNAT) address"
	classMetadata = "a metadata service's address"
	classDoc      = "a documentation or test address"
	classLink     = "a link-local address"
	classMapped   = "an IPv4 address in IPv6 form"
)

// specials are tried in order; the first block that contains an address says
// what it is. Everything else in IPv4, and in 2000::/3 of IPv6, is public.
var specials = specialList(
	classMetadata, "169.254.169.254/32", "169.254.170.2/32", "169.254.170.23/32", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32",
	"fd00:ec2::254/128", "fd00:ec2::23/128", "fd20:ce::254/128",
	"a loopback address", "127.0.0.0/8", "::1/128",
	"an unspecified address", "0.0.0.0/8", "::/128",
	classPrivate, "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7",
	classShared, "100.64.0.0/10",
	classLink, "169.254.0.0/16", "fe80::/10",
	"a multicast address", "224.0.0.0/4", "ff00::/8",
	"the broadcast address", "255.255.255.255/32",
	classDoc, "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15", "2001:db8::/32", "3fff::/20", "2001:2::/48",
	"a reserved address", "192.0.0.0/24", "192.88.99.0/24", "240.0.0.0/4",
	classMapped, "::ffff:0:0/96", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::ffff:0:0:0/96",
	"a reserved address", "2001::/23", "fec0::/10", "100::/64", "5f00::/16",
)

func specialList(words ...string) []special {
	var (
		list  []special
		class string
	)
	for _, w := range words {
		if p, err := netip.ParsePrefix(w); err == nil {
			list = append(list, special{p, class})
		} else {
			class = w
		}
	}
	return list
}

// classify says in words what an address is that is not public, and which block
// makes it so. The class of a public one is "".
func classify(a netip.Addr) (class string, block netip.Prefix) {
	for _, s := range specials {
		if s.block.Contains(a) {
			return s.class, s.block
		}
	}
	if a.Is6() && a.As16()[0]>>5 != 1 { // not in 2000::/3
		return "a reserved address", netip.PrefixFrom(a, 3).Masked()
	}
	return "", netip.Prefix{}
}

// localClass reports whether the preset NetAll opens a class.
func localClass(class string) bool {
	return class == classPrivate || class == classShared || class == classDoc
}

// PublicAddress reports whether an address is public: not private, loopback,
// link-local, shared, multicast, reserved, a metadata service's, or a form that
// stands for an IPv4 address.
func PublicAddress(a netip.Addr) bool {
	class, _ := classify(a)
	return class == "" && a.IsValid()
}
