package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

// netPath is a way from a program in isolation to a server on this machine:
// through Hutch's gateway, or through a program that does for other sandboxes
// what the gateway does for boxes.
type netPath interface {
	name() string
	how() []string
	// start makes a place with that way, in which the client can be run.
	start(ctx context.Context) (netPlace, error)
}

// netPlace is where the client runs.
type netPlace interface {
	client(ctx context.Context, args ...string) (string, error)
	remove(ctx context.Context) error
}

// netPaths lists them in the order of the table.
func (b *bench) netPaths(exe string, server netip.AddrPort) ([]netPath, error) {
	var r *runsc
	for _, c := range b.contestants {
		if rc, ok := c.(*runsc); ok {
			r = rc
		}
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces for the peers need root")
	}
	list := []netPath{&hutchNet{b: b, exe: exe, server: server}}
	for _, h := range []attacher{slirp{}, pasta{}} {
		list = append(list, &runscNet{r: r, cannot: b.cannot["runsc"], exe: exe, via: h})
	}
	for _, h := range []attacher{slirp{}, pasta{}} {
		list = append(list, &nativeNet{b: b, exe: exe, via: h})
	}
	return append(list, directNet{exe: exe}), nil
}

// measureNetwork moves bytes and asks questions on all paths, taking turns.
func measureNetwork(ctx context.Context, b *bench) ([]*result, error) {
	mib := int(b.opts.netSize >> 20)
	var all []*result
	add := func(what, unit string, more bool) *result {
		r := newResult("network", what, unit)
		r.network, r.moreIsBetter = true, more
		all = append(all, r)
		return r
	}
	type bulkRow struct {
		res  *result
		args []string
	}
	var bulks []bulkRow
	for _, flows := range []int{1, 16} {
		for _, way := range []string{"down", "up"} {
			what := fmt.Sprintf("%d MiB %s, %d connections", mib, way, flows)
			if flows == 1 {
				what = fmt.Sprintf("%d MiB %s, one connection", mib, way)
			}
			bulks = append(bulks, bulkRow{add(what, "MB/s", true), []string{way, fmt.Sprint(flows), fmt.Sprint(mib)}})
		}
	}
	asks := []struct {
		kind       string
		res, added *result
	}{
		{"kept", add("a request on a connection that is kept", "µs", false), add("of it added to the direct way", "µs", false)},
		{"fresh", add("a request on a connection of its own", "µs", false), add("of it added to the direct way", "µs", false)},
	}
	addr, err := ownAddress()
	if err != nil {
		return all, skipAll(all, err)
	}
	srv, err := newNetServer(net.JoinHostPort(addr.String(), "0"))
	if err != nil {
		return nil, err
	}
	defer srv.close()
	server := netip.MustParseAddrPort(srv.addr())
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	paths, err := b.netPaths(exe, server)
	if err != nil {
		return all, skipAll(all, err)
	}
	places := map[string]netPlace{}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attempt)
		defer cancel()
		for name, p := range places {
			if err := p.remove(ctx); err != nil {
				fmt.Fprintf(os.Stderr, "remove %s: %v\n", name, err)
			}
		}
	}()
	for _, p := range paths {
		var place netPlace
		failure, end := limited(ctx, func(ctx context.Context) (err error) {
			if place, err = p.start(ctx); err != nil {
				return err
			}
			places[p.name()] = place
			_, err = ask(ctx, place, server, "kept", "10")
			return err
		})
		if end != nil {
			return nil, end
		}
		col := column{name: p.name(), how: p.how()}
		if failure != nil {
			col.reason = strings.ReplaceAll(failure.Error(), "\n", "; ")
		}
		b.netColumns = append(b.netColumns, col)
	}
	able := func(f func(name string, place netPlace) error) error {
		for _, col := range b.netColumns {
			if col.reason == "" {
				if err := f(col.name, places[col.name]); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for range min(b.opts.rounds, 5) {
		for _, row := range bulks {
			if err := able(func(name string, place netPlace) error {
				seconds, failure, end := clientTimes(ctx, place, server, row.args...)
				if failure == nil && end == nil {
					row.res.of(name).ok(float64(b.opts.netSize) / 1e6 / seconds[0])
				} else {
					row.res.of(name).fail(failure)
				}
				return end
			}); err != nil {
				return nil, err
			}
		}
		for _, row := range asks {
			medians := map[string]float64{}
			if err := able(func(name string, place netPlace) error {
				seconds, failure, end := clientTimes(ctx, place, server, row.kind, "300")
				if failure != nil {
					row.res.of(name).fail(failure)
					return end
				}
				s := &sample{values: seconds}
				medians[name] = s.median() * 1e6
				row.res.of(name).ok(medians[name])
				return end
			}); err != nil {
				return nil, err
			}
			for name, v := range medians {
				if direct, ok := medians[directName]; ok && name != directName {
					row.added.of(name).ok(v - direct)
				}
			}
		}
	}
	return all, nil
}

// skipAll says in every row why there is nothing.
func skipAll(all []*result, reason error) error {
	for _, r := range all {
		r.of("hutch").skip = reason.Error()
	}
	return nil
}

// ask runs the client once.
func ask(ctx context.Context, place netPlace, server netip.AddrPort, args ...string) (netAnswer, error) {
	var a netAnswer
	out, err := place.client(ctx, append([]string{netClientArg, server.String()}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &a)
	}
	if err == nil && len(a.Seconds) == 0 {
		err = errors.New("the client measured nothing")
	}
	return a, err
}

// clientTimes is ask with a bound.
func clientTimes(ctx context.Context, place netPlace, server netip.AddrPort, args ...string) (seconds []float64, failure, end error) {
	failure, end = limited(ctx, func(ctx context.Context) error {
		a, err := ask(ctx, place, server, args...)
		seconds = a.Seconds
		return err
	})
	return seconds, failure, end
}

// ownAddress is an address of this machine that is no loopback: the server
// listens there, and nothing leaves the machine.
func ownAddress() (netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, errors.New("this machine has no IPv4 address but loopback")
}

// hutchNet is a box that may reach the server and nothing else.
type hutchNet struct {
	b      *bench
	exe    string
	server netip.AddrPort
}

func (h *hutchNet) name() string { return "hutch" }

func (h *hutchNet) how() []string {
	return []string{"a box with `Network{Allow: []string{\"ADDRESS:PORT\"}}` of the server, the client run by `b.Command`"}
}

// clientPath is where the client is in sandboxes.
const clientPath = "/bench-client"

func (h *hutchNet) start(ctx context.Context) (netPlace, error) {
	bx, err := h.b.rt.Create(ctx, box.Spec{
		Image:   h.b.image,
		Volumes: []box.Volume{{Host: h.exe, Target: clientPath, ReadOnly: true}},
		Network: box.Network{Allow: []string{h.server.String()}},
	})
	if err != nil {
		return nil, err
	}
	if err := bx.Start(ctx); err != nil {
		return nil, errors.Join(err, drop(ctx, bx))
	}
	return &hutchPlace{hutchBox{bx: bx}}, nil
}

type hutchPlace struct{ hutchBox }

func (p *hutchPlace) client(ctx context.Context, args ...string) (string, error) {
	return p.exec(ctx, append([]string{clientPath}, args...)...)
}

// namespace is a network namespace that a process holds which ends with this
// one, and what gives it a way out.
type namespace struct {
	holder *exec.Cmd
	hold   io.Closer
	way    *exec.Cmd
	path   string // a file that is the namespace
}

// attacher is a program that connects a namespace to the host's network.
type attacher interface {
	name() string
	how() string
	// program runs in the foreground.
	program(n *namespace) program
	says() bool // on its descriptor 3 when it is ready
}

type slirp struct{}

func (slirp) name() string { return "slirp4netns" }
func (slirp) how() string {
	return "`slirp4netns --configure --mtu=65520 --disable-host-loopback --disable-dns`, as rootless Docker and podman start it"
}
func (slirp) says() bool { return true }
func (slirp) program(n *namespace) program {
	return program{args: []string{"slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback", "--disable-dns", "--ready-fd=3", fmt.Sprint(n.holder.Process.Pid), "tap0"}}
}

type pasta struct{}

func (pasta) name() string { return "pasta" }
func (pasta) how() string {
	return "`pasta --config-net --no-map-gw --tcp-ports none --udp-ports none --tcp-ns none --udp-ns none`, an address of its own, else its defaults (MTU 65520)"
}
func (pasta) says() bool { return false }
func (pasta) program(n *namespace) program {
	return program{args: []string{"pasta", "--foreground", "--quiet", "--config-net", "--no-map-gw",
		"--tcp-ports", "none", "--udp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none", "--ipv4-only",
		"--address", "10.0.2.100", "--netmask", "24", "--gateway", "10.0.2.2", "--ns-ifname", "tap0",
		"--runas", "0:0", "--netns-only", "--netns", n.path}}
}

// newNamespace makes one; file is made and then is the namespace.
func newNamespace(ctx context.Context, via attacher, file string) (_ *namespace, err error) {
	if _, err := exec.LookPath(via.name()); err != nil {
		return nil, fmt.Errorf("%s is not installed (apt-get install slirp4netns passt)", via.name())
	}
	n := &namespace{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	// cat ends when its input does, so with this process at the latest.
	n.holder = program{args: []string{"cat"}}.command(context.WithoutCancel(ctx))
	n.holder.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
	if n.hold, err = n.holder.StdinPipe(); err != nil {
		return nil, err
	}
	if err := n.holder.Start(); err != nil {
		n.holder.Process = nil
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	// A mount of it, since pasta gives up the right to look at other processes.
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return nil, err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/net", n.holder.Process.Pid), file, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	n.path = file
	readyR, readyW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer readyR.Close()
	defer readyW.Close()
	var said strings.Builder
	n.way = via.program(n).command(context.WithoutCancel(ctx))
	n.way.Stderr, n.way.ExtraFiles = &said, []*os.File{readyW}
	n.way.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := n.way.Start(); err != nil {
		n.way = nil
		return nil, err
	}
	readyW.Close()
	if via.says() {
		_ = readyR.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := readyR.Read(make([]byte, 1)); err != nil {
			return nil, fmt.Errorf("%s did not get ready: %w", via.name(), err)
		}
		return n, nil
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		routes, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/route", n.holder.Process.Pid))
		if err != nil || strings.Contains(string(routes), "\ntap0\t00000000") {
			return n, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s set up no route", via.name())
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (n *namespace) close() error {
	if n.way != nil {
		_ = n.way.Process.Kill()
		_ = n.way.Wait()
	}
	if n.hold != nil {
		_ = n.hold.Close()
	}
	if n.holder != nil && n.holder.Process != nil {
		_ = n.holder.Wait()
	}
	if n.path == "" {
		return nil
	}
	return errors.Join(unix.Unmount(n.path, 0), os.Remove(n.path))
}

// runscNet is gVisor's own command in such a namespace.
type runscNet struct {
	r      *runsc
	cannot string
	exe    string
	via    attacher
}

func (p *runscNet) name() string { return "runsc + " + p.via.name() }

func (p *runscNet) how() []string {
	return []string{
		"runsc as above, but with `--network=sandbox` (its default) and a network namespace whose interface is a tap; the client run by `runsc exec`",
		p.via.how(),
	}
}

func (p *runscNet) start(ctx context.Context) (_ netPlace, err error) {
	if p.cannot != "" {
		return nil, errors.New(p.cannot)
	}
	ns, err := newNamespace(ctx, p.via, filepath.Join(p.r.b.work, "netns-runsc-"+p.via.name()))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ns.close())
		}
	}()
	id := p.r.newID()
	dir, err := p.r.bundle(id, idle(), bundleOptions{netns: ns.path, client: p.exe})
	if err != nil {
		return nil, err
	}
	if err := p.r.networked().detach(ctx, filepath.Join(dir, "log"), "run", "--detach", "--bundle", dir, id); err != nil {
		return nil, err
	}
	return &runscPlace{runscBox{r: p.r, id: id, dir: dir}, ns}, nil
}

type runscPlace struct {
	runscBox
	ns *namespace
}

func (p *runscPlace) client(ctx context.Context, args ...string) (string, error) {
	return p.r.networked().output(ctx, append([]string{"exec", p.id, clientPath}, args...)...)
}

func (p *runscPlace) remove(ctx context.Context) error {
	return errors.Join(p.runscBox.remove(ctx), p.ns.close())
}

// nativeNet is a process without a sandbox in such a namespace.
type nativeNet struct {
	b   *bench
	exe string
	via attacher
}

func (p *nativeNet) name() string { return p.via.name() }

func (p *nativeNet) how() []string {
	return []string{"no sandbox: the client run by `nsenter --net` in a namespace with " + p.via.name() + ", for orientation"}
}

func (p *nativeNet) start(ctx context.Context) (netPlace, error) {
	ns, err := newNamespace(ctx, p.via, filepath.Join(p.b.work, "netns-"+p.via.name()))
	if err != nil {
		return nil, err
	}
	return &nativePlace{p.exe, ns}, nil
}

type nativePlace struct {
	exe string
	ns  *namespace
}

func (p *nativePlace) client(ctx context.Context, args ...string) (string, error) {
	return program{args: []string{"nsenter", "--net=" + p.ns.path, p.exe}}.output(ctx, args...)
}

func (p *nativePlace) remove(context.Context) error {
	return p.ns.close()
}

// directNet is a process of the host.
type directNet struct{ exe string }

const directName = "direct"

func (directNet) name() string { return directName }

func (directNet) how() []string {
	return []string{"the client as a process of the host: what the machine's own network does"}
}

func (p directNet) start(context.Context) (netPlace, error) { return directPlace(p), nil }

type directPlace directNet

func (p directPlace) client(ctx context.Context, args ...string) (string, error) {
	return program{args: []string{p.exe}}.output(ctx, args...)
}

func (directPlace) remove(context.Context) error { return nil }
