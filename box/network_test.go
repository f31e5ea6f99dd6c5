package box_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/box"
)

func TestParseRule(t *testing.T) {
	for in, want := range map[string]string{ // what it prints as; "" is the same
		"pypi.org":                  "",
		"PyPI.org.":                 "pypi.org",
		"*.pythonhosted.org":        "",
		"pypi.org:443":              "",
		"pypi.org:443,80":           "pypi.org:80,443",
		"pypi.org:80-90,85-100,101": "pypi.org:80-101",
		"pypi.org:443/tcp":          "",
		"ntp.example.org:123/udp":   "",
		"example.org/tcp":           "",
		"10.1.0.0/16":               "",
		"10.1.0.0/16:5432":          "",
		"10.0.0.1":                  "",
		"10.0.0.1/32":               "10.0.0.1",
		"10.0.0.1/udp":              "",
		"10.0.0.1:53/udp":           "",
		"2001:db8::1":               "",
		"[2001:db8::1]":             "2001:db8::1",
		"[2001:db8::1]:443":         "",
		"2001:DB8::/32":             "2001:db8::/32",
		"[2001:db8::/32]:443/tcp":   "",
		"::ffff:10.0.0.1":           "",
		"0.0.0.0/0":                 "",
		"_dmarc.example.org":        "",
		"xn--bcher-kva.example":     "",
		"host.hutch.internal:8080":  "",
		"3com.com":                  "",
	} {
		r, err := box.ParseRule(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		if want == "" {
			want = in
		}
		if r.String() != want {
			t.Errorf("%q prints as %q, want %q", in, r.String(), want)
		}
	}
	for _, in := range []string{
		"", " ", "*", "*.", "*.*.x", "a.*", "a*.b", "https://pypi.org", "pypi.org/", "pypi.org/16", "a..b", ".a", "-a.b", "a-.b",
		"bücher.example", "a b", "pypi.org:", "pypi.org:0", "pypi.org:65536", "pypi.org:90-80", "pypi.org:+80", "pypi.org:80,", "pypi.org:http",
		"10.1.0.0/33", "10.1.2.3/16", "10.1.0.0/016", "10.1.0.0/-1", "1.2.3.4.5", "256.1.1.1", "010.0.0.1", "0x7f.1", "2130706433", "0x7f000001", "127.1", "a.0177",
		"fe80::1%eth0", "[::1", "[::1]x", "[pypi.org]:80", "[10.0.0.1]:80", "localhost", "x.localhost", "pypi.org/icmp", "pypi.org:80/tcp/udp",
		strings.Repeat("a", 64) + ".org", strings.Repeat("a.", 130) + "org", "*.10.0.0.1", "a/b", "pypi.org\x00",
	} {
		if r, err := box.ParseRule(in); err == nil {
			t.Errorf("%q was taken as %q", in, r)
		}
	}
}

func TestNetworkContradictions(t *testing.T) {
	many := make([]string, 1001)
	for i := range many {
		many[i] = fmt.Sprintf("h%d.example.org", i)
	}
	for _, tt := range []struct {
		n     box.Network
		field string
	}{
		{box.Network{Preset: "on"}, "network.preset"},
		{box.Network{Preset: "off", Allow: []string{"a.b"}}, "network.allow"},
		{box.Network{Preset: "off", Deny: []string{"a.b"}}, "network.deny"},
		{box.Network{Allow: []string{}}, "network.allow"},
		{box.Network{Deny: []string{"a.b"}}, "network.deny"},
		{box.Network{Allow: []string{"a.b", "*"}}, "network.allow[1]"},
		{box.Network{Preset: "internet", Deny: []string{"x y"}}, "network.deny[0]"},
		{box.Network{Allow: []string{"host.hutch.internal"}}, "network.allow[0]"},
		{box.Network{Allow: []string{"a.b:53"}}, "network.allow[0]"},
		{box.Network{Allow: []string{"a.b:853"}}, "network.allow[0]"},
		{box.Network{Allow: []string{"a.b:443/udp"}}, "network.allow[0]"},
		{box.Network{Allow: []string{"a.b/udp"}}, "network.allow[0]"},
		{box.Network{Allow: []string{"dns.google"}}, "network.allow[0]"},
		{box.Network{Allow: many}, "network.allow"},
	} {
		err := tt.n.Validate()
		var e *box.Error
		if !errors.As(err, &e) || e.Kind != box.Invalid || e.Object != tt.field || e.Hint == "" {
			t.Errorf("%+v: %v, want an error about %s with a hint", tt.n, err, tt.field)
		}
		spec := box.Spec{Network: tt.n}
		if err := spec.Validate(); err == nil {
			t.Errorf("a spec with %+v is valid", tt.n)
		}
	}
	for _, n := range []box.Network{
		{}, {Preset: "off"}, {Preset: "internet"}, {Preset: "all"}, {Allow: []string{"a.b"}},
		{Preset: "internet", Deny: []string{"a.b", "dns.google"}}, {Preset: "internet", Allow: []string{"10.0.0.1"}},
		{Allow: []string{"*.internal", "a.b:50-60", "a.b:123/udp", "8.8.8.8:53", "host.hutch.internal:80"}},
	} {
		if err := n.Validate(); err != nil {
			t.Errorf("%+v: %v", n, err)
		}
	}
}

// TestAddressVerdicts: what a policy says of addresses.
func TestAddressVerdicts(t *testing.T) {
	special := []string{
		"127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.3.4", "192.168.1.1", "100.64.0.1", "169.254.1.1", "169.254.169.254",
		"100.100.100.200", "168.63.129.16", "224.0.0.1", "239.255.255.250", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.51.100.1", "203.0.113.9", "198.18.0.1", "192.0.0.192",
		"::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "::7f00:1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:1::", "4000::1", "fec0::1", "::ffff:0:8.8.8.8",
	}
	public := []string{"8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00:1450::5"}
	verdict := func(n box.Network, addr string, port uint16, proto string) bool {
		t.Helper()
		p, err := n.Compile()
		if err != nil {
			t.Fatal(err)
		}
		return p.Address(netip.MustParseAddr(addr), port, proto, false).Allowed
	}
	wide := box.Network{Allow: []string{"0.0.0.0/0", "::/0"}}
	internet := box.Network{Preset: box.NetInternet}
	all := box.Network{Preset: box.NetAll}
	for _, a := range append(special, public...) {
		if verdict(box.Network{}, a, 443, "tcp") || verdict(box.Network{Allow: []string{"a.b"}}, a, 443, "tcp") {
			t.Errorf("%s is open without a rule", a)
		}
	}
	for _, a := range special {
		if verdict(internet, a, 443, "tcp") {
			t.Errorf("internet opens %s", a)
		}
		if verdict(wide, a, 443, "tcp") {
			t.Errorf("a rule for everything opens %s, which needs one of its own", a)
		}
		if !verdict(box.Network{Allow: []string{a}}, a, 443, "tcp") {
			t.Errorf("a rule for %s does not open it", a)
		}
		if verdict(box.Network{Preset: "internet", Allow: []string{a}, Deny: []string{a}}, a, 443, "tcp") {
			t.Errorf("%s is open, though denied", a)
		}
	}
	for _, a := range public {
		if !verdict(internet, a, 443, "tcp") || !verdict(wide, a, 1, "udp") || !verdict(all, a, 1, "udp") {
			t.Errorf("%s is closed", a)
		}
	}
	for _, a := range []string{"10.0.0.1", "192.168.1.1", "172.31.0.1", "100.64.0.1", "fd12::1"} {
		if !verdict(all, a, 80, "tcp") {
			t.Errorf("all does not open %s", a)
		}
	}
	for _, a := range []string{"127.0.0.1", "169.254.169.254", "169.254.1.1", "::1", "fe80::1", "224.0.0.1", "::ffff:10.0.0.1", "fd00:ec2::254", "100.100.100.200", "0.0.0.0"} {
		if verdict(all, a, 80, "tcp") {
			t.Errorf("all opens %s", a)
		}
	}
	for _, tt := range []struct {
		n     box.Network
		addr  string
		port  uint16
		proto string
		want  bool
	}{
		{box.Network{Allow: []string{"10.1.0.0/16:5432"}}, "10.1.2.3", 5432, "tcp", true},
		{box.Network{Allow: []string{"10.1.0.0/16:5432"}}, "10.1.2.3", 5432, "udp", true},
		{box.Network{Allow: []string{"10.1.0.0/16:5432"}}, "10.1.2.3", 5433, "tcp", false},
		{box.Network{Allow: []string{"10.1.0.0/16:5432"}}, "10.2.0.1", 5432, "tcp", false},
		{box.Network{Allow: []string{"10.1.0.0/16/udp"}}, "10.1.0.1", 5432, "tcp", false},
		{box.Network{Allow: []string{"10.1.0.0/16"}, Deny: []string{"10.1.1.0/24"}}, "10.1.1.1", 1, "tcp", false},
		{box.Network{Allow: []string{"10.1.0.0/16"}, Deny: []string{"10.1.1.0/24:22"}}, "10.1.1.1", 22, "tcp", false},
		{box.Network{Allow: []string{"10.1.0.0/16"}, Deny: []string{"10.1.1.0/24:22"}}, "10.1.1.1", 23, "tcp", true},
		{box.Network{Allow: []string{"10.1.0.0/16"}, Deny: []string{"10.1.1.1/udp"}}, "10.1.1.1", 23, "tcp", true},
		{box.Network{Preset: "internet", Deny: []string{"0.0.0.0/0"}}, "8.8.8.8", 443, "tcp", false},
		{box.Network{Allow: []string{"::ffff:10.0.0.1"}, Deny: []string{"10.0.0.0/8"}}, "::ffff:10.0.0.1", 443, "tcp", false},
		// A wide special block does not open a special place within it.
		{box.Network{Allow: []string{"169.254.0.0/16"}}, "169.254.169.254", 80, "tcp", false},
		{box.Network{Allow: []string{"169.254.0.0/16"}}, "169.254.1.1", 80, "tcp", true},
		{box.Network{Allow: []string{"192.0.0.0/2"}}, "192.168.1.1", 80, "tcp", false},
	} {
		if got := verdict(tt.n, tt.addr, tt.port, tt.proto); got != tt.want {
			t.Errorf("%v: %s port %d/%s is %v, want %v", tt.n, tt.addr, tt.port, tt.proto, got, tt.want)
		}
	}
	// The host's own addresses, public ones too, need a rule.
	for _, n := range []box.Network{internet, all, wide} {
		p, _ := n.Compile()
		if p.Address(netip.MustParseAddr("8.8.8.8"), 443, "tcp", true).Allowed {
			t.Errorf("%v opens the host itself", n)
		}
	}
}

func TestNameVerdicts(t *testing.T) {
	for _, tt := range []struct {
		allow, deny string
		preset      box.NetPreset
		name        string
		port        uint16
		proto       string
		dns, flow   bool
	}{
		{"app.test", "", "", "app.test", 443, "tcp", true, true},
		{"app.test", "", "", "x.app.test", 443, "tcp", false, false},
		{"app.test", "", "", "xapp.test", 443, "tcp", false, false},
		{"app.test", "", "", "app.test", 443, "udp", true, false},
		{"app.test", "", "", "app.test", 53, "tcp", true, false},
		{"app.test", "", "", "app.test", 853, "tcp", true, false},
		{"app.test:443", "", "", "app.test", 80, "tcp", true, false},
		{"*.app.test", "", "", "a.b.app.test", 443, "tcp", true, true},
		{"*.app.test", "", "", "app.test", 443, "tcp", false, false},
		{"*.app.test", "", "", "evilapp.test", 443, "tcp", false, false},
		{"*.app.test", "x.app.test", "", "x.app.test", 443, "tcp", false, false},
		{"*.app.test", "x.app.test:22", "", "x.app.test", 22, "tcp", true, false},
		{"*.app.test", "x.app.test/udp", "", "x.app.test", 22, "tcp", true, true},
		{"ntp.test:123/udp", "", "", "ntp.test", 123, "udp", true, true},
		{"ntp.test:1-9999/udp", "", "", "ntp.test", 443, "udp", true, false},
		{"*.google", "", "", "dns.google", 443, "tcp", false, false},
		{"*.internal", "", "", "host.hutch.internal", 80, "tcp", false, false},
		{"host.hutch.internal:80", "", "", "host.hutch.internal", 80, "tcp", true, true},
		{"host.hutch.internal:80", "", "", "host.hutch.internal", 81, "tcp", true, false},
		{"", "", "internet", "host.hutch.internal", 80, "tcp", false, false},
		{"", "", "internet", "any.thing", 80, "tcp", true, false}, // the address decides
		{"", "*.thing", "internet", "any.thing", 80, "tcp", false, false},
		{"", "", "", "any.thing", 80, "tcp", false, false},
	} {
		n := box.Network{Preset: tt.preset}
		if tt.allow != "" {
			n.Allow = []string{tt.allow}
		}
		if tt.deny != "" {
			n.Deny = []string{tt.deny}
		}
		p, err := n.Compile()
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Name(tt.name); got.Allowed != tt.dns || got.Reason == "" {
			t.Errorf("%v: the name %s is %+v, want %v", n, tt.name, got, tt.dns)
		}
		if got := p.NameFlow(tt.name, tt.port, tt.proto); got.Allowed != tt.flow || got.Reason == "" {
			t.Errorf("%v: %s:%d/%s is %+v, want %v", n, tt.name, tt.port, tt.proto, got, tt.flow)
		}
	}
}

// TestResolved: which addresses an allowed name may lead to.
func TestResolved(t *testing.T) {
	p, _ := box.Network{Allow: []string{"app.test", "10.0.0.5:443"}}.Compile()
	for addr, want := range map[string]bool{
		"93.184.216.34": true, "10.0.0.5": true, "10.0.0.6": false, "127.0.0.1": false, "169.254.169.254": false, "::ffff:10.0.0.5": false, "fd00::1": false,
	} {
		if got := p.Resolved(netip.MustParseAddr(addr), false).Allowed; got != want {
			t.Errorf("%s as an answer is %v, want %v", addr, got, want)
		}
	}
	if p.Resolved(netip.MustParseAddr("93.184.216.34"), true).Allowed {
		t.Error("a name may lead to the host itself")
	}
}

func TestExplain(t *testing.T) {
	n := box.Network{Allow: []string{"pypi.org", "*.files.test:443", "10.0.0.0/8:5432"}, Deny: []string{"bad.files.test"}}
	for _, tt := range []struct {
		target  string
		allowed bool
		rule    string
		host    string
		port    uint16
	}{
		{"https://pypi.org/simple/", true, "allow pypi.org", "pypi.org", 443},
		{"http://PyPI.org", true, "allow pypi.org", "pypi.org", 80},
		{"pypi.org:22", true, "allow pypi.org", "pypi.org", 22},
		{"pypi.org:443/udp", false, "", "pypi.org", 443},
		{"a.files.test:80", false, "", "a.files.test", 80},
		{"bad.files.test", false, "deny bad.files.test", "bad.files.test", 443},
		{"evil.test", false, "", "evil.test", 443},
		{"postgres://10.1.2.3/db", true, "allow 10.0.0.0/8:5432", "10.1.2.3", 5432},
		{"http://2130706433/", false, "", "127.0.0.1", 80},
		{"http://0177.0.0.1/", false, "", "127.0.0.1", 80},
		{"http://0x7f.1/", false, "", "127.0.0.1", 80},
		{"[::1]:80", false, "", "::1", 80},
	} {
		e, err := n.Explain(tt.target)
		if err != nil {
			t.Errorf("%s: %v", tt.target, err)
			continue
		}
		if e.Allowed != tt.allowed || e.Rule != tt.rule || e.Host != tt.host || e.Port != tt.port || e.Reason == "" {
			t.Errorf("%s: %+v, want %+v", tt.target, e, tt)
		}
	}
	for _, bad := range []string{"", "https://", "foo://x", "x:99999", "a b", "https://[::1"} {
		if e, err := n.Explain(bad); err == nil {
			t.Errorf("%q was explained: %+v", bad, e)
		}
	}
	if e, err := (box.Network{Preset: "internet", Allow: []string{"a.test:443"}}).Explain("a.test:853"); err != nil || !e.Allowed {
		t.Errorf("a rule in addition to a preset closes something: %+v, %v", e, err)
	}
}

func TestNetworkPrintsAndMerges(t *testing.T) {
	a := box.Network{Allow: []string{"a.test"}}
	b := box.Network{Preset: "internet", Allow: []string{"a.test", "10.0.0.1"}, Deny: []string{"b.test"}}
	got, err := a.Merge(b)
	want := box.Network{Preset: "internet", Allow: []string{"a.test", "10.0.0.1"}, Deny: []string{"b.test"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if _, err := a.Merge(box.Network{Preset: "off"}); err == nil {
		t.Error("off merges with rules")
	}
	for want, n := range map[string]box.Network{
		"off": {}, "allow a.test": a, "internet; allow a.test, 10.0.0.1; deny b.test": b, "all, local networks too": {Preset: "all"},
	} {
		if n.String() != want {
			t.Errorf("%#v prints as %q, want %q", n, n.String(), want)
		}
	}
	data, _ := json.Marshal(box.Spec{Network: a})
	if string(data) != `{"network":{"allow":["a.test"]}}` {
		t.Errorf("as JSON: %s", data)
	}
	data, _ = json.Marshal(box.Spec{})
	if string(data) != `{}` {
		t.Errorf("the zero spec as JSON: %s", data)
	}
}

func TestParsePorts(t *testing.T) {
	for in, want := range map[string][]box.Port{
		"8080:80":           {{Host: 8080, Box: 80}},
		"0:80":              {{Box: 80}},
		"8080:80/udp":       {{Host: 8080, Box: 80, Proto: "udp"}},
		"8080:80/tcp":       {{Host: 8080, Box: 80}},
		"0.0.0.0:8080:80":   {{IP: "0.0.0.0", Host: 8080, Box: 80}},
		"[::1]:8080:80":     {{IP: "::1", Host: 8080, Box: 80}},
		"8000-8001:90-91":   {{Host: 8000, Box: 90}, {Host: 8001, Box: 91}},
		"127.0.0.1:0:80-81": {{IP: "127.0.0.1", Box: 80}, {IP: "127.0.0.1", Box: 81}},
	} {
		got, err := box.ParsePorts(in)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", in, err, diff)
		}
		if len(want) == 1 {
			if again, err := box.ParsePorts(want[0].String()); err != nil || again[0].String() != want[0].String() {
				t.Errorf("%q does not parse back: %v", want[0], err)
			}
		}
	}
	for _, in := range []string{"", "80", ":80", "80:", "a:80", "80:0", "80:99999", "8000-8001:90", "8001-8000:91-90", "host:80:80", "[::1:80:80", "1:2:3:4", "-1:80", "1-2000:1-2000", "80:80/sctp"} {
		if got, err := box.ParsePorts(in); err == nil {
			t.Errorf("%q was taken as %v", in, got)
		}
	}
}

func TestPortsLinksSecretsOfSpecs(t *testing.T) {
	ok := box.Network{Allow: []string{"api.test:443", "*.w.test", "x.v.test"}}
	for field, s := range map[string]box.Spec{
		"ports[1]":              {Ports: []box.Port{{Host: 1, Box: 2}, {IP: "127.0.0.1", Host: 1, Box: 3}}},
		"ports[0].box":          {Ports: []box.Port{{Host: 1}}},
		"ports[0].host":         {Ports: []box.Port{{Host: -1, Box: 1}}},
		"ports[0].ip":           {Ports: []box.Port{{IP: "localhost", Box: 1}}},
		"ports[0].proto":        {Ports: []box.Port{{Box: 1, Proto: "sctp"}}},
		"links[0].name":         {Links: []box.Link{{Name: "127.1", Box: "b", Port: 1}}},
		"links[1].name":         {Links: []box.Link{{Name: "a", Box: "b", Port: 1}, {Name: "A.", Box: "b", Port: 1}}},
		"links[0].box":          {Links: []box.Link{{Name: "a", Box: "../x", Port: 1}}},
		"links[0].port":         {Links: []box.Link{{Name: "a", Box: "b"}}},
		"secrets[0].name":       {Network: ok, Secrets: []box.Secret{{Name: "1A", Hosts: []string{"api.test"}}}},
		"secrets[1].name":       {Network: ok, Secrets: []box.Secret{{Name: "A", Hosts: []string{"api.test"}}, {Name: "A", Hosts: []string{"api.test"}}}},
		"secrets[0].hosts":      {Network: ok, Secrets: []box.Secret{{Name: "A"}}},
		"secrets[0].hosts[0]":   {Network: ok, Secrets: []box.Secret{{Name: "A", Hosts: []string{"other.test"}}}},
		"secrets[0].hosts[1]":   {Network: ok, Secrets: []box.Secret{{Name: "A", Hosts: []string{"*.w.test", "10.0.0.1"}}}},
		"secrets[0].headers[0]": {Network: ok, Secrets: []box.Secret{{Name: "A", Hosts: []string{"api.test"}, Headers: []string{"Host"}}}},
		"secrets":               {Network: ok, Secrets: []box.Secret{{Name: "A", Hosts: []string{"api.test"}, Value: "longenough\n"}}},
	} {
		err := s.Validate()
		var e *box.Error
		if !errors.As(err, &e) || e.Object != field || e.Hint == "" {
			t.Errorf("%v, want an error about %s", err, field)
		}
	}
	good := box.Spec{Network: ok,
		Ports:   []box.Port{{Box: 80}, {Box: 80}, {Host: 1, Box: 1}, {Host: 1, Box: 1, Proto: "udp"}},
		Links:   []box.Link{{Name: "db", Box: "pg", Port: 5432}},
		Secrets: []box.Secret{{Name: "A_1", Hosts: []string{"api.test", "*.w.test", "a.b.w.test", "*.v.test"}, Headers: []string{"X-Token"}}},
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	good.Env = []string{"A_1=x"}
	if err := good.Validate(); err == nil {
		t.Error("a variable and a secret of one name")
	}
	if l, err := box.ParseLink("db=pg:5432"); err != nil || l != good.Links[0] || l.String() != "db=pg:5432" {
		t.Errorf("%v, %v", l, err)
	}
	for _, bad := range []string{"", "db", "db=pg", "=pg:1", "db=:1", "db=pg:0"} {
		if l, err := box.ParseLink(bad); err == nil {
			t.Errorf("%q was taken as %v", bad, l)
		}
	}
}

// TestSecretsAreNotShown: no way of printing a spec shows a secret's value.
func TestSecretsAreNotShown(t *testing.T) {
	s := box.Spec{Secrets: []box.Secret{{Name: "TOKEN", Value: "zq-hidden-value", Hosts: []string{"api.test"}}}}
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		string(data), fmt.Sprint(s), fmt.Sprintf("%+v %#v %s %q %x %d", s, s, s.Secrets, s.Secrets[0], s.Secrets[0], s.Secrets[0]), fmt.Sprintf("%v", &s.Secrets[0]),
	} {
		if strings.Contains(text, "hidden") || strings.Contains(text, "7a712d68") {
			t.Errorf("the value shows in %s", text)
		}
	}
}

func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"pypi.org", "*.a.b:1-2,3/udp", "10.0.0.0/8:5", "[2001:db8::/32]:443/tcp", "::ffff:1.2.3.4", "0x7f.1", "a..b", "[", "*"} {
		f.Add(s, "a.b", "10.0.0.1")
	}
	f.Fuzz(func(t *testing.T, s, name, addr string) {
		r, err := box.ParseRule(s)
		if err != nil {
			return
		}
		again, err := box.ParseRule(r.String())
		if err != nil || again.String() != r.String() {
			t.Fatalf("%q prints as %q, which parses as %q, %v", s, r, again, err)
		}
		p, err := box.Network{Allow: []string{s}}.Compile()
		if err != nil {
			return
		}
		closed, err := box.Network{Allow: []string{s}, Deny: []string{s}}.Compile()
		if err != nil {
			t.Fatal(err)
		}
		if n, err := box.NormalName(name); err == nil {
			if p.NameFlow(n, 443, "tcp").Allowed && closed.NameFlow(n, 443, "tcp").Allowed {
				t.Fatalf("%q: %q is open though denied", s, n)
			}
		}
		if a, err := netip.ParseAddr(addr); err == nil {
			open := p.Address(a, 443, "tcp", false).Allowed
			if open && closed.Address(a, 443, "tcp", false).Allowed {
				t.Fatalf("%q: %q is open though denied", s, a)
			}
		}
	})
}
