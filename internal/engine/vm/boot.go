//go:build linux || darwin

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/engine/vm/kernel"
	"github.com/hutch-sandbox/hutch/internal/engine/vm/qmp"
	"github.com/hutch-sandbox/hutch/internal/vmboot"
	"github.com/hutch-sandbox/hutch/internal/x/console"
)

// Deadlines of a start.
const (
	// kernelWork is how much of the host's CPU time a kernel may use until its
	// first report; it is about two seconds where it is emulated. kernelStill is
	// how long it may use none. A clock on the wall would take a busy host for
	// a kernel that hangs; kernelTime is for the host that does not get on at
	// all.
	kernelWork  = 30 * time.Second
	kernelStill = 10 * time.Second
	kernelTime  = 3 * time.Minute
	// planTime is how long a machine may take to become what its plan says.
	planTime = 2 * time.Minute
	// controlTime bounds each of QEMU's answers.
	controlTime = 20 * time.Second
	// tries is how often a kernel that says nothing is started again: now and
	// then one hangs before its first word.
	tries = 3
)

// volumesLimit is how much of what the volumes' server says is kept of a boot.
const volumesLimit = 256 << 10

// vmProcess is a started QEMU with its control connections, and what it works
// on as it was given: names in its private folder are QEMU's to change.
type vmProcess struct {
	cmd     *exec.Cmd
	monitor *qmp.Client
	boot    net.Conn
	console *console.Log
	files   *layout
	base    *os.File      // what the machine's memory was at its start; nil with volumes
	exited  chan struct{} // closed when QEMU has ended and was waited for

	bootMu sync.Mutex // one question on the boot connection at a time
}

// start starts QEMU for hw, whose connections it makes. The caller ends it.
// Shown are files of the host that QEMU sees.
func start(ctx context.Context, program string, hw *hardware, l *layout, con *console.Log, shown map[string]string) (_ *vmProcess, err error) {
	undo := undoList{}
	defer func() {
		if err != nil {
			undo.run()
		}
	}()
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	pair := func(what string) (net.Conn, *os.File, error) {
		fds, err := socketPair()
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", what, err)
		}
		ours, their := os.NewFile(uintptr(fds[0]), what), os.NewFile(uintptr(fds[1]), what)
		theirs = append(theirs, their)
		conn, err := net.FileConn(ours)
		ours.Close()
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", what, err)
		}
		undo.add(func() { conn.Close() })
		return conn, their, nil
	}
	p := &vmProcess{console: con, files: l, exited: make(chan struct{})}
	var monitor, screen net.Conn
	if monitor, hw.monitor, err = pair("monitor"); err != nil {
		return nil, err
	}
	if screen, hw.console, err = pair("console"); err != nil {
		return nil, err
	}
	if p.boot, hw.boot, err = pair("boot port"); err != nil {
		return nil, err
	}
	out, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	theirs = append(theirs, outW)
	undo.add(func() { out.Close() })
	c := &command{first: firstFD}
	hw.arguments(c)
	p.cmd, err = l.startQEMU(program, c, hw.accel == accelKVM, shown, outW)
	if err != nil {
		return nil, &box.Error{Kind: box.Internal, Op: "start", Object: program, Err: err}
	}
	for _, f := range theirs {
		f.Close()
	}
	theirs = nil
	con.Follow(screen)
	con.Follow(out)
	p.monitor = qmp.New(monitor)
	go func() { // ends with QEMU, which end kills
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	undo = nil
	if err := p.do(ctx, "qmp_capabilities", nil, nil); err != nil {
		p.end()
		return nil, fmt.Errorf("qemu did not start: %w: %s", err, lastLine(con.End()))
	}
	return p, nil
}

// do asks QEMU something.
func (p *vmProcess) do(ctx context.Context, command string, args, out any) error {
	ctx, cancel := context.WithTimeout(ctx, controlTime)
	defer cancel()
	return p.monitor.Do(ctx, command, args, out)
}

