//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"

	"gvisor.dev/gvisor/pkg/control/client"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/x/cgroup"
	"github.com/hutch-sandbox/hutch/internal/x/console"
)

// headroom is how far above the box's limit the host's hard limit lies. The
// agent is told to choose a victim at the box's limit; the hard limit only
// ends a box that outran that, and it also covers the kernel's own memory.
const headroom = 256 << 20

// Boot starts a machine. It must be called from a process that has a mount and
// a process namespace of its own, and at most once in that process: gVisor
// hands on the process's standard input, output and error.
func (e *Engine) Boot(ctx context.Context, cfg engine.Config) (_ engine.Instance, err error) {
	quiet()
	undo := undoList{}
	defer func() {
		if err != nil {
			undo.run()
		}
	}()

	d, err := mountDisk(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	undo.add(func() { _ = d.close() })

	bundle := filepath.Join(cfg.StateDir, "bundle")
	root := filepath.Join(cfg.StateDir, "gvisor")
	for _, dir := range []string{bundle, root, filepath.Join(cfg.StateDir, "none")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
	}
	// gVisor looks for helper programs in a folder beside this program unless
	// told otherwise. There are none: this program is all of them.
	if err := os.Setenv("GVISOR_SIDECAR_BINARIES_DIR", filepath.Join(cfg.StateDir, "none")); err != nil {
		return nil, err
	}
	conf, err := newConfig(root, cfg.Console.Name())
	if err != nil {
		return nil, err
	}
	spec := newSpec(&cfg, d.root)
	if err := writeBundle(bundle, spec, bootOverrides{TotalMemory: cfg.Limits.Memory, CPUs: visibleCPUs(cfg.Limits.CPUs)}); err != nil {
		return nil, err
	}

	// The sandbox's memory is shared with the processes in it, many mappings
	// each; the limits of an ordinary login are too low for some workloads.
	raiseNoFile()

	// Root in the box finds the agent's output below /proc and may write to it,
	// for ever.
	con := console.New(cfg.Console, console.Limit)
	said, out, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	con.Follow(said)
	undo.add(con.Wait)
	defer out.Close() // the machine has its own copy
	restore, err := redirectStdio(cfg.AgentConfig, out)
	if err != nil {
		return nil, err
	}
	c, err := container.New(conf, container.Args{ID: cfg.ID, Spec: spec, BundleDir: bundle})
	restore()
	if err != nil {
		return nil, fmt.Errorf("gvisor: create: %w", err)
	}
	undo.add(func() { _ = c.Destroy() })

	inst := newInstance(c, d, con, cfg)
	inst.guardGofer()
	undo.add(inst.abandon)
	undo.add(inst.closeGroup)
	if err := inst.enterGroup(cfg.ID, cfg.Limits); err != nil {
		return nil, err
	}

	if err := connectLink(c.Sandbox.ControlSocketPath, cfg); err != nil {
		return nil, fmt.Errorf("gvisor: network link: %w", err)
	}
	// "host" means here that gVisor leaves the network as it was just set up.
	started := *conf
	started.Network = config.NetworkHost
	if err := c.Start(&started); err != nil {
		return nil, fmt.Errorf("gvisor: start: %w", err)
	}
	inst.watch()
	return inst, nil
}

// visibleCPUs is how many CPUs the box sees. Below two some programs drop
// their locks, which a machine with two real CPUs punishes.
func visibleCPUs(limit float64) int {
	if limit <= 0 {
		return 0
	}
	return min(max(2, int(math.Ceil(limit))), max(2, runtime.NumCPU()))
}

// connectLink gives the machine its loopback and its one interface.
func connectLink(socket string, cfg engine.Config) error {
	// By descriptor: a home may lie deeper than a socket's address is long.
	fd, err := unix.Open(socket, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", socket, err)
	}
	defer func() { _ = unix.Close(fd) }()
	conn, err := client.ConnectTo(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err
	}
	defer conn.Close()
	link := boot.FDBasedLink{
		Name:                 "eth0",
		MTU:                  cfg.Net.MTU,
		LinkAddress:          cfg.Net.MAC,
		TXChecksumOffload:    true,
		RXChecksumOffload:    true,
		QDisc:                config.QDiscFIFO, // what waits is sent by one call, and wakes the gateway once
		NumChannels:          1,
		ProcessorsPerChannel: 1,
	}
	addFamily(&link, cfg.Net.Addr, cfg.Net.Gateway, cfg.Net.PeerMAC)
	if cfg.Net.Addr6.IsValid() {
		addFamily(&link, cfg.Net.Addr6, cfg.Net.Gateway6, cfg.Net.PeerMAC)
	}
	args := boot.CreateLinksAndRoutesArgs{
		FilePayload:   urpc.FilePayload{Files: []*os.File{cfg.Link}},
		LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink},
		FDBasedLinks:  []boot.FDBasedLink{link},
	}
	return conn.Call(boot.ContMgrSetNetworkArgs, &args, nil)
}

