// Package enginetest is the suite that every engine passes.
//
// It boots real machines from the builtin image and talks to the guest agent
// in them, as a keeper does. The test process must be in a mount and a process
// namespace of its own: see Namespaces.
package enginetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/egress"
	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/guest/boot"
	"github.com/hutch-sandbox/hutch/internal/guest/client"
	"github.com/hutch-sandbox/hutch/internal/payload"
	"github.com/hutch-sandbox/hutch/internal/userland/rootfs"
	"github.com/hutch-sandbox/hutch/internal/x/erofs"
)

const inside = "HUTCH_ENGINETEST_INSIDE"

// Namespaces runs the test program anew in namespaces such as a keeper has,
// and returns only in there. It is called first in TestMain, after the engine
// had its chance to take the process for one of its own. As an ordinary user,
// the program is root in a user namespace.
func Namespaces() {
	if os.Getenv(inside) == "" {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Args[0] = "enginetest"
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID}
		if os.Geteuid() != 0 {
			cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
		}
		err := cmd.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			os.Exit(exit.ExitCode())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "enginetest:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	for _, err := range []error{
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
	} {
		if err != nil {
			fmt.Fprintln(os.Stderr, "enginetest: namespaces:", err)
			os.Exit(1)
		}
	}
}

// machine is a booted machine under test.
type machine struct {
	engine.Instance
	agent   *client.Client
	gateway *egress.Gateway
	token   string
	close   func()
}

// bench is what machines of one test share: an image, a disk, a cache.
type bench struct {
	t     testing.TB
	e     engine.Engine
	dir   string
	cache string // the engine's
	image string // in the engine's form
	boot  int
}

// Options are the settings of Run. The zero value is fine.
type Options struct {
	// Cache is the engines' shared folder; empty: one for each test.
	Cache string
}

// Run runs the suite on an engine.
func Run(t *testing.T, e engine.Engine, o Options) {
	cache := func(t *testing.T) string {
		if o.Cache != "" {
			return o.Cache
		}
		return t.TempDir()
	}
	report := e.Probe(t.Context(), cache(t))
	if !report.Usable {
		t.Fatalf("engine %s is not usable here: %s (%s)", e.Name(), report.Reason, report.Fix)
	}
	for _, rule := range []struct {
		name, says string
		check      func(*bench)
	}{
		{"Boot", "a machine boots, its agent answers, and Kill leaves nothing", boots},
		{"Refusals", "a boot that cannot be fails, and leaves nothing", refuses},
		{"Durable", "what the guest synced is there after a kill and another boot", durable},
		{"ReadOnly", "the image is not changed by what the guest does to its root", readOnly},
		{"Mounts", "a folder and a file are mounted; read-only holds for root in the box", mounts},
		{"Death", "a machine whose engine is killed is noticed", death},
		{"Pause", "a paused machine does nothing, a resumed one goes on; or both are refused", func(b *bench) { pauses(b, report.Pause) }},
		{"Capture", "a copy of a machine has its processes, memory and unsynced files, an identity of its own, and leaves the original alone; or it is refused", func(b *bench) { captures(b, report.Capture) }},
		{"Memory", "a machine at its memory limit says so", memory},
		{"Stats", "limits and statistics are told", stats},
	} {
		t.Run(rule.name, func(t *testing.T) {
			b := &bench{t: t, e: e, dir: t.TempDir(), cache: cache(t)}
			b.prepare()
			defer func() {
				if t.Failed() {
					t.Logf("the rule is: %s", rule.says)
				}
			}()
			rule.check(b)
			b.clean()
		})
	}
}

