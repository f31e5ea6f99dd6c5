package boot

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func valid() Config {
	return Config{Protocol: Protocol, Token: "0123456789abcdef", Listen: "tcp:169.254.77.2:7777"}
}

func TestRoundTrip(t *testing.T) {
	c := valid()
	c.BootID, c.Hostname, c.User, c.Pids = "b", "h", "1:2", 100
	c.Env = [][]byte{[]byte("A=\xff\x01\n"), []byte("B=")}
	c.Dir = []byte("/d\xfe")
	var b bytes.Buffer
	if err := Write(&b, c); err != nil {
		t.Fatal(err)
	}
	got, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReadRefuses(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"protocol 2": func(c *Config) { c.Protocol = 2 },
		"token":      func(c *Config) { c.Token = "short" },
		"listen":     func(c *Config) { c.Listen = "udp:1.2.3.4:5" },
		"want tcp":   func(c *Config) { c.Listen = "tcp:" },
		"pids":       func(c *Config) { c.Pids = -1 },
	} {
		c := valid()
		change(&c)
		var b bytes.Buffer
		if err := Write(&b, c); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(&b); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []string{"", "{", "[]", strings.Repeat(" ", maxSize+1)} {
		if _, err := Read(strings.NewReader(bad)); err == nil {
			t.Errorf("%.20q was taken", bad)
		}
	}
}

// What belongs to one box is not in the configuration of a machine that is no
// box's, and what the box cannot adopt makes another key.
func TestNobody(t *testing.T) {
	c := valid()
	c.BootID, c.Hostname, c.Env, c.CA = "canary1", "canary2", [][]byte{[]byte("A=canary3")}, []byte("canary4")
	c.Dir, c.User, c.Pids, c.Nameserver = []byte("/d"), "1:2", 100, "10.0.0.1"
	n, key := c.Nobody()
	var b bytes.Buffer
	if err := Write(&b, n); err != nil {
		t.Fatal(err)
	}
	for _, own := range []string{c.Token, "canary"} {
		if strings.Contains(b.String(), own) {
			t.Errorf("%q is in %s", own, &b)
		}
	}
	if _, err := Read(&b); err != nil {
		t.Error(err)
	}
	if m, again := c.Nobody(); again != key || m.Token == n.Token {
		t.Errorf("asked again: key %q and %q, token %q and %q", key, again, n.Token, m.Token)
	}
	for what, change := range map[string]func(*Config){
		"nothing":     func(*Config) {},
		"token":       func(c *Config) { c.Token += "x" },
		"host name":   func(c *Config) { c.Hostname = "other" },
		"environment": func(c *Config) { c.Env = nil },
		"authority":   func(c *Config) { c.CA = nil },
	} {
		d := c
		change(&d)
		if _, k := d.Nobody(); k != key {
			t.Errorf("another %s makes another key", what)
		}
	}
	for what, change := range map[string]func(*Config){
		"folder": func(c *Config) { c.Dir = []byte("/e") },
		"user":   func(c *Config) { c.User = "" },
		"pids":   func(c *Config) { c.Pids = 1 },
		"server": func(c *Config) { c.Nameserver = "" },
		"groups": func(c *Config) { c.NoCgroups = true },
	} {
		d := c
		change(&d)
		if _, k := d.Nobody(); k == key {
			t.Errorf("another %s makes no other key", what)
		}
	}
}

func TestAddress(t *testing.T) {
	for listen, want := range map[string][2]string{
		"tcp:169.254.77.2:7777": {"tcp", "169.254.77.2:7777"},
		"unix:/a:b":             {"unix", "/a:b"},
	} {
		network, address, err := Config{Listen: listen}.Address()
		if err != nil || network != want[0] || address != want[1] {
			t.Errorf("%s: %s %s %v", listen, network, address, err)
		}
	}
}