// addFamily gives the interface an address, its network, and the gateway as the
// way to everywhere else.
func addFamily(link *boot.FDBasedLink, addr netip.Prefix, gateway netip.Addr, mac net.HardwareAddr) {
	bits := addr.Addr().BitLen()
	gw := net.IP(gateway.AsSlice())
	link.Addresses = append(link.Addresses, boot.IPWithPrefix{Address: net.IP(addr.Addr().AsSlice()), PrefixLen: addr.Bits()})
	link.Routes = append(link.Routes,
		boot.Route{Destination: net.IPNet{IP: net.IP(addr.Masked().Addr().AsSlice()), Mask: net.CIDRMask(addr.Bits(), bits)}},
		boot.Route{Destination: net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}, Gateway: gw},
	)
	link.Neighbors = append(link.Neighbors, boot.Neighbor{IP: gw, HardwareAddr: mac})
}

// redirectStdio lets gVisor pass the agent's configuration and the console as
// the machine's standard files, which it takes from the os package.
func redirectStdio(config []byte, console *os.File) (restore func(), err error) {
	fd, err := unix.MemfdCreate("agent-config", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("agent configuration: %w", err)
	}
	in := os.NewFile(uintptr(fd), "agent-config")
	if _, err := in.Write(config); err != nil {
		in.Close()
		return nil, fmt.Errorf("agent configuration: %w", err)
	}
	if _, err := in.Seek(0, 0); err != nil {
		in.Close()
		return nil, fmt.Errorf("agent configuration: %w", err)
	}
	stdin, stdout, stderr := os.Stdin, os.Stdout, os.Stderr
	os.Stdin, os.Stdout, os.Stderr = in, console, console
	return func() {
		os.Stdin, os.Stdout, os.Stderr = stdin, stdout, stderr
		in.Close()
	}, nil
}

func raiseNoFile() {
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) == nil && lim.Cur < lim.Max {
		lim.Cur = lim.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &lim)
	}
}

// undoList runs its functions last to first.
type undoList []func()

func (u *undoList) add(f func()) { *u = append(*u, f) }

func (u *undoList) run() {
	for i := len(*u) - 1; i >= 0; i-- {
		(*u)[i]()
	}
}

// enterGroup puts the machine's processes into a control group, before any
// code of the box runs.
func (i *instance) enterGroup(id string, l engine.Limits) error {
	support := cgroup.Probe()
	limits := cgroup.Limits{CPUs: l.CPUs}
	if l.Memory > 0 {
		limits.Memory = l.Memory + headroom
	}
	if l.Pids > 0 {
		// The box's own kernel holds the limit. Each of its tasks takes
		// several of the host's, one for each CPU among them; the host's bound only has to stop a box that
		// broke its kernel.
		limits.Pids = l.Pids*(runtime.NumCPU()+4) + 1024
	}
	i.limits = box.Limits{Disk: i.disk.limit, Pids: box.Limit{Value: float64(l.Pids), By: "the box's kernel"}}
	if l.Pids == 0 {
		i.limits.Pids = box.Limit{}
	}
	if l.CPUs > 0 {
		i.limits.CPUs = box.Limit{Value: l.CPUs, By: support.CPU}
		if support.CPU == "" {
			i.limits.CPUs = box.Limit{Note: support.Reason}
		}
	}
	if l.Memory > 0 {
		i.limits.Memory = box.Limit{Value: float64(l.Memory), By: support.Memory}
		if support.Memory == "" {
			i.limits.Memory.By = "the keeper, by watching"
			i.limits.Memory.Note = support.Reason
		}
	}
	if support.CPU == "" && support.Memory == "" && support.Pids == "" {
		return nil
	}
	g, err := cgroup.Create(id, limits)
	if err != nil {
		return err
	}
	i.group = g
	return i.moveAll()
}

// moveAll moves every process of the machine: besides the two that were
// started, those that the sandbox has forked to run the box's programs in. It
// looks again until it finds no new one.
func (i *instance) moveAll() error {
	moved := map[int]bool{}
	for {
		found := false
		for _, top := range []int{i.sandboxPid, i.goferPid} {
			for _, pid := range descendants(top) {
				if moved[pid] {
					continue
				}
				if err := i.group.Add(pid); err != nil && !errors.Is(err, unix.ESRCH) {
					return err
				}
				moved[pid], found = true, true
			}
		}
		if !found {
			return nil
		}
	}
}

// descendants returns pid and all processes below it; nothing for zero.
func descendants(pid int) []int {
	if pid == 0 {
		return nil
	}
	all := []int{pid}
	for n := 0; n < len(all); n++ {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[n]))
		if err != nil {
			continue
		}
		for _, file := range tasks {
			data, err := os.ReadFile(file)
			if err != nil {
				continue // the thread ended
			}
			for _, field := range strings.Fields(string(data)) {
				if child, err := strconv.Atoi(field); err == nil {
					all = append(all, child)
				}
			}
		}
	}
	return all
}