func (b *bench) must(err error, what string) {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

func (b *bench) path(names ...string) string {
	return filepath.Join(append([]string{b.dir}, names...)...)
}

func (b *bench) prepare() {
	for _, dir := range []string{"image", "disk", "shared"} {
		b.must(os.Mkdir(b.path(dir), 0o755), "prepare")
	}
	var program bytes.Buffer
	b.must(payload.Write(payload.Userland, &program), "builtin program")
	b.image = b.path("image")
	b.must(rootfs.Write(b.image, program.Bytes()), "builtin image")
	if b.e.Form() == engine.EROFS {
		f, err := os.Create(b.path("image.erofs"))
		b.must(err, "image")
		b.must(erofs.Write(b.t.Context(), b.image, f), "image")
		b.must(f.Close(), "image")
		b.image = f.Name()
	}
}

// config is a machine that boots; tests change it.
func (b *bench) config() engine.Config {
	b.boot++
	state := b.path("run-" + strconv.Itoa(b.boot))
	b.must(os.Mkdir(state, 0o700), "state folder")
	agent, err := payload.Extract(payload.Agent, b.cache)
	b.must(err, "guest agent")
	return engine.Config{
		ID: randomID()[:12], Hostname: "tested", Image: b.image, DiskDir: b.path("disk"),
		CacheDir: b.cache, StateDir: state, Agent: agent, AgentPort: 7777,
		Limits: engine.Limits{Memory: 512 << 20, Pids: 256},
		Net: engine.Net{Addr: egress.GuestAddr, Gateway: egress.GatewayAddr, Addr6: egress.GuestAddr6, Gateway6: egress.GatewayAddr6,
			MAC: egress.GuestMAC, PeerMAC: egress.GatewayMAC, MTU: egress.MTU},
	}
}

func randomID() string {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw)
	return hex.EncodeToString(raw)
}

// try boots cfg, and returns once the agent has answered.
func (b *bench) try(cfg engine.Config) (*machine, error) { return b.tryFrom(cfg, "") }