// end kills QEMU and waits for all that belongs to it.
func (p *vmProcess) end() {
	_ = p.cmd.Process.Kill()
	<-p.exited
	_ = p.monitor.Close()
	_ = p.boot.Close()
	if p.base != nil {
		_ = p.base.Close()
	}
	p.console.Wait()
}

// report waits for the machine's next report.
func (p *vmProcess) report(ctx context.Context) (vmboot.Report, error) {
	var r vmboot.Report
	stop := context.AfterFunc(ctx, func() { _ = p.boot.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := vmboot.Read(p.boot, vmboot.MaxReport, &r); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return r, err
	}
	if r.Stage == vmboot.Failed {
		return r, fmt.Errorf("the machine could not be set up: %s", strings.ToValidUTF8(r.Error[:min(len(r.Error), 1<<10)], "?"))
	}
	return r, nil
}

// tell sends the machine a message and waits until it has acted on it.
func (p *vmProcess) tell(ctx context.Context, m vmboot.Message) error {
	p.bootMu.Lock()
	defer p.bootMu.Unlock()
	if err := p.boot.SetDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.boot.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := vmboot.Write(p.boot, m); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return err
	}
	r, err := p.report(ctx)
	if err == nil && r.Stage != vmboot.Ready {
		err = fmt.Errorf("the machine reports %.20q out of turn", r.Stage)
	}
	return err
}

// lastLine is the end of what the console said, on one line.
func lastLine(tail []byte) string {
	tail = bytes.TrimSpace(tail)
	if len(tail) > 600 {
		tail = tail[len(tail)-600:]
	}
	if len(tail) == 0 {
		return "its console is empty"
	}
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(tail), "?")), " ")
}

// machine is what a boot is made of, resolved.
type machine struct {
	program string
	qemu    string // which QEMU it is: version and file
	kernel  kernel.Info
	hw      hardware
	files   map[string]string // the kernel's files, by the name in QEMU's /boot
}

// resolve finds QEMU, the kernel and the accelerator for a machine.
func (e *Engine) resolve(ctx context.Context, cfg *engine.Config) (*machine, error) {
	host, err := e.lookUp(ctx, cfg.CacheDir)
	if err != nil {
		return nil, err
	}
	store := Kernels(cfg.CacheDir)
	initrd, err := store.Initramfs(host.kernel, cfg.Agent)
	if err != nil {
		return nil, err
	}
	m := &machine{program: host.program, qemu: host.id + host.Version, kernel: host.kernel}
	m.files = map[string]string{"vmlinuz": store.Path(host.kernel.Name, "vmlinuz"), "initramfs": initrd}
	m.hw = hardware{
		arch: runtime.GOARCH, accel: host.Accel, seccomp: jailed,
		cpus: cpus(cfg.Limits.CPUs), memory: memorySize(cfg.Limits.Memory), mac: cfg.Net.MAC, tsc: host.TSC, shared: host.Shared,
		hasModules: host.kernel.Modules > 0,
	}
	return m, nil
}

