//go:build linux

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/boot"
)

// maxGrace bounds what Shutdown waits for commands that ignore TERM.
const maxGrace = time.Hour

// tellLimit bounds what Shutdown waits for followers that do not read.
const tellLimit = 2 * time.Second

// systemService implements hutch.v1.System.
type systemService struct{ a *Agent }

// Hello is the handshake.
func (s *systemService) Hello(_ context.Context, req *connect.Request[hutchv1.HelloRequest]) (*connect.Response[hutchv1.HelloResponse], error) {
	if p := req.Msg.GetProtocol(); p != 0 && p != boot.Protocol {
		return nil, &box.Error{
			Kind: box.Unsupported, Op: "hello",
			Err:  errors.New("this box's agent speaks protocol " + strconv.Itoa(boot.Protocol) + ", not " + strconv.Itoa(int(p))),
			Hint: "restart the box, so that it boots with the agent of this version",
		}
	}
	var u unix.Utsname
	_ = unix.Uname(&u)
	hostname, _ := os.Hostname()
	return connect.NewResponse(&hutchv1.HelloResponse{
		Protocol: boot.Protocol,
		Version:  s.a.cfg.Version,
		BootId:   s.a.identity.Load().bootID,
		Hostname: strings.ToValidUTF8(hostname, "?"),
		Kernel:   strings.ToValidUTF8(unix.ByteSliceToString(u.Release[:]), "?"),
	}), nil
}

// Identify renames the machine. Commands that run keep the HOSTNAME in their
// environment.
func (s *systemService) Identify(_ context.Context, req *connect.Request[hutchv1.IdentifyRequest]) (*connect.Response[hutchv1.IdentifyResponse], error) {
	name := req.Msg.GetHostname()
	if name == "" || len(name) > 64 || strings.ContainsAny(name, "\x00\n \t/") {
		return nil, &box.Error{Kind: box.Invalid, Op: "identify", Object: "hostname", Err: fmt.Errorf("%q is not a host name", name), Hint: "use letters, digits, '-' and '.', at most 64"}
	}
	if err := setHostname(name); err != nil {
		return nil, &box.Error{Kind: box.Internal, Op: "identify", Object: name, Err: err}
	}
	return connect.NewResponse(&hutchv1.IdentifyResponse{}), nil
}

