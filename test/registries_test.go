package test

import (
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/box"
)

// hostRegistry is the npm registry that this machine is configured for.
func hostRegistry(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("npm", "config", "get", "registry").Output()
	u, perr := url.Parse(strings.TrimSpace(string(out)))
	if err != nil || perr != nil || u.Hostname() == "" {
		t.Skip("this machine is not configured for an npm registry")
	}
	return strings.TrimSuffix(u.String(), "/")
}

// hostNode finds this machine's node program and the folder of its npm, which a
// Debian box can run if it needs nothing but the usual libraries.
func hostNode(t *testing.T) (program, npm string) {
	t.Helper()
	program, err := exec.LookPath("node")
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err == nil {
		npm, err = exec.LookPath("npm")
	}
	if err == nil {
		npm, err = filepath.EvalSymlinks(npm)
	}
	// …/npm/bin/npm-cli.js
	if npm = filepath.Dir(filepath.Dir(npm)); err != nil || filepath.Base(npm) != "npm" {
		t.Skipf("this machine has no npm that could be mounted: %s, %v", npm, err)
	}
	return program, npm
}

// rulesFor opens hosts and, where they do not resolve to public addresses, as
// mirrors of a company do not, those addresses.
func rulesFor(t *testing.T, hosts ...string) (names, addresses []string) {
	t.Helper()
	for _, h := range hosts {
		addrs, err := net.LookupHost(h)
		if err != nil {
			t.Skipf("%s cannot be reached from here: %v", h, err)
		}
		names = append(names, h)
		for _, a := range addrs {
			if !box.PublicAddress(netip.MustParseAddr(a)) {
				addresses = append(addresses, a)
			}
		}
	}
	return names, addresses
}

// apt-get and npm of a Debian box work with the rules that the documentation
// names, against the registries of this machine, and not without one of them.
// For pip and git see TestPackageTools: few machines that test reach nothing but
// registries, and of those most have no Python index and no git server.
func TestRegistries(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs the network")
	}
	image := debianImage(t) // once for all users
	everyone(t, func(t *testing.T) {
		if os.Getenv(asVar) == "single" {
			return // apt-get changes to a user of its own, which such a box has not
		}
		h := newHome(t)
		h.ok(t, "image", "load", "-i", image)
		sources := h.ok(t, "run", "--rm", "dev", "sh", "-c", "cat /etc/apt/sources.list")
		// Of the image's sources, those that this machine reaches.
		var hosts, reached []string
		for line := range strings.Lines(sources) {
			m := regexp.MustCompile(`https?://([a-z0-9.-]+)`).FindStringSubmatch(line)
			if m == nil {
				continue
			}
			if _, err := net.LookupHost(m[1]); err != nil {
				continue
			}
			reached = append(reached, line)
			if !slices.Contains(hosts, m[1]) {
				hosts = append(hosts, m[1])
			}
		}
		if len(hosts) == 0 {
			t.Skip("none of the image's package sources can be reached")
		}
		list := filepath.Join(h.dir, "sources.list")
		if err := os.WriteFile(list, []byte(strings.Join(reached, "")), 0o644); err != nil {
			t.Fatal(err)
		}
		registry := hostRegistry(t)
		u, _ := url.Parse(registry)
		// npm is this machine's own, mounted: Debian's brings hundreds of
		// packages along.
		node, npm := hostNode(t)
		for _, tt := range []struct {
			what    string
			hosts   []string
			command []string
		}{
			{"apt-get update", hosts, []string{"apt-get", "-o", "APT::Update::Error-Mode=any", "update"}},
			{"npm install", []string{u.Hostname()}, []string{
				"env", "NODE_EXTRA_CA_CERTS=/host-ca.crt", "npm_config_fetch_retries=0", "npm_config_update_notifier=false", "npm_config_audit=false", "npm_config_fund=false",
				"sh", "-c", `mkdir -p /root/p && cd /root/p && /host-node /host-npm/bin/npm-cli.js install --registry "$0" is-odd && /host-node -e 'process.exit(require("is-odd")(3) ? 0 : 1)'`, registry,
			}},
		} {
			t.Run(tt.what, func(t *testing.T) {
				names, addresses := rulesFor(t, tt.hosts...)
				try := func(names []string) result {
					args := []string{
						"run", "--rm", "-v", "/etc/ssl/certs/ca-certificates.crt:/host-ca.crt:ro", "-v", list + ":/etc/apt/sources.list:ro",
						"-v", node + ":/host-node:ro", "-v", npm + ":/host-npm:ro",
					}
					for _, rule := range append(append([]string{}, names...), addresses...) {
						args = append(args, "--allow", rule)
					}
					return h.hutch(t, append(append(args, "dev"), tt.command...)...)
				}
				if r := try(names); r.code != 0 {
					t.Errorf("with %q and %q: %v", names, addresses, r)
				}
				if r := try(names[1:]); r.code == 0 {
					t.Errorf("without %s: %v", names[0], r)
				}
			})
		}
	})
}