// boot starts a machine: from its kernel, from a template, or from a capture.
func (e *Engine) boot(ctx context.Context, cfg engine.Config, from string) (engine.Instance, error) {
	m, err := e.resolve(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	con := console.New(cfg.Console, console.Limit)
	if from != "" {
		c, err := openCapture(from)
		if err != nil {
			return nil, err
		}
		return e.assemble(ctx, *m, &cfg, con, c, nil)
	}
	like := e.imageTemplate(m, &cfg)
	if like != nil {
		if c, err := openTemplate(like.dir); err == nil {
			i, err := e.assemble(ctx, *m, &cfg, con, c, nil)
			if err == nil || ctx.Err() != nil {
				return i, err
			}
			// It worked once. What is wrong now, the next box must not meet.
			con.Note("the image's template does not work: " + err.Error())
			if err := errors.Join(os.RemoveAll(like.dir), os.RemoveAll(filepath.Join(cfg.DiskDir, diskFile))); err != nil {
				return nil, err
			}
			con = console.New(cfg.Console, console.Limit)
		}
	}
	return e.assemble(ctx, *m, &cfg, con, nil, like)
}

// assemble makes the machine: from a capture if there is one, else from its
// parts. A machine that is new also becomes the template of those like it.
func (e *Engine) assemble(ctx context.Context, hull machine, cfg *engine.Config, con *console.Log, capture *captured, like *imageTemplate) (_ engine.Instance, err error) {
	m := &hull
	undo := undoList{}
	defer func() {
		if err != nil {
			undo.run()
		}
	}()
	l, err := prepareLayout(cfg.StateDir, cfg.ID)
	if err != nil {
		return nil, err
	}
	if m.hw.image, err = os.Open(cfg.Image); err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	defer m.hw.image.Close()
	if fi, err := m.hw.image.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("image: %s is no file: %w", cfg.Image, errors.Join(err, fs.ErrInvalid))
	}
	if m.hw.hasModules {
		if m.hw.modules, err = os.Open(Kernels(cfg.CacheDir).Path(m.kernel.Name, "modules.erofs")); err != nil {
			return nil, fmt.Errorf("kernel modules: %w", err)
		}
		defer m.hw.modules.Close()
	}
	if capture != nil {
		if err := capture.placeDisk(ctx, cfg.DiskDir); err != nil {
			return nil, err
		}
	}
	size := diskSize(cfg.Limits.Disk)
	if m.hw.disk, err = openDisk(ctx, cfg.DiskDir, cfg.CacheDir, size); err != nil {
		return nil, err
	}
	disk := m.hw.disk
	undo.add(func() { disk.Close() })
	// What a machine asks of the volumes' server makes that speak as well, on
	// and on, so that it has a bound of its own.
	vols, err := startVolumes(l, cfg.StateDir, cfg.Mounts, console.New(cfg.Console, volumesLimit))
	if err != nil {
		return nil, err
	}
	undo.add(vols.end)
	m.hw.volumes, m.hw.volumesAt = vols.socket, vols.seen
	m.hw.link = cfg.Link

	p, fresh, err := e.launch(ctx, m, l, con, cfg, capture)
	if err != nil {
		return nil, err
	}
	undo.add(p.end)
	inst := newInstance(cfg, m, p, vols, disk, size)
	undo.add(inst.closeGroup)
	if err := inst.enterGroup(cfg.ID); err != nil {
		return nil, err
	}
	pctx, cancel := context.WithTimeout(ctx, planTime)
	defer cancel()
	if err := p.setUp(pctx, m, cfg, vols, fresh, like); err != nil {
		// A machine that failed says why on its console, and switches off.
		select {
		case <-p.exited:
			p.end()
		case <-time.After(2 * time.Second):
		}
		return nil, &box.Error{Kind: kindOf(pctx, err), Op: "boot", Err: fmt.Errorf("%w; console: %s", err, lastLine(con.End()))}
	}
	inst.watch()
	return inst, nil
}

// setUp makes the machine the box's.
func (p *vmProcess) setUp(ctx context.Context, m *machine, cfg *engine.Config, vols *volumes, fresh bool, like *imageTemplate) error {
	adopt := func() error {
		return p.tell(ctx, vmboot.Message{Adopt: &vmboot.Adopt{Identity: newIdentity(cfg.AgentConfig)}})
	}
	switch {
	case !fresh:
		return adopt()
	case like == nil:
		return p.tell(ctx, vmboot.Message{Plan: plan(cfg, vols, newIdentity(cfg.AgentConfig))})
	}
	if err := p.tell(ctx, vmboot.Message{Plan: plan(cfg, vols, newIdentity(like.agent))}); err != nil {
		return err
	}
	if err := like.create(ctx, m, p, cfg); err != nil {
		p.console.Note("no template of the image: " + err.Error())
	}
	return adopt()
}

func kindOf(ctx context.Context, err error) box.Kind {
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
		return box.Timeout
	}
	return box.Internal
}

// plan is what a new machine is told.
func plan(cfg *engine.Config, vols *volumes, id vmboot.Identity) *vmboot.Plan {
	return &vmboot.Plan{
		Identity: id,
		Net:      network(cfg.Net),
		Mounts:   vols.mounts,
	}
}

