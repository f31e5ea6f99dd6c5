package keeper

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
	"github.com/hutch-sandbox/hutch/internal/egress"
	"github.com/hutch-sandbox/hutch/internal/engine"
	"github.com/hutch-sandbox/hutch/internal/guest/boot"
	"github.com/hutch-sandbox/hutch/internal/guest/client"
	"github.com/hutch-sandbox/hutch/internal/payload"
)

// agentPort is where the agent listens on the link.
const agentPort = 7777

// bootDeadline bounds the time from the start of the engine to the agent's
// first answer.
const bootDeadline = 60 * time.Second

// machine is a booted box: engine, link and agent.
type machine struct {
	inst      engine.Instance
	gateway   *egress.Gateway
	netlog    *boxdir.NetLog
	console   *os.File
	channel   *channel
	transport *http.Transport
	agent     *client.Client
	up        atomic.Pointer[client.Client] // agent, once it is set: connections from outside may come before
	token     string
	hello     *hutchv1.HelloResponse
}

// bootMachine boots what rec says, and returns once the agent has answered.
func bootMachine(ctx context.Context, home *boxdir.Home, b *boxdir.Box, rec boxdir.Record, secrets map[string]string) (_ *machine, err error) {
	e, err := engineNamed(rec.Engine)
	if err != nil {
		return nil, err
	}
	m := &machine{}
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			_ = m.close(ctx)
		}
	}()
	run := b.Path("run")
	if err := boxdir.RemoveAll(run); err != nil {
		return nil, err
	}
	if err := os.Mkdir(run, 0o700); err != nil {
		return nil, err
	}
	agent, err := payload.Extract(payload.Agent, home.Path("cache"))
	if err != nil {
		return nil, err
	}
	root, err := rootForm(ctx, e.Form(), b, rec)
	if err != nil {
		return nil, err
	}
	mounts, err := prepareMounts(home, rec.Spec.Volumes, filepath.Join(run, "volumes"))
	if err != nil {
		return nil, err
	}
	link, err := m.startNetwork(home, b, rec, secrets, e.Checksums())
	if err != nil {
		return nil, err
	}
	defer link.Close() // the engine has its own copy
	m.token = randomHex(32)
	conf := boot.Config{
		Protocol: boot.Protocol,
		BootID:   randomHex(16),
		Token:    m.token,
		Listen:   fmt.Sprintf("tcp:%s:%d", egress.GuestAddr.Addr(), agentPort),
		Hostname: rec.Hostname,
		Env:      environment(rec),
		Dir:      []byte(firstOf(rec.Spec.Dir, rec.Config.Dir)),
		User:     firstOf(rec.Spec.User, rec.Config.User),
		Pids:     limits(rec.Spec).Pids,

		Nameserver: egress.GatewayAddr.String(),
		CA:         m.gateway.CA(),
	}
	nobody, key := conf.Nobody()
	var config, nobodys bytes.Buffer
	if err := errors.Join(boot.Write(&config, conf), boot.Write(&nobodys, nobody)); err != nil {
		return nil, err
	}
	if m.console, err = openConsole(b.Path("console.log")); err != nil {
		return nil, err
	}
	m.inst, err = e.Boot(ctx, engine.Config{
		ID:          rec.ID,
		Hostname:    rec.Hostname,
		Image:       root,
		DiskDir:     b.Path("disk"),
		CacheDir:    home.Path("cache"),
		StateDir:    run,
		Mounts:      mounts,
		Limits:      limits(rec.Spec),
		Agent:       agent,
		AgentConfig: config.Bytes(),
		Nobody:      nobodys.Bytes(),
		NobodyKey:   key,
		AgentPort:   agentPort,
		Link:        link,
		Net: engine.Net{
			Addr: egress.GuestAddr, Gateway: egress.GatewayAddr, Addr6: egress.GuestAddr6, Gateway6: egress.GatewayAddr6,
			MAC: egress.GuestMAC, PeerMAC: egress.GatewayMAC, MTU: egress.MTU,
		},
		DialLink: m.gateway.DialBox,
		Console:  m.console,
	})
	if err != nil {
		return nil, err
	}
	m.reach()
	m.up.Store(m.agent)
	return m, m.awaitAgent(ctx)
}

// reach makes the client of the agent; it connects to nothing yet.
func (m *machine) reach() {
	m.channel = &channel{dial: m.inst.DialGuest}
	m.transport = client.Transport(m.channel.Dial)
	m.agent = client.New(m.transport, "http://agent", client.Options{Header: http.Header{boot.TokenHeader: {m.token}}})
}