// tryFrom boots cfg, from a capture if there is one.
func (b *bench) tryFrom(cfg engine.Config, from string) (*machine, error) {
	token := randomID()
	conf := boot.Config{
		Protocol: boot.Protocol, BootID: randomID(), Token: token, Hostname: cfg.Hostname, Pids: cfg.Limits.Pids,
		Listen: fmt.Sprintf("tcp:%s:%d", egress.GuestAddr.Addr(), cfg.AgentPort),
	}
	nobody, key := conf.Nobody()
	var config, nobodys bytes.Buffer
	b.must(errors.Join(boot.Write(&config, conf), boot.Write(&nobodys, nobody)), "agent configuration")
	cfg.AgentConfig, cfg.Nobody, cfg.NobodyKey = config.Bytes(), nobodys.Bytes(), key
	console, err := os.OpenFile(filepath.Join(b.dir, "console.log"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	b.must(err, "console")
	cfg.Console = console
	gateway, link, err := egress.NewLink(egress.Config{Checksums: b.e.Checksums()})
	b.must(err, "link")
	cfg.Link, cfg.DialLink = link, gateway.DialBox
	var inst engine.Instance
	if from == "" {
		inst, err = b.e.Boot(b.t.Context(), cfg)
	} else {
		inst, err = b.e.Restore(b.t.Context(), cfg, from)
	}
	link.Close()
	if err != nil {
		gateway.Close()
		console.Close()
		return nil, err
	}
	transport := client.Transport(inst.DialGuest)
	m := &machine{Instance: inst, gateway: gateway, token: token,
		agent: client.New(transport, "http://agent", client.Options{Header: http.Header{boot.TokenHeader: {token}}})}
	m.close = func() {
		_ = m.agent.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := inst.Kill(ctx); err != nil {
			b.t.Errorf("kill: %v", err)
		}
		transport.CloseIdleConnections()
		gateway.Close()
		console.Close()
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	for {
		_, err := m.agent.Hello(ctx)
		if err == nil {
			return m, nil
		}
		if box.KindOf(err) != box.Unavailable || ctx.Err() != nil {
			m.close()
			return nil, err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (b *bench) start(cfg engine.Config) *machine {
	b.t.Helper()
	m, err := b.try(cfg)
	if err != nil {
		console, _ := os.ReadFile(b.path("console.log"))
		b.t.Fatalf("boot: %v\n%s", err, console)
	}
	return m
}

// sh runs a script in the machine and returns its output and status.
func (b *bench) sh(m *machine, script string) (string, int) {
	b.t.Helper()
	s, err := m.agent.StartProcess(b.t.Context(), box.ProcessSpec{Args: []string{"/bin/sh", "-c", script}})
	b.must(err, "start a command")
	defer func() { _ = s.Close() }()
	var out strings.Builder
	for {
		ev, err := s.Recv()
		b.must(err, "follow the command")
		out.Write(ev.Data)
		if ev.Exit != nil {
			return out.String(), ev.Exit.Code
		}
	}
}

// clean fails the test if the machines left something in this namespace.
func (b *bench) clean() {
	b.t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		var left []string
		procs, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, p := range procs {
			data, err := os.ReadFile(p)
			if err != nil || filepath.Base(filepath.Dir(p)) == "1" {
				continue // this program is process 1 here
			}
			left = append(left, "process "+string(data))
		}
		// This thread's: the engine may have left another in a namespace of
		// its own.
		runtime.LockOSThread()
		mounts, err := os.ReadFile("/proc/thread-self/mounts")
		runtime.UnlockOSThread()
		b.must(err, "mounts")
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, b.dir) {
				left = append(left, "mount "+strings.TrimSpace(line))
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			b.t.Errorf("left behind: %s", strings.Join(left, "; "))
			return
		}
		reap()
		time.Sleep(5 * time.Millisecond)
	}
}

// reap collects processes that lost their parent: this is process 1.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 || err != nil {
			return
		}
	}
}

func boots(b *bench) {
	m := b.start(b.config())
	hello, err := m.agent.Hello(b.t.Context())
	b.must(err, "hello")
	if hello.GetHostname() != "tested" || hello.GetKernel() == "" {
		b.t.Errorf("the agent says %v", hello)
	}
	if out, code := b.sh(m, "echo $((6*7)); exit 3"); out != "42\n" || code != 3 {
		b.t.Errorf("the command gave %q and %d", out, code)
	}
	b.must(m.Kill(b.t.Context()), "kill")
	b.must(m.Kill(b.t.Context()), "kill again")
	select {
	case <-m.Done():
	default:
		b.t.Error("a killed machine is not done")
	}
	if exit := m.Exit(); !exit.Killed || exit.OutOfMemory {
		b.t.Errorf("it ended as %+v", exit)
	}
	m.close()
}

func refuses(b *bench) {
	cfg := b.config()
	cfg.Image = b.path("nowhere")
	if m, err := b.try(cfg); err == nil {
		m.close()
		b.t.Error("a machine booted without an image")
	}
	b.clean()
	cfg = b.config()
	cfg.Mounts = []engine.Mount{{Source: b.path("nowhere"), Target: "/mnt"}}
	if m, err := b.try(cfg); err == nil {
		m.close()
		b.t.Error("a machine booted with a mount of nothing")
	}
}

func durable(b *bench) {
	m := b.start(b.config())
	if out, code := b.sh(m, "mkdir -p /data; echo one > /data/f; echo two > /tmp/f; rm /etc/profile; sync"); code != 0 {
		b.t.Fatalf("write: %s", out)
	}
	m.close()
	m = b.start(b.config())
	if out, _ := b.sh(m, "cat /data/f /tmp/f; ls /etc/profile 2>/dev/null"); out != "one\ntwo\n" {
		b.t.Errorf("after another boot: %q", out)
	}
	m.close()
}

func readOnly(b *bench) {
	m := b.start(b.config())
	if out, code := b.sh(m, "echo x > /etc/passwd; rm -rf /home; echo x > /bin/hutch-userland; rm -rf /.hutch"); code != 0 {
		b.t.Logf("some of it was refused, which is as good: %s", out)
	}
	m.close()
	data, err := os.ReadFile(b.path("image", "etc", "passwd"))
	b.must(err, "the image's file")
	if !strings.HasPrefix(string(data), "root:") {
		b.t.Errorf("the image was changed: %q", data)
	}
	if _, err := os.Stat(b.path("image", "home", "box")); err != nil {
		b.t.Errorf("the image was changed: %v", err)
	}
	// The agent of the next boot is ours, whatever was done to its folder.
	cfg := b.config()
	cfg.DiskDir = b.path("disk")
	if m, err := b.try(cfg); err != nil {
		b.t.Errorf("the box does not boot after its agent was removed: %v", err)
	} else {
		m.close()
	}
}

func mounts(b *bench) {
	b.must(os.WriteFile(b.path("shared", "f"), []byte("host\n"), 0o644), "prepare")
	b.must(os.WriteFile(b.path("single"), []byte("single\n"), 0o644), "prepare")
	ro := b.path("ro")
	b.must(os.Mkdir(ro, 0o755), "prepare")
	// As a keeper does it: read-only is the host kernel's matter.
	b.must(unix.Mount(b.path("shared"), ro, "", unix.MS_BIND, ""), "bind")
	defer func() { _ = unix.Unmount(ro, unix.MNT_DETACH) }()
	b.must(unix.Mount("", ro, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""), "bind read-only")
	cfg := b.config()
	cfg.Mounts = []engine.Mount{
		{Source: b.path("shared"), Target: "/rw"},
		{Source: ro, Target: "/ro", ReadOnly: true},
		{Source: b.path("single"), Target: "/etc/single"},
	}
	m := b.start(cfg)
	if out, _ := b.sh(m, "cat /rw/f /ro/f /etc/single; echo box > /rw/g; echo more >> /etc/single"); out != "host\nhost\nsingle\n" {
		b.t.Errorf("read %q", out)
	}
	if out, code := b.sh(m, "echo no > /ro/h"); code == 0 {
		b.t.Errorf("a read-only mount was written to: %s", out)
	}
	m.close()
	if data, err := os.ReadFile(b.path("shared", "g")); err != nil || string(data) != "box\n" {
		b.t.Errorf("the host sees %q, %v", data, err)
	}
	if data, _ := os.ReadFile(b.path("single")); string(data) != "single\nmore\n" {
		b.t.Errorf("the host sees %q in the single file", data)
	}
	if _, err := os.Stat(b.path("shared", "h")); err == nil {
		b.t.Error("the read-only folder has a new file")
	}
	// No mount of the test's own may fail the check for leftovers.
	b.must(unix.Unmount(ro, 0), "unmount")
}

func death(b *bench) {
	m := b.start(b.config())
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		if pid, err := strconv.Atoi(filepath.Base(p)); err == nil && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	select {
	case <-m.Done():
	case <-time.After(20 * time.Second):
		b.t.Fatal("nobody noticed")
	}
	if m.Exit().Killed {
		b.t.Error("it is said that Kill did it")
	}
	m.close()
}

func pauses(b *bench, can bool) {
	m := b.start(b.config())
	defer m.close()
	err := m.Pause(b.t.Context())
	if !can {
		if !errors.Is(err, errors.ErrUnsupported) {
			b.t.Errorf("Pause gave %v; an engine that cannot says so", err)
		}
		return
	}
	b.must(err, "pause")
	b.must(m.Pause(b.t.Context()), "pause again")
	ctx, cancel := context.WithTimeout(b.t.Context(), 300*time.Millisecond)
	_, err = m.agent.Hello(ctx)
	cancel()
	if err == nil {
		b.t.Error("a paused machine answered")
	}
	b.must(m.Resume(b.t.Context()), "resume")
	b.must(m.Resume(b.t.Context()), "resume again")
	ctx, cancel = context.WithTimeout(b.t.Context(), 30*time.Second)
	defer cancel()
	if _, err := m.agent.Hello(ctx); err != nil {
		b.t.Errorf("after Resume: %v", err)
	}
}

func captures(b *bench, can bool) {
	m := b.start(b.config())
	defer m.close()
	dir := b.path("capture")
	b.must(os.Mkdir(dir, 0o700), "prepare")
	if !can {
		if err := m.Capture(b.t.Context(), dir); !errors.Is(err, errors.ErrUnsupported) {
			b.t.Errorf("Capture gave %v; an engine that cannot says so", err)
		}
		if _, err := b.tryFrom(b.config(), dir); !errors.Is(err, errors.ErrUnsupported) {
			b.t.Errorf("Restore gave %v; an engine that cannot says so", err)
		}
		return
	}
	job, err := m.agent.StartProcess(b.t.Context(), box.ProcessSpec{Args: []string{"/bin/sleep", "86399"}, Detach: true})
	b.must(err, "start a command")
	job.Close()
	if out, code := b.sh(m, "mkdir -p /data; echo before > /data/f; echo unsynced > /data/g"); code != 0 {
		b.t.Fatalf("write: %s", out)
	}
	b.must(m.Capture(b.t.Context(), dir), "capture")
	if out, code := b.sh(m, "cat /data/f; echo parent > /data/f"); code != 0 || out != "before\n" {
		b.t.Errorf("the original, after its capture: %q", out)
	}
	// Two copies at once, and one of a copy.
	restore := func(from, name string) *machine {
		cfg := b.config()
		cfg.Hostname, cfg.DiskDir = name, b.path("disk-"+name)
		b.must(os.Mkdir(cfg.DiskDir, 0o755), "prepare")
		c, err := b.tryFrom(cfg, from)
		b.must(err, "restore "+name)
		return c
	}
	copies := map[string]*machine{"one": restore(dir, "one"), "two": restore(dir, "two")}
	defer func() {
		for _, c := range copies {
			c.close()
		}
	}()
	again := b.path("again")
	b.must(os.Mkdir(again, 0o700), "prepare")
	if out, code := b.sh(copies["one"], "echo one > /data/f"); code != 0 {
		b.t.Fatalf("write: %s", out)
	}
	b.must(copies["one"].Capture(b.t.Context(), again), "capture a copy")
	copies["three"] = restore(again, "three")
	want := map[string]string{"one": "one\nunsynced\n", "two": "before\nunsynced\n", "three": "one\nunsynced\n"}
	random := map[string]string{}
	for name, c := range copies {
		if out, _ := b.sh(c, "cat /data/f /data/g"); out != want[name] {
			b.t.Errorf("copy %s reads %q, want %q", name, out, want[name])
		}
		if out, _ := b.sh(c, "grep -l 86399 /proc/[0-9]*/cmdline | grep -v self | wc -l"); strings.TrimSpace(out) == "0" {
			b.t.Errorf("copy %s has lost the command that ran", name)
		}
		hello, err := c.agent.Hello(b.t.Context())
		if err != nil || hello.GetHostname() != name {
			b.t.Errorf("copy %s says %v, %v", name, hello, err)
		}
		out, _ := b.sh(c, "head -c 16 /dev/urandom | od -An -tx1")
		if other, ok := random[out]; ok {
			b.t.Errorf("copies %s and %s have the same random numbers", name, other)
		}
		random[out] = name
		// Who knows the original's token is nobody here.
		transport := client.Transport(c.DialGuest)
		stranger := client.New(transport, "http://agent", client.Options{Header: http.Header{boot.TokenHeader: {m.token}}})
		if _, err := stranger.Hello(b.t.Context()); box.KindOf(err) != box.Unauthenticated {
			b.t.Errorf("copy %s, asked with the original's token: %v", name, err)
		}
		_ = stranger.Close()
		transport.CloseIdleConnections()
	}
	if out, _ := b.sh(m, "cat /data/f; date +%s"); !strings.HasPrefix(out, "parent\n") {
		b.t.Errorf("the original reads %q", out)
	}
}

func memory(b *bench) {
	cfg := b.config()
	cfg.Limits.Memory = 96 << 20
	m := b.start(cfg)
	defer m.close()
	if m.MemoryPressure() == nil {
		b.t.Skip("the engine cannot tell")
	}
	s, err := m.agent.StartProcess(b.t.Context(), box.ProcessSpec{Args: []string{"/bin/sh", "-c", "head -c 250000000 /dev/zero | tr '\\0' x | tail -c 240000000 > /dev/null; sleep 60"}})
	b.must(err, "start a hog")
	defer func() { _ = s.Close() }()
	select {
	case <-m.MemoryPressure():
	case <-m.Done():
		if !m.Exit().OutOfMemory {
			b.t.Errorf("the machine ended as %+v", m.Exit())
		}
	case <-time.After(time.Minute):
		b.t.Error("nobody noticed")
	}
}

func stats(b *bench) {
	m := b.start(b.config())
	defer m.close()
	st, err := m.Stats(b.t.Context())
	b.must(err, "statistics")
	if st.Memory <= 0 {
		b.t.Errorf("statistics are %+v", st)
	}
	l := m.Limits()
	if l.Memory.Value != 512<<20 || l.Memory.By == "" {
		b.t.Errorf("the memory limit is %+v", l.Memory)
	}
	if l.Pids.Value != 256 || l.Pids.By == "" {
		b.t.Errorf("the limit of processes is %+v", l.Pids)
	}
	if l.CPUs.Value != 0 {
		b.t.Errorf("nobody asked for a CPU limit, and it is %+v", l.CPUs)
	}
}