// network is the link's addressing, as the machine is told.
func network(n engine.Net) vmboot.Net {
	told := vmboot.Net{
		Address: n.Addr.String(), Gateway: n.Gateway.String(),
		MAC: n.MAC.String(), PeerMAC: n.PeerMAC.String(), MTU: n.MTU,
	}
	if n.Addr6.IsValid() {
		told.Address6, told.Gateway6 = n.Addr6.String(), n.Gateway6.String()
	}
	return told
}

// launch starts QEMU and returns when the machine waits for a message. Fresh
// says that it is to be a plan.
func (e *Engine) launch(ctx context.Context, m *machine, l *layout, con *console.Log, cfg *engine.Config, capture *captured) (p *vmProcess, fresh bool, err error) {
	if capture != nil {
		p, err := restore(ctx, m, l, con, capture)
		return p, false, err
	}
	if vol := m.hw.volumes; vol == nil && !e.cold {
		t, err := e.template(ctx, m, cfg)
		if err == nil {
			p, err = restore(ctx, m, l, con, t)
		}
		if err == nil {
			return p, true, nil
		}
		if ctx.Err() != nil {
			return nil, false, err
		}
		con.Note("no template: " + err.Error())
	}
	p, err = coldBoot(ctx, m, l, con)
	return p, true, err
}

// coldBoot starts the kernel and waits until the machine wants its plan. A
// kernel that hangs before that is started again; what its console said stays.
func coldBoot(ctx context.Context, m *machine, l *layout, con *console.Log) (*vmProcess, error) {
	var last error
	for n := range tries {
		hw := m.hw
		var base *os.File
		if hw.volumes == nil {
			var err error
			if base, err = emptyMemory(l, hw.memory); err != nil {
				return nil, err
			}
		}
		hw.ram = l.seen("ram")
		hw.kernel = l.seenKernel(m.files["vmlinuz"], "vmlinuz")
		hw.initrd = l.seenKernel(m.files["initramfs"], "initramfs")
		p, err := start(ctx, m.program, &hw, l, con, m.files)
		if err != nil {
			if base != nil {
				base.Close()
			}
			return nil, err
		}
		p.base = base
		kctx, cancel := p.whileAlive(ctx)
		r, err := p.report(kctx)
		cancel()
		if err == nil && r.Stage == vmboot.Loaded {
			return p, nil
		}
		p.end()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		last = fmt.Errorf("the kernel did not come up: %w; console: %s", err, lastLine(con.End()))
		con.Note(fmt.Sprintf("boot %d of %d failed: %v", n+1, tries, err))
		if !errors.Is(err, context.Canceled) {
			break // it said what is wrong, and will say so again
		}
	}
	return nil, &box.Error{Kind: box.Timeout, Op: "boot", Err: last}
}

// whileAlive returns a context that ends when the starting kernel hangs.
func (p *vmProcess) whileAlive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		began := time.Now()
		var used time.Duration
		moved := began
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			cpu, _, _, err := processUsage(p.cmd.Process.Pid)
			if err != nil {
				continue // its end is noticed by its connections
			}
			if cpu > used+10*time.Millisecond {
				used, moved = cpu, time.Now()
			}
			switch {
			case cpu > kernelWork:
				cancel(fmt.Errorf("it worked for %s and did not come to an end: %w", cpu, context.Canceled))
			case time.Since(moved) > kernelStill:
				cancel(fmt.Errorf("it did nothing for %s: %w", kernelStill, context.Canceled))
			case time.Since(began) > kernelTime:
				cancel(fmt.Errorf("it took more than %s: %w", kernelTime, context.Canceled))
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

// emptyMemory makes the file behind a new machine's memory, QEMU's "ram": all
// hole. What the machine writes is its own, and never comes into it.
func emptyMemory(l *layout, size int64) (*os.File, error) {
	path := filepath.Join(l.dir, "ram")
	_ = os.Remove(path)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	err = f.Truncate(size)
	if err == nil {
		err = l.give(path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// socketPair makes a connected pair of stream sockets that no other process
// inherits by accident.
func socketPair() ([2]int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	return fds, err
}
