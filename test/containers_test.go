package test

import (
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

// enginePackages are a container engine of Debian's and what the test puts into
// containers.
const enginePackages = "podman,crun,iptables,busybox-static"

// A virtual machine's kernel is enough for a container engine: it makes an
// image, and runs containers with limits and with a network of their own, with
// layers in overlay on a disk as docs/vm.md says, and without.
func TestContainersInABox(t *testing.T) {
	if testing.Short() {
		t.Skip("a real image takes its time")
	}
	realengine.Need(t, "vm")
	h := vmHome(t)
	h.engine = "vm"
	h.ok(t, "image", "load", "-i", keptDebian(t, enginePackages))
	h.ok(t, "create", "--name", "b", "--idle", "-m", "1g", "--disk", "4g", "dev")
	h.ok(t, "exec", "b", "sh", "-c", "mkdir -p /tiny/bin && cp /bin/busybox /tiny/bin && ln -s busybox /tiny/bin/sh; echo from the box > /tiny/hello; busybox httpd -p 8080 -h /tiny")
	// Both ways of docs/vm.md.
	for _, c := range []struct{ driver, prepare string }{
		{"vfs", `mkdir -p /etc/containers && printf '[storage]\ndriver = "vfs"\nrunroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers/storage"\n' > /etc/containers/storage.conf`},
		{"overlay", `rm -rf /etc/containers/storage.conf /run/containers /var/lib/containers
truncate -s 2G /root/containers.img && mkfs.ext4 -q /root/containers.img && mkdir -p /var/lib/containers && mount -o loop /root/containers.img /var/lib/containers`},
	} {
		h.ok(t, "exec", "b", "sh", "-ec", c.prepare)
		h.ok(t, "exec", "b", "sh", "-c", "tar -C /tiny -c . | podman import - tiny")
		if out := h.ok(t, "exec", "b", "podman", "info", "--format", "{{.Store.GraphDriverName}} {{.Host.CgroupsVersion}}"); out != c.driver+" v2" {
			t.Errorf("podman uses %q", out)
		}
		out := h.ok(t, "exec", "b", "podman", "run", "--rm", "--pids-limit", "50", "--memory", "64m", "tiny", "/bin/sh", "-c",
			"echo x > /new && cat /new && /bin/busybox ip addr show eth0 && /bin/busybox wget -qO- http://10.88.0.1:8080/hello; /bin/busybox cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/memory.max")
		for _, want := range []string{"x\n", "inet 10.88.", "from the box\n", "50\n67108864"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: a container says %q, without %q", c.driver, out, want)
			}
		}
	}
}
