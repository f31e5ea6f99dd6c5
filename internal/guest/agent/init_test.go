//go:build linux

package agent

import (
	"bytes"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/boot"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

// rootScript makes a small root with the machine's programs in it, in a mount
// namespace that vanishes with the process, and becomes the agent there.
const rootScript = `set -e
root=$1; self=$2
mount --make-rprivate /
mount -t tmpfs tmpfs "$root"
mkdir -p "$root/usr" "$root/etc" "$root/var" "$root/run" "$root/sock" "$root/root"
mount --bind /usr "$root/usr"
mount --bind "$3" "$root/sock"
for d in bin sbin lib lib64; do
  if [ -L /$d ]; then ln -s "$(readlink /$d)" "$root/$d"; elif [ -d /$d ]; then mkdir "$root/$d"; mount --bind /$d "$root/$d"; fi
done
cp /etc/passwd /etc/group "$root/etc/"
if [ -e /etc/ld.so.cache ]; then cp /etc/ld.so.cache "$root/etc/"; fi
cp "$self" "$root/agent"
exec chroot "$root" /agent`

// bootInit boots the agent as PID 1 of new namespaces.
func bootInit(t *testing.T, conf boot.Config) (*rig, *osexec.Cmd) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sock, err := os.MkdirTemp("", "hutch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sock) })
	conf.Protocol, conf.Token, conf.Listen = boot.Protocol, testToken, "unix:/sock/s"
	var in, log bytes.Buffer
	if err := boot.Write(&in, conf); err != nil {
		t.Fatal(err)
	}
	cmd := osexec.Command("/bin/sh", "-c", rootScript, "sh", t.TempDir(), self, sock)
	cmd.Env = append(os.Environ(), asInit+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("no namespaces here: %v", err)
	}
	r := dialAgent(t, filepath.Join(sock, "s"), testToken)
	t.Cleanup(func() {
		ctx := testContext(t)
		if _, err := r.system.Shutdown(ctx, connect.NewRequest(&hutchv1.ShutdownRequest{})); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("agent's log:\n%s", log.String())
		}
	})
	deadline := time.Now().Add(hang)
	for {
		_, err := r.system.Hello(testContext(t), connect.NewRequest(&hutchv1.HelloRequest{}))
		if err == nil {
			return r, cmd
		}
		if time.Now().After(deadline) {
			cmd.Process.Kill()
			_ = cmd.Wait()
			t.Fatalf("the agent does not answer: %v\n%s", err, log.String())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// count returns how many processes have arg in their command line.
func (r *rig) count(arg string) int {
	r.t.Helper()
	res, err := r.system.Top(testContext(r.t), connect.NewRequest(&hutchv1.TopRequest{}))
	if err != nil {
		r.t.Fatal(err)
	}
	n := 0
	for _, p := range res.Msg.GetProcesses() {
		if strings.Contains(string(p.GetCommand()), arg) && p.GetState() != "Z" {
			n++
		}
	}
	return n
}

func TestInit(t *testing.T) {
	for _, tt := range []struct {
		name string
		conf boot.Config
	}{
		{"cgroup2", boot.Config{}},
		{"cgroup1", boot.Config{Pids: 200}},
		{"proc", boot.Config{NoCgroups: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conf := tt.conf
			conf.Hostname, conf.Env, conf.Dir = "testbox", argv("FROM_IMAGE=1"), []byte("/work/dir")
			r, _ := bootInit(t, conf)
			testInit(t, r, tt.name != "proc")
			if conf.Pids > 0 {
				testForkBomb(t, r, conf.Pids)
			}
		})
	}
}

func testInit(t *testing.T, r *rig, exact bool) {
	o := r.sh(`hostname; pwd; cat /etc/hostname; grep -c testbox /etc/hosts; echo $FROM_IMAGE $HOME; ls -d /proc/self /dev/null /dev/shm /tmp /dev/pts/ptmx; readlink /proc/1/fd/0; cat /proc/1/environ | grep -c 0123456789abcdef`)
	want := "testbox\n/work/dir\ntestbox\n1\n1 /root\n/dev/null\n/dev/pts/ptmx\n/dev/shm\n/proc/self\n/tmp\n/dev/null\n0\n"
	if string(o.out) != want {
		t.Errorf("the box looks like\n%s%s\nwant\n%s", o.out, o.err, want)
	}
	// No control group is to be found in the box.
	if o := r.sh(`grep cgroup /proc/mounts; ls -A /.hutch/cgroup`); len(o.out) > 0 {
		t.Errorf("visible: %s", o.out)
	}

	// Every kind of straggler dies with the tree.
	script := `trap "" TERM
sleep 3001 &
setsid sleep 3001 &
(setsid sh -c 'sleep 3001 & sleep 3001' &) &
`
	if exact {
		script += `(setsid sh -c 'trap "" TERM; (exec >/dev/null 2>&1 </dev/null; cd /; setsid sleep 3001 & exec true) & exec true' &) &
`
	}
	script += "sleep 3001"
	start := time.Now()
	o = r.run(&hutchv1.StartRequest{Args: argv("sh", "-c", script), Timeout: durationpb.New(500 * time.Millisecond)})
	if o.exit.GetReason() != hutchv1.ExitReason_EXIT_REASON_TIMEOUT || o.exit.GetCode() != 137 {
		t.Errorf("timeout: %v", o.exit)
	}
	t.Logf("timeout of 500 ms returned after %v", time.Since(start))
	if n := r.count("3001"); n != 0 {
		t.Errorf("%d stragglers are left after the timeout", n)
	}

	// A background job survives the normal end of its command.
	o = r.run(&hutchv1.StartRequest{Id: "bg", Args: argv("sh", "-c", "sleep 3002 >/dev/null 2>&1 & exit 4")})
	if o.exit.GetCode() != 4 || r.count("3002") != 1 {
		t.Errorf("background job: exit %v, %d left", o.exit, r.count("3002"))
	}
	if exact {
		if _, err := r.process.Signal(testContext(t), connect.NewRequest(&hutchv1.SignalRequest{Id: "bg", Signal: 9, Tree: true})); err != nil {
			t.Error(err)
		}
		eventually(t, "the background job is gone", func() bool { return r.count("3002") == 0 })
	}

	// Orphans are reaped.
	for range 20 {
		r.sh(`(sh -c 'sleep 0.01 & exit' &); exit 0`)
	}
	eventually(t, "all zombies are reaped", func() bool {
		res, err := r.system.Top(testContext(t), connect.NewRequest(&hutchv1.TopRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range res.Msg.GetProcesses() {
			if p.GetState() == "Z" {
				return false
			}
		}
		return true
	})

	// Parallel commands get their own statuses from the one reaper.
	errs := make(chan error, 50)
	for i := range 50 {
		go func() {
			o, err := r.tryRun(&hutchv1.StartRequest{Args: argv("sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i))})
			if err == nil && (o.exit.GetCode() != int32(i) || string(o.out) != fmt.Sprintln(i)) {
				err = fmt.Errorf("command %d: %q, %v", i, o.out, o.exit)
			}
			errs <- err
		}()
	}
	for range 50 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}

	// A terminal works, and belongs to the command's user.
	o = r.run(&hutchv1.StartRequest{Args: argv("sh", "-c", "tty; stat -c %u $(tty); stty size; id -u"), Tty: true, Rows: 33, Cols: 77, User: "daemon"})
	if got := strings.ReplaceAll(string(o.out), "\r\n", "|"); got != "/dev/pts/0|1|33 77|1|" {
		t.Errorf("terminal: %q", got)
	}

	// Users by name and id; groups.
	for spec, want := range map[string]string{"daemon": "1 1", "12345": "12345 0", "12345:54321": "12345 54321", "daemon:mail": "1 8", "0": "0 0", "": "0 0"} {
		o = r.run(&hutchv1.StartRequest{Args: argv("sh", "-c", "echo $(id -u) $(id -g)"), User: spec})
		if got := strings.TrimSpace(string(o.out)); got != want {
			t.Errorf("user %q: %s, want %s", spec, got, want)
		}
	}
	o = r.run(&hutchv1.StartRequest{Args: argv("cat", "/etc/private"), User: "daemon", Dir: []byte("/")})
	if o.exit.GetCode() != 1 {
		t.Errorf("reading a missing file: %v", o.exit)
	}
	if o := r.sh("kill -TERM 1; kill -INT 1; kill -KILL 1; kill -HUP 1; sleep 0.1; echo alive"); string(o.out) != "alive\n" {
		t.Errorf("after signals to PID 1: %q", o.out)
	}

	// Memory: the heaviest command is named and killed.
	hog := r.start(testContext(t), &hutchv1.StartRequest{Id: "hog", Args: argv("sh", "-c", `x=$(head -c 30000000 /dev/zero | tr '\0' x); echo big; sleep 3003`)})
	for hog.Receive() && hog.Msg().GetOutput() == nil {
	}
	rec, err := r.system.Reclaim(testContext(t), connect.NewRequest(&hutchv1.ReclaimRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if rec.Msg.GetExecId() != "hog" || rec.Msg.GetRss() < 10<<20 {
		t.Errorf("reclaim: %v", rec.Msg)
	}
	var last *hutchv1.Exited
	for hog.Receive() {
		last = hog.Msg().GetExited()
	}
	hog.Close()
	if last.GetReason() != hutchv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY || last.GetSignal() != 9 {
		t.Errorf("the hog's exit: %v", last)
	}
}

func testForkBomb(t *testing.T, r *rig, limit int) {
	s := r.start(testContext(t), &hutchv1.StartRequest{Id: "bomb", Args: argv("sh", "-c", "while :; do sleep 3004 & done")})
	defer s.Close()
	eventually(t, "the limit is reached", func() bool { return r.count("3004") > limit*3/4 })
	if n := r.count("3004"); n > limit {
		t.Errorf("%d processes, the limit is %d", n, limit)
	}
	// The agent answers, and says why a command cannot start.
	eventually(t, "a start is refused as exhausted", func() bool {
		s := r.start(testContext(t), &hutchv1.StartRequest{Args: argv("sleep", "3004"), Detach: true})
		defer s.Close()
		return !s.Receive() && box.KindOf(wire.Decode(s.Err())) == box.Exhausted
	})
	if _, err := r.process.Signal(testContext(t), connect.NewRequest(&hutchv1.SignalRequest{Id: "bomb", Signal: 9, Tree: true})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a command can be started again, to end the rest", func() bool {
		o, err := r.tryRun(&hutchv1.StartRequest{Args: argv("sh", "-c", "kill -9 $(pidof sleep)")})
		return err == nil && o.exit.GetReason() == hutchv1.ExitReason_EXIT_REASON_EXITED && r.count("3004") == 0
	})
	if o := r.sh("echo fine"); string(o.out) != "fine\n" {
		t.Errorf("after the bomb: %q", o.out)
	}
}