// awaitAgent waits for the agent's first answer. Until it listens, the box's
// kernel refuses the connection; a machine that has ended answers nothing at
// all, so that the call has to end with it.
func (m *machine) awaitAgent(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootDeadline)
	var ender sync.WaitGroup
	ender.Go(func() {
		select {
		case <-m.inst.Done():
			cancel()
		case <-ctx.Done():
		}
	})
	defer ender.Wait()
	defer cancel()
	wait := time.Millisecond
	for {
		hello, err := m.agent.Hello(ctx)
		if err == nil {
			m.hello = hello
			return nil
		}
		if ctx.Err() == nil && box.KindOf(err) != box.Unavailable {
			return fmt.Errorf("guest agent: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
			wait = min(wait*3/2, 10*time.Millisecond)
			continue
		}
		select {
		case <-m.inst.Done():
			return &box.Error{Kind: box.Internal, Op: "boot", Err: fmt.Errorf("the engine ended before the guest agent answered: %s", m.lastWords())}
		default:
			return &box.Error{Kind: box.Timeout, Op: "boot", Err: fmt.Errorf("the guest agent did not answer: %s", m.lastWords())}
		}
	}
}

// lastWords is the end of the console, which says most when a boot fails.
func (m *machine) lastWords() string {
	const most = 600
	fi, err := m.console.Stat()
	if err != nil || fi.Size() == 0 {
		return "its console is empty"
	}
	buf := make([]byte, most)
	n, _ := m.console.ReadAt(buf, max(0, fi.Size()-most))
	return string(bytes.TrimSpace(buf[:n]))
}

// close ends the machine and waits for all of it. It may be called twice.
func (m *machine) close(ctx context.Context) error {
	var err error
	if m.inst != nil {
		err = m.inst.Kill(ctx)
	}
	if m.agent != nil {
		// A machine that is gone answers nothing, and an agent may have taken
		// nothing long before: who waits for either has to be told.
		m.channel.cut()
		_ = m.agent.Close()
	}
	if m.transport != nil {
		m.transport.CloseIdleConnections()
	}
	if m.gateway != nil {
		m.gateway.Close()
	}
	if m.netlog != nil {
		m.netlog.Close()
	}
	if m.console != nil {
		m.console.Close()
		m.console = nil
	}
	return err
}

// environment is what every command of the box starts from.
func environment(rec boxdir.Record) [][]byte {
	var env [][]byte
	for _, list := range [][]string{rec.Config.Env, rec.Spec.Env} {
		for _, kv := range list {
			env = append(env, []byte(kv))
		}
	}
	return append(env, placeholders(rec)...)
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// limits fills the defaults in.
func limits(s box.Spec) engine.Limits {
	l := engine.Limits{CPUs: s.CPUs, Memory: s.Memory, Disk: s.Disk, Pids: s.Pids}
	if l.Memory == 0 {
		l.Memory = box.DefaultMemory
	}
	if l.Disk == 0 {
		l.Disk = box.DefaultDisk
	}
	if l.Pids == 0 {
		l.Pids = box.DefaultPids
	}
	return l
}

func randomHex(n int) string {
	raw := make([]byte, n)
	_, _ = rand.Read(raw) // never fails
	return hex.EncodeToString(raw)
}

// openConsole starts the console anew when it has grown large.
func openConsole(path string) (*os.File, error) {
	if fi, err := os.Stat(path); err == nil && fi.Size() > 1<<20 {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
}

// prepareMounts binds every volume below dir, in this process's own mount
// namespace. A read-only volume is made read-only here, by the host's kernel:
// nothing that root does in the box can change that.
func prepareMounts(home *boxdir.Home, volumes []box.Volume, dir string) ([]engine.Mount, error) {
	if len(volumes) == 0 {
		return nil, nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	var mounts []engine.Mount
	for n, v := range volumes {
		source := v.Host
		if v.Name != "" {
			var err error
			if source, err = home.VolumeDir(v.Name); err != nil {
				return nil, fmt.Errorf("volume %s: %w", v.Name, err)
			}
		}
		at := filepath.Join(dir, fmt.Sprint(n))
		if err := bind(source, at, v.ReadOnly); err != nil {
			return nil, &box.Error{Kind: kindOfMount(err), Op: "mount volume", Object: source, Err: err,
				Hint: "check that it exists and that you may use it"}
		}
		mounts = append(mounts, engine.Mount{Source: at, Target: v.Target, ReadOnly: v.ReadOnly})
	}
	return mounts, nil
}

func kindOfMount(err error) box.Kind {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return box.NotFound
	case errors.Is(err, fs.ErrPermission):
		return box.Permission
	}
	return box.Internal
}

func bind(source, at string, readOnly bool) error {
	fi, err := os.Stat(source)
	if err != nil {
		return err
	}
	switch {
	case fi.IsDir():
		err = os.Mkdir(at, 0o700)
	case fi.Mode().IsRegular():
		err = os.WriteFile(at, nil, 0o600)
	default:
		return fmt.Errorf("%s: not a folder or a file", source)
	}
	if err != nil {
		return err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}