// Stats tells what the box uses.
func (s *systemService) Stats(context.Context, *connect.Request[hutchv1.SystemStatsRequest]) (*connect.Response[hutchv1.SystemStatsResponse], error) {
	res := &hutchv1.SystemStatsResponse{Processes: uint32(len(listPids()))}
	if data, err := readSmall("/proc/meminfo"); err == nil {
		m := parseMeminfo(data)
		res.MemoryTotal = m["MemTotal"]
		free, ok := m["MemAvailable"]
		if !ok {
			free = m["MemFree"] + m["Cached"]
		}
		res.MemoryUsed = res.MemoryTotal - min(free, res.MemoryTotal)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err == nil {
		res.DiskTotal = fs.Blocks * uint64(fs.Bsize)
		res.DiskUsed = (fs.Blocks - min(fs.Bfree, fs.Blocks)) * uint64(fs.Bsize)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err == nil {
		res.UptimeUsec = uint64(ts.Nano() / 1000)
	}
	for _, x := range s.a.execs.list() {
		if _, _, running := x.live(); running {
			res.Execs++
		}
	}
	return connect.NewResponse(res), nil
}

// parseMeminfo returns the values in bytes.
func parseMeminfo(data []byte) map[string]uint64 {
	m := make(map[string]uint64)
	for line := range strings.Lines(string(data)) {
		key, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !ok || len(f) == 0 {
			continue
		}
		if v, err := strconv.ParseUint(f[0], 10, 64); err == nil {
			if len(f) > 1 && f[1] == "kB" {
				v <<= 10
			}
			m[key] = v
		}
	}
	return m
}

// Top lists every process.
func (s *systemService) Top(context.Context, *connect.Request[hutchv1.TopRequest]) (*connect.Response[hutchv1.TopResponse], error) {
	owners := make(map[int]string)
	for _, x := range s.a.execs.list() {
		if g, pid, running := x.live(); g != nil {
			for _, p := range g.pids() {
				owners[p] = x.id
			}
			if running {
				owners[pid] = x.id
			}
		}
	}
	users, _ := s.a.accounts.names()
	res := &hutchv1.TopResponse{}
	for _, p := range readProcs() {
		proc := "/proc/" + strconv.Itoa(p.pid)
		var st unix.Stat_t
		if err := unix.Stat(proc, &st); err != nil {
			continue // it has ended
		}
		user := users[st.Uid]
		if user == "" {
			user = strconv.Itoa(int(st.Uid))
		}
		cmd, _ := readSmall(proc + "/cmdline")
		cmd = bytes.ReplaceAll(bytes.TrimRight(cmd, "\x00"), []byte{0}, []byte{' '})
		if len(cmd) == 0 {
			cmd = []byte("[" + p.comm + "]")
		}
		res.Processes = append(res.Processes, &hutchv1.OSProcess{
			Pid:     int32(p.pid),
			Ppid:    int32(p.ppid),
			User:    strings.ToValidUTF8(user, "?"),
			State:   strings.ToValidUTF8(string(rune(p.state)), "?"),
			Rss:     p.rss,
			CpuUsec: uint64(p.cpu().Microseconds()),
			Command: cmd,
			ExecId:  owners[p.pid],
		})
	}
	return connect.NewResponse(res), nil
}

// Shutdown ends all commands, tells those who follow them and writes everything
// to the disk. No new command starts afterwards.
func (s *systemService) Shutdown(ctx context.Context, req *connect.Request[hutchv1.ShutdownRequest]) (*connect.Response[hutchv1.ShutdownResponse], error) {
	grace := min(time.Duration(req.Msg.GetGraceMsec())*time.Millisecond, maxGrace)
	s.a.execs.shut()
	if grace > 0 {
		s.a.signalAll(unix.SIGTERM)
		s.a.signalAll(unix.SIGCONT)
		deadline := time.Now().Add(grace)
		for wait := time.Millisecond; s.a.busy() && time.Now().Before(deadline); wait = min(wait*2, 50*time.Millisecond) {
			if !sleep(ctx, min(wait, time.Until(deadline))) {
				return nil, ctx.Err()
			}
		}
	}
	deadline := time.Now().Add(killLimit)
	for wait := time.Millisecond; s.a.busy() && time.Now().Before(deadline); wait = min(wait*2, 50*time.Millisecond) {
		s.a.signalAll(unix.SIGKILL)
		if !sleep(ctx, wait) {
			return nil, ctx.Err()
		}
	}
	// Who follows a command hears how it ended, before the box is gone.
	deadline = time.Now().Add(tellLimit)
	for wait := time.Millisecond; s.a.telling() && time.Now().Before(deadline); wait = min(wait*2, 50*time.Millisecond) {
		if !sleep(ctx, wait) {
			return nil, ctx.Err()
		}
	}
	unix.Sync()
	s.a.execs.removeGroups()
	s.a.tracker.tidy()
	return connect.NewResponse(&hutchv1.ShutdownResponse{}), nil
}

// signalAll signals every process of every command, and as PID 1 every other
// process too.
func (a *Agent) signalAll(sig unix.Signal) {
	if a.cfg.Init {
		_ = unix.Kill(-1, sig) // all but PID 1 itself
		return
	}
	for _, g := range a.execs.groups() {
		if sig == unix.SIGKILL {
			g.kill()
		} else {
			signalGroup(g, 0, sig)
		}
	}
}

// busy reports whether a command, or a process one left behind, lives.
func (a *Agent) busy() bool {
	for _, g := range a.execs.groups() {
		if len(g.pids()) > 0 {
			return true
		}
	}
	if !a.cfg.Init {
		return false
	}
	for _, p := range readProcs() {
		// Threads of a real kernel are children of 2 and cannot be killed.
		if p.pid != 1 && p.pid != 2 && p.ppid != 2 && p.state != 'Z' && p.state != 'X' {
			return true
		}
	}
	return false
}

// telling reports whether somebody follows a command that was started and has
// not been told yet that it has ended.
func (a *Agent) telling() bool {
	for _, x := range a.execs.list() {
		if _, pid, _ := x.live(); pid != 0 && x.telling.Load() > 0 {
			return true
		}
	}
	return false
}

// Reclaim kills the command that holds most memory.
func (s *systemService) Reclaim(context.Context, *connect.Request[hutchv1.ReclaimRequest]) (*connect.Response[hutchv1.ReclaimResponse], error) {
	rss := make(map[int]uint64)
	for _, p := range readProcs() {
		rss[p.pid] = p.rss
	}
	var worst *exec
	res := &hutchv1.ReclaimResponse{}
	for _, x := range s.a.execs.list() {
		g, pid, _ := x.live()
		if g == nil {
			continue
		}
		var sum uint64
		for _, p := range g.pids() {
			sum += rss[p]
		}
		if sum > res.Rss {
			worst = x
			res.ExecId, res.Pid, res.Rss = x.id, int32(pid), sum
		}
	}
	if worst == nil {
		return nil, &box.Error{Kind: box.NotFound, Op: "reclaim", Err: errors.New("no command holds memory")}
	}
	g, _, running := worst.live()
	if running {
		worst.kill(hutchv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY)
	}
	g.kill() // at once, whatever the supervisor is at
	s.a.logf("out of memory: killed exec %s (%d bytes)", res.ExecId, res.Rss)
	return connect.NewResponse(res), nil
}
