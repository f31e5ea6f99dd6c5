//go:build linux

package vminit

import (
	"strings"
	"testing"
)

func TestResolveModule(t *testing.T) {
	const dep = "kernel/net/bridge/bridge.ko: kernel/net/802/stp.ko kernel/net/llc/llc.ko\n" +
		"kernel/net/802/stp.ko: kernel/net/llc/llc.ko\nkernel/net/llc/llc.ko:\n" +
		"kernel/x/nft-one.ko:\nkernel/x/nft_two.ko: kernel/net/llc/llc.ko\n"
	const alias = "alias rtnl-link-bridge bridge\nalias nft-expr-* nft_one\nalias nft-expr-* nft-two\nalias broken\nalias [ bridge\n"
	for _, tt := range []struct{ name, want string }{
		{"bridge", "kernel/net/llc/llc.ko kernel/net/802/stp.ko kernel/net/bridge/bridge.ko"},
		{"rtnl-link-bridge", "kernel/net/llc/llc.ko kernel/net/802/stp.ko kernel/net/bridge/bridge.ko"},
		{"rtnl_link_bridge", "kernel/net/llc/llc.ko kernel/net/802/stp.ko kernel/net/bridge/bridge.ko"},
		{"llc", "kernel/net/llc/llc.ko"},
		{"nft-expr-nat", "kernel/x/nft-one.ko kernel/net/llc/llc.ko kernel/x/nft_two.ko"},
		{"nft_one", "kernel/x/nft-one.ko"},
		{"nothing", ""},
		{"", ""},
	} {
		if got := strings.Join(resolveModule(tt.name, dep, alias), " "); got != tt.want {
			t.Errorf("%q loads %q, want %q", tt.name, got, tt.want)
		}
	}
}
